"""The golden vectors: what the reference does with them, and every proof computed a second time without it.

The second half of this module parses packets with `struct` alone and computes HMAC, signature and ciphertext with the
standard library and the bare primitives, so that a mistake in our code cannot hide in vectors made by it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import zlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from tests.protocols.mesh import make_vectors
from wireloom.model import ProtocolViolation
from wireloom.protocols.mesh import MESH, frames
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import parse_trust

ENTRIES: list[dict[str, Any]] = json.loads(make_vectors.PATH.read_text())
KEYS, PACKETS = ENTRIES[0], ENTRIES[1:]
GOOD = [entry for entry in PACKETS if "clause" not in entry]
BAD = [entry for entry in PACKETS if "clause" in entry]
TRUST = parse_trust(json.dumps(KEYS["trust"]))


def test_the_file_is_what_the_generator_makes() -> None:
    """Where a zlib stream is inside, another zlib may write it in another way."""

    def fixed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [entry for entry in entries if "ompressed" not in entry["name"]]

    assert fixed(make_vectors.vectors()) == fixed(ENTRIES)


def test_names_are_unique() -> None:
    assert len({entry["name"] for entry in PACKETS}) == len(PACKETS)


@pytest.mark.parametrize("entry", GOOD, ids=lambda entry: str(entry["name"]))
def test_what_is_accepted_means_what_it_should(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    found = Gate(MeshSettings.parse({"require": entry["require"]}), TRUST).check(frames.decode(data), "x", entry["now"])
    message = to_message(found.packet, None, found.authenticity, opened=found.opened)
    assert frames.encode(found.packet) == data
    assert {
        "kind": message.kind,
        "topic": message.topic,
        "body": message.body.hex(),
        "content_type": message.content_type,
        "authenticity": message.authenticity,
    } == {name: entry[name] for name in ("kind", "topic", "body", "content_type", "authenticity")}


@pytest.mark.parametrize("entry", BAD, ids=lambda entry: str(entry["name"]))
def test_what_is_refused_names_its_clause(entry: dict[str, Any]) -> None:
    assert entry["clause"] in MESH.clauses
    gate = Gate(MeshSettings.parse({"require": entry["require"]}), TRUST)
    for number, earlier in enumerate(entry.get("before", [])):
        gate.check(frames.decode(bytes.fromhex(earlier)), f"source {number}", float(make_vectors.NOW))
    with pytest.raises(ProtocolViolation) as caught:
        gate.check(frames.decode(bytes.fromhex(entry["hex"])), "x", entry["now"])
    assert caught.value.clause == entry["clause"]


def test_every_clause_has_a_vector() -> None:
    """All but what depends on the receiver itself: its own NODE ID, how much it verified, and what it remembers."""
    left = set(MESH.clauses) - {entry["clause"] for entry in BAD}
    assert left == {"mesh.own", "mesh.limit.verifications", "mesh.unknown-past"}


# A second implementation, as small as can be


Field = tuple[int, bytes]


def parse(data: bytes) -> tuple[bytes, list[Field]]:
    header, rest, fields = data[:17], data[17:], []
    assert struct.unpack(">H", header[15:])[0] == len(rest)
    while rest:
        fields.append((rest[0], rest[2 : 2 + rest[1]]))
        rest = rest[2 + rest[1] :]
    return header, fields


def tlv(fields: list[Field]) -> bytes:
    return b"".join(struct.pack("BB", type_, len(value)) + value for type_, value in fields)


def parse_sub(value: bytes) -> list[Field]:
    return parse(struct.pack(">15xH", len(value)) + value)[1]


def canonical(data: bytes) -> bytes:
    header, fields = parse(data)
    kept = [(t, tlv(sorted(parse_sub(v), key=lambda f: f[0])) if t == 0x11 else v) for t, v in fields]
    return header + tlv(sorted((f for f in kept if f[0] not in (0x10, 0x12)), key=lambda f: f[0]))


def node(key_id: bytes, node_id: bytes) -> dict[str, str]:
    return next(n for n in KEYS["nodes"] if n["auth_key_id"] == key_id.hex() and n["node_id"] == node_id.hex())


@pytest.mark.parametrize("entry", GOOD, ids=lambda entry: str(entry["name"]))
def test_canonical_bytes_and_proofs_are_right_by_another_computation(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    covered = canonical(data)
    assert covered.hex() == entry["canonical"]
    fields = dict(parse(data)[1])
    if 0x10 in fields or 0x12 in fields:
        keys = node(fields[0x18], fields[0x14])
        if 0x10 in fields:
            secret = bytes.fromhex(keys["hmac_secret"])
            assert fields[0x10] == hmac.new(secret, covered, hashlib.sha256).digest()
        if 0x12 in fields:
            private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(keys["ed25519_private"]))
            assert fields[0x12] == private.sign(covered)
            if 0x13 in fields:
                Ed25519PublicKey.from_public_bytes(fields[0x13]).verify(fields[0x12], covered)


@pytest.mark.parametrize("entry", [e for e in GOOD if "ncrypted with" in e["name"] or "metadata" in e["name"]],
                         ids=lambda entry: str(entry["name"]))  # fmt: skip
def test_ciphertext_is_right_by_another_computation(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    header, fields = parse(data)
    metadata = dict(parse_sub(dict(fields)[0x11]))
    known = {k: v for part in KEYS["trust"] for k, v in part.get("encryption_keys", {}).items()}
    key = known.get(metadata.get(5, b"").hex())
    if key is None:
        assert entry["kind"] == "other"
        return
    sealed = b"".join(value for type_, value in fields if type_ == 4)
    cipher: Any = AESGCM if metadata[1] == b"\x01" else ChaCha20Poly1305
    starting = metadata[3] if metadata[1] == b"\x01" else metadata[4]
    plain = cipher(bytes.fromhex(key)).decrypt(starting, sealed, header[:15] + b"\0\0")
    assert cipher(bytes.fromhex(key)).encrypt(starting, plain, header[:15] + b"\0\0") == sealed
    if header[5] & 4:
        plain = zlib.decompress(plain)
    inner = parse(struct.pack(">15xH", len(plain)) + plain)[1]
    names = [value for type_, value in [*fields, *inner] if type_ == 1]
    assert (names[0].decode(), entry["kind"]) == (entry["topic"], "event")
    assert entry["body"] in [value.hex() for _, value in inner]
