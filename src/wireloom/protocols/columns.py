"""Many frames at a time: the contract of every `columns.py`, and the slow default made from a decoder.

Input is one buffer and spans in it. A span is a range of consecutive bytes of one stream (one direction of one
connection). Output is a table with a row for each message, as numpy and Arrow arrays. Only the hub and the pipeline
load this module. It needs numpy, and pyarrow for Arrow columns.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import KINDS, Direction, Kind, type_of_json
from wireloom.protocols.contract import Decoded, Framing, Rejected, Settings, apply_agreed, decode_stream
from wireloom.protocols.kernel_bytes import same, u32

if TYPE_CHECKING:
    import pyarrow as pa

    from wireloom.protocols.audit import Auditor
    from wireloom.protocols.contract import Protocol

BROKEN = "stream.broken"
AFTER_VIOLATION = "follows a violation in the same direction, after which a peer closes the connection"

_AnySettings = TypeVar("_AnySettings", bound=Settings)

KIND_CODES: Mapping[Kind, int] = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of one connection: what must be known beside its bytes.

    `state` is whatever the protocol carried over from the spans of an earlier call, as bytes only it
    understands (an agreed serializer, half a split message). `secrets` may open what is encrypted (`Decoder.unlock`).
    `agreed` are settings that differ from those of other streams (`Session.agreed`).
    """

    direction: Direction
    topics: Mapping[int, str] = field(default_factory=dict)
    state: bytes = b""
    secrets: Sequence[Mapping[str, str]] = ()
    agreed: Mapping[str, type_of_json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spans:
    """Byte ranges inside one buffer; ranges of the same stream are in order."""

    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    stream: NDArray[np.int32]
    streams: Sequence[Stream]

    @classmethod
    def whole(cls, data: bytes, stream: Stream) -> Spans:
        """A buffer that is one range of one stream."""
        return cls(
            np.frombuffer(data, np.uint8),
            np.zeros(1, np.int64),
            np.array([len(data)], np.int64),
            np.zeros(1, np.int32),
            (stream,),
        )


@dataclass(frozen=True, slots=True)
class Reject:
    """Bytes of a span that did not decode. In a stream everything after them is lost with them."""

    span: int
    offset: int
    size: int
    clause: str
    detail: str
    data: bytes | None = None
    """The bytes, if they are not contiguous at `offset`: fragments that never became a message."""

    def content(self, buffer: NDArray[np.uint8], most: int) -> bytes:
        """The first bytes of it; `buffer` is that of the spans."""
        if self.data is not None:
            return self.data[:most]
        return buffer[self.offset : self.offset + min(self.size, most)].tobytes()


@dataclass(slots=True)
class Columns:
    """A row a message, in the order of the spans.

    `offset` and `size` say where in the buffer the message's bytes are, `kind` is an index into
    `KINDS`. The Arrow arrays have the types of the `messages` table. `consumed` says for each span up to
    which offset of the buffer it was decoded or rejected: what lies between that and the span's end is the
    beginning of a frame. `state` is what each stream wants to be given next time, and `begun` where in the buffer
    the first piece stands that its state holds: -1 if in none of these spans, empty if the protocol has no pieces.
    """

    span: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    kind: NDArray[np.uint8]
    topic: pa.Array
    message_id: pa.Array
    correlation_id: pa.Array
    status: pa.Array
    content_type: pa.Array
    body: pa.Array
    attributes: pa.Array
    authenticity: pa.Array
    rejects: list[Reject]
    consumed: NDArray[np.int64]
    state: list[bytes]
    begun: Sequence[int] = ()
    wire: NDArray[np.int64] | None = None
    """Bytes of each message on the wire, if `size` is that of its last fragment only; None if `size` is all."""

    @property
    def wire_size(self) -> NDArray[np.int64]:
        """Bytes of each message on the wire, with all its fragments."""
        return self.size if self.wire is None else self.wire

    def __len__(self) -> int:
        return len(self.offset)


def settings_of(streams: Sequence[Stream], settings: _AnySettings) -> list[_AnySettings]:
    """The settings of each stream: `settings` with what it agreed on. Streams that agreed on the same share them."""
    made: dict[_AnySettings, _AnySettings] = {settings: settings}
    of_stream: dict[int, _AnySettings] = {}
    for stream in streams:
        if id(stream) not in of_stream:
            own = apply_agreed(settings, stream.agreed) if stream.agreed else settings
            of_stream[id(stream)] = own if own is settings else made.setdefault(own, own)
    return [of_stream[id(stream)] for stream in streams]


class ColumnDecoder(abc.ABC):
    """What a `columns.py` offers to the pipeline."""

    has_pieces: ClassVar[bool] = False
    """Whether a message may consist of several frames; the state of a stream holds incomplete messages."""

    def warm(self) -> None:
        """Compile or load the kernels ahead of the first call."""

    @abc.abstractmethod
    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans. Must give exactly what `frames.py` gives for the same bytes."""

    def unfinished(self, state: bytes, settings: Settings) -> Sequence[Rejected]:
        """The incomplete messages in the state of a stream that has ended."""
        return ()

    def auditor(self, settings: Settings, state: bytes = b"") -> Auditor | None:
        """Finds forged, replayed and outdated messages; None for protocols where these cannot be told.

        `state` is `Auditor.state` of an earlier one.
        """
        return None


class SlowColumns(ColumnDecoder):
    """Columns for a protocol that has no kernel: one Python object a message."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """Decode span by span with the protocol's own decoder."""
        import pyarrow as pa

        rows: list[tuple[int, int, Decoded]] = []
        rejects: list[Reject] = []
        consumed = spans.end.copy()
        broken: set[int] = set()
        for index in range(len(spans.start)):
            start, end = int(spans.start[index]), int(spans.end[index])
            stream = spans.streams[spans.stream[index]]
            if int(spans.stream[index]) in broken:
                rejects.append(Reject(index, start, end - start, BROKEN, AFTER_VIOLATION))
                continue
            decoder = self.protocol.decoder(stream.direction, apply_agreed(settings, stream.agreed), stream.topics)
            decoder.unlock(stream.secrets)
            for found in decode_stream(decoder, spans.data[start:end].tobytes(), final=False):
                if isinstance(found, Decoded):
                    rows.append((index, start + found.offset, found))
                else:
                    at, size = start + found.offset, len(found.data)
                    rejects.append(Reject(index, at, size, found.clause, found.detail))
            if decoder.violation is None:
                consumed[index] = start + decoder.offset
            elif self.protocol.framing is Framing.STREAM:
                broken.add(int(spans.stream[index]))
        messages = [found.message for _, _, found in rows]
        text = pa.string()
        return Columns(
            span=np.array([index for index, _, _ in rows], np.int32),
            offset=np.array([at for _, at, _ in rows], np.int64),
            size=np.array([found.size for _, _, found in rows], np.int64),
            kind=np.array([KIND_CODES[m.kind] for m in messages], np.uint8),
            topic=pa.array([m.topic for m in messages], text),
            message_id=pa.array([m.id for m in messages], text),
            correlation_id=pa.array([m.correlation_id for m in messages], text),
            status=pa.array([m.status for m in messages], text),
            content_type=pa.array([m.content_type for m in messages], text),
            body=pa.array([m.body for m in messages], pa.binary()),
            attributes=pa.array([list(m.attributes.items()) for m in messages], pa.map_(text, text)),
            authenticity=pa.array([str(m.authenticity) for m in messages], text),
            rejects=rejects,
            consumed=consumed,
            state=[stream.state for stream in spans.streams],
        )


def by_settings(
    decode: Callable[[Spans, _AnySettings], Columns], spans: Spans, own: Sequence[_AnySettings], otherwise: _AnySettings
) -> Columns:
    """Decode streams with different settings, by one call for each; `otherwise` is for spans without streams."""
    # By identity first: streams that share settings share the object, and comparing values is slower.
    by_identity = {id(each): each for each in own}
    different = list(dict.fromkeys(by_identity.values()))
    if len(different) < 2:
        return decode(spans, different[0] if different else otherwise)
    number = {identity: different.index(each) for identity, each in by_identity.items()}
    part = np.array([number[id(each)] for each in own])[spans.stream]
    return in_parts(lambda some: decode(some, own[int(some.stream[0])]), spans, part)


def in_parts(decode: Callable[[Spans], Columns], spans: Spans, part: NDArray[np.int64]) -> Columns:
    """Decode spans in several calls, for streams that need different settings: `part` says which call each is for."""
    import pyarrow as pa

    found = []
    for number in np.unique(part).tolist():
        chosen = np.flatnonzero(part == number)
        own = Spans(spans.data, spans.start[chosen], spans.end[chosen], spans.stream[chosen], spans.streams)
        found.append((chosen, decode(own)))
    span = np.concatenate([chosen[columns.span] for chosen, columns in found]).astype(np.int32)
    order = np.argsort(span, kind="stable")
    consumed = np.empty(len(spans.start), np.int64)
    for chosen, columns in found:
        consumed[chosen] = columns.consumed
    state = [
        next((c.state[number] for _, c in found if c.state[number] != stream.state), stream.state)
        for number, stream in enumerate(spans.streams)
    ]
    arrays = {
        name: np.concatenate([getattr(columns, name) for _, columns in found])[order]
        for name in ("offset", "size", "kind")
    }
    arrays |= {
        name: pa.concat_arrays([getattr(columns, name) for _, columns in found]).take(pa.array(order))
        for name in (
            "topic", "message_id", "correlation_id", "status", "content_type", "body", "attributes", "authenticity",
        )
    }  # fmt: skip
    rejects = [replace(reject, span=int(chosen[reject.span])) for chosen, c in found for reject in c.rejects]
    rejects.sort(key=lambda reject: reject.span)
    return Columns(span=span[order], rejects=rejects, consumed=consumed, state=state, begun=(), wire=None, **arrays)


@kernel
def _copy_slices(
    data: NDArray[np.uint8],
    beside: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    target = np.uint64(0)
    for row in range(start.shape[0]):
        offsets[row] = target
        length = np.uint64(size[row])
        # Unsigned indexes cannot be negative. Without that check, the compiler turns the loop into one block copy.
        if start[row] >= 0:
            source = np.uint64(start[row])
            for position in range(length):
                out[target + np.uint64(position)] = data[source + np.uint64(position)]
        else:
            source = np.uint64(-1 - start[row])
            for position in range(length):
                out[target + np.uint64(position)] = beside[source + np.uint64(position)]
        target += length
    offsets[start.shape[0]] = target


def gather(data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64], beside: bytes = b"") -> pa.Array:
    """Slices of a buffer as one Arrow binary array: one copy, no Python object for each slice.

    A negative start is an index into `beside`, from -1 downwards, for values that are not in the buffer.
    """
    import pyarrow as pa

    total = int(size.sum())
    if total > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB in one column: decode the input in smaller pieces")
    offsets = np.empty(len(start) + 1, np.int32)
    out = np.empty(total, np.uint8)
    _copy_slices(data, np.frombuffer(beside, np.uint8), start, size, offsets, out)
    return pa.BinaryArray.from_buffers(pa.binary(), len(start), [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def gather_with(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    rows: NDArray[np.int64],
    values: Sequence[bytes],
) -> pa.Array:
    """`gather`, with some rows that have values of their own, not from the buffer. Changes its input."""
    if values:
        own = np.array([len(value) for value in values], np.int64)
        start[rows] = -1 - (np.cumsum(own) - own)
        size[rows] = own
    return gather(data, start, size, b"".join(values))


_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd, and its bits are well mixed: the upper half of a product depends on all that was multiplied."""


@kernel
def _number_slices(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    slots: NDArray[np.int32],
    first: NDArray[np.int64],
    codes: NDArray[np.int32],
) -> int:
    """Number the distinct slices in order of appearance; `first` gets the first row of each."""
    found, before = 0, np.int32(-1)
    last, last_size = np.int64(0), np.int64(-1)
    mask = np.uint64(slots.shape[0] - 1)
    for row in range(start.shape[0]):
        at, length = start[row], size[row]
        if at < 0:
            codes[row] = -1
            continue
        # Usually it is the word of the row before.
        if length == last_size and same(data, last, at, length):
            codes[row] = before
            continue
        value, position = np.uint64(length), at
        while position + 4 <= at + length:
            value = (value ^ np.uint64(u32(data, position))) * _MIX
            position += 4
        while position < at + length:
            value = (value ^ np.uint64(data[np.uint64(position)])) * _MIX
            position += 1
        slot = (value >> np.uint64(32)) & mask
        while slots[slot] >= 0:
            known = first[slots[slot]]
            if size[known] == length and same(data, start[known], at, length):
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = found
            first[found] = row
            found += 1
        before = slots[slot]
        codes[row] = before
        last, last_size = at, length
    return found


def number_words(
    data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int32], list[bytes]]:
    """Dictionary-encode slices of a buffer: codes and the distinct slices; -1 where `start` is negative.

    >>> codes, words = number_words(np.frombuffer(b"abcab", np.uint8), np.array([0, 2, -1, 3]), np.array([2, 1, 0, 2]))
    >>> codes.tolist(), words
    ([0, 1, -1, 0], [b'ab', b'c'])
    """
    codes, first = np.empty(len(start), np.int32), np.empty(len(start), np.int64)
    slots = np.full(1 << max((2 * len(start)).bit_length(), 4), -1, np.int32)
    rows = first[: _number_slices(data, start, size, slots, first, codes)].tolist()
    return codes, [data[start[row] : start[row] + size[row]].tobytes() for row in rows]


def words_column(codes: NDArray[np.int32], words: Sequence[str]) -> pa.DictionaryArray:
    """Codes of different words as text; -1 is null."""
    import pyarrow as pa

    if not len(codes) or codes.min() >= 0:
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))
    # Null values also get a valid code: some readers do not check for null first.
    known, bits = np.zeros(len(codes), np.int32), np.zeros(-(-len(codes) // 8), np.uint8)
    if words:
        _set_known(codes, known, bits)
    valid = pa.Array.from_buffers(pa.int32(), len(codes), [pa.py_buffer(bits), pa.py_buffer(known)])
    return pa.DictionaryArray.from_arrays(valid, pa.array(words or [""], pa.string()))


def with_words(
    codes: NDArray[np.int32], words: Sequence[str], rows: NDArray[np.int64], values: Sequence[str | None]
) -> pa.DictionaryArray:
    """`words_column`, with some rows that have values of their own. Changes its input."""
    known = {word: code for code, word in enumerate(words)}
    codes[rows] = [-1 if value is None else known.setdefault(value, len(known)) for value in values]
    return words_column(codes, list(known))


@kernel
def _set_known(codes: NDArray[np.int32], known: NDArray[np.int32], bits: NDArray[np.uint8]) -> None:
    """Copy the codes that are not negative, and set the validity bit of each."""
    for row in range(codes.shape[0]):
        if codes[row] >= 0:
            known[row] = codes[row]
            bits[row >> 3] |= np.uint8(1 << (row & 7))


def repeated(word: str, count: int) -> pa.StringArray:
    """One text as often as needed.

    >>> repeated("ab", 3).to_pylist()
    ['ab', 'ab', 'ab']
    """
    import pyarrow as pa

    raw = word.encode()
    if len(raw) * count > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB in one column: decode the input in smaller pieces")
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(raw * count))
