"""The nine frames of yamp: a type byte, then fields in network byte order, each string after its size.

Implements the sections "Frame", "System Frames" and "User Message Frames" of the yamp specification,
version 1. One frame at a time; `columns.py` does the same for thousands. Fields are checked in the order
in which they stand, each as soon as it is there: so a stream gives the same frames, or the same violation,
however it is cut into reads.

User message frames are named tuples: one is made for every message, and a tuple takes a third of the time of a frozen
dataclass. No two of them have the same types of fields, so frames of different classes never compare equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from wireloom.model import ProtocolViolation

VERSION = 1
MAX_BODY_DEFAULT = 16 * 1024 * 1024
MAX_BODY_LIMIT = 2**32 - 1
MAX_URI = 255
MAX_TEXT = 2**16 - 1
UID_SIZE = 16

CLAUSES = {
    "yamp.frame.type": "The first byte is the frame's type, 0x00 to 0x08 (Frame)",
    "yamp.string.utf8": "serializer, reason, url and uri are strings (System Frames, UserMessageHeader)",
    "yamp.request.progressive": "progressive is a bool: 0 or 1 (request)",
    "yamp.cancel.kill": "kill is a bool: 0 or 1 (cancel)",
    "yamp.response.type": "type is done, error, progress or cancelled: 0 to 3 (response)",
    "yamp.body.too-large": "A body has at most 4 GiB, or less where a limit is set: max_body (UserMessageBody)",
    "yamp.body.malformed": "The body is serialized with the serializer agreed in the handshake (UserMessageBody)",
    "yamp.body.schema": "If the serializer supports validation, it may be done when parsing (Format adapters)",
    "yamp.handshake.first": "The handshake is the first frame, and its answer is an echo or a close (system.handshake)",
    "yamp.handshake.repeated": "There is one handshake, after the connection is established (system.handshake)",
    "yamp.handshake.version": "The version is 1 (system.handshake)",
    "yamp.handshake.serializer": "The serializer is one that the server supports (system.handshake)",
    "yamp.handshake.echo": "The server answers with the same handshake (system.handshake)",
    "yamp.handshake.timeout": "The handshake comes within the time allowed for it (system.handshake)",
    "yamp.redirect.direction": "The server sends close-redirect, never the client (system.close-redirect)",
    "yamp.redirect.url": "The url is <protocol>://<host>:<port>[/uri] (system.close-redirect)",
    "yamp.request.uid-reused": "The uid is a unique message identifier (UserMessageHeader)",
    "yamp.request.too-many": "No more requests wait for a response than the limit allows (request)",
}

COUNTED = {
    "yamp.pong.unasked": "A pong answers a ping, with the same payload (system.pong)",
    "yamp.response.unknown": "A response names the uid of a request (response)",
    "yamp.response.killed": "With kill no response follows (cancel)",
    "yamp.progress.unrequested": "Progress is for requests that asked for it (response)",
    "yamp.cancel.unknown": "A cancel for a request that is unknown or done is ignored (cancel)",
    "yamp.request.closing": "Who closes takes no new requests (system.close)",
    "yamp.close.followed": "The drop of the connection follows system.close (system.close)",
}
"""What is counted and otherwise ignored."""


class FrameType(IntEnum):
    """The first byte of every frame."""

    HANDSHAKE = 0x00
    PING = 0x01
    PONG = 0x02
    CLOSE = 0x03
    CLOSE_REDIRECT = 0x04
    EVENT = 0x05
    REQUEST = 0x06
    CANCEL = 0x07
    RESPONSE = 0x08


class ResponseType(IntEnum):
    """What a response says about its request."""

    DONE = 0x00
    ERROR = 0x01
    PROGRESS = 0x02
    CANCELLED = 0x03


@dataclass(frozen=True, slots=True)
class Handshake:
    """The client names version and serializer; the server echoes."""

    version: int
    serializer: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Expect `Pong` with the same payload in return."""

    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Pong:
    """Response to `Ping`."""

    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is dropped after this."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class CloseRedirect:
    """The server asks the client to use another server, and drops the connection."""

    url: str


class Event(NamedTuple):
    """A user message that expects nothing in return."""

    uid: bytes
    uri: str
    body: bytes


class Request(NamedTuple):
    """A user message that expects `Response`, several if it is progressive."""

    uid: bytes
    uri: str
    progressive: bool
    body: bytes


class Cancel(NamedTuple):
    """Ask to cancel a request; with `kill`, to drop it without a response."""

    uid: bytes
    uri: str
    request_uid: bytes
    kill: bool


class Response(NamedTuple):
    """The outcome of a request, or a step on the way to it."""

    uid: bytes
    uri: str
    request_uid: bytes
    type: ResponseType
    body: bytes


Frame = Handshake | Ping | Pong | Close | CloseRedirect | Event | Request | Cancel | Response

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_BYTE_U32 = struct.Struct(">BI")
_BOOLS = (b"\x00", b"\x01")
_RESPONSE_TYPES = tuple(ResponseType)
# Looking up a member of an enum takes as long as making a frame.
_PING, _PONG, _CLOSE = int(FrameType.PING), int(FrameType.PONG), int(FrameType.CLOSE)
_EVENT, _REQUEST = int(FrameType.EVENT), int(FrameType.REQUEST)
_CANCEL, _RESPONSE = int(FrameType.CANCEL), int(FrameType.RESPONSE)


def violation(clause: str, detail: str) -> ProtocolViolation:
    """A violation whose last words are a `system.close` that names the clause.

    >>> violation("yamp.frame.type", "type 9").reply
    b'\\x03\\x00\\x17yamp.frame.type: type 9'
    """
    return ProtocolViolation(clause, detail, reply=encode(Close(cut(f"{clause}: {detail}"))))


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """A text cut to so many bytes of UTF-8, never inside a character."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def encode(frame: Frame) -> bytes:
    """A frame as bytes. Its strings and body must fit their size fields.

    >>> encode(Handshake(1, "json")).hex()
    '000001046a736f6e'
    >>> encode(Event(bytes(16), "echo", b"{}")).hex()
    '0500000000000000000000000000000000046563686f000000027b7d'
    """
    match frame:
        case Event(uid, uri, body):
            return b"".join((b"\x05", uid, _uri_field(uri), _U32.pack(len(body)), body))
        case Request(uid, uri, progressive, body):
            return b"".join((b"\x06", uid, _uri_field(uri), _BYTE_U32.pack(progressive, len(body)), body))
        case Response(uid, uri, request_uid, type_, body):
            return b"".join((b"\x08", uid, _uri_field(uri), request_uid, _BYTE_U32.pack(type_, len(body)), body))
        case Cancel(uid, uri, request_uid, kill):
            return b"".join((b"\x07", uid, _uri_field(uri), request_uid, _BOOLS[kill]))
        case Handshake(version, serializer):
            return b"\x00" + _U16.pack(version) + _short(serializer.encode())
        case Ping(payload):
            return b"\x01" + _short(payload)
        case Pong(payload):
            return b"\x02" + _short(payload)
        case Close(reason):
            return b"\x03" + _long(reason.encode())
        case CloseRedirect(url):
            return b"\x04" + _long(url.encode())


def encode_requests(uids: Sequence[bytes], uri: str, bodies: Sequence[bytes]) -> bytes:
    """A request for each body, none of them progressive."""
    field, parts = _uri_field(uri), list[bytes]()
    for uid, body in zip(uids, bodies, strict=True):
        parts += (b"\x06", uid, field, _BYTE_U32.pack(0, len(body)), body)
    return b"".join(parts)


def encode_responses(uids: Sequence[bytes], uri: str, request_uids: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    """A response of type done for each body."""
    field, parts = _uri_field(uri), list[bytes]()
    for uid, request_uid, body in zip(uids, request_uids, bodies, strict=True):
        parts += (b"\x08", uid, field, request_uid, _BYTE_U32.pack(ResponseType.DONE, len(body)), body)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _uri_field(uri: str) -> bytes:
    """A uri after its size: most messages have one that was written before."""
    return _short(uri.encode())


def _short(data: bytes) -> bytes:
    """Bytes after their size in one byte."""
    return bytes((len(data),)) + data


def _long(data: bytes) -> bytes:
    """Bytes after their size in two bytes."""
    return _U16.pack(len(data)) + data


def decode(buffer: bytes | bytearray, start: int = 0, max_body: int = MAX_BODY_DEFAULT) -> tuple[Frame, int] | None:
    """The frame at `start` and where it ends; None when only a part of it is there.

    >>> decode(bytes.fromhex("0103616263"))
    (Ping(payload=b'abc'), 5)
    >>> decode(bytes.fromhex("01036162")) is None
    True
    >>> decode(b"\\x09")
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: yamp.frame.type: type 9
    """
    end = len(buffer)
    if end <= start:
        return None
    type_ = buffer[start]
    at = start + 1
    if type_ >= _EVENT:
        return _decode_user(buffer, type_, at, end, max_body)
    if type_ == FrameType.HANDSHAKE:
        if end < at + 3 or end < (stop := at + 3 + buffer[at + 2]):
            return None
        return Handshake(_U16.unpack_from(buffer, at)[0], _text(buffer[at + 3 : stop], "serializer")), stop
    if type_ <= _PONG:
        if end <= at or end < (stop := at + 1 + buffer[at]):
            return None
        payload = bytes(buffer[at + 1 : stop])
        return (Ping(payload) if type_ == _PING else Pong(payload)), stop
    if end < at + 2 or end < (stop := at + 2 + _U16.unpack_from(buffer, at)[0]):
        return None
    if type_ == _CLOSE:
        return Close(_text(buffer[at + 2 : stop], "reason")), stop
    return CloseRedirect(_text(buffer[at + 2 : stop], "url")), stop


def needed(buffer: bytes | bytearray, start: int) -> int:
    """How many bytes of the frame at `start` must be there before `decode`, which gave None, can say more."""
    available = len(buffer) - start
    if not available:
        return 1
    type_ = buffer[start]
    if type_ < _EVENT:
        # The sizes of these are in one byte or two, so little waits for them.
        return available + 1 if type_ < _CLOSE or available < 3 else 3 + _U16.unpack_from(buffer, start + 1)[0]
    size = 2 + UID_SIZE
    if available < size or available < (size := size + buffer[start + size - 1]):
        return size
    if type_ != _EVENT:
        size += 1 if type_ == _REQUEST else UID_SIZE + 1
        if available < size:
            return size
    return size + 4 if available < size + 4 else size + 4 + int(_U32.unpack_from(buffer, start + size)[0])


def _decode_user(buffer: bytes | bytearray, type_: int, at: int, end: int, max_body: int) -> tuple[Frame, int] | None:
    """A frame with UserMessageHeader; all but `Cancel` have a UserMessageBody, too."""
    if type_ > _RESPONSE:
        raise violation("yamp.frame.type", f"type {type_}")
    header = at + UID_SIZE + 1
    if end < header or end < (after := header + buffer[header - 1]):
        return None
    uri = _uri(bytes(buffer[header:after]))
    uid = bytes(buffer[at : at + UID_SIZE])
    if type_ == _EVENT:
        found = _body(buffer, after, end, max_body)
        return None if found is None else (Event(uid, uri, found[0]), found[1])
    if type_ == _REQUEST:
        if end <= after:
            return None
        progressive = buffer[after]
        if progressive > 1:
            raise violation("yamp.request.progressive", f"progressive is {progressive}")
        found = _body(buffer, after + 1, end, max_body)
        return None if found is None else (Request(uid, uri, progressive == 1, found[0]), found[1])
    flag = after + UID_SIZE
    if end <= flag:
        return None
    request_uid, value = bytes(buffer[after:flag]), buffer[flag]
    if type_ == _CANCEL:
        if value > 1:
            raise violation("yamp.cancel.kill", f"kill is {value}")
        return Cancel(uid, uri, request_uid, value == 1), flag + 1
    if value >= len(_RESPONSE_TYPES):
        raise violation("yamp.response.type", f"response type {value}")
    found = _body(buffer, flag + 1, end, max_body)
    return None if found is None else (Response(uid, uri, request_uid, _RESPONSE_TYPES[value], found[0]), found[1])


def _body(buffer: bytes | bytearray, at: int, end: int, max_body: int) -> tuple[bytes, int] | None:
    """UserMessageBody: its size is refused before memory is taken or waited for."""
    if end < at + 4:
        return None
    size: int = _U32.unpack_from(buffer, at)[0]
    if size > max_body:
        raise violation("yamp.body.too-large", f"body of {size} bytes; max_body is {max_body}")
    stop = at + 4 + size
    return None if end < stop else (bytes(buffer[at + 4 : stop]), stop)


@lru_cache(maxsize=1024)
def _uri(data: bytes) -> str:
    """A uri: most messages have one that was read before."""
    return _text(data, "uri")


def _text(data: bytes | bytearray, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise violation("yamp.string.utf8", f"{name} is not UTF-8: {error.reason}") from None


_BEFORE_BODY = {int(FrameType.EVENT): 4, int(FrameType.REQUEST): 5, int(FrameType.RESPONSE): 21}
"""Bytes between the uri and the body."""


def split(encoded: bytes) -> list[bytes]:
    """Events, requests and responses in a row, one by one.

    >>> event = encode(Event(bytes(16), "a", b"!"))
    >>> split(event + event) == [event, event]
    True
    """
    found, start = [], 0
    while start < len(encoded):
        body = start + 18 + encoded[start + 17] + _BEFORE_BODY[encoded[start]]
        end = body + int.from_bytes(encoded[body - 4 : body], "big")
        found.append(encoded[start:end])
        start = end
    return found
