"""One large read of an hsp connection in columns: routed and acknowledged without an object a message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Authenticity, Direction, Kind, Message, ProtocolViolation, message_of
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import LOGIN, Bulk
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.columns import Scan, scan, violation_at
from wireloom.protocols.hsp.profile import FIRST_RESERVED, LAST_RESERVED
from wireloom.protocols.hsp.protocol import to_message
from wireloom.protocols.hsp.session import MAP, HspSession, is_map, reused

_DATA, _DATA_ACK, _ACK = int(frames.Command.DATA), int(frames.Command.DATA_ACK), int(frames.Command.ACK)
_PING, _PONG = int(frames.Command.PING), int(frames.Command.PONG)
_ERROR_UNDEF = int(frames.Command.ERROR_UNDEF)
_EVENT, _REQUEST, _NOBODY = Kind.EVENT, Kind.REQUEST, Authenticity.NONE


@kernel
def _ascending(ids: NDArray[np.int64]) -> bool:
    for row in range(1, ids.shape[0]):
        if ids[row] <= ids[row - 1]:
            return False
    return True


@kernel
def _alike(command: NDArray[np.uint8], type_: NDArray[np.int32], ids: NDArray[np.int64]) -> bool:
    """Whether these are events of one type, or publishes of one type with ascending ids."""
    if ids.shape[0] == 0 or command[0] > _DATA_ACK:
        return False
    for row in range(1, ids.shape[0]):
        if command[row] != command[0] or type_[row] != type_[0]:
            return False
        if command[row] == _DATA_ACK and ids[row] <= ids[row - 1]:
            return False
    return True


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
    _alike(np.zeros(1, np.uint8), np.zeros(1, np.int32), ids)
    _write_answers(ids, flags, _ACK, _ERROR_UNDEF, np.empty(5, np.uint8))
    _write_data(np.frombuffer(sample, np.uint8), np.ones(1, np.int32), ids, ids, np.empty(7, np.uint8))


class HspBulk(Bulk):
    """The frames of one read. Made by `HspSession.receive`, which keeps the conversation's rules."""

    def __init__(self, session: HspSession, buffer: bytes) -> None:
        self._session = session
        self.max_payload = session.settings.max_payload
        self._names = session.names
        self._buffer = buffer
        self._data = np.frombuffer(buffer, np.uint8)
        direction = session.role.sends.opposite
        limit = session.settings.max_payload
        found = scan(Spans.whole(buffer, Stream(direction)), limit)
        self._direction = direction
        self.consumed = int(found.consumed[0])
        self.violation: ProtocolViolation | None = None
        if found.bad[0] >= 0:
            self.violation = violation_at(self._data, int(found.bad[0]), limit)
        if _alike(found.command, found.type, found.id) and self._take_alike(found):
            return
        rows = self._check_ids(found.id, found.command, found.offset)
        self._keep(found, rows)
        counts = np.bincount(self._command, minlength=7)
        self.pings, self.pongs = int(counts[_PING]), int(counts[_PONG])
        self._plain = self._command <= _DATA_ACK
        if self._names.profile:
            self._plain &= (self._type < FIRST_RESERVED) | (self._type > LAST_RESERVED)
        self._numbers: dict[str, list[int]] = {}
        for number in np.flatnonzero(np.bincount(self._type[self._plain], minlength=1)).tolist():
            self._numbers.setdefault(self._names.topic(number), []).append(number)
        others = [] if int(self._plain.sum()) == rows else self._read(~self._plain)
        self.by_frame = not self._numbers.keys().isdisjoint((MAP, LOGIN)) or any(
            is_map(each) or each.topic == LOGIN for each in others
        )
        if self.by_frame:
            return
        self._settle_owed()
        self._others = self._hand_over(others)

    def _take_alike(self, found: Scan) -> bool:
        """The usual read, all of one kind and for one topic; False where it takes a closer look."""
        number, ids = int(found.type[0]), found.id
        topic = self._names.topic(number)
        if topic in (MAP, LOGIN) or (self._names.profile and FIRST_RESERVED <= number <= LAST_RESERVED):
            return False
        asks = found.command[0] == _DATA_ACK
        bounds = (int(ids[0]), int(ids[-1])) if asks else (0, -1)
        owed = self._session.owed_range() if asks else None
        if owed is not None and bounds[0] <= owed[1] and owed[0] <= bounds[1]:
            return False
        self._keep(found, len(ids))
        self.pings = self.pongs = 0
        self._plain = np.ones(self.count, np.bool_)
        self._numbers, self._others, self.by_frame = {topic: [number]}, [], False
        self._owe(ids if asks else ids[:0], found.type, bounds)
        return True

    def _keep(self, found: Scan, rows: int) -> None:
        """The first rows are those of this bulk."""
        self.count = rows
        self._offset = found.offset[:rows]
        self._command = found.command[:rows]
        self._type = found.type[:rows]
        self._id = found.id[:rows]
        self._body = found.body[:rows]
        self._body_size = found.body_size[:rows]

    def _settle_owed(self) -> None:
        """Which ids the acknowledgements of this bulk will answer."""
        asking = self._plain & (self._command == _DATA_ACK)
        ids = self._id[asking]
        self._owe(ids, self._type[asking], (int(ids.min()), int(ids.max())) if len(ids) else (0, -1))

    def _owe(self, ids: NDArray[np.int64], types: NDArray[np.int32], bounds: tuple[int, int]) -> None:
        self._owed, self._owed_types = ids, types[: len(ids)]
        self.unanswered = len(ids)
        self.owes = self.unanswered > 0
        self.owed_bounds = bounds

    def _check_ids(self, ids: NDArray[np.int64], command: NDArray[np.uint8], offset: NDArray[np.int64]) -> int:
        """How many frames are accepted: all before a `DATA_ACK` whose id is still unanswered."""
        asking = np.flatnonzero(command == _DATA_ACK)
        new = ids[asking]
        if not len(new):
            return len(ids)
        owed = self._session.owed_range()
        if _ascending(new) and (owed is None or new[0] > owed[1] or new[-1] < owed[0]):
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
        for at in self._offset[rows].tolist():
            found = frames.decode(self._buffer, at, limit)
            assert found is not None
            messages.append(to_message(found[0], self._names, self._direction))
        return messages

    def _read_plain(self, rows: NDArray[np.bool_]) -> list[Message]:
        """Events and publishes whose types are not reserved: a type says all but the body and the id."""
        buffer, direction, topic_of = self._buffer, self._direction, self._names.topic
        columns = (self._command, self._type, self._id, self._body, self._body_size)
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

    def topics(self) -> Sequence[str]:
        """Topics of plain `DATA` and `DATA_ACK` frames."""
        return list(self._numbers)

    def messages(self, topic: str | None = None) -> list[Message]:
        """The plain messages of one topic, or of all."""
        return self._read_plain(self._rows(topic))

    def _rows(self, topic: str | None) -> NDArray[np.bool_]:
        if topic is None or (len(self._numbers) == 1 and topic in self._numbers):
            return self._plain
        chosen: NDArray[np.bool_] = self._plain & np.isin(self._type, self._numbers.get(topic, ()))
        return chosen

    def numbers(self, topic: str) -> list[int]:
        """The types that stand for a topic in this read."""
        return self._numbers[topic]

    def count_of(self, topic: str) -> int:
        """How many plain messages of one topic there are."""
        return int(self._rows(topic).sum())

    def forward(self, topic: str) -> bytes:
        """The payloads of one topic as `DATA` frames."""
        rows = self._rows(topic)
        if len(self._numbers) == 1 and bool((self._command == _DATA).all()) and bool(rows.all()):
            return self._buffer[: self.consumed]
        body, size = self._body[rows], self._body_size[rows]
        out = np.empty(int(size.sum()) + 7 * len(body), np.uint8)
        _write_data(self._data, self._type[rows], body, size, out)
        return out.tobytes()

    def others(self) -> list[Message]:
        """What is no plain event or publish."""
        return self._others

    def take(self, topic: str) -> list[Message]:
        """Messages of one topic that are no longer part of the bulk."""
        rows = self._rows(topic)
        self._plain = self._plain & ~rows
        self._numbers.pop(topic, None)
        self._settle_owed()
        taken = self._hand_over(self._read_plain(rows))
        if not self.owes:
            self._session.answered(self)
        return taken

    def acknowledgements(self, refused: frozenset[str] = frozenset()) -> bytes:
        """`ACK` (or `ERROR_UNDEF`) for every plain `DATA_ACK`, in order."""
        wrong = np.zeros(len(self._owed), np.bool_)
        if refused:
            numbers = [number for topic in refused for number in self._numbers.get(topic, ())]
            wrong = np.isin(self._owed_types, numbers)
        out = np.empty(5 * len(self._owed), np.uint8)
        _write_answers(self._owed, wrong, _ACK, _ERROR_UNDEF, out)
        self._owed, self._owed_types = self._owed[:0], self._owed_types[:0]
        self.unanswered, self.owes = 0, False
        self._session.answered(self)
        return out.tobytes()

    # What the session asks

    def owed_ids(self) -> list[int]:
        """Ids of this run that wait for their answer."""
        return self._owed.tolist()  # type: ignore[no-any-return]

    def owes_id(self, message_id: int) -> bool:
        """Whether one id is among them."""
        return bool((self._owed == message_id).any())
