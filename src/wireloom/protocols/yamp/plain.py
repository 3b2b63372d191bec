"""The most common frames without the detour through `frames.py`: events, requests and their last responses.

A session tries this first. It stops before everything else, anything unusual and anything wrong; then `frames.py` and
`protocol.py` decide. What it does give is the same, which the tests hold against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from functools import lru_cache

from wireloom.model import NO_ATTRIBUTES, Authenticity, Direction, Kind, Message, message_of
from wireloom.protocols.contract import HUB_PREFIX, Asker
from wireloom.protocols.yamp.frames import MAX_URI, FrameType, ResponseType
from wireloom.protocols.yamp.uids import uid_text

_SIZE = struct.Struct(">I")
_pack_size, _unpack_size, _pack_tail = _SIZE.pack, _SIZE.unpack_from, struct.Struct(">BI").pack
# Looking up a member of an enum costs as much as making a message.
_EVENT_FRAME, _REQUEST_FRAME, _RESPONSE_FRAME = int(FrameType.EVENT), int(FrameType.REQUEST), int(FrameType.RESPONSE)
_DONE = int(ResponseType.DONE)
_EVENT, _REQUEST, _RESPONSE, _NOBODY = Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE


Owed = tuple[bytes, str, bool, bytes]
"""A request that waits for our answer: its uid, its uri, whether progress was asked for, and the uri as in a frame."""

Asked = tuple[str, Message | Asker]
"""A request of ours that waits for its answer: its id, and itself (without that id) or who asked it."""


@lru_cache(maxsize=1024)
def _uri(encoded: bytes) -> str | None:
    """The uri these bytes spell; None for what takes a closer look: the hub's operations, and what is not UTF-8."""
    try:
        uri = encoded.decode()
    except UnicodeDecodeError:
        return None
    return None if uri.startswith(HUB_PREFIX) else uri


@lru_cache(maxsize=1024)
def encoded(uri: str) -> bytes | None:
    """A uri after its size; None if it has no place in a frame."""
    try:
        text = uri.encode()
    except UnicodeEncodeError:
        return None
    return bytes((len(text),)) + text if len(text) <= MAX_URI else None


def owed_for(uid: bytes, uri: str, progressive: bool) -> Owed:
    """What is owed for a request."""
    as_in_frame = encoded(uri)
    assert as_in_frame is not None, "the uri came in a frame"
    return uid, uri, progressive, as_in_frame


class LastUri:
    """The uri of the last message that was read: mostly the next one has the same."""

    __slots__ = ("encoded", "uri")

    def __init__(self) -> None:
        self.encoded = b"\0"
        """As in a frame, after its size."""
        self.uri = ""


def read_plain(
    buffer: bytes | bytearray,
    start: int,
    max_body: int,
    max_requests: int,
    content_type: str | None,
    direction: Direction,
    waiting: dict[bytes, Asked],
    cancelled: Container[bytes],
    owed: dict[str, Owed],
    killed: Container[str],
    last: LastUri,
    messages: list[Message],
    *,
    to_askers: bool = False,
) -> int:
    """Add the plain messages from `start` on to `messages`; returns where they end.

    It enters requests in `owed` and takes responses out of `waiting`, and ends before a frame where that is not
    possible, and before requests that were `killed` and responses to those that were `cancelled`. With `to_askers`,
    whoever asked gets the response instead.
    """
    available = len(buffer)
    while available - start > 22:
        type_ = buffer[start]
        after = start + 18 + buffer[start + 17]
        if type_ == _REQUEST_FRAME:
            at = after + 5
            if at > available or buffer[after]:
                break
        elif type_ == _RESPONSE_FRAME:
            at = after + 21
            if at > available or buffer[after + 16] != _DONE:
                break
        elif type_ == _EVENT_FRAME:
            at = after + 4
            if at > available:
                break
        else:
            break
        size = _unpack_size(buffer, at - 4)[0]
        end = at + size
        if size > max_body or end > available:
            break
        if buffer.__class__ is not bytes:
            buffer = bytes(buffer)
        if buffer.startswith(last.encoded, start + 17):
            uri = last.uri
        else:
            found = _uri(buffer[start + 18 : after])
            if found is None:
                break
            last.encoded, last.uri = buffer[start + 17 : after], found
            uri = found
        if type_ == _RESPONSE_FRAME:
            request_uid = buffer[after : after + 16]
            if request_uid in cancelled or (asked := waiting.pop(request_uid, None)) is None:
                break
            answered, request = asked
            if to_askers and request.__class__ is not Message:
                request.answered(buffer[at:end], content_type)  # type: ignore[union-attr]
                start = end
                continue
            identifier, kind, status = uid_text(buffer[start + 1 : start + 17]), _RESPONSE, "done"
        else:
            uid = buffer[start + 1 : start + 17]
            digits = uid.hex("-", 6)
            identifier = f"{digits[:13]}-{digits[13:17]}-{digits[17:]}"
            kind, answered, status = _EVENT, None, None
            if type_ == _REQUEST_FRAME:
                if identifier in owed or identifier in killed or len(owed) >= max_requests:
                    break
                owed[identifier] = (uid, uri, False, last.encoded)
                kind = _REQUEST
        messages.append(message_of((
            kind, uri, buffer[at:end], identifier, answered, status, content_type, NO_ATTRIBUTES,
            "yamp", None, None, direction, _NOBODY,
        )))  # fmt: skip
        start = end
    return start


def write_request(uid: bytes, uri: str, body: bytes) -> bytes | None:
    """A request that is not progressive; None if its uri has no place in a frame.

    >>> write_request(bytes(16), "echo", b"{}").hex()
    '0600000000000000000000000000000000046563686f00000000027b7d'
    """
    head = encoded(uri)
    return None if head is None else b"".join((b"\x06", uid, head, _pack_tail(0, len(body)), body))


def write_event(uid: bytes, uri: str, body: bytes) -> bytes | None:
    """An event; None if its uri has no place in a frame.

    >>> write_event(bytes(16), "a", b"!").hex()
    '050000000000000000000000000000000001610000000121'
    """
    head = encoded(uri)
    return None if head is None else b"".join((b"\x05", uid, head, _pack_size(len(body)), body))


def write_response(uid: bytes, request: Owed, body: bytes) -> bytes:
    """The response that a request is done.

    >>> write_response(bytes(16), (bytes(16), "a", False, b"\\x01a"), b"!").hex()
    '0800000000000000000000000000000000016100000000000000000000000000000000000000000121'
    """
    request_uid, _, _, uri = request
    return b"".join((b"\x08", uid, uri, request_uid, _pack_tail(_DONE, len(body)), body))
