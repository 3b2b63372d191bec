"""Requests for providers, and their answers, in columns: batches that a protocol's kernel fills.

A read of requests, or of answers, is found by one kernel call. Only the ids are looked at one by one: a request has
another id on the connection of its provider, and whoever waits for an answer is found by it. Sessions write them
together (`CallSession.ask_all`, `CallSession.answer_all`).

`tests/protocols/test_publish_columns.py`, `tests/hub/test_relay.py` and `tests/hub/test_order.py` hold this and the
way of `frames.py` together.

The rows are those of `publish_columns.py`, and the same kernel finds them. It stops where publishes end and calls
begin.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from wireloom.model import Message
from wireloom.protocols.batch import Calls
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.publish_columns import BODY, BODY_SIZE, Columns, Meaning, number_topics


class CallColumns(Calls):
    """Rows that a kernel found in one read of one connection: all requests, or all responses that are done."""

    __slots__ = ("_buffer", "codes", "columns", "content_types", "ids", "is_answers", "session", "topics")

    topics: list[str]

    def __init__(
        self, session: CallSession, buffer: bytes, columns: Columns, start: int, end: int, *, is_answers: bool
    ) -> None:
        super().__init__(memoryview(buffer)[start:end])
        self.session = session
        self.columns = columns
        self.count = columns.shape[1]
        self.is_answers = is_answers
        self._buffer = buffer
        self.ids = self.read_ids()
        keys, codes = number_topics(buffer, columns, self.count)
        self.codes = codes.tolist()
        self.topics, self.content_types = [], []
        for topic, content_type in map(self.meaning, keys):
            self.topics.append(topic)
            self.content_types.append(content_type)

    def bodies(self, rows: Sequence[int]) -> list[bytes]:
        """Slices of the read."""
        buffer = self._buffer
        chosen = self.columns[BODY : BODY_SIZE + 1]
        if len(rows) < self.count:
            chosen = chosen[:, rows]
        return [buffer[at : at + size] for at, size in zip(*chosen.tolist(), strict=True)]

    # What a protocol brings

    @abc.abstractmethod
    def read_ids(self) -> Sequence[str]:
        """The ids of all rows, as in messages."""

    @abc.abstractmethod
    def meaning(self, key: bytes) -> Meaning:
        """What the bytes that decide a topic mean."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """A row as the message it is, by the reference decoder."""
