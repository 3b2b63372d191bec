"""Requests and responses whose frame begins like an earlier one: they differ in size, id and body alone.

`frames.py` and `messages.py` take about 5 µs for such a frame, most of it for the blocks of its extensions. These are
the same again and again, except for the id. So what a beginning means is remembered, and the next frame that begins
alike takes about 1.5 µs. Nothing is parsed here but the place of the id and the size of the second block; what the
bytes mean is what the reference decoder said. `tests/protocols/emp/test_remembered_heads.py` holds both together.

    size | type, flags | block of request-response: size, flags | id | block of the hub | body
         |------------------- key ---------------------------|      |----- key ------|
"""

from __future__ import annotations

import struct

from wireloom.model import NO_ATTRIBUTES, Authenticity, Direction, Kind, Message, message_of
from wireloom.protocols.contract import is_control
from wireloom.protocols.emp.extensions import REMEMBERED
from wireloom.protocols.emp.frames import Extension, Frame

_BEGIN = struct.Struct(">I16xQI")
"""Size, id, and the size of the second block."""
_SECOND = 28
"""Where the second block begins."""
_MOST = 1024
"""How many beginnings are remembered."""
_REQUEST, _RESPONSE, _UNPROVEN = Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE
_BLOCKS = (int(Extension.REQUEST_RESPONSE), int(Extension.HUB))

_known: dict[bytes, tuple[Kind, str | None, str | None, str | None]] = {}
"""By beginning: kind, topic, status and content type."""


def read(data: bytes, at: int, max_message: int, direction: Direction) -> tuple[Message, int] | None:
    """The message at a place and where it ends; None where the reference decoder has to look at it.

    Sizes are inclusive.
    """
    available = len(data) - at
    if available < _SECOND + 8:
        return None
    size, number, block = _BEGIN.unpack_from(data, at)
    if not number or block > REMEMBERED or not _SECOND + block <= size <= available or size > max_message:
        return None
    body = at + _SECOND + block
    known = _known.get(data[at + 4 : at + 20] + data[at + _SECOND : body])
    if known is None:
        return None
    kind, topic, status, content_type = known
    text, end = str(number), at + size
    asked, answered = (text, None) if kind is _REQUEST else (None, text)
    return message_of((
        kind, topic, data[body:end], asked, answered, status, content_type, NO_ATTRIBUTES, "emp", None, None, direction,
        _UNPROVEN,
    )), end  # fmt: skip


def remember(data: bytes, at: int, frame: Frame, message: Message) -> None:
    """A frame at a place was decoded: remember what its beginning means, if others may begin so."""
    kind = message.kind
    if (
        (kind is not _REQUEST and kind is not _RESPONSE)
        or tuple(block.extension for block in frame.blocks) != _BLOCKS
        or len(frame.blocks[1].content) > REMEMBERED - 8
        or is_control(message)
    ):
        return
    if len(_known) >= _MOST:
        _known.clear()
    second = at + _SECOND
    body = second + 8 + len(frame.blocks[1].content)
    _known[data[at + 4 : at + 20] + data[second:body]] = kind, message.topic, message.status, message.content_type
