"""The emp kernel: `data` messages with a topic in columns, for publishes, requests and answers.

See `wireloom.protocols.publish_columns` for the theory of operation.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import NO_ATTRIBUTES, Authenticity, Kind, Message, message_of
from wireloom.protocols import publish_columns
from wireloom.protocols.call_columns import CallColumns
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.frames import Extension, SizeMode, Type
from wireloom.protocols.emp.messages import to_message
from wireloom.protocols.emp.session import EmpSession
from wireloom.protocols.kernel_bytes import u32
from wireloom.protocols.publish_columns import (
    ANSWER,
    BODY,
    BODY_SIZE,
    FIELDS,
    ID,
    KIND,
    OFFSET,
    READ,
    REQUEST,
    SIZE,
    TOPIC,
    TOPIC_SIZE,
    Columns,
    Meaning,
    PublishColumns,
    put_u32,
    sample_rows,
    topic_after_prefix,
)
from wireloom.protocols.session import Session

_DATA, _REQUEST_RESPONSE, _HUB = int(Type.DATA), int(Extension.REQUEST_RESPONSE), int(Extension.HUB)
_EVENT, _NOBODY = Kind.EVENT, Authenticity.NONE
_ANSWER = 28
"""Bytes of a response without body and topic."""
_LEAST = 19
"""Bytes of the smallest event with a topic."""


@kernel
def _scan(
    data: NDArray[np.uint8],
    starts: Columns,
    ends: Columns,
    max_message: int,
    columns: Columns,
    stops: Columns,
    odd: NDArray[np.bool_],
) -> int:
    """Fill a row for each `data` message with a topic. In a frame, the content type follows the topic directly.

    If there is one read only, and it begins with a request or an answer, the rows are requests or answers.
    """
    row, first = 0, np.int64(-1)
    for read in range(starts.shape[0]):
        at, end = starts[read], ends[read]
        while end - at >= 8:
            odd[read] = True
            size = u32(data, at)
            if size < _LEAST or size > max_message or data[at + 4] != _DATA or data[at + 5] < 0x80:
                break
            if size > end - at:
                odd[read] = False
                break
            stop, block, number, kind = at + size, at + 8, np.int64(-1), 0
            if data[block + 4] == _REQUEST_RESPONSE:
                if size < 28 + 11 or u32(data, block) != 20 or data[block + 5] < 0x80:
                    break
                number = (u32(data, block + 12) << 32) | u32(data, block + 16)
                kind = 1 if data[block + 8] >= 0x80 else ANSWER
                if number <= 0:
                    break
                block += 20
            length = u32(data, block)
            if (
                length < 11
                or length > stop - block
                or data[block + 4] != _HUB
                or data[block + 5] >= 0x80
                or data[block + 8] & 0x85 != 0x01
            ):
                break
            topic = block + 11
            topic_size = (np.int64(data[block + 9]) << 8) | np.int64(data[block + 10])
            if topic_size > block + length - topic:
                break
            skipped = topic_after_prefix(data, topic, topic_size, kind == 1)
            if skipped < 0 and kind == 1:
                kind = REQUEST
                skipped = topic_after_prefix(data, topic, topic_size, False)
            if first < 0:
                first = np.int64(kind if starts.shape[0] == 1 else 0)
            if skipped < 0 or ((kind > 1 or first > 1) and kind != first):
                break
            position, is_ascii = topic + topic_size, True
            if data[block + 8] & 0x02:
                # The high byte of the size must be 0: otherwise it could be mistaken for a part of the topic.
                if block + length - position < 2 or data[position] != 0:
                    break
                content = position + 2
                position = content + np.int64(data[position + 1])
                if position > block + length:
                    break
                for index in range(content, position):
                    if data[index] >= 0x80:
                        is_ascii = False
            if position != block + length or not is_ascii:
                break
            odd[read] = False
            columns[READ, row], columns[OFFSET, row], columns[SIZE, row] = read, at, size
            columns[KIND, row], columns[ID, row] = kind, number
            columns[TOPIC, row], columns[TOPIC_SIZE, row] = topic + skipped, position - topic - skipped
            columns[BODY, row], columns[BODY_SIZE, row] = position, stop - position
            row += 1
            at = stop
        stops[read] = at
    return row


@kernel
def _write_answers(ids: Columns, out: NDArray[np.uint8]) -> None:
    """Write final responses without a body; `out` must be all zeros."""
    for row in range(ids.shape[0]):
        at = np.int64(row * _ANSWER)
        put_u32(out, at, np.int64(_ANSWER))
        out[at + 4], out[at + 5] = _DATA, 0x80
        put_u32(out, at + 8, np.int64(20))
        out[at + 12] = _REQUEST_RESPONSE
        put_u32(out, at + 20, ids[row] >> 32)
        put_u32(out, at + 24, ids[row])


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    publish_columns.warm()
    one, data = np.zeros(1, np.int64), np.frombuffer(bytes(8), np.uint8)
    _scan(data, one, one, 1, np.empty((FIELDS, 1), np.int64), np.empty(1, np.int64), np.zeros(1, np.bool_))
    _write_answers(sample_rows()[ID], np.empty(2 * _ANSWER, np.uint8))


def _meaning(key: bytes) -> Meaning:
    """Split a key: the topic, then, if there is a content type, two bytes for its size and the content type."""
    at = key.find(b"\0")
    return Meaning(key.decode(), None) if at < 0 else Meaning(key[:at].decode(), sys.intern(key[at + 2 :].decode()))


def _message(session: Session, buffer: bytes, start: int) -> Message:
    """Decode the message at a position, by the reference decoder."""
    settings = cast(EmpSession, session).settings
    found = frames.decode(buffer, start, settings.max_message, SizeMode.INCLUSIVE)
    assert found is not None, "kernel and decoder disagree"
    return to_message(found[0], settings, session.inbound)


class EmpCalls(CallColumns):
    """Requests and answers of a session whose sizes are inclusive."""

    __slots__ = ()

    def read_ids(self) -> Sequence[str]:
        """Numbers."""
        return list(map(str, self.columns[ID].tolist()))

    def meaning(self, key: bytes) -> Meaning:
        """The topic and the content type."""
        return _meaning(key)

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        return _message(self.session, self._buffer, int(self.columns[OFFSET, row]))


class EmpPublishes(PublishColumns):
    """Messages of sessions whose sizes are inclusive."""

    __slots__ = ()

    calls = EmpCalls
    smallest: ClassVar[int] = _LEAST

    @classmethod
    def scan(
        cls,
        session: Session,
        data: NDArray[np.uint8],
        starts: Columns,
        ends: Columns,
        columns: Columns,
        stops: Columns,
        odd: NDArray[np.bool_],
    ) -> int:
        """Rows of `data` whose only extensions are the hub's, and the one that makes it a request."""
        count: int = _scan(data, starts, ends, cast(EmpSession, session).settings.max_message, columns, stops, odd)
        return count

    def meaning(self, key: bytes) -> Meaning | None:
        """The topic and the content type."""
        return _meaning(key)

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        return _message(self.sessions[0], self.buffer, int(self.columns[OFFSET, row]))

    def event_messages(self, rows: Columns, codes: Sequence[int]) -> list[Message]:
        """Decode rows into the events that they publish."""
        buffer, direction, meanings = self.buffer, self.sessions[0].inbound, self.meanings
        found = []
        for at, size, code in zip(rows[BODY].tolist(), rows[BODY_SIZE].tolist(), codes, strict=True):
            means = meanings[code]
            assert means is not None
            found.append(message_of((
                _EVENT, means.topic, buffer[at : at + size], None, None, None, means.content_type, NO_ATTRIBUTES,
                "emp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return found

    def answers(self, asks: Columns, rows: Columns) -> tuple[bytes, Columns]:
        """Responses that contain only their id."""
        out = np.zeros(_ANSWER * asks.shape[1], np.uint8)
        _write_answers(asks[ID], out)
        return out.tobytes(), _ANSWER * rows
