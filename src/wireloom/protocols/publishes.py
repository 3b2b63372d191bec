"""A read that holds nothing but events and acknowledged publishes, in columns: what emp and yamp have in common.

A protocol brings a kernel that finds the frames and others that write answers and events; the bookkeeping is here. A
read with anything else in it is left to the session, frame after frame. Needs numpy and numba.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Message
from wireloom.protocols.contract import PUBLISH, Bulk

# The first fields of a row in every kernel's result.
OFFSET, SIZE, ASKS, TOPIC, TOPIC_SIZE, BODY, BODY_SIZE = range(7)
FIELDS = 7

AGAIN = 2
"""In ASKS, instead of 1: a request whose key is not larger than that of the request before it."""
MOST_STRETCHES = 4
"""Stretches of ascending keys in a read; where there are more, keys do not count, and are looked at one by one."""

Key = TypeVar("Key", int, bytes)
"""What tells requests from each other; they ascend, but for a few places where a sender begins again."""

Rows = NDArray[np.bool_]

_PREFIX = np.frombuffer(PUBLISH.encode(), np.uint8)
PREFIX_SIZE = len(PUBLISH)


@kernel
def topic_after_prefix(data: NDArray[np.uint8], at: np.int64, size: np.int64, asks: bool | np.bool_) -> int:
    """How many bytes of a topic's text are not part of the topic; -1 where a closer look is needed.

    That of a request begins with `$hub/publish/`. The topic itself is in ASCII, without wildcards or a `$` at first.
    """
    skipped = PREFIX_SIZE if asks else 0
    if size <= skipped or data[at + skipped] == 0x24:
        return -1
    for index in range(skipped):
        if data[at + index] != _PREFIX[index]:
            return -1
    for index in range(skipped, size):
        letter = data[at + index]
        if letter >= 0x80 or letter in (0, 0x2B, 0x23):
            return -1
    return skipped


@kernel
def _number_topics(
    data: NDArray[np.uint8], rows: NDArray[np.int64], table: NDArray[np.int64], codes: NDArray[np.int32]
) -> int:
    """Give each distinct topic a number, in order of appearance; `table` is a hash table of rows, all -1."""
    count, mask = 0, len(table) - 1
    last_at, last_size, last_code = np.int64(0), np.int64(-1), np.int32(0)
    for row in range(len(codes)):
        at, size = rows[TOPIC, row], rows[TOPIC_SIZE, row]
        # Mostly it is the topic of the frame before; a call for each would take longer than all the rest.
        same = 0
        if size == last_size:
            while same < size and data[last_at + same] == data[at + same]:
                same += 1
        if same == size:
            codes[row] = last_code
            continue
        digest = np.uint64(14695981039346656037)
        for index in range(at, at + size):
            digest = (digest ^ np.uint64(data[index])) * np.uint64(1099511628211)
        slot = np.int64(digest & np.uint64(mask))
        while table[slot] >= 0 and not _same_topic(data, rows, table[slot], at, size):
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = row
            codes[row] = count
            count += 1
        else:
            codes[row] = codes[table[slot]]
        last_at, last_size, last_code = at, size, codes[row]
    return count


@kernel
def _same_topic(data: NDArray[np.uint8], rows: NDArray[np.int64], row: int, at: int, size: int) -> bool:
    if rows[TOPIC_SIZE, row] != size:
        return False
    other = rows[TOPIC, row]
    for index in range(size):
        if data[other + index] != data[at + index]:
            return False
    return True


class Publishes(Bulk, Generic[Key]):
    """The frames of one read. `rows` has a column a frame; its first fields are those above.

    Mostly all of them are events of one topic, and are passed on as they are: then nobody looks at the rows, and they
    are only found when somebody does.
    """

    unanswered = 0
    singled = False
    """Whether the session keeps the requests of this read one by one."""

    def __init__(self, buffer: bytes, consumed: int, found: NDArray[np.int64] | tuple[str, int]) -> None:
        """`found` is the rows; or the topic of all events and their number."""
        self.buffer = buffer
        self.consumed = consumed
        self.data = np.frombuffer(buffer, np.uint8)
        self._names: dict[str, int] = {}
        self._stretches: list[tuple[Key, Key]] | None = None
        self._alike = isinstance(found, tuple)
        if isinstance(found, tuple):
            topic, self.count = found
            self._names[topic] = 0
        else:
            self._keep(found)

    @property
    def rows(self) -> NDArray[np.int64]:
        """A column a frame."""
        if self._alike:
            self._look()
        return self._found

    def _look(self) -> None:
        """Find the rows after all."""
        self._alike = False
        self._keep(self.scan())

    def _keep(self, rows: NDArray[np.int64]) -> None:
        self._found = rows
        self.count = rows.shape[1]
        self._codes = np.empty(self.count, np.int32)
        size = 16
        while size < 2 * self.count:
            size *= 2
        table = np.full(size, -1, np.int64)
        distinct = _number_topics(self.data, rows, table, self._codes)
        if distinct == 1:
            self._names[self._topic(0)] = 0
        else:
            _, firsts = np.unique(self._codes, return_index=True)
            for code, row in enumerate(firsts.tolist()):
                self._names[self._topic(row)] = code
        self._owed = rows[ASKS] > 0
        self.unanswered = int(self._owed.sum())

    def _topic(self, row: int) -> str:
        start = int(self.rows[TOPIC, row])
        return self.buffer[start : start + int(self.rows[TOPIC_SIZE, row])].decode()

    def topics(self) -> Sequence[str]:
        """Each topic once."""
        return list(self._names)

    def _rows(self, topic: str | None) -> Rows:
        if self._alike:
            self._look()
        if topic is None:
            return np.isin(self._codes, list(self._names.values()))
        chosen: Rows = self._codes == self._names.get(topic, -1)
        return chosen

    def count_of(self, topic: str) -> int:
        """How many frames are for one topic."""
        if self._alike:
            return self.count if topic in self._names else 0
        return int((self._codes == self._names.get(topic, -1)).sum())

    def messages(self, topic: str | None = None) -> list[Message]:
        """The events and publishes of one topic, or of all, as events."""
        if topic is None:
            return [self.event(row) for row in np.flatnonzero(self._rows(topic)).tolist()]
        return self.events(self.rows[:, self._rows(topic)], topic)

    def others(self) -> list[Message]:
        """There is nothing else in such a read."""
        return []

    def take(self, topic: str) -> list[Message]:
        """Messages of one topic that are no longer part of the bulk; the session owes the answers now."""
        rows = self._rows(topic)
        taken = np.flatnonzero(rows).tolist()
        for row in np.flatnonzero(rows & self._owed).tolist():
            self.owe(row)
        self._owed = self._owed & ~rows
        self.unanswered = int(self._owed.sum())
        self._names.pop(topic, None)
        if not self.unanswered:
            self.settled([])
        return [self.message(row) for row in taken]

    def forward(self, topic: str) -> bytes:
        """The frames of one topic as events; as they are, where all are."""
        if self._alike and topic in self._names:
            return self.buffer[: self.consumed]
        rows = self._rows(topic)
        if not self.rows[ASKS].any() and bool(rows.all()):
            return self.buffer[: self.consumed]
        return self.write_events(self.rows[:, rows])

    def acknowledgements(self, refused: frozenset[str] = frozenset()) -> bytes:
        """Answers to all publishes that wait for one, in order."""
        if self._alike:
            return b""
        wrong: list[int] = [row for topic in refused for row in np.flatnonzero(self._rows(topic) & self._owed).tolist()]
        owed = self._owed
        owed[wrong] = False
        answers = self.write_answers(self.rows[:, owed])
        answers += b"".join(self.error(row) for row in wrong)
        settled: list[int] = np.flatnonzero(owed).tolist() if self.singled else []
        self._owed = owed & False
        self.unanswered = 0
        self.settled([*settled, *wrong])
        return answers

    # What the session asks

    def single(self) -> list[int]:
        """From now on the session keeps these requests one by one; returns their rows."""
        self.singled = True
        return np.flatnonzero(self._owed).tolist()

    def withdraw(self, row: int) -> None:
        """One of them needs no answer any more."""
        self._owed[row] = False
        self.unanswered -= 1

    def stretches(self) -> list[tuple[Key, Key]]:
        """The first and the last key of each stretch of requests whose keys ascend."""
        if self._stretches is None:
            self._stretches = []
            if not self._alike and len(rows := np.flatnonzero(self.rows[ASKS])):
                again: list[int] = np.flatnonzero(self.rows[ASKS, rows] == AGAIN).tolist()
                for begin, end in itertools.pairwise([0, *again, len(rows)]):
                    self._stretches.append((self.key(int(rows[begin])), self.key(int(rows[end - 1]))))
        return self._stretches

    # What a protocol brings

    @abc.abstractmethod
    def scan(self) -> NDArray[np.int64]:
        """The rows of this read."""

    @abc.abstractmethod
    def key(self, row: int) -> Key:
        """What tells a request from others."""

    @abc.abstractmethod
    def event(self, row: int) -> Message:
        """A row as the event it publishes."""

    @abc.abstractmethod
    def events(self, rows: NDArray[np.int64], topic: str) -> list[Message]:
        """Rows of one topic as the events they publish."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """A row as the message it is."""

    @abc.abstractmethod
    def owe(self, row: int) -> None:
        """Let the session keep one request."""

    @abc.abstractmethod
    def settled(self, rows: Sequence[int]) -> None:
        """Tell the session that no answer to this read is left to give; these it may have kept one by one."""

    @abc.abstractmethod
    def write_events(self, rows: NDArray[np.int64]) -> bytes:
        """Rows as frames of events."""

    @abc.abstractmethod
    def write_answers(self, rows: NDArray[np.int64]) -> bytes:
        """The answers to requests."""

    @abc.abstractmethod
    def error(self, row: int) -> bytes:
        """The plain error that answers one request."""
