"""The settings of mesh: who we are, whom we trust, limits and timers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wireloom.model import ConfigError
from wireloom.protocols.contract import Settings
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.encryption import MAX_PLAIN, Cipher
from wireloom.protocols.mesh.identity import Identity, load_identity
from wireloom.protocols.mesh.metadata import Algorithm
from wireloom.protocols.mesh.replay import CLOCK_SKEW_ALLOWANCE, REPLAY_WINDOW
from wireloom.protocols.mesh.trust import TrustStore, from_hex, load_trust
from wireloom.topics import validate_pattern

EVERYTHING = "#"


class Require(StrEnum):
    """Which packets are accepted. A forged one never is."""

    ANY = "any"
    SIGNED = "signed"
    """Packets with a valid HMAC or Signature, also with a key that the packet itself brings."""
    TRUSTED = "trusted"
    """Packets that a key in the trust store verifies."""


class ShowKey(StrEnum):
    """Which packets carry our public key, for receivers who may not have it."""

    NEVER = "never"
    HELLO = "hello"
    ALWAYS = "always"


class CipherName(StrEnum):
    """How payloads are encrypted."""

    AES_256_GCM = "aes-256-gcm"
    CHACHA20_POLY1305 = "chacha20-poly1305"

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's number on the wire."""
        return Algorithm.AES_256_GCM if self is CipherName.AES_256_GCM else Algorithm.CHACHA20_POLY1305


@dataclass(frozen=True, slots=True)
class MeshSettings(Settings):
    """How a mesh node, or one conversation of it, behaves."""

    key: str = ""
    """The file with our NODE ID and keys, made by `wireloom keys new`. None: a random id, and nothing is signed."""
    trust: str = ""
    """The trust file."""
    require: Require | None = None
    """Which packets are accepted. Default: `trusted` where a trust file is named, else `any`."""
    node_id: str = ""
    """Our NODE ID as hex, for a node without a key file."""
    show_key: ShowKey = ShowKey.HELLO
    compress: bool = False
    encrypt: str = ""
    """The identifier of the encryption key to use, as hex; the key is in the trust file."""
    cipher: CipherName = CipherName.AES_256_GCM
    keep_name: bool = True
    """Whether the Event Name of a compressed or encrypted event stays readable, for routing."""
    profile: bool = True
    """Whether subscriptions are read from, and written into, the capabilities of Hello."""
    handshake: bool = True
    """Whether a client waits for the peer's Hello before it calls the conversation open."""
    hello_interval: float = 1.0
    """Seconds after which an unanswered Hello is sent again."""
    heartbeat_interval: float = 10.0
    lost_after: float = 35.0
    """Seconds without a packet after which a peer counts as lost."""
    max_payload: int = frames.MAX_PAYLOAD_SIZE
    max_fields: int = frames.MAX_TLV_COUNT
    max_plain: int = MAX_PLAIN
    """The most bytes a compressed payload may become."""
    ignore_reserved_flags: bool = False
    replay_window: float = REPLAY_WINDOW
    clock_skew: float = CLOCK_SKEW_ALLOWANCE
    replay_cap: int = 500_000
    """Packets remembered against replay, in all; about 150 bytes each."""
    replay_cap_per_node: int = 200_000
    verifications: float = 2000.0
    """Signatures verified a second for one source."""
    seeds: tuple[str, ...] = ()
    """Nodes that a listener greets by itself, until they answer: `host:port`, or URLs."""
    publish: tuple[str, ...] = (EVERYTHING,)
    """Topics of events that go into the mesh from a listener: they are packets of its own, signed with its key."""
    relay: tuple[str, ...] = (EVERYTHING,)
    """Topics of events that a listener passes on from one node to others, unchanged."""
    unasked: tuple[str, ...] = ()
    """Topics whose events a listener sends to nodes that cannot say what they want."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_payload <= frames.MAX_PAYLOAD_LIMIT:
            raise ConfigError(
                f"setting 'max_payload' is {self.max_payload}; it must be from 0 to {frames.MAX_PAYLOAD_LIMIT}"
            )
        for name in ("max_fields", "max_plain", "replay_cap", "replay_cap_per_node", "verifications"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be 1 or more")
        for name in ("hello_interval", "heartbeat_interval", "lost_after", "replay_window", "clock_skew"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be more than 0 seconds")

        for name in ("publish", "relay", "unasked"):
            for pattern in getattr(self, name):
                try:
                    validate_pattern(pattern)
                except ConfigError as error:
                    raise ConfigError(f"setting {name!r}: {error}") from None

    @property
    def contacts(self) -> Sequence[str]:
        """The seeds."""
        return self.seeds

    @property
    def limits(self) -> frames.PacketLimits:
        """What a received packet may be."""
        return frames.PacketLimits(self.max_payload, self.max_fields, self.ignore_reserved_flags)

    @property
    def policy(self) -> Require:
        """Which packets are accepted."""
        return self.require or (Require.TRUSTED if self.trust else Require.ANY)

    def identity(self) -> Identity:
        """Who we are."""
        if self.key:
            return load_identity(self.key)
        if self.node_id:
            return Identity(from_hex(self.node_id, 16, "'node_id'", "mesh settings"))
        return Identity.anonymous()

    def trust_store(self) -> TrustStore:
        """Whom we trust."""
        return load_trust(self.trust) if self.trust else TrustStore()

    def encryption(self, trust: TrustStore) -> Cipher | None:
        """What we encrypt with, if we do."""
        if not self.encrypt:
            return None
        identifier = from_hex(self.encrypt, 16, "'encrypt'", "mesh settings")
        key = trust.encryption_keys.get(identifier)
        if key is None:
            raise ConfigError(
                f"setting 'encrypt' names key {identifier.hex()}, which is not among the encryption_keys "
                f"of the trust file {self.trust or '(none)'}"
            )
        return Cipher(key, identifier, self.cipher.algorithm)
