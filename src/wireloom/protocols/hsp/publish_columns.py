"""The hsp kernel: `DATA` and `DATA_ACK` frames of many reads in columns, or `ACK` frames of one read.

See `wireloom.protocols.publish_columns` for the theory of operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Authenticity, Kind, Message, message_of
from wireloom.protocols import publish_columns
from wireloom.protocols.batch import HUB_PREFIX, Calls
from wireloom.protocols.call_columns import CallColumns
from wireloom.protocols.column_session import ColumnSession
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import ENVELOPE, FIRST_RESERVED, LAST_RESERVED, Names, attributes_of
from wireloom.protocols.hsp.protocol import to_message
from wireloom.protocols.hsp.session import HspSession
from wireloom.protocols.kernel_bytes import u32
from wireloom.protocols.publish_columns import (
    ANSWER,
    BODY,
    BODY_SIZE,
    FIELDS,
    ID,
    KIND,
    OFFSET,
    READ,
    SIZE,
    TOPIC,
    TOPIC_SIZE,
    Columns,
    Meaning,
    PublishColumns,
    put_u32,
    sample_rows,
)
from wireloom.protocols.session import Session

_DATA, _DATA_ACK, _ACK = int(frames.Command.DATA), int(frames.Command.DATA_ACK), int(frames.Command.ACK)
_EVENT, _NOBODY = Kind.EVENT, Authenticity.NONE
_ACK_SIZE = 5


@kernel
def _scan(
    data: NDArray[np.uint8],
    starts: Columns,
    ends: Columns,
    max_payload: int,
    profile: bool,
    columns: Columns,
    stops: Columns,
    odd: NDArray[np.bool_],
) -> int:
    """Fill a row for each `DATA` and `DATA_ACK`. The type determines the topic, or the start of an envelope does.

    If there is one read only, and it begins with an `ACK`, the rows are `ACK` frames.
    """
    row = 0
    are_answers = starts.shape[0] == 1 and ends[0] > starts[0] and data[starts[0]] == _ACK
    for read in range(starts.shape[0]):
        at, end = starts[read], ends[read]
        while at < end:
            command = data[np.uint64(at)]
            if command > _DATA_ACK or are_answers:
                if command != _ACK or not are_answers:
                    odd[read] = True
                    break
                if end - at < _ACK_SIZE:
                    break
                columns[READ, row], columns[OFFSET, row], columns[SIZE, row] = read, at, _ACK_SIZE
                columns[KIND, row], columns[ID, row] = ANSWER, u32(data, at + 1)
                columns[TOPIC, row], columns[TOPIC_SIZE, row] = at, 0
                columns[BODY, row], columns[BODY_SIZE, row] = at + _ACK_SIZE, 0
                row += 1
                at += _ACK_SIZE
                continue
            asks = command == _DATA_ACK
            head = np.int64(11) if asks else np.int64(7)
            if end - at < head:
                break
            length = u32(data, at + head - 4)
            if length > max_payload:
                odd[read] = True
                break
            body = at + head
            if end - body < length:
                break
            topic, topic_size, body_size = at + head - 6, np.int64(2), length
            kind = np.int64(0)
            if profile or asks:
                kind = (np.int64(data[np.uint64(topic)]) << 8) | np.int64(data[np.uint64(topic + 1)])
            if FIRST_RESERVED <= kind <= LAST_RESERVED:
                if profile and kind == ENVELOPE:
                    topic = body
                    topic_size = length + 1
                    if length > 2:
                        topic_size = (np.int64(data[body]) << 8) + np.int64(data[body + 1]) + 3
                        if topic_size <= length:
                            topic_size += np.int64(data[body + topic_size - 1])
                    if topic_size > length:
                        odd[read] = True
                        break
                    body += topic_size
                    body_size -= topic_size
                else:
                    odd[read] = True
                    break
            columns[READ, row], columns[OFFSET, row], columns[SIZE, row] = read, at, head + length
            columns[KIND, row], columns[ID, row] = asks, u32(data, at + 1) if asks else np.int64(-1)
            columns[TOPIC, row], columns[TOPIC_SIZE, row] = topic, topic_size
            columns[BODY, row], columns[BODY_SIZE, row] = body, body_size
            row += 1
            at += head + length
        stops[read] = at
    return row


@kernel
def _write_acks(ids: Columns, out: NDArray[np.uint8]) -> None:
    for row in range(ids.shape[0]):
        at = np.int64(row * _ACK_SIZE)
        out[np.uint64(at)] = _ACK
        put_u32(out, at + 1, ids[row])


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    publish_columns.warm()
    one, data = np.zeros(1, np.int64), np.frombuffer(bytes(8), np.uint8)
    _scan(data, one, one, 1, True, np.empty((FIELDS, 1), np.int64), np.empty(1, np.int64), np.zeros(1, np.bool_))
    _write_acks(sample_rows()[ID], np.empty(2 * _ACK_SIZE, np.uint8))


class HspCalls(CallColumns):
    """The `ACK` frames of a read, or its `DATA_ACK` frames that are requests for providers."""

    __slots__ = ()

    def read_ids(self) -> Sequence[str]:
        """Numbers."""
        return list(map(str, self.columns[ID].tolist()))

    def meaning(self, key: bytes) -> Meaning:
        """The topic of a request; an answer has none."""
        return (_meaning(cast(HspSession, self.session).names, key) if key else None) or Meaning("", None)

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        session = cast(HspSession, self.session)
        return _message(session.names, session, self._buffer, int(self.columns[OFFSET, row]))


def _meaning(names: Names, key: bytes) -> Meaning | None:
    """The topic of a type, or that of an envelope; None for operations of the hub."""
    if len(key) == 2:
        topic, content_type = names.topic(int.from_bytes(key)), None
    else:
        topic, rest, content_type = names.read(ENVELOPE, key)
        if rest:
            return None  # it is no envelope
    return None if topic.startswith(HUB_PREFIX) else Meaning(topic, content_type)


def _message(names: Names, session: ColumnSession, buffer: bytes, start: int) -> Message:
    """Decode the message at a position, by the reference decoder."""
    found = frames.decode(buffer, start, cast(HspSession, session).settings.max_payload)
    assert found is not None, "kernel and decoder disagree"
    return to_message(found[0], names, session.inbound)


class HspPublishes(PublishColumns):
    """Frames of sessions whose types have the same names."""

    __slots__ = ("_names",)

    calls = HspCalls
    smallest: ClassVar[int] = _ACK_SIZE

    def __init__(
        self,
        sessions: Sequence[ColumnSession],
        buffer: bytes,
        columns: Columns,
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        # A copy: a later message of the same read may change the names of the session.
        self._names = cast(HspSession, sessions[0]).names
        super().__init__(sessions, buffer, columns, starts, ends)

    @classmethod
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
        """Rows of `DATA` and `DATA_ACK` of types that are not reserved."""
        own = cast(HspSession, session)
        count: int = _scan(data, starts, ends, own.settings.max_payload, own.names.profile, columns, stops, odd)
        return count

    def meaning(self, key: bytes) -> Meaning | None:
        """The topic and the content type."""
        return _meaning(self._names, key)

    def as_calls(self) -> Calls | None:
        """The batch as requests: each `DATA_ACK` is answered separately."""
        if len(self.sessions) > 1 or self.unanswered < self.count:
            return None
        session = cast(HspSession, self.sessions[0])
        calls = HspCalls(session, self.buffer, self.columns, self.starts[0], self.ends[0], is_answers=False)
        session.take_calls(calls)
        session.settled(self, 0)
        self.unanswered = 0
        return calls

    def message(self, row: int) -> Message:
        """A row as the message it is."""
        return _message(self._names, self.sessions[0], self.buffer, int(self.columns[OFFSET, row]))

    def event_messages(self, rows: Columns, codes: Sequence[int]) -> list[Message]:
        """Decode rows into the events that they publish."""
        buffer, direction, meanings = self.buffer, self.sessions[0].inbound, self.meanings
        found = []
        # A key of two bytes is a type.
        is_type = (rows[TOPIC_SIZE] == 2).tolist()
        for at, size, topic_at, plain, code in zip(
            rows[BODY].tolist(), rows[BODY_SIZE].tolist(), rows[TOPIC].tolist(), is_type, codes, strict=True
        ):
            means = meanings[code]
            assert means is not None
            type_ = int.from_bytes(buffer[topic_at : topic_at + 2]) if plain else ENVELOPE
            found.append(message_of((
                _EVENT, means.topic, buffer[at : at + size], None, None, None, means.content_type,
                attributes_of(type_), "hsp", None, None, direction, _NOBODY,
            )))  # fmt: skip
        return found

    def answers(self, asks: Columns, rows: Columns) -> tuple[bytes, Columns]:
        """An `ACK` for each."""
        out = np.empty(_ACK_SIZE * asks.shape[1], np.uint8)
        _write_acks(asks[ID], out)
        return out.tobytes(), _ACK_SIZE * rows
