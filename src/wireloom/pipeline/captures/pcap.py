"""Numbers and small structures of capture files: magic numbers, link types, interface descriptions, addresses.

- pcap: draft-ietf-opsawg-pcap; pcapng: draft-ietf-opsawg-pcapng; link types: the registry of tcpdump.org.

`packets.py` and `headers.py` read whole captures with kernels that use these. `tests/captures/plain.py` is the
reference decoder: one packet at a time, in plain Python. A property test compares the two.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

PCAP_MICRO, PCAP_NANO, PCAPNG = 0xA1B2C3D4, 0xA1B23C4D, 0x0A0D0D0A
BYTE_ORDER = 0x1A2B3C4D
SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, PACKET = PCAPNG, 1, 2, 3, 6
MAX_PACKET = 1 << 22
"""A packet that claims to be larger is damage."""
MAX_BLOCK = 1 << 24
LATEST_NS = 9_223_372_036_000_000_000
"""Later times are taken for this one."""
MOST_OFFSET_S = 1 << 33

ETHERNET, NULL, LOOP, RAW, COOKED, COOKED_2, UPPER_PDU = 1, 0, 108, 101, 113, 276, 252
RAW_LINKS = (12, 14, RAW, 228, 229)
TCP, UDP = 6, 17
FRAGMENT = 1
"""The protocol of a packet that is a part of a datagram; see `fragments.py`."""

NO_CAPTURE = "neither pcap nor pcapng"
CUT_OFF = "the file ends inside a packet"
WRONG_LENGTH = "a packet of an impossible length"
WRONG_BLOCK = "a block of an impossible length"
WRONG_TRAILER = "a block whose two lengths differ"
WRONG_ORDER = "a section without a byte order"
NO_INTERFACE = "a packet of an interface that nothing describes"

_TAGGED = (0x8100, 0x88A8, 0x9100)
"""EtherTypes of a VLAN tag, which stands before the real EtherType."""


@dataclass(frozen=True, slots=True)
class CaptureDamage:
    """Where a capture cannot be read further, and why."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Interface:
    """What an interface description says: link type, snap length (0: none), resolution, offset in seconds."""

    link: int
    snap: int = 0
    resolution: int = 6
    offset_s: int = 0

    def time_ns(self, ticks: int) -> int:
        """Nanoseconds since 1970; a finer clock than that is rounded down."""
        power = self.resolution & 0x7F
        if self.resolution & 0x80:
            seconds, rest = (ticks >> power, ticks & ((1 << power) - 1)) if power < 64 else (0, 0)
            if power > 32:
                rest, power = rest >> power - 32, 32
            whole = seconds * 10**9 + (rest * 10**9 >> power)
        elif power <= 9:
            whole = ticks * 10 ** (9 - power)
        else:
            whole = ticks // 10 ** (power - 9)
        return min(max(whole + self.offset_s * 10**9, 0), LATEST_NS)


def parse_interface(body: bytes, order: str) -> Interface:
    """An interface from the body of its description block."""
    link, snap = struct.unpack_from(order + "HxxI", body)
    resolution, offset_s, at = 6, 0, 8
    while len(body) - at >= 4:
        code, length = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
        if code == 0:
            break
        if code == 9 and len(value) == 1:
            resolution = value[0]
        elif code == 14 and len(value) == 8:
            offset_s = min(max(struct.unpack(order + "q", value)[0], -MOST_OFFSET_S), MOST_OFFSET_S)
    return Interface(link, snap, resolution, offset_s)


def network_start(packet: bytes, link: int) -> int | None:
    """Where the IP header begins."""
    if link in RAW_LINKS:
        return 0
    if link in (NULL, LOOP):
        family = packet[:4]
        number = int.from_bytes(family, "little") if family[2:] == b"\0\0" else int.from_bytes(family, "big")
        return 4 if len(family) == 4 and number in (2, 10, 24, 28, 30) else None
    places = {ETHERNET: (12, 14), COOKED: (14, 16), COOKED_2: (0, 20)}
    if link not in places:
        return None
    at, start = places[link]
    kind = int.from_bytes(packet[at : at + 2], "big")
    while kind in _TAGGED and len(packet) >= start + 4:
        kind = int.from_bytes(packet[start + 2 : start + 4], "big")
        start += 4
    return start if kind in (0x0800, 0x86DD) else None


def address(packed: bytes) -> str:
    """An address for people; IPv4 stands in the last four bytes.

    >>> address(bytes(10) + b"\\xff\\xff\\x7f\\0\\0\\x01")
    '127.0.0.1'
    """
    found = ipaddress.IPv6Address(packed)
    return str(found.ipv4_mapped or found)
