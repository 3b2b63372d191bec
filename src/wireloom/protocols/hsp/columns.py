"""hsp a buffer at a time: a kernel finds every frame, numpy and Arrow make the columns.

Gives exactly what `frames.py` and `protocol.py` give for the same bytes; the tests hold the two
against each other. Where a frame is in doubt, the readable decoder is asked for its words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Kind, ProtocolViolation
from wireloom.protocols.columns import (
    AFTER_VIOLATION,
    BROKEN,
    KIND_CODES,
    ColumnDecoder,
    Columns,
    Reject,
    Spans,
    by_settings,
    gather,
    number_words,
    repeated,
    settings_of,
    words_column,
)
from wireloom.protocols.contract import Settings
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import ENVELOPE, OPERATIONS, Names
from wireloom.protocols.hsp.protocol import UNDEFINED, HspSettings
from wireloom.protocols.kernel_bytes import same, u32

if TYPE_CHECKING:
    import pyarrow as pa

_DATA, _DATA_ACK, _ACK = int(frames.Command.DATA), int(frames.Command.DATA_ACK), int(frames.Command.ACK)
_PING, _PONG = int(frames.Command.PING), int(frames.Command.PONG)
_ERROR, _ERROR_UNDEF = int(frames.Command.ERROR), int(frames.Command.ERROR_UNDEF)
_TYPES = 0x10000
_INVALID = -2
"""The code of what is no text."""

_KIND_OF_COMMAND = np.array(
    [
        KIND_CODES[kind]
        for kind in (Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.PING, Kind.PONG, Kind.ERROR, Kind.ERROR)
    ],
    np.uint8,
)


@dataclass(slots=True)
class Scan:
    """Where every frame is and what its header says; a row a frame.

    `type` and `id` are -1 where a frame has none. `bad` says per span where a violation stands, or -1.
    """

    span: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    command: NDArray[np.uint8]
    type: NDArray[np.int32]
    id: NDArray[np.int64]
    body: NDArray[np.int64]
    body_size: NDArray[np.int64]
    consumed: NDArray[np.int64]
    bad: NDArray[np.int64]

    def first(self, rows: int) -> Scan:
        """The first rows only."""
        if rows == len(self.id):
            return self
        return Scan(
            self.span[:rows], self.offset[:rows], self.size[:rows], self.command[:rows],
            self.type[:rows], self.id[:rows], self.body[:rows], self.body_size[:rows],
            self.consumed, self.bad,
        )  # fmt: skip


@kernel
def _scan(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    stream: NDArray[np.int32],
    max_payload: int,
    broken: NDArray[np.bool_],
    consumed: NDArray[np.int64],
    bad: NDArray[np.int64],
    span: NDArray[np.int32],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    command: NDArray[np.uint8],
    type_: NDArray[np.int32],
    id_: NDArray[np.int64],
    body: NDArray[np.int64],
    body_size: NDArray[np.int64],
) -> int:
    """How many frames there are; fills as many rows as there is room for, and `consumed` and `bad` for every span."""
    row, room = 0, span.shape[0]
    broken[:] = False
    for index in range(start.shape[0]):
        at, last = start[index], end[index]
        bad[index] = -1
        if broken[stream[index]]:
            bad[index] = at
            consumed[index] = at
            continue
        while at < last:
            code, left = data[at], last - at
            kind, number, head, length = np.int32(-1), np.int64(-1), np.int64(1), np.int64(0)
            if code == _DATA:
                head = np.int64(7)
                if left < head:
                    break
                kind = (np.int32(data[at + 1]) << 8) | np.int32(data[at + 2])
                length = u32(data, at + 3)
            elif code in (_DATA_ACK, _ERROR):
                head = np.int64(11)
                if left < head:
                    break
                number = u32(data, at + 1)
                kind = (np.int32(data[at + 5]) << 8) | np.int32(data[at + 6])
                length = u32(data, at + 7)
            elif code in (_ACK, _ERROR_UNDEF):
                head = np.int64(5)
                if left < head:
                    break
                number = u32(data, at + 1)
            if length > max_payload or code > _ERROR_UNDEF:
                bad[index] = at
                broken[stream[index]] = True
                break
            if left < head + length:
                break
            if row < room:
                span[row] = index
                offset[row] = at
                size[row] = head + length
                command[row] = code
                type_[row] = kind
                id_[row] = number
                body[row] = at + head
                body_size[row] = length
            at += head + length
            row += 1
        consumed[index] = at
    return row


_GUESS = 24
"""Bytes of a frame, as a first guess. Rows that stay empty take no memory."""


def scan(spans: Spans, max_payload: int) -> Scan:
    """Find every frame of every span; a second time only where the first guess of how many there are was short."""
    count = len(spans.start)
    consumed, bad = np.empty(count, np.int64), np.empty(count, np.int64)
    broken = np.empty(max(len(spans.streams), 1), np.bool_)
    room = int((spans.end - spans.start).sum()) // _GUESS + 16
    while True:
        result = Scan(
            np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8),
            np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64),
            consumed, bad,
        )  # fmt: skip
        rows = _scan(
            spans.data, spans.start, spans.end, spans.stream, max_payload, broken, consumed, bad, result.span,
            result.offset, result.size, result.command, result.type, result.id, result.body, result.body_size,
        )  # fmt: skip
        if rows <= room:
            return result.first(rows)
        room = rows


def violation_at(data: NDArray[np.uint8], at: int, max_payload: int) -> ProtocolViolation:
    """What the readable decoder says about the bytes that the kernel stopped at."""
    try:
        frames.decode(data[at : at + 16].tobytes(), 0, max_payload)
    except ProtocolViolation as violation:
        return violation
    raise AssertionError(f"kernel and decoder disagree at byte {at}")


@kernel
def _open_envelopes(
    data: NDArray[np.uint8],
    command: NDArray[np.uint8],
    types: NDArray[np.int32],
    body: NDArray[np.int64],
    size: NDArray[np.int64],
    rows: NDArray[np.int64],
    head_of: NDArray[np.int32],
    heads: NDArray[np.int64],
) -> tuple[int, int]:
    """Which rows are envelopes, and which head each has; how many envelopes and heads there are.

    Of a head: where its topic and its content type begin, and their sizes; -1 where a payload is no envelope. Those
    that follow each other with the same one share it.
    """
    count, known = 0, -1
    for row in range(command.shape[0]):
        if command[row] > _DATA_ACK or types[row] != ENVELOPE:
            continue
        at, length = body[row], size[row]
        name, kind = np.int64(-1), np.int64(-1)
        if length >= 3:
            name = (np.int64(data[at]) << 8) | np.int64(data[at + 1])
            if length > 2 + name:
                kind = np.int64(data[at + 2 + name])
                if length < 3 + name + kind:
                    kind = np.int64(-1)
        if kind < 0:
            known += 1
            heads[0, known] = heads[1, known] = -1
            heads[2, known] = heads[3, known] = 0
        else:
            whole = name + kind + 1
            last = np.int64(-1) if known < 0 else heads[0, known]
            if last < 0 or heads[2, known] != name or heads[3, known] != kind or not same(data, last, at + 2, whole):
                known += 1
                heads[0, known], heads[1, known] = at + 2, at + 3 + name
                heads[2, known], heads[3, known] = name, kind
        rows[count] = row
        head_of[count] = known
        count += 1
    return count, known + 1


class HspColumns(ColumnDecoder):
    """The `messages` columns of hsp."""

    def warm(self) -> None:
        """Run each kernel once on a small input."""
        from wireloom.model import Direction
        from wireloom.protocols.columns import Stream

        sample = frames.encode(frames.DataAck(1, ENVELOPE, b"\0\1a\0b")) + frames.encode(frames.PING)
        self.decode(Spans.whole(sample, Stream(Direction.C2S)), HspSettings())

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans, whether their connections have the hub profile or not."""
        own = settings_of(spans.streams, cast(HspSettings, settings))
        return by_settings(_decode, spans, own, cast(HspSettings, settings))


def _decode(spans: Spans, own: HspSettings) -> Columns:
    """All messages of spans that share their settings."""
    import pyarrow as pa

    found = scan(spans, own.max_payload)
    command, types = found.command, found.type
    typed = command <= _DATA_ACK
    topics = _Words()
    kinds = _Words()
    topic_code = _number_topics(topics, spans, found, typed, profile=own.profile)
    kind_code = np.full(len(command), -1, np.int32)
    if own.profile:
        operations = typed & (types > ENVELOPE)
        if operations.any():
            for number in OPERATIONS:
                kind_code[operations & (types == number)] = kinds.code("application/json")
        _unwrap(spans.data, found, topics, topic_code, kinds, kind_code)
    statuses = _Words()
    status_code = np.full(len(command), -1, np.int32)
    answers = command > _DATA_ACK
    if answers.any():
        status_code[command == _ACK] = statuses.code("done")
        status_code[command == _ERROR_UNDEF] = statuses.code(UNDEFINED)
        errors = command == _ERROR
        status_code[errors] = statuses.numbers(types[errors])
        answers &= (command != _PING) & (command != _PONG)
    rejects = []
    for index in np.flatnonzero(found.bad >= 0):
        at, end = int(found.bad[index]), int(spans.end[index])
        if at == spans.start[index] and _broken_before(found, spans, int(index)):
            rejects.append(Reject(int(index), at, end - at, BROKEN, AFTER_VIOLATION))
        else:
            violation = violation_at(spans.data, at, own.max_payload)
            rejects.append(Reject(int(index), at, end - at, violation.clause, violation.detail))
    return Columns(
        span=found.span,
        offset=found.offset,
        size=found.size,
        kind=_KIND_OF_COMMAND[command],
        topic=topics.take(topic_code),
        message_id=_ids(found, command == _DATA_ACK),
        correlation_id=_ids(found, answers),
        status=statuses.take(status_code),
        content_type=kinds.take(kind_code),
        body=gather(spans.data, found.body, found.body_size),
        attributes=_attributes(types, typed),
        authenticity=pa.DictionaryArray.from_arrays(np.zeros(len(command), np.int32), ["none"]),
        rejects=rejects,
        consumed=np.where(found.bad >= 0, spans.end, found.consumed),
        state=[stream.state for stream in spans.streams],
    )


def _attributes(types: NDArray[np.int32], typed: NDArray[np.bool_]) -> pa.Array:
    """The type of each row that has one, as text."""
    import pyarrow as pa

    if typed.all():
        offsets, numbers = np.arange(len(typed) + 1, dtype=np.int32), types
    else:
        offsets, numbers = np.zeros(len(typed) + 1, np.int32), types[typed]
        np.cumsum(typed, out=offsets[1:])
    if len(numbers) and numbers.min() == numbers.max():
        texts = repeated(str(numbers[0]), len(numbers))
    else:
        words = _Words()
        texts = words.take(words.numbers(numbers)).cast(pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), repeated("type", len(numbers)), texts)


def _ids(found: Scan, present: NDArray[np.bool_]) -> pa.Array:
    """Ids as text where they are present, null elsewhere."""
    import pyarrow as pa

    if not present.any():
        return pa.nulls(len(present), pa.string())
    return pa.array(found.id, mask=~present).cast(pa.string())


def _broken_before(found: Scan, spans: Spans, index: int) -> bool:
    """Whether an earlier span of the same stream held a violation."""
    alike = spans.stream[:index] == spans.stream[index]
    return bool((found.bad[:index][alike] >= 0).any())


class _Words:
    """A small vocabulary: texts by code, and columns of codes made into Arrow text at the end."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of a text, new or known."""
        return self._codes.setdefault(text, len(self._codes))

    def numbers(self, values: NDArray[np.int32]) -> NDArray[np.int32]:
        """Codes of 16-bit numbers written as decimal text."""
        return _coded(values.astype(np.int64), _TYPES, lambda number: self.code(str(number)))

    def take(self, codes: NDArray[np.int32]) -> pa.Array:
        """The texts of a column of codes; -1 is null."""
        return words_column(codes, list(self._codes))


@kernel
def _mark(table: NDArray[np.int32], key: NDArray[np.int64]) -> None:
    """Mark each key that occurs; -1 is none."""
    for row in range(key.shape[0]):
        if key[row] >= 0:
            table[key[row]] = 0


@kernel
def _look_up(table: NDArray[np.int32], key: NDArray[np.int64], codes: NDArray[np.int32]) -> None:
    """What the table says for each key; -1 for none."""
    for row in range(key.shape[0]):
        codes[row] = table[key[row]] if key[row] >= 0 else -1


def _coded(key: NDArray[np.int64], keys: int, code: Callable[[int], int]) -> NDArray[np.int32]:
    """The code of each of many keys below `keys`, asking for that of each different one once; -1 for the key -1."""
    table = np.full(keys, -1, np.int32)
    _mark(table, key)
    for each in np.flatnonzero(table == 0):
        table[each] = code(int(each))
    codes = np.empty(len(key), np.int32)
    _look_up(table, key, codes)
    return codes


def _number_topics(
    topics: _Words, spans: Spans, found: Scan, typed: NDArray[np.bool_], *, profile: bool
) -> NDArray[np.int32]:
    """The topic code of every row whose type is a plain number."""
    maps: list[Names] = []
    known: dict[tuple[tuple[int, str], ...], int] = {}
    map_of: dict[int, int] = {}
    for stream in spans.streams:
        if id(stream.topics) not in map_of:
            content = tuple(sorted(stream.topics.items()))
            if content not in known:
                known[content] = len(maps)
                maps.append(Names(stream.topics, profile))
            map_of[id(stream.topics)] = known[content]
    key = np.where(typed, found.type, -1).astype(np.int64)
    if len(maps) > 1:
        map_of_stream = np.array([map_of[id(stream.topics)] for stream in spans.streams])
        key += np.where(typed, _TYPES * map_of_stream[spans.stream[found.span]], 0)
    return _coded(key, max(len(maps), 1) * _TYPES, lambda each: topics.code(maps[each // _TYPES].topic(each % _TYPES)))


@kernel
def _apply_envelopes(
    rows: NDArray[np.int64],
    head_of: NDArray[np.int32],
    heads: NDArray[np.int64],
    name_of_head: NDArray[np.int32],
    type_of_head: NDArray[np.int32],
    topic_code: NDArray[np.int32],
    kind_code: NDArray[np.int32],
    body: NDArray[np.int64],
    body_size: NDArray[np.int64],
) -> None:
    """Give each row what its envelope says, where that is a topic other than the envelope's own."""
    for index in range(rows.shape[0]):
        row, head = rows[index], head_of[index]
        name, kind = name_of_head[head], type_of_head[head]
        if name > _INVALID and kind > _INVALID and name != topic_code[row]:
            size = 3 + heads[2, head] + heads[3, head]
            topic_code[row], kind_code[row] = name, kind
            body[row] += size
            body_size[row] -= size


def _unwrap(
    data: NDArray[np.uint8],
    found: Scan,
    topics: _Words,
    topic_code: NDArray[np.int32],
    kinds: _Words,
    kind_code: NDArray[np.int32],
) -> None:
    """Take envelopes apart: their topic and content type become the row's, the rest its body."""
    most = len(found.command)
    rows, head_of, heads = np.empty(most, np.int64), np.empty(most, np.int32), np.empty((4, most), np.int64)
    count, known = _open_envelopes(data, found.command, found.type, found.body, found.body_size, rows, head_of, heads)
    if not count:
        return
    topic, content_type, topic_size, content_size = heads[:, :known]
    name_code, names = number_words(data, topic, topic_size)
    type_code, types = number_words(data, content_type, content_size)
    # The last code stands for what is no envelope: those have the number -1.
    code_of_name = np.array([*(_text_code(topics, raw, "utf-8") for raw in names), _INVALID], np.int32)
    code_of_type = np.array([*(_text_code(kinds, raw, "ascii") for raw in types), _INVALID], np.int32)
    _apply_envelopes(
        rows[:count], head_of, heads, code_of_name[name_code], code_of_type[type_code], topic_code, kind_code,
        found.body, found.body_size,
    )  # fmt: skip


def _text_code(words: _Words, raw: bytes, encoding: str) -> int:
    """The code of a text in an envelope; -1 for an empty content type, `_INVALID` for no text."""
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        return _INVALID
    return words.code(text) if text or encoding == "utf-8" else -1
