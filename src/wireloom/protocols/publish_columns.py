"""Events and acknowledged publishes in columns: batches that a protocol's kernel fills.

A protocol brings one kernel that finds the frames of many reads, one that writes their acknowledgements, and a few
methods that say what a row means. Bookkeeping, topics and the writing of events are here. Needs numpy and numba.

How a read is taken
-------------------
The kernel goes through the frames of each read. It fills a row for each event and each acknowledged publish of the
usual form, and stops at the first frame that is anything else: incomplete, a control message, wrong, or just odd. The
rows before it are the batch. The session decodes the odd frame with `frames.py`, and the kernel goes on behind it
(`Session._decode`). So a batch never holds anything but publishes, and order is kept. In the read of one connection,
where it begins with requests or answers, the rows are those: see `call_columns.py`.

Topics
------
The kernel says where in a frame the bytes stand that decide its topic and content type (`TOPIC`, `TOPIC_SIZE`). Rows
with the same bytes get the same code. Each code is looked at once, in Python: `PublishColumns.meaning`.

Delivery
--------
In every stream protocol the frame of an event is a head that depends on topic and content type alone, with the size
somewhere in it, and the body behind it. `Session.event_head` gives the head, and one kernel writes all frames for a
subscriber of any protocol. Where the frames already are what the subscriber wants, they go out as they came.
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
"""Topics in one batch. Each is looked at in Python, so more of them would take too long."""

MOST_CALLS = 512
"""Requests or answers in one batch: the ids of all of them are looked at."""

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
    data: NDArray[np.uint8], rows: Columns, table: Columns, firsts: Columns, codes: Columns
) -> tuple[int, int]:
    """Give each topic a code, in order of appearance; `table` is a hash table of codes, all -1.

    There is room for so many topics as `firsts` has. Returns how many there are, and of how many rows.
    """
    count, mask = 0, len(table) - 1
    last_at, last_size, last_code = np.int64(0), np.int64(-1), np.int64(0)
    for row in range(rows.shape[1]):
        at, size = rows[TOPIC, row], rows[TOPIC_SIZE, row]
        # Mostly it is the topic of the frame before.
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
    """Whether all rows have the same topic: then there is nothing to number."""
    at, size = rows[TOPIC, 0], rows[TOPIC_SIZE, 0]
    for row in range(1, rows.shape[1]):
        if rows[TOPIC_SIZE, row] != size or not same(data, at, rows[TOPIC, row], size):
            return False
    return True


def number_topics(buffer: bytes, columns: Columns, most: int) -> tuple[list[bytes], Columns]:
    """The bytes that decide a topic, each once, and of each row which of them it has.

    That of rows up to the first that would have one more than `most`.
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
    """Where the rows of each read begin, and which ids it owes; returns how many publishes are owed in all.

    Of each read: smallest and largest id, how many, and 1 if each is larger than the one before.
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
    """Write a big-endian number of four bytes."""
    out[np.uint64(at)] = (value >> 24) & 0xFF
    out[np.uint64(at + 1)] = (value >> 16) & 0xFF
    out[np.uint64(at + 2)] = (value >> 8) & 0xFF
    out[np.uint64(at + 3)] = value & 0xFF


@inlined
def copy(source: NDArray[np.uint8], at: np.int64, size: np.int64, out: NDArray[np.uint8], to: np.int64) -> None:
    """Copy bytes."""
    # Unsigned positions cannot count from the end: without that check the loop becomes one block copy.
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
    """Write the chosen rows as events: the head of their code, the size in it, the body; returns how many bytes.

    `places` has of each code: where its head begins and ends, where the size stands, and what is added to the body's.
    Where frames have uids, they are copied from `uid_from` bytes into the frame that was read, or counted up. `ends`
    gets where each frame ends.
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
    """The rows that are wanted, in the layout that a slice of rows has: kernels are compiled for that one."""
    count = int(wanted.sum())
    kept: Columns = np.empty((FIELDS, count + 1), np.int64)[:, :count]
    kept[:] = rows[:, wanted]
    return kept


def sample_rows() -> Columns:
    """One row of zeros, to call kernels with so that they are compiled."""
    return np.zeros((FIELDS, 2), np.int64)[:, :1]


class Meaning(NamedTuple):
    """What the bytes that decide a topic say."""

    topic: str
    content_type: str | None


class Taken(NamedTuple):
    """What the kernel took of some reads."""

    batch: PublishColumns | CallColumns | None
    ends: Sequence[int]
    """How many bytes of each read were taken."""
    odd: Sequence[bool]
    """Whether the kernel stopped at a frame that is complete, or wrong, but not for it."""


class PublishColumns(Publishes):
    """Rows that a kernel found in the reads of one or more connections."""

    __slots__ = ("_keys", "bounds", "buffer", "codes", "columns", "ends", "meanings", "owed", "starts", "view")

    sessions: Sequence[ColumnSession]
    smallest: ClassVar[int]
    """Bytes of the smallest frame that is a row."""
    calls: ClassVar[type[CallColumns] | None] = None
    """What batches of requests and answers are, in protocols whose kernel finds them."""
    uid_from: ClassVar[int] = -1
    """Where in a frame its uid stands, in protocols whose events have one."""

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
        """Where the accepted frames of each read are."""
        self.data = memoryview(buffer)[starts[0] : ends[-1]] if len(starts) == 1 else b""
        self._set(columns)

    def _set(self, columns: Columns) -> None:
        """Take these rows, or as many of them as have no more than `MOST_TOPICS` topics."""
        self._keys: dict[int, frozenset[object]] = {}
        keys, self.codes = number_topics(self.buffer, columns, MOST_TOPICS)
        self.count, reads = len(self.codes), len(self.sessions)
        self.columns = columns = columns[:, : self.count]
        self.bounds, self.owed = np.empty(reads + 1, np.int64), np.empty((4, reads), np.int64)
        self.unanswered = _summarise(columns, reads, self.bounds, self.owed)
        self.meanings = [self._valid_meaning(key) for key in keys]

    def _valid_meaning(self, key: bytes) -> Meaning | None:
        """What a key means; None also for a topic that nobody may publish to: the router refuses it."""
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
        """Take what the kernel can of some reads, one after the other in `buffer`, each of a session of its own."""
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
        """Take requests or answers, unless one of them may break a rule: then `frames.py` finds out which."""
        assert cls.calls is not None
        assert isinstance(session, CallSession)
        if columns.shape[1] > MOST_CALLS:
            stop, is_odd, columns = int(columns[OFFSET, MOST_CALLS]), False, columns[:, :MOST_CALLS]
        batch = cls.calls(session, buffer, columns, start, stop, is_answers=bool(columns[KIND, 0] == ANSWER))
        if session.take_calls(batch):
            return Taken(batch, (stop,), (is_odd,))
        return Taken(None, (start,), (True,))

    def _end_before(self, left: Columns, odd: NDArray[np.bool_]) -> None:
        """Rows were left for a later batch: each read ends before the first of its own."""
        reads, firsts = np.unique(left[READ], return_index=True)
        ends = list(self.ends)
        for read, first in zip(reads.tolist(), firsts.tolist(), strict=True):
            # Where several reads are taken together, what is left of one goes to its own driver.
            ends[read], odd[read] = int(left[OFFSET, first]), len(ends) > 1
        self.ends = ends
        if len(ends) == 1:
            self.data = memoryview(self.buffer)[self.starts[0] : ends[0]]

    def _owe(self) -> list[int]:
        """Let sessions remember the ids of their reads; returns the reads of which an id is in use."""
        if not self.unanswered:
            return []
        reads = range(len(self.sessions))
        fields = zip(repeat(self), reads, *self.owed.tolist(), strict=False)
        # The same as `Owed(*each)` in a third of the time.
        owed = map(tuple.__new__, repeat(Owed), fields)
        return [
            each.read for session, each in zip(self.sessions, owed, strict=True) if each.size and not session.owe(each)
        ]

    def _without(self, wrong: Sequence[int], refused: Sequence[int], odd: NDArray[np.bool_]) -> Taken:
        """The same up to the first wrong row of each read, and without the reads whose ids were refused."""
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
        # Fewer ids than before, and nothing of the reads that were refused: none is in use.
        self._owe()
        return Taken(self, ends, odd.tolist())

    # What the hub asks

    def events(self) -> PublishedRows:
        """All rows, as events."""
        # Not kept: a batch and its rows that know each other would stay in memory until a garbage collection.
        return PublishedRows(self)

    def topics(self) -> list[tuple[str, str | None]]:
        """Each topic; whoever wrote to it is the peer."""
        return [(meaning.topic, None) for meaning in self.meanings if meaning is not None]

    def acknowledgements(self) -> Acknowledgements:
        """The answers to all acknowledged publishes."""
        if not self.unanswered:
            return super().acknowledgements()
        asks = _those(self.columns, self.columns[KIND] > 0) if self.unanswered < self.count else self.columns
        self.unanswered = 0
        counts = self.owed[2]
        frames, ends = self.answers(asks, counts.cumsum())
        return Acknowledgements(frames, ends.tolist(), counts.tolist())

    def settle(self, read: int) -> None:
        """The publishes of one read are answered."""
        self.sessions[read].settled(self, read)

    def as_messages(self) -> Sequence[Batch]:
        """Each read as messages; its requests are owed one by one from now on."""
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
        """The ids that one read owes answers to."""
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
        """For each topic the read that brought its last event."""
        last = np.empty(len(self.meanings), np.int64)
        last[self.codes] = self.columns[READ]
        return last.tolist()

    def counts(self) -> Columns:
        """How many messages each read has."""
        return self.bounds[1:] - self.bounds[:-1]

    # What a protocol brings

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
        """Fill a row for each frame of the usual form; returns how many.

        Of each read, `stops` gets where the kernel stopped, and `odd` whether at a frame that is not for it, instead of
        an incomplete one. `session` is one of those that read them: all have the same settings.
        """

    @abc.abstractmethod
    def meaning(self, key: bytes) -> Meaning | None:
        """What the bytes that decide a topic mean; None where the frame takes a closer look."""

    @abc.abstractmethod
    def message(self, row: int) -> Message:
        """A row as the message it is, by the reference decoder."""

    @abc.abstractmethod
    def event_messages(self, rows: Columns, codes: Sequence[int]) -> list[Message]:
        """Rows as the events they publish."""

    @abc.abstractmethod
    def answers(self, asks: Columns, rows: Columns) -> tuple[bytes, Columns]:
        """The answers to these rows, and where the answers to the first so many end, for each number in `rows`."""


class PublishedRows(Events):
    """Rows of a batch, as events."""

    def __init__(self, batch: PublishColumns) -> None:
        self._batch = batch
        self._rows: Columns | None = None
        """Which; None: all."""
        self._chosen: Sequence[int] = range(len(batch.meanings))
        """The topics that they have."""
        self.topics = [meaning.topic for meaning in batch.meanings if meaning is not None]
        self._order: tuple[Columns, Sequence[int]] | None = None

    def __len__(self) -> int:
        return self._batch.count if self._rows is None else len(self._rows)

    def of(self, chosen: Sequence[int]) -> PublishedRows:
        """Those with one of the chosen topics, in order."""
        return self if len(chosen) == len(self.topics) else self._with(self._rows_of(chosen), chosen)

    def _with(self, rows: Columns, chosen: Sequence[int]) -> PublishedRows:
        """Some rows, in this order, which have these topics."""
        found = PublishedRows.__new__(PublishedRows)
        found._batch, found.topics, found._order = self._batch, self.topics, self._order
        found._rows, found._chosen = rows, chosen
        return found

    def _rows_of(self, chosen: Sequence[int]) -> Columns:
        """Which rows have one of the chosen topics, in order."""
        if self._order is None:
            # Rows by topic, so that a hundred subscribers of a topic each do not look at all rows each.
            by_topic = np.argsort(self._batch.codes, kind="stable")
            bounds = np.searchsorted(self._batch.codes[by_topic], np.arange(len(self.topics) + 1))
            self._order = by_topic, bounds.tolist()
        order, ends = self._order
        parts = [order[ends[code] : ends[code + 1]] for code in chosen]
        return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

    def messages(self) -> list[Message]:
        """As events."""
        batch, rows = self._batch, self._rows
        if rows is None:
            return batch.event_messages(batch.columns, batch.codes.tolist())
        return batch.event_messages(batch.columns[:, rows], batch.codes[rows].tolist())

    def frames(self, session: Session, now: float) -> bytes | None:
        """What the kernel writes for the session's peer; or the session itself, where bodies change."""
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
        """What the kernel writes for all of them in one call."""
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
        """What the kernel writes for a session, and where each frame ends."""
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
        """The head of the events of each topic; None if one cannot be written this way."""
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
        """Whether the frames that were read begin as the subscriber wants them to, for every topic."""
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
