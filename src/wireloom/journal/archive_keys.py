"""Keys of encrypted connections in an archive: encrypted for a recipient, who alone can open them.

An archived segment holds no keys (see `archive_pack`). With a recipient in the configuration, an object `.keys` beside
it holds the blocks that were blanked. The hub has the recipient's public key only. A fresh X25519 key pair is drawn for
each object; HKDF-SHA256 makes the key for ChaCha20-Poly1305 of the shared secret. Needs the package cryptography.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.journal.archive_format import ArchiveDamaged
from wireloom.journal.state import StateDamaged, decode_state, encode_state
from wireloom.model import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

FORMAT = "wireloom archive keys 1"
PUBLIC, PRIVATE = "wireloom-recipient-", "wireloom-recipient-secret-"
Secrets = tuple[tuple[int, bytes], ...]
"""Where each block of keys stands in its segment, and its bytes."""


def new_key() -> tuple[str, str]:
    """A new pair: the secret key, which stays with the recipient, and the recipient, for the configuration.

    >>> secret, recipient = new_key()
    >>> decrypt(encrypt(((96, b"some keys"),), recipient), secret, "x.keys")
    ((96, b'some keys'),)
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    return PRIVATE + _text(key.private_bytes_raw()), PUBLIC + _text(key.public_key().public_bytes_raw())


def check_recipient(text: str) -> str:
    """The text of a recipient, as it is; ConfigError if it is none."""
    if text.startswith(PRIVATE) or not text.startswith(PUBLIC):
        raise ConfigError(
            f"setting 'recipient' must begin with {PUBLIC} and be no secret key: `wireloom journal recipient` makes one"
        )
    _raw(text, PUBLIC, "setting 'recipient'")
    return text


def encrypt(secrets: Secrets, recipient: str) -> bytes:
    """The object that holds blocks of keys for a recipient."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    public = _raw(check_recipient(recipient), PUBLIC, "setting 'recipient'")
    own = X25519PrivateKey.generate()
    shared = own.exchange(X25519PublicKey.from_public_bytes(public))
    ephemeral = own.public_key().public_bytes_raw()
    plain = json.dumps([[at, _text(block)] for at, block in secrets]).encode()
    sealed = _cipher(shared, ephemeral, public).encrypt(bytes(12), plain, FORMAT.encode())
    return encode_state({"data": _text(sealed), "ephemeral": _text(ephemeral), "format": FORMAT})


def decrypt(data: bytes, secret_key: str, name: str) -> Secrets:
    """The blocks in such an object; ArchiveDamaged, which names it, if this key does not open it."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    key = X25519PrivateKey.from_private_bytes(_raw(secret_key.strip(), PRIVATE, "the secret key"))
    try:
        said = decode_state(data, Path(name))
        ephemeral, sealed = (base64.b64decode(str(said[each])) for each in ("ephemeral", "data"))
        shared = key.exchange(X25519PublicKey.from_public_bytes(ephemeral))
        cipher = _cipher(shared, ephemeral, key.public_key().public_bytes_raw())
        found: Iterable[tuple[int, str]] = json.loads(cipher.decrypt(bytes(12), sealed, FORMAT.encode()))
        return tuple((int(at), base64.b64decode(block)) for at, block in found)
    except InvalidTag:
        raise ArchiveDamaged(f"{name}: is for another recipient, or damaged") from None
    except StateDamaged as damage:
        raise ArchiveDamaged(str(damage)) from None
    except (KeyError, ValueError, TypeError):
        raise ArchiveDamaged(f"{name}: is damaged") from None


def _cipher(shared: bytes, ephemeral: bytes, public: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    # One message a key, so the nonce may be constant.
    return ChaCha20Poly1305(HKDF(SHA256(), 32, salt=ephemeral + public, info=FORMAT.encode()).derive(shared))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _raw(text: str, prefix: str, what: str) -> bytes:
    try:
        found = base64.b64decode(text.removeprefix(prefix), validate=True) if text.startswith(prefix) else b""
    except binascii.Error:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{what} is not what `wireloom journal recipient` makes")
    return found
