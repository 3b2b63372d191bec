"""Calls in columns: requests for providers and their answers, as batches that a protocol's kernel fills.

Theory of operation
-------------------
Problem: the hub relays requests to providers, and their answers back. Decoding each into a message takes most of that
time.

Idea: one kernel call finds all requests, or all answers, of a read. It is the kernel of `publish_columns.py`, and the
rows have the same fields. Topics are numbered and looked at once each. Only ids are handled one by one in Python: the
hub gives a request a new id on the connection of its provider, and an answer finds its caller by that id. Sessions
write the frames of a batch together (`CallSession.ask_all`, `CallSession.answer_all`).

Invariant: a batch is homogeneous. It holds only requests, or only final responses, of one connection. The kernel stops
where the kind changes, so the order of the connection is kept.

Example: a read holds three publishes, two requests and a response. The kernel stops after the publishes, which become a
`PublishColumns`. The next call takes the two requests, and the third call takes the response.

The reference decoder is `frames.py`. `tests/protocols/test_publish_columns.py`, `tests/hub/test_relay.py` and
`tests/hub/test_order.py` check that both give the same results.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from wireloom.model import Message
from wireloom.protocols.batch import Calls
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.publish_columns import BODY, BODY_SIZE, Columns, Meaning, number_topics


class CallColumns(Calls):
    """Rows that a kernel found in one read of one connection: all requests, or all final responses."""

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
        """The bodies of these rows, as slices of the read."""
        buffer = self._buffer
        chosen = self.columns[BODY : BODY_SIZE + 1]
        if len(rows) < self.count:
            chosen = chosen[:, rows]
        return [buffer[at : at + size] for at, size in zip(*chosen.tolist(), strict=True)]

    # What a protocol implements

    @abc.abstractmethod
    def read_ids(self) -> Sequence[str]:
        """The ids of all rows, as `Message.id` has them."""

    @abc.abstractmethod
    def meaning(self, key: bytes) -> Meaning:
        """The topic and content type that these bytes of a frame stand for."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """Decode a row into its message, by the reference decoder."""
