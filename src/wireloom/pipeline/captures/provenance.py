"""Provenance of the bytes of a stream: file, offset and time of every piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Trace:
    """One row per piece: the bytes from `at` of a buffer on came at `time_us`, from `offset` of `file`."""

    at: NDArray[np.int64]
    time_us: NDArray[np.int64]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Trace:
        """Of no bytes: always the same, because there are many streams without any."""
        return _EMPTY

    @classmethod
    def joined(cls, traces: Sequence[Trace]) -> Trace:
        """Of buffers that follow each other; their places are right already."""
        if len(traces) == 1:
            return traces[0]
        return cls(
            *(
                np.concatenate([getattr(trace, name) for trace in traces] or [np.zeros(0, np.int64)])
                for name in ("at", "time_us", "file", "offset")
            )
        )

    def moved(self, by: int) -> Trace:
        """The same for bytes that stand elsewhere."""
        return Trace(self.at + by, self.time_us, self.file, self.offset)

    def cut(self, start: int, end: int) -> Trace:
        """Of the bytes start:end alone, counted from 0."""
        if start >= end:
            return Trace.empty()
        first = int(np.searchsorted(self.at, start, side="right")) - 1
        last = int(np.searchsorted(self.at, end, side="left"))
        at, offset = self.at[first:last] - start, self.offset[first:last].copy()
        offset[0] -= at[0]
        at[0] = 0
        return Trace(at, self.time_us[first:last].copy(), self.file[first:last].copy(), offset)

    def through(self, runs: NDArray[np.int64]) -> Trace:
        """Of bytes that were moved in runs: each row a place now, the place before, and a size."""
        now, before, size = runs.T
        points = np.unique(np.concatenate([before, self.at]))
        run = np.searchsorted(before, points, side="right") - 1
        inside = (run >= 0) & (points < (before + size)[run]) if len(before) else np.zeros(len(points), np.bool_)
        points, run = points[inside], run[inside]
        piece = self.pieces(points)
        moved = now[run] + points - before[run]
        return Trace(moved, self.time_us[piece], self.file[piece], self.offset[piece] + points - self.at[piece])

    def pieces(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which piece each place belongs to."""
        return np.searchsorted(self.at, places, side="right") - 1

    def where(self, place: int) -> tuple[int, int, int]:
        """Time, file and offset of one byte."""
        piece = int(np.searchsorted(self.at, place, side="right")) - 1
        return int(self.time_us[piece]), int(self.file[piece]), int(self.offset[piece] + place - self.at[piece])


_NOTHING = np.zeros(0, np.int64)
_EMPTY = Trace(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
