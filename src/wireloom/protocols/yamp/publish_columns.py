"""The yamp kernel: events and acknowledged publishes of many reads in columns, or requests or responses of one read.

See `wireloom.protocols.publish_columns` for the theory of operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.formats import body_formats
from wireloom.kernels import kernel
from wireloom.model import NO_ATTRIBUTES, Authenticity, Kind, Message, message_of
from wireloom.protocols import publish_columns
from wireloom.protocols.call_columns import CallColumns
from wireloom.protocols.column_session import ColumnSession
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
    copy,
    put_u32,
    sample_rows,
    topic_after_prefix,
)
from wireloom.protocols.session import Session
from wireloom.protocols.yamp import frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.protocol import to_message
from wireloom.protocols.yamp.session import YampSession
from wireloom.protocols.yamp.uids import uid_text

_EVENT, _REQUEST, _RESPONSE = int(FrameType.EVENT), int(FrameType.REQUEST), int(FrameType.RESPONSE)
_DONE = int(ResponseType.DONE)
_IS_EVENT, _NOBODY = Kind.EVENT, Authenticity.NONE
_LEAST = 23
"""Bytes of the smallest event with a uri."""
_ANSWER = 39 + 5
"""Bytes of a response without its uri, with the longest body that stands for no value."""


@kernel
def _scan(
    data: NDArray[np.uint8],
    starts: Columns,
    ends: Columns,
    max_body: int,
    columns: Columns,
    stops: Columns,
    odd: NDArray[np.bool_],
) -> int:
    """Fill a row for each `event`, and each `request` for `$hub/publish/`.

    `ID` is the first half of the uid, which contains the time. If there is one read only, and it begins with another
    request or a final response, the rows are such requests or responses.
    """
    row, first = 0, np.int64(-1)
    for read in range(starts.shape[0]):
        at, end = starts[read], ends[read]
        while end - at >= 18:
            odd[read] = True
            type_ = data[at]
            if type_ not in (_EVENT, _REQUEST, _RESPONSE):
                break
            uri, uri_size = at + 18, np.int64(data[at + 17])
            body = uri + uri_size + (4 if type_ == _EVENT else 5 if type_ == _REQUEST else 21)
            if body > end:
                odd[read] = False
                break
            # Requests that ask for progress, and responses that are not done, take a closer look.
            if type_ != _EVENT and data[body - 5] != (_DONE if type_ == _RESPONSE else 0):
                break
            size = u32(data, body - 4)
            if size > max_body:
                break
            if body + size > end:
                odd[read] = False
                break
            kind = 1 if type_ == _REQUEST else 0 if type_ == _EVENT else ANSWER
            skipped = topic_after_prefix(data, uri, uri_size, kind == 1)
            if skipped < 0 and kind == 1:
                kind = REQUEST
                skipped = topic_after_prefix(data, uri, uri_size, False)
            if first < 0:
                first = np.int64(kind if starts.shape[0] == 1 else 0)
            if skipped < 0 or ((kind > 1 or first > 1) and kind != first):
                break
            odd[read] = False
            columns[READ, row], columns[OFFSET, row], columns[SIZE, row] = read, at, body + size - at
            columns[KIND, row] = kind
            columns[ID, row] = (u32(data, at + 1) << 31) | (u32(data, at + 5) >> 1) if kind else np.int64(-1)
            columns[TOPIC, row], columns[TOPIC_SIZE, row] = uri + skipped, uri_size - skipped
            columns[BODY, row], columns[BODY_SIZE, row] = body, size
            row += 1
            at = body + size
        stops[read] = at
    return row


@kernel
def _write_answers(
    data: NDArray[np.uint8],
    offsets: Columns,
    high: np.uint64,
    low: np.uint64,
    body: NDArray[np.uint8],
    out: NDArray[np.uint8],
    ends: Columns,
) -> np.int64:
    """Write final responses, all with this body; their uids count up from the one given.

    `ends[i]` gets where the first `i` of them end; the first is there already.
    """
    at = np.int64(0)
    for row in range(offsets.shape[0]):
        start = offsets[row]
        uri_size = np.int64(data[start + 17])
        out[at] = _RESPONSE
        number = low + np.uint64(row)
        for index in range(8):
            shift = np.uint64(56 - 8 * index)
            out[at + 1 + index] = (high >> shift) & np.uint64(0xFF)
            out[at + 9 + index] = (number >> shift) & np.uint64(0xFF)
        at += 17
        copy(data, start + 17, uri_size + 1, out, at)
        at += uri_size + 1
        copy(data, start + 1, np.int64(16), out, at)
        at += 16
        out[at] = _DONE
        put_u32(out, at + 1, body.shape[0])
        copy(body, np.int64(0), np.int64(body.shape[0]), out, at + 5)
        at += 5 + body.shape[0]
        ends[row + 1] = at
    return at


@cache
def _body_of(data: bytes) -> NDArray[np.uint8]:
    """A body as an array for the kernel, of the same type whether it is empty or not."""
    return np.array(list(data), np.uint8)


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    publish_columns.warm()
    one, data = np.zeros(1, np.int64), np.frombuffer(bytes(64), np.uint8)
    _scan(data, one, one, 1, np.empty((FIELDS, 1), np.int64), np.empty(1, np.int64), np.zeros(1, np.bool_))
    offsets = sample_rows()[OFFSET]
    out, ends = np.empty(2 * _ANSWER, np.uint8), np.empty(2, np.int64)
    _write_answers(data, offsets, np.uint64(1), np.uint64(1), _body_of(b""), out, ends)


def _message(session: ColumnSession, buffer: bytes, start: int) -> Message:
    """Decode the message at a position, by the reference decoder."""
    found = frames.decode(buffer, start, cast(YampSession, session).settings.max_body)
    assert found is not None, "kernel and decoder disagree"
    return to_message(found[0], session.inbound, session.content_type)


class YampCalls(CallColumns):
    """Requests without progress, or final responses."""

    __slots__ = ()

    def read_ids(self) -> Sequence[str]:
        """The uid of a request. In a response it is that of its request, which precedes type, size and body."""
        places = (self.columns[BODY] - 21 if self.is_answers else self.columns[OFFSET] + 1).tolist()
        return [uid_text(self._buffer[at : at + 16]) for at in places]

    def meaning(self, key: bytes) -> Meaning:
        """The uri; the content type is that of the connection."""
        return Meaning(key.decode(), self.session.content_type)

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        return _message(self.session, self._buffer, int(self.columns[OFFSET, row]))


class YampPublishes(PublishColumns):
    """Frames of sessions with the same serializer."""

    __slots__ = ()

    calls = YampCalls
    smallest: ClassVar[int] = _LEAST
    uid_from: ClassVar[int] = 1

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
        """Rows of events and publishes whose uris are plain topics."""
        count: int = _scan(data, starts, ends, cast(YampSession, session).settings.max_body, columns, stops, odd)
        return count

    def meaning(self, key: bytes) -> Meaning | None:
        """The uri; the content type is that of the connection."""
        return Meaning(key.decode(), self.sessions[0].content_type)

    def _uid(self, offset: int) -> str:
        return uid_text(self.buffer[offset + 1 : offset + 17])

    def exact_keys(self, rows: Columns) -> frozenset[object]:
        """The uids of these rows, as in messages."""
        return frozenset(map(self._uid, rows[OFFSET].tolist()))

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        return _message(self.sessions[0], self.buffer, int(self.columns[OFFSET, row]))

    def event_messages(self, rows: Columns, codes: Sequence[int]) -> list[Message]:
        """Decode rows into the events that they publish."""
        buffer, direction, meanings = self.buffer, self.sessions[0].inbound, self.meanings
        found = []
        places = zip(rows[OFFSET].tolist(), rows[BODY].tolist(), rows[BODY_SIZE].tolist(), codes, strict=True)
        for start, at, size, code in places:
            means = meanings[code]
            assert means is not None
            found.append(message_of((
                _IS_EVENT, means.topic, buffer[at : at + size], self._uid(start), None, None, means.content_type,
                NO_ATTRIBUTES, "yamp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return found

    def answers(self, asks: Columns, rows: Columns) -> tuple[bytes, Columns]:
        """`response` frames of type done, without a value."""
        count = asks.shape[1]
        session = cast(YampSession, self.sessions[0])
        uid = np.frombuffer(session.draw_uids(session.heard_at), ">u8").astype(np.uint64)
        out, ends = np.empty(count * (_ANSWER + 255), np.uint8), np.zeros(count + 1, np.int64)
        body = _body_of(body_formats.nothing(session.content_type))
        size = _write_answers(self.view, asks[OFFSET], uid[0], uid[1], body, out, ends)
        return out[:size].tobytes(), ends[rows]
