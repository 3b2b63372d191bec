"""What an auditor says about captured packets: as the gate of a receiver would have said it when they came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, WITH_HMAC, WITH_SIGNATURE, packets
from wireloom.model import Authenticity, ProtocolViolation
from wireloom.protocols.audit import AUTHENTICITIES, Examined, Finding, Packets, Window
from wireloom.protocols.columns import SlowColumns
from wireloom.protocols.mesh import MESH, MeshSettings, frames
from wireloom.protocols.mesh.audit import MeshAuditor
from wireloom.protocols.mesh.encryption import Cipher, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.gate import GATE_CLAUSES, Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.security import SECURITY_CLAUSES, sign_packet
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore

NOW = 1_700_000_000
Captured = tuple[bytes, float, str]
"""A packet, when it came, and from where."""


def batch(captured: Sequence[Captured]) -> Packets:
    """Packets one after the other, after some bytes that are none of theirs."""
    sizes = np.array([len(data) for data, _, _ in captured], np.int64)
    sources = sorted({source for _, _, source in captured})
    return Packets(
        np.frombuffer(b"before" + b"".join(data for data, _, _ in captured), np.uint8),
        6 + np.cumsum(sizes) - sizes,
        sizes,
        np.array([round(time * 1e6) for _, time, _ in captured], np.int64),
        np.array([sources.index(source) for _, _, source in captured], np.int32),
        sources,
    )


def event(number: int = 7, at: int = NOW, *fields: Field) -> Packet:
    return Packet(number, EventType.EVENT, at, (Field(Type.STRING, b"a/b"), *fields))


def signed(identity: Identity = WITH_HMAC, number: int = 7, at: int = NOW, *, show: bool = False) -> bytes:
    return frames.encode(sign_packet(event(number, at), identity, with_public_key=show))


def unsigned(node: bytes | None = None, number: int = 7, at: int = NOW) -> bytes:
    return frames.encode(event(number, at, *([Field(Type.NODE_ID, node)] if node else [])))


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def auditor(trust: TrustStore | None = TRUST, state: bytes = b"", **values: float) -> MeshAuditor:
    return MeshAuditor(MeshSettings.parse(values), state, trust)


def rules(examined: Examined) -> list[tuple[int, str]]:
    return [(finding.row, finding.rule) for finding in examined.findings]


def words(examined: Examined) -> list[Authenticity]:
    return [AUTHENTICITIES[code] for code in examined.authenticity.tolist()]


STRANGER = Identity(b"s" * 16, b"key9", ed25519_private=b"p" * 32)
IMPOSTOR = Identity(NODE, b"key3", ed25519_private=b"q" * 32)


@pytest.mark.parametrize(
    ("data", "authenticity", "rule"),
    [
        (unsigned(), "none", None),
        (signed(WITH_HMAC), "verified", None),
        (signed(WITH_SIGNATURE), "verified", None),
        (signed(BOTH), "verified", None),
        (signed(WITH_SIGNATURE, show=True), "verified", None),
        (signed(STRANGER, show=True), "self-signed", None),
        (signed(STRANGER), "unchecked", "mesh.unknown-key"),
        (signed(Identity(NODE, b"none", hmac_secret=b"x")), "unchecked", "mesh.unknown-key"),
        (signed(IMPOSTOR, show=True), "failed", "mesh.key-mismatch"),
        (signed(IMPOSTOR), "failed", "mesh.forged"),
        (broken(signed(WITH_HMAC)), "failed", "mesh.forged"),
        (broken(signed(WITH_SIGNATURE)), "failed", "mesh.forged"),
        (broken(signed(BOTH)), "failed", "mesh.forged"),
        (signed(at=NOW - 300), "verified", None),
        (signed(at=NOW - 301), "verified", "mesh.stale"),
        (signed(at=NOW + 120), "verified", None),
        (signed(at=NOW + 121), "verified", "mesh.future"),
        (signed(at=2**64 - 1), "verified", "mesh.future"),
        (unsigned(at=2**63), "none", "mesh.future"),
        (unsigned(at=0), "none", "mesh.stale"),
        (broken(signed(at=0)), "failed", "mesh.forged"),
        (frames.encode(event(7, 0, Field(Type.TIMESTAMP, NOW.to_bytes(8)))), "none", None),
        (frames.encode(event(7, NOW, Field(Type.TIMESTAMP, bytes(8)))), "none", "mesh.stale"),
    ],
)
def test_each_rule_by_itself(data: bytes, authenticity: str, rule: str | None) -> None:
    found = auditor().examine(batch([(data, NOW, "a:1")]))
    assert words(found) == [authenticity]
    assert [finding.rule for finding in found.findings] == ([rule] if rule else [])
    assert found.remembered.tolist() == [rule is None]


def test_encrypted_packets_whose_tag_is_wrong_are_found_where_the_key_is_known() -> None:
    cipher = Cipher(bytes(32), bytes(16))
    sealed = encrypt(event(7, NOW, Field(Type.BINARY, b"secret")), cipher, bytes(12))
    bad = encrypt(event(8, NOW), Cipher(b"x" * 32, bytes(16)), bytes(12))
    captured = batch([(frames.encode(packet), NOW, "a:1") for packet in (sealed, bad)])
    assert rules(auditor(TrustStore([], {bytes(16): bytes(32)})).look(captured)) == [(1, "mesh.encryption.failed")]
    assert rules(auditor().look(captured)) == []


def test_without_a_trust_store_signed_packets_are_unchecked_and_replays_still_found() -> None:
    data = [signed(WITH_HMAC), broken(signed(WITH_SIGNATURE, show=True)), unsigned(), signed(WITH_HMAC)]
    found = auditor(None).examine(batch([(each, NOW, "a:1") for each in data]))
    assert words(found) == ["unchecked", "unchecked", "none", "unchecked"]
    assert rules(found) == [(3, "mesh.replay")]


def test_replays_are_told_by_node_key_and_message_id() -> None:
    other = Identity(b"o" * 16, b"key2", hmac_secret=b"t" * 32)
    trust = TrustStore([*TRUST, other.trusted_key()])
    data = [
        signed(WITH_HMAC, 1), signed(WITH_HMAC, 2), signed(other, 1), signed(BOTH, 1), signed(WITH_SIGNATURE, 1),
        signed(WITH_SIGNATURE, 1, show=True), unsigned(NODE, 1), unsigned(NODE, 1), signed(WITH_HMAC, 1),
    ]  # fmt: skip
    found = auditor(trust).examine(batch([(each, NOW, f"a:{n}") for n, each in enumerate(data)]))
    assert rules(found) == [(5, "mesh.replay"), (7, "mesh.replay"), (8, "mesh.replay")]


def test_packets_without_node_id_are_told_apart_by_their_source() -> None:
    found = auditor().examine(batch([(unsigned(), NOW, source) for source in ("a:1", "b:1", "a:1")]))
    assert rules(found) == [(2, "mesh.replay")]


def test_a_forger_cannot_burn_message_ids() -> None:
    found = auditor().examine(batch([(broken(signed()), NOW, "a:1"), (signed(), NOW, "a:1")]))
    assert rules(found) == [(0, "mesh.forged")]


def test_packets_are_taken_in_the_order_of_their_times() -> None:
    found = auditor().examine(batch([(signed(), NOW + 2, "a:1"), (signed(), NOW + 1, "b:1")]))
    assert rules(found) == [(0, "mesh.replay")]


def test_a_packet_dated_ahead_is_remembered_from_its_own_time_on() -> None:
    ahead = unsigned(NODE, at=NOW + 100)
    again = frames.encode(event(7, NOW + 300, Field(Type.NODE_ID, NODE)))
    for later, expected in ((NOW + 399, [(1, "mesh.replay")]), (NOW + 400, [])):
        found = auditor().examine(batch([(ahead, NOW, "a:1"), (again, later, "a:1")]))
        assert rules(found) == expected


def test_the_state_is_carried_as_bytes() -> None:
    first = auditor()
    assert rules(first.examine(batch([(signed(), NOW, "a:1"), (signed(number=8), NOW, "a:1")]))) == []
    second = auditor(state=first.state())
    assert rules(second.examine(batch([(signed(), NOW + 299, "b:1"), (signed(number=9), NOW, "b:1")]))) == [
        (0, "mesh.replay")
    ]
    assert len(second.window) == 3
    second.forget((NOW + 300) * 1_000_000)
    assert second.state() == b""
    with pytest.raises(ValueError, match="28 bytes an entry"):
        auditor(state=b"x")


def test_looking_in_parts_and_one_window_find_the_same_as_examining() -> None:
    data = [(signed(number=n % 5), NOW + n / 10, "a:1") for n in range(12)]
    whole = auditor().examine(batch(data))
    window, again = Window(), []
    for part in (data[:7], data[7:]):
        packets_ = batch(part)
        found = auditor().look(packets_)
        assert found.findings == []
        again += window.repeats(found.name, packets_.time_us, found.until_us).tolist()
    assert rules(whole) == [(row, "mesh.replay") for row, repeated in enumerate(again) if repeated]
    assert len(whole.findings) == 7


def test_every_rule_has_a_severity_and_is_a_clause() -> None:
    assert MeshAuditor.severities.keys() <= MESH.clauses.keys()
    named = {"mesh.forged", "mesh.replay", "mesh.stale", "mesh.future", "mesh.unknown-key", "mesh.key-mismatch"}
    assert named <= MeshAuditor.severities.keys()
    assert set(MeshAuditor.severities.values()) <= {"info", "warning", "critical"}


def test_protocols_with_nothing_to_audit_say_so() -> None:
    assert SlowColumns(MESH).auditor(MESH.settings()) is None
    assert isinstance(MESH.columns().auditor(MESH.settings()), MeshAuditor)


def test_an_empty_batch_finds_nothing() -> None:
    found = auditor().examine(batch([]))
    assert (len(found.authenticity), found.findings) == (0, [])


@st.composite
def captures(draw: st.DrawFn) -> list[Captured]:
    """Packets near the edge of every rule, some of them twice, in order of time."""
    found: list[Captured] = []
    for at in sorted(draw(st.lists(st.integers(0, 900), min_size=1, max_size=12))):
        if found and draw(st.booleans()):
            data = draw(st.sampled_from(found))[0]
        else:
            fields = (Field(Type.STRING, b"a"), *draw(st.sampled_from([(), (Field(0x80, b""),)])))
            stamp = NOW + at + draw(st.sampled_from([0, 0, 0, -299, -300, -301, 119, 120, 121]))
            packet = Packet(draw(st.integers(0, 2)), 3, stamp, fields)
            identity = draw(st.sampled_from([None, BOTH, WITH_HMAC, WITH_SIGNATURE, IMPOSTOR, STRANGER]))
            if identity is not None:
                show = identity is STRANGER or draw(st.booleans())
                packet = sign_packet(packet, identity, with_public_key=show)
            data = frames.encode(packet)
            if identity is not None and draw(st.integers(0, 5)) == 0:
                data = broken(data)
        found.append((data, NOW + at, draw(st.sampled_from(["a:1", "b:1"]))))
    return found


@given(captures(), st.integers(0, 12))
@settings(max_examples=300)
def test_the_auditor_says_what_the_gate_says(captured: list[Captured], cut: int) -> None:
    gate = Gate(MeshSettings.parse({"require": "any", "verifications": 1e9}), TRUST)
    expected: list[str | None] = []
    for data, now, source in captured:
        try:
            gate.check(frames.decode(data), source, now)
            expected.append(None)
        except ProtocolViolation as violation:
            expected.append(violation.clause)
    first = auditor()
    found = first.examine(batch(captured[:cut])).findings
    second = auditor(state=first.state())
    found += [Finding(cut + row, *rest) for row, *rest in second.examine(batch(captured[cut:])).findings]
    said = {finding.row: finding.rule for finding in found}
    for row, clause in enumerate(expected):
        # The gate looks at the time, and for the id of a signed packet, before it verifies: that is cheap.
        if clause in ("mesh.stale", "mesh.future", "mesh.replay") and said.get(row) in SECURITY_CLAUSES:
            continue
        assert said.get(row) == clause
    assert GATE_CLAUSES.keys() | SECURITY_CLAUSES.keys() >= set(said.values())


@given(st.lists(packets().filter(lambda p: len(frames.encode_fields(p.fields)) <= 531), max_size=6))
def test_any_packet_that_decodes_can_be_examined(some: list[Packet]) -> None:
    captured = batch([(frames.encode(packet), NOW, "a:1") for packet in some])
    for trust in (None, TRUST, TrustStore([TrustedKey(NODE, b"key1", hmac_secret=b"other")], {bytes(16): bytes(32)})):
        found = auditor(trust).examine(captured)
        assert len(found.authenticity) == len(some)
