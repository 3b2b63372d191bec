"""Requests for providers, and their answers, in columns: batches that a protocol's kernel fills.

A read of requests is passed on with one kernel call, and so is a read of answers. Only the ids are looked at one by
one: a request has another id on the connection of its provider, and whoever waits for an answer is found by it.

Measured with 64 requests of 64 bytes in flight: 19 µs of the hub's processor time a request, 30 µs as messages.
`tests/protocols/test_publish_columns.py` and `tests/hub/test_relay.py` hold both ways together.

The rows are those of `publish_columns.py`, and the same kernel finds them. It stops where publishes end and calls
begin.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols.batch import Calls
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.publish_columns import (
    BODY,
    BODY_SIZE,
    KIND,
    Columns,
    Meaning,
    copy,
    number_topics,
    put_u32,
    sample_rows,
)
from wireloom.protocols.session import EventHead, Session

REQUEST, ANSWER = 2, 3
"""What `KIND` of a row is, in a batch of calls."""


@kernel
def _write_calls(
    data: NDArray[np.uint8],
    rows: Columns,
    chosen: Columns,
    codes: Columns,
    heads: NDArray[np.uint8],
    places: Columns,
    ids: NDArray[np.uint8],
    id_size: int,
    out: NDArray[np.uint8],
) -> np.int64:
    """Write the chosen rows: the head of their code, the size and the id in it, the body; returns how many bytes.

    `places` has of each code: where its head begins and ends, where the size stands, what is added to the
    body's, and where the id stands.
    """
    at = np.int64(0)
    for index in range(chosen.shape[0]):
        row = chosen[index]
        code = codes[row]
        head, body_size = places[code, 0], rows[BODY_SIZE, row]
        head_size = places[code, 1] - head
        copy(heads, head, head_size, out, at)
        put_u32(out, at + places[code, 2], body_size + places[code, 3])
        copy(ids, np.int64(index * id_size), np.int64(id_size), out, at + places[code, 4])
        copy(data, rows[BODY, row], body_size, out, at + head_size)
        at += head_size + body_size
    return at


class CallColumns(Calls):
    """Rows that a kernel found in one read of one connection: all requests, or all answers."""

    topics: list[str]

    __slots__ = ("_buffer", "_codes", "_meanings", "columns", "ids", "is_answers", "session", "topics")

    def __init__(self, session: CallSession, buffer: bytes, columns: Columns, start: int, end: int) -> None:
        super().__init__(memoryview(buffer)[start:end])
        self.session = session
        self.columns = columns
        self.count = columns.shape[1]
        self.is_answers = bool(columns[KIND, 0] == ANSWER)
        self.ids = self.id_texts(columns)
        self._buffer = buffer
        keys, self._codes = number_topics(buffer, columns, self.count)
        self._meanings = [self.meaning(key) for key in keys]
        self.topics = ["" if meaning is None else meaning.topic for meaning in self._meanings]

    @property
    def is_usual(self) -> bool:
        """Whether each topic can be told from its bytes; else the frames take a closer look."""
        return None not in self._meanings

    def rows_of(self, code: int) -> Sequence[int]:
        """Which rows have a topic."""
        if len(self.topics) == 1:
            return range(self.count)
        found: list[int] = np.flatnonzero(self._codes == code).tolist()
        return found

    def topics_of(self, rows: Sequence[int]) -> Sequence[str]:
        """The topics of some rows."""
        topics = self.topics
        if len(topics) == 1:
            return topics * len(rows)
        return [topics[code] for code in self._codes[list(rows)].tolist()]

    def frames(
        self,
        rows: Sequence[int],
        session: Session,
        ids: Callable[[CallSession], Sequence[str] | None],
        topic: str | None = None,
    ) -> bytes | None:
        """What the kernel writes for the session's peer."""
        if not isinstance(session, CallSession):
            return None
        heads = self._heads(session, topic)
        if heads is None:
            return None
        largest = int(self.columns[BODY_SIZE].max())
        if any(largest > head.largest for head in heads):
            return None
        texts = ids(session)
        if texts is None:
            return None
        numbers, places, written = session.id_bytes(texts), [], b""
        for head in heads:
            begins = len(written)
            written += head.head
            places.append((begins, len(written), head.size_at, head.extra, head.id_at))
        out = np.empty(len(self.data) + len(rows) * max(len(head.head) for head in heads), np.uint8)
        size = _write_calls(
            np.frombuffer(self._buffer, np.uint8), self.columns, np.array(rows, np.int64), self._codes,
            np.frombuffer(written, np.uint8), np.array(places, np.int64),
            np.frombuffer(numbers, np.uint8), len(numbers) // len(texts), out,
        )  # fmt: skip
        return out[:size].tobytes()

    def _heads(self, session: CallSession, topic: str | None) -> list[EventHead] | None:
        """What the frames of each topic begin with; None if one cannot be written this way."""
        kind, heads = Kind.RESPONSE if self.is_answers else Kind.REQUEST, list[EventHead]()
        for meaning in self._meanings:
            assert meaning is not None
            try:
                head = session.call_head(kind, topic or meaning.topic, meaning.content_type)
            except (NotSupported, LimitExceeded):
                return None
            if head is None:
                return None
            heads.append(head)
        return heads

    # What a protocol brings

    @staticmethod
    @abc.abstractmethod
    def id_texts(columns: Columns) -> Sequence[str]:
        """The ids of all rows, as in messages."""

    @abc.abstractmethod
    def meaning(self, key: bytes) -> Meaning | None:
        """What the bytes that decide a topic mean; None where the frame takes a closer look."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """A row as the message it is, by the reference decoder."""


@cache
def warm() -> None:
    """Compile or load the kernel, once, before a connection waits for it."""
    data, one, rows = np.frombuffer(bytes(64), np.uint8), np.zeros(1, np.int64), sample_rows()
    places = np.zeros((1, 5), np.int64)
    _write_calls(data, rows, one, one, data, places, data, 8, np.empty(64, np.uint8))


__all__ = ["ANSWER", "REQUEST", "CallColumns", "warm"]
