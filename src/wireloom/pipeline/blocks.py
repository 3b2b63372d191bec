"""The runs of frames in a byte range of a segment: blocks found, checked, and continued ones put together.

Works on the arrays of `wireloom.journal.index`. A block belongs to the range its first byte is in, and a
run of continued blocks to the range its first block is in, so that however a segment is cut into ranges,
every run is read exactly once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.journal.index import BlockIndex, index_blocks
from wireloom.kernels import kernel
from wireloom.pipeline.planning import Range

DAMAGED = "journal.damaged"
"""The clause of bytes in a journal that are not what was written."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that cannot be understood."""

    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The blocks of a range, a row a block, and how they belong together.

    `run` numbers the runs; a run's blocks stand in a row. `bad` marks blocks whose hash is wrong.
    """

    index: BlockIndex
    run: NDArray[np.int64]
    bad: NDArray[np.bool_]
    damages: list[Damage]


@kernel
def _locate(data, start, end, limit):  # type: ignore[no-untyped-def]
    """Hop over the blocks: the last one before `start` (or -1), where those at or after `end` begin, and the
    first place where hopping ends (or -1).
    """
    before, offset = np.int64(-1), np.int64(0)
    while offset < limit and offset < end:
        if limit - offset < 12:
            return before, offset, offset
        size = (
            np.int64(data[offset + 4])
            | np.int64(data[offset + 5]) << 8
            | np.int64(data[offset + 6]) << 16
            | np.int64(data[offset + 7]) << 24
        )
        if size < 12 or size & 3 or size > limit - offset:
            return before, offset, offset
        for position in range(4):
            if data[offset + 4 + position] != data[offset + size - 4 + position]:
                return before, offset, offset
        if offset < start:
            before = offset
        offset += size
    return before, offset, np.int64(-1)


def find_runs(data: NDArray[np.uint8], part: Range, limit: int) -> Found:
    """The blocks of all runs that begin in the range. `limit` is how much of the segment may be read."""
    before, stop, broken = (int(v) for v in _locate(data, part.start, part.end, limit))
    damages: list[Damage] = []
    if broken >= part.start:
        damages.append(Damage(broken, limit - broken, "no block begins here"))
    # The block before the range tells whether the first one in it goes on with an earlier run.
    pieces, bad = _index(data, max(before, 0), stop, damages)
    grow = 1 << 18
    while broken < 0 and stop < limit and pieces and len(pieces[-1]) and pieces[-1].more[-1]:
        _, further, broken = (int(v) for v in _locate(data, stop, stop + grow, limit))
        more, more_bad = _index(data, stop, further, [])
        pieces, bad = pieces + more, bad + more_bad
        stop, grow = further, grow * 2
    index = _concatenate(pieces)
    rows_bad = np.concatenate(bad) if bad else np.zeros(0, np.bool_)
    goes_on = _goes_on(index)
    run = np.cumsum(~goes_on) - 1
    first_offset = index.offset[np.flatnonzero(~goes_on)]
    own = (first_offset >= part.start) & (first_offset < part.end)
    keep = own[run] if len(run) else np.zeros(0, np.bool_)
    inside = [d for d in damages if d.offset >= part.start]
    return Found(_take(index, keep), np.cumsum(~goes_on[keep]) - 1, rows_bad[keep], inside)


def _index(
    data: NDArray[np.uint8], start: int, stop: int, damages: list[Damage]
) -> tuple[list[BlockIndex], list[NDArray[np.bool_]]]:
    """All blocks between two block boundaries; what is wrong with single ones is noted, not fatal."""
    pieces: list[BlockIndex] = []
    bad: list[NDArray[np.bool_]] = []
    while start < stop:
        found = index_blocks(data, start, stop)
        pieces.append(found)
        bad.append(np.zeros(len(found), np.bool_))
        if found.fault is None:
            break
        size = int(data[found.end + 4 : found.end + 8].view("<u4")[0])
        start = found.end + size
        alone = index_blocks(data, found.end, start, check_hash=False)
        if len(alone):
            pieces.append(alone)
            bad.append(np.ones(1, np.bool_))
        else:
            damages.append(Damage(found.end, size, found.fault))
    return pieces, bad


def _goes_on(index: BlockIndex) -> NDArray[np.bool_]:
    """Whether each block continues the one before it."""
    goes_on = np.zeros(len(index), np.bool_)
    if len(index) > 1:
        goes_on[1:] = (
            index.more[:-1]
            & (index.connection[1:] == index.connection[:-1])
            & (index.direction[1:] == index.direction[:-1])
            & (index.sequence[1:] == index.sequence[:-1])
            & ~index.is_record[1:]
        )
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


def warm() -> None:
    """Compile or load the kernel."""
    data = np.zeros(16, np.uint8)
    data.flags.writeable = False
    _locate(data, 0, 0, 0)
