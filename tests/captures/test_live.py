"""Real peers over loopback, captured by dumpcap where it may, and by a proxy that writes down what passes."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from tests.captures import writing
from tests.captures.reading import Found, read_files
from tests.captures.writing import ACK, FIN, PSH, SYN, Captured
from wireloom.model import Message
from wireloom.peers import connect, serve
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.reader import CaptureReader


class Recorder:
    """A proxy that passes bytes on and keeps each read as a packet between the two sockets it stands for."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.packets: list[Captured] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Recorder:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = f"127.0.0.1:{writer.get_extra_info('peername')[1]}"
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        positions = [1000, 9000]
        ends = (client, f"127.0.0.1:{self.target}")

        def add(side: int, payload: bytes, flags: int) -> None:
            source, destination = ends[side], ends[1 - side]
            segment = writing.tcp(source, destination, positions[side], payload, flags, positions[1 - side])
            self.packets.append(
                Captured(time.time_ns(), writing.linked(writing.ip(source, destination, 6, segment), 0))
            )
            positions[side] += len(payload) + bool(flags & (SYN | FIN))

        add(0, b"", SYN)
        add(1, b"", SYN | ACK)

        async def pump(side: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1400):
                add(side, data, ACK | PSH)
                sink.write(data)
                await sink.drain()
            add(side, b"", FIN | ACK)
            sink.close()

        self._tasks += [asyncio.create_task(pump(0, reader, back)), asyncio.create_task(pump(1, there, writer))]


@pytest.mark.parametrize("scheme", ["hsp", "emp", "yamp", "yamp+ws"])
async def test_what_real_peers_say_is_in_the_tables(scheme: str, tmp_path: Path) -> None:
    received: list[Message] = []

    async def handler(message: Message, peer: object) -> bytes | None:
        received.append(message)
        return message.body or None

    async with serve(f"{scheme}://127.0.0.1:0", handler) as server, Recorder(server.port) as recorder:
        async with connect(f"{scheme}://127.0.0.1:{recorder.port}") as client:
            for number in range(20):
                await client.publish("sensors/kitchen", {"c": number})
            if scheme != "hsp":
                assert await client.request("echo", {"n": 1}) is not None
        async with asyncio.timeout(30):
            while len(received) < 20:
                await asyncio.sleep(0.01)
    path = tmp_path / "live.pcap"
    path.write_bytes(writing.pcap(recorder.packets, 0, nano=True))
    # Recognised by its bytes: the ports are whatever was free.
    found = read_files([path], CaptureReader(Choice.parse()))
    events = [m for m in found.messages if m["kind"] == "event" and m["direction"] == "c2s"]
    assert len(events) >= 20 and {m["protocol"] for m in found.messages} == {scheme.partition("+")[0]}
    payload = sum(len(p.data) for p in recorder.packets) - len(recorder.packets) * 44
    assert sum(found.bytes_by_stream().values()) == payload


@pytest.mark.skipif(shutil.which("dumpcap") is None, reason="dumpcap is not installed")
async def test_what_dumpcap_captured_of_real_peers_is_in_the_tables(tmp_path: Path) -> None:
    received: list[Message] = []

    async def handler(message: Message, peer: object) -> None:
        received.append(message)

    path = tmp_path / "live.pcapng"
    async with serve("yamp+ws://127.0.0.1:0", handler) as server:
        capture = await asyncio.create_subprocess_exec(
            "dumpcap",
            "-q",
            "-i",
            "lo",
            "-f",
            f"tcp port {server.port}",
            "-w",
            str(path),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert capture.stderr is not None
            said = b""
            async with asyncio.timeout(30):
                while b"File: " not in said:
                    line = await capture.stderr.readline()
                    if not line:
                        pytest.skip(f"dumpcap may not capture here: {said.decode(errors='replace')}")
                    said += line
            # The filter is in force a moment after the file is there: talk until the beginning of a connection is in it.
            async with asyncio.timeout(60):
                found = Found()
                while not any(what == "closed" for what, _ in found.whats()):
                    async with connect(f"yamp+ws://127.0.0.1:{server.port}") as client:
                        for number in range(200):
                            await client.publish("sensors/kitchen", {"c": number, "padding": "x" * number})
                    await asyncio.sleep(0.3)
                    found = read_files([path], finish=False)
        finally:
            if capture.returncode is None:
                capture.terminate()
            await capture.wait()
    whole = read_files([path])
    opened = {event.connection for event in whole.events if event.what == "opened"}  # type: ignore[attr-defined]
    closed = {event.connection for event in whole.events if event.what == "closed"}  # type: ignore[attr-defined]
    for connection in opened & closed:
        events = [m for m in whole.messages if m["connection"] == connection and m["kind"] == "event"]
        assert [m["body_size"] for m in events] == [len(m.body) for m in received[:200]]
    assert opened & closed and not [r for r in whole.rejects if r["connection"] in opened & closed]
