"""Attacks on what the hub holds for its peers: connections, sizes, queues, incomplete messages, what waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import time

from tests.attack.harness import Target, attack
from tests.attack.wire import Peer
from wireloom.model import Kind, Message
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.settings import MeshSettings


def reached(setting: str) -> dict[str, str]:
    """The setting, and the metric that shows it."""
    return {setting: f'wireloom_limits_reached_total{{setting="{setting}"}}'}


@attack("lengths of gigabytes", limits=reached("message_bytes"), small=True)
async def lengths(target: Target) -> None:
    """They are refused by the length alone."""
    emp, yamp = await Peer.connect(target, "emp"), await Peer.connect(target, "yamp")
    heads = (
        (await target.open("hsp"), struct.pack(">BHI", 0, 7, 0xFFFFFFFF)),
        (emp.streams, struct.pack(">IBBxx", 0xFFFFFFFF, 5, 0)),
        (yamp.streams, b"\x05" + bytes(16) + b"\x01a" + struct.pack(">I", 0xFFFFFFFF)),
    )
    for (reader, writer), head in heads:
        writer.write(head)
        async with asyncio.timeout(20):
            while await reader.read(1 << 16):
                pass


@attack("bodies that decompress to much more", limits=reached("decompressed_bytes"))
async def bombs(target: Target) -> None:
    """16 KB that become 16 MB and one byte, from a few connections."""
    bomb = gzip.compress(bytes(16 * 1024 * 1024 + 1))
    assert len(bomb) < 20_000
    for _ in range(4):
        peer = await Peer.connect(target, "emp")
        peer.write(Message(Kind.EVENT, "a", bytes(16 * 1024 * 1024 + 1), attributes={"compression": "gzip"}))
        await peer.drain()
        async with asyncio.timeout(20):
            await peer.swallow()


@attack(
    "more connections than there may be",
    limits={**reached("max_connections_per_address"), **reached("max_connections")},
    config="[limits]\nmax_connections = 150\nmax_connections_per_address = 100",
)
async def connections(target: Target) -> None:
    """Of one address, and of two."""
    for address in ("127.0.0.1", "127.0.0.2"):
        for _ in range(200):
            host, port = target.address("hsp")
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
                target.close_later(writer)
    await asyncio.sleep(0.5)
    metrics = await target.metrics()
    assert metrics['wireloom_limit_used{setting="max_connections"}'] <= 150


@attack(
    "connections that never begin, and connections that never end",
    limits={**reached("handshake_seconds"), **reached("idle_seconds")},
    config="[limits]\nhandshake_seconds = 1\nidle_seconds = 2",
)
async def silence(target: Target) -> None:
    silent = [await target.open("yamp") for _ in range(200)]
    silent += [await target.open("hsp") for _ in range(200)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(reader.read() for reader, _ in silent))


@attack(
    "messages without an end",
    limits=reached("memory_bytes"),
    config="[limits]\nmemory_bytes = 60000000",
    budget=60_000_000 + 64_000_000 + 3 * 15_000_000,  # what the C library keeps, and copies of what is cut off
)
async def unfinished(target: Target) -> None:
    """Forty times 15 MB, each without its last byte."""
    for _ in range(40):
        peer = await Peer.connect(target, "emp")
        frame = peer.encode(Message(Kind.EVENT, "a", bytes(15_000_000)))
        try:
            for at in range(0, len(frame) - 1, 1_000_000):
                peer.streams[1].write(frame[at : min(at + 1_000_000, len(frame) - 1)])
                await peer.drain()
        except ConnectionError:
            pass
    await asyncio.sleep(1)


@attack(
    "a subscriber that does not read",
    limits=reached("queue_bytes"),
    config="[limits]\nqueue_bytes = 1000000",
    budget=10 * 1_000_000,
)
async def slow(target: Target) -> None:
    for _ in range(10):
        peer = await Peer.connect(target, "emp")
        assert (await peer.operate("subscribe", topic="flood")).kind is Kind.RESPONSE
    publisher = await Peer.connect(target, "hsp")
    for _ in range(3000):
        publisher.write(Message(Kind.EVENT, "flood", bytes(8000)))
        await publisher.drain()
    await publisher.settle()


@attack(
    "more than the disk takes",
    limits=reached("pending_bytes"),
    config="[limits]\npending_bytes = 65536",
)
async def pending(target: Target) -> None:
    """From four connections; each is read from again when there is room."""
    peers = [await Peer.connect(target, "emp") for _ in range(4)]

    async def flood(peer: Peer) -> None:
        for _ in range(300):
            peer.write(*(Message(Kind.EVENT, "flood", bytes(1000)) for _ in range(20)))
            await peer.drain()
        await peer.settle()

    await asyncio.gather(*map(flood, peers))


@attack(
    "an allowed event that holds the bytes of a refused one",
    config='[[access.rule]]\nwho = ["anyone"]\npublish = ["allowed", "well-behaved"]\nsubscribe = ["#"]\n',
    small=True,
)
async def nested(target: Target) -> None:
    """What is cut out of a read is the refused event, and not the same bytes inside an allowed one."""
    found = await target.watch("#")
    wanted = []
    for scheme in ("emp", "yamp", "hsp"):
        peer = await Peer.connect(target, scheme)
        for content_type in (None, "text/plain"):
            refused = peer.encode(Message(Kind.EVENT, "refused", b"bad", id="5", content_type=content_type))
            allowed = peer.encode(
                Message(Kind.EVENT, "allowed", b"<" + refused + b">", id="6", content_type=content_type)
            )
            peer.streams[1].write(allowed + refused + allowed.replace(b"<", b"[", 1) + refused)
            wanted += [b"<" + refused + b">", b"[" + refused + b">"]
        await peer.settle()
    author = Author(MeshSettings(), Identity(b"n" * 16))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(20):
            refused = author.write(Message(Kind.EVENT, "refused", b"bad"), time.time())[0]
            body = b"%d" % number + refused
            packets = [author.write(Message(Kind.EVENT, "allowed", body), time.time())[0], refused]
            for packet in packets:
                sock.sendto(packet, target.address("mesh"))
            wanted.append(body)
    assert await target.settle(lambda: len([each for each in found if each[0] == "allowed"]) >= len(wanted)), found
    assert sorted(body for topic, body in found if topic == "allowed") == sorted(wanted)
    assert not [each for each in found if each[0] == "refused"]
