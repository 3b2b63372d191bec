"""What a receiver checks after parsing: policy, freshness, replay, and how much it lets itself be made to work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, UNSIGNED, WITH_HMAC, WITH_SIGNATURE
from wireloom.model import Authenticity, ProtocolViolation
from wireloom.protocols.mesh import MESH, MeshSettings, crypto
from wireloom.protocols.mesh.budget import Budget
from wireloom.protocols.mesh.encryption import Cipher, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.replay import ReplayCache
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.settings import Require
from wireloom.protocols.mesh.trust import TrustStore

NOW = 1_700_000_000.0
SOURCE = "10.0.0.1:5041"
STRANGER = Identity(b"s" * 16, b"key9", ed25519_private=b"p" * 32)


def event(message_id: int = 7, at: float = NOW, *more: Field) -> Packet:
    return Packet(message_id, EventType.EVENT, int(at), (Field(Type.STRING, b"a/b"), *more))


def gate(require: Require = Require.TRUSTED, **values: object) -> Gate:
    return Gate(MeshSettings.parse({"require": require, **values}), TRUST)


def refused(door: Gate, packet: Packet, now: float = NOW, source: str = SOURCE) -> str:
    with pytest.raises(ProtocolViolation) as caught:
        door.check(packet, source, now)
    assert caught.value.clause in MESH.clauses
    return caught.value.clause


# Policy


@pytest.mark.parametrize("identity", [WITH_HMAC, WITH_SIGNATURE, BOTH])
def test_trusted_packets_pass_every_policy(identity: Identity) -> None:
    for require in Require:
        assert gate(require).check(sign_packet(event(), identity), SOURCE, NOW).authenticity is Authenticity.VERIFIED


def test_self_signed_packets_pass_signed_but_not_trusted() -> None:
    packet = sign_packet(event(), STRANGER, with_public_key=True)
    for require in (Require.ANY, Require.SIGNED):
        assert gate(require).check(packet, SOURCE, NOW).authenticity is Authenticity.SELF_SIGNED
    assert refused(gate(), packet) == "mesh.policy.untrusted"


def test_unsigned_packets_pass_any_alone() -> None:
    packet = sign_packet(event(), UNSIGNED)
    assert gate(Require.ANY).check(packet, SOURCE, NOW).authenticity is Authenticity.NONE
    for require in (Require.SIGNED, Require.TRUSTED):
        assert refused(gate(require), packet) == "mesh.policy.unsigned"


def test_packets_without_node_id_pass_any_alone_and_are_deduplicated_by_source() -> None:
    door = gate(Require.ANY)
    door.check(event(), SOURCE, NOW)
    door.check(event(), "10.0.0.2:5041", NOW)
    assert refused(door, event()) == "mesh.replay"
    for require in (Require.SIGNED, Require.TRUSTED):
        assert refused(gate(require), event()) == "mesh.policy.anonymous"


def test_no_policy_accepts_a_forged_packet_an_unknown_key_or_a_mismatch() -> None:
    signed = sign_packet(event(), WITH_HMAC)
    forged = replace(signed, timestamp=signed.timestamp - 1)
    for require in Require:
        assert refused(gate(require), forged) == "mesh.forged"
        assert refused(gate(require), sign_packet(event(), STRANGER)) == "mesh.unknown-key"
        impostor = sign_packet(event(), replace(STRANGER, node_id=NODE), with_public_key=True)
        assert refused(gate(require), impostor) == "mesh.key-mismatch"


def test_the_default_policy_is_trusted_where_there_is_a_trust_file_and_any_elsewhere() -> None:
    assert MeshSettings().policy is Require.ANY
    assert MeshSettings(trust="file").policy is Require.TRUSTED
    assert MESH.settings({**MESH.hub_settings}).policy is Require.TRUSTED  # type: ignore[attr-defined]


def test_our_own_packet_is_not_taken_again() -> None:
    door = gate()
    door.own = {NODE}
    assert refused(door, sign_packet(event(), WITH_HMAC)) == "mesh.own"


# Freshness


@pytest.mark.parametrize(("age", "clause"), [(301, "mesh.stale"), (-121, "mesh.future")])
def test_packets_outside_the_window_are_refused(age: int, clause: str) -> None:
    assert refused(gate(), sign_packet(event(at=NOW - age), WITH_HMAC)) == clause


@pytest.mark.parametrize("age", [300, -120])
def test_packets_at_the_edge_of_the_window_are_accepted(age: int) -> None:
    gate().check(sign_packet(event(at=NOW - age), WITH_HMAC), SOURCE, NOW)


def test_the_timestamp_field_goes_before_the_headers() -> None:
    late = Field(Type.TIMESTAMP, int(NOW).to_bytes(8))
    gate().check(sign_packet(event(7, NOW - 9999, late), WITH_HMAC), SOURCE, NOW)
    old = Field(Type.TIMESTAMP, (int(NOW) - 301).to_bytes(8))
    assert refused(gate(), sign_packet(event(7, NOW, old), WITH_HMAC)) == "mesh.stale"


# Replay


def test_a_packet_is_accepted_once_from_wherever_it_comes() -> None:
    door = gate()
    packet = sign_packet(event(), WITH_HMAC)
    door.check(packet, SOURCE, NOW)
    assert refused(door, packet) == "mesh.replay"
    assert refused(door, packet, source="10.9.9.9:1") == "mesh.replay"


def test_a_message_id_reused_by_the_same_node_is_a_replay_whatever_it_says() -> None:
    door = gate()
    door.check(sign_packet(event(7), WITH_HMAC), SOURCE, NOW)
    assert refused(door, sign_packet(event(7, NOW, Field(4, b"other")), WITH_HMAC)) == "mesh.replay"


def test_a_forger_cannot_burn_message_ids() -> None:
    door = gate()
    genuine = sign_packet(event(), WITH_HMAC)
    forged = replace(genuine, fields=(Field(1, b"a/x"), *genuine.fields[1:]))
    assert refused(door, forged) == "mesh.forged"
    door.check(genuine, SOURCE, NOW)


def test_an_unsigned_packet_cannot_burn_the_id_of_a_signed_one() -> None:
    door = gate(Require.ANY)
    door.check(sign_packet(event(), UNSIGNED), SOURCE, NOW)
    door.check(sign_packet(event(), WITH_HMAC), SOURCE, NOW)
    door.check(sign_packet(event(), WITH_SIGNATURE), SOURCE, NOW)


def test_a_packet_dated_ahead_cannot_be_replayed_later() -> None:
    door = gate()
    packet = sign_packet(event(at=NOW + 120), WITH_HMAC)
    door.check(packet, SOURCE, NOW)
    for later in (NOW + 299, NOW + 301, NOW + 419):
        assert refused(door, packet, later) == "mesh.replay"
    assert refused(door, packet, NOW + 421) == "mesh.stale"


def test_a_known_copy_costs_no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    door = gate()
    packet = sign_packet(event(), WITH_SIGNATURE)
    door.check(packet, SOURCE, NOW)
    monkeypatch.setattr(crypto, "verify_signature", lambda *_: pytest.fail("verified again"))
    assert refused(door, packet) == "mesh.replay"


def test_what_cannot_be_decrypted_with_the_key_at_hand_is_refused_and_burns_no_id() -> None:
    trust = TrustStore(encryption_keys={b"k" * 16: bytes(32)})
    door = Gate(MeshSettings(require=Require.ANY), trust)
    wrong = encrypt(event(), Cipher(b"x" * 32, b"k" * 16), b"n" * 12)
    right = encrypt(event(), Cipher(bytes(32), b"k" * 16), b"n" * 12)
    assert refused(door, wrong) == "mesh.encryption.failed"
    assert [field.value for field in door.check(right, SOURCE, NOW).opened.data] == [b"a/b"]


# The cache


def key(number: int, node: bytes = NODE) -> tuple[bytes, bytes, int]:
    return (node, b"key1", number)


def test_entries_live_for_the_window_after_arrival_or_the_packets_time() -> None:
    cache = ReplayCache()
    assert cache.add(key(1), 1000, 1000)
    assert not cache.add(key(1), 1000, 1299.9)
    assert cache.add(key(1), 1300, 1300.0)
    assert cache.add(key(2), 1500, 1400)
    assert not cache.add(key(2), 1500, 1799)


def test_the_cap_of_a_node_evicts_its_own_oldest_and_counts() -> None:
    cache = ReplayCache(cap_per_node=3)
    other = b"o" * 16
    cache.add(key(0, other), 0, 0)
    for number in range(5):
        cache.add(key(number), 0, number)
    assert (len(cache), cache.evicted) == (4, 2)
    assert [cache.seen(key(number), 5) for number in range(5)] == [False, False, True, True, True]
    assert cache.seen(key(0, other), 5)


def test_the_cap_in_all_evicts_the_oldest_of_any_node() -> None:
    cache = ReplayCache(cap=3)
    for number in range(4):
        cache.add(key(number, bytes([number]) * 16), 0, number)
    assert (len(cache), cache.evicted) == (3, 1)
    assert not cache.seen(key(0, bytes(16)), 5)


def test_nodes_without_end_take_no_more_memory_than_entries_may() -> None:
    cache = ReplayCache(cap=8000)
    for number in range(5000):
        assert cache.add((number.to_bytes(16), b"", 1), 0, 0)
        assert not cache.add((number.to_bytes(16), b"", 1), 0, 0)
    assert len(cache._nodes) == len(cache) == 1000
    assert cache.evicted == 4000
    assert not cache.seen(((3999).to_bytes(16), b"", 1), 0) and cache.seen(((4000).to_bytes(16), b"", 1), 0)


def test_strangers_push_out_nothing_that_a_trusted_node_said() -> None:
    settings = MeshSettings.parse({"require": "any", "replay_cap": 800})
    gate = Gate(settings, TRUST)
    packet = Packet(1, EventType.EVENT, int(NOW), (Field(Type.STRING, b"a"),))
    known = sign_packet(packet, WITH_HMAC)
    gate.check(known, SOURCE, NOW)
    for number in range(2000):
        gate.check(sign_packet(packet, Identity(number.to_bytes(16))), SOURCE, NOW)
    assert len(gate.strangers) == 100 and len(gate.replay) == 1
    with pytest.raises(ProtocolViolation, match=r"mesh\.replay"):
        gate.check(known, SOURCE, NOW)


def test_an_expired_entry_that_goes_is_not_counted_as_evicted() -> None:
    cache = ReplayCache(cap=2)
    for number in range(4):
        cache.add(key(number), 1000.0 * number, 1000.0 * number)
    assert cache.evicted == 0


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.integers(0, 200)), max_size=80),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_the_caps_hold_whatever_comes(steps: list[tuple[int, int, int]], per_node: int, cap: int) -> None:
    cache, now = ReplayCache(cap=cap, cap_per_node=per_node), 0.0
    for number, node, step in steps:
        now += step
        cache.add(key(number, bytes([node]) * 16), now, now)
        assert len(cache) <= cap
        assert all(len(own.until) <= per_node for own in cache._nodes.values())
        assert all(list(own.until) == list(own.order) for own in cache._nodes.values())
        assert len(cache) == sum(len(own.until) for own in cache._nodes.values())
        assert len(cache._order) == len(cache) + sum(own.gone for own in cache._nodes.values())


def test_what_is_over_is_forgotten_in_time() -> None:
    cache = ReplayCache()
    for number in range(5000):
        cache.add(key(number), 0, 0)
    for number in range(10):
        cache.add(key(10_000 + number), 1000, 1000 + number)
    assert len(cache) == 10


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 100), st.integers(0, 120)), max_size=60))
def test_the_cache_agrees_with_a_plain_dictionary(steps: list[tuple[int, int, int, int]]) -> None:
    cache, model, now = ReplayCache(window=300), dict[tuple[bytes, bytes, int], float](), 0.0
    for number, node, step, ahead in steps:
        now += step
        name = key(number, bytes([node]) * 16)
        fresh = model.get(name, -1.0) <= now
        assert cache.seen(name, now) is not fresh
        assert cache.add(name, now + ahead, now) is fresh
        if fresh:
            model[name] = now + ahead + 300
    assert len(cache) <= len(model)


# How much work an attacker can cause


def count_verifications(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    done: list[bytes] = []
    real = crypto.verify_signature

    def verify(public: bytes, signature: bytes, data: bytes) -> bool:
        done.append(public)
        return real(public, signature, data)

    monkeypatch.setattr(crypto, "verify_signature", verify)
    return done


def forgery(number: int) -> Packet:
    signed = sign_packet(event(number), WITH_SIGNATURE)
    return replace(signed, fields=(*signed.fields[:-1], Field(Type.SIGNATURE, bytes(64))))


def test_signatures_verified_a_second_for_one_source_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    done = count_verifications(monkeypatch)
    door = gate(verifications=10)
    clauses = [refused(door, forgery(number), NOW + number / 100) for number in range(100)]
    assert len(done) == clauses.count("mesh.forged")
    assert 10 <= len(done) <= 20
    assert clauses.count("mesh.limit.verifications") == 100 - len(done)


def test_strangers_together_have_one_budget_and_known_sources_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    door = gate(verifications=5)
    door.check(sign_packet(event(1000), WITH_SIGNATURE), "known", NOW)
    done = count_verifications(monkeypatch)
    for number in range(50):
        refused(door, forgery(number), NOW, f"10.0.0.{number}:1")
    assert len(done) == 4
    door.check(sign_packet(event(1001), WITH_SIGNATURE), "known", NOW)


def test_the_number_of_sources_remembered_is_bounded() -> None:
    budget = Budget(1, sources=2)
    for name in "abc":
        budget.welcome(name, 0)
    assert len(budget._sources) == 2


def test_hmac_is_cheap_and_not_limited() -> None:
    door = gate(verifications=1)
    for number in range(20):
        door.check(sign_packet(event(number), WITH_HMAC), SOURCE, NOW)


# Keys that packets bring, and keys that change


def test_a_key_that_a_packet_brought_is_kept_for_those_that_only_name_it() -> None:
    door = gate(Require.SIGNED)
    assert refused(door, sign_packet(event(1), STRANGER)) == "mesh.unknown-key"
    door.check(sign_packet(event(2), STRANGER, with_public_key=True), SOURCE, NOW)
    assert door.check(sign_packet(event(3), STRANGER), SOURCE, NOW).authenticity is Authenticity.SELF_SIGNED


def test_a_key_for_one_packet_does_not_replace_the_one_that_is_kept() -> None:
    door = gate(Require.SIGNED)
    door.check(sign_packet(event(1), STRANGER, with_public_key=True), SOURCE, NOW)
    thief = replace(STRANGER, ed25519_private=b"q" * 32)
    door.check(sign_packet(event(2), thief, with_public_key=True), SOURCE, NOW)
    assert refused(door, sign_packet(event(3), thief)) == "mesh.forged"
    door.check(sign_packet(event(4), STRANGER), SOURCE, NOW)


def test_a_changed_trust_file_is_in_force_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    old = Identity.generate(hmac=True, signature=False)
    new = old.rotate()
    TrustStore([old.trusted_key()]).save(path)
    door = Gate(MeshSettings(trust=str(path)))
    door.check(sign_packet(event(1), old), SOURCE, NOW)
    assert refused(door, sign_packet(event(2), new)) == "mesh.unknown-key"
    TrustStore([old.trusted_key(), new.trusted_key()]).save(path)
    door.check(sign_packet(event(3, NOW + 2), new), SOURCE, NOW + 2)
    TrustStore([new.trusted_key()]).save(path)
    assert refused(door, sign_packet(event(4, NOW + 4), old), NOW + 4) == "mesh.unknown-key"
    path.write_text("not json")
    os.utime(path, (1, 1))
    door.check(sign_packet(event(5, NOW + 6), new), SOURCE, NOW + 6)
    assert door.trust_file is not None
    assert door.trust_file.failures == 1
