"""What a receiver checks once a packet is parsed: authenticity, freshness, replay, and what the policy asks for.

Implements steps 7 to 9 of 6.2, 5.4 and 7 of the Event Mesh Protocol. One gate serves everything that arrives at one
node or listener, because a replay may come from anywhere. What is cheap is checked first; a forger can neither burn
Message IDs (they are remembered after authentication) nor make us verify more signatures than the budget allows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from wireloom.model import Authenticity, ProtocolViolation
from wireloom.protocols.mesh import crypto, security
from wireloom.protocols.mesh.budget import Budget
from wireloom.protocols.mesh.encryption import DECRYPTION, Opened, open_packet
from wireloom.protocols.mesh.frames import Packet, Type
from wireloom.protocols.mesh.replay import ReplayCache
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore
from wireloom.protocols.mesh.watched import Watched, load_trust_file

STALE, FUTURE, REPLAY = "mesh.stale", "mesh.future", "mesh.replay"
VERIFICATIONS, OWN = "mesh.limit.verifications", "mesh.own"
UNSIGNED, UNTRUSTED, ANONYMOUS = "mesh.policy.unsigned", "mesh.policy.untrusted", "mesh.policy.anonymous"

GATE_CLAUSES = {
    STALE: "Messages older than the replay window are rejected (5.4)",
    FUTURE: "Messages outside the clock skew allowance are rejected (5.4)",
    REPLAY: "Reuse of a Message ID within the window is treated as replay and rejected (5.4)",
    VERIFICATIONS: "No more signatures a second are verified for one source than `verifications` (limit)",
    OWN: "A packet of our own that came back is not taken again (decision)",
    UNSIGNED: "Policy `signed` and `trusted` accept packets with HMAC or Signature only (decision)",
    UNTRUSTED: "Policy `trusted` accepts packets that the trust store verifies only (decision)",
    ANONYMOUS: "Packets without NODE ID are admitted by policy `any` only (decision)",
}

LEARNED = 4096


@dataclass(frozen=True, slots=True)
class Accepted:
    """A packet that passed, its data fields as plain as they can be had, and what is known about its sender."""

    packet: Packet
    opened: Opened
    authenticity: Authenticity


class Gate:
    """Everything that is remembered about packets received."""

    def __init__(self, settings: MeshSettings, trust: TrustStore | None = None, own: bytes = b"") -> None:
        self.settings = settings
        self.policy = settings.policy
        self.replay = ReplayCache(settings.replay_window, settings.replay_cap, settings.replay_cap_per_node)
        self.budget = Budget(settings.verifications)
        self.own = own
        """Our NODE ID."""
        self._file = load_trust_file(settings.trust) if trust is None and settings.trust else None
        self._trust = TrustStore() if trust is None else trust
        self._learned: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()
        self._learned_keys = TrustStore()

    @property
    def trust(self) -> TrustStore:
        """Whom we trust; as it is in the file now, where there is one."""
        return self._trust if self._file is None else self._file.value

    @trust.setter
    def trust(self, store: TrustStore) -> None:
        self._trust, self._file = store, None

    @property
    def trust_file(self) -> Watched[TrustStore] | None:
        """The trust file, where the store comes from one."""
        return self._file

    def refresh(self, now: float) -> None:
        """Look whether the trust file has changed; `check` does so by itself, `check_usual` does not."""
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
        self._once(name, packet.signed_at, now)
        if verdict.authenticity is not Authenticity.NONE:
            self.budget.welcome(source, now)
            if verdict.authenticity is Authenticity.SELF_SIGNED:
                self._learn(packet)
        return Accepted(packet, opened, verdict.authenticity)

    def check_usual(
        self,
        node_id: bytes | None,
        key_id: bytes | None,
        message_id: int,
        signed_at: int,
        tag: bytes | None,
        signature: bytes | None,
        covered: bytes,
        source: str,
        now: float,
    ) -> Authenticity | None:
        """The same as `check` for a packet that is plain, and either unsigned or names its key and shows none.

        `tag` is the HMAC and `covered` are the canonical bytes. None: this packet needs `check`.
        """
        settings = self.settings
        if node_id == self.own or not now - settings.replay_window <= signed_at <= now + settings.clock_skew:
            return None
        if signature is not None:
            return self._check_signed(node_id, key_id, message_id, signed_at, tag, signature, covered, source, now)
        if tag is not None:
            if node_id is None or key_id is None:
                return None
            key = self.trust.hmac_keys.get(node_id + key_id)
            if key is None:
                return None
            if not key.verify(tag, covered):
                raise ProtocolViolation(security.FORGED, "the HMAC is wrong")
            if not self.replay.add((node_id, key_id, message_id), signed_at, now):
                raise ProtocolViolation(REPLAY, f"message {message_id:08x} was seen before")
            return Authenticity.VERIFIED
        if self.policy is not Require.ANY:
            return None
        self._once((source if node_id is None else node_id, b"", message_id), signed_at, now)
        return Authenticity.NONE

    def _check_signed(
        self,
        node_id: bytes | None,
        key_id: bytes | None,
        message_id: int,
        signed_at: int,
        tag: bytes | None,
        signature: bytes,
        covered: bytes,
        source: str,
        now: float,
    ) -> Authenticity | None:
        key = None if node_id is None or key_id is None else self.trust.key(node_id, key_id)
        if (
            node_id is None
            or key is None
            or key.ed25519_public is None
            or (tag is not None and key.hmac_secret is None)
        ):
            return None
        name = (node_id, key.ed25519_public, message_id)
        if self.replay.seen(name, now):
            raise ProtocolViolation(REPLAY, f"message {message_id:08x} was seen before")
        if not self.budget.take(source, now):
            raise ProtocolViolation(VERIFICATIONS, f"more than {self.budget.rate:g} signatures a second")
        if tag is not None and not crypto.hmac_key(key.hmac_secret or b"").verify(tag, covered):
            raise ProtocolViolation(security.FORGED, "the HMAC is wrong")
        if not crypto.verify_signature(key.ed25519_public, signature, covered):
            raise ProtocolViolation(security.FORGED, "the Signature is wrong")
        self._once(name, signed_at, now)
        self.budget.welcome(source, now)
        return Authenticity.VERIFIED

    def _once(self, name: tuple[bytes | str, bytes, int], signed_at: int, now: float) -> None:
        if not self.replay.add(name, signed_at, now):
            raise ProtocolViolation(REPLAY, f"message {name[2]:08x} was seen before")

    def look(self, packet: Packet, source: str, now: float) -> None:
        """Raise ProtocolViolation as `check` would, but remember nothing: the packet will come again."""
        verdict = security.verify(packet, self._before_verifying(packet, source, now))
        if verdict.clause is not None:
            raise ProtocolViolation(verdict.clause, verdict.detail)
        if verdict.authenticity is not Authenticity.NONE:
            self.budget.welcome(source, now)

    def _before_verifying(self, packet: Packet, source: str, now: float) -> security.Proof:
        """Everything that is cheaper than verifying, and the keys to verify with."""
        node_id = packet.get(Type.NODE_ID)
        if node_id is None:
            if self.policy is not Require.ANY:
                raise ProtocolViolation(ANONYMOUS, f"no NODE ID, and the policy is {self.policy}")
        elif node_id == self.own:
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
            # A copy by another way is the usual case in a mesh: it is recognised before it costs a verification.
            if self.replay.seen((node_id, proof.key_id, packet.message_id), now):
                raise ProtocolViolation(REPLAY, f"message {packet.message_id:08x} was seen before")
            if not self.budget.take(source, now):
                raise ProtocolViolation(VERIFICATIONS, f"more than {self.budget.rate:g} signatures a second")
        return proof

    def check_time(self, signed_at: int, now: float) -> None:
        """Freshness: within [now - window, now + skew]."""
        if signed_at < now - self.settings.replay_window:
            raise ProtocolViolation(STALE, f"{now - signed_at:.0f} s old")
        if signed_at > now + self.settings.clock_skew:
            raise ProtocolViolation(FUTURE, f"{signed_at - now:.0f} s ahead")

    def _learn(self, packet: Packet) -> None:
        """Keep a key that a packet brought itself, for later packets that only name it; the first one stays."""
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
