"""A large read of a yamp connection in columns: events and acknowledged publishes, without an object a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import NO_ATTRIBUTES, Authenticity, Kind, Message, message_of
from wireloom.protocols.buffers import same, u32
from wireloom.protocols.contract import PUBLISH
from wireloom.protocols.publishes import (
    AGAIN,
    ASKS,
    BODY,
    BODY_SIZE,
    FIELDS,
    MOST_STRETCHES,
    OFFSET,
    SIZE,
    TOPIC,
    TOPIC_SIZE,
    Publishes,
    topic_after_prefix,
)
from wireloom.protocols.yamp import frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.uids import uid_text

if TYPE_CHECKING:
    from wireloom.protocols.yamp.session import YampSession

_EVENT, _REQUEST, _RESPONSE = int(FrameType.EVENT), int(FrameType.REQUEST), int(FrameType.RESPONSE)
_DONE = int(ResponseType.DONE)
_IS_EVENT, _NOBODY = Kind.EVENT, Authenticity.NONE
_LEAST = 23
"""Bytes of the smallest event with a uri."""


@kernel
def _scan(data: NDArray[np.uint8], max_body: int, rows: NDArray[np.int64]) -> tuple[int, int | np.int64]:
    """Fill a row for each frame; returns how many, and where they end. -1 rows: there is something else in the read."""
    count, at, end, last, stretches = 0, np.int64(0), len(data), np.int64(-1), 1
    while end - at >= 18:
        asks = 1 if data[at] == _REQUEST else 0
        if not asks and data[at] != _EVENT:
            return -1, 0
        uri, uri_size = at + 18, np.int64(data[at + 17])
        after = uri + uri_size
        body = after + (5 if asks else 4)
        if body > end:
            break
        if asks and data[after]:
            return -1, 0
        size = u32(data, body - 4)
        if size > max_body:
            return -1, 0
        if body + size > end:
            break
        skipped = topic_after_prefix(data, uri, uri_size, asks > 0)
        if skipped < 0:
            return -1, 0
        if asks:
            if last >= 0 and not _ascends(data, last, at + 1):
                asks, stretches = AGAIN, stretches + 1
                if stretches > MOST_STRETCHES:
                    return -1, 0
            last = at + 1
        rows[OFFSET, count], rows[SIZE, count], rows[ASKS, count] = at, body + size - at, asks
        rows[TOPIC, count], rows[TOPIC_SIZE, count] = uri + skipped, uri_size - skipped
        rows[BODY, count], rows[BODY_SIZE, count] = body, size
        count += 1
        at = body + size
    return count, at


@kernel
def _count_alike(data: NDArray[np.uint8], max_body: int) -> tuple[int, int | np.int64]:
    """How many events there are, and where they end, if all frames are events of the first one's uri; else none."""
    count, at, end = 0, np.int64(0), len(data)
    uri_end = 18 + np.int64(data[17])
    while end - at >= 18:
        if data[at] != _EVENT or data[at + 17] != data[17]:
            return 0, 0
        body = at + uri_end + 4
        if body > end:
            break
        size = u32(data, body - 4)
        if size > max_body:
            return 0, 0
        if body + size > end:
            break
        if not same(data, at + 18, 18, uri_end - 18):
            return 0, 0
        count += 1
        at = body + size
    return count, at


@kernel
def _ascends(data: NDArray[np.uint8], first: np.int64, second: np.int64) -> bool:
    """Whether the uid at `second` is larger than that at `first`."""
    for index in range(16):
        if data[second + index] != data[first + index]:
            return bool(data[second + index] > data[first + index])
    return False


@kernel
def _write_answers(
    data: NDArray[np.uint8], rows: NDArray[np.int64], high: np.uint64, low: np.uint64, out: NDArray[np.uint8]
) -> int:
    """Responses that are done, without a body; their uids count up from the one given."""
    at = 0
    for row in range(rows.shape[1]):
        start = rows[OFFSET, row]
        uri_size = np.int64(data[start + 17])
        out[at] = _RESPONSE
        number = low + np.uint64(row)
        for index in range(8):
            shift = np.uint64(56 - 8 * index)
            out[at + 1 + index] = (high >> shift) & np.uint64(0xFF)
            out[at + 9 + index] = (number >> shift) & np.uint64(0xFF)
        at += 17
        for index in range(start + 17, start + 18 + uri_size):
            out[at] = data[index]
            at += 1
        for index in range(start + 1, start + 17):
            out[at] = data[index]
            at += 1
        out[at] = _DONE
        for index in range(1, 5):
            out[at + index] = 0
        at += 5
    return at


@kernel
def _write_events(data: NDArray[np.uint8], rows: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Events as they are, publishes as events; returns how many bytes that are."""
    at = 0
    for row in range(rows.shape[1]):
        start = rows[OFFSET, row]
        if not rows[ASKS, row]:
            for index in range(start, start + rows[SIZE, row]):
                out[at] = data[index]
                at += 1
            continue
        out[at] = _EVENT
        at += 1
        for index in range(start + 1, start + 17):
            out[at] = data[index]
            at += 1
        out[at] = rows[TOPIC_SIZE, row]
        at += 1
        for index in range(rows[TOPIC, row], rows[TOPIC, row] + rows[TOPIC_SIZE, row]):
            out[at] = data[index]
            at += 1
        for index in range(rows[BODY, row] - 4, rows[BODY, row] + rows[BODY_SIZE, row]):
            out[at] = data[index]
            at += 1
    return at


@lru_cache(maxsize=1024)
def _is_topic(uri: bytes) -> bool:
    """Whether `_scan` would take this for the topic of an event."""
    return topic_after_prefix(np.frombuffer(uri, np.uint8), 0, len(uri), False) == 0 if uri else False


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    sample = frames.encode(frames.Request(bytes(16), PUBLISH + "a", False, b"b"))
    data, rows, out = np.frombuffer(sample, np.uint8), np.empty((FIELDS, 1), np.int64), np.zeros(100, np.uint8)
    _scan(data, 100, rows)
    _count_alike(data, 100)
    _write_answers(data, rows, np.uint64(1), np.uint64(1), out)
    _write_events(data, rows, out)
    _Warm(sample, len(sample), rows)


class YampBulk(Publishes[bytes]):
    """The frames of one read. Made by `YampSession.receive`, which keeps the conversation's rules."""

    def __init__(
        self, session: YampSession, buffer: bytes, consumed: int, found: NDArray[np.int64] | tuple[str, int]
    ) -> None:
        super().__init__(buffer, consumed, found)
        self._session = session
        self.max_body = session.settings.max_body
        self.content_type = session.content_type

    @classmethod
    def of(cls, session: YampSession, buffer: bytes, fewest: int) -> YampBulk | None:
        """The read in columns; None if it holds anything else, or fewer frames than that."""
        data, largest = np.frombuffer(buffer, np.uint8), session.settings.max_body
        if len(buffer) >= 2 * _LEAST and buffer[0] == _EVENT and _is_topic(buffer[18 : 18 + buffer[17]]):
            count, consumed = _count_alike(data, largest)
            if count >= fewest:
                return cls(session, buffer, int(consumed), (buffer[18 : 18 + buffer[17]].decode(), count))
        rows = np.empty((FIELDS, len(buffer) // _LEAST + 1), np.int64)
        count, consumed = _scan(data, largest, rows)
        return cls(session, buffer, int(consumed), rows[:, :count]) if count >= fewest else None

    def scan(self) -> NDArray[np.int64]:
        """The rows of this read."""
        rows = np.empty((FIELDS, self.consumed // _LEAST + 1), np.int64)
        count, _ = _scan(self.data[: self.consumed], self.max_body, rows)
        return rows[:, :count]

    def key(self, row: int) -> bytes:
        """The uid of a request."""
        start = int(self.rows[OFFSET, row]) + 1
        return self.buffer[start : start + 16]

    def uri(self, row: int) -> str:
        """The uri of a frame."""
        start = int(self.rows[OFFSET, row]) + 18
        return self.buffer[start : start + self.buffer[start - 1]].decode()

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        kind = Kind.REQUEST if self.rows[ASKS, row] else Kind.EVENT
        return Message(
            kind, self.uri(row), self._body(row), uid_text(self.key(row)), None, None, self.content_type,
            protocol="yamp", direction=self._session.inbound,
        )  # fmt: skip

    def event(self, row: int) -> Message:
        """A row as the event it publishes."""
        return Message(
            Kind.EVENT, self._topic(row), self._body(row), uid_text(self.key(row)), None, None, self.content_type,
            protocol="yamp", direction=self._session.inbound,
        )  # fmt: skip

    def events(self, rows: NDArray[np.int64], topic: str) -> list[Message]:
        """Many rows at once."""
        buffer, content_type, direction = self.buffer, self.content_type, self._session.inbound
        columns = zip(rows[OFFSET].tolist(), rows[BODY].tolist(), rows[BODY_SIZE].tolist(), strict=True)
        return [
            message_of((
                _IS_EVENT, topic, buffer[body : body + size], uid_text(buffer[start + 1 : start + 17]), None, None,
                content_type, NO_ATTRIBUTES, "yamp", None, None, direction, _NOBODY,
            ))
            for start, body, size in columns
        ]  # fmt: skip

    def _body(self, row: int) -> bytes:
        start = int(self.rows[BODY, row])
        return self.buffer[start : start + int(self.rows[BODY_SIZE, row])]

    def owe(self, row: int) -> None:
        """Let the session keep one request."""
        self._session.owe(self, row)

    def settled(self, rows: Sequence[int]) -> None:
        """All is answered."""
        self._session.answered(self, rows)

    def write_events(self, rows: NDArray[np.int64]) -> bytes:
        """`event` frames."""
        out = np.empty(int(rows[SIZE].sum()), np.uint8)
        return out[: _write_events(self.data, rows, out)].tobytes()

    def write_answers(self, rows: NDArray[np.int64]) -> bytes:
        """`response` frames of type done."""
        count = rows.shape[1]
        if not count:
            return b""
        first = self._session.draw_many()
        high, low = int.from_bytes(first[:8], "big"), int.from_bytes(first[8:], "big")
        # Room to count without touching the bits before.
        low &= ~(1 << 61)
        out = np.empty(count * (39 + 255), np.uint8)
        return out[: _write_answers(self.data, rows, np.uint64(high), np.uint64(low), out)].tobytes()

    def error(self, row: int) -> bytes:
        """A `response` of type error without a body."""
        return frames.encode(
            frames.Response(self._session.draw_many(), self.uri(row), self.key(row), ResponseType.ERROR, b"")
        )


class _Warm(YampBulk):
    """Only for its topics: no session is there yet."""

    def __init__(self, buffer: bytes, consumed: int, rows: NDArray[np.int64]) -> None:
        Publishes.__init__(self, buffer, consumed, rows)
