"""Finds the runs of frames in a byte range of a segment, and groups them by protocol and stream.

It works on the arrays of `wireloom.journal.index`: finds the blocks, checks them, and joins the blocks of a run that
was too large for one block.

**The invariant.** A block belongs to the range that contains its first byte. A run belongs to the range that contains
its first block. So every run is read exactly once, however a segment is cut into ranges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.journal import keys as journal_keys
from wireloom.journal.blocks import MAX_PACKET_DATA, Stated
from wireloom.journal.index import BlockIndex, index_blocks
from wireloom.journal.keys import Keys
from wireloom.kernels import given, inlined, kernel
from wireloom.pipeline.planning import Range
from wireloom.pipeline.record_columns import address_columns, hex_texts
from wireloom.pipeline.segment_bytes import Damage, SegmentBytes
from wireloom.pipeline.steps.message_arrays import DIRECTIONS
from wireloom.protocols.columns import Stream, gather

DAMAGED = "journal.damaged"
"""The clause of rejects for damaged bytes in a journal."""
_NOTHING_STATED = Stated({}, {})
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SECRETS = journal_keys.DECRYPTION_SECRETS
_LARGEST_TAGS = 1024
"""Bytes of packet data that a record, which has tags only, never has."""
_WINDOW = 1 << 20
"""Bytes before a range that are looked at together; they stay in the processor's cache."""
_AHEAD = 1 << 18
"""Bytes read beyond a range: the last block that begins in it mostly ends there."""


@dataclass(frozen=True, slots=True)
class Found:
    """The blocks of a range, one row per block, and the runs they belong to.

    `run` is the number of the run; the blocks of a run are adjacent. `bad` marks blocks whose checksum is wrong.
    """

    index: BlockIndex
    run: NDArray[np.int64]
    bad: NDArray[np.bool_]
    damages: list[Damage]
    resumed: int | None
    """Where, after damage, blocks begin again; None where none is missing."""


@kernel
def _locate(data, begin, start, end, limit, filled):  # type: ignore[no-untyped-def]
    """Hop over the blocks from `begin` on: the last one before `start` (or -1), where those at or after `end` begin,
    the first place where hopping ends (or -1), and how far `data` must be filled to go on.
    """
    before, offset = np.int64(-1), begin
    while offset < limit and offset < end:
        if limit - offset < 12:
            return before, offset, offset, filled
        if filled - offset < 12:
            return before, offset, offset, offset + 12
        size = _size(data, offset + 4)
        if size < 12 or size & 3 or size > limit - offset:
            return before, offset, offset, filled
        if filled - offset < size:
            return before, offset, offset, offset + size
        if _size(data, offset + size - 4) != size:
            return before, offset, offset, filled
        if offset < start:
            before = offset
        offset += size
    return before, offset, np.int64(-1), filled


@inlined
def _size(data, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[at])
        | np.int64(data[at + 1]) << 8
        | np.int64(data[at + 2]) << 16
        | np.int64(data[at + 3]) << 24
    )  # fmt: skip


@kernel
def _walk_back(data, lowest, limit):  # type: ignore[no-untyped-def]
    """The first block of those that stand without a gap before `limit`."""
    at = limit
    while at - lowest >= 12:
        size = _size(data, at - 4)
        if size < 12 or size & 3 or size > at - lowest or _size(data, at - size + 4) != size:
            break
        at -= size
    return at


@inlined
def _states(data, offset, size):  # type: ignore[no-untyped-def]
    """Whether a block states something about later ones: 1 for keys, contexts and what is said of runs, 2 for other
    records, 0 for frames.
    """
    kind = _size(data, offset)
    if kind != 6:
        return 1 if kind == _SECRETS else 0
    captured = _size(data, offset + 20) if size >= 32 else np.int64(_LARGEST_TAGS)
    at, stop = offset + 28 + captured + (-captured & 3), offset + size - 4
    if captured >= _LARGEST_TAGS:
        return 0
    while stop - at >= 4:
        code, length = data[at] | data[at + 1] << 8, np.int64(data[at + 2]) | np.int64(data[at + 3]) << 8
        at += 4
        if code == 0 or length > stop - at:
            break
        # The comment of a record begins with `record=`, that of frames with `conn=`.
        if code == 1 and length > 8 and data[at] == 114:
            # `topics`, `taken`, `principal`, `context`: no other name begins so.
            first, second = data[at + 7], data[at + 8]
            return 1 if first in (112, 116) or (first == 99 and second == 111) else 2
        at += length + (-length & 3)
    return 0


@kernel
def _skim(data, end, places, adjacent):  # type: ignore[no-untyped-def]
    """Hop over the blocks that begin before `end` and are there as a whole: the last one (or -1), where the next
    begins, how many of them state something (see `places`), whether all was well, and how many of the last ones in a
    row state something; `adjacent` is how many did before these.
    """
    before, offset, found = np.int64(-1), np.int64(0), 0
    while offset < end and len(data) - offset >= 12 and found < places.shape[1]:
        size = _size(data, offset + 4)
        if size < 12 or size & 3:
            return before, offset, found, False, 0
        if size > len(data) - offset:
            break
        if _size(data, offset + size - 4) != size:
            return before, offset, found, False, 0
        states = _states(data, offset, size)
        if states == 1:
            places[0, found] = offset
            places[1, found] = size
            found += 1
            adjacent += 1
        elif states == 0:
            adjacent = 0
        before = offset
        offset += size
    return before, offset, found, True, adjacent


@dataclass(frozen=True, slots=True)
class Skimmed:
    """What a task needs of the blocks before its range: the offset of the last one, and those with statements."""

    before: int = 0
    stated: NDArray[np.uint8] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint8))
    adjacent: NDArray[np.uint8] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint8))
    """Those of them that stand right before the range: they may say something about its first run."""


@dataclass(slots=True)
class _Passed:
    """How far a segment was passed over: where the next block begins, where the last one did, and what was kept."""

    at: int = 0
    last: int = 0
    adjacent: int = 0
    stated: list[NDArray[np.uint8]] = dataclasses.field(default_factory=list)
    sizes: list[NDArray[np.int64]] = dataclasses.field(default_factory=list)


_passed: dict[tuple[str, int, int, int], _Passed] = {}
"""The segments that this process passed over last. A task reads one range after the other, so it goes on from there."""
_REMEMBERED = 4


def skim(segment: SegmentBytes, start: int) -> Skimmed:
    """Skip the blocks before a range, and keep only statements. If some of them are damaged, nothing is skipped."""
    passed = _passed.pop(segment.identity, None)
    if passed is None or passed.at > start:
        passed = _Passed()
    places = np.empty((2, 4096), np.int64)
    buffer = np.empty(min(_WINDOW, start + _AHEAD), np.uint8)
    window = buffer.view()
    window.flags.writeable = False
    while passed.at < start:
        filled = segment.window(buffer, passed.at)
        before, size, found, sound, passed.adjacent = (
            int(v) for v in _skim(window[:filled], start - passed.at, places, passed.adjacent)
        )
        if not sound or before < 0:
            return Skimmed()
        if found:
            passed.sizes.append(places[1, :found].copy())
            kept = gather(window, places[0, :found], passed.sizes[-1])
            passed.stated.append(np.frombuffer(kept.buffers()[2], np.uint8))
        passed.last, passed.at = passed.at + before, passed.at + size
    _passed[segment.identity] = passed
    while len(_passed) > _REMEMBERED:
        del _passed[next(iter(_passed))]
    segment.skip_to(passed.last)
    if not passed.stated:
        return Skimmed(passed.last)
    joined = np.concatenate(passed.stated)
    near = int(np.concatenate(passed.sizes)[-passed.adjacent :].sum()) if passed.adjacent else 0
    return Skimmed(passed.last, joined, joined[len(joined) - near :])


@dataclass(frozen=True, slots=True)
class Indexed:
    """Some bytes of a segment and the blocks in them."""

    data: NDArray[np.uint8]
    index: BlockIndex


def before_range(data: NDArray[np.uint8], part: Range, skimmed: Skimmed, found: Found) -> list[Indexed]:
    """The blocks before a range in which something may be stated."""
    pieces = [skimmed.stated]
    if skimmed.before == 0:
        # With damage before the range nothing was passed over: all blocks are at hand.
        pieces += [data[: part.start]]
        if found.resumed is not None and found.resumed < part.start:
            pieces += [data[found.resumed : part.start]]
    return [Indexed(piece, _concatenate(_index(piece, 0, len(piece), [])[0])) for piece in pieces if len(piece)]


def _hop(segment: SegmentBytes, begin: int, start: int, end: int) -> tuple[int, int, int]:
    """`_locate`, with the segment filled as far as that needs."""
    segment.fill(end + _AHEAD)
    while True:
        before, stop, broken, needed = (
            int(v) for v in _locate(segment.data, begin, start, end, segment.limit, segment.filled)
        )
        if needed <= segment.filled:
            return before, stop, broken
        segment.fill(needed)


def find_runs(segment: SegmentBytes, part: Range, begin: int = 0) -> Found:
    """The blocks of all runs that begin in the range; `begin` is where a block before it begins.

    After damage, the next blocks are found backwards from the segment's end: each block ends with its own size. So
    bytes inside a payload, which a peer chooses, are never taken for a block.
    """
    damages: list[Damage] = []
    before, stop, broken = _hop(segment, begin, part.start, part.end)
    # The block before the range tells whether the first one in it goes on with an earlier run.
    pieces, bad = _index(segment.data, max(before, begin), stop, damages)
    resumed: int | None = None
    if broken < 0:
        _read_on(segment, begin, stop, pieces, bad)
    else:
        segment.fill(segment.limit)
        resumed = int(_walk_back(segment.data, broken, segment.limit))
        if broken >= part.start:
            damages.append(Damage(broken, resumed - broken, "no block begins here"))
        goes_on = bool(pieces) and len(pieces[-1]) > 0 and bool(pieces[-1].more[-1])
        # Only a block that is full is continued by the next.
        cut_off = goes_on or resumed - broken >= MAX_PACKET_DATA
        before, stop, _ = _hop(segment, resumed, part.start, part.end)
        later, later_bad = _index(segment.data, max(before, resumed), stop, damages)
        _read_on(segment, resumed, stop, later, later_bad)
        if cut_off and before < 0 and later and len(later[0]):
            _mark_first_run(_concatenate(later), later_bad)
        pieces, bad = pieces + later, bad + later_bad
    index = _concatenate(pieces)
    rows_bad = np.concatenate(bad) if bad else np.zeros(0, np.bool_)
    continues = _goes_on(index, resumed)
    run = np.cumsum(~continues) - 1
    first_offset = index.offset[np.flatnonzero(~continues)]
    own = (first_offset >= part.start) & (first_offset < part.end)
    keep = own[run] if len(run) else np.zeros(0, np.bool_)
    inside = [d for d in damages if d.offset >= part.start]
    return Found(_take(index, keep), np.cumsum(~continues[keep]) - 1, rows_bad[keep], inside, resumed)


def _read_on(
    segment: SegmentBytes, begin: int, stop: int, pieces: list[BlockIndex], bad: list[NDArray[np.bool_]]
) -> None:
    """Add the blocks after the range with which its last run goes on."""
    grow, broken = 1 << 18, -1
    while broken < 0 and stop < segment.limit and pieces and len(pieces[-1]) and pieces[-1].more[-1]:
        _, further, broken = _hop(segment, begin, stop, stop + grow)
        more, more_bad = _index(segment.data, stop, further, [])
        pieces += more
        bad += more_bad
        stop, grow = further, grow * 2


def _mark_first_run(index: BlockIndex, bad: list[NDArray[np.bool_]]) -> None:
    """Mark the blocks of the first run as bad: the run's beginning may be lost, so they cannot be decoded."""
    goes_on = _goes_on(index)
    goes_on[0] = True
    lost = np.logical_and.accumulate(goes_on)
    edges = np.cumsum([len(each) for each in bad])[:-1]
    bad[:] = [flags | more for flags, more in zip(bad, np.split(lost, edges), strict=True)]


def _index(
    data: NDArray[np.uint8], start: int, stop: int, damages: list[Damage]
) -> tuple[list[BlockIndex], list[NDArray[np.bool_]]]:
    """All blocks that begin at `start` and end before `stop`; what is wrong with single ones is noted, not fatal."""
    pieces: list[BlockIndex] = []
    bad: list[NDArray[np.bool_]] = []
    while start < stop:
        found = index_blocks(data, start, stop)
        pieces.append(found)
        bad.append(np.zeros(len(found), np.bool_))
        if found.fault is None:
            break
        left = stop - found.end
        size = int(data[found.end + 4 : found.end + 8].view("<u4")[0]) if left >= 12 else 0
        if not 12 <= size <= left:
            break
        start = found.end + size
        alone = index_blocks(data, found.end, start, check_hash=False)
        if len(alone):
            pieces.append(alone)
            bad.append(np.ones(1, np.bool_))
        else:
            damages.append(Damage(found.end, size, found.fault))
    return pieces, bad


def _goes_on(index: BlockIndex, resumed: int | None = None) -> NDArray[np.bool_]:
    """Whether each block continues the run of the one before it. The block at `resumed`, after damage, does not."""
    goes_on = np.zeros(len(index), np.bool_)
    if len(index) > 1:
        goes_on[1:] = (
            index.more[:-1]
            & (index.connection[1:] == index.connection[:-1])
            & (index.direction[1:] == index.direction[:-1])
            & (index.sequence[1:] == index.sequence[:-1])
            & ~index.is_record[1:]
        )
    if resumed is not None:
        goes_on[index.offset == resumed] = False
    return goes_on


_ARRAYS = tuple(f.name for f in dataclasses.fields(BlockIndex) if f.name not in ("protocols", "end", "fault"))


def _take(index: BlockIndex, keep: NDArray[np.bool_]) -> BlockIndex:
    if keep.all():
        return index
    return dataclasses.replace(index, **{name: getattr(index, name)[keep] for name in _ARRAYS})


def _concatenate(pieces: list[BlockIndex]) -> BlockIndex:
    """Several indexes of one segment as one, with one list of protocols."""
    if len(pieces) == 1:
        return pieces[0]
    names = list(dict.fromkeys(name for piece in pieces for name in piece.protocols))
    numbers = [np.array([names.index(n) for n in piece.protocols] or [0], np.int16) for piece in pieces]
    joined = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        if pieces
        else np.zeros(0, _EMPTY_TYPES.get(name, np.int64))
        for name in _ARRAYS
    }
    if pieces:
        joined["protocol"] = np.concatenate(
            [number[piece.protocol] for number, piece in zip(numbers, pieces, strict=True)]
        )
    return BlockIndex(**joined, protocols=names, end=pieces[-1].end if pieces else 0, fault=None)


_EMPTY_TYPES = {
    "connection": np.uint64,
    "direction": np.uint8,
    "protocol": np.int16,
    "more": np.bool_,
    "is_record": np.bool_,
}


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one protocol: a row a run; `start` and `end` are places in `data`.

    `piece_at` and `piece_offset` say which offset of the file a place in `data` stands for, from that
    place on.
    """

    protocol: str
    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    time_us: NDArray[np.int64]
    sequence: NDArray[np.int64]
    connection: NDArray[np.uint64]
    direction: NDArray[np.uint8]
    context: NDArray[np.int64]
    tags_start: NDArray[np.int64]
    piece_at: NDArray[np.int64]
    piece_offset: NDArray[np.int64]

    def file_offset(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the file the bytes at those places in `data` are."""
        if not len(self.piece_at):
            return place
        piece = np.searchsorted(self.piece_at, place, side="right") - 1
        return place - self.piece_at[piece] + self.piece_offset[piece]


def gather_runs(
    data: NDArray[np.uint8], name: str, found: Found, rows: NDArray[np.int64]
) -> tuple[Runs, NDArray[np.bool_]]:
    """The runs of one protocol and whether each is damaged; with continued blocks, payloads are copied together."""
    index = found.index
    run = found.run[rows]
    first = np.flatnonzero(np.diff(run, prepend=-1))
    heads = rows[first]
    start, end = index.payload_start[rows], index.payload_end[rows]
    damaged = np.logical_or.reduceat(found.bad[rows], first)
    no_pieces = np.zeros(0, np.int64)
    if len(first) == len(rows):
        source, at, stop, piece_at, piece_offset = data, start, end, no_pieces, no_pieces
    else:
        sizes = end - start
        piece_at = np.cumsum(sizes) - sizes
        joined = np.empty(int(sizes.sum()), np.uint8)
        for place, begin, finish in zip(piece_at.tolist(), start.tolist(), end.tolist(), strict=True):
            joined[place : place + finish - begin] = data[begin:finish]
        joined.flags.writeable = False
        source, piece_offset = joined, start
        at = piece_at[first]
        stop = np.append(at[1:], len(joined))
    runs = Runs(
        name,
        source,
        at,
        stop,
        index.time_ns[heads] // 1000,
        index.sequence[heads],
        index.connection[heads],
        index.direction[heads],
        index.context[heads],
        index.tags_start[heads],
        piece_at,
        piece_offset,
    )
    return runs, damaged


def select(runs: Runs, rows: NDArray[np.int64]) -> Runs:
    """Some of the runs."""
    return dataclasses.replace(
        runs,
        start=runs.start[rows],
        end=runs.end[rows],
        time_us=runs.time_us[rows],
        sequence=runs.sequence[rows],
        connection=runs.connection[rows],
        direction=runs.direction[rows],
        context=runs.context[rows],
        tags_start=runs.tags_start[rows],
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """Which stream each run belongs to, and what is said of streams: a row a stream."""

    number: NDArray[np.int32]
    streams: list[Stream]
    connection: pa.Array
    direction: NDArray[np.int8]
    source: pa.Array
    destination: pa.Array


@kernel
def _number_streams(connection, context, direction, slots, number, first):  # type: ignore[no-untyped-def]
    """Number the pairs of connection, context and direction as they appear; how many there are.

    `slots` is a hash table of numbers, a power of two long and at least twice as long as there are runs.
    """
    mask, count = np.uint64(slots.shape[0] - 1), 0
    for row in range(connection.shape[0]):
        key = (connection[row] ^ np.uint64(context[row]) * _PRIME) * _PRIME + np.uint64(direction[row])
        slot = (key ^ key >> np.uint64(29)) & mask
        while slots[slot] >= 0:
            known = first[slots[slot]]
            if (
                connection[known] == connection[row]
                and context[known] == context[row]
                and direction[known] == direction[row]
            ):
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = count
            first[count] = row
            count += 1
        number[row] = slots[slot]
    return count


def streams_of(
    segment: NDArray[np.uint8],
    runs: Runs,
    contexts: Mapping[int, Stated],
    opened_by: dict[int, Keys],
    given_keys: Sequence[Mapping[str, str]],
) -> Streams:
    """The streams that runs belong to; `opened_by` and `given_keys` are keys for what is encrypted.

    Streams that differ only in their connection share one `Stream`: decoders look at each different one once.
    """
    count = len(runs.start)
    number, first = np.empty(count, np.int32), np.empty(count, np.int64)
    slots = np.full(1 << max(4, (2 * count).bit_length()), -1, np.int32)
    columns = given(runs.connection), given(runs.context), given(runs.direction)
    first = first[: _number_streams(*columns, slots, number, first)]
    direction = runs.direction[first].astype(np.int8)
    connection = runs.connection[first]
    shared: dict[tuple[int, int], Stream] = {}
    streams = []
    for place, key in enumerate(zip(direction.tolist(), runs.context[first].tolist(), strict=True)):
        stream = shared.get(key)
        if stream is None:
            known = contexts.get(key[1], _NOTHING_STATED)
            stream = Stream(DIRECTIONS[key[0]], known.topics, secrets=given_keys, agreed=known.settings)
            shared[key] = stream
        if opened_by and (keys := opened_by.get(int(connection[place]))) is not None:
            stream = dataclasses.replace(stream, secrets=(keys.values,))
        streams.append(stream)
    source, destination = address_columns(segment, runs.tags_start[first])
    return Streams(number, streams, hex_texts(connection), direction, source, destination)


def warm() -> None:
    """Compile or load the kernel."""
    data = np.zeros(16, np.uint8)
    data.flags.writeable = False
    _locate(data, 0, 0, 0, 0, 0)
    _walk_back(data, 0, 0)
    _skim(data, 0, np.empty((2, 1), np.int64), 0)
    nothing = np.zeros(0, np.int64)
    numbers = given(nothing.astype(np.uint64)), given(nothing), given(nothing.astype(np.uint8))
    _number_streams(*numbers, np.full(16, -1, np.int32), nothing.astype(np.int32), nothing)
