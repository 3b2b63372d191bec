"""The cryptography of a connection: AES-256-CBC, the key agreement, and the proofs of authentication.

Implements "Encryption" of the specification with the decisions on it. CBC without a MAC tells nothing about
who wrote a message: `Cipher.open` therefore never raises, and its callers answer all failures alike.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wireloom.model import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.ciphers import Cipher as Machine
    from cryptography.hazmat.primitives.ciphers.modes import CBC

BLOCK = 16
KEY_SIZE = 32
TOKEN_SIZE = 32
COORDINATE = 66
"""Bytes of one coordinate of a point on P-521."""
_MAGIC = b"ECK5" + COORDINATE.to_bytes(4, "little")
_ORDER = int(
    "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa51868783bf2f966b7fcc0148f709a5d0"
    "3bb5c9b8899c47aebb6fb71e91386409",
    16,
)
_ROUNDS, _PROOF_SIZE = 1000, 64


def check_available() -> None:
    """Raise ConfigError, with what to install, where encryption is not to be had."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ec  # noqa: F401
    except ImportError as error:
        raise _missing(error) from None


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"encryption in wolpertinger needs the package 'cryptography': pip install 'wireloom[wolpertinger]' ({error})"
    )


@dataclass(frozen=True, slots=True)
class Cipher:
    """The key and IV of one connection, for both directions."""

    key: bytes = field(repr=False)
    iv: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_SIZE or len(self.iv) != BLOCK:
            raise ConfigError("an AES key of a wolpertinger connection has 32 bytes, its IV 16")

    def seal(self, data: bytes) -> bytes:
        """Pad and encrypt.

        >>> cipher = Cipher(bytes(32), bytes(16))
        >>> cipher.open(cipher.seal(b"hello"))
        (b'hello', True)
        """
        missing = BLOCK - len(data) % BLOCK
        encryptor = self._machine().encryptor()
        return encryptor.update(data + bytes((missing,)) * missing) + encryptor.finalize()

    def open(self, data: bytes) -> tuple[bytes, bool]:
        """What was encrypted, and whether the padding was right.

        With wrong padding the whole text is returned, so that the steps that follow cost the same.
        """
        if not data or len(data) % BLOCK:
            data, whole = data + bytes(BLOCK - len(data) % BLOCK), False
        else:
            whole = True
        decryptor = self._machine().decryptor()
        text = decryptor.update(data) + decryptor.finalize()
        size = text[-1]
        sound = 1 <= size <= BLOCK
        take = size if sound else BLOCK
        right = hmac.compare_digest(text[-take:], bytes((take,)) * take) and sound and whole
        return (text[:-take] if right else text), right

    def _machine(self) -> Machine[CBC]:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher as Machine
            from cryptography.hazmat.primitives.ciphers.algorithms import AES
            from cryptography.hazmat.primitives.ciphers.modes import CBC
        except ImportError as error:
            raise _missing(error) from None
        return Machine(AES(self.key), CBC(self.iv))


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One end's half of the key agreement: ECDH on P-521."""

    _private: EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def draw(cls, entropy: bytes) -> KeyPair:
        """A key pair from at least 72 random bytes."""
        try:
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError as error:
            raise _missing(error) from None
        number = int.from_bytes(entropy) % (_ORDER - 1) + 1
        return cls(ec.derive_private_key(number, ec.SECP521R1()))

    @property
    def public(self) -> str:
        """The public key as it travels: base64 of `ECK5`, 32-bit little-endian 66, X, Y."""
        numbers = self._private.public_key().public_numbers()
        return base64.b64encode(_MAGIC + numbers.x.to_bytes(COORDINATE) + numbers.y.to_bytes(COORDINATE)).decode()

    def agree(self, public: str, iv: bytes) -> Cipher | None:
        """The cipher agreed with the owner of a public key; None when it is no key, or no point of the curve."""
        from cryptography.hazmat.primitives.asymmetric import ec

        blob = from_base64(public)
        if blob is None or len(blob) != len(_MAGIC) + 2 * COORDINATE or not blob.startswith(_MAGIC) or len(iv) != BLOCK:
            return None
        middle = len(_MAGIC) + COORDINATE
        x, y = int.from_bytes(blob[len(_MAGIC) : middle]), int.from_bytes(blob[middle:])
        try:
            other = ec.EllipticCurvePublicNumbers(x, y, ec.SECP521R1()).public_key()
        except ValueError:
            return None
        shared = self._private.exchange(ec.ECDH(), other)
        return Cipher(hashlib.sha256(shared).digest(), iv)


def prove(password: str, token: str) -> str:
    """The proof that one knows a password: PBKDF2-HMAC-SHA1, 1000 rounds, 64 bytes, salted with the token.

    >>> prove("secret", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")[:16]
    'L8kdKiBPLx8wiQmg'
    """
    salt = from_base64(token) or b""
    return base64.b64encode(hashlib.pbkdf2_hmac("sha1", password.encode(), salt, _ROUNDS, _PROOF_SIZE)).decode()


def is_proof(given: str, password: str, token: str) -> bool:
    """Whether a proof is right; takes as long either way."""
    return hmac.compare_digest(given.encode(), prove(password, token).encode())


def is_token(text: str) -> bool:
    """Whether this is a token: base64 of 32 bytes."""
    data = from_base64(text)
    return data is not None and len(data) == TOKEN_SIZE


def to_base64(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes | None:
    """Bytes from text; None when it is no base64.

    >>> from_base64("PGE+"), from_base64("%")
    (b'<a>', None)
    """
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, ValueError):
        return None


def cluster_password(key: str) -> str:
    """What is proven for a cluster: the lowercase hex of its key."""
    try:
        return bytes.fromhex(key).hex()
    except ValueError:
        raise ConfigError("setting 'cluster_key' must be hexadecimal digits") from None
