"""yamp a buffer at a time: a kernel finds every frame and its fields, numpy and Arrow make the columns.

Gives exactly what `frames.py` and `protocol.py` give for the same bytes; the tests hold the two against each
other. Where a frame breaks a rule, the readable decoder is asked for its words. A stream's state is the
serializer named by the last handshake of that direction: it says what the bodies after it are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.formats import body_formats
from wireloom.kernels import inlined, kernel
from wireloom.model import Direction, Kind, ProtocolViolation
from wireloom.protocols.columns import (
    AFTER_VIOLATION,
    BROKEN,
    KIND_CODES,
    ColumnDecoder,
    Columns,
    Reject,
    Spans,
    Stream,
    gather,
    number_words,
    settings_of,
    with_words,
    words_column,
)
from wireloom.protocols.contract import Settings
from wireloom.protocols.kernel_bytes import is_ascii, is_utf8, same, u32
from wireloom.protocols.yamp import errors, frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.protocol import SERIALIZER, STATUS, YampSettings

if TYPE_CHECKING:
    import pyarrow as pa

_HANDSHAKE, _PING, _PONG = int(FrameType.HANDSHAKE), int(FrameType.PING), int(FrameType.PONG)
_CLOSE, _CLOSE_REDIRECT = int(FrameType.CLOSE), int(FrameType.CLOSE_REDIRECT)
_EVENT, _REQUEST = int(FrameType.EVENT), int(FrameType.REQUEST)
_CANCEL, _RESPONSE = int(FrameType.CANCEL), int(FrameType.RESPONSE)

_KIND_OF_TYPE = np.array(
    [
        KIND_CODES[kind]
        for kind in (
            Kind.OPEN,
            Kind.PING,
            Kind.PONG,
            Kind.CLOSE,
            Kind.REDIRECT,
            Kind.EVENT,
            Kind.REQUEST,
            Kind.CANCEL,
            Kind.RESPONSE,
        )
    ],
    np.uint8,
)
_DIGITS, _HYPHEN = np.frombuffer(b"0123456789abcdef", np.uint8), ord("-")
_STATUSES = [STATUS[type_][1] for type_ in ResponseType]
_KIND_OF_RESPONSE = np.array([KIND_CODES[STATUS[type_][0]] for type_ in ResponseType], np.uint8)

# The fields of one row of a scan. A text is a serializer, reason, url or uri; a flag is a version,
# progressive, kill or the type of a response; named is the handshake in force, counted over all streams, or
# -1 - stream before the first; uri is which of the uris is that of a user message, or -1.
_FIELDS = 10
_SPAN, _OFFSET, _SIZE, _TEXT, _TEXT_SIZE, _BODY, _BODY_SIZE, _FLAG, _NAMED, _URI = range(_FIELDS)


@inlined
def _frame(
    data: NDArray[np.uint8], at: np.int64, end: np.int64, max_body: int, known: np.int64, known_size: np.int64
) -> tuple[np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, bool]:
    """The frame at `at`: its size, text, size of the text, body, size of the body, flag, and whether the text is known.

    The size is 0 when it is incomplete, -1 when it breaks a rule. Fields are checked in the order in which they
    stand, as in `frames.decode`. `known` is where a text stands that has been checked.
    """
    none = np.int64(0)
    type_ = data[at]
    if type_ > _RESPONSE:
        return np.int64(-1), none, none, none, none, none, False
    flag = none
    if type_ >= _EVENT:
        text = at + 18
        if end < text:
            return none, none, none, none, none, none, False
        size = np.int64(data[at + 17])
    elif type_ == _HANDSHAKE:
        text = at + 4
        if end < text:
            return none, none, none, none, none, none, False
        size = np.int64(data[at + 3])
        flag = (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])
    elif type_ in (_PING, _PONG):
        body = at + 2
        if end < body:
            return none, none, none, none, none, none, False
        size = np.int64(data[at + 1])
        if end < body + size:
            return none, none, none, none, none, none, False
        return body + size - at, none, none, body, size, none, False
    else:
        text = at + 3
        if end < text:
            return none, none, none, none, none, none, False
        size = (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])
    position = text + size
    if end < position:
        return none, none, none, none, none, none, False
    repeats = size == known_size and same(data, known, text, size)
    if not (repeats or is_ascii(data, text, position) or is_utf8(data, text, position)):
        return np.int64(-1), none, none, none, none, none, False
    if type_ < _EVENT:
        return position - at, text, size, none, none, flag, repeats
    if type_ != _EVENT:
        if type_ != _REQUEST:
            position += 16
        if end <= position:
            return none, none, none, none, none, none, False
        flag = np.int64(data[position])
        if flag > (3 if type_ == _RESPONSE else 1):
            return np.int64(-1), none, none, none, none, none, False
        position += 1
        if type_ == _CANCEL:
            return position - at, text, size, none, none, flag, repeats
    body = position + 4
    if end < body:
        return none, none, none, none, none, none, False
    body_size = u32(data, position)
    if body_size > max_body:
        return np.int64(-1), none, none, none, none, none, False
    if end < body + body_size:
        return none, none, none, none, none, none, False
    return body + body_size - at, text, size, body, body_size, flag, repeats


@kernel
def _scan(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    stream: NDArray[np.int32],
    max_body: int,
    types: NDArray[np.uint8],
    rows: NDArray[np.int64],
    uris: NDArray[np.int64],
    consumed: NDArray[np.int64],
    bad: NDArray[np.int64],
    broken: NDArray[np.bool_],
    named: NDArray[np.int64],
) -> tuple[int, int]:
    """Every frame of every span; returns how many there are and fills as many rows as `rows` has columns.

    `uris` are the starts and sizes of uris, one for all user messages in a row that have the same; how many there
    are is returned, too.

    `consumed` and `bad` say for each span where the last frame ends and where a rule is broken (-1: nowhere),
    `broken` and `named` for each stream whether it broke and which handshake is its last.
    """
    total = shaken = 0
    different, known, known_size = 0, np.int64(0), np.int64(-1)
    room = rows.shape[1]
    broken[:] = False
    for number in range(named.shape[0]):
        named[number] = -1 - number
    for index in range(start.shape[0]):
        at, last, of = start[index], end[index], stream[index]
        bad[index] = -1
        if broken[of]:
            bad[index] = consumed[index] = at
            continue
        in_force = named[of]
        while at < last:
            size, text, text_size, body, body_size, flag, repeats = _frame(data, at, last, max_body, known, known_size)
            if size <= 0:
                if size < 0:
                    bad[index] = at
                    broken[of] = True
                break
            if data[at] == _HANDSHAKE:
                in_force = shaken
                shaken += 1
            if total < room:
                row = np.uint64(total)
                types[row] = data[at]
                rows[_URI, row] = -1
                if data[at] >= _EVENT:
                    if not repeats:
                        known, known_size = text, text_size
                        uris[0, different], uris[1, different] = text, text_size
                        different += 1
                    rows[_URI, row] = different - 1
                rows[_SPAN, row], rows[_OFFSET, row], rows[_SIZE, row] = index, at, size
                rows[_TEXT, row], rows[_TEXT_SIZE, row] = text, text_size
                rows[_BODY, row], rows[_BODY_SIZE, row] = body, body_size
                rows[_FLAG, row], rows[_NAMED, row] = flag, in_force
            at += size
            total += 1
        named[of] = in_force
        consumed[index] = at
    return total, different


@kernel
def _write_uids(
    data: NDArray[np.uint8],
    at: NDArray[np.int64],
    valid: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Each uid as 36 characters, lowercase hexadecimal digits with hyphens, where it is valid."""
    target = np.uint64(0)
    for index in range(at.shape[0]):
        offsets[index] = target
        if not valid[index]:
            continue
        source = np.uint64(at[index])
        for group in (4, 2, 2, 2, 6):
            for _ in range(group):
                value = data[source]
                out[target], out[target + np.uint64(1)] = _DIGITS[value >> 4], _DIGITS[value & 15]
                source += np.uint64(1)
                target += np.uint64(2)
            if group < 6:
                out[target] = _HYPHEN
                target += np.uint64(1)
    offsets[at.shape[0]] = target


@dataclass(slots=True)
class _Scanned:
    """What the kernel found: the fields of every frame, and how each span and stream ended."""

    rows: NDArray[np.int64]
    type: NDArray[np.uint8]
    uris: NDArray[np.int64]
    consumed: NDArray[np.int64]
    bad: NDArray[np.int64]
    named: NDArray[np.int64]

    def field(self, number: int) -> NDArray[np.int64]:
        return cast(NDArray[np.int64], self.rows[number])


class YampColumns(ColumnDecoder):
    """Kernels for yamp."""

    def warm(self) -> None:
        """Compile or load the kernels."""
        frame = frames.encode(frames.Event(bytes(16), "a", b"b"))
        self.decode(Spans.whole(frame, Stream(Direction.C2S)), YampSettings())

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans."""
        own = cast(YampSettings, settings)
        data = np.ascontiguousarray(spans.data).view()
        data.flags.writeable = False  # one compiled version of each kernel, whoever owns the buffer
        found = _find(data, spans, own.max_body)
        texts = _Texts(data, found)
        serializers = [texts[int(row)] for row in np.flatnonzero(found.type == _HANDSHAKE)]
        system = found.type < _EVENT
        flag = found.field(_FLAG)
        response = found.type == _RESPONSE
        kind = _KIND_OF_TYPE[found.type]
        kind[response] = _KIND_OF_RESPONSE[flag[response]]
        answers = (found.type == _CANCEL) | response
        rejects, consumed = _rejects(data, spans, found, own.max_body)
        offset, size = found.field(_OFFSET), found.field(_SIZE)
        topic_start, topic_size = found.field(_TEXT), found.field(_TEXT_SIZE)
        content_type = _content_types(found, spans, own, serializers)
        body = gather(data, found.field(_BODY), found.field(_BODY_SIZE))
        return Columns(
            span=found.field(_SPAN).astype(np.int32),
            offset=offset,
            size=size,
            kind=kind,
            topic=_topics(data, found),
            message_id=_uid_texts(data, offset + 1, ~system),
            correlation_id=_uid_texts(data, topic_start + topic_size, answers),
            status=_statuses(np.where(response, flag, -1).astype(np.int32), kind, body, content_type),
            content_type=content_type,
            body=body,
            attributes=_attributes(found, flag, texts),
            authenticity=words_column(np.zeros(len(offset), np.int32), ["none"]),
            rejects=rejects,
            consumed=consumed,
            state=[
                stream.state if number < 0 else (serializers[number] or body_formats.DEFAULT).encode()
                for stream, number in zip(spans.streams, found.named, strict=True)
            ],
        )


def _statuses(
    codes: NDArray[np.int32], kind: NDArray[np.uint8], body: pa.Array, content_type: pa.Array
) -> pa.DictionaryArray:
    """What responses say; an error by its code, which stands in its body."""
    import pyarrow as pa

    failed = np.flatnonzero(kind == KIND_CODES[Kind.ERROR])
    if not len(failed):
        return words_column(codes, _STATUSES)
    bodies, types = (each.take(pa.array(failed)).to_pylist() for each in (body, content_type))
    return with_words(codes, _STATUSES, failed, list(map(errors.status_of, bodies, types)))


class _Texts:
    """The text of a row: serializer, reason or url."""

    def __init__(self, data: NDArray[np.uint8], found: _Scanned) -> None:
        self._data, self._rows = data, found.rows

    def __getitem__(self, row: int) -> str:
        start, size = self._rows[_TEXT, row], self._rows[_TEXT_SIZE, row]
        return self._data[start : start + size].tobytes().decode()


def _find(data: NDArray[np.uint8], spans: Spans, max_body: int) -> _Scanned:
    """Run the kernel; a second time only where the first guess of how many frames there are was short."""
    count, streams = len(spans.start), len(spans.streams)
    consumed, bad = np.empty(count, np.int64), np.empty(count, np.int64)
    broken, named = np.empty(streams, np.bool_), np.empty(streams, np.int64)
    room = int((spans.end - spans.start).sum()) // _GUESS + 16
    while True:
        rows, types, uris = np.empty((_FIELDS, room), np.int64), np.empty(room, np.uint8), np.empty((2, room), np.int64)
        total, different = _scan(
            data, spans.start, spans.end, spans.stream, max_body, types, rows, uris, consumed, bad, broken, named
        )
        if total <= room:
            break
        room = total
    return _Scanned(rows[:, :total], types[:total], uris[:, :different], consumed, bad, named)


_GUESS = 64
"""Bytes of a frame, as a first guess. Rows that stay empty take no memory."""


def _rejects(
    data: NDArray[np.uint8], spans: Spans, found: _Scanned, max_body: int
) -> tuple[list[Reject], NDArray[np.int64]]:
    """What did not decode, and up to where each span is dealt with."""
    rejects: list[Reject] = []
    consumed = found.consumed
    broken: set[int] = set()
    for index in np.flatnonzero(found.bad >= 0):
        at, end, of = int(found.bad[index]), int(spans.end[index]), int(spans.stream[index])
        clause, detail = BROKEN, AFTER_VIOLATION
        if of not in broken:
            broken.add(of)
            clause, detail = _words(data[at:end].tobytes(), max_body)
        rejects.append(Reject(int(index), at, end - at, clause, detail))
        consumed[index] = end
    return rejects, consumed


def _words(rest: bytes, max_body: int) -> tuple[str, str]:
    """Clause and detail of the violation that a stream begins with, as the readable decoder has them."""
    try:
        frames.decode(rest, 0, max_body)
    except ProtocolViolation as violation:
        return violation.clause, violation.detail
    raise AssertionError("kernel and decoder disagree about a yamp frame")


def _content_types(found: _Scanned, spans: Spans, settings: YampSettings, serializers: list[str]) -> pa.Array:
    """What bodies are: by the handshake before them, the stream's state, or the settings.

    Number 0 of a stream's topics is its serializer, in journals of format 1.
    """
    agreed = settings_of(spans.streams, settings)
    before = [
        stream.state.decode() or stream.topics.get(SERIALIZER, own.serializer)
        for stream, own in zip(reversed(spans.streams), reversed(agreed), strict=True)
    ]
    types = [body_formats.content_type(name) for name in (*before, *serializers)]
    known = {name: code for code, name in enumerate(dict.fromkeys(name for name in types if name is not None))}
    code_of = np.array([-1 if name is None else known[name] for name in types] or [-1], np.int32)
    codes = np.empty(len(found.type), np.int32)
    _code_types(found.type, found.field(_NAMED), len(before), code_of, codes)
    return words_column(codes, list(known))


@kernel
def _code_types(
    type_: NDArray[np.uint8],
    named: NDArray[np.int64],
    before: int,
    code_of: NDArray[np.int32],
    codes: NDArray[np.int32],
) -> None:
    """The code of the handshake in force, for frames that have a body; -1 for the others."""
    for row in range(type_.shape[0]):
        bodied = type_[row] >= _EVENT and type_[row] != _CANCEL
        codes[row] = code_of[named[row] + before] if bodied else -1


_KEYS = ("version", "serializer", "reason", "url", "progressive", "kill")
_VERSION_KEY, _SERIALIZER_KEY, _REASON_KEY, _URL_KEY, _PROGRESSIVE_KEY, _KILL_KEY = range(6)


@kernel
def _count_attributes(
    type_: NDArray[np.uint8], flag: NDArray[np.int64], text_size: NDArray[np.int64], offsets: NDArray[np.int32]
) -> None:
    """Where the attributes of each frame begin among those of all."""
    total = 0
    for row in range(type_.shape[0]):
        offsets[row] = total
        kind = type_[row]
        if kind in (_REQUEST, _CANCEL):
            total += flag[row] == 1
        elif kind == _HANDSHAKE:
            total += 2
        elif kind == _CLOSE_REDIRECT or (kind == _CLOSE and text_size[row] > 0):
            total += 1
    offsets[type_.shape[0]] = total


def _attributes(found: _Scanned, flag: NDArray[np.int64], texts: _Texts) -> pa.Array:
    """Attributes as a map column: flags of user messages in bulk, the few system frames one by one."""
    import pyarrow as pa

    type_, text_size = found.type, found.field(_TEXT_SIZE)
    offsets = np.empty(len(type_) + 1, np.int32)
    _count_attributes(type_, flag, text_size, offsets)
    keys = np.zeros(offsets[-1], np.int8)
    values = np.zeros(offsets[-1], np.int64)
    words = ["true"]

    def put(at: int, key: int, word: str) -> None:
        keys[at], values[at] = key, len(words)
        words.append(word)

    rows = np.flatnonzero(offsets[1:] != offsets[:-1]) if len(keys) else np.zeros(0, np.int64)
    flagged = rows[type_[rows] >= _EVENT]
    keys[offsets[flagged]] = np.where(type_[flagged] == _REQUEST, _PROGRESSIVE_KEY, _KILL_KEY)
    for row in rows[type_[rows] < _EVENT].tolist():
        if type_[row] == _HANDSHAKE:
            put(offsets[row], _VERSION_KEY, str(flag[row]))
            put(offsets[row] + 1, _SERIALIZER_KEY, texts[row])
        else:
            put(offsets[row], _URL_KEY if type_[row] == _CLOSE_REDIRECT else _REASON_KEY, texts[row])
    names = pa.array(_KEYS, pa.string())
    return pa.MapArray.from_arrays(
        pa.array(offsets), names.take(pa.array(keys)), pa.array(words, pa.string()).take(pa.array(values))
    )


def _topics(data: NDArray[np.uint8], found: _Scanned) -> pa.Array:
    """Uris, known to be UTF-8; null for system messages."""
    codes, words = number_words(data, found.uris[0], found.uris[1])
    # The last one stands for what has none: those have the number -1.
    return words_column(np.append(codes, np.int32(-1))[found.field(_URI)], [word.decode() for word in words])


def _uid_texts(data: NDArray[np.uint8], at: NDArray[np.int64], valid: NDArray[np.bool_]) -> pa.Array:
    """Uids as text where `valid`, null elsewhere."""
    import pyarrow as pa

    if not valid.any():
        return pa.nulls(len(at), pa.string())
    offsets = np.empty(len(at) + 1, np.int32)
    out = np.empty(36 * np.count_nonzero(valid), np.uint8)
    _write_uids(data, at, valid, offsets, out)
    return pa.StringArray.from_buffers(len(at), pa.py_buffer(offsets), pa.py_buffer(out), _bitmap(valid))


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(valid, bitorder="little"))
