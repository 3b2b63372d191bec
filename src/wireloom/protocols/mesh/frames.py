"""The EMM packet: a 17-byte header and fields of type, length and value (TLVs).

Implements sections 2 to 4, the structural part of 6.2 and every rejection of 6.3 of the Event Mesh Protocol. A packet
is kept as it is on the wire, field by field, so that encoding a decoded packet gives the same bytes; what fields
mean together (long values, order, canonical bytes) is in functions. One packet at a time; `columns.py` does the
same for thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from wireloom.model import LimitExceeded, NotSupported, ProtocolViolation
from wireloom.protocols.mesh.metadata import METADATA_CLAUSES, Metadata, decode_metadata

VERSION = 1
HEADER_SIZE = 17
MAX_PACKET_SIZE = 548
MAX_PAYLOAD_SIZE = MAX_PACKET_SIZE - HEADER_SIZE
MAX_PAYLOAD_LIMIT = 0xFFFF
"""What Payload Length can say; more than the specification allows unless a setting does."""
MAX_TLV_COUNT = 64
MAX_VALUE = 255
"""The longest value of one field; one of that length goes on in the next field of its type."""

CLAUSES = {
    "mesh.header.short": "The header has 17 bytes (2.1)",
    "mesh.header.version": "Currently, the only valid version is 1 (2.2)",
    "mesh.flags.reserved": "Reject packet if flags contain non-zero reserved bits for version 1 (6.3)",
    "mesh.payload.too-large": "Reject packet if Payload Length exceeds MAX_PAYLOAD_SIZE (6.3)",
    "mesh.payload.length": "Reject packet if actual payload bytes do not match length (6.3)",
    "mesh.tlv.overrun": "Reject packet if any TLV overruns the payload buffer (6.3)",
    "mesh.tlv.count": "Reject packet if total TLV count, sub-TLVs included, exceeds MAX_TLV_COUNT (6.3)",
    "mesh.tlv.duplicate": "Reject packet if duplicate singleton TLVs occur: 0x10 to 0x18 (6.3)",
    "mesh.field.length": "Fields of fixed size have exactly that size (4.1, 4.2)",
    "mesh.field.utf8": "String and JSON are UTF-8 (4.1)",
    "mesh.order.signature-last": "Reject packet if Signature is not the last field (6.3)",
    "mesh.order.hmac": "HMAC comes after all data fields, 0x13 and 0x18, and immediately before Signature (4.2)",
    "mesh.security.node-id": "If HMAC or Signature is used, then NODE ID must also be included (6.1)",
    "mesh.hello.fields": "Hello has NODE ID and Capabilities (3.1)",
    "mesh.heartbeat.fields": "Heartbeat has NODE ID and Timestamp (3.2)",
    "mesh.event.name": "Event has an Event Name (3.3)",
    "mesh.encryption.metadata-missing": "If the Encryption bit is set, the payload includes Encryption Metadata (2.3)",
    **METADATA_CLAUSES,
}

_HEADER = struct.Struct(">BIBBQH")


class EventType(IntEnum):
    """The event types with a meaning; others are valid and passed on."""

    HELLO = 1
    HEARTBEAT = 2
    EVENT = 3


class Flag(IntEnum):
    """The bits of the flags byte; the others are reserved."""

    URGENT = 1
    ENCRYPTED = 2
    COMPRESSED = 4


RESERVED_FLAGS = 0xF8


class Type(IntEnum):
    """The types of fields."""

    STRING = 0x01
    INTEGER = 0x02
    FLOAT = 0x03
    BINARY = 0x04
    JSON = 0x05
    HMAC = 0x10
    ENCRYPTION_METADATA = 0x11
    SIGNATURE = 0x12
    PUBLIC_KEY = 0x13
    NODE_ID = 0x14
    TIMESTAMP = 0x15
    NONCE = 0x16
    KEY_IDENTIFIER = 0x17
    AUTH_KEY_ID = 0x18


DATA_TYPES = frozenset((Type.STRING, Type.INTEGER, Type.FLOAT, Type.BINARY, Type.JSON))
SINGLETONS = frozenset(range(0x10, 0x19))
SIZES = {
    Type.INTEGER: 4,
    Type.FLOAT: 4,
    Type.HMAC: 32,
    Type.SIGNATURE: 64,
    Type.PUBLIC_KEY: 32,
    Type.NODE_ID: 16,
    Type.TIMESTAMP: 8,
    Type.NONCE: 12,
    Type.KEY_IDENTIFIER: 16,
    Type.AUTH_KEY_ID: 4,
}
_SIZE_OF: dict[int, int] = {int(type_): size for type_, size in SIZES.items()}
_TEXTS = frozenset((Type.STRING, Type.JSON))
_BEFORE_HMAC = frozenset((*DATA_TYPES, Type.PUBLIC_KEY, Type.AUTH_KEY_ID))
_LAST = {Type.PUBLIC_KEY: 256, Type.AUTH_KEY_ID: 257, Type.HMAC: 258, Type.SIGNATURE: 259}
_RANK = tuple(_LAST.get(type_, type_) for type_ in range(256))  # type: ignore[call-overload]


class Field(NamedTuple):
    """One TLV as it is on the wire."""

    type: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Packet:
    """One EMM packet; `fields` in the order of the wire."""

    message_id: int
    event_type: int
    timestamp: int
    fields: tuple[Field, ...] = ()
    flags: int = 0

    def get(self, type_: int) -> bytes | None:
        """The value of the first field of a type.

        >>> Packet(1, EventType.EVENT, 0, (Field(Type.NODE_ID, bytes(16)),)).get(Type.NODE_ID) == bytes(16)
        True
        """
        for found, value in self.fields:
            if found == type_:
                return value
        return None

    @property
    def encrypted(self) -> bool:
        """Whether the data fields are ciphertext: the flag says so, or there is metadata for decrypting them."""
        return bool(self.flags & Flag.ENCRYPTED) or self.get(Type.ENCRYPTION_METADATA) is not None

    @property
    def metadata(self) -> Metadata | None:
        """The Encryption Metadata, taken apart; the packet was checked when it was decoded."""
        value = self.get(Type.ENCRYPTION_METADATA)
        return None if value is None else decode_metadata(value)

    @property
    def signed_at(self) -> int:
        """The time that freshness is judged by: the Timestamp field, else the header's."""
        value = self.get(Type.TIMESTAMP)
        return self.timestamp if value is None else int.from_bytes(value)


@dataclass(frozen=True, slots=True)
class PacketLimits:
    """What a receiver takes."""

    max_payload: int = MAX_PAYLOAD_SIZE
    max_fields: int = MAX_TLV_COUNT
    ignore_reserved_flags: bool = False


DEFAULT_LIMITS = PacketLimits()


def encode_fields(fields: Iterable[Field]) -> bytes:
    """Fields as bytes, in the order given.

    >>> encode_fields([Field(Type.STRING, b"hi"), Field(Type.INTEGER, bytes(4))]).hex()
    '01026869020400000000'
    """
    return b"".join([b"%c%c%b" % (type_, len(value), value) for type_, value in fields])


def encode_header(packet: Packet, payload_length: int) -> bytes:
    """The 17 bytes before the payload.

    >>> encode_header(Packet(0xA1B2C3D4, EventType.EVENT, 1700000000), 4).hex()
    '01a1b2c3d40003000000006553f1000004'
    """
    return _HEADER.pack(VERSION, packet.message_id, packet.flags, packet.event_type, packet.timestamp, payload_length)


def encode(packet: Packet, limits: PacketLimits = DEFAULT_LIMITS) -> bytes:
    """A packet as bytes, fields in the order given; see `arrange` for the order to send in.

    >>> encode(Packet(1, EventType.EVENT, 0, (Field(Type.STRING, b"a"),))).hex()
    '0100000001000300000000000000000003010161'
    """
    payload = encode_fields(packet.fields)
    if len(payload) > limits.max_payload:
        raise LimitExceeded(
            f"a mesh packet carries {limits.max_payload} bytes of fields and this one has {len(payload)}: "
            "send less, compress it, or send it in parts"
        )
    if count_fields(packet.fields) > limits.max_fields:
        raise LimitExceeded(f"a mesh packet carries at most {limits.max_fields} fields")
    try:
        return encode_header(packet, len(payload)) + payload
    except struct.error as error:
        raise NotSupported(f"a header field of a mesh packet is out of range: {error}") from None


def count_fields(fields: Iterable[Field]) -> int:
    """How many TLVs there are, sub-TLVs included."""
    total = 0
    for field in fields:
        total += 1
        if field.type == Type.ENCRYPTION_METADATA:
            total += decode_metadata(field.value).count
    return total


def decode(data: bytes | bytearray | memoryview, limits: PacketLimits = DEFAULT_LIMITS) -> Packet:
    """The packet that one datagram is.

    >>> decode(bytes.fromhex("0100000001000300000000000000000003" "010161")).fields
    (Field(type=1, value=b'a'),)
    >>> decode(b"hello")
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: mesh.header.short: 5 bytes
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise ProtocolViolation("mesh.header.short", f"{size} bytes")
    version, message_id, flags, event_type, timestamp, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ProtocolViolation("mesh.header.version", f"version {version}")
    if flags & RESERVED_FLAGS and not limits.ignore_reserved_flags:
        raise ProtocolViolation("mesh.flags.reserved", f"flags 0x{flags:02x}")
    if length > limits.max_payload:
        raise ProtocolViolation("mesh.payload.too-large", f"{length} bytes; max_payload is {limits.max_payload}")
    if length != size - HEADER_SIZE:
        raise ProtocolViolation("mesh.payload.length", f"{length} bytes announced, {size - HEADER_SIZE} there")
    fields = tuple(decode_fields(bytes(data[HEADER_SIZE:]), limits.max_fields))
    packet = Packet(message_id, event_type, timestamp, fields, flags)
    _check_fields(packet, limits)
    return packet


def decode_fields(payload: bytes, max_fields: int = MAX_TLV_COUNT) -> Iterator[Field]:
    """The fields of a payload, one after the other.

    >>> list(decode_fields(bytes.fromhex("0102")))
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: mesh.tlv.overrun: field 0x01 of 2 bytes, 0 left
    """
    position, size, count = 0, len(payload), 0
    while position < size:
        if size - position < 2:
            raise ProtocolViolation("mesh.tlv.overrun", f"field 0x{payload[position]:02x} without a length")
        type_, length = payload[position], payload[position + 1]
        position += 2
        if length > size - position:
            raise ProtocolViolation(
                "mesh.tlv.overrun", f"field 0x{type_:02x} of {length} bytes, {size - position} left"
            )
        count += 1
        if count > max_fields:
            raise ProtocolViolation("mesh.tlv.count", f"more than {max_fields} fields")
        yield Field(type_, payload[position : position + length])
        position += length


def _check_fields(packet: Packet, limits: PacketLimits) -> None:
    """Every rule about fields that can be told without keys."""
    fields = packet.fields
    seen: set[int] = set()
    for type_, value in fields:
        if type_ in SINGLETONS:
            if type_ in seen:
                raise ProtocolViolation("mesh.tlv.duplicate", f"field 0x{type_:02x} occurs twice")
            seen.add(type_)
        wanted = _SIZE_OF.get(type_)
        if wanted is not None and len(value) != wanted:
            raise ProtocolViolation(
                "mesh.field.length", f"field 0x{type_:02x} has {len(value)} bytes instead of {wanted}"
            )
    _check_order(fields)
    if Type.ENCRYPTION_METADATA in seen:
        metadata = decode_metadata(packet.get(Type.ENCRYPTION_METADATA) or b"")
        if len(fields) + metadata.count > limits.max_fields:
            raise ProtocolViolation("mesh.tlv.count", f"more than {limits.max_fields} fields")
        metadata.check(packet.get(Type.NONCE), packet.get(Type.KEY_IDENTIFIER))
    elif packet.flags & Flag.ENCRYPTED:
        raise ProtocolViolation("mesh.encryption.metadata-missing", "the Encryption bit is set, there is no field 0x11")
    if Type.NODE_ID not in seen and (Type.HMAC in seen or Type.SIGNATURE in seen):
        raise ProtocolViolation("mesh.security.node-id", "HMAC or Signature without NODE ID")
    check_text(fields)
    if packet.event_type == EventType.HELLO:
        if Type.NODE_ID not in seen or not any(field.type == Type.BINARY for field in fields):
            raise ProtocolViolation("mesh.hello.fields", "Hello needs NODE ID and Capabilities (0x04)")
    elif packet.event_type == EventType.HEARTBEAT:
        if Type.NODE_ID not in seen or Type.TIMESTAMP not in seen:
            raise ProtocolViolation("mesh.heartbeat.fields", "Heartbeat needs NODE ID and Timestamp")
    elif packet.event_type == EventType.EVENT and not packet.flags & Flag.COMPRESSED and not packet.encrypted:
        check_name(fields)


def _check_order(fields: tuple[Field, ...]) -> None:
    types = [field.type for field in fields]
    if Type.SIGNATURE in types and types[-1] != Type.SIGNATURE:
        after = types[types.index(Type.SIGNATURE) + 1]
        raise ProtocolViolation("mesh.order.signature-last", f"field 0x{after:02x} follows it")
    if Type.HMAC in types:
        later = types[types.index(Type.HMAC) + 1 :]
        for type_ in later:
            if type_ in _BEFORE_HMAC:
                raise ProtocolViolation("mesh.order.hmac", f"field 0x{type_:02x} after HMAC")
        if types[-1] == Type.SIGNATURE and len(later) != 1:
            raise ProtocolViolation("mesh.order.hmac", "HMAC is not immediately before Signature")


def check_text(fields: Sequence[Field]) -> None:
    """Strings and JSON must be UTF-8; a long one may be cut inside a character, so whole values are looked at."""
    for type_, value in join(fields):
        if type_ in _TEXTS:
            try:
                value.decode()
            except UnicodeDecodeError as error:
                raise ProtocolViolation("mesh.field.utf8", f"field 0x{type_:02x}: {error.reason}") from None


def check_name(fields: Sequence[Field]) -> None:
    """An Event has a String, which is its name."""
    if Type.STRING not in [field.type for field in fields]:
        raise ProtocolViolation("mesh.event.name", "there is no String field")


def split(type_: int, value: bytes) -> list[Field]:
    """A value as the fields that carry it: pieces of 255 bytes, of which the last is shorter, empty if need be.

    >>> [len(field.value) for field in split(Type.BINARY, bytes(510))]
    [255, 255, 0]
    """
    if len(value) >= MAX_VALUE and (type_ in SINGLETONS or type_ in _SIZE_OF):
        raise LimitExceeded(f"field 0x{type_:02x} cannot hold {len(value)} bytes")
    return [Field(type_, value[at : at + MAX_VALUE]) for at in range(0, len(value) + 1, MAX_VALUE)]


def join(fields: Sequence[Field]) -> Sequence[Field]:
    """Whole values: a field of 255 bytes goes on in the next one if that has the same type.

    >>> [len(field.value) for field in join(split(Type.BINARY, bytes(510)))]
    [510]
    """
    if not any(len(field.value) == MAX_VALUE for field in fields):
        return fields
    whole: list[Field] = []
    open_type, pieces = -1, [b""]
    for field in fields:
        if field.type == open_type:
            pieces.append(field.value)
            whole[-1] = Field(open_type, b"".join(pieces))
        else:
            whole.append(field)
            pieces = [field.value]
        open_type = field.type if len(field.value) == MAX_VALUE and field.type not in SINGLETONS else -1
    return whole


def arrange(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Fields in the order they are sent in: by type, then Public Key, Auth Key ID, HMAC and Signature.

    >>> [hex(f.type) for f in arrange([Field(0x13, b""), Field(0x14, b""), Field(0x12, b""), Field(1, b"")])]
    ['0x1', '0x14', '0x13', '0x12']
    """
    return tuple(sorted(fields, key=lambda field: _RANK[field.type]))


def packet_size(data: bytes | bytearray | memoryview, at: int) -> int | None:
    """How many bytes the packet at a place says it has; None when there is no whole header."""
    if len(data) - at < HEADER_SIZE:
        return None
    return HEADER_SIZE + (data[at + 15] << 8 | data[at + 16])


def packet_ends(data: bytes | bytearray | memoryview) -> list[int]:
    """Where the packets of a run end, by their own lengths.

    A run is what a journal's block holds: packets that were each a datagram, one after the other. Bytes that the
    lengths do not account for to the last one are one datagram, whatever it is.

    >>> packet_ends(bytes(17) + bytes(17)), packet_ends(bytes(20))
    ([17, 34], [20])
    """
    ends: list[int] = []
    at = 0
    while at < len(data):
        size = packet_size(data, at)
        if size is None or size > len(data) - at:
            return [len(data)]
        at += size
        ends.append(at)
    return ends


def is_urgent(data: bytes | bytearray | memoryview) -> bool:
    """Whether an encoded packet goes ahead of others in every queue."""
    return bool(data[5] & Flag.URGENT)
