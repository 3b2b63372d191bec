"""What to read next: positions in journals and captures, and byte ranges small enough for one task. No Spark here.

A lane is one folder of segments: each journal has one for its frames and one, `refused/`, for the bytes it
refused. A position is a segment and a byte in it. Positions need not be the beginning of a block: a
block belongs to the range in which its first byte is, so that any cut gives every block to exactly one
range, and nobody but the worker has to look into a file.

Each capture is a lane of its own, taken as a whole: see `captures/planning.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wireloom.journal.segment import REFUSED, committed_length, segments
from wireloom.model import ConfigError, JournalError
from wireloom.pipeline.captures import planning as captures

Offsets = dict[str, dict[str, str | int]]
"""Position by lane, in the form that goes into Spark's checkpoint."""
_LEAST_BYTES = 1 << 20
"""Fewer bytes are not worth a task of their own."""


@dataclass(frozen=True, slots=True)
class Range:
    """The blocks of one file that begin at or after `start` and before `end`."""

    file: str
    start: int
    end: int
    refused: bool = False

    @property
    def size(self) -> int:
        """How many bytes the range spans."""
        return self.end - self.start

    def pieces(self, most: int) -> list[Range]:
        """The same range in pieces of at most so many bytes.

        >>> [(each.start, each.end) for each in Range("a", 5, 25).pieces(8)]
        [(5, 13), (13, 21), (21, 25)]
        """
        return [replace(self, start=at, end=min(at + most, self.end)) for at in range(self.start, self.end, most)]


@dataclass(frozen=True, slots=True)
class Extent:
    """A segment and how many of its bytes may be read."""

    path: Path
    length: int


def check_inputs(inputs: Sequence[str | Path]) -> list[str]:
    """Absolute paths of the inputs, each made sure to be a journal, a segment, or captures."""
    if not inputs:
        raise ConfigError("no input: name the folder of a journal, or captures")
    found = []
    for given in inputs:
        if captures.is_journal(str(given)):
            path = Path(given).resolve()
            segments(path)
            found.append(str(path))
        else:
            found.append(captures.check_capture_input(str(given)))
    return sorted(set(found))


def lanes(inputs: Sequence[str]) -> dict[str, list[Extent]]:
    """Every lane of the inputs with its segments as they are now."""
    found: dict[str, list[Extent]] = {}
    for folder in filter(captures.is_journal, inputs):
        found[folder] = extents(folder)
        refused = Path(folder) / REFUSED
        if refused.is_dir():
            found[str(refused)] = extents(str(refused))
    return dict(sorted(found.items()))


def extents(lane: str) -> list[Extent]:
    """The segments of one lane in order. One that retention removes meanwhile is left out."""
    found = []
    for path in segments(lane):
        try:
            found.append(Extent(path, committed_length(path)))
        except JournalError:
            if path.exists():
                raise
    return found


def latest(inputs: Sequence[str]) -> Offsets:
    """The end of everything that is there now."""
    found = {lane: _position(known[-1], known[-1].length) for lane, known in lanes(inputs).items() if known}
    return found | captures.positions([given for given in inputs if not captures.is_journal(given)])


def advance(inputs: Sequence[str], start: Offsets, target: Offsets, max_bytes: int | None) -> Offsets:
    """A position between `start` and `target` with at most `max_bytes` before it, shared fairly by the lanes."""
    if max_bytes is None:
        return {**start, **target}
    known = lanes(inputs)
    whole = captures.advance(start, target, max_bytes)
    journals = [lane for lane in target if captures.CAPTURE not in target[lane]]
    backlog = {lane: plan_lane(lane, start.get(lane), target[lane], known.get(lane, [])) for lane in journals}
    sizes = {lane: sum(r.size for r in ranges) for lane, ranges in backlog.items()}
    reached = start | whole
    left = max_bytes
    # Small backlogs first: what they leave of their share goes to the larger ones.
    for index, lane in enumerate(sorted(sizes, key=lambda name: (sizes[name], name))):
        share = max(left // (len(sizes) - index), 1)
        if sizes[lane] <= share:
            reached[lane] = target[lane]
            left -= sizes[lane]
            continue
        left -= share
        for part in backlog[lane]:
            taken = min(share, part.size)
            share -= taken
            reached[lane] = {"segment": Path(part.file).name, "position": part.start + taken}
            if share == 0:
                break
    return dict(sorted(reached.items()))


def plan(inputs: Sequence[str], start: Offsets, end: Offsets) -> list[Range]:
    """The ranges of journals between two positions, in order."""
    known = lanes(inputs)
    found: list[Range] = []
    for lane, position in sorted(end.items()):
        if captures.CAPTURE in position:
            continue
        present = known[lane] if lane in known else (extents(lane) if Path(lane).exists() else [])
        found += plan_lane(lane, start.get(lane), position, present)
    return found


def plan_lane(
    lane: str,
    start: Mapping[str, str | int] | None,
    end: Mapping[str, str | int],
    known: Sequence[Extent],
) -> list[Range]:
    """The ranges of one lane between two positions."""
    first, first_position = ("", 0) if start is None else (str(start["segment"]), int(start["position"]))
    last, last_position = str(end["segment"]), int(end["position"])
    refused = Path(lane).name == REFUSED
    found = []
    for extent in known:
        name = extent.path.name
        if first <= name <= last:
            begin = first_position if name == first else 0
            stop = last_position if name == last else extent.length
            if begin < stop:
                found.append(Range(str(extent.path), begin, stop, refused))
    return found


def pack(ranges: Sequence[Range], most: int, cores: int = 1) -> list[tuple[Range, ...]]:
    """Ranges cut and put together into groups of the same size, at most `most` bytes each: one group, one task.

    There are as many groups for every core, so that all cores are done at the same time; input that is too small to be
    worth that stays in one piece.

    >>> [sum(r.size for r in group) for group in pack([Range("a", 0, 50), Range("b", 0, 3)], 20)]
    [17, 18, 18]
    """
    total = sum(part.size for part in ranges)
    groups = -(-total // most)
    if total >= cores * _LEAST_BYTES:
        groups = -(-groups // cores) * cores
    found: list[list[Range]] = [[] for _ in range(groups)]
    before = 0
    for whole in ranges:
        at = whole.start
        while at < whole.end:
            number = ((before + 1) * groups - 1) // total
            stop = min(whole.end, at + total * (number + 1) // groups - before)
            found[number].append(Range(whole.file, at, stop, whole.refused))
            before += stop - at
            at = stop
    return [tuple(group) for group in found if group]


def _position(extent: Extent, position: int) -> dict[str, str | int]:
    return {"segment": extent.path.name, "position": position}
