"""Canonical bytes, HMAC, Ed25519 and the trust store; every value computed a second time by other means."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, UNSIGNED, WITH_HMAC, WITH_SIGNATURE, packets
from wireloom.model import Authenticity, ConfigError
from wireloom.protocols.mesh import crypto, frames
from wireloom.protocols.mesh.canonical import canonical_packet, canonical_payload
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.identity import Identity, load_identity, parse_identity
from wireloom.protocols.mesh.security import check, sign_packet
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore, load_trust, parse_trust

EVENT = Packet(0xA1B2C3D4, EventType.EVENT, 1_700_000_000, (Field(Type.STRING, b"a/b"), Field(Type.JSON, b'{"c":1}')))


def independent_canonical(data: bytes) -> bytes:
    """Header and sorted fields, written a second time without looking at the first."""
    header, rest = data[:17], data[17:]
    fields: list[tuple[int, int, bytes]] = []
    while rest:
        fields.append((rest[0], len(fields), rest[2 : 2 + rest[1]]))
        rest = rest[2 + rest[1] :]
    kept = []
    for type_, _, value in sorted(field for field in fields if field[0] not in (0x10, 0x12)):
        if type_ == 0x11:
            inner, subs = value, []
            while inner:
                subs.append((inner[0], len(subs), inner[2 : 2 + inner[1]]))
                inner = inner[2 + inner[1] :]
            value = b"".join(bytes([t, len(v)]) + v for t, _, v in sorted(subs))
        kept.append(bytes([type_, len(value)]) + value)
    return header + b"".join(kept)


# Canonicalisation


@given(packets())
def test_canonical_bytes_are_the_header_and_the_fields_by_type_without_hmac_and_signature(packet: Packet) -> None:
    if len(frames.encode_fields(packet.fields)) <= 531:
        assert canonical_packet(packet) == independent_canonical(frames.encode(packet))


def test_fields_of_one_type_keep_their_order() -> None:
    fields = [Field(4, b"2"), Field(1, b"b"), Field(4, b"1"), Field(1, b"a")]
    assert canonical_payload(fields).hex() == "010162010161040132040131"


def test_sub_fields_of_metadata_are_sorted_too() -> None:
    value = bytes.fromhex("030c" + "00" * 12 + "010101")
    assert canonical_payload([Field(0x11, value)]).hex() == "1111010101030c" + "00" * 12


def test_unknown_fields_take_their_place_in_the_order() -> None:
    assert canonical_payload([Field(0x20, b"u"), Field(0x14, b"n"), Field(0x06, b"s")])[::3] == bytes((6, 0x14, 0x20))


# Signing


def test_hmac_is_sha256_over_the_canonical_bytes() -> None:
    data = frames.encode(sign_packet(EVENT, WITH_HMAC))
    tag = frames.decode(data).get(Type.HMAC)
    assert tag == hmac.new(b"t" * 32, independent_canonical(data), hashlib.sha256).digest()


def test_signature_is_ed25519_over_the_same_bytes() -> None:
    data = frames.encode(sign_packet(EVENT, BOTH, with_public_key=True))
    packet = frames.decode(data)
    public = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    public.verify(packet.get(Type.SIGNATURE) or b"", independent_canonical(data))
    assert packet.get(Type.PUBLIC_KEY) == public.public_bytes_raw()
    assert packet.get(Type.HMAC) == hmac.digest(b"s" * 32, independent_canonical(data), "sha256")


def test_security_fields_are_sent_last_in_the_required_order() -> None:
    types = [field.type for field in sign_packet(EVENT, BOTH, with_public_key=True).fields]
    assert types == [0x01, 0x05, 0x14, 0x13, 0x18, 0x10, 0x12]


def test_signing_includes_node_id_and_key_id_and_omits_the_public_key_unless_asked() -> None:
    signed = sign_packet(EVENT, WITH_SIGNATURE)
    assert (signed.get(Type.NODE_ID), signed.get(Type.AUTH_KEY_ID)) == (NODE, b"key3")
    assert signed.get(Type.PUBLIC_KEY) is None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_hmac_is_what_the_standard_library_says(secret: bytes, data: bytes) -> None:
    expected = hmac.digest(secret, data, "sha256")
    for kind in (crypto.HmacKey, crypto.QuickHmacKey):
        key = kind(secret)
        assert key.digest(data) == expected
        assert key.verify(expected, data)
        assert not key.verify(expected[:-1] + bytes((expected[-1] ^ 1,)), data)
        assert not key.verify(b"", data)


def test_hmac_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the package `cryptography`, whose `verify` does so, or by `hmac.compare_digest` where it is not there."""
    key = crypto.hmac_key(b"a secret")
    assert isinstance(key, crypto.QuickHmacKey)
    asked: list[bytes] = []

    class Watched:
        def copy(self) -> Watched:
            return self

        def update(self, data: bytes) -> None:
            pass

        def verify(self, tag: bytes) -> None:
            asked.append(tag)

    quick = crypto.QuickHmacKey(b"a secret")
    monkeypatch.setattr(quick, "_start", Watched())
    assert quick.verify(b"tag", b"data")
    assert asked == [b"tag"]
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watch(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(crypto.hmac, "compare_digest", watch)
    monkeypatch.setattr(crypto, "hmac_key", crypto.HmacKey)
    assert check(sign_packet(EVENT, WITH_HMAC), TRUST).authenticity is Authenticity.VERIFIED
    assert len(compared) == 1


# Verifying


@pytest.mark.parametrize("identity", [WITH_HMAC, WITH_SIGNATURE, BOTH])
@pytest.mark.parametrize("shown", [False, True])
def test_a_signed_packet_is_verified(identity: Identity, shown: bool) -> None:
    packet = frames.decode(frames.encode(sign_packet(EVENT, identity, with_public_key=shown)))
    assert check(packet, TRUST).authenticity is Authenticity.VERIFIED


@pytest.mark.parametrize("identity", [WITH_HMAC, WITH_SIGNATURE, BOTH])
def test_any_changed_bit_is_noticed(identity: Identity) -> None:
    data = frames.encode(sign_packet(EVENT, identity))
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            packet = frames.decode(bytes(changed))
        except frames.ProtocolViolation:
            continue
        assert check(packet, TRUST).authenticity is not Authenticity.VERIFIED, position


def test_the_order_of_fields_on_the_wire_does_not_matter_to_the_proof() -> None:
    signed = sign_packet(EVENT, WITH_HMAC)
    moved = replace(signed, fields=(signed.fields[2], *signed.fields[:2], *signed.fields[3:]))
    assert moved.fields != signed.fields
    assert check(frames.decode(frames.encode(moved)), TRUST).authenticity is Authenticity.VERIFIED


def _with(packet: Packet, type_: int, value: bytes) -> Packet:
    return replace(packet, fields=tuple(Field(f.type, value) if f.type == type_ else f for f in packet.fields))


def test_hmac_is_verified_before_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = sign_packet(EVENT, BOTH)
    verified: list[bytes] = []
    monkeypatch.setattr(crypto, "verify_signature", lambda public, signature, data: bool(verified.append(public)))
    wrong = check(_with(signed, Type.HMAC, bytes(32)), TRUST)
    assert (wrong.clause, wrong.detail, verified) == ("mesh.forged", "the HMAC is wrong", [])
    assert check(signed, TRUST).detail == "the Signature is wrong"
    assert len(verified) == 1


def test_both_proofs_must_hold() -> None:
    signed = sign_packet(EVENT, BOTH)
    for type_, size in ((Type.HMAC, 32), (Type.SIGNATURE, 64)):
        assert check(_with(signed, type_, bytes(size)), TRUST).clause == "mesh.forged"


def test_an_unsigned_packet_has_no_authenticity() -> None:
    assert check(EVENT, TRUST).authenticity is Authenticity.NONE
    assert check(sign_packet(EVENT, UNSIGNED), TRUST).authenticity is Authenticity.NONE


# Which key


STRANGER = Identity(b"s" * 16, b"key9", ed25519_private=b"p" * 32)


def test_a_public_key_in_the_packet_proves_possession_not_identity() -> None:
    verdict = check(sign_packet(EVENT, STRANGER, with_public_key=True), TRUST)
    assert (verdict.authenticity, verdict.clause) == (Authenticity.SELF_SIGNED, None)


def test_a_public_key_that_is_trusted_for_the_node_verifies() -> None:
    trust = TrustStore([replace(STRANGER.trusted_key(), auth_key_id=b"else")])
    assert check(sign_packet(EVENT, STRANGER, with_public_key=True), trust).authenticity is Authenticity.VERIFIED


def test_another_public_key_for_a_trusted_node_is_a_mismatch() -> None:
    impostor = replace(STRANGER, node_id=NODE)
    verdict = check(sign_packet(EVENT, impostor, with_public_key=True), TRUST)
    assert (verdict.authenticity, verdict.clause) == (Authenticity.FAILED, "mesh.key-mismatch")


def test_public_key_takes_precedence_over_key_id() -> None:
    trust = TrustStore([STRANGER.trusted_key(), TrustedKey(STRANGER.node_id, b"keyA", ed25519_public=bytes(32))])
    packet = sign_packet(EVENT, replace(STRANGER, auth_key_id=b"keyA"), with_public_key=True)
    assert check(packet, trust).authenticity is Authenticity.VERIFIED


@pytest.mark.parametrize(
    "identity",
    [
        replace(WITH_HMAC, auth_key_id=b"none"),
        replace(WITH_SIGNATURE, node_id=bytes(16)),
        replace(WITH_HMAC, auth_key_id=b"key3"),
    ],
)
def test_an_unknown_node_or_key_id_is_an_unknown_key(identity: Identity) -> None:
    verdict = check(sign_packet(EVENT, identity), TRUST)
    assert (verdict.authenticity, verdict.clause) == (Authenticity.UNCHECKED, "mesh.unknown-key")


def _without_key_id(identity: Identity) -> Packet:
    bare = replace(EVENT, fields=(*EVENT.fields, Field(Type.NODE_ID, identity.node_id)))
    sized = replace(bare, fields=(*bare.fields, Field(Type.HMAC, bytes(32))))
    tag = hmac.digest(identity.hmac_secret or b"", canonical_packet(sized), "sha256")
    return replace(bare, fields=(*bare.fields, Field(Type.HMAC, tag)))


def test_without_any_name_the_nodes_only_key_of_that_sort_is_used() -> None:
    packet = _without_key_id(WITH_HMAC)
    only = TrustStore([WITH_HMAC.trusted_key(), WITH_SIGNATURE.trusted_key()])
    assert check(packet, only).authenticity is Authenticity.VERIFIED
    assert check(packet, TRUST).clause == "mesh.unknown-key"
    assert check(packet, TrustStore()).clause == "mesh.unknown-key"


def test_bytes_that_are_no_public_key_verify_nothing() -> None:
    assert not crypto.verify_signature(b"\x02" + bytes(31), bytes(64), b"data")
    with pytest.raises(ValueError):
        Ed25519PublicKey.from_public_bytes(b"short")


# Files


def test_a_trust_file_is_read_and_written(tmp_path: Path) -> None:
    store = TrustStore([BOTH.trusted_key(), WITH_HMAC.trusted_key()], {bytes(16): bytes(32)})
    store.save(tmp_path / "trust.json")
    assert (tmp_path / "trust.json").stat().st_mode & 0o777 == 0o600
    again = load_trust(tmp_path / "trust.json")
    assert (list(again), again.encryption_keys) == (list(store), store.encryption_keys)
    written = json.loads((tmp_path / "trust.json").read_text())
    assert written[0].keys() == {"node_id", "auth_key_id", "hmac_secret", "ed25519_public"}
    assert written[2] == {"encryption_keys": {"00" * 16: "00" * 32}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a list"),
        ("[1]", "entry 0 must be an object"),
        ('[{"node": 1}]', "unknown key 'node'"),
        ('[{"node_id": "zz"}]', "'node_id' must be 16 bytes in hex, not 'zz'"),
        ('[{"node_id": "%s", "auth_key_id": "00"}]' % ("00" * 16), "needs 'hmac_secret' or 'ed25519_public'"),
        ('[{"node_id": "%s", "auth_key_id": "00", "hmac_secret": "aa"}]' % ("00" * 16), "'auth_key_id' must be 4"),
        ('[{"encryption_keys": {"00": "00"}}]', "key identifier must be 16 bytes"),
    ],
)
def test_a_wrong_trust_file_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_trust(text)


def test_secrets_are_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trust('[{"node_id": "%s", "auth_key_id": "00000000", "hmac_secret": "topsecret"}]' % ("00" * 16))
    assert "topsecret" not in str(caught.value)
    assert "s" * 32 not in repr(BOTH) and (b"s" * 32).hex() not in repr(BOTH.trusted_key())


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wireloom keys trust"):
        load_trust(tmp_path / "none")
    with pytest.raises(ConfigError, match="wireloom keys new"):
        load_identity(tmp_path / "none")


def test_an_identity_is_read_and_written(tmp_path: Path) -> None:
    for identity in (BOTH, WITH_HMAC, UNSIGNED, Identity.generate(hmac=True)):
        identity.save(tmp_path / "key.json")
        assert load_identity(tmp_path / "key.json") == identity
    with pytest.raises(ConfigError, match="unknown key"):
        parse_identity('{"x": 1}')


def test_rotation_keeps_the_node_and_changes_key_and_key_id() -> None:
    old = Identity.generate(hmac=True)
    new = old.rotate()
    assert new.node_id == old.node_id
    assert {new.auth_key_id, new.hmac_secret, new.ed25519_private}.isdisjoint(
        {old.auth_key_id, old.hmac_secret, old.ed25519_private}
    )
    store = TrustStore([old.trusted_key(), new.trusted_key()])
    for identity in (old, new):
        assert check(sign_packet(EVENT, identity), store).authenticity is Authenticity.VERIFIED
    assert store.remove(old.node_id, old.auth_key_id) == 1
    assert check(sign_packet(EVENT, old), store).clause == "mesh.unknown-key"


def test_the_library_without_cryptography_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    crypto._public.cache_clear()
    crypto.hmac_key.cache_clear()
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"wireloom\[mesh\]"):
        crypto.verify_signature(b"k" * 32, bytes(64), b"")
    assert check(sign_packet(EVENT, WITH_HMAC), TRUST).authenticity is Authenticity.VERIFIED
    assert type(crypto.hmac_key(b"another")) is crypto.HmacKey
    crypto.hmac_key.cache_clear()
