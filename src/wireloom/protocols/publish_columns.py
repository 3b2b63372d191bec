"""Publishes in columns: batches of events and acknowledged publishes that a protocol's kernel fills.

Each protocol implements a kernel that finds frames, a kernel that writes acknowledgements, and a few methods that
interpret a row. This module numbers topics, registers pending acknowledgements, and writes events. Needs numpy and
numba.

Theory of operation
-------------------
Problem: one message object for each publish takes most of the hub's time. The hub needs only topics, ids and bodies.

Idea: a kernel scans the reads of one or more connections in a single call, and fills one column of an array for each
frame: where the frame, its topic and its body are, its kind and its id. Such a column is called a row here.

Invariant: a batch is homogeneous, and order is kept. The kernel is a fast path for frames of the usual form only. It
stops at the first frame of a read that is anything else: incomplete, a control message, invalid, or unusual. The rows
before that frame are the batch. The reference decoder (`frames.py`) takes that frame, and the kernel goes on after it
(`ColumnSession._decode`). So only the reference decoder reports errors.

Example: a read holds 300 publishes, a ping and 200 publishes. This gives a batch of 300 rows with `odd` set, the ping
by `frames.py`, and a batch of 200 rows. If a read of one connection begins with requests or answers, the rows are
those: see `call_columns.py`.

Topics: the kernel says which bytes of a frame determine topic and content type (`TOPIC`, `TOPIC_SIZE`). Rows with equal
bytes get the same code. Python decodes each code once (`PublishColumns.meaning`).

Delivery: the frame of an event is a head, which depends only on topic and content type, and the body. The head contains
the size. `Session.event_head` gives the head, and one kernel writes all frames for a subscriber of any protocol. If the
received frames are already what the subscriber expects, they are forwarded unchanged.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.model import ConfigError, Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols.batch import PUBLISH, Acknowledgements, Batch, Events, Publishes
from wireloom.protocols.column_session import CallSession, ColumnSession
from wireloom.protocols.kernel_bytes import same, u32
from wireloom.protocols.pending_acks import Owed
from wireloom.protocols.publish_rules import validate_publish
from wireloom.protocols.session import EventHead, Session

if TYPE_CHECKING:
    from wireloom.protocols.call_columns import CallColumns

# The fields of a row.
READ, OFFSET, SIZE, KIND, TOPIC, TOPIC_SIZE, BODY, BODY_SIZE, ID = range(9)
FIELDS = 9

"""`KIND` is 0 for an event, 1 for an acknowledged publish; in batches of calls `REQUEST` or `ANSWER`."""
REQUEST, ANSWER = 2, 3

Columns = NDArray[np.int64]

MOST_TOPICS = 256
"""Limit of topics in one batch. Python decodes each of them, so more would block the event loop too long."""

MOST_CALLS = 512
"""Limit of requests or answers in one batch: Python handles the id of each."""

_PREFIX = np.frombuffer(PUBLISH.encode(), np.uint8)
PREFIX_SIZE = len(PUBLISH)


@kernel
def topic_after_prefix(data: NDArray[np.uint8], at: np.int64, size: np.int64, asks: bool | np.bool_) -> int:
    """The size of the prefix before a topic; -1 where the reference decoder must decide.

    The prefix of a request is `$hub/publish/`, an event has none. The fast path takes only topics in ASCII that have no
    wildcards and do not begin with `$`.
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
    data: NDArray[np.uint8], rows: Columns, table: Columns, firsts: Columns, codes: Columns
) -> tuple[int, int]:
    """Give each topic a code, in order of appearance, by a hash table with linear probing.

    `table` maps slots to codes; all are -1 at first. `firsts` gets the first row of each code. Numbering stops before
    the row whose topic no longer fits into `firsts`. Returns the number of topics, and of rows that have a code.
    """
    count, mask = 0, len(table) - 1
    last_at, last_size, last_code = np.int64(0), np.int64(-1), np.int64(0)
    for row in range(rows.shape[1]):
        at, size = rows[TOPIC, row], rows[TOPIC_SIZE, row]
        # Usually the topic is that of the row before.
        if size == last_size and same(data, last_at, at, size):
            codes[row] = last_code
            continue
        digest = np.uint64(14695981039346656037)
        for index in range(at, at + size):
            digest = (digest ^ np.uint64(data[np.uint64(index)])) * np.uint64(1099511628211)
        slot = np.int64((digest ^ (digest >> np.uint64(32))) & np.uint64(mask))
        while table[slot] >= 0:
            first = firsts[table[slot]]
            if rows[TOPIC_SIZE, first] == size and same(data, rows[TOPIC, first], at, size):
                break
            slot = (slot + 1) & mask
        if table[slot] < 0:
            if count == len(firsts):
                return count, row
            table[slot] = count
            firsts[count] = row
            count += 1
        last_at, last_size, last_code = at, size, table[slot]
        codes[row] = last_code
    return count, rows.shape[1]


@kernel
def _have_one_topic(data: NDArray[np.uint8], rows: Columns) -> bool:
    """Whether all rows have the same topic. Then all codes are 0."""
    at, size = rows[TOPIC, 0], rows[TOPIC_SIZE, 0]
    for row in range(1, rows.shape[1]):
        if rows[TOPIC_SIZE, row] != size or not same(data, at, rows[TOPIC, row], size):
            return False
    return True


def number_topics(buffer: bytes, columns: Columns, most: int) -> tuple[list[bytes], Columns]:
    """The distinct topic bytes, and for each row the index of its own.

    If there are more than `most`, the codes end before the first row with a topic beyond that limit.
    """
    count = columns.shape[1]
    if _have_one_topic(np.frombuffer(buffer, np.uint8), columns):
        first, length = int(columns[TOPIC, 0]), int(columns[TOPIC_SIZE, 0])
        return [buffer[first : first + length]], np.zeros(count, np.int64)
    codes, firsts = np.empty(count, np.int64), np.empty(min(count, most), np.int64)
    table = np.full(1 << max((2 * len(firsts)).bit_length(), 4), -1, np.int64)
    distinct, rows = _number_topics(np.frombuffer(buffer, np.uint8), columns, table, firsts, codes)
    at = columns[TOPIC, firsts[:distinct]].tolist()
    size = columns[TOPIC_SIZE, firsts[:distinct]].tolist()
    return [buffer[a : a + s] for a, s in zip(at, size, strict=True)], codes[:rows]


@kernel
def _summarise(rows: Columns, reads: int, bounds: Columns, owed: Columns) -> int:
    """Find where the rows of each read begin, and its pending acknowledgements; returns the number of those.

    `owed` gets for each read: smallest id, largest id, number of ids, and 1 if the ids are ascending. See
    `pending_acks.py`.
    """
    row, total, count = 0, 0, rows.shape[1]
    for read in range(reads):
        bounds[read] = row
        low, high, asked, ascending = np.int64(0), np.int64(0), 0, 1
        last = np.int64(-1)
        while row < count and rows[READ, row] == read:
            if rows[KIND, row]:
                number = rows[ID, row]
                if asked == 0:
                    low, high = number, number
                elif number <= last:
                    ascending = 0
                low, high = min(low, number), max(high, number)
                last = number
                asked += 1
            row += 1
        owed[0, read], owed[1, read], owed[2, read], owed[3, read] = low, high, asked, ascending
        total += asked
    bounds[reads] = row
    return total


@inlined
def put_u32(out: NDArray[np.uint8], at: np.int64, value: np.int64) -> None:
    """Write a big-endian 32-bit number."""
    out[np.uint64(at)] = (value >> 24) & 0xFF
    out[np.uint64(at + 1)] = (value >> 16) & 0xFF
    out[np.uint64(at + 2)] = (value >> 8) & 0xFF
    out[np.uint64(at + 3)] = value & 0xFF


@inlined
def copy(source: NDArray[np.uint8], at: np.int64, size: np.int64, out: NDArray[np.uint8], to: np.int64) -> None:
    """Copy bytes."""
    # Unsigned indexes cannot be negative. Without that check, the compiler turns the loop into one block copy.
    begin, target = np.uint64(at), np.uint64(to)
    for index in range(np.uint64(size)):
        out[target + np.uint64(index)] = source[begin + np.uint64(index)]


@kernel
def _write_events(
    data: NDArray[np.uint8],
    rows: Columns,
    chosen: Columns,
    codes: Columns,
    heads: NDArray[np.uint8],
    places: Columns,
    uid_at: int,
    uid_from: int,
    uid: NDArray[np.uint64],
    out: NDArray[np.uint8],
    ends: Columns,
) -> np.int64:
    """Write the chosen rows as events: the head of their code with the size, then the body; returns the total size.

    `places` has for each code: start and end of its head, the position of the size in it, and what to add to the size
    of the body. A frame has a uid if `uid_at` is 0 or more. The uid is copied from the received frame, `uid_from` bytes
    after its start; if `uid_from` is -1, it is counted up from `uid`. `ends` gets the end of each frame.
    """
    at, low = np.int64(0), uid[1]
    for index in range(chosen.shape[0]):
        row = chosen[index]
        code = codes[row]
        head, body_size = places[code, 0], rows[BODY_SIZE, row]
        head_size = places[code, 1] - head
        copy(heads, head, head_size, out, at)
        put_u32(out, at + places[code, 2], body_size + places[code, 3])
        if uid_at >= 0:
            if uid_from >= 0:
                copy(data, rows[OFFSET, row] + uid_from, np.int64(16), out, at + uid_at)
            else:
                low += np.uint64(1)
                for byte in range(8):
                    shift = np.uint64(56 - 8 * byte)
                    out[at + uid_at + byte] = (uid[0] >> shift) & np.uint64(0xFF)
                    out[at + uid_at + 8 + byte] = (low >> shift) & np.uint64(0xFF)
        copy(data, rows[BODY, row], body_size, out, at + head_size)
        at += head_size + body_size
        ends[index] = at
    return at


def _those(rows: Columns, wanted: NDArray[np.bool_]) -> Columns:
    """Copy the wanted rows, in the memory layout of a slice: kernels are compiled for that layout."""
    count = int(wanted.sum())
    kept: Columns = np.empty((FIELDS, count + 1), np.int64)[:, :count]
    kept[:] = rows[:, wanted]
    return kept


def sample_rows() -> Columns:
    """One row of zeros: an argument to compile kernels with."""
    return np.zeros((FIELDS, 2), np.int64)[:, :1]


class Meaning(NamedTuple):
    """The topic and content type that the topic bytes of a frame stand for."""

    topic: str
    content_type: str | None


class Taken(NamedTuple):
    """What the kernel found in some reads."""

    batch: PublishColumns | CallColumns | None
    ends: Sequence[int]
    """For each read, the position in the buffer where the kernel stopped."""
    odd: Sequence[bool]
    """For each read, whether the kernel stopped at a frame that the reference decoder must take."""


class PublishColumns(Publishes):
    """Rows that a kernel found in the reads of one or more connections."""

    __slots__ = ("_keys", "bounds", "buffer", "codes", "columns", "ends", "meanings", "owed", "starts", "view")

    sessions: Sequence[ColumnSession]
    smallest: ClassVar[int]
    """Bytes of the smallest frame that can be a row."""
    calls: ClassVar[type[CallColumns] | None] = None
    """The class of batches of requests and answers, in protocols whose kernel finds them."""
    uid_from: ClassVar[int] = -1
    """Position of the uid in a frame, in protocols whose events have one."""

    def __init__(
        self,
        sessions: Sequence[ColumnSession],
        buffer: bytes,
        columns: Columns,
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        super().__init__()
        self.sessions = sessions
        self.buffer = buffer
        self.view = np.frombuffer(buffer, np.uint8)
        self.starts, self.ends = starts, ends
        """Start and end of the accepted frames of each read."""
        self.data = memoryview(buffer)[starts[0] : ends[-1]] if len(starts) == 1 else b""
        self._set(columns)

    def _set(self, columns: Columns) -> None:
        """Use these rows, up to the first whose topic exceeds `MOST_TOPICS`."""
        self._keys: dict[int, frozenset[object]] = {}
        keys, self.codes = number_topics(self.buffer, columns, MOST_TOPICS)
        self.count, reads = len(self.codes), len(self.sessions)
        self.columns = columns = columns[:, : self.count]
        self.bounds, self.owed = np.empty(reads + 1, np.int64), np.empty((4, reads), np.int64)
        self.unanswered = _summarise(columns, reads, self.bounds, self.owed)
        self.meanings = [self._valid_meaning(key) for key in keys]

    def _valid_meaning(self, key: bytes) -> Meaning | None:
        """The meaning of a key; None also for a topic that nobody may publish to, which the router refuses."""
        meaning = self.meaning(key)
        if meaning is not None:
            try:
                validate_publish(meaning.topic)
            except ConfigError:
                return None
        return meaning

    @classmethod
    def take(
        cls, sessions: Sequence[ColumnSession], buffer: bytes, starts: Sequence[int], ends: Sequence[int]
    ) -> Taken:
        """Run the kernel over some reads; they follow each other in `buffer`, and each has a session of its own."""
        start, end = np.array(starts, np.int64), np.array(ends, np.int64)
        room = (ends[-1] - starts[0]) // cls.smallest + 1
        columns = np.empty((FIELDS, room), np.int64)
        stops, odd = np.empty(len(starts), np.int64), np.zeros(len(starts), np.bool_)
        count = cls.scan(sessions[0], np.frombuffer(buffer, np.uint8), start, end, columns, stops, odd)
        if not count:
            return Taken(None, stops.tolist(), odd.tolist())
        if columns[KIND, 0] > 1:
            return cls._take_calls(sessions[0], buffer, columns[:, :count], starts[0], stops.item(), odd.item())
        batch = cls(sessions, buffer, columns[:, :count], starts, stops.tolist())
        if batch.count < count:
            batch._end_before(columns[:, batch.count : count], odd)
        strange = [code for code, meaning in enumerate(batch.meanings) if meaning is None]
        wrong = np.flatnonzero(np.isin(batch.codes, strange)).tolist() if strange else []
        refused = batch._owe()
        if not wrong and not refused:
            return Taken(batch, batch.ends, odd.tolist())
        return batch._without(wrong, refused, odd)

    @classmethod
    def _take_calls(
        cls, session: ColumnSession, buffer: bytes, columns: Columns, start: int, stop: int, is_odd: bool
    ) -> Taken:
        """Take requests or answers. If one of them may break a rule, leave all to `frames.py`, which finds it."""
        assert cls.calls is not None
        assert isinstance(session, CallSession)
        if columns.shape[1] > MOST_CALLS:
            stop, is_odd, columns = int(columns[OFFSET, MOST_CALLS]), False, columns[:, :MOST_CALLS]
        batch = cls.calls(session, buffer, columns, start, stop, is_answers=bool(columns[KIND, 0] == ANSWER))
        if session.take_calls(batch):
            return Taken(batch, (stop,), (is_odd,))
        return Taken(None, (start,), (True,))

    def _end_before(self, left: Columns, odd: NDArray[np.bool_]) -> None:
        """Rows were left for a later batch: end each read before the first of its rows among them."""
        reads, firsts = np.unique(left[READ], return_index=True)
        ends = list(self.ends)
        for read, first in zip(reads.tolist(), firsts.tolist(), strict=True):
            # If several reads were taken together, the rest of each goes to the driver of its connection.
            ends[read], odd[read] = int(left[OFFSET, first]), len(ends) > 1
        self.ends = ends
        if len(ends) == 1:
            self.data = memoryview(self.buffer)[self.starts[0] : ends[0]]

    def _owe(self) -> list[int]:
        """Register the ids of each read as pending in its session; returns the reads that were refused."""
        if not self.unanswered:
            return []
        reads = range(len(self.sessions))
        fields = zip(repeat(self), reads, *self.owed.tolist(), strict=False)
        # Equal to `Owed(*each)`, in a third of the time.
        owed = map(tuple.__new__, repeat(Owed), fields)
        return [
            each.read for session, each in zip(self.sessions, owed, strict=True) if each.size and not session.owe(each)
        ]

    def _without(self, wrong: Sequence[int], refused: Sequence[int], odd: NDArray[np.bool_]) -> Taken:
        """Cut each read off before its first wrong row, and drop the reads whose ids were refused."""
        for read in range(len(self.sessions)):
            if read not in refused:
                self.sessions[read].settled(self, read)
        ends = list(self.ends)
        for row in reversed(wrong):
            read = int(self.columns[READ, row])
            ends[read], odd[read] = int(self.columns[OFFSET, row]), True
        for read in refused:
            ends[read], odd[read] = self.starts[read], True
        kept = self.columns[OFFSET] < np.array(ends, np.int64)[self.columns[READ]]
        if not kept.any():
            return Taken(None, ends, odd.tolist())
        self.ends = ends
        if len(ends) == 1:
            self.data = memoryview(self.buffer)[self.starts[0] : ends[0]]
        self._set(_those(self.columns, kept))
        # This cannot be refused: the ids are a subset of those that were accepted before.
        self._owe()
        return Taken(self, ends, odd.tolist())

    # What the hub calls

    def events(self) -> PublishedRows:
        """All rows, as events."""
        # Not stored: a reference cycle would keep both in memory until the next garbage collection.
        return PublishedRows(self)

    def topics(self) -> list[tuple[str, str | None]]:
        """Each topic, with None as its author: the peer itself published."""
        return [(meaning.topic, None) for meaning in self.meanings if meaning is not None]

    def acknowledgements(self) -> Acknowledgements:
        """Encode the answers to all acknowledged publishes."""
        if not self.unanswered:
            return super().acknowledgements()
        asks = _those(self.columns, self.columns[KIND] > 0) if self.unanswered < self.count else self.columns
        self.unanswered = 0
        counts = self.owed[2]
        frames, ends = self.answers(asks, counts.cumsum())
        return Acknowledgements(frames, ends.tolist(), counts.tolist())

    def settle(self, read: int) -> None:
        """The publishes of one read were answered: their ids are no longer pending."""
        self.sessions[read].settled(self, read)

    def as_messages(self) -> Sequence[Batch]:
        """Decode each read into messages; its ids are pending one by one from now on."""
        found: list[Batch] = []
        bounds = self.bounds.tolist()
        for read, session in enumerate(self.sessions):
            session.settled(self, read)
            messages = [self.message(row) for row in range(bounds[read], bounds[read + 1])]
            for message in messages:
                if message.kind is Kind.REQUEST:
                    session.owe_one(message)
            found.append(Batch(memoryview(self.buffer)[self.starts[read] : self.ends[read]], messages))
        self.unanswered = 0
        return found

    def keys(self, read: int) -> frozenset[object]:
        """The ids of one read whose acknowledgements are pending."""
        found = self._keys.get(read)
        if found is None:
            rows = self.columns[:, self.bounds[read] : self.bounds[read + 1]]
            found = self._keys[read] = self.exact_keys(rows[:, rows[KIND] > 0])
        return found

    def exact_keys(self, rows: Columns) -> frozenset[object]:
        """The ids of these rows."""
        return frozenset(rows[ID].tolist())

    def topics_of(self, read: int) -> list[str]:
        """The topics of one read."""
        codes = dict.fromkeys(self.codes[self.bounds[read] : self.bounds[read + 1]].tolist())
        meanings = (self.meanings[code] for code in codes)
        return [meaning.topic for meaning in meanings if meaning is not None]

    def last_reads(self) -> list[int]:
        """For each topic, the read that has its last event."""
        last = np.empty(len(self.meanings), np.int64)
        last[self.codes] = self.columns[READ]
        return last.tolist()

    def counts(self) -> Columns:
        """How many messages each read has."""
        return self.bounds[1:] - self.bounds[:-1]

    # What a protocol implements

    @classmethod
    @abc.abstractmethod
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
        """Fill a row for each frame of the usual form; returns the number of rows.

        For each read, `stops` gets the position where the kernel stopped. `odd` gets True if the reference decoder must
        take the frame there, False if that frame is incomplete. `session` is one of the sessions: all have the same
        settings.
        """

    @abc.abstractmethod
    def meaning(self, key: bytes) -> Meaning | None:
        """The topic and content type of these bytes; None where the reference decoder must decide."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """Decode a row into its message, by the reference decoder."""

    @abc.abstractmethod
    def event_messages(self, rows: Columns, codes: Sequence[int]) -> list[Message]:
        """Decode rows into the events that they publish."""

    @abc.abstractmethod
    def answers(self, asks: Columns, rows: Columns) -> tuple[bytes, Columns]:
        """Encode the answers to `asks`; for each number `n` in `rows`, also return where the first `n` answers end."""


class PublishedRows(Events):
    """Rows of a batch, as events."""

    def __init__(self, batch: PublishColumns) -> None:
        self._batch = batch
        self._rows: Columns | None = None
        """The selected rows; None for all."""
        self._chosen: Sequence[int] = range(len(batch.meanings))
        """The codes of their topics."""
        self.topics = [meaning.topic for meaning in batch.meanings if meaning is not None]
        self._order: tuple[Columns, Sequence[int]] | None = None

    def __len__(self) -> int:
        return self._batch.count if self._rows is None else len(self._rows)

    def of(self, chosen: Sequence[int]) -> PublishedRows:
        """The rows with one of the chosen topics, in order."""
        return self if len(chosen) == len(self.topics) else self._with(self._rows_of(chosen), chosen)

    def _with(self, rows: Columns, chosen: Sequence[int]) -> PublishedRows:
        """A selection of rows, in this order, with these topics."""
        found = PublishedRows.__new__(PublishedRows)
        found._batch, found.topics, found._order = self._batch, self.topics, self._order
        found._rows, found._chosen = rows, chosen
        return found

    def _rows_of(self, chosen: Sequence[int]) -> Columns:
        """The indexes of the rows with one of the chosen topics, in order."""
        if self._order is None:
            # Sort rows by topic once. A hundred subscribers with a topic each then need not scan all rows each.
            by_topic = np.argsort(self._batch.codes, kind="stable")
            bounds = np.searchsorted(self._batch.codes[by_topic], np.arange(len(self.topics) + 1))
            self._order = by_topic, bounds.tolist()
        order, ends = self._order
        parts = [order[ends[code] : ends[code + 1]] for code in chosen]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def messages(self) -> list[Message]:
        """Decode the rows into events."""
        batch, rows = self._batch, self._rows
        if rows is None:
            return batch.event_messages(batch.columns, batch.codes.tolist())
        return batch.event_messages(batch.columns[:, rows], batch.codes[rows].tolist())

    def frames(self, session: Session, now: float) -> bytes | None:
        """Encode for the session's peer: by the kernel, or by the session where bodies need conversion."""
        batch, rows = self._batch, self._rows
        heads = self._heads(session)
        if heads is None:
            return session.write_events(self.messages(), now)
        columns = batch.columns
        sizes = columns[BODY_SIZE] if rows is None else columns[BODY_SIZE, rows]
        if int(sizes.min()) < max(head.smallest for head in heads):
            return session.write_events(self.messages(), now)
        if int(sizes.max()) > min(head.largest for head in heads):
            return None
        alike = type(batch.sessions[0]) is type(session)
        if rows is None and alike and not batch.owed[2].any() and self._are_as_wanted(heads):
            if len(batch.sessions) == 1:
                return bytes(batch.data)
            return b"".join(batch.buffer[a:b] for a, b in zip(batch.starts, batch.ends, strict=True))
        return self._written(session, heads, sizes, now)[0]

    def frames_apart(
        self, choices: Sequence[Sequence[int]], session: Session, now: float
    ) -> tuple[bytes, Sequence[int], Sequence[int]] | None:
        """Encode all choices by one kernel call."""
        rows = [self._rows_of(chosen) for chosen in choices]
        every = self._with(np.concatenate(rows), [code for chosen in choices for code in chosen])
        heads = every._heads(session)
        if heads is None:
            return None
        sizes = self._batch.columns[BODY_SIZE, every._rows]
        if sizes.min() < max(head.smallest for head in heads) or sizes.max() > min(head.largest for head in heads):
            return None
        written, ends = every._written(session, heads, sizes, now)
        counts = [len(each) for each in rows]
        return written, ends[np.cumsum(counts) - 1].tolist(), counts

    def _written(
        self, session: Session, heads: Sequence[EventHead], sizes: Columns, now: float
    ) -> tuple[bytes, Columns]:
        """Encode by the kernel; returns the frames, and where each of them ends."""
        batch, rows, columns = self._batch, self._rows, self._batch.columns
        places, written = np.empty((len(batch.meanings), 4), np.int64), b"".join(head.head for head in heads)
        begins = 0
        for code, head in zip(self._chosen, heads, strict=True):
            ends = begins + len(head.head)
            places[code] = begins, ends, head.size_at, head.extra
            begins = ends
        longest = max(len(head.head) for head in heads)
        out = np.empty(int(sizes.sum()) + len(sizes) * longest, np.uint8)
        uid_from = batch.uid_from if type(batch.sessions[0]) is type(session) else -1
        uid = np.zeros(2, np.uint64)
        if session.event_uid_at >= 0 and uid_from < 0:
            uid[:] = np.frombuffer(session.draw_uids(now), ">u8")
        ends_of = np.empty(len(sizes), np.int64)
        size = _write_events(
            batch.view, columns, np.arange(batch.count) if rows is None else rows, batch.codes,
            np.frombuffer(written, np.uint8), places, session.event_uid_at, uid_from, uid, out, ends_of,
        )  # fmt: skip
        return out[:size].tobytes(), ends_of

    def _heads(self, session: Session) -> list[EventHead] | None:
        """The event head of each topic; None if the kernel cannot write one of them."""
        heads, meanings = list[EventHead](), self._batch.meanings
        for code in self._chosen:
            meaning = meanings[code]
            assert meaning is not None
            try:
                head = session.event_head(meaning.topic, meaning.content_type)
            except (NotSupported, LimitExceeded):
                return None
            if head is None:
                return None
            heads.append(head)
        return heads

    def _are_as_wanted(self, heads: Sequence[EventHead]) -> bool:
        """Whether the received frames have the subscriber's heads, for every topic. Then they can be forwarded."""
        batch = self._batch
        _, firsts = np.unique(batch.codes, return_index=True)
        for head, row in zip(heads, firsts.tolist(), strict=True):
            start, body = int(batch.columns[OFFSET, row]), int(batch.columns[BODY, row])
            came = bytearray(batch.buffer[start:body])
            if len(came) != len(head.head):
                return False
            came[head.size_at : head.size_at + 4] = bytes(4)
            if batch.uid_from >= 0:
                came[batch.uid_from : batch.uid_from + 16] = bytes(16)
            if came != head.head:
                return False
        return True


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    data, one, rows = np.frombuffer(bytes(64), np.uint8), np.zeros(1, np.int64), sample_rows()
    _summarise(rows, 1, np.empty(2, np.int64), np.empty((4, 1), np.int64))
    _have_one_topic(data, rows)
    _number_topics(data, rows, np.full(16, -1, np.int64), np.empty(1, np.int64), np.empty(1, np.int64))
    uid, out = np.zeros(2, np.uint64), np.empty(64, np.uint8)
    _write_events(data, rows, one, one, data, np.zeros((1, 4), np.int64), -1, -1, uid, out, np.empty(1, np.int64))


__all__ = [
    "ANSWER", "BODY", "BODY_SIZE", "FIELDS", "ID", "KIND", "OFFSET", "PREFIX_SIZE", "READ", "REQUEST", "SIZE", "TOPIC",
    "TOPIC_SIZE", "Columns", "Meaning", "PublishColumns", "PublishedRows", "Taken", "copy", "number_topics", "put_u32",
    "same", "sample_rows", "topic_after_prefix", "u32", "warm",
]  # fmt: skip
