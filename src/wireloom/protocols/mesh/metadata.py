"""Encryption Metadata (field 0x11): sub-fields that say how the data fields were encrypted.

Implements 4.2.1 and 4.2.2 of the Event Mesh Protocol. Where a sub-field occurs twice, the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from wireloom.model import ProtocolViolation

METADATA_CLAUSES = {
    "mesh.metadata.overrun": "Reject packet if nested sub-TLVs overrun their parent Length (6.3)",
    "mesh.metadata.field-length": "Algorithm and Length have 1 byte, Nonce 12, Key Identifier 16 (4.2.1)",
    "mesh.metadata.algorithm": "Encryption Metadata contains at least the Algorithm (4.2.1)",
    "mesh.metadata.iv-missing": "Encryption Metadata contains either IV or Nonce (4.2.1)",
    "mesh.metadata.iv-and-nonce": "Implementations must not include both IV and Nonce (4.2.1)",
    "mesh.metadata.iv-length": "The Length value exactly matches the Length of the IV; its top bit is 0 (4.2.1)",
    "mesh.metadata.wrong-iv": "AES-256-GCM has a 12-byte IV, ChaCha20-Poly1305 a 12-byte Nonce (4.2.2)",
    "mesh.metadata.conflict": "Fields 0x16 and 0x17 say the same as the sub-fields of 0x11 (decision)",
}


class SubType(IntEnum):
    """The types of sub-fields."""

    ALGORITHM = 1
    LENGTH = 2
    IV = 3
    NONCE = 4
    KEY_IDENTIFIER = 5


class Algorithm(IntEnum):
    """The algorithms with a meaning; packets with others are valid, but nobody here can open them."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2


_SIZES = {SubType.ALGORITHM: 1, SubType.LENGTH: 1, SubType.NONCE: 12, SubType.KEY_IDENTIFIER: 16}
_NONCE_SIZE = 12


@dataclass(frozen=True, slots=True)
class Metadata:
    """How the data fields were encrypted; `count` sub-fields said so."""

    algorithm: int
    iv: bytes | None = None
    nonce: bytes | None = None
    key_identifier: bytes | None = None
    length: int | None = None
    count: int = 0

    @property
    def starting(self) -> bytes:
        """IV or Nonce, whichever the algorithm uses."""
        return self.iv if self.iv is not None else self.nonce or b""

    def check(self, nonce: bytes | None, key_identifier: bytes | None) -> None:
        """The rules about what must and must not be there; the arguments are fields 0x16 and 0x17."""
        if self.iv is not None and self.nonce is not None:
            raise ProtocolViolation("mesh.metadata.iv-and-nonce", "both IV and Nonce")
        if self.iv is None and self.nonce is None:
            raise ProtocolViolation("mesh.metadata.iv-missing", "neither IV nor Nonce")
        if self.length is not None and (self.length & 0x80 or self.iv is None or self.length != len(self.iv)):
            there = "no IV" if self.iv is None else f"an IV of {len(self.iv)} bytes"
            raise ProtocolViolation("mesh.metadata.iv-length", f"Length {self.length} and {there}")
        if self.algorithm == Algorithm.AES_256_GCM and (self.iv is None or len(self.iv) != _NONCE_SIZE):
            raise ProtocolViolation("mesh.metadata.wrong-iv", "AES-256-GCM without an IV of 12 bytes")
        if self.algorithm == Algorithm.CHACHA20_POLY1305 and self.nonce is None:
            raise ProtocolViolation("mesh.metadata.wrong-iv", "ChaCha20-Poly1305 without a Nonce")
        if nonce is not None and nonce != self.starting:
            raise ProtocolViolation("mesh.metadata.conflict", "field 0x16 differs from the IV or Nonce in 0x11")
        if None not in (key_identifier, self.key_identifier) and key_identifier != self.key_identifier:
            raise ProtocolViolation("mesh.metadata.conflict", "field 0x17 differs from the Key Identifier in 0x11")


def encode_metadata(metadata: Metadata) -> bytes:
    """The value of a field 0x11, sub-fields by type.

    >>> encode_metadata(Metadata(Algorithm.AES_256_GCM, iv=bytes(12))).hex()
    '010101030c000000000000000000000000'
    """
    parts: list[tuple[int, bytes]] = [(SubType.ALGORITHM, bytes((metadata.algorithm,)))]
    if metadata.length is not None:
        parts.append((SubType.LENGTH, bytes((metadata.length,))))
    if metadata.iv is not None:
        parts.append((SubType.IV, metadata.iv))
    if metadata.nonce is not None:
        parts.append((SubType.NONCE, metadata.nonce))
    if metadata.key_identifier is not None:
        parts.append((SubType.KEY_IDENTIFIER, metadata.key_identifier))
    return b"".join(bytes((type_, len(value))) + value for type_, value in parts)


def split_subfields(value: bytes) -> list[tuple[int, bytes]]:
    """The sub-fields of a field 0x11 as they stand.

    >>> split_subfields(bytes.fromhex("010101"))
    [(1, b'\\x01')]
    """
    found: list[tuple[int, bytes]] = []
    position, size = 0, len(value)
    while position < size:
        if size - position < 2 or value[position + 1] > size - position - 2:
            raise ProtocolViolation("mesh.metadata.overrun", f"sub-field 0x{value[position]:02x} overruns field 0x11")
        end = position + 2 + value[position + 1]
        found.append((value[position], value[position + 2 : end]))
        position = end
    return found


def decode_metadata(value: bytes) -> Metadata:
    """What the value of a field 0x11 says."""
    found: dict[int, bytes] = {}
    subfields = split_subfields(value)
    for type_, content in subfields:
        wanted = _SIZES.get(type_)  # type: ignore[call-overload]
        if wanted is not None and len(content) != wanted:
            raise ProtocolViolation(
                "mesh.metadata.field-length", f"sub-field 0x{type_:02x} has {len(content)} bytes instead of {wanted}"
            )
        found.setdefault(type_, content)
    if SubType.ALGORITHM not in found:
        raise ProtocolViolation("mesh.metadata.algorithm", "there is no Algorithm")
    length = found.get(SubType.LENGTH)
    return Metadata(
        found[SubType.ALGORITHM][0],
        found.get(SubType.IV),
        found.get(SubType.NONCE),
        found.get(SubType.KEY_IDENTIFIER),
        None if length is None else length[0],
        len(subfields),
    )
