"""A large read of an emp connection in columns: events and acknowledged publishes, without an object a message."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.model import NO_ATTRIBUTES, Authenticity, Kind, Message, message_of
from wireloom.protocols.buffers import same, u32
from wireloom.protocols.contract import PUBLISH
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.extensions import Hub, RequestResponse, encode_hub, encode_request_response
from wireloom.protocols.emp.frames import Block, Extension, Frame, Type
from wireloom.protocols.emp.messages import to_message
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

if TYPE_CHECKING:
    from wireloom.protocols.emp.session import EmpSession

_DATA, _REQUEST_RESPONSE, _HUB = int(Type.DATA), int(Extension.REQUEST_RESPONSE), int(Extension.HUB)
_ID, _CONTENT, _CONTENT_SIZE = FIELDS, FIELDS + 1, FIELDS + 2
_EVENT, _NOBODY = Kind.EVENT, Authenticity.NONE
_ANSWER = 28
"""Bytes of a response without body and topic."""
_LEAST = 19
"""Bytes of the smallest event with a topic."""


@kernel
def _scan(data: NDArray[np.uint8], max_message: int, rows: NDArray[np.int64]) -> tuple[int, int | np.int64]:
    """Fill a row for each frame; returns how many, and where they end. -1 rows: there is something else in the read."""
    count, at, end, last_id, stretches = 0, np.int64(0), len(data), np.int64(0), 1
    while end - at >= 8:
        size = u32(data, at)
        if size < _LEAST or size > max_message or data[at + 4] != _DATA or data[at + 5] < 0x80:
            return -1, 0
        if size > end - at:
            break
        stop, block, number, asks = at + size, at + 8, np.int64(0), 0
        if data[block + 4] == _REQUEST_RESPONSE:
            if size < 28 + 11 or u32(data, block) != 20 or data[block + 5] < 0x80 or data[block + 8] < 0x80:
                return -1, 0
            number = (u32(data, block + 12) << 32) | u32(data, block + 16)
            asks = 1
            if number <= last_id:
                asks, stretches = AGAIN, stretches + 1
            if number <= 0 or stretches > MOST_STRETCHES:
                return -1, 0
            last_id = number
            block += 20
        length = u32(data, block)
        if (
            length < 11
            or length > stop - block
            or data[block + 4] != _HUB
            or data[block + 5] >= 0x80
            or data[block + 8] & 0x85 != 0x01
        ):
            return -1, 0
        topic = block + 11
        topic_size = (np.int64(data[block + 9]) << 8) | np.int64(data[block + 10])
        if topic_size > block + length - topic:
            return -1, 0
        skipped = topic_after_prefix(data, topic, topic_size, asks > 0)
        if skipped < 0:
            return -1, 0
        position = topic + topic_size
        content, content_size = np.int64(-1), np.int64(0)
        if data[block + 8] & 0x02:
            if block + length - position < 2:
                return -1, 0
            content_size = (np.int64(data[position]) << 8) | np.int64(data[position + 1])
            content = position + 2
            position = content + content_size
            if position > block + length:
                return -1, 0
            for index in range(content, position):
                if data[index] >= 0x80:
                    return -1, 0
        if position != block + length:
            return -1, 0
        rows[OFFSET, count], rows[SIZE, count], rows[ASKS, count] = at, size, asks
        rows[TOPIC, count], rows[TOPIC_SIZE, count] = topic + skipped, topic_size - skipped
        rows[BODY, count], rows[BODY_SIZE, count] = position, stop - position
        rows[_ID, count], rows[_CONTENT, count], rows[_CONTENT_SIZE, count] = number, content, content_size
        count += 1
        at = stop
    return count, at


@kernel
def _count_alike(data: NDArray[np.uint8], head: int, max_message: int) -> tuple[int, int | np.int64]:
    """How many messages there are, and where they end, if all begin like the first but for the size; else none."""
    count, at, end = 0, np.int64(0), len(data)
    while end - at >= 8:
        size = u32(data, at)
        if size < head or size > max_message:
            return 0, 0
        if size > end - at:
            break
        if not same(data, at + 4, 4, head - 4):
            return 0, 0
        count += 1
        at += size
    return count, at


@inlined
def _put_u32(out: NDArray[np.uint8], at: int, value: int) -> None:
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


@kernel
def _write_answers(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Responses that are done, with nothing in them; `out` is all zeros."""
    for row in range(rows.shape[1]):
        at = row * _ANSWER
        _put_u32(out, at, _ANSWER)
        out[at + 4], out[at + 5] = _DATA, 0x80
        _put_u32(out, at + 8, 20)
        out[at + 12] = _REQUEST_RESPONSE
        _put_u32(out, at + 20, rows[_ID, row] >> 32)
        _put_u32(out, at + 24, rows[_ID, row])


@kernel
def _write_events(data: NDArray[np.uint8], rows: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Events as they are, publishes as events; returns how many bytes that are. `out` is all zeros."""
    at = 0
    for row in range(rows.shape[1]):
        if not rows[ASKS, row]:
            for index in range(rows[OFFSET, row], rows[OFFSET, row] + rows[SIZE, row]):
                out[at] = data[index]
                at += 1
            continue
        topic_size, content_size = rows[TOPIC_SIZE, row], rows[_CONTENT_SIZE, row]
        block = 11 + topic_size
        if rows[_CONTENT, row] >= 0:
            block += 2 + content_size
        _put_u32(out, at, 8 + block + rows[BODY_SIZE, row])
        out[at + 4], out[at + 5] = _DATA, 0x80
        _put_u32(out, at + 8, block)
        out[at + 12] = _HUB
        out[at + 16] = 1 if rows[_CONTENT, row] < 0 else 3
        out[at + 17], out[at + 18] = (topic_size >> 8) & 0xFF, topic_size & 0xFF
        at += 19
        for index in range(rows[TOPIC, row], rows[TOPIC, row] + topic_size):
            out[at] = data[index]
            at += 1
        if rows[_CONTENT, row] >= 0:
            out[at], out[at + 1] = (content_size >> 8) & 0xFF, content_size & 0xFF
            at += 2
            for index in range(rows[_CONTENT, row], rows[_CONTENT, row] + content_size):
                out[at] = data[index]
                at += 1
        for index in range(rows[BODY, row], rows[BODY, row] + rows[BODY_SIZE, row]):
            out[at] = data[index]
            at += 1
    return at


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    request = Block(Extension.REQUEST_RESPONSE, encode_request_response(RequestResponse(True, 1)))
    hub = Block(Extension.HUB, encode_hub(Hub(PUBLISH + "a", "b")))
    sample = frames.encode(Frame(Type.DATA, b"c", (request, hub)))
    rows = np.empty((FIELDS + 3, 1), np.int64)
    _scan(np.frombuffer(sample, np.uint8), 1024, rows)
    _count_alike(np.frombuffer(sample, np.uint8), 8, 1024)
    out = np.zeros(100, np.uint8)
    _write_answers(rows, out)
    _write_events(np.frombuffer(sample, np.uint8), rows, out)
    _Warm(sample, len(sample), rows)


class EmpBulk(Publishes[int]):
    """The frames of one read. Made by `EmpSession.receive`, which keeps the conversation's rules."""

    def __init__(
        self, session: EmpSession, buffer: bytes, consumed: int, found: NDArray[np.int64] | tuple[str, int]
    ) -> None:
        super().__init__(buffer, consumed, found)
        self._session = session
        self.max_message = session.settings.max_message

    @classmethod
    def of(cls, session: EmpSession, buffer: bytes, fewest: int) -> EmpBulk | None:
        """The read in columns; None if it holds anything else, or fewer frames than that."""
        data, largest = np.frombuffer(buffer, np.uint8), session.settings.max_message
        first = int.from_bytes(buffer[:4], "big")
        rows = np.empty((FIELDS + 3, 1), np.int64)
        if _LEAST <= first <= len(buffer) // 2:
            count, _ = _scan(data[:first], largest, rows)
            if count == 1 and not rows[ASKS, 0]:
                count, consumed = _count_alike(data, int(rows[BODY, 0]), largest)
                if count >= fewest:
                    topic = buffer[int(rows[TOPIC, 0]) :][: int(rows[TOPIC_SIZE, 0])].decode()
                    return cls(session, buffer, int(consumed), (topic, count))
        rows = np.empty((FIELDS + 3, len(buffer) // _LEAST + 1), np.int64)
        count, consumed = _scan(data, largest, rows)
        return cls(session, buffer, int(consumed), rows[:, :count]) if count >= fewest else None

    def scan(self) -> NDArray[np.int64]:
        """The rows of this read."""
        rows = np.empty((FIELDS + 3, self.consumed // _LEAST + 1), np.int64)
        count, _ = _scan(self.data[: self.consumed], self.max_message, rows)
        return rows[:, :count]

    def key(self, row: int) -> int:
        """The id of a request."""
        return int(self.rows[_ID, row])

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        settings = self._session.settings
        found = frames.decode(self.buffer, int(self.rows[OFFSET, row]), settings.max_message)
        assert found is not None, "kernel and decoder disagree"
        return to_message(found[0], settings, self._session.inbound)

    def event(self, row: int) -> Message:
        """A row as the event it publishes."""
        message = self.message(row)
        if message.kind is Kind.EVENT:
            return message
        return message.with_(kind=Kind.EVENT, topic=(message.topic or "").removeprefix(PUBLISH), id=None)

    def events(self, rows: NDArray[np.int64], topic: str) -> list[Message]:
        """Many rows at once; mostly they have no content type."""
        buffer, direction = self.buffer, self._session.inbound
        starts, sizes, kinds = rows[BODY].tolist(), rows[BODY_SIZE].tolist(), rows[_CONTENT].tolist()
        found = []
        for start, size, kind, kind_size in zip(starts, sizes, kinds, rows[_CONTENT_SIZE].tolist(), strict=True):
            content_type = None if kind < 0 else sys.intern(buffer[kind : kind + kind_size].decode())
            found.append(message_of((
                _EVENT, topic, buffer[start : start + size], None, None, None, content_type, NO_ATTRIBUTES,
                "emp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return found

    def owe(self, row: int) -> None:
        """Let the session keep one request."""
        self._session.owe(self.key(row))

    def settled(self, rows: Sequence[int]) -> None:
        """All is answered."""
        self._session.answered(self, rows)

    def write_events(self, rows: NDArray[np.int64]) -> bytes:
        """`data` with a topic."""
        out = np.zeros(int(rows[SIZE].sum()), np.uint8)
        return out[: _write_events(self.data, rows, out)].tobytes()

    def write_answers(self, rows: NDArray[np.int64]) -> bytes:
        """Responses with nothing but their id."""
        out = np.zeros(rows.shape[1] * _ANSWER, np.uint8)
        _write_answers(rows, out)
        return out.tobytes()

    def error(self, row: int) -> bytes:
        """A response with the error flag of the hub's block."""
        response = Block(Extension.REQUEST_RESPONSE, encode_request_response(RequestResponse(False, self.key(row))))
        hub = Block(Extension.HUB, encode_hub(Hub(None, None, None, error=True)))
        return frames.encode(Frame(Type.DATA, b"", (response, hub)))


class _Warm(EmpBulk):
    """Only for its topics: no session is there yet."""

    def __init__(self, buffer: bytes, consumed: int, rows: NDArray[np.int64]) -> None:
        Publishes.__init__(self, buffer, consumed, rows)
