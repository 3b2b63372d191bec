"""What a receiver would have said about captured packets: forged, unknown, stale, from the future, replayed.

Steps 7 to 9 of 6.2, 5.4 and 7 of the Event Mesh Protocol, for journals and captures. The rules are those of `gate.py`,
in an order that tells most about an attack: authenticity, then freshness, then replay. There is no policy here: a
packet that nobody signed breaks no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

_NONE, _UNCHECKED = (AUTHENTICITY_CODES[each] for each in (Authenticity.NONE, Authenticity.UNCHECKED))
_VERIFIED = AUTHENTICITY_CODES[Authenticity.VERIFIED]
_FOREVER = 2**62

Verify = Callable[[bytes, bytes], bool]
"""Whether a proof is that of some canonical bytes."""


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
        table = scan.read_packets(packets.data, packets.offset, packets.size, self.settings.limits)
        judged = judge(packets, table, self.trust, self.settings)
        signed_at = table[scan.SIGNED_AT]
        remembered = np.ones(len(packets), np.bool_)
        remembered[list(judged.faults)] = False
        findings = [Finding(row, clause, detail) for row, (clause, detail) in judged.faults.items()]
        # Compared in seconds, as floats: microseconds of a time near 2**62 would be out of range.
        now, window = packets.time_us / 1e6, self.settings.replay_window
        stale = remembered & (signed_at < now - window)
        future = remembered & (signed_at > now + self.settings.clock_skew)
        findings += [Finding(row, STALE, f"{now[row] - signed_at[row]:.0f} s old") for row in _rows(stale)]
        findings += [Finding(row, FUTURE, f"{signed_at[row] - now[row]:.0f} s ahead") for row in _rows(future)]
        remembered &= ~(stale | future)
        latest = np.maximum(packets.time_us, np.where(remembered, signed_at, 0) * 1_000_000)
        name = np.empty((len(packets), 20), np.uint8)
        name[:, :16] = judged.author
        name[:, 16:] = _bytes_at(packets.data, packets.offset + 1, 4)
        return Examined(
            authenticity=judged.authenticity,
            findings=sorted(findings),
            remembered=remembered,
            name=name.view("S20").reshape(-1),
            until_us=latest + round(window * 1e6),
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """What is known about the senders of packets, a row each: `author` stands for NODE ID (or source) and key."""

    authenticity: NDArray[np.uint8]
    faults: dict[int, tuple[str, str]]
    """Clause and detail of those who are not what they say."""
    author: NDArray[np.uint8]


def judge(packets: Packets, table: NDArray[np.int64], trust: TrustStore | None, settings: MeshSettings) -> Judged:
    """Tell who wrote packets: sender by sender for those of the usual shape, the rest one by one.

    `table` is what `scan.read_packets` made of them; it is given the SIGNED_AT of unusual ones.
    """
    count = len(packets)
    found = Judged(np.full(count, _NONE, np.uint8), {}, np.empty((count, 16), np.uint8))
    usual, node = table[scan.PLAIN] == 1, table[scan.NODE]
    signed = usual & ((table[scan.HMAC] >= 0) | (table[scan.SIGNATURE] >= 0))
    named = signed & (table[scan.KEY_ID] >= 0) & (table[scan.PUBLIC] < 0) & (table[scan.SORTED] == 1)
    unsigned = usual & ~signed & (node >= 0)
    if unsigned.any():
        rows = np.flatnonzero(unsigned)
        senders, which = _groups(_bytes_at(packets.data, node[rows], 16))
        found.author[rows] = _digests([(sender, b"") for sender in senders])[which]
    rest = _rows(~(named | unsigned))
    if named.any():
        rest += _judge_named(packets, table, np.flatnonzero(named), trust, found)
    limits = settings.limits
    for row in rest:
        at = int(packets.offset[row])
        packet = frames.decode(packets.data[at : at + int(packets.size[row])].tobytes(), limits)
        table[scan.SIGNED_AT, row] = min(packet.signed_at, _FOREVER)
        verdict, key = _judge_one(packet, trust, settings)
        found.authenticity[row] = AUTHENTICITY_CODES[verdict.authenticity]
        if verdict.clause is not None:
            found.faults[row] = verdict.clause, verdict.detail
        author = packet.get(Type.NODE_ID)
        found.author[row] = _digests([(packets.sources[packets.source[row]] if author is None else author, key)])[0]
    return found


def _judge_named(
    packets: Packets, table: NDArray[np.int64], rows: NDArray[np.int64], trust: TrustStore | None, found: Judged
) -> list[int]:
    """Packets that name their key and stand in canonical order; returns the rows of those that do not hold."""
    data = packets.data
    blocks = np.concatenate(
        (_bytes_at(data, table[scan.NODE, rows], 16), _bytes_at(data, table[scan.KEY_ID, rows], 4)), axis=1
    )
    senders, which = _groups(blocks)
    names = [(sender[:16], sender[16:]) for sender in senders]
    if trust is None:
        found.authenticity[rows] = _UNCHECKED
        found.author[rows] = _digests(names)[which]
        return []
    keys = [trust.key(*name) for name in names]
    by_hmac = [_hmac(key) for key in keys]
    by_signature = [_signature(key) for key in keys]
    publics = [(name[0], (key and key.ed25519_public) or b"") for name, key in zip(names, keys, strict=True)]
    signature = table[scan.SIGNATURE, rows]
    found.author[rows] = np.where((signature >= 0)[:, None], _digests(publics)[which], _digests(names)[which])
    raw = data.tobytes()
    failed: list[int] = []
    for row, sender, at, tag, sign, end in zip(
        rows.tolist(),
        which.tolist(),
        packets.offset[rows].tolist(),
        table[scan.HMAC, rows].tolist(),
        signature.tolist(),
        table[scan.COVERED, rows].tolist(),
        strict=True,
    ):
        covered = raw[at:end]
        if (tag >= 0 and not by_hmac[sender](raw[tag : tag + 32], covered)) or (
            sign >= 0 and not by_signature[sender](raw[sign : sign + 64], covered)
        ):
            failed.append(row)
    found.authenticity[rows] = _VERIFIED
    return failed


def _hmac(key: TrustedKey | None) -> Verify:
    return _never if key is None or key.hmac_secret is None else crypto.hmac_key(key.hmac_secret).verify


def _signature(key: TrustedKey | None) -> Verify:
    if key is None or key.ed25519_public is None:
        return _never
    return partial(crypto.verify_signature, key.ed25519_public)


def _never(proof: bytes, covered: bytes) -> bool:
    return False


def _judge_one(packet: Packet, trust: TrustStore | None, settings: MeshSettings) -> tuple[Verdict, bytes]:
    """Judge any packet by the reference decoder; returns also the key that authenticated it, or empty."""
    if trust is None:
        if packet.get(Type.HMAC) is None and packet.get(Type.SIGNATURE) is None:
            return Verdict(Authenticity.NONE), b""
        return Verdict(Authenticity.UNCHECKED), packet.get(Type.PUBLIC_KEY) or packet.get(Type.AUTH_KEY_ID) or b""
    proof = security.find_keys(packet, trust)
    verdict = security.verify(packet, proof)
    if verdict.clause is None and packet.encrypted:
        try:
            forged = open_packet(packet, trust.encryption_keys, settings.max_plain).forged
        except ProtocolViolation as violation:
            return Verdict(verdict.authenticity, violation.clause, violation.detail), proof.key_id
        if forged:
            verdict = Verdict(Authenticity.FAILED, DECRYPTION, "the key is known and the tag is wrong")
    return verdict, proof.key_id


def _rows(mask: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def _bytes_at(data: NDArray[np.uint8], place: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """So many bytes from each place, a row each."""
    found: NDArray[np.uint8] = data[place[:, None] + np.arange(size)]
    return found


def _groups(blocks: NDArray[np.uint8]) -> tuple[list[bytes], NDArray[np.int64]]:
    """The different rows, and which of them each row is."""
    if (blocks == blocks[0]).all():
        return [blocks[0].tobytes()], np.zeros(len(blocks), np.int64)
    size = blocks.shape[1]
    different, which = np.unique(np.ascontiguousarray(blocks).view(f"S{size}").reshape(-1), return_inverse=True)
    raw = different.tobytes()
    return [raw[at : at + size] for at in range(0, len(raw), size)], which


def _digests(authors: Sequence[tuple[bytes | str, bytes]]) -> NDArray[np.uint8]:
    """16 bytes for each author: a NODE ID, or else an address, and a key."""
    found = []
    for who, key in authors:
        sort, name = (b"source", who.encode()) if isinstance(who, str) else (b"node", who)
        found.append(blake2b(name + key, digest_size=16, person=sort).digest())
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, 16)
