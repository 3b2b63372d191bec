"""Canonical bytes: what HMAC and Signature are computed over.

Implements "Canonicalization (for crypto)" of 4.2 of the Event Mesh Protocol: the 17-byte header as sent, then every
field but HMAC and Signature, sorted by type, fields of the same type in the order they came; the sub-fields of
Encryption Metadata by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from wireloom.protocols.mesh.frames import HEADER_SIZE, Field, Packet, Type, encode_fields, encode_header
from wireloom.protocols.mesh.metadata import split_subfields

_NOT_COVERED = frozenset((Type.HMAC, Type.SIGNATURE))
_by_type = itemgetter(0)


def canonical_payload(fields: Iterable[Field]) -> bytes:
    """The payload's part of the canonical bytes.

    >>> canonical_payload([Field(0x14, b"n"), Field(1, b"b"), Field(1, b"a"), Field(0x10, b"h")]).hex()
    '01016201016114016e'
    """
    covered = [
        Field(type_, _canonical_metadata(value)) if type_ == Type.ENCRYPTION_METADATA else Field(type_, value)
        for type_, value in fields
        if type_ not in _NOT_COVERED
    ]
    covered.sort(key=_by_type)
    return encode_fields(covered)


def _canonical_metadata(value: bytes) -> bytes:
    subfields = sorted(split_subfields(value), key=_by_type)
    return b"".join(bytes((type_, len(content))) + content for type_, content in subfields)


def canonical_bytes(header: bytes, fields: Iterable[Field]) -> bytes:
    """Header as sent and canonical payload."""
    return header[:HEADER_SIZE] + canonical_payload(fields)


def canonical_packet(packet: Packet) -> bytes:
    """The canonical bytes of a whole packet; its Payload Length counts HMAC and Signature."""
    length = sum(2 + len(field.value) for field in packet.fields)
    return canonical_bytes(encode_header(packet, length), packet.fields)
