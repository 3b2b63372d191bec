"""What a receiver checks once a packet is parsed: authenticity, freshness, replay, and what the policy asks for.

Implements steps 7 to 9 of 6.2, 5.4 and 7 of the Event Mesh Protocol. One gate serves everything that arrives at one
node or listener, because a replay may come from any source. Cheap checks come first. A forger cannot use up Message
IDs, because they are remembered only after authentication. Nor can it cause more signature checks than the budget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from wireloom.model import Authenticity, ProtocolViolation
from wireloom.protocols.mesh import crypto, security
from wireloom.protocols.mesh.budget import Budget
from wireloom.protocols.mesh.encryption import DECRYPTION, Opened, open_packet
from wireloom.protocols.mesh.frames import Packet, Type
from wireloom.protocols.mesh.key_files import Watched, load_trust_file
from wireloom.protocols.mesh.replay import ReplayCache, Seen
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore

STALE, FUTURE, REPLAY = "mesh.stale", "mesh.future", "mesh.replay"
UNKNOWN_PAST = "mesh.unknown-past"
VERIFICATIONS, OWN = "mesh.limit.verifications", "mesh.own"
UNSIGNED, UNTRUSTED, ANONYMOUS = "mesh.policy.unsigned", "mesh.policy.untrusted", "mesh.policy.anonymous"

GATE_CLAUSES = {
    STALE: "Messages older than the replay window are rejected (5.4)",
    FUTURE: "Messages outside the clock skew allowance are rejected (5.4)",
    REPLAY: "Reuse of a Message ID within the window is treated as replay and rejected (5.4)",
    UNKNOWN_PAST: "After a start, packets from before it are refused until the journal says which were seen (decision)",
    VERIFICATIONS: "No more signatures a second are verified for one source than `verifications` (limit)",
    OWN: "A packet of our own that came back is not taken again (decision)",
    UNSIGNED: "Policy `signed` and `trusted` accept packets with HMAC or Signature only (decision)",
    UNTRUSTED: "Policy `trusted` accepts packets that the trust store verifies only (decision)",
    ANONYMOUS: "Packets without NODE ID are admitted by policy `any` only (decision)",
}

LEARNED = 4096


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted packet, decrypted and decompressed where possible, and what is known about its sender."""

    packet: Packet
    opened: Opened
    authenticity: Authenticity


Shape = tuple[int, int, int, int, int, int, int, int]
"""A packet of the usual shape: where it begins; where NODE ID, Auth Key ID, HMAC and Signature are (-1 for none); its
Message ID and time; and where its canonical bytes end."""


def _replay(message_id: int) -> ProtocolViolation:
    return ProtocolViolation(REPLAY, f"message {message_id:08x} was seen before")


class Gate:
    """Everything that is remembered about packets received."""

    def __init__(self, settings: MeshSettings, trust: TrustStore | None = None, own: bytes | None = None) -> None:
        self.settings = settings
        self.policy = settings.policy
        caps = settings.replay_window, settings.replay_cap, settings.replay_cap_per_node
        self.replay = ReplayCache(*caps)
        """Packets whose sender is trusted."""
        self.strangers = ReplayCache(*caps)
        """All other packets: a flood of them cannot evict entries of trusted senders."""
        self.budget = Budget(settings.verifications)
        self.own: set[bytes | str] = set() if own is None else {own}
        """Our NODE IDs: several if several listeners belong to one hub."""
        self._file = load_trust_file(settings.trust) if trust is None and settings.trust else None
        self._trust = TrustStore() if trust is None else trust
        self._learned: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._learned_keys = TrustStore()

    @property
    def trust(self) -> TrustStore:
        """The trust store, reloaded from its file if there is one."""
        return self._trust if self._file is None else self._file.value

    @trust.setter
    def trust(self, store: TrustStore) -> None:
        self._trust, self._file = store, None

    @property
    def trust_file(self) -> Watched[TrustStore] | None:
        """The trust file, where the store comes from one."""
        return self._file

    def refresh(self, now: float) -> None:
        """Check whether the trust file has changed."""
        if self._file is not None:
            self._file.refresh(now)

    def check(self, packet: Packet, source: str, now: float) -> Accepted:
        """Accept a packet, or raise ProtocolViolation with the reason. `now` is seconds since 1970."""
        proof = self._before_verifying(packet, source, now)
        verdict = security.verify(packet, proof)
        if verdict.clause is not None:
            raise ProtocolViolation(verdict.clause, verdict.detail)
        opened = open_packet(packet, self.trust.encryption_keys, self.settings.max_plain)
        if opened.forged:
            raise ProtocolViolation(DECRYPTION, "the key is known and the tag is wrong")
        node_id = packet.get(Type.NODE_ID)
        name = (source if node_id is None else node_id, proof.key_id, packet.message_id)
        if not self._memory(proof).add(name, packet.signed_at, now):
            raise _replay(packet.message_id)
        if verdict.authenticity is not Authenticity.NONE:
            self.budget.welcome(source, now)
            if verdict.authenticity is Authenticity.SELF_SIGNED:
                self._learn(packet)
        return Accepted(packet, opened, verdict.authenticity)

    def _memory(self, proof: security.Proof) -> ReplayCache:
        """Where packets with such a proof are remembered."""
        return self.replay if proof.trusted else self.strangers

    def recall(self, packet: Packet, source: str, arrived: float) -> None:
        """Remember a packet that was accepted before a restart."""
        proof = security.find_keys(packet, self.trust, self._learned_keys)
        node_id = packet.get(Type.NODE_ID)
        name = (source if node_id is None else node_id, proof.key_id, packet.message_id)
        self._memory(proof).add(name, packet.signed_at, arrived)

    def check_usual(
        self, data: bytes, shapes: Iterable[Shape], source: str, now: float
    ) -> list[Authenticity | ProtocolViolation | None]:
        """Fast path of `check`, for packets that are plain and fresh, and unsigned or signed with a key they only name.

        Returns for each: what is known about its sender, why it is refused, or None if it needs `check`.
        """
        self.refresh(now)
        self.replay.expire(now)
        self.strangers.expire(now)
        any_goes, add, none = self.policy is Require.ANY, self.replay.add_number, (None, None, 0)
        window, this_second = self.replay.window, int(now)
        soon = now + window
        senders: dict[bytes | str, tuple[crypto.HmacKey | None, Seen | None, int]] = {}
        """By NODE ID and Auth Key ID as they stand in the packet: the key, and where its packets are remembered."""
        found: list[Authenticity | ProtocolViolation | None] = []
        verified, unsigned = Authenticity.VERIFIED, Authenticity.NONE
        outcome: Authenticity | ProtocolViolation | None
        for start, node, key_id, tag, signature, message_id, signed_at, covered in shapes:
            outcome = None
            until = soon if signed_at <= this_second else signed_at + window
            if signature >= 0:
                outcome = self._check_signed(
                    data[node : node + 16],
                    data[key_id : key_id + 4],
                    message_id,
                    until,
                    data[tag : tag + 32] if tag >= 0 else None,
                    data[signature : signature + 64],
                    data[start:covered],
                    source,
                    now,
                )
            elif tag >= 0:
                name = (
                    data[node : node + 22]
                    if key_id == node + 18
                    else data[node : node + 18] + data[key_id : key_id + 4]
                )
                if name not in senders:
                    senders[name] = self._sender(name[:16], name[18:])
                key, seen, offset = senders[name]
                if key is not None and seen is not None:
                    if not key.verify(data[tag : tag + 32], data[start:covered]):
                        outcome = ProtocolViolation(security.FORGED, "the HMAC is wrong")
                    elif add(seen, offset + message_id, until, now):
                        outcome = verified
                    else:
                        outcome = _replay(message_id)
            elif any_goes:
                author = data[node : node + 16] if node >= 0 else source
                if author not in senders:
                    own = author in self.own
                    senders[author] = none if own else (None, (known := self.strangers.node(author)), known.offset(b""))
                _, seen, offset = senders[author]
                if seen is not None:
                    is_new = self.strangers.add_number(seen, offset + message_id, until, now)
                    outcome = unsigned if is_new else _replay(message_id)
            found.append(outcome)
        return found

    def check_alike(
        self, data: bytes, sender: bytes, places: Iterable[tuple[int, int, int]], ids: list[int], now: float
    ) -> bool:
        """Whether packets like those of `check_usual`, all with an HMAC of one sender and none dated ahead, all pass.

        `sender` is NODE ID and Auth Key ID, `places` are where each packet begins, its HMAC is, and its canonical bytes
        end. If one does not pass, none is remembered, and `check_usual` is to say which.
        """
        self.refresh(now)
        self.replay.expire(now)
        key, seen, offset = self._sender(sender[:16], sender[16:])
        if key is None or seen is None:
            return False
        verify = key.verify
        for start, tag, covered in places:
            if not verify(data[tag : tag + 32], data[start:covered]):
                return False
        return self.replay.add_all(seen, [offset + number for number in ids], now + self.replay.window, now)

    def _sender(self, node_id: bytes, key_id: bytes) -> tuple[crypto.HmacKey | None, Seen | None, int]:
        """The HMAC key of a node, and where its packets are remembered; None for senders that need `check`."""
        key = self.trust.hmac_keys.get(node_id + key_id)
        if key is None or node_id in self.own:
            return None, None, 0
        seen = self.replay.node(node_id)
        return key, seen, seen.offset(key_id)

    def _check_signed(
        self,
        node_id: bytes,
        key_id: bytes,
        message_id: int,
        until: float,
        tag: bytes | None,
        signature: bytes,
        covered: bytes,
        source: str,
        now: float,
    ) -> Authenticity | ProtocolViolation | None:
        key = None if node_id in self.own else self.trust.key(node_id, key_id)
        if key is None or key.ed25519_public is None or (tag is not None and key.hmac_secret is None):
            return None
        name = (node_id, key.ed25519_public, message_id)
        if self.replay.seen(name, now):
            return _replay(message_id)
        if not self.budget.take(source, now):
            return ProtocolViolation(VERIFICATIONS, f"more than {self.budget.rate:g} signatures a second")
        if tag is not None and not crypto.hmac_key(key.hmac_secret or b"").verify(tag, covered):
            return ProtocolViolation(security.FORGED, "the HMAC is wrong")
        if not crypto.verify_signature(key.ed25519_public, signature, covered):
            return ProtocolViolation(security.FORGED, "the Signature is wrong")
        seen = self.replay.node(node_id)
        self.replay.add_number(seen, seen.offset(key.ed25519_public) + message_id, until, now)
        self.budget.welcome(source, now)
        return Authenticity.VERIFIED

    def look(self, packet: Packet, source: str, now: float) -> None:
        """Raise ProtocolViolation as `check` would, but remember nothing: the packet will be checked again."""
        verdict = security.verify(packet, self._before_verifying(packet, source, now))
        if verdict.clause is not None:
            raise ProtocolViolation(verdict.clause, verdict.detail)
        if verdict.authenticity is not Authenticity.NONE:
            self.budget.welcome(source, now)

    def _before_verifying(self, packet: Packet, source: str, now: float) -> security.Proof:
        """Do all checks that are cheaper than a signature; returns the keys for that."""
        node_id = packet.get(Type.NODE_ID)
        if node_id is None:
            if self.policy is not Require.ANY:
                raise ProtocolViolation(ANONYMOUS, f"no NODE ID, and the policy is {self.policy}")
        elif node_id in self.own:
            raise ProtocolViolation(OWN, "our own packet came back")
        self.check_time(packet.signed_at, now)
        self.refresh(now)
        proof = security.find_keys(packet, self.trust, self._learned_keys)
        if proof.clause is not None:
            raise ProtocolViolation(proof.clause, proof.detail)
        if proof is security.UNSIGNED:
            if self.policy is not Require.ANY:
                raise ProtocolViolation(UNSIGNED, f"neither HMAC nor Signature, and the policy is {self.policy}")
        elif not proof.trusted and self.policy is Require.TRUSTED:
            raise ProtocolViolation(UNTRUSTED, "the key is the packet's own, and the policy is trusted")
        if proof.public is not None and node_id is not None:
            # Copies by other paths are common in a mesh: detect them before the costly verification.
            if self._memory(proof).seen((node_id, proof.key_id, packet.message_id), now):
                raise _replay(packet.message_id)
            if not self.budget.take(source, now):
                raise ProtocolViolation(VERIFICATIONS, f"more than {self.budget.rate:g} signatures a second")
        return proof

    def fresh(self, now: float) -> tuple[float, float]:
        """The oldest and the newest time that a packet may be of: [now - window, now + skew]."""
        return max(now - self.settings.replay_window, self.replay.since + 1), now + self.settings.clock_skew

    def check_time(self, signed_at: int, now: float) -> None:
        """Refuse packets that are stale or from the future."""
        oldest, newest = self.fresh(now)
        if signed_at <= self.replay.since:
            raise ProtocolViolation(UNKNOWN_PAST, f"{now - signed_at:.0f} s old, and the journal is not read yet")
        if signed_at < oldest:
            raise ProtocolViolation(STALE, f"{now - signed_at:.0f} s old")
        if signed_at > newest:
            raise ProtocolViolation(FUTURE, f"{signed_at - now:.0f} s ahead")

    def _learn(self, packet: Packet) -> None:
        """Keep a key that a packet contained, for later packets that only name it. The first key stays."""
        node_id, key_id, public = (
            packet.get(Type.NODE_ID),
            packet.get(Type.AUTH_KEY_ID),
            packet.get(Type.PUBLIC_KEY),
        )
        if node_id is None or key_id is None or public is None or (node_id, key_id) in self._learned:
            return
        self._learned[node_id, key_id] = None
        self._learned_keys.add(TrustedKey(node_id, key_id, ed25519_public=public))
        if len(self._learned) > LEARNED:
            gone, _ = self._learned.popitem(last=False)
            self._learned_keys.remove(*gone)
