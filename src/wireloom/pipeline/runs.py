"""The runs of frames in a segment, by protocol, and the streams that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wireloom.journal import index as journal_index
from wireloom.journal.blocks import Stated
from wireloom.journal.keys import Keys
from wireloom.pipeline import segment_runs
from wireloom.pipeline.steps.message_arrays import DIRECTIONS
from wireloom.protocols.columns import Stream

_NOTHING_STATED = Stated({}, {})


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
    data: NDArray[np.uint8], name: str, found: segment_runs.Found, rows: NDArray[np.int64]
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
    return replace(
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
    connection: list[str]
    direction: NDArray[np.int8]
    source: list[str | None]
    destination: list[str | None]


def streams_of(
    segment: NDArray[np.uint8],
    runs: Runs,
    contexts: Mapping[int, Stated],
    opened_by: dict[int, Keys],
    given: Sequence[Mapping[str, str]],
) -> Streams:
    """The streams that runs belong to; `opened_by` and `given` are keys for what is encrypted."""
    connections, connection = np.unique(runs.connection, return_inverse=True)
    numbers, context = np.unique(runs.context, return_inverse=True)
    key = (connection * len(numbers) + context) * len(DIRECTIONS) + runs.direction
    keys, first, number = np.unique(key, return_index=True, return_inverse=True)
    direction = (keys % len(DIRECTIONS)).astype(np.int8)
    rest = keys // len(DIRECTIONS)
    stated = [contexts.get(each, _NOTHING_STATED) for each in numbers[rest % len(numbers)].tolist()]
    ends = [journal_index.endpoints(segment, int(at)) for at in runs.tags_start[first]]
    ids = connections[rest // len(numbers)].tolist()
    return Streams(
        number.astype(np.int32),
        [
            Stream(
                DIRECTIONS[code],
                known.topics,
                secrets=(opened_by[each].values,) if each in opened_by else given,
                agreed=known.settings,
            )
            for code, known, each in zip(direction.tolist(), stated, ids, strict=True)
        ],
        [f"{value:016x}" for value in ids],
        direction,
        [source for source, _ in ends],
        [destination for _, destination in ends],
    )
