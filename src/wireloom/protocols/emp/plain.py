"""The most common messages without the detour through frames: data that is plain or has a topic, requests, responses.

A session tries these first. They give None for everything else, for anything unusual and for anything wrong; then
`frames.py` and `messages.py` decide. What they do give is the same, which the tests hold against each other.
Sizes are inclusive here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from wireloom.model import NO_ATTRIBUTES, Authenticity, Direction, Kind, Message, ProtocolViolation, message_of
from wireloom.protocols.contract import LOGIN, TRACE, Asker
from wireloom.protocols.emp.extensions import Hub, decode_hub, encode_hub
from wireloom.protocols.emp.frames import Extension, Type
from wireloom.protocols.emp.messages import DONE
from wireloom.protocols.emp.settings import EmpSettings

_SHORT = 256
"""Hub blocks up to this size are remembered: the same few topics come again and again."""
_DATA, _REQUEST_RESPONSE, _HUB = int(Type.DATA), int(Extension.REQUEST_RESPONSE), int(Extension.HUB)
_TRACED = TRACE[0]
_HEAD = struct.Struct(">IBBxx")
_RELATED = struct.Struct(">IBBxxIBBxxBxxxQ")
"""Envelope, header and a request-response block."""
RELATED_SIZE = _RELATED.size
_LENGTH = struct.Struct(">I")
_OUTLINE = struct.Struct(">I16sQ")
"""The same as `_RELATED` for whom only size and number differ from message to message."""
# Looking up members of an enum, or methods of a module's object, costs as much as a call.
_EVENT, _REQUEST, _RESPONSE, _NOBODY = Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE
_KINDS = {_EVENT: 0, _REQUEST: 0x80, _RESPONSE: 0}
_pack_head, _pack_outline = _HEAD.pack, _OUTLINE.pack
_unpack_outline, _unpack_length = _OUTLINE.unpack_from, _LENGTH.unpack_from


def _outline(asks: int, more: int) -> bytes:
    """What stands between size and number."""
    return bytes(_RELATED.pack(0, _DATA, 0x80, 20, _REQUEST_RESPONSE, more, asks, 0)[4:20])


_OUTLINES = {_outline(asks, more): (bool(asks), bool(more)) for asks in (0, 0x80) for more in (0, 0x80)}
"""Whether it is a request, and whether the hub's block follows, by what stands between size and number."""

_remembered_hub = lru_cache(maxsize=1024)(decode_hub)


@lru_cache(maxsize=1024)
def _hub_of(block: bytes) -> tuple[str | None, str | None] | None:
    """Topic and content type that the last block of a message gives it; None if it is another block, or wrong.

    None, too, for a message that brings credentials: where it stands must be known.
    """
    length, extension, more = _HEAD.unpack_from(block)
    if extension != _HUB or more & 0x80 or length != len(block) or block[8] & 0x84:
        return None
    try:
        hub = decode_hub(block[8:])
    except ProtocolViolation:
        return None
    return None if hub.topic == LOGIN else (hub.topic, hub.content_type)


@lru_cache(maxsize=1024)
def topic_of(outline: bytes, block: bytes) -> tuple[bool, str, str | None] | None:
    """Whether a message asks, its topic and its content type, from what stands between size and number and its block.

    None where it is written in any other way than `write_request` and `write_response` would write it, and where the
    topic is the hub's own.
    """
    related = _OUTLINES.get(outline)
    hub = _hub_of(block) if related is not None and related[1] and 11 < len(block) <= _SHORT else None
    if related is None or hub is None:
        return None
    topic, content_type = hub
    if not topic or topic.startswith("$"):
        return None
    shape = shape_of(topic, content_type)
    return None if shape is None or shape.block != block else (related[0], topic, content_type)


class LastShape:
    """What the last request or response that was read looked like: mostly the next one looks the same."""

    __slots__ = ("asks", "block", "content_type", "outline", "size", "topic")

    def __init__(self) -> None:
        self.outline = b""
        """What stood between size and number."""
        self.block = b""
        """The hub's block after that, if there was one."""
        self.size = 0
        """Bytes before the body."""
        self.asks = False
        self.topic: str | None = None
        self.content_type: str | None = None

    def learn(self, outline: bytes, buffer: bytes, start: int, end: int) -> bool:
        """Look at another message, from its size to its end; False if it is not plain."""
        found = _OUTLINES.get(outline)
        if found is None:
            return False
        asks, has_block = found
        block, hub, at = b"", None, start + RELATED_SIZE
        if has_block:
            stop = at + _unpack_length(buffer, at)[0] if end - at > 8 else 0
            if not at + 8 < stop <= end or stop > at + _SHORT:
                return False
            block = buffer[at:stop]
            hub = _hub_of(block)
            if hub is None:
                return False
        self.outline, self.block, self.size, self.asks = outline, block, RELATED_SIZE + len(block), asks
        self.topic, self.content_type = hub or (None, None)
        return True


def read_related(
    buffer: bytes | bytearray,
    start: int,
    settings: EmpSettings,
    direction: Direction,
    waiting: dict[str, Message | Asker],
    owed: dict[str, int],
    last: LastShape,
    messages: list[Message],
    *,
    to_askers: bool = False,
) -> int:
    """Add the plain requests and responses from `start` on to `messages`; returns where they end.

    It ends before anything that is not complete, not plain, wrong, or against the conversation: a response to a
    request that is not `waiting` for one, a request whose id is `owed` a response already. It enters requests in
    `owed` and takes responses out of `waiting`. With `to_askers`, whoever asked gets the response instead.
    """
    available, largest, most = len(buffer), settings.max_message, settings.max_requests
    while available - start >= RELATED_SIZE:
        size, outline, number = _unpack_outline(buffer, start)
        end = start + size
        if end > available or size > largest or not number:
            break
        if buffer.__class__ is not bytes:
            buffer = bytes(buffer)
        if (
            outline != last.outline or not buffer.startswith(last.block, start + RELATED_SIZE)
        ) and not last.learn(outline, buffer, start, end):  # fmt: skip
            break
        at = start + last.size
        if at > end:
            break
        related = str(number)
        if last.asks:
            if related in owed or len(owed) >= most:
                break
            owed[related] = number
            messages.append(message_of((
                _REQUEST, last.topic, buffer[at:end], related, None, None, last.content_type, NO_ATTRIBUTES,
                "emp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        else:
            asked = waiting.pop(related, None)
            if asked is None:
                break
            start = end
            if to_askers and asked.__class__ is not Message:
                asked.answered(buffer[at:end], last.content_type)  # type: ignore[union-attr]
                continue
            messages.append(message_of((
                _RESPONSE, last.topic, buffer[at:end], None, related, DONE, last.content_type, NO_ATTRIBUTES,
                "emp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        start = end
    return start


def read_plain(
    buffer: bytes | bytearray, start: int, settings: EmpSettings, direction: Direction
) -> tuple[Message, int] | None:
    """The message at `start` and where it ends, if it is complete and plain."""
    left = len(buffer) - start
    if left < 8:
        return None
    size, type_, more = _HEAD.unpack_from(buffer, start)
    if type_ != _DATA or not 8 <= size <= left or size > settings.max_message:
        return None
    end = start + size
    at = start + 8
    kind, number, answered, status, topic, content_type = _EVENT, None, None, None, None, None
    more &= 0x80
    if more and size >= 28 and buffer[at + 4] == _REQUEST_RESPONSE:
        _, _, _, length, _, more, asks, identifier = _RELATED.unpack_from(buffer, start)
        if length != 20 or not identifier:
            return None
        if asks & 0x80:
            kind, number = _REQUEST, str(identifier)
        else:
            kind, answered, status = _RESPONSE, str(identifier), DONE
        more &= 0x80
        at += 20
    if more:
        if end - at < 8:
            return None
        length, extension, more = _HEAD.unpack_from(buffer, at)
        if extension != _HUB or more & 0x80 or not 8 < length <= min(end - at, _SHORT) or buffer[at + 8] & 0x84:
            return None
        hub = _remembered_hub(bytes(buffer[at + 8 : at + length]))
        topic, content_type = hub.topic, hub.content_type
        at += length
    body = bytes(buffer[at:end])
    return Message(kind, topic, body, number, answered, status, content_type, {}, "emp", None, None, direction), end


class Shape(NamedTuple):
    """What all plain messages with one topic and one content type have in common."""

    block: bytes
    """The block that says topic and content type; empty if there is neither."""
    size: int
    """Bytes of a request or response without body."""
    asking: bytes
    """What stands between size and number of a request."""
    answering: bytes
    """The same of a response."""


LARGEST_SHAPE = RELATED_SIZE + 8 + 5 + 4 * _SHORT
"""No shape is larger than this."""


@lru_cache(maxsize=1024)
def shape_of(topic: str | None, content_type: str | None) -> Shape | None:
    """The shape of messages with this topic and content type; None if these are too long to be remembered."""
    block = b""
    if topic is not None or content_type is not None:
        if len(topic or "") + len(content_type or "") > _SHORT:
            return None
        content = encode_hub(Hub(topic, content_type))
        block = _HEAD.pack(8 + len(content), _HUB, 0) + content
    more = 0x80 if block else 0
    return Shape(block, RELATED_SIZE + len(block), _outline(0x80, more), _outline(0, more))


def write_plain(message: Message, number: int, settings: EmpSettings) -> bytes | None:
    """An event, or the request or response with this number, as bytes; None where that takes more."""
    asks = _KINDS.get(message.kind)
    body = message.body
    if (
        asks is None
        or (message.kind is not _EVENT) != bool(number)
        or (message.attributes and message.protocol in ("", "emp"))
        or (message.status is not None and not (message.status == DONE and message.kind is _RESPONSE))
        or (settings.compress_above is not None and len(body) > settings.compress_above)
    ):
        return None
    shape = shape_of(message.topic, message.content_type)
    if shape is None:
        return None
    block = shape.block
    size = 8 + len(block) + len(body) + (20 if number else 0)
    if size > settings.max_message:
        return None
    more = 0x80 if block else 0
    if number:
        head = _RELATED.pack(size, _DATA, 0x80, 20, _REQUEST_RESPONSE, more, asks, number)
    else:
        head = _HEAD.pack(size, _DATA, more)
    return head + block + body


def write_events(events: Sequence[Message], settings: EmpSettings) -> bytes | None:
    """Plain events in a row as bytes; None if there is one that takes more."""
    largest, compress_above = settings.max_message, settings.compress_above
    written: list[bytes] = []
    topic = content_type = block = None
    for event in events:
        body = event.body
        if block is None or event.topic is not topic or event.content_type is not content_type:
            topic, content_type = event.topic, event.content_type
            shape = shape_of(topic, content_type)
            if shape is None:
                return None
            block = shape.block
            more, head_size = 0x80 if block else 0, 8 + len(block)
        size = head_size + len(body)
        if size > largest or (compress_above is not None and len(body) > compress_above):
            return None
        if event.attributes and _TRACED in event.attributes:
            return None
        written += (_pack_head(size, _DATA, more), block, body)
    return b"".join(written)


def write_requests(requests: Sequence[Message], first: int, settings: EmpSettings, written: list[bytes]) -> int:
    """Add the bytes of plain requests, numbered from `first` on, to `written`; returns how many there are.

    It ends before the first that is not plain.
    """
    largest, compress_above = settings.max_message, settings.compress_above
    topic = content_type = shape = None
    number = first
    for request in requests:
        body = request.body
        if shape is None or request.topic is not topic or request.content_type is not content_type:
            topic, content_type = request.topic, request.content_type
            shape = shape_of(topic, content_type)
            if shape is None:
                break
            block, head_size, outline, _ = shape
        size = head_size + len(body)
        if request.attributes or size > largest or (compress_above is not None and len(body) > compress_above):
            break
        written.append(_pack_outline(size, outline, number) + block + body)
        number += 1
    return number - first


def write_event(shape: Shape, body: bytes) -> bytes:
    """A plain event.

    >>> write_event(shape_of("a", None), b"hi").hex()
    '00000016058000000000000c80000000010001616869'
    """
    block = shape.block
    return _pack_head(8 + len(block) + len(body), _DATA, 0x80 if block else 0) + block + body


def write_request(shape: Shape, number: int, body: bytes) -> bytes:
    """A plain request.

    >>> write_request(shape_of("a", None), 1, b"hi").hex()
    '0000002a0580000000000014008000008000000000000000000000010000000c80000000010001616869'
    """
    block, size, asking, _ = shape
    return _pack_outline(size + len(body), asking, number) + block + body


def write_response(shape: Shape, number: int, body: bytes) -> bytes:
    """A plain response.

    >>> write_response(shape_of(None, None), 1, b"hi").hex()
    '0000001e0580000000000014000000000000000000000000000000016869'
    """
    block, size, _, answering = shape
    return _pack_outline(size + len(body), answering, number) + block + body
