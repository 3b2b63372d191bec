"""Linear cost: a read of a few bytes costs the same, however much of its message waits already.

Sessions by themselves are in `tests/protocols/test_partial_frame.py`. Here are the layers around them: a connection of the hub
with its driver and journal, the decoders that read streams piece by piece, and the WebSocket transport. Mesh has no
stream: its messages are datagrams. Work is counted, in bytes taken from memory, calls, and bytes searched; never timed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest
from websockets.client import ClientProtocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from tests.hub.bare import hub_in_memory
from tests.protocols.talking import GREETINGS, talking
from tests.protocols.test_partial_frame import LARGEST, written
from tests.transports.recorder import Recorder
from wireloom.model import Direction, Kind, Message
from wireloom.protocols import decoding
from wireloom.protocols.contract import Role
from wireloom.protocols.registry import protocol
from wireloom.transports import websocket
from wireloom.transports.base import Options
from wireloom.transports.memory import MEMORY
from wireloom.transports.websocket import WebSocketPipe

MIB = 1024 * 1024
LARGE = 16 * MIB
TINY = MIB
"""The last bytes of a message come in reads of 1 to 100 bytes, behind all the others."""
FORMS = [*LARGEST, "wolpertinger in pieces"]
HUB = (
    """
[[listener]]
url = "hsp://127.0.0.1:0"
settings = { max_payload = 33554432 }
[[listener]]
url = "emp://127.0.0.1:0"
settings = { max_message = 33554432 }
[[listener]]
url = "yamp://127.0.0.1:0"
settings = { max_body = 33554432 }
[[listener]]
url = "wolpertinger://127.0.0.1:0"
settings = { max_message = 10000000 }
[http]
url = "off"
[limits]
message_bytes = 33554432
"""
)  # fmt: skip


class Work:
    """Counts what one of eight reads costs: bytes taken from memory, which whatever is joined or copied is among,
    and calls."""

    def __init__(self) -> None:
        self.reads = 0
        self.counted = 0
        self.bytes = 0
        self.most_calls = 0

    def take(self, receive: Callable[[bytes], object], data: bytes) -> None:
        """Let somebody take a read."""
        self.reads += 1
        if self.reads % 8:
            receive(data)
            return
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        self.counted += 1
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        sys.setprofile(count)
        try:
            receive(data)
        finally:
            sys.setprofile(None)
        self.bytes += max(0, tracemalloc.get_traced_memory()[1] - before)
        self.most_calls = max(self.most_calls, calls)


def in_tiny_reads(receive: Callable[[bytes], object], stream: bytes) -> None:
    """Feed a stream whose last bytes come a few at a time; the last of all, which completes the message, is free."""
    draw, work, position = random.Random(1), Work(), 0
    while position < len(stream) - TINY:
        receive(stream[position : position + 64 * 1024])
        position += 64 * 1024
    tracemalloc.start(1)
    try:
        while position < len(stream) - 1:
            size = min(draw.randint(1, 100), len(stream) - 1 - position)
            work.take(receive, stream[position : position + size])
            position += size
            assert work.bytes <= 4 * len(stream) + 2000 * work.counted, f"{work.bytes} bytes for {work.counted} reads"
            assert work.most_calls <= 1000, f"{work.most_calls} calls for a read"
    finally:
        tracemalloc.stop()
    assert work.counted > 1000
    receive(stream[-1:])


def body_of(form: str) -> bytes:
    """As large as the protocol takes it."""
    return b"x" * 6_000_000 if form.startswith("wolpertinger") else b'"%b"' % (b"x" * (LARGE - 2))


def stream_of(form: str) -> bytes:
    """A stream with one large event."""
    if form in LARGEST:
        return written(form, [body_of(form)])
    client = talking("wolpertinger", Role.CLIENT, max_message=10_000_000, gzip_from=0)
    client.send(Message(Kind.EVENT, "sensors/kitchen", body_of(form)), 0.0)
    stream = client.outgoing()
    assert stream.count(b"\n") > 100
    return stream


@pytest.mark.parametrize("form", FORMS)
async def test_a_connection_of_the_hub_takes_a_large_message_in_tiny_reads(tmp_path: Path, form: str) -> None:
    name = form.partition(" ")[0]
    async with hub_in_memory(tmp_path, HUB) as hub:
        place = next(
            hub.listener(each.url).address
            for each in hub.config.listeners
            if each.protocol.name == name and each.scheme.name == "memory"
        )
        await MEMORY.connect(place, Recorder(), Options())
        [connection] = hub.connections.values()
        connection.received(GREETINGS.get(name, b""))
        taken = hub.metrics.received.value(name)

        def receive(data: bytes) -> None:
            connection.received(data)
            hub.turn.take_now(connection)

        in_tiny_reads(receive, stream_of(form))
        async with asyncio.timeout(20):
            while hub.metrics.received.value(name) <= taken or connection.driver.holds:
                await asyncio.sleep(0)
        assert connection.session.violation is None
        assert connection.session.buffered == 0
        connection.driver.abort()


class Searched(bytearray):
    """A buffer that counts the bytes in which something was looked for."""

    looked_at = 0

    def find(self, wanted: bytes, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        found = super().find(wanted, start, len(self) if end is None else end)
        Searched.looked_at += (len(self) if found < 0 else found) - start
        assert Searched.looked_at <= 4 * LARGE, "what was searched before is searched again"
        return found


@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_takes_a_large_message_in_tiny_reads(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = form.partition(" ")[0]
    monkeypatch.setattr(decoding, "bytearray", Searched, raising=False)
    monkeypatch.setattr(Searched, "looked_at", 0)
    own = protocol(name)
    topics = {7: "sensors/kitchen"} if name == "hsp" else None
    decoder, found = own.decoder(Direction.C2S, own.settings(LARGEST[name]), topics), list[Message]()
    decoder.feed(GREETINGS.get(name, b""))
    list(decoder)

    def receive(data: bytes) -> None:
        decoder.feed(data)
        found.extend(each.message for each in decoder)

    stream = stream_of(form)
    in_tiny_reads(receive, stream)
    assert [each.body for each in found] == [body_of(form)]
    assert Searched.looked_at or not form.startswith("wolpertinger"), "lines are searched for"


class NoSocket(asyncio.Transport):
    """A transport that takes what is written, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Nothing."""


def sent(client: ClientProtocol) -> bytes:
    return b"".join(client.data_to_send())


def in_fragments(client: ClientProtocol, body: bytes) -> Sequence[bytes]:
    """A message of many small frames."""
    draw, frames, position = random.Random(2), list[bytes](), 0
    while position < len(body):
        part = body[position : position + draw.randint(1, 100)]
        send = client.send_continuation if position else client.send_binary
        position += len(part)
        send(part, fin=position == len(body))
        frames.append(sent(client))
    return frames


@pytest.mark.parametrize("size", [LARGE, 0])
async def test_a_websocket_takes_a_large_message_in_tiny_reads(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # No read is left for a later iteration of the loop: there is none in this test.
    monkeypatch.setattr(websocket, "LONG", 3600.0)
    owner, transport = Recorder(), NoSocket()
    pipe = WebSocketPipe(owner, Options(busy_poll=0), ServerProtocol(max_size=2 * LARGE))
    pipe.connection_made(transport)
    client = ClientProtocol(parse_uri("ws://127.0.0.1/"), max_size=2 * LARGE)
    client.send_request(client.connect())
    pipe.data_received(sent(client))
    client.receive_data(bytes(transport.written))
    assert pipe.ready.done()
    # In one frame; or in frames of 1 to 100 bytes, which are handed over as they come.
    body = random.Random(3).randbytes(size or 2 * MIB)
    if size:
        client.send_binary(body)
        stream = sent(client)
    else:
        stream = b"".join(in_fragments(client, body))
    in_tiny_reads(pipe.data_received, stream)
    assert bytes(owner.data) == body
    pipe.connection_lost(None)
