"""One large read of an hsp connection in columns: routed and acknowledged without an object a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Authenticity, Direction, Kind, Message, ProtocolViolation, message_of
from wireloom.protocols.buffers import same, u32
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import LOGIN, Bulk
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.columns import Scan, scan, violation_at
from wireloom.protocols.hsp.profile import ENVELOPE, FIRST_RESERVED, LAST_RESERVED, Named
from wireloom.protocols.hsp.protocol import to_message
from wireloom.protocols.hsp.session import MAP, HspSession, is_map, reused

_DATA, _DATA_ACK, _ACK = int(frames.Command.DATA), int(frames.Command.DATA_ACK), int(frames.Command.ACK)
_PING, _PONG = int(frames.Command.PING), int(frames.Command.PONG)
_ERROR_UNDEF = int(frames.Command.ERROR_UNDEF)
_EVENT, _REQUEST, _NOBODY = Kind.EVENT, Kind.REQUEST, Authenticity.NONE
_NO_IDS, _NO_TYPES = np.empty(0, np.int64), np.empty(0, np.int32)
_MOST_RUNS = 4
"""Of ascending ids in one read that is taken as usual: a sender that begins again at a small number makes two."""


@kernel
def _ascending(ids: NDArray[np.int64]) -> bool:
    for row in range(1, ids.shape[0]):
        if ids[row] <= ids[row - 1]:
            return False
    return True


@kernel
def _take_alike(
    data: NDArray[np.uint8], max_payload: int, alike: int, answers: NDArray[np.uint8], runs: NDArray[np.int64]
) -> tuple[int, int | np.int64, int]:
    """The usual read in one pass: events of one type, or publishes of one type, for which it writes the `ACK`s.

    All payloads must begin with the same bytes, so many of them as `alike` says.
    Returns how many there are, where they end, and in how many runs their ids ascend; the ends of those are in `runs`.
    No frames at all: there is something else in the read, or there are too many runs.
    """
    command, end = data[0], len(data)
    if command > _DATA_ACK or end < 7:
        return 0, 0, 0
    head = 11 if command == _DATA_ACK else 7
    count, at, ascents, last = 0, np.int64(0), 0, np.int64(-1)
    while at < end:
        if data[at] != command:
            return 0, 0, 0
        if end - at < head:
            break
        length = u32(data, at + head - 4)
        if length > max_payload:
            return 0, 0, 0
        if end - at < head + length:
            break
        if data[at + head - 6] != data[head - 6] or data[at + head - 5] != data[head - 5]:
            return 0, 0, 0
        if alike > 0 and (length < alike or not same(data, at + head, head, alike)):
            return 0, 0, 0
        if command == _DATA_ACK:
            number = u32(data, at + 1)
            if ascents == 0 or number <= last:
                if ascents == runs.shape[0]:
                    return 0, 0, 0
                runs[ascents, 0] = number
                ascents += 1
            runs[ascents - 1, 1] = last = number
            answer = 5 * count
            answers[answer] = _ACK
            for index in range(1, 5):
                answers[answer + index] = data[at + index]
        count += 1
        at += head + length
    return count, at, ascents


@kernel
def _write_answers(
    ids: NDArray[np.int64], refused: NDArray[np.bool_], ack: int, error: int, out: NDArray[np.uint8]
) -> None:
    at = 0
    for row in range(ids.shape[0]):
        number = ids[row]
        out[at] = error if refused[row] else ack
        out[at + 1] = (number >> 24) & 0xFF
        out[at + 2] = (number >> 16) & 0xFF
        out[at + 3] = (number >> 8) & 0xFF
        out[at + 4] = number & 0xFF
        at += 5


@kernel
def _write_data(
    data: NDArray[np.uint8],
    type_: NDArray[np.int32],
    body: NDArray[np.int64],
    size: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """`DATA` frames around the given payloads."""
    at = 0
    for row in range(body.shape[0]):
        length = size[row]
        out[at] = _DATA
        out[at + 1] = (type_[row] >> 8) & 0xFF
        out[at + 2] = type_[row] & 0xFF
        out[at + 3] = (length >> 24) & 0xFF
        out[at + 4] = (length >> 16) & 0xFF
        out[at + 5] = (length >> 8) & 0xFF
        out[at + 6] = length & 0xFF
        at += 7
        source = body[row]
        for _ in range(length):
            out[at] = data[source]
            at += 1
            source += 1


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    ids, flags = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    sample = frames.encode(frames.Data(1, b"x"))
    scan(Spans.whole(sample, Stream(Direction.C2S)), 1)
    _ascending(ids)
    _take_alike(np.frombuffer(sample, np.uint8), 1, 0, np.empty(5, np.uint8), np.empty((1, 2), np.int64))
    _write_answers(ids, flags, _ACK, _ERROR_UNDEF, np.empty(5, np.uint8))
    _write_data(np.frombuffer(sample, np.uint8), np.ones(1, np.int32), ids, ids, np.empty(7, np.uint8))


class HspBulk(Bulk):
    """The frames of one read. Made by `HspSession.receive`, which keeps the conversation's rules."""

    violation: ProtocolViolation | None = None
    by_frame = False
    """Whether the read must be taken frame by frame instead."""
    pings = pongs = 0
    _plain: NDArray[np.bool_] | None = None
    """Which rows are events and publishes of ordinary types; None: all."""
    _answers: bytes | None = None
    """The acknowledgements, where they are written already; then all rows are owed."""
    _columns: Scan | None = None
    envelope = b""
    """What all payloads begin with, where they are envelopes for one topic: all of an envelope but its body."""
    _named: Named | None = None
    """What they give a message."""

    def __init__(self, session: HspSession, buffer: bytes) -> None:
        self._session = session
        self.max_payload = session.settings.max_payload
        self._names = session.names
        self._buffer = buffer
        self._data = np.frombuffer(buffer, np.uint8)
        self._direction = session.role.sends.opposite
        if self._takes_alike():
            return
        found = self._scan()
        self.consumed = int(found.consumed[0])
        if found.bad[0] >= 0:
            self.violation = violation_at(self._data, int(found.bad[0]), self.max_payload)
        rows = self.count = self._check_ids(found.id, found.command, found.offset)
        self._columns = found = found.first(rows)
        counts = np.bincount(found.command, minlength=7)
        self.pings, self.pongs = int(counts[_PING]), int(counts[_PONG])
        plain = found.command <= _DATA_ACK
        if self._names.profile:
            plain &= (found.type < FIRST_RESERVED) | (found.type > LAST_RESERVED)
        self._plain = plain
        self._numbers: dict[str, list[int]] = {}
        for number in np.flatnonzero(np.bincount(found.type[plain], minlength=1)).tolist():
            self._numbers.setdefault(self._names.topic(number), []).append(number)
        others = [] if int(plain.sum()) == rows else self._read(~plain)
        self.by_frame = not self._numbers.keys().isdisjoint((MAP, LOGIN)) or any(
            is_map(each) or each.topic == LOGIN for each in others
        )
        if self.by_frame:
            return
        self._settle_owed()
        self._others = self._hand_over(others)

    def _takes_alike(self) -> bool:
        """The usual read, all of one kind and for one topic: no columns yet. False where it takes a closer look."""
        if self._buffer[0] > _DATA_ACK:
            return False
        head = 11 if self._buffer[0] == _DATA_ACK else 7
        number, envelope, named = int.from_bytes(self._buffer[head - 6 : head - 4]), b"", None
        topic = self._names.topic(number)
        if self._names.profile and FIRST_RESERVED <= number <= LAST_RESERVED:
            envelope = self._first_envelope(head) if number == ENVELOPE else b""
            named = self._names.of_envelope(envelope) if envelope else None
            if named is None:
                return False
            topic = named[0]
        elif topic in (MAP, LOGIN):
            return False
        answers = np.empty(5 * (len(self._buffer) // 11 + 1), np.uint8)
        runs = np.empty((_MOST_RUNS, 2), np.int64)
        count, consumed, ascents = _take_alike(self._data, self.max_payload, len(envelope), answers, runs)
        if not count:
            return False
        ranges: list[tuple[int, int]] = [(first, last) for first, last in runs[:ascents].tolist()]
        if ranges and not _are_apart(ranges, self._session.owed_ranges()):
            return False
        self.count, self.consumed = count, int(consumed)
        if named is not None:
            self.envelope, self._named = envelope, named
        self._numbers, self._others = {topic: [number]}, []
        self._answers = answers[: 5 * count].tobytes() if ranges else b""
        self._owed, self._owed_types = _NO_IDS, _NO_TYPES
        self._owe(count if ranges else 0, ranges)
        return True

    def _first_envelope(self, head: int) -> bytes:
        """The beginning of the first payload up to its body, if that is whole, and an envelope; else nothing."""
        buffer = self._buffer
        size = min(int.from_bytes(buffer[head - 4 : head]), len(buffer) - head)
        if size < 3:
            return b""
        end = 3 + int.from_bytes(buffer[head : head + 2])
        end = end + buffer[head + end - 1] if end <= size else size + 1
        return buffer[head : head + end] if end <= size else b""

    def _scan(self) -> Scan:
        return scan(Spans.whole(self._buffer, Stream(self._direction)), self.max_payload)

    @property
    def _found(self) -> Scan:
        """The columns; of the usual read only if somebody asks for them."""
        if self._columns is None:
            self._columns = self._scan()
        return self._columns

    def _settle_owed(self) -> None:
        """Which ids the acknowledgements of this bulk will answer."""
        found = self._found
        asking = self._rows(None) & (found.command == _DATA_ACK)
        ids = self._owed = found.id[asking]
        self._owed_types = found.type[asking]
        self._answers = None
        self._owe(len(ids), [(int(ids.min()), int(ids.max()))] if len(ids) else [])

    def _owe(self, count: int, ranges: list[tuple[int, int]]) -> None:
        self.unanswered = count
        self.owes = count > 0
        self.owed_ranges = ranges
        """Among which the ids are that wait for their answer."""

    def _check_ids(self, ids: NDArray[np.int64], command: NDArray[np.uint8], offset: NDArray[np.int64]) -> int:
        """How many frames are accepted: all before a `DATA_ACK` whose id is still unanswered."""
        asking = np.flatnonzero(command == _DATA_ACK)
        new = ids[asking]
        if not len(new):
            return len(ids)
        if _ascending(new) and _are_apart([(int(new[0]), int(new[-1]))], self._session.owed_ranges()):
            return len(ids)
        seen = self._session.owed_ids()
        for row, number in zip(asking.tolist(), new.tolist(), strict=True):
            if number in seen:
                self.violation = reused(number)
                self.consumed = int(offset[row])
                return int(row)
            seen.add(number)
        return len(ids)

    def _hand_over(self, messages: list[Message]) -> list[Message]:
        """Leave these to the session, message by message; returns those that somebody is to act on."""
        kept = []
        for message in messages:
            if message.correlation_id is not None:
                if not self._session.settle(int(message.correlation_id)):
                    continue
            elif message.id is not None:
                self._session.owe(int(message.id))
            kept.append(message)
        return kept

    def _read(self, rows: NDArray[np.bool_]) -> list[Message]:
        limit = self._session.settings.max_payload
        messages = []
        for at in self._found.offset[rows].tolist():
            found = frames.decode(self._buffer, at, limit)
            assert found is not None
            messages.append(to_message(found[0], self._names, self._direction))
        return messages

    def _read_plain(self, rows: NDArray[np.bool_]) -> list[Message]:
        """Events and publishes whose types are not reserved: a type says all but the body and the id.

        Or whose envelopes are for one topic.
        """
        if self.envelope:
            return self._read_enclosed(rows)
        buffer, direction, topic_of = self._buffer, self._direction, self._names.topic
        found = self._found
        columns = (found.command, found.type, found.id, found.body, found.body_size)
        named: dict[int, tuple[str, dict[str, str]]] = {}
        messages = []
        for command, type_, number, start, size in zip(*(each[rows].tolist() for each in columns), strict=True):
            if type_ not in named:
                named[type_] = topic_of(type_), {"type": str(type_)}
            topic, attributes = named[type_]
            kind, identifier = (_EVENT, None) if command == _DATA else (_REQUEST, str(number))
            messages.append(message_of((
                kind, topic, buffer[start : start + size], identifier, None, None, None, attributes,
                "hsp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return messages

    @property
    def content_type(self) -> str | None:
        """Of what is in the envelopes."""
        return None if self._named is None else self._named[1]

    def _read_enclosed(self, rows: NDArray[np.bool_]) -> list[Message]:
        """What is in the envelopes."""
        buffer, direction, found, head = self._buffer, self._direction, self._found, len(self.envelope)
        assert self._named is not None
        topic, content_type, attributes = self._named
        columns = (found.command, found.id, found.body, found.body_size)
        messages = []
        for command, number, start, size in zip(*(each[rows].tolist() for each in columns), strict=True):
            kind, identifier = (_EVENT, None) if command == _DATA else (_REQUEST, str(number))
            messages.append(message_of((
                kind, topic, buffer[start + head : start + size], identifier, None, None, content_type, attributes,
                "hsp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return messages

    def topics(self) -> Sequence[str]:
        """Topics of plain `DATA` and `DATA_ACK` frames."""
        return list(self._numbers)

    def messages(self, topic: str | None = None) -> list[Message]:
        """The plain messages of one topic, or of all."""
        return self._read_plain(self._rows(topic))

    def _rows(self, topic: str | None) -> NDArray[np.bool_]:
        plain = np.ones(len(self._found.id), np.bool_) if self._plain is None else self._plain
        if topic is None or (len(self._numbers) == 1 and topic in self._numbers):
            return plain
        chosen: NDArray[np.bool_] = plain & np.isin(self._found.type, self._numbers.get(topic, ()))
        return chosen

    def numbers(self, topic: str) -> list[int]:
        """The types that stand for a topic in this read."""
        return self._numbers[topic]

    def count_of(self, topic: str) -> int:
        """How many plain messages of one topic there are."""
        if self._plain is None:
            return self.count if topic in self._numbers else 0
        return int(self._rows(topic).sum())

    def forward(self, topic: str) -> bytes:
        """The payloads of one topic as `DATA` frames."""
        if self._answers == b"" and topic in self._numbers:
            return self._buffer[: self.consumed]
        rows, found = self._rows(topic), self._found
        if len(self._numbers) == 1 and bool((found.command == _DATA).all()) and bool(rows.all()):
            return self._buffer[: self.consumed]
        body, size = found.body[rows], found.body_size[rows]
        out = np.empty(int(size.sum()) + 7 * len(body), np.uint8)
        _write_data(self._data, found.type[rows], body, size, out)
        return out.tobytes()

    def others(self) -> list[Message]:
        """What is no plain event or publish."""
        return self._others

    def take(self, topic: str) -> list[Message]:
        """Messages of one topic that are no longer part of the bulk."""
        rows = self._rows(topic)
        self._plain = self._rows(None) & ~rows
        self._numbers.pop(topic, None)
        self._settle_owed()
        taken = self._hand_over(self._read_plain(rows))
        if not self.owes:
            self._session.answered(self)
        return taken

    def acknowledgements(self, refused: frozenset[str] = frozenset()) -> bytes:
        """`ACK` (or `ERROR_UNDEF`) for every plain `DATA_ACK`, in order."""
        if refused and self._answers:
            self._settle_owed()
        answers = self._answers
        if answers is None:
            wrong = np.zeros(len(self._owed), np.bool_)
            if refused:
                numbers = [number for topic in refused for number in self._numbers.get(topic, ())]
                wrong = np.isin(self._owed_types, numbers)
            out = np.empty(5 * len(self._owed), np.uint8)
            _write_answers(self._owed, wrong, _ACK, _ERROR_UNDEF, out)
            answers = out.tobytes()
        self._owed, self._owed_types, self._answers = _NO_IDS, _NO_TYPES, None
        self._owe(0, [])
        self._session.answered(self)
        return answers

    # What the session asks

    def owed_ids(self) -> list[int]:
        """Ids of this run that wait for their answer."""
        return self._waiting.tolist()  # type: ignore[no-any-return]

    def owes_id(self, message_id: int) -> bool:
        """Whether one id is among them."""
        return bool((self._waiting == message_id).any())

    @property
    def _waiting(self) -> NDArray[np.int64]:
        return self._found.id[: self.count] if self._answers else self._owed


def _are_apart(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Whether no two of these ranges overlap, but for `others` among each other.

    >>> _are_apart([(7, 9), (0, 2)], [(3, 6)]), _are_apart([(7, 9), (0, 7)], []), _are_apart([(4, 4)], [(3, 6)])
    (True, False, False)
    """
    for at, (first, last) in enumerate(some):
        for low, high in (*some[:at], *others):
            if first <= high and low <= last:
                return False
    return True
