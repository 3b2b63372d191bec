"""The blocks of a journal segment: pcapng blocks as bytes, and back. No files, no third-party import.

Implements "A segment", "Blocks with frames" and "Records" of docs/reference/journal-format.md: a Section
Header Block, one Interface Description Block, then Enhanced Packet Blocks of link type 252 (upper PDU).
`index.py` reads the same blocks by the million; this module is the one to read.
"""

from __future__ import annotations

import ipaddress
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_pton
from types import MappingProxyType
from typing import Any, NamedTuple

from wireloom.model import Direction, JournalError, type_of_json

try:
    # The same sum at ten times the speed; every byte of a journal goes through it.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

FORMATS = {b"wireloom journal 1": 1, b"wireloom journal 2": 2}
"""The first comment of the Section Header Block: what the file is, and the version of its format."""
FORMAT = b"wireloom journal 2"
"""The one that is written."""

SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET = 0x0A0D0D0A, 1, 6
PADDING = 0x8000574C
"""A block type for local use: place for blocks to come, at the end of a segment being written."""
LINK_TYPE_UPPER_PDU = 252
SNAP_LENGTH = 262_144
MAX_PACKET_DATA = 128 * 1024
MAX_REFUSED = 4096
MAX_COMMENT = 60_000
"""Options have a 16-bit length; a comment stays well below it."""

OPTION_END, OPTION_COMMENT, OPTION_FLAGS, OPTION_HASH, OPTION_PACKET_ID = 0, 1, 2, 3, 5
HASH_CRC32 = 2
INBOUND, OUTBOUND = 1, 2
TAG_END, TAG_DISSECTOR, TAG_PORT_TYPE, TAG_SOURCE_PORT, TAG_DESTINATION_PORT = 0, 12, 24, 25, 26
TAG_SOURCE_IP = {4: 20, 16: 22}
TAG_DESTINATION_IP = {4: 21, 16: 23}
"""By the number of bytes of the address."""
PORT_TCP, PORT_UDP = 2, 3
DISSECTOR_PREFIX = "wireloom."

_BYTE_ORDER = 0x1A2B3C4D
_WORD = struct.Struct("<I")
_HEAD = struct.Struct("<II")
_PACKET = struct.Struct("<7I")
_OPTION = struct.Struct("<HH")
_TAG = struct.Struct(">HH")
_TAG_AND_WORD = struct.Struct(">HHI")
_OPTIONS = struct.Struct("<HHI HHBI3x HHQ HH")
"""Flags, hash, packet id, and the head of the comment, in the order of the format."""
# One block is made for every read, and one for every write: looking these up each time would cost as much again.
_pack_packet, _pack_options, _pack_word = _PACKET.pack, _OPTIONS.pack, _WORD.pack
_PACKET_ID_AT = 24
"""Where in those options the packet id's value stands."""
_PADDING = (b"", b"\0", b"\0\0", b"\0\0\0")
_OPTIONS_END = tuple(padding + b"\0\0\0\0" for padding in _PADDING)

_FRAMES = re.compile(
    rb"conn=([0-9a-f]{16}) dir=(c2s|s2c|dgram) seq=([0-9]{1,18})(?: (?:ctx|map)=([0-9a-f]{8}))?( more)?"
)
_RECORD = re.compile(rb"record=([a-z]{1,32})(?: conn=([0-9a-f]{16}))? (\{.*\})", re.DOTALL)
_DIRECTIONS = {direction.value.encode(): direction for direction in Direction}
_NO_DETAILS: Mapping[str, type_of_json] = MappingProxyType({})

Buffer = bytes | bytearray | memoryview


WRONG_DETAILS = "record with wrong details"
"""The one fault that only shows when a record is parsed; the index leaves that to its caller."""


class BlockFault(JournalError):
    """A block that is cut off or damaged: where, and what is wrong with it.

    >>> str(BlockFault(96, "wrong hash"))
    'wrong hash at byte 96'
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} at byte {self.offset}"


@dataclass(frozen=True, slots=True)
class Block:
    """One packet block: a run of frames, or a record.

    `offset` and `size` are the block's place in its segment, `payload_offset` that of its payload. A
    record has a name and details; a run of frames has a direction and a sequence.
    """

    offset: int
    size: int
    packet_id: int
    time_ns: int
    protocol: str
    source: str | None
    destination: str | None
    inbound: bool
    payload: bytes
    payload_offset: int
    connection: int | None = None
    direction: Direction | None = None
    sequence: int = 0
    context: int | None = None
    more: bool = False
    record: str | None = None
    details: Mapping[str, type_of_json] = field(default_factory=lambda: _NO_DETAILS)


# --- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """What the beginning of a segment says of it. Format 1 says nothing but that."""

    format: int
    hub: str = ""
    """The id of the hub that wrote it."""
    epoch: str = ""
    """The journal it belongs to; 16 hex digits."""
    generation: int = 0
    """Which start of that hub, where several machines may run one hub id; 0 where only one may."""
    after: int | None = None
    """The last packet id before this segment that counts; None where nobody said so."""
    size: int = 0
    """Bytes of the head: where the first block stands."""
    refused: bool = False
    """Whether the segment is one of refused bytes, which have packet ids of their own."""


def segment_head(version: str, hub: str, epoch: str, generation: int, after: int, *, refused: bool = False) -> bytes:
    """The Section Header Block and the Interface Description Block every segment begins with.

    Its size does not depend on `after`, which is known late.

    >>> head_of(segment_head("1.0", "north", "00c0ffee00c0ffee", 3, 41))
    Head(format=2, hub='north', epoch='00c0ffee00c0ffee', generation=3, after=41, size=196, refused=False)
    """
    said: dict[str, type_of_json] = {"after": f"{after:020d}", "epoch": epoch, "generation": generation, "hub": hub}
    if refused:
        said["refused"] = True
    section = struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1)
    section += _option(OPTION_COMMENT, FORMAT) + _option(OPTION_COMMENT, canonical_json(said))
    section += _option(4, f"wireloom {version}".encode())
    interface = struct.pack("<HHI", LINK_TYPE_UPPER_PDU, 0, SNAP_LENGTH) + _option(9, b"\x09")
    return block(SECTION_HEADER, section + _option(OPTION_END, b"")) + block(
        INTERFACE_DESCRIPTION, interface + _option(OPTION_END, b"")
    )


def _option(code: int, value: bytes) -> bytes:
    return _OPTION.pack(code, len(value)) + value + _PADDING[-len(value) & 3]


def comment_option(comment: bytes) -> bytes:
    """The options of a block that has a comment and nothing else."""
    return _option(OPTION_COMMENT, comment) + _option(OPTION_END, b"")


def block(block_type: int, body: bytes) -> bytes:
    """A block of any type around its body, which must be a multiple of four bytes."""
    total = len(body) + 12
    return _HEAD.pack(block_type, total) + body + _WORD.pack(total)


PAGE = 4096
"""Padding is in blocks of this size, at multiples of it, so that each of them is overwritten as a whole."""
PAGE_OF_PADDING = block(PADDING, bytes(PAGE - 12))


def filler(end: int) -> bytes:
    """The padding block from `end`, where a block ends, to the next page of padding; none if that is there.

    >>> len(filler(4096 + 96)), len(filler(4096)), len(filler(4096 - 4))
    (4000, 0, 4100)
    """
    gap = -end % PAGE
    return block(PADDING, bytes(gap - 12 if gap >= 12 else gap + PAGE - 12)) if gap else b""


@lru_cache(maxsize=256)
def encode_tags(
    protocol: str, source: str | None = None, destination: str | None = None, *, datagram: bool = False
) -> bytes:
    """The upper-PDU tags before a payload. Addresses are `host:port`; others leave no tag.

    >>> encode_tags("hsp").hex()
    '000c000c776972656c6f6f6d2e68737000000000'
    """
    # The cache is for a connection that begins or ends: a record and the blocks around it have the same tags.
    from_ip, from_port = _address_tags(source, TAG_SOURCE_IP, TAG_SOURCE_PORT)
    to_ip, to_port = _address_tags(destination, TAG_DESTINATION_IP, TAG_DESTINATION_PORT)
    port_type = (_UDP_TAG if datagram else _TCP_TAG) if from_ip or to_ip else b""
    return b"".join((_dissector_tag(protocol), from_ip, to_ip, port_type, from_port, to_port, _END_TAG))


def _address_tags(address: str | None, ip_tags: Mapping[int, int], port_tag: int) -> tuple[bytes, bytes]:
    """The tag of an IP address and that of its port; nothing for what is no IP address."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        return b"", b""
    packed = _packed(host)
    if not packed:
        return b"", b""
    return _tag(ip_tags[len(packed)], packed), _TAG_AND_WORD.pack(port_tag, 4, int(port))


@lru_cache(maxsize=1024)
def _packed(host: str) -> bytes:
    """The bytes of an IP address, without brackets and zone; empty for what is none."""
    host = host.removeprefix("[").removesuffix("]").partition("%")[0]
    try:
        return inet_pton(AF_INET6 if ":" in host else AF_INET, host)
    except (OSError, ValueError):
        return b""


def _tag(code: int, value: bytes) -> bytes:
    return _TAG.pack(code, len(value)) + value


@lru_cache(maxsize=256)
def _dissector_tag(protocol: str) -> bytes:
    name = (DISSECTOR_PREFIX + protocol).encode()
    return _tag(TAG_DISSECTOR, name + _PADDING[-len(name) & 3])


_TCP_TAG, _UDP_TAG = (_tag(TAG_PORT_TYPE, struct.pack(">I", each)) for each in (PORT_TCP, PORT_UDP))
_END_TAG = _tag(TAG_END, b"")


def join_address(host: str, port: int) -> str:
    """The text form of an address: `host:port`, with brackets around IPv6.

    >>> join_address("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_packet(
    packet_id: int, time_ns: int, tags: bytes, tags_crc: int, payload: Buffer, comment: bytes, flags: int
) -> bytes:
    """One Enhanced Packet Block. `tags_crc` is the CRC-32 of `tags`, so that it is computed once."""
    # Not by way of `packet_around`: one of these is made for every read and every write, and calls cost most of it.
    captured, length = len(tags) + len(payload), len(comment)
    total = 72 + captured + (-captured & 3) + length + (-length & 3)
    return b"".join((
        _pack_packet(ENHANCED_PACKET, total, 0, time_ns >> 32, time_ns & 0xFFFFFFFF, captured, captured),
        tags,
        payload,
        _PADDING[-captured & 3],
        _pack_options(
            OPTION_FLAGS, 4, flags,
            OPTION_HASH, 5, HASH_CRC32, crc32(payload, tags_crc),
            OPTION_PACKET_ID, 8, packet_id,
            OPTION_COMMENT, length,
        ),
        comment,
        _OPTIONS_END[-length & 3],
        _pack_word(total),
    ))  # fmt: skip


def packet_around(
    packet_id: int, time_ns: int, tags: bytes, tags_crc: int, payload: Buffer, comment: bytes, flags: int
) -> tuple[bytes, bytes]:
    """The bytes before and after the payload of such a block, to write a large payload without copying it."""
    captured, length = len(tags) + len(payload), len(comment)
    total = 72 + captured + (-captured & 3) + length + (-length & 3)
    tail = (
        _PADDING[-captured & 3],
        _pack_options(
            OPTION_FLAGS, 4, flags,
            OPTION_HASH, 5, HASH_CRC32, crc32(payload, tags_crc),
            OPTION_PACKET_ID, 8, packet_id,
            OPTION_COMMENT, length,
        ),
        comment,
        _OPTIONS_END[-length & 3],
        _pack_word(total),
    )  # fmt: skip
    head = _pack_packet(ENHANCED_PACKET, total, 0, time_ns >> 32, time_ns & 0xFFFFFFFF, captured, captured)
    return head + tags, b"".join(tail)


def renumber(data: bytearray, packet_id: int, at: int = 0) -> None:
    """Give the block made by `encode_packet` that begins at `at` another packet id, in place."""
    struct.pack_into("<Q", data, _options_at(data, at) + _PACKET_ID_AT, packet_id)


def time_at(data: Buffer, at: int) -> int:
    """The time of the packet block that begins at `at`, in nanoseconds since 1970."""
    _, _, _, high, low, _, _ = _PACKET.unpack_from(data, at)
    return int(high) << 32 | int(low)


def captured_at(data: Buffer, at: int) -> int:
    """The captured length of the packet block that begins at `at`: bytes of its tags and its payload."""
    return int(_PACKET.unpack_from(data, at)[5])


def packet_id_at(data: Buffer, at: int) -> int:
    """The packet id of the block made by `encode_packet` that begins at `at`."""
    start = _options_at(data, at) + _PACKET_ID_AT
    return int.from_bytes(data[start : start + 8], "little")


def comment_at(data: Buffer, at: int) -> bytes:
    """The comment of the block made by `encode_packet` that begins at `at`."""
    start = _options_at(data, at) + _OPTIONS.size
    length = _OPTION.unpack_from(data, start - _OPTION.size)[1]
    return bytes(data[start : start + length])


def _options_at(data: Buffer, at: int) -> int:
    captured: int = _PACKET.unpack_from(data, at)[5]
    return at + _PACKET.size + captured + (-captured & 3)


def record_comment(name: str, details: Mapping[str, type_of_json], connection: int | None = None) -> bytes:
    """The comment of a record.

    >>> record_comment("closed", {"reason": "close", "detail": ""}, 1)
    b'record=closed conn=0000000000000001 {"detail":"","reason":"close"}'
    """
    head = f"record={name} " if connection is None else f"record={name} conn={connection:016x} "
    comment = head.encode() + canonical_json(details)
    if len(comment) > MAX_COMMENT:
        # Only texts that came from outside get that long; the record matters more than their end.
        cut = {key: value[:1000] + "…" if isinstance(value, str) and len(value) > 1000 else value
               for key, value in details.items()}  # fmt: skip
        comment = head.encode() + canonical_json(cut)
        if len(comment) > MAX_COMMENT:
            raise JournalError(f"a record {name!r} of {len(comment)} bytes; at most {MAX_COMMENT} fit")
    return comment


def canonical_json(value: Mapping[str, type_of_json]) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8 without escapes.

    >>> canonical_json({"b": 1, "a": "ü"}).decode()
    '{"a":"ü","b":1}'
    """
    return _canonical.encode(value).encode(errors="replace")


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
"""Made once: that takes as long as encoding a small record."""


# --- reading ---------------------------------------------------------------------------------------


def check_head(data: Buffer) -> int:
    """Where the first block after the two head blocks begins; BlockFault when this is no segment."""
    return head_of(data).size


def head_of(data: Buffer) -> Head:
    """What the beginning of a segment says; BlockFault when this is no segment."""
    if len(data) < 4 or _WORD.unpack_from(data)[0] != SECTION_HEADER:
        raise BlockFault(0, "no pcapng section header")
    if len(data) < 28:
        raise BlockFault(0, "section header cut off")
    if _WORD.unpack_from(data, 8)[0] != _BYTE_ORDER:
        raise BlockFault(0, "section header of another byte order")
    _, size = block_at(data, 0, len(data))
    comments = [value for code, value in options(data, 24, size - 4) if code == OPTION_COMMENT]
    version = FORMATS.get(comments[0]) if comments else None
    if version is None:
        raise BlockFault(0, f"section header without a comment {FORMAT.decode()!r}, or that of an earlier format")
    block_type, interface = block_at(data, size, len(data))
    if block_type != INTERFACE_DESCRIPTION or interface < 20:
        raise BlockFault(size, "no interface description")
    if _OPTION.unpack_from(data, size + 8)[0] != LINK_TYPE_UPPER_PDU:
        raise BlockFault(size, f"link type is not {LINK_TYPE_UPPER_PDU}")
    end = size + interface
    if version == 1:
        return Head(1, size=end)
    try:
        said = json.loads(comments[1])
        after, generation = int(said["after"]), int(said["generation"])
        refused = said.get("refused") is True
        return Head(version, str(said["hub"]), str(said["epoch"]), generation, after, end, refused)
    except (IndexError, ValueError, KeyError, TypeError):
        raise BlockFault(0, "section header that does not say whose segment this is") from None


def block_at(data: Buffer, offset: int, end: int) -> tuple[int, int]:
    """Type and size of the block at `offset`, which must end at or before `end`."""
    if end - offset < 12:
        raise BlockFault(offset, "block cut off")
    block_type, size = _HEAD.unpack_from(data, offset)
    if size < 12 or size & 3:
        raise BlockFault(offset, "wrong block length")
    if size > end - offset:
        raise BlockFault(offset, "block cut off")
    if _WORD.unpack_from(data, offset + size - 4)[0] != size:
        raise BlockFault(offset, "wrong trailing length")
    return block_type, size


def is_padding(data: Buffer, offset: int) -> bool:
    """Whether the block at `offset` is place for blocks to come."""
    try:
        return block_at(data, offset, len(data))[0] == PADDING
    except BlockFault:
        return False


def blocks(data: Buffer, start: int, end: int, *, check_hash: bool = True) -> Iterator[Block]:
    """The packet blocks in a part of a segment; other blocks are passed over, and padding ends it.

    Raises BlockFault at the first block that is cut off or damaged.
    """
    offset = start
    while offset < end:
        block_type, size = block_at(data, offset, end)
        if block_type == ENHANCED_PACKET:
            yield parse_packet(data, offset, size, check_hash=check_hash)
        elif block_type == PADDING:
            return
        elif block_type == 0:
            # Zeros have no length and fail before this. A block of type 0 that has a length is not one of ours.
            raise BlockFault(offset, "no block")
        offset += size


def parse_packet(data: Buffer, offset: int, size: int, *, check_hash: bool = True) -> Block:
    """The Enhanced Packet Block of `size` bytes at `offset`; BlockFault if it is damaged."""
    if size < 32:
        raise BlockFault(offset, "wrong block length")
    _, _, _, high, low, captured, _ = _PACKET.unpack_from(data, offset)
    body = offset + _PACKET.size
    options_at = body + captured + (-captured & 3)
    if options_at > offset + size - 4:
        raise BlockFault(offset, "wrong captured length")
    packet_id = flags = stated = None
    comment = b""
    for code, value in options(data, options_at, offset + size - 4):
        if code == OPTION_PACKET_ID and len(value) == 8:
            packet_id = int.from_bytes(value, "little")
        elif code == OPTION_FLAGS and len(value) == 4:
            flags = int.from_bytes(value, "little")
        elif code == OPTION_HASH and len(value) == 5 and value[0] == HASH_CRC32:
            stated = int.from_bytes(value[1:], "little")
        elif code == OPTION_COMMENT:
            comment = value
    if packet_id is None or stated is None or flags is None:
        raise BlockFault(offset, "block without flags, hash and packet id")
    with memoryview(data) as view, view[body : body + captured] as packet:
        if check_hash and crc32(packet) != stated:
            raise BlockFault(offset, "wrong hash")
        protocol, source, destination, tags_size = parse_tags(packet, offset)
        payload = bytes(packet[tags_size:])
    common = (
        *(offset, size, packet_id, high << 32 | low, protocol, source, destination),
        *(flags & 3 == INBOUND, payload, body + tags_size),
    )
    if frames := _FRAMES.fullmatch(comment):
        connection, direction, sequence, context, more = frames.groups()
        return Block(
            *common,
            connection=int(connection, 16),
            direction=_DIRECTIONS[direction],
            sequence=int(sequence),
            context=None if context is None else int(context, 16),
            more=more is not None,
        )
    if record := _RECORD.fullmatch(comment):
        name, connection, details = record.groups()
        try:
            parsed = json.loads(details)
            if name in _CONTEXT_RECORDS:
                _read_context(parsed)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise BlockFault(offset, WRONG_DETAILS) from None
        return Block(
            *common,
            connection=None if connection is None else int(connection, 16),
            record=name.decode(),
            details=parsed,
        )
    raise BlockFault(offset, "comment of no known form")


def options(data: Buffer, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The options of a block, up to the end-of-options or the end of the block."""
    while end - offset >= 4:
        code, length = _OPTION.unpack_from(data, offset)
        offset += 4
        if code == OPTION_END:
            return
        if length > end - offset:
            return
        yield code, bytes(data[offset : offset + length])
        offset += length + (-length & 3)


def parse_tags(packet: Buffer, offset: int) -> tuple[str, str | None, str | None, int]:
    """Protocol, source, destination, and the size of the tags that packet data begins with."""
    position = 0
    while True:
        if len(packet) - position < 4:
            raise BlockFault(offset, "tags without an end")
        tag, length = _TAG.unpack_from(packet, position)
        position += 4
        if tag == TAG_END:
            break
        position += length
        if position > len(packet):
            raise BlockFault(offset, "tags without an end")
    protocol, source, destination = _read_tags(bytes(packet[:position]))
    if not protocol:
        raise BlockFault(offset, "tags without a dissector's name")
    return protocol, source, destination, position


@lru_cache(maxsize=4096)
def _read_tags(tags: bytes) -> tuple[str, str | None, str | None]:
    """What well-formed tags say. All blocks of a connection repeat theirs, hence the cache."""
    protocol = ""
    hosts: list[str | None] = [None, None]
    ports = [0, 0]
    position = 0
    while True:
        tag, length = _TAG.unpack_from(tags, position)
        if tag == TAG_END:
            break
        value = tags[position + 4 : position + 4 + length]
        position += 4 + length
        if tag == TAG_DISSECTOR:
            protocol = value.rstrip(b"\0").decode(errors="replace").removeprefix(DISSECTOR_PREFIX)
        elif 20 <= tag <= 23 and length in (4, 16):
            hosts[tag & 1] = str(ipaddress.ip_address(value))
        elif tag in (TAG_SOURCE_PORT, TAG_DESTINATION_PORT) and length == 4:
            ports[tag - TAG_SOURCE_PORT] = int.from_bytes(value, "big")
    source, destination = (
        None if host is None else join_address(host, port) for host, port in zip(hosts, ports, strict=True)
    )
    return protocol, source, destination


_CONTEXT_RECORDS = {b"context", b"topics"}
"""`topics` is what format 1 calls it; then there are no settings."""


class Stated(NamedTuple):
    """A context as a reader knows it."""

    topics: dict[int, str]
    settings: dict[str, type_of_json]


def contexts(found: Iterable[Block]) -> dict[int, Stated]:
    """The contexts stated by the records among some blocks, by their id."""
    known: dict[int, Stated] = {}
    for block in found:
        add_context(known, block)
    return known


def add_context(known: dict[int, Stated], block: Block) -> int | None:
    """Take in what a record states; returns the context's id. Other blocks change nothing."""
    if block.record is None or block.record.encode() not in _CONTEXT_RECORDS:
        return None
    number, topics, settings = _read_context(block.details)
    stated = known.setdefault(number, Stated({}, {}))
    stated.topics.update(topics)
    stated.settings.update(settings)
    return number


def _read_context(details: Mapping[str, Any]) -> tuple[int, dict[int, str], dict[str, type_of_json]]:
    topics = {int(number): str(topic) for number, topic in details.get("topics", {}).items()}
    settings = {str(name): value for name, value in details.get("settings", {}).items()}
    number = details["ctx"] if "ctx" in details else details["map"]
    return int(str(number), 16), topics, settings
