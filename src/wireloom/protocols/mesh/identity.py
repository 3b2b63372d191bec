"""Who we are: NODE ID and the keys we sign with, and the file they are kept in.

The file is JSON with `node_id`, `auth_key_id` and `hmac_secret` or `ed25519_private` or both, all as hex.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.protocols.mesh import crypto
from wireloom.protocols.mesh.trust import TrustedKey, from_hex, write_private

_KNOWN = ("node_id", "auth_key_id", "hmac_secret", "ed25519_private")


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's id and keys. Without a secret and a private key its packets carry only the id.

    >>> identity = Identity.generate()
    >>> len(identity.node_id), len(identity.auth_key_id), identity.ed25519_private is None
    (16, 4, False)
    """

    node_id: bytes
    auth_key_id: bytes = b""
    hmac_secret: bytes | None = field(default=None, repr=False)
    ed25519_private: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.node_id) != 16:
            raise ConfigError(f"a NODE ID has 16 bytes, not {len(self.node_id)}")
        if self.signs and len(self.auth_key_id) != 4:
            raise ConfigError(f"an Auth Key ID has 4 bytes, not {len(self.auth_key_id)}")

    @property
    def signs(self) -> bool:
        """Whether packets of this node carry an HMAC or a Signature."""
        return self.hmac_secret is not None or self.ed25519_private is not None

    @property
    def public_key(self) -> bytes | None:
        """What others verify our signatures with."""
        return None if self.ed25519_private is None else crypto.public_of(self.ed25519_private)

    @classmethod
    def anonymous(cls) -> Identity:
        """An id that nobody has, and no keys."""
        return cls(uuid.uuid4().bytes)

    @classmethod
    def generate(
        cls,
        *,
        signature: bool = True,
        hmac: bool = False,
        node_id: bytes | None = None,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Identity:
        """A new node with new keys: Ed25519, a shared secret, or both."""
        return cls(
            node_id or uuid.UUID(bytes=random(16), version=4).bytes,
            random(4),
            random(32) if hmac else None,
            random(32) if signature else None,
        )

    def rotate(self, random: Callable[[int], bytes] = secrets.token_bytes) -> Identity:
        """The same node with new keys of the same sorts, under a new Auth Key ID."""
        return replace(
            self,
            auth_key_id=random(4),
            hmac_secret=None if self.hmac_secret is None else random(32),
            ed25519_private=None if self.ed25519_private is None else random(32),
        )

    def trusted_key(self) -> TrustedKey:
        """What others put into their trust store to verify our packets."""
        if not self.signs:
            raise ConfigError(f"node {self.node_id.hex()} has no keys: there is nothing to trust")
        return TrustedKey(self.node_id, self.auth_key_id, self.hmac_secret, self.public_key)

    def to_json(self) -> str:
        """The file that holds this identity."""
        entry = {"node_id": self.node_id.hex(), "auth_key_id": self.auth_key_id.hex()}
        if self.hmac_secret is not None:
            entry["hmac_secret"] = self.hmac_secret.hex()
        if self.ed25519_private is not None:
            entry["ed25519_private"] = self.ed25519_private.hex()
        return json.dumps(entry, indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the file, readable by its owner only."""
        write_private(Path(path), self.to_json())


def load_identity(path: str | Path) -> Identity:
    """The identity in a key file. Raises ConfigError that says what is wrong."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError(
            f"key file {path} cannot be read ({error.strerror}); make one with: wireloom keys new {path}"
        ) from None
    return parse_identity(text, str(path))


def parse_identity(text: str, name: str = "key file") -> Identity:
    """The identity that the text of a key file describes."""
    try:
        entry = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{name} must be an object with {', '.join(_KNOWN)}")
    for key in entry:
        if key not in _KNOWN:
            raise ConfigError(f"{name}: unknown key {key!r}; known: {', '.join(_KNOWN)}")
    secret, private = entry.get("hmac_secret"), entry.get("ed25519_private")
    return Identity(
        from_hex(entry.get("node_id"), 16, "'node_id'", name),
        from_hex(entry.get("auth_key_id"), 4, "'auth_key_id'", name) if entry.get("auth_key_id") else b"",
        None if secret is None else from_hex(secret, None, "'hmac_secret'", name),
        None if private is None else from_hex(private, 32, "'ed25519_private'", name),
    )
