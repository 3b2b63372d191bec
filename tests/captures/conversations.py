"""Conversations of real sessions as byte streams, and their way into captures: cut, mixed up, repeated and lost."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode

from tests.captures import writing
from tests.captures.writing import ACK, FIN, PSH, RST, START_NS, SYN, Captured
from wireloom.model import Direction, Kind, Message, NotSupported
from wireloom.protocols.contract import Decoded, Rejected, Role, decode_stream
from wireloom.protocols.registry import protocol

STREAM_PROTOCOLS = ("emp", "hsp", "wolpertinger", "yamp")


def talk(name: str, rng: random.Random, messages: int = 20) -> tuple[bytes, bytes]:
    """What client and server of a protocol say: all bytes each of them sent."""
    own = protocol(name)
    sessions = [own.session(role, own.settings(), unique=rng.randrange(2**60)) for role in (Role.CLIENT, Role.SERVER)]
    sent = [bytearray(), bytearray()]
    now = 0.0

    def pump() -> None:
        moving = True
        while moving:
            moving = False
            for side in range(2):
                data = sessions[side].outgoing()
                if data:
                    sent[side] += data
                    sessions[1 - side].receive(bytes(data), now)
                    moving = True

    for session in sessions:
        session.connected(now)
    pump()
    for number in range(messages):
        side = rng.randrange(2)
        body = rng.choice((b"", b"1", b'"' + b"x" * rng.randrange(300) + b'"'))
        for kind in (Kind.EVENT, Kind.REQUEST):
            message = Message(kind=kind, topic=f"T{number % 3}.M", body=body, content_type="application/json")
            try:
                sessions[side].send(message, now)
                break
            except NotSupported:
                continue
        if rng.random() < 0.5:
            pump()
    pump()
    return bytes(sent[0]), bytes(sent[1])


def expected(name: str, stream: bytes, direction: Direction) -> list[tuple[str, str | None, bytes]]:
    """Kind, topic and body of every message of a whole stream, by the protocol's plain decoder."""
    own = protocol(name)
    found = decode_stream(own.decoder(direction, own.observing()), stream)
    rows = []
    for each in found:
        assert not isinstance(each, Rejected), each
        assert isinstance(each, Decoded)
        rows.append((str(each.message.kind), each.message.topic, each.message.body))
    return rows


@dataclass
class Wire:
    """Packets of one connection in the order they were sent; sequence numbers begin near their end on purpose."""

    client: str = "10.0.0.1:4000"
    server: str = "10.0.0.2:5042"
    isn: tuple[int, int] = (2**32 - 700, 5)
    time_ns: int = START_NS
    step_ns: int = 1_000_000
    link: int = 1
    packets: list[Captured] = field(default_factory=list)
    position: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, side: int, seq: int, payload: bytes, flags: int = ACK) -> None:
        source, destination = (self.client, self.server) if side == 0 else (self.server, self.client)
        ack = self.isn[1 - side] + 1 + self.position[1 - side]
        segment = writing.tcp(source, destination, seq, payload, flags, ack)
        packet = writing.linked(writing.ip(source, destination, 6, segment), self.link)
        self.packets.append(Captured(self.time_ns, packet))
        self.time_ns += self.step_ns

    def open(self) -> Wire:
        self.add(0, self.isn[0], b"", SYN)
        self.add(1, self.isn[1], b"", SYN | ACK)
        self.add(0, self.isn[0] + 1, b"")
        return self

    def say(self, side: int, payload: bytes, *, seen: bool = True) -> Wire:
        """Payload in one segment; one that is not `seen` is sent and not captured."""
        if seen:
            self.add(side, self.isn[side] + 1 + self.position[side], payload, ACK | PSH)
        self.position[side] += len(payload)
        return self

    def close(self, flags: int = FIN | ACK, *, sides: Iterable[int] = (0, 1)) -> Wire:
        for side in sides:
            self.add(side, self.isn[side] + 1 + self.position[side], b"", flags)
            self.position[side] += bool(flags & FIN)
        return self

    def reset(self, side: int = 0) -> Wire:
        return self.close(RST, sides=(side,))


def cut(data: bytes, rng: random.Random, most: int = 200) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        size = rng.randrange(1, most)
        pieces.append(data[at : at + size])
        at += size
    return pieces


def exchange(wire: Wire, streams: tuple[bytes, bytes], rng: random.Random, most: int = 200) -> Wire:
    """Both streams, cut and interleaved at random."""
    left = [cut(stream, rng, most) for stream in streams]
    while any(left):
        side = rng.choice([s for s in range(2) if left[s]])
        wire.say(side, left[side].pop(0))
    return wire


def mixed_up(packets: list[Captured], rng: random.Random, *, far: int = 6) -> list[Captured]:
    """The same packets with some repeated and all moved a little; times stay in order."""
    times = [packet.time_ns for packet in packets]
    handshake, rest = packets[:3], packets[3:]
    repeated = [p for packet in rest for p in ((packet, packet) if rng.random() < 0.2 else (packet,))]
    places = sorted(range(len(repeated)), key=lambda place: place + rng.random() * far)
    moved = [*handshake, *(repeated[place] for place in places)]
    step = max((times[-1] - times[0]) // max(len(moved), 1), 1)
    return [Captured(times[0] + index * step, packet.data, packet.kept) for index, packet in enumerate(moved)]


def in_websocket(
    stream: bytes, rng: random.Random, *, to_server: bool, most: int = 70_000, packing: PerMessageDeflate | None = None
) -> bytes:
    """A stream in WebSocket messages, some in several frames, with control frames between, behind the upgrade.

    With `packing`, which both ends have agreed on, most messages are packed.
    """
    if to_server:
        out = (
            b"GET /yamp HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n"
        )
    else:
        out = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    out += b"Sec-WebSocket-Extensions: x-other, permessage-deflate; server_max_window_bits=12\r\n" if packing else b""
    out += b"\r\n"
    at = 0
    while at < len(stream):
        pieces = cut(stream[at : at + rng.randrange(1, most)], rng, rng.choice((5, 200, 70_000)))
        at += sum(map(len, pieces))
        packed = packing is not None and rng.random() < 0.8
        for index, piece in enumerate(pieces):
            frame = Frame(Opcode.CONT if index else Opcode.BINARY, piece, fin=index == len(pieces) - 1)
            if packing is not None and packed:
                frame = packing.encode(frame)
            out += websocket_frame(
                bytes(frame.data), rng, opcode=frame.opcode | frame.rsv1 << 6, final=frame.fin, masked=to_server
            )
            if rng.random() < 0.3:
                out += websocket_frame(b"ping", rng, opcode=9, final=True, masked=to_server)
    return out + websocket_frame(b"\x03\xe8", rng, opcode=8, final=True, masked=to_server)


def websocket_frame(payload: bytes, rng: random.Random, *, opcode: int, final: bool, masked: bool) -> bytes:
    size = len(payload)
    head = bytes([final << 7 | opcode])
    if size < 126:
        head += bytes([masked << 7 | size])
    elif size < 65536:
        head += bytes([masked << 7 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([masked << 7 | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + payload
    mask = rng.randbytes(4)
    return head + mask + bytes(byte ^ mask[index & 3] for index, byte in enumerate(payload))


Mixing = Callable[[list[Captured]], list[Captured]]
