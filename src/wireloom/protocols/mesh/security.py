"""Signing packets, and telling whether a signed packet is what it says.

Implements the security fields of 4.2, steps 7 and 8 of 6.2, and 5.1 and 5.3 of the Event Mesh Protocol. HMAC is
verified first, then the Signature, both over the same canonical bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wireloom.model import Authenticity
from wireloom.protocols.mesh import crypto
from wireloom.protocols.mesh.canonical import canonical_packet
from wireloom.protocols.mesh.frames import Field, Packet, Type, arrange
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore

FORGED = "mesh.forged"
UNKNOWN_KEY = "mesh.unknown-key"
KEY_MISMATCH = "mesh.key-mismatch"

SECURITY_CLAUSES = {
    FORGED: "If the verification of HMAC or Signature fails, the payload is discarded (4.2)",
    UNKNOWN_KEY: "Keys are resolved from a local trust store keyed by (NODE ID, Auth Key ID) (4.2)",
    KEY_MISMATCH: "A Public Key that none of the trusted keys of that NODE ID matches is rejected (decision)",
}


def sign_packet(packet: Packet, identity: Identity, *, with_public_key: bool = False) -> Packet:
    """The packet with NODE ID and what the identity signs with: Auth Key ID, HMAC, Signature, in the order to send.

    `with_public_key` adds the Public Key, for receivers who may not have it. Lengths are final before anything is
    computed, because the header is covered.
    """
    fields = [field for field in packet.fields if field.type not in _OURS]
    fields.append(Field(Type.NODE_ID, identity.node_id))
    if identity.signs:
        fields.append(Field(Type.AUTH_KEY_ID, identity.auth_key_id))
    if with_public_key and identity.public_key is not None:
        fields.append(Field(Type.PUBLIC_KEY, identity.public_key))
    if identity.hmac_secret is not None:
        fields.append(Field(Type.HMAC, bytes(32)))
    if identity.ed25519_private is not None:
        fields.append(Field(Type.SIGNATURE, bytes(64)))
    return prove(replace(packet, fields=arrange(fields)), identity)


def prove(packet: Packet, identity: Identity) -> Packet:
    """The packet with the values of its HMAC and Signature fields computed, and nothing else changed."""
    if not identity.signs:
        return packet
    covered = canonical_packet(packet)
    proofs: dict[int, bytes] = {}
    if identity.hmac_secret is not None:
        proofs[Type.HMAC] = crypto.hmac_key(identity.hmac_secret).digest(covered)
    if identity.ed25519_private is not None:
        proofs[Type.SIGNATURE] = crypto.sign(identity.ed25519_private, covered)
    fields = [Field(type_, proofs.get(type_, value)) for type_, value in packet.fields]
    return replace(packet, fields=tuple(fields))


_OURS = frozenset((Type.NODE_ID, Type.AUTH_KEY_ID, Type.PUBLIC_KEY, Type.HMAC, Type.SIGNATURE))


@dataclass(frozen=True, slots=True)
class Proof:
    """Which keys a signed packet is to be verified with, found before anything is computed.

    `clause` says why there is none. `key_id` is the key that authenticates, for the replay cache; empty for none.
    """

    secret: bytes | None = None
    public: bytes | None = None
    trusted: bool = False
    key_id: bytes = b""
    clause: str | None = None
    detail: str = ""


UNSIGNED = Proof()


def find_keys(packet: Packet, trust: TrustStore, learned: TrustStore | None = None) -> Proof:
    """The keys for a packet's HMAC and Signature.

    `learned` holds keys that packets brought themselves: they prove that two packets are of the same sender, not who
    that is.
    """
    signed, tagged = packet.get(Type.SIGNATURE) is not None, packet.get(Type.HMAC) is not None
    if not signed and not tagged:
        return UNSIGNED
    node_id = packet.get(Type.NODE_ID) or b""
    key_id = packet.get(Type.AUTH_KEY_ID)
    secret = public = None
    trusted = True
    name = key_id or b""
    if tagged:
        found = _resolve(trust, node_id, key_id, "hmac_secret")
        if found is None or found.hmac_secret is None:
            return _unknown(node_id, key_id)
        secret, name = found.hmac_secret, found.auth_key_id
    if signed:
        own = packet.get(Type.PUBLIC_KEY)
        if own is not None:
            known = trust.keys_of(node_id)
            match = next((key for key in known if key.ed25519_public == own), None)
            if match is None and known:
                return Proof(clause=KEY_MISMATCH, detail=f"node {node_id.hex()} is trusted with other keys")
            trusted, public, name = match is not None, own, own
        else:
            found = _resolve(trust, node_id, key_id, "ed25519_public")
            if found is None and learned is not None and key_id is not None and not trust.keys_of(node_id):
                found, trusted = learned.key(node_id, key_id), False
            if found is None or found.ed25519_public is None:
                return _unknown(node_id, key_id)
            public = name = found.ed25519_public
    return Proof(secret, public, trusted, name)


def _resolve(trust: TrustStore, node_id: bytes, key_id: bytes | None, sort: str) -> TrustedKey | None:
    """The key named by the packet; without a name, the node's only key of that sort."""
    if key_id is not None:
        return trust.key(node_id, key_id)
    keys = [key for key in trust.keys_of(node_id) if getattr(key, sort) is not None]
    return keys[0] if len(keys) == 1 else None


def _unknown(node_id: bytes, key_id: bytes | None) -> Proof:
    named = "without Auth Key ID" if key_id is None else f"with key {key_id.hex()}"
    return Proof(clause=UNKNOWN_KEY, detail=f"node {node_id.hex()} {named}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a packet's sender; `clause` names the reason to refuse it, if there is one."""

    authenticity: Authenticity
    clause: str | None = None
    detail: str = ""


def verify(packet: Packet, proof: Proof, covered: bytes | None = None) -> Verdict:
    """Check HMAC, then Signature, with the keys found; `covered` are the canonical bytes, if they are there already."""
    if proof.clause is not None:
        failed = proof.clause == KEY_MISMATCH
        return Verdict(Authenticity.FAILED if failed else Authenticity.UNCHECKED, proof.clause, proof.detail)
    if proof.secret is None and proof.public is None:
        return Verdict(Authenticity.NONE)
    data = canonical_packet(packet) if covered is None else covered
    if proof.secret is not None and not crypto.hmac_key(proof.secret).verify(packet.get(Type.HMAC) or b"", data):
        return Verdict(Authenticity.FAILED, FORGED, "the HMAC is wrong")
    if proof.public is not None and not crypto.verify_signature(proof.public, packet.get(Type.SIGNATURE) or b"", data):
        return Verdict(Authenticity.FAILED, FORGED, "the Signature is wrong")
    return Verdict(Authenticity.VERIFIED if proof.trusted else Authenticity.SELF_SIGNED)


def check(packet: Packet, trust: TrustStore) -> Verdict:
    """Whether a packet is authentic, as far as this trust store can tell."""
    return verify(packet, find_keys(packet, trust))
