"""The primitives: HMAC-SHA256, Ed25519, AES-256-GCM and ChaCha20-Poly1305.

The one module that knows the package `cryptography`, and only when it is needed: packets that are neither signed nor
encrypted are read and written without it. HMAC needs the standard library alone, and is faster with the package.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING

from wireloom.model import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

BLOCK = 64
HMAC_SIZE = 32
KEYS_KEPT = 4096


def _missing() -> ConfigError:
    return ConfigError(
        "Ed25519 signatures and encryption need the package 'cryptography': pip install 'wireloom[mesh]'"
    )


class HmacKey:
    """A shared secret, its padded forms hashed once: a packet then costs two short hashes.

    >>> HmacKey(b"secret").digest(b"data") == hmac.digest(b"secret", b"data", "sha256")
    True
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        padded = (secret if len(secret) <= BLOCK else hashlib.sha256(secret).digest()).ljust(BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def digest(self, data: bytes | memoryview) -> bytes:
        """The HMAC-SHA256 of some bytes."""
        inner = self._inner.copy()
        inner.update(data)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def verify(self, tag: bytes, data: bytes) -> bool:
        """Whether a tag is right; the comparison takes the same time wherever they differ."""
        return hmac.compare_digest(self.digest(data), tag)


class QuickHmacKey(HmacKey):
    """The same with the package `cryptography`, whose calls take half the time for a short packet."""

    __slots__ = ("_start", "_wrong")

    def __init__(self, secret: bytes) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.hmac import HMAC

        super().__init__(secret)
        self._start, self._wrong = HMAC(secret, SHA256()), InvalidSignature

    def verify(self, tag: bytes, data: bytes) -> bool:
        """Whether a tag is right; the package compares in constant time."""
        computed = self._start.copy()
        computed.update(data)
        try:
            computed.verify(tag)
        except self._wrong:
            return False
        return True


@lru_cache(KEYS_KEPT)
def hmac_key(secret: bytes) -> HmacKey:
    """The key of a secret, made once."""
    try:
        return QuickHmacKey(secret)
    except ImportError:
        return HmacKey(secret)


@lru_cache(KEYS_KEPT)
def _public(key: bytes) -> Ed25519PublicKey | None:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise _missing() from None
    try:
        return Ed25519PublicKey.from_public_bytes(key)
    except ValueError:
        return None


@lru_cache(KEYS_KEPT)
def _private(key: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise _missing() from None
    return Ed25519PrivateKey.from_private_bytes(key)


def verify_signature(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether an Ed25519 signature is right; bytes that are no public key sign nothing."""
    key = _public(public)
    if key is None:
        return False
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def sign(private: bytes, data: bytes) -> bytes:
    """The Ed25519 signature of some bytes."""
    return _private(private).sign(data)


def public_of(private: bytes) -> bytes:
    """The public half of a private key."""
    return _private(private).public_key().public_bytes_raw()


AES_256_GCM, CHACHA20_POLY1305 = 1, 2


@lru_cache(KEYS_KEPT)
def _cipher(algorithm: int, key: bytes) -> AESGCM | ChaCha20Poly1305:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError:
        raise _missing() from None
    return aead.AESGCM(key) if algorithm == AES_256_GCM else aead.ChaCha20Poly1305(key)


def encrypt(algorithm: int, key: bytes, starting: bytes, plain: bytes, associated: bytes) -> bytes:
    """Ciphertext and its tag."""
    return _cipher(algorithm, key).encrypt(starting, plain, associated)


def decrypt(algorithm: int, key: bytes, starting: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The plain bytes; None when the tag is wrong."""
    cipher = _cipher(algorithm, key)
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(starting, sealed, associated)
    except (InvalidTag, ValueError):
        return None
