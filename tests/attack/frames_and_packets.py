"""Attacks on the five protocols: bytes that are cheap to send and dear to read."""

from __future__ import annotations

import asyncio
import binascii
import gzip
import json
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import cbor2
import msgpack

from tests.attack.harness import MB, Target, attack
from tests.hub.bare import Stream
from tests.protocols.talking import GREETINGS
from wireloom import mesh
from wireloom.model import Kind, Message
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.emp.messages import encode as encode_emp
from wireloom.protocols.emp.settings import EmpSettings
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.wolpertinger import layer2
from wireloom.protocols.yamp import frames as yamp_frames

TOGETHER = 256 * 1024
IGNORED = "wireloom_ignored_total"
REFUSED = "wireloom_refused_total"


async def pour(target: Target, name: str, data: bytes, *, times: int = 1, seconds: float = 20.0) -> bytes:
    """Send bytes over a connection of their own, again and again, and read what comes back; returns the end of it."""
    reader, writer = await target.open(name)
    writer.write(GREETINGS.get(name, b""))
    heard = bytearray()

    async def listen() -> None:
        while piece := await reader.read(1 << 20):
            heard.extend(piece)
            del heard[:-4096]

    listening = asyncio.create_task(listen())
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(seconds):
            for _ in range(times):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
            await listening
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return bytes(heard)


def filled(size: int, make: Callable[[int], bytes]) -> bytes:
    """So many bytes of small frames; `make` gets the number of each."""
    parts, total, number = list[bytes](), 0, 0
    while total < size:
        parts.append(make(number))
        total += len(parts[-1])
        number += 1
    return b"".join(parts)


def yamp_event(topic: str, body: bytes) -> bytes:
    return yamp_frames.encode(yamp_frames.Event(uuid.uuid4().bytes, topic, body))


async def publish_yamp(target: Target, serializer: str, *events: bytes) -> None:
    """Events of a peer that agreed on a serializer."""
    reader, writer = await target.open("yamp")
    hello = yamp_frames.encode(yamp_frames.Handshake(yamp_frames.VERSION, serializer))
    writer.write(hello)
    await reader.readexactly(len(hello))
    for event in events:
        writer.write(event)
        await writer.drain()


# Conversions


def shared_references(levels: int = 40) -> bytes:
    """Lists of two, each of which is the list before it twice: 2**levels values."""
    inner = b"\xd8\x1c\x82\x01\x01"  # tag 28: remember this list
    for number in range(levels):
        inner = b"\xd8\x1c\x82" + inner + b"\xd8\x1d" + cbor2.dumps(levels - number)
    return inner


async def undeliverable(target: Target, count: int) -> bool:
    """Whether so many events could not be said in a subscriber's format, sooner or later."""
    for _ in range(500):
        if (await target.metrics()).get('wireloom_undeliverable_total{protocol="yamp"}', 0) >= count:
            return True
        await asyncio.sleep(0.02)
    return False


@attack("references in CBOR", small=True)
async def cbor_references(target: Target) -> None:
    peer = await target.connect("yamp")  # which reads JSON
    async with peer.subscribe("attack/#"):
        texts = b"\xd9\x01\x00\x82\x63abc" + b"\xd8\x19\x00"
        await publish_yamp(
            target, "cbor", *(yamp_event("attack/shared", each) for each in (shared_references(), texts))
        )
        assert await undeliverable(target, 2), "refused, and said so"


@attack(
    "large bodies for another format", limits={"decompressed_bytes": "wireloom_undeliverable_total"}, budget=64 * MB
)
async def large_conversions(target: Target) -> None:
    peer = await target.connect("yamp")
    async with peer.subscribe("attack/#") as events:
        size = 15 * 1024 * 1024
        fits = msgpack.packb([list(range(50))] * 2000)
        await publish_yamp(
            target,
            "msgpack",
            yamp_event("attack/flat", b"\xdd" + size.to_bytes(4) + b"\x01" * size),
            yamp_event("attack/empty", b"\xdd" + size.to_bytes(4) + b"\x80" * size),
            yamp_event("attack/text", msgpack.packb("\x01" * size)),
            yamp_event("attack/fits", fits),
        )
        async with asyncio.timeout(60):
            event = await anext(events)
    assert event.topic == "attack/fits" and event.value() == msgpack.unpackb(fits)


@attack("numbers in CBOR that take long", small=True)
async def cbor_numbers(target: Target) -> None:
    """Our own. A fraction of two large numbers is shortened; a thousand keys with one hash make a map slow."""
    peer = await target.connect("yamp")
    prime = (1 << 61) - 1
    number = b"\xc2\x59\x9c\x40" + random.Random(1).randbytes(40_000)
    keys = b"".join(b"\xc2\x4c" + (prime * (1 << 20) + prime * each).to_bytes(12) + b"\0" for each in range(2000))
    bodies = (b"\xd8\x1e\x82" + number + number[::-1], b"\xb9\x07\xd0" + keys)
    async with peer.subscribe("attack/#"):
        await publish_yamp(target, "cbor", *(yamp_event("attack/number", each) for each in bodies))
        assert await undeliverable(target, 2)


# Floods of control frames


@attack("a flood of emp pings")
async def emp_pings(target: Target) -> None:
    ping = emp_frames.encode(emp_frames.Frame(emp_frames.Type.PING))
    heard = await pour(target, "emp", ping * (TOGETHER // len(ping)), times=32)
    assert b"pings before the last was answered" in heard, "it is told why it is closed"


@attack("floods of hsp pings")
async def hsp_pings(target: Target) -> None:
    await asyncio.gather(*(pour(target, "hsp", b"\x03" * TOGETHER, times=6, seconds=8) for _ in range(5)))


@attack("floods of yamp pings")
async def yamp_pings(target: Target) -> None:
    ping = yamp_frames.encode(yamp_frames.Ping(b"x"))
    data = ping * (TOGETHER // len(ping))
    await asyncio.gather(*(pour(target, "yamp", data, times=6, seconds=8) for _ in range(5)))


@attack("floods of hsp and yamp pings, short ones", small=True)
async def few_pings(target: Target) -> None:
    """Each on five connections, less than 100 KB in all."""
    yamp = yamp_frames.encode(yamp_frames.Ping(b"x"))
    floods = (("hsp", b"\x03" * 9_000), ("yamp", yamp * (9_000 // len(yamp))))
    await asyncio.gather(*(pour(target, name, data, seconds=8) for name, data in floods for _ in range(5)))


# Our own, two for each protocol


@attack("hsp maps, one number at a time")
async def hsp_maps(target: Target) -> None:
    """Each map changes what all numbers stand for, and is written to the journal with all before it."""
    stream = Stream("hsp")
    for number in range(5000):
        stream.map({number % 60_000: f"topic/{number}"})
    await pour(target, "hsp", stream.data, seconds=10)


@attack("hsp frames of which every second is odd")
async def hsp_odd(target: Target) -> None:
    """The kernel stops at each ping, and begins anew behind it; and every topic is another one."""

    def frames(number: int) -> bytes:
        stream = Stream("hsp")
        stream.event(f"odd/{number}", b"")
        return b"\x03" + stream.data

    await pour(target, "hsp", filled(4 * MB, frames), seconds=15)


@attack("an emp body to unpack, and much behind it")
async def emp_behind_work(target: Target) -> None:
    """What came behind a frame that waits for a thread is taken when that is done: in portions, too."""
    body = random.Random(2).randbytes(100_000)
    packed = encode_emp(Message(Kind.EVENT, "attack/packed", body, attributes={"compression": "gzip"}), EmpSettings())
    event = encode_emp(Message(Kind.EVENT, "attack/é", b""), EmpSettings())
    await pour(target, "emp", (packed + event * 3000) * 4, times=4, seconds=15)


@attack("emp topics, all different")
async def emp_topics(target: Target) -> None:
    settings = EmpSettings()
    data = filled(2 * MB, lambda number: encode_emp(Message(Kind.EVENT, f"attack/{number}", b""), settings))
    await pour(target, "emp", data, seconds=15)


@attack("gzip bombs", budget=64 * MB)
async def gzip_bombs(target: Target) -> None:
    """Refused; and what was unpacked until then does not stay in memory with the error."""
    bomb = gzip.compress(bytes(64 * 1024 * 1024), 9)
    event = Message(Kind.EVENT, "attack/bomb", b"\0" * 100, attributes={"compression": "gzip"})
    frame = emp_frames.decode(encode_emp(event, EmpSettings()), 0, 1 << 30, emp_frames.SizeMode.INCLUSIVE)
    assert frame is not None
    data = emp_frames.encode(frame[0]._replace(body=bomb), emp_frames.SizeMode.INCLUSIVE)
    for _ in range(8):
        await asyncio.gather(*(pour(target, "emp", data, seconds=20) for _ in range(4)))


@attack("yamp requests that are cancelled before anybody knows them")
async def yamp_cancels(target: Target) -> None:
    def frame(number: int) -> bytes:
        stream = Stream("yamp", first_id=number + 1)
        stream.cancel(str(uuid.UUID(int=number + 1)), "attack/é")
        return stream.data

    await pour(target, "yamp", filled(4 * MB, frame), seconds=15)


def call(number: int, component: str, method: str) -> bytes:
    xml = layer2.write(layer2.RemoteMethodCall(component, str(uuid.UUID(int=number + 1)), method))
    return b"message_id:%d;%b" % (number + 1, binascii.b2a_base64(xml))


@attack("wolpertinger pieces that become nothing", budget=64 * MB)
async def wolpertinger_pieces(target: Target) -> None:
    body = b"QUFB" * 15_000

    def pieces(message: int) -> bytes:
        head = b"fragment_index:%d;fragment_count:2000;message_id:%d;"
        return b"".join(head % (index, message) + body + b"\n" for index in range(250))

    for message in range(1, 13):
        await pour(target, "wolpertinger", pieces(message) + pieces(message + 100), seconds=15)


@attack("wolpertinger lines that are nothing")
async def wolpertinger_lines(target: Target) -> None:
    """Our own: empty lines, lines that are wrong, and documents that are none."""
    nothing = filled(TOGETHER, lambda number: b"message_id:%d;QUFB\n" % (number + 1))
    await asyncio.gather(
        pour(target, "wolpertinger", b"\n" * TOGETHER, times=8, seconds=10),
        pour(target, "wolpertinger", b"x\n" * (TOGETHER // 2), times=4, seconds=10),
        pour(target, "wolpertinger", nothing, times=2, seconds=10),
    )


@attack("Heartbeats of a wolpertinger provider")
async def wolpertinger_heartbeats(target: Target) -> None:
    """Our own. A Heartbeat is progress of everything that was asked: thousands of messages for one line."""

    async def wait(message: Message, peer: object) -> object:
        await asyncio.sleep(60)
        return None

    provider = await target.connect("wolpertinger", handler=wait)
    requester = await target.connect("yamp")
    await provider.provide("attack/slow")
    asked = [asyncio.create_task(requester.request("attack/slow", number)) for number in range(800)]
    await asyncio.sleep(1)
    beats = filled(TOGETHER, lambda number: call(number + 10_000_000, "Core", "Heartbeat"))
    provider.pipe.write(beats)
    provider.pipe.write(beats.replace(b"message_id:10", b"message_id:11"))
    await asyncio.sleep(3)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


# Reassembly


async def in_single_bytes(target: Target, name: str, beginning: bytes, size: int) -> None:
    """A frame of `size` bytes: most of it at once, then a byte in each packet."""
    _, writer = await target.open(name)
    writer.write(GREETINGS.get(name, b"") + beginning)
    for _ in range(size // TOGETHER - 1):
        writer.write(bytes(TOGETHER))
        await writer.drain()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        writer.write(b"\0")
        await asyncio.sleep(0)


@attack("large messages that end in single bytes", budget=48 * MB)
async def single_bytes(target: Target) -> None:
    size = 15 * 1024 * 1024
    event = yamp_event("attack/large", b"")
    large = encode_emp(Message(Kind.EVENT, "attack/large", b"x"), EmpSettings())
    await asyncio.gather(
        in_single_bytes(target, "yamp", event[:-4] + size.to_bytes(4), size),
        in_single_bytes(target, "emp", size.to_bytes(4) + large[4:], size),
        in_single_bytes(target, "hsp", b"\0\0\7" + size.to_bytes(4), size),
    )


# Mesh

_KEY = mesh.Identity.generate()


def trusting(folder: Path) -> None:
    mesh.TrustStore([_KEY.trusted_key()]).save(folder / "trust.json")


def speak(target: Target) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.connect(target.address("mesh"))
    return sock


@attack(
    "forged mesh signatures",
    config='[[listener]]\nurl = "mesh://[::1]:0"\nsettings = { trust = "{data}/trust.json" }\n',
    prepare=trusting,
)
async def forged_signatures(target: Target) -> None:
    """A node that is known gets through while others send what costs a verification each."""
    found = await target.watch("known/#")
    port = target.address("mesh")[1]
    author, known = Author(MeshSettings(), _KEY), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    known.connect(("::1", port))
    known.send(author.write(Message(Kind.EVENT, "known/first", b"x"), time.time())[0])
    assert await target.settle(lambda: len(found) == 1)
    forged = [bytearray(author.write(Message(Kind.EVENT, "forged", b"x"), time.time())[0]) for _ in range(200)]
    for each in forged:
        each[-1] ^= 1
    others = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(4)]
    for sock in others:
        sock.connect(("::1", port))
    until, sent = time.monotonic() + 6, 0
    while time.monotonic() < until:
        for sock in others:
            for each in forged[:50]:
                with suppress(OSError):
                    sock.send(each)
        known.send(author.write(Message(Kind.EVENT, "known/later", b"%d" % sent), time.time())[0])
        sent += 1
        await asyncio.sleep(0.002)
    await target.settle(lambda: len(found) > sent, 3)
    assert len(found) - 1 >= 0.9 * sent, f"{len(found) - 1} of {sent} came through"
    for sock in (known, *others):
        sock.close()


@attack("mesh nodes without end")
async def mesh_nodes(target: Target) -> None:
    """Our own. Each packet names another NODE ID, for none of which anybody must prove anything."""
    await flood_mesh(target, 120_000)


async def flood_mesh(target: Target, count: int) -> None:
    sock, draw = speak(target), random.Random(3)
    settings = MeshSettings()
    for number in range(count):
        author = Author(settings, mesh.Identity(draw.randbytes(16)))
        with suppress(OSError):
            sock.send(author.write(Message(Kind.EVENT, "nodes", b""), time.time())[0])
        if number % 200 == 0:
            await asyncio.sleep(0.001)
    sock.close()


@attack("mesh Hellos with other wishes each time")
async def mesh_hellos(target: Target) -> None:
    """Our own. Each Hello is answered, and changes sixty subscriptions."""
    sock = speak(target)
    author = Author(MeshSettings(), mesh.Identity(b"h" * 16))
    for number in range(4000):
        wishes = [f"w/{number % 7}/{each}/#" for each in range(12)]
        said = json.dumps({"wireloom": 1, "subscribe": wishes}).encode()
        with suppress(OSError):
            sock.send(author.hello(said, time.time())[0])
        if number % 50 == 0:
            await asyncio.sleep(0.002)
    sock.close()


# WebSockets


async def pour_into_websocket(target: Target, frame: bytes, seconds: float) -> None:
    """Send frames of a WebSocket over a connection of its own, again and again, and read what comes back."""
    reader, writer = await target.open("yamp+ws")
    host, port = target.address("yamp+ws")
    writer.write(
        b"GET / HTTP/1.1\r\nHost: %b:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % (host.encode(), port)
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    greeting = GREETINGS["yamp"]
    writer.write(bytes((0x82, 0x80 | len(greeting), 0, 0, 0, 0)) + greeting)
    listening = asyncio.create_task(_swallow(reader))
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                writer.write(frame * (TOGETHER // len(frame)))
                await writer.drain()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def _swallow(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


@attack("floods of WebSocket pings, and of empty messages")
async def websocket_frames(target: Target) -> None:
    """Our own: frames that never reach the protocol above, six bytes each."""
    ping, empty = b"\x89\x80\0\0\0\0", b"\x82\x80\0\0\0\0"
    pieces = b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 50 + b"\x80\x80\0\0\0\0"
    await asyncio.gather(*(pour_into_websocket(target, each, 8) for each in (ping, ping, empty, empty, pieces)))
