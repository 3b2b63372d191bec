"""The reference decoder for captures: one packet at a time, in plain Python.

The kernels of `captures/packets.py` and `captures/headers.py` must agree with it.

- pcap: draft-ietf-opsawg-pcap; pcapng: draft-ietf-opsawg-pcapng; link types: the registry of tcpdump.org.
- IPv4: RFC 791; IPv6: RFC 8200; TCP: RFC 9293; UDP: RFC 768.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from wireloom.pipeline.captures.pcap import (
    BYTE_ORDER,
    CUT_OFF,
    FRAGMENT,
    INTERFACE,
    MAX_BLOCK,
    MAX_PACKET,
    NO_CAPTURE,
    NO_INTERFACE,
    OLD_PACKET,
    PACKET,
    PCAP_MICRO,
    PCAP_NANO,
    PCAPNG,
    SECTION,
    SIMPLE_PACKET,
    TCP,
    UDP,
    UPPER_PDU,
    WRONG_BLOCK,
    WRONG_LENGTH,
    WRONG_ORDER,
    WRONG_TRAILER,
    CaptureDamage,
    Interface,
    network_start,
    parse_interface,
)


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet: `data` is what was captured of `original` bytes."""

    offset: int
    time_ns: int
    link: int
    original: int
    data: bytes


def read_packets(data: bytes) -> Iterator[Packet | CaptureDamage]:
    """All packets of a capture; damage, if any, is the last thing."""
    if len(data) >= 4:
        for order in "<>":
            (magic,) = struct.unpack_from(order + "I", data)
            if magic in (PCAP_MICRO, PCAP_NANO):
                return _read_pcap(data, order, magic == PCAP_NANO)
            if magic == PCAPNG:
                return _read_pcapng(data)
    return iter([CaptureDamage(0, NO_CAPTURE)])


def _read_pcap(data: bytes, order: str, nano: bool) -> Iterator[Packet | CaptureDamage]:
    if len(data) < 24:
        yield CaptureDamage(0, CUT_OFF)
        return
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at = 24
    while at < len(data):
        if len(data) - at < 16:
            yield CaptureDamage(at, CUT_OFF)
            return
        seconds, rest, captured, original = struct.unpack_from(order + "IIII", data, at)
        if captured > MAX_PACKET:
            yield CaptureDamage(at, WRONG_LENGTH)
            return
        if captured > len(data) - at - 16:
            yield CaptureDamage(at, CUT_OFF)
            return
        time_ns = seconds * 10**9 + rest * (1 if nano else 1000)
        yield Packet(at + 16, time_ns, link, original, data[at + 16 : at + 16 + captured])
        at += 16 + captured


def _read_pcapng(data: bytes) -> Iterator[Packet | CaptureDamage]:
    at, order, last_ns = 0, "<", 0
    interfaces: list[Interface] = []
    while at < len(data):
        if len(data) - at < 12:
            yield CaptureDamage(at, CUT_OFF)
            return
        if struct.unpack_from("<I", data, at)[0] == SECTION:
            orders = [o for o in "<>" if struct.unpack_from(o + "I", data, at + 8)[0] == BYTE_ORDER]
            if not orders:
                yield CaptureDamage(at, WRONG_ORDER)
                return
            order, interfaces = orders[0], []
        kind, size = struct.unpack_from(order + "II", data, at)
        if size < 12 or size % 4 or size > MAX_BLOCK:
            yield CaptureDamage(at, WRONG_BLOCK)
            return
        if size > len(data) - at:
            yield CaptureDamage(at, CUT_OFF)
            return
        if struct.unpack_from(order + "I", data, at + size - 4)[0] != size:
            yield CaptureDamage(at, WRONG_TRAILER)
            return
        body = data[at + 8 : at + size - 4]
        if kind == INTERFACE:
            if len(body) < 8:
                yield CaptureDamage(at, WRONG_BLOCK)
                return
            interfaces.append(parse_interface(body, order))
        elif kind in (PACKET, OLD_PACKET, SIMPLE_PACKET):
            found = _parse_packet(kind, body, order, interfaces, last_ns, at)
            yield found
            if isinstance(found, CaptureDamage):
                return
            last_ns = found.time_ns
        at += size


def _parse_packet(
    kind: int, body: bytes, order: str, interfaces: list[Interface], last_ns: int, at: int
) -> Packet | CaptureDamage:
    if len(body) < (4 if kind == SIMPLE_PACKET else 20):
        return CaptureDamage(at, WRONG_BLOCK)
    number = high = low = 0
    if kind == SIMPLE_PACKET:
        (original,) = struct.unpack_from(order + "I", body)
        captured, head = min(original, len(body) - 4), 4
    else:
        form = "IIIII" if kind == PACKET else "HxxIIII"
        number, high, low, captured, original = struct.unpack_from(order + form, body)
        head = 20
    if number >= len(interfaces):
        return CaptureDamage(at, NO_INTERFACE)
    own = interfaces[number]
    if kind == SIMPLE_PACKET and own.snap:
        captured = min(captured, own.snap)
    if captured > len(body) - head:
        return CaptureDamage(at, WRONG_LENGTH)
    time_ns = last_ns if kind == SIMPLE_PACKET else own.time_ns(high << 32 | low)
    return Packet(at + 8 + head, time_ns, own.link, original, body[head : head + captured])


@dataclass(frozen=True, slots=True)
class Segment:
    """What the headers of a packet say. `size` bytes of payload were sent, those at `start` were captured.

    For a fragment the ports are 0 and the payload is that of the fragment, from its fragment header on for IPv6.
    For an upper PDU `seq` and `ack` say where the dissector's name is, and how long.
    """

    protocol: int
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    start: int
    kept: int
    size: int
    seq: int = 0
    ack: int = 0
    flags: int = 0


_EXTENSIONS = (0, 43, 60, 135, 139, 140)
_MOST_HEADERS = 16


def parse_headers(packet: bytes, link: int) -> Segment | None:
    """The transport segment in a packet; None for anything but TCP, UDP and fragments over IP, and upper PDUs.

    `Segment.start` counts from the packet's first byte.
    """
    if link == UPPER_PDU:
        return _parse_upper_pdu(packet)
    start = network_start(packet, link)
    if start is None or start >= len(packet):
        return None
    if packet[start] >> 4 == 4:
        return _parse_ipv4(packet, start)
    return _parse_ipv6(packet, start) if packet[start] >> 4 == 6 else None


def _parse_ipv4(packet: bytes, at: int) -> Segment | None:
    if len(packet) - at < 20:
        return None
    head, total = (packet[at] & 15) * 4, int.from_bytes(packet[at + 2 : at + 4], "big")
    # Offloading to the network card leaves 0 here: the capture's length is all there is.
    end = at + total if total else len(packet)
    if head < 20 or end < at + head or len(packet) < at + head:
        return None
    source, destination = (b"\0" * 10 + b"\xff\xff" + packet[i : i + 4] for i in (at + 12, at + 16))
    if int.from_bytes(packet[at + 6 : at + 8], "big") & 0x3FFF:
        return _fragment(packet, source, destination, at + head, end)
    return _parse_transport(packet, packet[at + 9], source, destination, at + head, end)


def _parse_ipv6(packet: bytes, at: int) -> Segment | None:
    if len(packet) - at < 40:
        return None
    size, following = int.from_bytes(packet[at + 4 : at + 6], "big"), packet[at + 6]
    source, destination = packet[at + 8 : at + 24], packet[at + 24 : at + 40]
    end = at + 40 + size if size else len(packet)
    at += 40
    for _ in range(_MOST_HEADERS):
        if following == 44:
            if len(packet) - at < 8:
                return None
            if int.from_bytes(packet[at + 2 : at + 4], "big") & 0xFFF9:
                return _fragment(packet, source, destination, at, end)
            following, at = packet[at], at + 8
        elif following in _EXTENSIONS or following == 51:
            if len(packet) - at < 2:
                return None
            length = packet[at + 1]
            following, at = packet[at], at + (4 * (length + 2) if following == 51 else 8 * (length + 1))
        else:
            break
    return _parse_transport(packet, following, source, destination, at, end)


def _fragment(packet: bytes, source: bytes, destination: bytes, at: int, end: int) -> Segment:
    return Segment(FRAGMENT, source, destination, 0, 0, at, max(min(end, len(packet)) - at, 0), max(end - at, 0))


def _parse_transport(
    packet: bytes, protocol: int, source: bytes, destination: bytes, at: int, end: int
) -> Segment | None:
    least = {TCP: 20, UDP: 8}.get(protocol)
    if least is None or end - at < least or len(packet) - at < least:
        return None
    source_port, destination_port = struct.unpack_from(">HH", packet, at)
    seq = ack = flags = 0
    if protocol == TCP:
        seq, ack = struct.unpack_from(">II", packet, at + 4)
        head, flags = packet[at + 12] >> 4 << 2, packet[at + 13]
    else:
        head, length = 8, int.from_bytes(packet[at + 4 : at + 6], "big")
        if length:
            end = min(end, at + length)
    if head < least or end < at + head or len(packet) < at + head:
        return None
    start = at + head
    kept = min(end, len(packet)) - start
    return Segment(
        protocol, source, destination, source_port, destination_port, start, kept, end - start, seq, ack, flags
    )


def _parse_upper_pdu(packet: bytes) -> Segment | None:
    """A payload that Wireshark, or a journal, cut out and tagged with where it came from."""
    at, name = 0, (0, 0)
    hosts, ports = [b"\0" * 16, b"\0" * 16], [0, 0]
    while len(packet) - at >= 4:
        tag, length = struct.unpack_from(">HH", packet, at)
        at += 4
        if tag == 0:
            if not name[1]:
                return None
            left = len(packet) - at
            return Segment(UPPER_PDU, hosts[0], hosts[1], ports[0], ports[1], at, left, left, name[0], name[1])
        if length > len(packet) - at:
            return None
        value = packet[at : at + length]
        if tag == 12:
            name = at, len(value.rstrip(b"\0"))
        elif tag in (20, 21) and length == 4:
            hosts[tag - 20] = b"\0" * 10 + b"\xff\xff" + value
        elif tag in (22, 23) and length == 16:
            hosts[tag - 22] = value
        elif tag in (25, 26) and length == 4:
            ports[tag - 25] = int.from_bytes(value[2:], "big")
        at += length
    return None
