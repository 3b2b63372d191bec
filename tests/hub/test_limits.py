"""Every limit is reached on a real socket: what happens then, and where it can be seen."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

import wireloom
from tests.hub.running import (
    HSP,
    ack,
    config,
    data,
    data_ack,
    eventually,
    get,
    hub_on,
    journaled,
    open_to,
    records,
    stream_to,
    url_of,
)
from wireloom.model import Kind
from wireloom.protocols.registry import protocol

LISTENERS = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
topics = { 7 = "sensors/kitchen" }
settings = { max_payload = 1000 }
[[listener]]
url = "emp://127.0.0.1:0"
settings = { max_message = 2000, max_decompressed = 1500 }
[[listener]]
url = "yamp://127.0.0.1:0"
settings = { max_body = 1000 }
[[listener]]
url = "wolpertinger://127.0.0.1:0"
settings = { max_message = 1000 }
[http]
url = "http://127.0.0.1:0"
"""


HELLO = protocol("emp").encode(wireloom.Message(Kind.OPEN), protocol("emp").settings())


def limited(text: str) -> str:
    return f"{HSP}[limits]\n{text}\n"


# Size


@pytest.mark.parametrize(
    ("scheme", "hello", "clause"),
    [
        ("hsp", struct.pack(">BHI", 0, 7, 1001), "hsp.payload.too-large"),
        ("emp", HELLO + struct.pack(">IBBxx", 2001, 5, 0), "emp.envelope.too-large"),
        ("yamp", bytes.fromhex("00 0001 04") + b"json" + b"\x05" + bytes(16) + b"\x01a" + struct.pack(">I", 1001), "yamp.body.too-large"),
    ],
)  # fmt: skip
async def test_a_message_that_is_too_large_is_refused_by_its_length_alone(
    scheme: str, hello: bytes, clause: str, tmp_path: Path
) -> None:
    async with hub_on(tmp_path, LISTENERS) as hub:
        reader, writer = await open_to(url_of(hub, scheme))
        writer.write(hello)
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert [found for _, found in hub.metrics.refused.samples()] == [clause]


async def test_a_wolpertinger_line_that_is_too_long_is_refused_alone(tmp_path: Path) -> None:
    async with hub_on(tmp_path, LISTENERS) as hub:
        _, writer = await open_to(url_of(hub, "wolpertinger"))
        writer.write(b"x" * 20_000 + b"\n")
        await eventually(lambda: hub.metrics.refused.value("wolpertinger", "wolpertinger.line.too-long") >= 1)
        assert len(hub.connections) == 1
        writer.close()


async def test_a_body_that_decompresses_to_too_much_is_refused(tmp_path: Path) -> None:
    async with hub_on(tmp_path, LISTENERS) as hub:
        async with wireloom.connect(url_of(hub, "emp"), reconnect=False) as peer:
            event = wireloom.Message(Kind.EVENT, "a", bytes(1600), attributes={"compression": "gzip"})
            peer.send(event)
            await eventually(lambda: hub.metrics.refused.samples())
        assert [clause for _, clause in hub.metrics.refused.samples()] == ["emp.compression.too-large"]


OVERALL = """
[[listener]]
url = "hsp://127.0.0.1:0"
topics = { 7 = "sensors/kitchen" }
[[listener]]
url = "emp://127.0.0.1:0"
settings = { max_message = 4000000 }
[[listener]]
url = "yamp://127.0.0.1:0"
[[listener]]
url = "wolpertinger://127.0.0.1:0"
[[listener]]
url = "mesh://127.0.0.1:0"
settings = { require = "any", max_payload = 4000 }
[http]
url = "off"
[limits]
message_bytes = 2000
decompressed_bytes = 1500
"""
MESH = protocol("mesh")
LARGE = MESH.settings({"max_payload": 4000})


@pytest.mark.parametrize(
    ("scheme", "sent", "clause"),
    [
        ("hsp", struct.pack(">BHI", 0, 7, 2001), "hsp.payload.too-large"),
        ("emp", HELLO + struct.pack(">IBBxx", 2001, 5, 0), "emp.envelope.too-large"),
        ("yamp", bytes.fromhex("00 0001 04") + b"json" + b"\x05" + bytes(16) + b"\x01a" + struct.pack(">I", 2001), "yamp.body.too-large"),
        ("wolpertinger", b"x" * 20_000 + b"\n", "wolpertinger.line.too-long"),
        ("mesh", MESH.encode(wireloom.Message(Kind.EVENT, "a", bytes(2000)), LARGE), "mesh.payload.too-large"),
    ],
)  # fmt: skip
async def test_one_limit_holds_down_the_size_of_messages_in_every_protocol(
    scheme: str, sent: bytes, clause: str, tmp_path: Path
) -> None:
    async with hub_on(tmp_path, OVERALL) as hub:
        if scheme == "mesh":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                host, _, port = url_of(hub, scheme).rpartition("://")[2].rpartition(":")
                sock.sendto(sent, (host, int(port)))
        else:
            _, writer = await open_to(url_of(hub, scheme))
            writer.write(sent)
        await eventually(lambda: hub.metrics.refused.value(scheme, clause) >= 1)
        if scheme != "mesh":
            writer.close()


@pytest.mark.parametrize(
    ("scheme", "clause"),
    [("emp", "emp.compression.too-large"), ("wolpertinger", "wolpertinger.message.too-large")],
)
async def test_one_limit_holds_down_what_messages_become_when_they_are_decompressed(
    scheme: str, clause: str, tmp_path: Path
) -> None:
    settings = {"compress_above": 10} if scheme == "emp" else {"gzip_from": 10}
    async with hub_on(tmp_path, OVERALL) as hub:
        async with wireloom.connect(url_of(hub, scheme), settings=settings, reconnect=False) as peer:
            peer.send(wireloom.Message(Kind.EVENT, "a", b"z" * 1600))
            await eventually(lambda: hub.metrics.refused.value(scheme, clause) >= 1)


async def test_a_mesh_payload_that_decompresses_to_too_much_is_refused(tmp_path: Path) -> None:
    settings = {"max_payload": 4000, "compress": True, "keep_name": False}
    async with hub_on(tmp_path, OVERALL) as hub:
        async with wireloom.connect(url_of(hub, "mesh"), settings=settings) as node:
            await node.publish("a", b"z" * 3000)
            await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.compression.too-large") >= 1)


async def test_a_message_of_a_web_socket_is_not_gathered_beyond_the_limit(tmp_path: Path) -> None:
    text = OVERALL.replace("yamp://", "yamp+ws://")
    async with hub_on(tmp_path, text) as hub:
        async with connect(url_of(hub, "yamp+ws").removeprefix("yamp+"), max_size=None) as socket_:
            # One frame, whose head says how long it will be: nothing of it reaches the protocol.
            with pytest.raises(ConnectionClosedError) as closed:
                await socket_.send(bytes(1_000_000))
                await socket_.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_a_listener_that_wants_more_than_the_limits_allow_is_warned_of(tmp_path: Path) -> None:
    warned = config(tmp_path, OVERALL).warnings
    assert [text for text in warned if "emp" in text or "max_message" in text] == [
        "hub.toml:6: listener: max_message = 4000000 is more than [limits] allows to any message: 2000 holds"
    ]


# Connections


async def test_connections_of_one_address_are_limited(tmp_path: Path) -> None:
    async with hub_on(tmp_path, limited("max_connections_per_address = 2")) as hub:
        open_ones = [await stream_to(hub) for _ in range(2)]
        await eventually(lambda: len(hub.connections) == 2)
        reader, writer = await stream_to(hub)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert hub.metrics.turned_away.value("address") == 1
        open_ones[0][1].close()
        await eventually(lambda: len(hub.connections) == 1)
        reader, writer = await stream_to(hub)
        writer.write(b"\x03")
        assert await reader.readexactly(1) == b"\x04", "who leaves makes room"
        for _, each in (*open_ones, (reader, writer)):
            each.close()


# Rate


async def test_who_sends_too_much_is_read_more_slowly_and_loses_nothing(tmp_path: Path) -> None:
    async with hub_on(tmp_path, limited("messages_per_second = 400")) as hub:
        reader, writer = await stream_to(hub)
        for first in range(0, 600, 100):
            writer.write(b"".join(data_ack(number, b"x") for number in range(first, first + 100)))
            await writer.drain()
            await reader.readexactly(500)
        assert hub.metrics.over_rate.value("hsp", "pause") >= 1
        assert hub.metrics.received.value("hsp") == 600
        writer.close()


async def test_what_is_too_much_is_refused_where_that_is_the_policy(tmp_path: Path) -> None:
    async with hub_on(tmp_path, limited('messages_per_second = 2\nover_rate = "refuse"')) as hub:
        reader, writer = await stream_to(hub)
        writer.write(b"".join(data_ack(number, b"x") for number in range(200)))
        assert await reader.readexactly(1000) == b"".join(map(ack, range(200))), "a read is taken as a whole"
        writer.write(data_ack(300, b"too much") + data(b"lost"))
        head = struct.unpack(">BIHI", await reader.readexactly(11))
        assert head[:3] == (5, 300, 429)
        assert b"too many messages" in await reader.readexactly(head[3])
        assert hub.metrics.over_rate.value("hsp", "refuse") == 1
        assert hub.metrics.refused.value("hsp", "limits.rate") == 1
        writer.close()
    bodies = [each.message.body for each in journaled(tmp_path)]
    assert b"lost" not in bodies


async def test_a_rate_is_that_of_a_principal_over_all_its_connections(tmp_path: Path) -> None:
    async with hub_on(tmp_path, limited("messages_per_second = 100")) as hub:
        for _ in range(2):
            reader, writer = await stream_to(hub)
            writer.write(b"".join(data_ack(number, b"x") for number in range(80)))
            await reader.readexactly(400)
            writer.close()
        assert hub.metrics.over_rate.value("hsp", "pause") == 1, "the second had but 20 left"


async def test_strangers_are_read_slowly(tmp_path: Path) -> None:
    text = limited("stranger_messages_per_second = 100") + '[[access.rule]]\nwho = ["token:a"]\npublish = ["a"]\n'
    async with hub_on(tmp_path, text) as hub:
        _, writer = await stream_to(hub)
        writer.write(data(b"x") * 150)
        await eventually(lambda: hub.metrics.over_rate.value("hsp", "pause") == 1)
        await eventually(lambda: hub.metrics.denied.value("hsp", "publish") == 150)
        writer.close()


# Time


async def test_a_peer_that_never_finishes_its_handshake_is_dismissed(tmp_path: Path) -> None:
    text = '[[listener]]\nurl = "yamp://127.0.0.1:0"\nsettings = { handshake_timeout = 3600 }\n[limits]\nhandshake_seconds = 0.1\n'
    async with hub_on(tmp_path, text + '[http]\nurl = "off"\n') as hub:
        reader, writer = await open_to(url_of(hub, "yamp"))
        writer.write(b"\x00")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert b"no handshake within 0.1 s" in answer
        assert hub.metrics.cut_off.value("yamp", "handshake") == 1
        writer.close()


async def test_an_upgrade_that_never_comes_is_given_up(tmp_path: Path) -> None:
    text = '[[listener]]\nurl = "yamp+ws://127.0.0.1:0"\n[limits]\nhandshake_seconds = 0.1\n[http]\nurl = "off"\n'
    async with hub_on(tmp_path, text) as hub:
        reader, writer = await open_to(url_of(hub, "yamp+ws"))
        writer.write(b"GET / HTTP/1.1\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(10_000), 10)
        writer.close()


async def test_a_stranger_that_shows_no_token_is_dismissed(tmp_path: Path) -> None:
    text = limited("handshake_seconds = 0.1") + '[[access.rule]]\nwho = ["token:a"]\npublish = ["a"]\n'
    async with hub_on(tmp_path, text) as hub:
        reader, writer = await stream_to(hub)
        writer.write(b"\x03")
        assert await asyncio.wait_for(reader.read(), 10) == b"\x04", "a pong, then the end"
        assert hub.metrics.cut_off.value("hsp", "handshake") == 1
        writer.close()


async def test_a_silent_peer_is_told_goodbye_and_one_that_answers_pings_is_not(tmp_path: Path) -> None:
    text = LISTENERS.replace("max_body = 1000", "max_body = 1000, ping_interval = 0.2") + "[limits]\nidle_seconds = 1\n"
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as lively:
            reader, writer = await open_to(url_of(hub, "hsp"))
            writer.write(b"\x03")
            assert await asyncio.wait_for(reader.read(), 20) == b"\x04"
            assert hub.metrics.cut_off.value("hsp", "idle") == 1
            await lively.publish("a", b"still here", ack=True)
        writer.close()
        await eventually(lambda: not hub.connections)
    assert "idle" in [block.details["reason"] for block in records(tmp_path, "closed")]


# Memory


async def test_all_queues_together_are_bounded_by_dropping_from_the_longest(tmp_path: Path) -> None:
    """Two subscribers that do not read, each far from its own limit; both together reach that of all."""
    async with hub_on(tmp_path, limited("memory_bytes = 3000000\nqueue_bytes = 100000000")) as hub:
        sleepers = []
        for _ in range(2):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", int(url_of(hub).rpartition(":")[2])))
            sock.sendall(data_ack(0, json.dumps({"topic": "sensors/#"}).encode(), 0xFD01))
            sleepers.append(sock)
        await eventually(lambda: len(hub.router.subscriptions) == 2)
        reader, writer = await stream_to(hub)
        highest = 0.0
        for number in range(200):
            writer.write(data_ack(number, bytes(8000)) * 1 + data(bytes(8000)) * 20)
            await reader.readexactly(5)
            highest = max(highest, hub.queued_bytes)
            if hub.metrics.lost.value("hsp", "drop-oldest") > 500:
                break
        assert hub.metrics.lost.value("hsp", "drop-oldest") > 0
        assert highest <= 3_000_000
        _, page = await get(hub.urls["http"] + "/metrics")
        assert "wireloom_memory_bytes" in page
        writer.close()
        for sock in sleepers:
            sock.close()


async def test_messages_that_never_end_are_dropped_when_they_take_too_much(tmp_path: Path) -> None:
    text = HSP.replace("profile = true", "settings = { max_payload = 10000000 }") + "[limits]\nmemory_bytes = 1000000\n"
    async with hub_on(tmp_path, text) as hub:
        small_reader, small = await stream_to(hub)
        small.write(b"\x03")
        await small_reader.readexactly(1)
        _, writer = await stream_to(hub)
        writer.write(struct.pack(">BHI", 0, 7, 9_000_000) + bytes(2_000_000))
        await eventually(lambda: hub.metrics.cut_off.value("hsp", "memory") == 1)
        small.write(b"\x03")
        assert await small_reader.readexactly(1) == b"\x04", "others are not concerned"
        small.close()
        writer.close()
