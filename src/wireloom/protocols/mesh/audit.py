"""What a receiver would have said about captured packets: forged, unknown, stale, from the future, replayed.

Steps 7 to 9 of 6.2, 5.4 and 7 of the Event Mesh Protocol, for journals and captures. The rules are those of `gate.py`,
in an order that tells most about an attack: authenticity, then freshness, then replay. There is no policy here: a
packet that nobody signed breaks no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Authenticity, ProtocolViolation
from wireloom.protocols.audit import AUTHENTICITY_CODES, Auditor, Examined, Finding, Packets
from wireloom.protocols.mesh import crypto, frames, scan, security
from wireloom.protocols.mesh.encryption import DECRYPTION, open_packet
from wireloom.protocols.mesh.frames import Packet, Type
from wireloom.protocols.mesh.gate import FUTURE, REPLAY, STALE
from wireloom.protocols.mesh.security import Verdict
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore

_NONE, _UNCHECKED = Verdict(Authenticity.NONE), Verdict(Authenticity.UNCHECKED)
_VERIFIED = Verdict(Authenticity.VERIFIED)
_FOREVER = 2**62

Judged = tuple[Verdict, bytes | None, bytes]
"""What is known about a packet's sender, its NODE ID, and the key that authenticated it (empty for none)."""


class MeshAuditor(Auditor):
    """Examines mesh packets; without a trust store signed ones are `unchecked`.

    >>> from wireloom.protocols.mesh import MESH
    >>> packet = np.frombuffer(bytes.fromhex("010000002a0003000000006553f10000050103612f62"), np.uint8)
    >>> twice = Packets(
    ...     np.tile(packet, 2), np.array([0, 22]), np.array([22, 22]),
    ...     np.array([1_700_000_001_000_000, 1_700_000_002_000_000]), np.zeros(2, np.int32), ["192.0.2.1:5041"],
    ... )
    >>> auditor = MESH.columns().auditor(MESH.settings())
    >>> auditor.examine(twice).findings
    [Finding(row=1, rule='mesh.replay', detail='it was seen before')]
    """

    severities: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            security.FORGED: "critical",
            security.KEY_MISMATCH: "critical",
            DECRYPTION: "critical",
            REPLAY: "warning",
            security.UNKNOWN_KEY: "warning",
            STALE: "warning",
            FUTURE: "warning",
        }
    )
    replay_rule: ClassVar[str] = REPLAY

    def __init__(self, settings: MeshSettings, state: bytes = b"", trust: TrustStore | None = None) -> None:
        super().__init__(state)
        self.settings = settings
        self.trust = settings.trust_store() if trust is None and settings.trust else trust

    def look(self, packets: Packets) -> Examined:
        """Authenticity and freshness of each packet."""
        data, offset = packets.data, packets.offset
        table = scan.read_packets(data, offset, packets.size, self.settings.limits)
        signed_at = table[:, scan.SIGNED_AT]
        usual = table[:, scan.PLAIN] == 1
        judged = dict(
            zip(
                _rows(usual),
                judge(data, offset[usual], packets.size[usual], table[usual], self.trust, self.settings),
                strict=True,
            )
        )
        for row in _rows(~usual):
            at, end = int(offset[row]), int(offset[row] + packets.size[row])
            packet = frames.decode(data[at:end].tobytes(), self.settings.limits)
            signed_at[row] = min(packet.signed_at, _FOREVER)
            judged[row] = _judge_one(packet, self.trust, self.settings)
        verdicts = [judged[row] for row in range(len(packets))]
        findings = [
            Finding(row, verdict.clause, verdict.detail)
            for row, (verdict, _, _) in enumerate(verdicts)
            if verdict.clause is not None
        ]
        remembered = np.ones(len(packets), np.bool_)
        remembered[[finding.row for finding in findings]] = False
        # Compared in seconds, as floats: microseconds of a time near 2**62 would be out of range.
        now, window = packets.time_us / 1e6, self.settings.replay_window
        stale = remembered & (signed_at < now - window)
        future = remembered & (signed_at > now + self.settings.clock_skew)
        findings += [Finding(row, STALE, f"{now[row] - signed_at[row]:.0f} s old") for row in _rows(stale)]
        findings += [Finding(row, FUTURE, f"{signed_at[row] - now[row]:.0f} s ahead") for row in _rows(future)]
        remembered &= ~(stale | future)
        latest = np.where(remembered, np.maximum(packets.time_us, np.where(remembered, signed_at, 0) * 1_000_000), 0)
        return Examined(
            authenticity=np.array([AUTHENTICITY_CODES[verdict.authenticity] for verdict, _, _ in verdicts], np.uint8),
            findings=sorted(findings),
            remembered=remembered,
            name=_names(packets, verdicts),
            until_us=latest + round(window * 1e6),
        )


def _rows(mask: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def _names(packets: Packets, judged: list[Judged]) -> NDArray[np.bytes_]:
    """What a packet is remembered by: its author (NODE ID, or else its source), the key, the Message ID."""
    authors: dict[tuple[bytes | str, bytes], bytes] = {}
    sources, digests = packets.sources, []
    for source, (_, node_id, key) in zip(packets.source.tolist(), judged, strict=True):
        author = (sources[source] if node_id is None else node_id, key)
        if author not in authors:
            sort, who = (b"source", author[0].encode()) if isinstance(author[0], str) else (b"node", author[0])
            authors[author] = blake2b(who + key, digest_size=16, person=sort).digest()
        digests.append(authors[author])
    names = np.empty((len(judged), 20), np.uint8)
    names[:, :16] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
    names[:, 16:] = packets.data[packets.offset[:, None] + np.arange(1, 5)]
    return names.view("S20").reshape(-1)


def judge(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    table: NDArray[np.int64],
    trust: TrustStore | None,
    settings: MeshSettings,
) -> list[Judged]:
    """What a trust store says about packets of the usual shape, in order; most of them straight from the buffer.

    `table` is what `scan.read_packets` made of them.
    """
    found: list[Judged] = []
    raw = data.tobytes()
    keys: dict[bytes, TrustedKey | None] = {}
    names = (scan.SORTED, scan.NODE, scan.KEY_ID, scan.PUBLIC, scan.HMAC, scan.SIGNATURE, scan.COVERED)
    columns = [table[:, name].tolist() for name in names]
    for at, length, ordered, node, key_id, public, tag, signature, covered in zip(
        offset.tolist(), size.tolist(), *columns, strict=True
    ):
        if tag < 0 and signature < 0:
            found.append((_NONE, raw[node : node + 16] if node >= 0 else None, b""))
            continue
        if trust is None:
            named = raw[public : public + 32] if public >= 0 else raw[key_id : key_id + 4] if key_id >= 0 else b""
            found.append((_UNCHECKED, raw[node : node + 16], named))
            continue
        if ordered and key_id >= 0 and public < 0:
            node_id, named = raw[node : node + 16], raw[key_id : key_id + 4]
            name = node_id + named
            if name not in keys:
                keys[name] = trust.key(node_id, named)
            key = keys[name]
            if key is not None and _holds(key, raw, tag, signature, raw[at:covered]):
                found.append((_VERIFIED, node_id, named if signature < 0 else key.ed25519_public or b""))
                continue
        found.append(_judge_one(frames.decode(raw[at : at + length], settings.limits), trust, settings))
    return found


def _holds(key: TrustedKey, raw: bytes, tag: int, signature: int, covered: bytes) -> bool:
    """Whether HMAC and Signature, as far as they are there, are those of this key."""
    if tag >= 0 and (
        key.hmac_secret is None or not crypto.hmac_key(key.hmac_secret).verify(raw[tag : tag + 32], covered)
    ):
        return False
    return signature < 0 or (
        key.ed25519_public is not None
        and crypto.verify_signature(key.ed25519_public, raw[signature : signature + 64], covered)
    )


def _judge_one(packet: Packet, trust: TrustStore | None, settings: MeshSettings) -> Judged:
    """Any packet, by the readable code."""
    node_id = packet.get(Type.NODE_ID)
    if trust is None:
        unsigned = packet.get(Type.HMAC) is None and packet.get(Type.SIGNATURE) is None
        named = packet.get(Type.PUBLIC_KEY) or packet.get(Type.AUTH_KEY_ID) or b""
        return (_NONE, node_id, b"") if unsigned else (_UNCHECKED, node_id, named)
    proof = security.find_keys(packet, trust)
    verdict = security.verify(packet, proof)
    if verdict.clause is None and packet.encrypted:
        try:
            forged = open_packet(packet, trust.encryption_keys, settings.max_plain).forged
        except ProtocolViolation as violation:
            return Verdict(verdict.authenticity, violation.clause, violation.detail), node_id, proof.key_id
        if forged:
            verdict = Verdict(Authenticity.FAILED, DECRYPTION, "the key is known and the tag is wrong")
    return verdict, node_id, proof.key_id
