"""The frames of emp: envelope, header, extension blocks, body; integers in big-endian.

Implements the sections "Encoding" and "Messages" of the emp specification: what every message has,
and the bodies of `hello` and `error`. What the blocks of the known extensions hold is in `extensions.py`.

Sizes include their own four bytes, as the specification says. Peers that leave them out, in envelopes and in
blocks alike, are spoken to with `SizeMode.EXCLUSIVE`. `sizes.py` tells from the first frame which of the two it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from wireloom.model import LimitExceeded, ProtocolViolation

VERSION = 1
MAX_MESSAGE_DEFAULT = 16 * 1024 * 1024
MAX_MESSAGE_LIMIT = 2**32 - 1
FIRST_APPLICATION_TYPE = 128


class Type(IntEnum):
    """The message types of the specification; 6 to 127 are reserved, 128 to 255 the application's."""

    HELLO = 0
    BYE = 1
    PING = 2
    PONG = 3
    ERROR = 4
    DATA = 5


class ErrorCode(IntEnum):
    """Why a peer sends `error` and closes."""

    UNSPECIFIED = 0
    IO = 1
    TIMEOUT = 2
    PROTOCOL = 3
    EXTENSION = 4


class Extension(IntEnum):
    """The extensions that are understood here."""

    REQUEST_RESPONSE = 0
    COMPRESSION = 1
    HUB = 128


class ExtensionError(IntEnum):
    """Extension error codes of our `error` messages; the specification leaves them to the extension."""

    UNSPECIFIED = 0
    MALFORMED = 1
    REPEATED = 2
    UNKNOWN_SCHEME = 3
    BAD_DATA = 4
    TOO_LARGE = 5


class SizeMode(StrEnum):
    """Whether a size counts its own four bytes."""

    INCLUSIVE = "inclusive"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"
    """As the first frame shows; see `sizes.py`. What is written before that is inclusive."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the protocol, and what a peer that breaks it is told."""

    sentence: str
    code: ErrorCode = ErrorCode.PROTOCOL
    extension: int = 0
    extension_error: ExtensionError = ExtensionError.UNSPECIFIED


def _extension_rule(extension: Extension, error: ExtensionError, sentence: str) -> Rule:
    return Rule(sentence, ErrorCode.EXTENSION, extension, error)


_RR, _GZ, _HUB = Extension.REQUEST_RESPONSE, Extension.COMPRESSION, Extension.HUB
_MALFORMED, _REPEATED = ExtensionError.MALFORMED, ExtensionError.REPEATED

RULES = {
    "emp.envelope.size": Rule("The size covers the whole message: size field, header, blocks, body (Envelope)"),
    "emp.envelope.too-large": Rule("A message is no larger than `max_message` (decision)"),
    "emp.type.reserved": Rule("Identifiers 6 to 127 are reserved (Message types)"),
    "emp.extension.missing": Rule("E: there is at least one extension block after the header (Header)"),
    "emp.extension.chain": Rule("M: there is another extension block after this one (Extensions)"),
    "emp.extension.size": Rule(
        "The size covers the entire extension block, inside its message (Extensions)",
        ErrorCode.EXTENSION,
        extension_error=_MALFORMED,
    ),
    "emp.request-response.size": _extension_rule(_RR, _MALFORMED, "The content has 12 bytes (Request-response)"),
    "emp.request-response.repeated": _extension_rule(
        _RR, _REPEATED, "A message is a request or a response, once (Request-response)"
    ),
    "emp.request-response.zero-id": Rule("The zero identifier is reserved and must not be used (Request-response)"),
    "emp.compression.size": _extension_rule(_GZ, _MALFORMED, "The content has 4 bytes (Compression)"),
    "emp.compression.repeated": _extension_rule(_GZ, _REPEATED, "One compression block a message (decision)"),
    "emp.compression.scheme": _extension_rule(
        _GZ, ExtensionError.UNKNOWN_SCHEME, "The scheme is 0 (identity) or 1 (GZIP) (Compression)"
    ),
    "emp.compression.data": _extension_rule(
        _GZ, ExtensionError.BAD_DATA, "A body of scheme 1 is GZIP data, RFC 1952 (Compression)"
    ),
    "emp.compression.too-large": _extension_rule(
        _GZ, ExtensionError.TOO_LARGE, "A body decompresses to no more than `max_decompressed` (decision)"
    ),
    "emp.hub.content": _extension_rule(
        _HUB, _MALFORMED, "The content is flags and the strings they announce (hub profile)"
    ),
    "emp.hub.repeated": _extension_rule(_HUB, _REPEATED, "One block of the hub a message (hub profile)"),
    "emp.hello.body": Rule("The body of `hello` is the version and three unused bytes (Hello)"),
    "emp.error.body": Rule("The body of `error` is three codes, a byte, and a character string (Error)"),
    "emp.hello.version": Rule("The version field contains a supported version number (Handshake)"),
    "emp.hello.repeated": Rule("`hello` is sent once, after the connection has been established (Handshake)"),
    "emp.handshake.order": Rule("Exchanges must not be initiated during the handshake procedure (Handshake)"),
    "emp.handshake.timeout": Rule("`hello` comes within `handshake_timeout` (decision)", code=ErrorCode.TIMEOUT),
    "emp.ping.too-many": Rule("A peer that keeps sending `ping` before the last is answered is closed (Ping-pong)"),
    "emp.request.reused-id": Rule(
        "An implementation never sends two requests with the same identifier (Request-response)"
    ),
    "emp.request.too-many": Rule(
        "No more than `max_requests` requests wait for a response (decision)", code=ErrorCode.UNSPECIFIED
    ),
    "emp.response.unknown-id": Rule("A response matches a pending request (Request-response)"),
    "emp.flow.after-end": Rule("After `bye` or `error` the sender closes the connection (Termination)"),
}
"""Every rule whose breach ends a connection, by clause."""

CLAUSES = {clause: rule.sentence for clause, rule in RULES.items()}

COUNTED = {
    "emp.pong.unasked": "A pong that nobody asked for is ignored (decision)",
    "emp.ping.overlap": "No second ping before the first is answered (Ping-pong)",
}
"""What is counted and otherwise ignored."""


class ExtensionBlock(NamedTuple):
    """An extension block; which of them is the last is known from the message."""

    extension: int
    content: bytes = b""


class Frame(NamedTuple):
    """A message as it is on the wire; the body still compressed if it is.

    Frames and blocks are named tuples: three are made for every request, and others take three times as long to make.
    """

    type: int
    body: bytes = b""
    blocks: tuple[ExtensionBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """The body of a `hello` message."""

    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Error:
    """The body of an `error` message."""

    code: int
    message: str = ""
    extension: int = 0
    extension_error: int = 0


_HEAD = struct.Struct(">IBBxx")
"""Size and type (or extension id) with the byte whose first bit is E (or M): alike for envelope and block."""
_SIZE = struct.Struct(">I")
_HELLO = struct.Struct(">Bxxx")
_ERROR = struct.Struct(">BBBxH")
_MORE = 0x80
LAST_TYPE = int(max(Type))
_EXCLUSIVE = SizeMode.EXCLUSIVE
HELLO_SIZE = 12
"""Bytes of a `hello` without blocks."""
_HINTS = {
    SizeMode.INCLUSIVE: '; its sizes seem to count their own four bytes: set size_mode = "inclusive", or "auto"',
    SizeMode.EXCLUSIVE: '; its sizes seem to leave out their own four bytes: set size_mode = "exclusive", or "auto"',
}
"""What is said about a frame that makes sense in the other size mode only."""
_pack_head, _unpack_head = _HEAD.pack, _HEAD.unpack_from


def encode(frame: Frame, size_mode: SizeMode = SizeMode.INCLUSIVE) -> bytes:
    """A message as bytes; unused bits are zero.

    >>> encode(Frame(Type.DATA, b"hello")).hex()
    '0000000d0500000068656c6c6f'
    >>> encode(Frame(Type.DATA, b"!", (ExtensionBlock(200, b"x"),))).hex()
    '000000120580000000000009c80000007821'
    """
    type_, body, blocks = frame
    left_out = 4 if size_mode is _EXCLUSIVE else 0
    size, following = 8 + len(body), len(blocks)
    parts = [b""]
    for extension, content in blocks:
        following -= 1
        block_size = 8 + len(content)
        parts += (_pack_head(block_size - left_out, extension, _MORE if following else 0), content)
        size += block_size
    if size > MAX_MESSAGE_LIMIT:
        raise LimitExceeded(f"message of {size} bytes; an emp envelope holds at most {MAX_MESSAGE_LIMIT}")
    parts[0] = _pack_head(size - left_out, type_, _MORE if blocks else 0)
    parts.append(body)
    return b"".join(parts)


def decode(
    buffer: bytes | bytearray,
    start: int = 0,
    max_message: int = MAX_MESSAGE_DEFAULT,
    size_mode: SizeMode = SizeMode.INCLUSIVE,
) -> tuple[Frame, int] | None:
    """The message at `start` and where it ends; None when only a part of it is there.

    Size and type are refused as soon as they are seen, before the rest is waited for.

    >>> decode(bytes.fromhex("0000000d0500000068656c6c6f"))
    (Frame(type=5, body=b'hello', blocks=()), 13)
    >>> decode(bytes.fromhex("0000000d05")) is None
    True
    >>> decode(bytes.fromhex("0000000806000000"))
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: emp.type.reserved: type 6
    """
    available = len(buffer) - start
    left_out = 4 if size_mode is _EXCLUSIVE else 0
    if available < 8:
        if available >= 4:
            _check_size(_SIZE.unpack_from(buffer, start)[0] + left_out, left_out, max_message)
        return None
    size, type_, flags = _unpack_head(buffer, start)
    size += left_out
    if not 8 <= size <= max_message:
        _check_size(size, left_out, max_message)
    if LAST_TYPE < type_ < FIRST_APPLICATION_TYPE:
        raise violation("emp.type.reserved", f"type {type_}")
    if not type_ and size != HELLO_SIZE and not flags & _MORE:
        hint = size_hint(size - HELLO_SIZE)
        raise violation("emp.hello.body", f"{size - 8} bytes instead of {HELLO_SIZE - 8}{hint}")
    if available < size:
        return None
    end = start + size
    if flags & _MORE:
        try:
            blocks, position = _decode_blocks(buffer, start + 8, end, left_out)
        except ProtocolViolation as found:
            other = SizeMode.INCLUSIVE if left_out else SizeMode.EXCLUSIVE
            if not _have_blocks_room(buffer, start + 8, end, left_out):
                raise
            raise violation(found.clause, found.detail + _HINTS[other], extension=found.reply[9]) from None
    else:
        blocks, position = (), start + 8
    return Frame(type_, bytes(buffer[position:end]), blocks), end


def size_hint(excess: int) -> str:
    """What is said about a part that has so many bytes too many: four mean that the other size mode is right."""
    mode = {4: SizeMode.INCLUSIVE, -4: SizeMode.EXCLUSIVE}.get(excess)
    return "" if mode is None else _HINTS[mode]


def _have_blocks_room(buffer: bytes | bytearray, position: int, end: int, left_out: int) -> bool:
    """Whether blocks that do not fit into their message would fit in the other size mode.

    No more is looked at than the message in its own mode: what follows it may not be there yet.
    """
    other_left_out = 4 - left_out
    other_end = end + other_left_out - left_out
    more = _MORE
    while more:
        if min(end, other_end) - position < 8:
            return False
        size, _, flags = _unpack_head(buffer, position)
        size += other_left_out
        if not 8 <= size <= other_end - position:
            return False
        more = flags & _MORE
        position += size
    return True


def _check_size(size: int, left_out: int, max_message: int) -> None:
    if size < 8:
        hint = _HINTS[SizeMode.EXCLUSIVE] if size >= 4 and not left_out else ""
        raise violation("emp.envelope.size", f"size {size - left_out} leaves no room for the header{hint}")
    if size > max_message:
        raise violation("emp.envelope.too-large", f"message of {size} bytes; max_message is {max_message}")


def needed(buffer: bytes | bytearray, start: int, size_mode: SizeMode = SizeMode.INCLUSIVE) -> int:
    """How many bytes of the message at `start` must be there before `decode`, which gave None, can say more."""
    available = len(buffer) - start
    if available < 8:
        return 4 if available < 4 else 8
    return int(_SIZE.unpack_from(buffer, start)[0]) + (4 if size_mode is _EXCLUSIVE else 0)


def _decode_blocks(
    buffer: bytes | bytearray, position: int, end: int, left_out: int
) -> tuple[tuple[ExtensionBlock, ...], int]:
    """The chain of blocks and where the body begins."""
    blocks: list[ExtensionBlock] = []
    more = _MORE
    while more:
        if end - position < 8:
            clause = "emp.extension.chain" if blocks else "emp.extension.missing"
            raise violation(clause, f"a block is announced and {end - position} bytes are left")
        size, extension, flags = _unpack_head(buffer, position)
        size += left_out
        if not 8 <= size <= end - position:
            raise violation(
                "emp.extension.size",
                f"block of extension {extension} with size {size - left_out}, {end - position} bytes are left",
                extension=extension,
            )
        blocks.append(ExtensionBlock(extension, bytes(buffer[position + 8 : position + size])))
        more = flags & _MORE
        position += size
    return tuple(blocks), position


def encode_hello(hello: Hello) -> bytes:
    """The body of a `hello`.

    >>> encode_hello(Hello(1)).hex()
    '01000000'
    """
    return _HELLO.pack(hello.version)


def decode_hello(body: bytes) -> Hello:
    """The inverse of `encode_hello`; whether the version is supported is the session's question."""
    if len(body) != _HELLO.size:
        raise violation("emp.hello.body", f"{len(body)} bytes instead of {_HELLO.size}")
    return Hello(body[0])


def encode_error(error: Error) -> bytes:
    """The body of an `error`; a message that is too long for its length field is cut.

    >>> encode_error(Error(ErrorCode.IO, "asked for")).hex()
    '01000000000961736b656420666f72'
    """
    text = error.message.encode()
    if len(text) > 0xFFFF:
        text = text[:0xFFFF].decode(errors="ignore").encode()
    return _ERROR.pack(error.code, error.extension, error.extension_error, len(text)) + text


def decode_error(body: bytes) -> Error:
    """The inverse of `encode_error`."""
    if len(body) < _ERROR.size:
        raise violation("emp.error.body", f"{len(body)} bytes, at least {_ERROR.size} are needed")
    code, extension, extension_error, length = _ERROR.unpack_from(body)
    text = body[_ERROR.size :]
    if len(text) != length:
        hint = size_hint(len(text) - length)
        raise violation("emp.error.body", f"error message of {len(text)} bytes whose length says {length}{hint}")
    try:
        return Error(code, text.decode(), extension, extension_error)
    except UnicodeDecodeError:
        raise violation("emp.error.body", "the error message is not UTF-8") from None


def violation(clause: str, detail: str, *, extension: int | None = None) -> ProtocolViolation:
    """A breach of `clause`, with the `error` message that the peer gets for it."""
    rule = RULES[clause]
    told = Error(
        rule.code, f"{clause}: {detail}", rule.extension if extension is None else extension, rule.extension_error
    )
    return ProtocolViolation(clause, detail, reply=encode(Frame(Type.ERROR, encode_error(told))))


def readdress(found: ProtocolViolation, size_mode: SizeMode) -> ProtocolViolation:
    """The same violation, its reply in the size mode that the peer understands."""
    if size_mode is SizeMode.EXCLUSIVE and found.reply:
        found.reply = _SIZE.pack(len(found.reply) - 4) + found.reply[4:]
    return found
