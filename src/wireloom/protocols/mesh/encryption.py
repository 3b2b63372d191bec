"""Compressed and encrypted payloads: data fields wrapped into Binary fields, and unwrapped again.

The protocol leaves both to the application (2.3, 5.2); this is how ours does it, with the metadata of 4.2.1. The data
fields, one after the other, become a zlib stream, or ciphertext with its tag, or first the one and then the other;
Binary fields carry the result. Associated data is the 17-byte header with Payload Length zero. The Event Name may stay
outside, in front, so that packets can be routed by those who cannot read them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from wireloom.model import NotSupported, ProtocolViolation
from wireloom.protocols.mesh import crypto
from wireloom.protocols.mesh.frames import (
    DATA_TYPES,
    MAX_TLV_COUNT,
    SINGLETONS,
    EventType,
    Field,
    Flag,
    Packet,
    Type,
    check_name,
    check_text,
    decode_fields,
    encode_fields,
    encode_header,
    join,
    split,
)
from wireloom.protocols.mesh.metadata import Algorithm, Metadata, encode_metadata

MAX_PLAIN = 64 * 1024
"""The most that a compressed payload may become."""
DECRYPTION = "mesh.encryption.failed"

WRAPPING_CLAUSES = {
    "mesh.compression.invalid": "Binary fields of a compressed packet hold a zlib stream, and nothing else (decision)",
    "mesh.compression.too-large": "A compressed payload becomes at most max_plain bytes (limit)",
    "mesh.wrapped.field": "Wrapped fields are data fields: no security field is inside (decision)",
    DECRYPTION: "Ciphertext and header are what the key's owner made of them (4.2.2)",
}


@dataclass(frozen=True, slots=True)
class Cipher:
    """How to encrypt: a 32-byte key, its 16-byte identifier and the algorithm."""

    key: bytes
    key_identifier: bytes
    algorithm: Algorithm = Algorithm.AES_256_GCM


def associated_data(packet: Packet) -> bytes:
    """What the tag covers beside the ciphertext: the header, its Payload Length zero."""
    return encode_header(packet, 0)


def _outside(packet: Packet, keep_name: bool) -> tuple[list[Field], list[Field]]:
    """Fields that stay as they are, and data fields to be wrapped."""
    stay = [field for field in packet.fields if field.type not in DATA_TYPES]
    data = [field for field in packet.fields if field.type in DATA_TYPES]
    if keep_name and packet.event_type == EventType.EVENT and data and data[0].type == Type.STRING:
        name = join(data)[0].value
        pieces = len(split(Type.STRING, name)) if len(data[0].value) == 255 else 1
        return [*data[:pieces], *stay], data[pieces:]
    return stay, data


def compress(packet: Packet, *, keep_name: bool = False) -> Packet:
    """The packet with its data fields as a zlib stream and the Compressed bit set."""
    stay, data = _outside(packet, keep_name)
    stream = zlib.compress(encode_fields(data))
    return replace(packet, fields=_with_binary(stay, stream), flags=packet.flags | Flag.COMPRESSED)


def encrypt(packet: Packet, cipher: Cipher, starting: bytes, *, keep_name: bool = False) -> Packet:
    """The packet with its data fields encrypted; `starting` is the IV or Nonce, 12 bytes never used before.

    Compress first, then encrypt: a compressed packet's zlib stream is encrypted as it is.
    """
    if len(starting) != 12:
        raise NotSupported(f"an IV or Nonce has 12 bytes, not {len(starting)}")
    packet = replace(packet, flags=packet.flags | Flag.ENCRYPTED)
    stay, data = _outside(packet, keep_name)
    plain = _binary(data) if packet.flags & Flag.COMPRESSED else encode_fields(data)
    sealed = crypto.encrypt(cipher.algorithm, cipher.key, starting, plain, associated_data(packet))
    uses_iv = cipher.algorithm == Algorithm.AES_256_GCM
    metadata = Metadata(
        cipher.algorithm,
        iv=starting if uses_iv else None,
        nonce=None if uses_iv else starting,
        key_identifier=cipher.key_identifier,
    )
    stay.append(Field(Type.ENCRYPTION_METADATA, encode_metadata(metadata)))
    return replace(packet, fields=_with_binary(stay, sealed))


def _with_binary(stay: list[Field], content: bytes) -> tuple[Field, ...]:
    name = [field for field in stay if field.type in DATA_TYPES]
    rest = [field for field in stay if field.type not in DATA_TYPES]
    return (*name, *split(Type.BINARY, content), *rest)


def _binary(fields: Iterable[Field]) -> bytes:
    """The content of the Binary fields among some fields."""
    return b"".join(field.value for field in fields if field.type == Type.BINARY)


@dataclass(frozen=True, slots=True)
class Opened:
    """The data fields of a packet, as plain as they can be had; whole values.

    `locked` when they are encrypted and the key is not there or the algorithm is unknown; `forged` when the key is
    there and the tag is wrong.
    """

    data: tuple[Field, ...]
    locked: bool = False
    forged: bool = False


def open_packet(packet: Packet, keys: Mapping[bytes, bytes] | None = None, max_plain: int = MAX_PLAIN) -> Opened:
    """Decrypt and decompress, as far as the flags ask for it and the keys allow.

    `keys` are encryption keys by identifier; without an identifier in the packet its NODE ID is used as one.
    Raises ProtocolViolation when what comes out is not a row of data fields.
    """
    data = [field for field in packet.fields if field.type in DATA_TYPES]
    compressed = bool(packet.flags & Flag.COMPRESSED)
    encrypted = packet.encrypted
    if not compressed and not encrypted:
        return Opened(tuple(join(data)))
    wrapped = _binary(data)
    outside = [field for field in data if field.type != Type.BINARY]
    if encrypted:
        metadata = packet.metadata
        assert metadata is not None
        identifier = metadata.key_identifier or packet.get(Type.KEY_IDENTIFIER) or packet.get(Type.NODE_ID) or b""
        key = (keys or {}).get(identifier)
        if key is None or metadata.algorithm not in tuple(Algorithm):
            return Opened(tuple(join(data)), locked=True)
        plain = crypto.decrypt(metadata.algorithm, key, metadata.starting, wrapped, associated_data(packet))
        if plain is None:
            return Opened(tuple(join(data)), locked=True, forged=True)
        wrapped = plain
    if compressed:
        wrapped = _decompress(wrapped, max_plain)
    inside = list(decode_fields(wrapped, MAX_TLV_COUNT))
    for field in inside:
        if field.type in SINGLETONS:
            raise ProtocolViolation("mesh.wrapped.field", f"field 0x{field.type:02x} inside")
        if field.type in (Type.INTEGER, Type.FLOAT) and len(field.value) != 4:
            raise ProtocolViolation("mesh.field.length", f"field 0x{field.type:02x} has {len(field.value)} bytes")
    check_text(inside)
    opened = (*join(outside), *join(inside))
    if packet.event_type == EventType.EVENT:
        check_name(opened)
    return Opened(opened)


def _decompress(stream: bytes, max_plain: int) -> bytes:
    """At most `max_plain` bytes, however small the stream is."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(stream, max_plain + 1)
    except zlib.error as error:
        raise ProtocolViolation("mesh.compression.invalid", str(error)) from None
    if len(plain) > max_plain:
        raise ProtocolViolation("mesh.compression.too-large", f"more than {max_plain} bytes")
    if not inflater.eof or inflater.unused_data:
        raise ProtocolViolation("mesh.compression.invalid", "the zlib stream does not end with the field")
    return plain
