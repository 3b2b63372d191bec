"""Captures made for the tests: packets of every link type, files of every form."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
LINKS = (1, 0, 108, 101, 12, 14, 113, 276, 228, 229)
START_NS = 1_794_800_000_000_000_000


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2 + len(data) % 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp(
    source: str, destination: str, seq: int, payload: bytes, flags: int = ACK, ack: int = 0, options: bytes = b""
) -> bytes:
    """A TCP segment between `host:port` and `host:port`, with the right checksum."""
    options += b"\1" * (-len(options) % 4)
    (_, sport), (_, dport) = split(source), split(destination)
    head = struct.pack(
        ">HHIIBBHHH", sport, dport, seq % 2**32, ack % 2**32, (5 + len(options) // 4) << 4, flags, 65535, 0, 0
    )
    return _with_checksum(source, destination, 6, head + options + payload, 16)


def udp(source: str, destination: str, payload: bytes) -> bytes:
    (_, sport), (_, dport) = split(source), split(destination)
    return _with_checksum(source, destination, 17, struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload, 6)


def _with_checksum(source: str, destination: str, protocol: int, segment: bytes, place: int) -> bytes:
    pseudo = split(source)[0].packed + split(destination)[0].packed + struct.pack(">II", len(segment), protocol)
    return segment[:place] + struct.pack(">H", checksum(pseudo + segment) or 0xFFFF) + segment[place + 2 :]


def split(address: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    host, _, port = address.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")), int(port)


def ip(source: str, destination: str, protocol: int, segment: bytes, *, options: bytes = b"", ident: int = 1,
       offset: int = 0, more: bool = False, extensions: Sequence[tuple[int, bytes]] = ()) -> bytes:  # fmt: skip
    """An IP packet; `offset` and `more` make it a fragment, `extensions` are IPv6 headers (type, content of 6+8n)."""
    here, there = split(source)[0], split(destination)[0]
    if here.version == 4:
        options += b"\1" * (-len(options) % 4)
        words = 5 + len(options) // 4
        head = struct.pack(
            ">BBHHHBBH", 0x40 | words, 0, words * 4 + len(segment), ident, offset // 8 | more << 13, 64, protocol, 0
        )
        head += here.packed + there.packed + options
        return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + segment
    headers = list(extensions)
    if offset or more:
        headers.append((44, struct.pack(">HI", offset | more, ident)))
    chain = b""
    for index, (_, content) in enumerate(headers):
        following = headers[index + 1][0] if index + 1 < len(headers) else protocol
        length = 0 if headers[index][0] == 44 else (len(content) + 2) // 8 - 1
        chain += bytes([following, length]) + content
    first = headers[0][0] if headers else protocol
    return (
        struct.pack(">IHBB", 6 << 28, len(chain) + len(segment), first, 64)
        + here.packed
        + there.packed
        + chain
        + segment
    )


def linked(packet: bytes, link: int, *, tags: Sequence[int] = (), order: str = "<") -> bytes:
    """An IP packet with its link-layer header; `tags` are VLAN ids."""
    kind = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    vlan = b"".join(
        struct.pack(">HH", 0x88A8 if i == 0 and len(tags) > 1 else 0x8100, tag) for i, tag in enumerate(tags)
    )
    if link == 1:
        return b"\2\0\0\0\0\1\2\0\0\0\0\2" + vlan + struct.pack(">H", kind) + packet
    if link == 113:
        return struct.pack(">HHH8sH", 0, 1, 6, b"\2\0\0\0\0\1", kind) + packet
    if link == 276:
        return struct.pack(">HHIHBB8s", kind, 0, 1, 1, 0, 6, b"\2\0\0\0\0\1") + packet
    if link in (0, 108):
        family = 2 if kind == 0x0800 else 30
        return struct.pack((">" if link == 108 else order) + "I", family) + packet
    return packet


@dataclass(frozen=True)
class Captured:
    """A packet of a capture: its bytes on the wire, and how many of them were kept."""

    time_ns: int
    data: bytes
    kept: int | None = None
    interface: int = 0

    @property
    def bytes(self) -> bytes:
        return self.data if self.kept is None else self.data[: self.kept]


def pcap(
    packets: Iterable[Captured], link: int = 1, *, order: str = "<", nano: bool = False, snap: int = 262144
) -> bytes:
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap, link)]
    for packet in packets:
        seconds, rest = divmod(packet.time_ns, 10**9)
        out.append(
            struct.pack(order + "IIII", seconds, rest // unit, len(packet.bytes), len(packet.data)) + packet.bytes
        )
    return b"".join(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += b"\0" * (-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int, order: str = "<", *, resolution: int | None = None, offset_s: int = 0, snap: int = 0) -> bytes:
    options = b""
    if resolution is not None:
        options += struct.pack(order + "HHB3x", 9, 1, resolution)
    if offset_s:
        options += struct.pack(order + "HHq", 14, 8, offset_s)
    return block(1, struct.pack(order + "HHI", link, 0, snap) + options + (b"\0" * 4 if options else b""), order)


def ticks(time_ns: int, resolution: int, offset_s: int = 0) -> int:
    time_ns -= offset_s * 10**9
    power = resolution & 0x7F
    return (time_ns << power) // 10**9 if resolution & 0x80 else time_ns * 10**power // 10**9


def enhanced(
    packet: Captured, order: str = "<", *, resolution: int = 6, offset_s: int = 0, kind: int = 6, options: bytes = b""
) -> bytes:
    time = ticks(packet.time_ns, resolution, offset_s)
    number = struct.pack(order + ("HH" if kind == 2 else "I"), packet.interface, *((0,) if kind == 2 else ()))
    head = number + struct.pack(order + "IIII", time >> 32, time & 0xFFFFFFFF, len(packet.bytes), len(packet.data))
    return block(kind, head + packet.bytes + b"\0" * (-len(packet.bytes) % 4) + options, order)


def simple(packet: Captured, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", len(packet.data)) + packet.bytes, order)


def pcapng(
    packets: Iterable[Captured], link: int = 1, *, order: str = "<", resolution: int = 9, offset_s: int = 0
) -> bytes:
    """One section with one interface."""
    head = section(order) + interface(link, order, resolution=resolution, offset_s=offset_s)
    return head + b"".join(enhanced(p, order, resolution=resolution, offset_s=offset_s) for p in packets)
