"""emp a buffer at a time: a kernel finds every message, numpy and Arrow make the columns.

The kernel understands what most messages are: data, plain or with a request-response block and a hub block in
ASCII, and control messages without blocks. Whatever else it meets (compressed bodies, `hello`, `error`, application
types, other blocks, anything that looks wrong) it only measures; those rows go through `frames.py` and
`messages.py` one by one, so that both ways give the same rows and the same rejects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.model import Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.columns import (
    AFTER_VIOLATION,
    BROKEN,
    KIND_CODES,
    ColumnDecoder,
    Columns,
    Reject,
    Spans,
    Stream,
    by_settings,
    gather_with,
    number_words,
    settings_of,
    with_words,
    words_column,
)
from wireloom.protocols.contract import Settings
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.extensions import HubExtension, RequestResponse, encode_hub, encode_request_response
from wireloom.protocols.emp.frames import Extension, ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import DONE, to_message
from wireloom.protocols.emp.settings import EmpSettings, for_numbers, settled
from wireloom.protocols.emp.sizes import told_mode
from wireloom.protocols.kernel_bytes import is_ascii, same, u32

if TYPE_CHECKING:
    import pyarrow as pa

_HELLO, _BYE, _PING, _PONG, _DATA = (
    int(each) for each in (Type.HELLO, Type.BYE, Type.PING, Type.PONG, Type.DATA)
)  # fmt: skip
_FIRST_APPLICATION_TYPE = frames.FIRST_APPLICATION_TYPE
_REQUEST_RESPONSE, _HUB = int(Extension.REQUEST_RESPONSE), int(Extension.HUB)
_EVENT, _REQUEST, _RESPONSE = (KIND_CODES[kind] for kind in (Kind.EVENT, Kind.REQUEST, Kind.RESPONSE))
_CONTROL = np.array([KIND_CODES[kind] for kind in (Kind.OPEN, Kind.CLOSE, Kind.PING, Kind.PONG, Kind.ERROR)], np.uint8)
_DEEP = 255
"""In place of a kind: this row is for the readable decoder."""

# Fields of a row in the kernel's result.
_OFFSET, _SIZE, _BODY, _BODY_SIZE, _ID = range(5)
_FIELDS = 5


@inlined
def _message_size(
    data: NDArray[np.uint8], at: np.int64, end: np.int64, max_message: int, left_out: int
) -> np.int64 | int:
    """Size of the message at `at`; 0 when it is incomplete, -1 when size or type break a rule."""
    left = end - at
    if left < 4:
        return 0
    size = u32(data, at) + left_out
    if size < 8 or size > max_message:
        return -1
    if left < 8:
        return 0
    if _DATA < data[at + 4] < _FIRST_APPLICATION_TYPE:
        return -1
    if data[at + 4] == _HELLO and data[at + 5] < 0x80 and size != 12:
        return -1
    return size if left >= size else 0


@inlined
def _string(data: NDArray[np.uint8], at: np.int64, end: np.int64) -> np.int64 | int:
    """Where the character string at `at` ends, if it is in ASCII and ends before `end`; else -1."""
    if end - at < 2:
        return -1
    over = at + 2 + ((np.int64(data[np.uint64(at)]) << 8) | np.int64(data[np.uint64(at + 1)]))
    return over if over <= end and is_ascii(data, at + 2, over) else -1


@inlined
def _is_plain_hub(data: NDArray[np.uint8], at: np.int64, end: np.int64) -> bool:
    """Whether a hub block's content has a topic and a content type in ASCII, or one of them, or none, and no more."""
    flags, place = data[np.uint64(at)], at + 1
    if flags & 0x01:
        place = _string(data, place, end)
    if flags & 0x02 and place >= 0:
        place = _string(data, place, end)
    return bool(flags & 0x84 == 0 and place == end)


@inlined
def _read_data(
    data: NDArray[np.uint8],
    at: np.int64,
    end: np.int64,
    more: bool,
    left_out: int,
    known: np.int64,
    known_size: np.int64,
) -> tuple[int, np.int64, np.int64, np.int64, np.int64]:
    """What the blocks of a data message say: its kind, body and id, and the place and size of a hub block's content.

    The kind is `_DEEP` where that is not plain. The place is -1 where there is no hub block. `known` is where one
    stands that has been looked at: of a block that is the same, this is the place.
    """
    kind, number = _EVENT, np.int64(0)
    hub, hub_size = np.int64(-1), np.int64(0)
    while more and kind != _DEEP:
        size = u32(data, at) + left_out if end - at >= 8 else np.int64(0)
        if size < 8 or size > end - at:
            kind = _DEEP
            break
        extension = data[np.uint64(at + 4)]
        more = data[np.uint64(at + 5)] & 0x80 != 0
        if extension == _REQUEST_RESPONSE and size == 20 and kind == _EVENT:
            number = (u32(data, at + 12) << 32) | u32(data, at + 16)
            kind = _DEEP if number == 0 else _REQUEST if data[np.uint64(at + 8)] & 0x80 else _RESPONSE
        elif extension == _HUB and hub < 0 and size > 8:
            hub, hub_size = at + 8, size - 8
            if hub_size == known_size and same(data, known, hub, hub_size):
                hub = known
            elif not _is_plain_hub(data, hub, at + size):
                kind = _DEEP
        else:
            kind = _DEEP
        at += size
    return kind, at, number, hub, hub_size


@kernel
def _find(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    stream: NDArray[np.int32],
    broken: NDArray[np.bool_],
    max_message: int,
    left_out: int,
    consumed: NDArray[np.int64],
    bad: NDArray[np.int64],
    rows: NDArray[np.int64],
    spans: NDArray[np.int32],
    kinds: NDArray[np.uint8],
    hub_of: NDArray[np.int32],
    hubs: NDArray[np.int64],
) -> tuple[int, int]:
    """How many messages and different hub blocks there are; fills as many rows as `rows` has room for.

    `consumed` and `bad` say for each span where the last message ends and where a rule is broken, -1 for nowhere.
    `hubs` are places and sizes of hub blocks, one for all messages in a row with the same; `hub_of` is which, or -1.
    """
    total, room = 0, rows.shape[1]
    different, known, known_size = 0, np.int64(0), np.int64(-1)
    broken[:] = False
    for span in range(start.shape[0]):
        at, last = start[span], end[span]
        bad[span] = -1
        if not broken[stream[span]]:
            while True:
                size = _message_size(data, at, last, max_message, left_out)
                if size <= 0:
                    if size < 0:
                        bad[span] = at
                        broken[stream[span]] = True
                    break
                if total < room:
                    index, over = np.uint64(total), at + size
                    type_, blocks = data[np.uint64(at + 4)], data[np.uint64(at + 5)] & 0x80
                    kind, number, body, head = _DEEP, np.int64(0), over, -1
                    if type_ == _DATA:
                        kind, body, number, hub, hub_size = _read_data(
                            data, at + 8, over, blocks != 0, left_out, known, known_size
                        )
                        if kind == _DEEP:
                            body = over
                        elif hub >= 0:
                            if hub != known or known_size < 0:
                                known, known_size = hub, hub_size
                                hubs[0, different], hubs[1, different] = hub, hub_size
                                different += 1
                            head = different - 1
                    elif blocks == 0 and type_ in (_BYE, _PING, _PONG):
                        kind = _CONTROL[type_]
                    spans[index], kinds[index], hub_of[index] = span, kind, head
                    rows[_OFFSET, index], rows[_SIZE, index], rows[_ID, index] = at, size, number
                    rows[_BODY, index], rows[_BODY_SIZE, index] = body, over - body
                at += size
                total += 1
        consumed[span] = at
    return total, different


@kernel
def _open_hubs(data: NDArray[np.uint8], hubs: NDArray[np.int64], words: NDArray[np.int64]) -> None:
    """Place and size of topic and content type in hub blocks that are plain; -1 for none."""
    for index in range(hubs.shape[1]):
        place, flags = hubs[0, index] + 1, data[hubs[0, index]]
        for field in range(2):
            words[2 * field, index], words[2 * field + 1, index] = -1, 0
            if flags & (1 << field):
                size = (np.int64(data[place]) << 8) | np.int64(data[place + 1])
                words[2 * field, index], words[2 * field + 1, index] = place + 2, size
                place += 2 + size


_TELLING = 4096
"""Bytes of a stream that mostly show its size mode."""
_GUESS = 64
"""Bytes of a message, as a first guess. Rows that stay empty take no memory."""


@dataclass(slots=True)
class _Scan:
    """The kernel's rows, a field a line, and what the readable decoder made of the deep ones."""

    rows: NDArray[np.int64]
    span: NDArray[np.int32]
    kind: NDArray[np.uint8]
    hub_of: NDArray[np.int32]
    hubs: NDArray[np.int64]
    consumed: NDArray[np.int64]
    deep: NDArray[np.int64]
    messages: list[Message]
    rejects: list[Reject]


class EmpColumns(ColumnDecoder):
    """The `messages` columns of emp."""

    def warm(self) -> None:
        """Run each kernel once on a small input."""
        request = ExtensionBlock(Extension.REQUEST_RESPONSE, encode_request_response(RequestResponse(True, 1)))
        hub = ExtensionBlock(Extension.HUB, encode_hub(HubExtension("a", "b")))
        sample = frames.encode(Frame(Type.DATA, b"", (request, hub))) + frames.encode(Frame(Type.PING))
        self.decode(Spans.whole(sample, Stream(Direction.C2S)), EmpSettings(size_mode=SizeMode.INCLUSIVE))

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans, whatever the size mode of their connections. The state of a stream is its mode.

        Number 0 of a stream's topics is its size mode, in journals of format 1.
        """
        found = settings_of(spans.streams, cast(EmpSettings, settings))
        own = [for_numbers(each, stream.topics) for each, stream in zip(found, spans.streams, strict=True)]
        if all(each.size_mode is not SizeMode.AUTO for each in own):
            return by_settings(_decode, spans, own, cast(EmpSettings, settings))
        told = _told_modes(spans, own)
        known = [
            each if mode is None else settled(each, mode, each.profile) for each, mode in zip(own, told, strict=True)
        ]
        columns = by_settings(_decode, spans, known, cast(EmpSettings, settings))
        columns.state = [b"" if mode is None else mode.encode() for mode in told]
        return columns


def _told_modes(spans: Spans, own: Sequence[EmpSettings]) -> list[SizeMode | None]:
    """The size mode of each stream: stated, known from earlier spans, or shown by its first; None: not known yet."""
    told: list[SizeMode | None] = [
        each.size_mode
        if each.size_mode is not SizeMode.AUTO
        else SizeMode(stream.state.decode())
        if stream.state
        else None
        for each, stream in zip(own, spans.streams, strict=True)
    ]
    seen: set[int] = set()
    for span, stream in enumerate(spans.stream.tolist()):
        if told[stream] is None and stream not in seen:
            seen.add(stream)
            start, end = int(spans.start[span]), int(spans.end[span])
            most = own[stream].max_message
            first = spans.data[start : min(start + _TELLING, end)].tobytes()
            # Most begin with a small frame.
            told[stream] = told_mode(first, 0, most)
            if told[stream] is None and end - start > _TELLING:
                told[stream] = told_mode(spans.data[start:end].tobytes(), 0, most)
    return told


def _decode(spans: Spans, settings: EmpSettings) -> Columns:
    """All messages of spans that share their settings."""
    found = _scan(spans, settings)
    rows, kind, deep, messages = found.rows, found.kind, found.deep, found.messages
    requests, responses = kind == _REQUEST, kind == _RESPONSE
    kind[deep] = [KIND_CODES[message.kind] for message in messages]
    numbers = rows[_ID].view(np.uint64)
    words = np.empty((4, found.hubs.shape[1]), np.int64)
    _open_hubs(spans.data, found.hubs, words)
    done = np.where(responses, np.int32(0), np.int32(-1))
    return Columns(
        span=found.span,
        offset=rows[_OFFSET],
        size=rows[_SIZE],
        kind=kind,
        topic=_words(spans.data, found, words[0], words[1], [m.topic for m in messages]),
        message_id=_numbers(numbers, requests, deep, [m.id for m in messages]),
        correlation_id=_numbers(numbers, responses, deep, [m.correlation_id for m in messages]),
        status=with_words(done, [DONE], deep, [m.status for m in messages]),
        content_type=_words(spans.data, found, words[2], words[3], [m.content_type for m in messages]),
        body=gather_with(spans.data, rows[_BODY], rows[_BODY_SIZE], deep, [m.body for m in messages]),
        attributes=_attributes(len(kind), deep, messages),
        authenticity=words_column(np.zeros(len(kind), np.int32), ["none"]),
        rejects=found.rejects,
        consumed=found.consumed,
        state=[stream.state for stream in spans.streams],
    )


def _scan(spans: Spans, settings: EmpSettings) -> _Scan:
    """Find every message, look into the deep ones, and cut each stream at its first violation."""
    left_out = 4 if settings.size_mode is SizeMode.EXCLUSIVE else 0
    count = len(spans.start)
    consumed, bad = np.empty(count, np.int64), np.empty(count, np.int64)
    broken = np.empty(max(len(spans.streams), 1), np.bool_)
    room = int((spans.end - spans.start).sum()) // _GUESS + 16
    while True:
        rows, hubs = np.empty((_FIELDS, room), np.int64), np.empty((2, room), np.int64)
        span_of, kind, hub_of = np.empty(room, np.int32), np.empty(room, np.uint8), np.empty(room, np.int32)
        total, different = _find(
            spans.data, spans.start, spans.end, spans.stream, broken, settings.max_message, left_out, consumed, bad,
            rows, span_of, kind, hub_of, hubs,
        )  # fmt: skip
        if total <= room:
            break
        room = total  # and once more, with room for all
    rows, span_of, kind, hub_of, hubs = (
        rows[:, :total], span_of[:total], kind[:total], hub_of[:total], hubs[:, :different],
    )  # fmt: skip
    deep = np.flatnonzero(kind == _DEEP)
    messages: list[Message] = []
    read: list[int] = []
    violations: dict[int, tuple[int, ProtocolViolation]] = {}
    """By stream: the span of its first violation, and the violation."""
    for index in np.flatnonzero(bad >= 0):
        at = int(bad[index])
        head = spans.data[at : min(at + 8, int(spans.end[index]))].tobytes()
        violations[int(spans.stream[index])] = (int(index), _violation(head, settings, at))
    cut: set[int] = set()
    for row in deep.tolist():
        span, at, size = int(span_of[row]), int(rows[_OFFSET, row]), int(rows[_SIZE, row])
        stream = int(spans.stream[span])
        if stream in cut:
            continue
        try:
            message = _read(spans.data[at : at + size].tobytes(), settings)
        except ProtocolViolation as violation:
            violation.offset = at
            violations[stream] = (span, violation)
            cut.add(stream)
        else:
            messages.append(message)
            read.append(row)
    if not violations:
        return _Scan(rows, span_of, kind, hub_of, hubs, consumed, np.array(read, np.int64), messages, [])
    limit, rejects = _cut(spans, violations, consumed)
    kept = rows[_OFFSET] < limit[span_of]
    moved = np.cumsum(kept) - 1
    return _Scan(
        rows[:, kept], span_of[kept], kind[kept], hub_of[kept], hubs, consumed, moved[np.array(read, np.int64)],
        messages, rejects,
    )  # fmt: skip


def _read(data: bytes, settings: EmpSettings) -> Message:
    found = frames.decode(data, 0, settings.max_message, settings.size_mode)
    if found is None:
        raise AssertionError("kernel and decoder disagree about the size of a message")
    return to_message(found[0], settings)


def _violation(head: bytes, settings: EmpSettings, at: int) -> ProtocolViolation:
    """What the readable decoder says about the head that the kernel stopped at."""
    try:
        frames.decode(head, 0, settings.max_message, settings.size_mode)
    except ProtocolViolation as violation:
        violation.offset = at
        return violation
    raise AssertionError(f"kernel and decoder disagree at byte {at}")


def _cut(
    spans: Spans, violations: dict[int, tuple[int, ProtocolViolation]], consumed: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[Reject]]:
    """Before which place the rows of each span are kept, and the rejects from there on."""
    limit = np.full(len(spans.start), np.iinfo(np.int64).max, np.int64)
    rejects: list[Reject] = []
    for span, stream in enumerate(spans.stream.tolist()):
        first, violation = violations.get(stream, (len(limit), None))
        if span < first or violation is None:
            continue
        start, end = int(spans.start[span]), int(spans.end[span])
        consumed[span] = end
        if span == first:
            limit[span] = at = cast(int, violation.offset)
            rejects.append(Reject(span, at, end - at, violation.clause, violation.detail))
        else:
            limit[span] = start
            rejects.append(Reject(span, start, end - start, BROKEN, AFTER_VIOLATION))
    return limit, rejects


def _words(
    data: NDArray[np.uint8],
    found: _Scan,
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    values: Sequence[str | None],
) -> pa.Array:
    """One of the texts of each row's hub block; deep rows have values of their own."""
    codes, words = number_words(data, start, size)
    # The last one stands for no block: those have the number -1.
    own = np.append(codes, np.int32(-1))[found.hub_of]
    return with_words(own, [word.decode("ascii") for word in words], found.deep, values)


def _numbers(
    numbers: NDArray[np.uint64], present: NDArray[np.bool_], deep: NDArray[np.int64], values: Sequence[str | None]
) -> pa.Array:
    """Numbers as text where they are present, with the values of the deep rows put in."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(numbers, mask=~present).cast(pa.string()) if present.any() else pa.nulls(len(numbers), pa.string())
    if all(value is None for value in values):
        return texts
    mask = np.zeros(len(numbers), np.bool_)
    mask[deep] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(values, pa.string()))


def _attributes(count: int, deep: NDArray[np.int64], messages: list[Message]) -> pa.Array:
    """The attributes; only deep rows have any."""
    import pyarrow as pa

    offsets = np.zeros(count + 1, np.int32)
    if messages:
        offsets[1:][deep] = [len(message.attributes) for message in messages]
        np.cumsum(offsets, out=offsets)
    names = [name for message in messages for name in message.attributes]
    values = [value for message in messages for value in message.attributes.values()]
    return pa.MapArray.from_arrays(pa.array(offsets), pa.array(names, pa.string()), pa.array(values, pa.string()))
