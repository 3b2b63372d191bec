"""Whose keys are known: the trust store, keyed by (NODE ID, Auth Key ID), and its file.

Implements the trust store of 4.2 (Auth Key ID) and 8 of the Event Mesh Protocol. The file is JSON: a list of objects
with `node_id`, `auth_key_id` and `hmac_secret` or `ed25519_public` or both, all as hex. An object may have
`encryption_keys`, a map from key identifier to key, likewise, and then needs nothing else.

A node rotates its keys by adding an entry with a new Auth Key ID before it begins to use it, and removing the old one
when nothing signed with it can arrive any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.protocols.mesh.crypto import HmacKey, hmac_key

EXAMPLE = '[{"node_id": "<32 hex digits>", "auth_key_id": "<8 hex digits>", "ed25519_public": "<64 hex digits>"}]'


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """One key of one node: a shared secret for HMAC, a public key for signatures, or both."""

    node_id: bytes
    auth_key_id: bytes
    hmac_secret: bytes | None = field(default=None, repr=False)
    ed25519_public: bytes | None = None

    def to_json(self) -> dict[str, str]:
        """The entry as the file has it."""
        entry = {"node_id": self.node_id.hex(), "auth_key_id": self.auth_key_id.hex()}
        if self.hmac_secret is not None:
            entry["hmac_secret"] = self.hmac_secret.hex()
        if self.ed25519_public is not None:
            entry["ed25519_public"] = self.ed25519_public.hex()
        return entry


class TrustStore:
    """The keys that are trusted.

    >>> store = TrustStore([TrustedKey(bytes(16), b"key1", hmac_secret=b"secret")])
    >>> store.key(bytes(16), b"key1").hmac_secret
    b'secret'
    >>> store.key(bytes(16), b"key2") is None
    True
    """

    def __init__(self, keys: Iterable[TrustedKey] = (), encryption_keys: Mapping[bytes, bytes] | None = None) -> None:
        self._nodes: dict[bytes, dict[bytes, TrustedKey]] = {}
        self.hmac_keys: dict[bytes, HmacKey] = {}
        """The keys for HMAC, ready to use, by NODE ID and Auth Key ID one after the other."""
        self.encryption_keys: dict[bytes, bytes] = dict(encryption_keys or {})
        for key in keys:
            self.add(key)

    def add(self, key: TrustedKey) -> None:
        """Trust a key; one with the same node and key id is replaced."""
        self._nodes.setdefault(key.node_id, {})[key.auth_key_id] = key
        self.hmac_keys.pop(key.node_id + key.auth_key_id, None)
        if key.hmac_secret is not None:
            self.hmac_keys[key.node_id + key.auth_key_id] = hmac_key(key.hmac_secret)

    def remove(self, node_id: bytes, auth_key_id: bytes | None = None) -> int:
        """Trust a key no longer, or none of a node's; returns how many that were."""
        keys = self._nodes.get(node_id, {})
        gone = [auth_key_id] if auth_key_id is not None else list(keys)
        removed = sum(keys.pop(each, None) is not None for each in gone)
        for each in gone:
            self.hmac_keys.pop(node_id + each, None)
        if not keys:
            self._nodes.pop(node_id, None)
        return removed

    def key(self, node_id: bytes, auth_key_id: bytes) -> TrustedKey | None:
        """The key of that node and id."""
        return self._nodes.get(node_id, {}).get(auth_key_id)

    def keys_of(self, node_id: bytes) -> tuple[TrustedKey, ...]:
        """Every key of a node."""
        return tuple(self._nodes.get(node_id, {}).values())

    def __iter__(self) -> Iterator[TrustedKey]:
        for keys in self._nodes.values():
            yield from keys.values()

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def to_json(self) -> str:
        """The file that holds this store."""
        entries: list[object] = [key.to_json() for keys in self._nodes.values() for key in keys.values()]
        if self.encryption_keys:
            entries.append({"encryption_keys": {k.hex(): v.hex() for k, v in self.encryption_keys.items()}})
        return json.dumps(entries, indent=2) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the file; it holds secrets, so only its owner may read it."""
        write_private(Path(path), self.to_json())


def load_trust(path: str | Path) -> TrustStore:
    """The trust store in a file. Raises ConfigError that says which entry is wrong."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError(
            f"trust file {path} cannot be read ({error.strerror}); make one with: wireloom keys trust {path} KEYFILE"
        ) from None
    return parse_trust(text, str(path))


def parse_trust(text: str, name: str = "trust file") -> TrustStore:
    """The trust store that the text of a file describes.

    >>> parse_trust('[{"node_id": "00"}]')
    Traceback (most recent call last):
    wireloom.errors.ConfigError: trust file, entry 0: 'node_id' must be 16 bytes in hex, not '00'
    """
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{name} must be a list: {EXAMPLE}")
    store = TrustStore()
    for number, entry in enumerate(entries):
        _add_entry(store, entry, f"{name}, entry {number}")
    return store


_KNOWN = ("node_id", "auth_key_id", "hmac_secret", "ed25519_public", "encryption_keys")


def _add_entry(store: TrustStore, entry: object, where: str) -> None:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be an object: {EXAMPLE}")
    for name in entry:
        if name not in _KNOWN:
            raise ConfigError(f"{where}: unknown key {name!r}; known: {', '.join(_KNOWN)}")
    encryption = entry.get("encryption_keys", {})
    if not isinstance(encryption, dict):
        raise ConfigError(f"{where}: 'encryption_keys' must map key identifiers to keys, both as hex")
    for name, key in encryption.items():
        identifier = from_hex(name, 16, "key identifier", where)
        store.encryption_keys[identifier] = from_hex(key, 32, "encryption key", where)
    if encryption and len(entry) == 1:
        return
    secret, public = entry.get("hmac_secret"), entry.get("ed25519_public")
    if secret is None and public is None:
        node_id = from_hex(entry.get("node_id"), 16, "'node_id'", where)
        raise ConfigError(f"{where}: node {node_id.hex()} needs 'hmac_secret' or 'ed25519_public'")
    store.add(
        TrustedKey(
            from_hex(entry.get("node_id"), 16, "'node_id'", where),
            from_hex(entry.get("auth_key_id"), 4, "'auth_key_id'", where),
            None if secret is None else from_hex(secret, None, "'hmac_secret'", where),
            None if public is None else from_hex(public, 32, "'ed25519_public'", where),
        )
    )


def from_hex(text: object, size: int | None, what: str, where: str) -> bytes:
    """Bytes from hex (hyphens, as in a UUID, are allowed), of the right size."""
    try:
        value = bytes.fromhex(str(text).replace("-", ""))
    except ValueError:
        value = b""
    if not value or (size is not None and len(value) != size):
        shown = "something secret" if "secret" in what or "private" in what or what == "encryption key" else repr(text)
        wanted = f"{size} bytes in hex" if size else "bytes in hex"
        raise ConfigError(f"{where}: {what} must be {wanted}, not {shown}")
    return value


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
