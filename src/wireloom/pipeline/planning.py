"""Planning: offsets in journals and captures, and the byte ranges that tasks read. Imports no Spark.

A lane is everything that one hub wrote in one epoch, in order of packet ids. Frames and refused bytes are two lanes.
The offset in a lane is a packet id: `{"hub": ..., "epoch": ..., "id": 77}` means that everything before packet 77 was
read. Such an offset is valid wherever the segments are, see `extents.py`. Segments of format 1 have no epoch: there,
the lane is a folder, and the offset is a segment and a byte.

Tasks get byte ranges. A block belongs to the range that contains its first byte. So every block is in exactly one
range, wherever the cuts are.

Each capture is a lane of its own, and is read as a whole: see `captures/planning.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wireloom.journal.segment import REFUSED, segments
from wireloom.model import ConfigError, JournalError
from wireloom.pipeline.captures import planning as captures
from wireloom.pipeline.extents import Extent, archive_extents, folder_extents
from wireloom.store import open_store

Position = Mapping[str, str | int]
Offsets = dict[str, dict[str, str | int]]
"""Offsets by lane, as stored in plans and in the checkpoints of users' streaming queries."""
_LEAST_BYTES = 1 << 20
"""Fewer bytes are not worth a task of their own."""


@dataclass(frozen=True, slots=True)
class Range:
    """The blocks of one file that begin at or after `start` and before `end`."""

    file: str
    start: int
    end: int
    refused: bool = False
    name: str = ""
    """What rows call the file, wherever it is; empty: `file`."""
    journal: str = ""
    """Who wrote it: connections end when that hub starts."""

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


def check_inputs(inputs: Sequence[str | Path]) -> list[str]:
    """Absolute paths of the inputs, each made sure to be a journal, a segment, or captures."""
    if not inputs:
        raise ConfigError("no input: name the folder of a journal, or captures")
    found = []
    for named in inputs:
        given = str(open_store(named).url) if str(named).startswith("file:") else str(named)
        if captures.is_journal(given):
            path = Path(given).resolve()
            segments(path)
            found.append(str(path))
        else:
            found.append(captures.check_capture_input(given))
    return sorted(set(found))


def lanes(inputs: Sequence[str]) -> dict[str, list[Extent]]:
    """Every lane of the inputs with its segments as they are now, in order; each segment once, wherever it is."""
    found: dict[str, dict[str, Extent]] = {}
    for each in _extents(inputs):
        own = found.setdefault(each.lane, {})
        known = own.get(each.name)
        # Of two copies prefer the sealed one, because it is complete. If both are sealed, keep the first one found: the
        # local one, which need not be fetched.
        if known is None or (not known.sealed and (each.sealed or known.length < each.length)):
            own[each.name] = each
    return {lane: sorted(found[lane].values(), key=lambda each: (each.first, each.name)) for lane in sorted(found)}


def _extents(inputs: Sequence[str]) -> list[Extent]:
    found: list[Extent] = []
    for folder in filter(captures.is_journal, inputs):
        found += folder_extents(folder)
        refused = Path(folder) / REFUSED
        if refused.is_dir():
            found += folder_extents(str(refused))
    for given in filter(captures.may_be_archive, inputs):
        found += archive_extents(open_store(given))
    return found


def latest(inputs: Sequence[str]) -> Offsets:
    """The end of everything that is there now."""
    found = {lane: _end_of(known[-1]) for lane, known in lanes(inputs).items()}
    return found | captures.positions([given for given in inputs if not captures.is_journal(given)])


def _end_of(extent: Extent) -> dict[str, str | int]:
    if extent.epoch:
        return _position(extent, extent.next_id())
    return {"segment": Path(extent.file).name, "position": extent.length}


def _position(extent: Extent, packet_id: int) -> dict[str, str | int]:
    return {"hub": extent.hub, "epoch": extent.epoch, "id": packet_id}


def advance(inputs: Sequence[str], start: Offsets, target: Offsets, max_bytes: int | None) -> Offsets:
    """A position between `start` and `target` with at most `max_bytes` before it, shared fairly by the lanes.

    Of each lane at least one block is taken, however large.
    """
    if max_bytes is None:
        return {**start, **target}
    known = lanes(inputs)
    whole = captures.advance(start, target, max_bytes)
    journals = [lane for lane in target if captures.CAPTURE not in target[lane]]
    backlog = {lane: _parts(start.get(lane), target[lane], known.get(lane, [])) for lane in journals}
    sizes = {lane: sum(r.size for _, r in parts) for lane, parts in backlog.items()}
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
        for extent, part in backlog[lane]:
            if share < part.size:
                if share > 0 or reached.get(lane) == start.get(lane):
                    reached[lane] = _cut(extent, part, start.get(lane), share)
                break
            share -= part.size
            reached[lane] = _end_of(extent)
    return dict(sorted(reached.items()))


def _cut(extent: Extent, part: Range, start: Position | None, share: int) -> dict[str, str | int]:
    if not extent.epoch:
        return {"segment": Path(extent.file).name, "position": part.start + max(share, 1)}
    before = -1 if start is None else int(start["id"])
    return _position(extent, extent.cut(part.start, share, max(before, extent.first)))


def plan(inputs: Sequence[str], start: Offsets, end: Offsets) -> list[Range]:
    """The ranges of journals between two positions, in order; an error where the inputs do not have them."""
    known = lanes(inputs)
    found: list[Range] = []
    for lane, position in sorted(end.items()):
        if captures.CAPTURE not in position and position != start.get(lane):
            own = known.get(lane, [])
            _check_reach(lane, position, own)
            found += [part for _, part in _parts(start.get(lane), position, own)]
    return found


def _check_reach(lane: str, end: Position, known: Sequence[Extent]) -> None:
    """Raise an error if the plan reads blocks that the inputs do not have (any more)."""
    if not known:
        raise JournalError(f"no input has the journal {lane}, which the next batch reads: name the inputs as before")
    if "id" in end and known[-1].next_id() < int(end["id"]):
        raise JournalError(
            f"the next batch reads the journal {lane} up to packet {end['id']}, and the inputs end before "
            f"{known[-1].next_id()}: name the inputs as before"
        )


def _parts(start: Position | None, end: Position, known: Sequence[Extent]) -> list[tuple[Extent, Range]]:
    """The ranges of one lane between two positions, each with its segment."""
    found = []
    following = [*(each.first for each in known[1:]), None]
    for extent, beyond in zip(known, following, strict=True):
        if "id" in end:
            begin, stop = _bytes_by_id(extent, beyond, start, int(end["id"]))
        else:
            begin, stop = _bytes_by_name(extent, start, end)
        if begin < stop:
            found.append((extent, Range(extent.file, begin, stop, extent.refused, extent.name, extent.journal)))
    return found


def _bytes_by_id(extent: Extent, beyond: int | None, start: Position | None, end: int) -> tuple[int, int]:
    """Which bytes of a segment stand between two packet ids; `beyond` is the first id of the next segment."""
    before = 0 if start is None else int(start["id"])
    if extent.first >= end or (beyond is not None and beyond <= before):
        return 0, 0
    begin = 0 if before <= extent.first else extent.byte_of(before)
    return begin, extent.length if beyond is not None and beyond <= end else extent.byte_of(end)


def _bytes_by_name(extent: Extent, start: Position | None, end: Position) -> tuple[int, int]:
    first, first_position = ("", 0) if start is None else (str(start["segment"]), int(start["position"]))
    last, last_position = str(end["segment"]), int(end["position"])
    name = Path(extent.file).name
    if not first <= name <= last:
        return 0, 0
    return first_position if name == first else 0, last_position if name == last else extent.length


def cursors(inputs: Sequence[str], read: Offsets) -> dict[Path, dict[str, str | int]]:
    """By folder of a journal on this machine: the segment and the byte before which everything was read."""
    found: dict[Path, dict[str, str | int]] = {}
    for given in filter(captures.is_journal, inputs):
        for folder in (Path(given), Path(given) / REFUSED):
            if folder.is_dir():
                known = folder_extents(str(folder))
                firsts = {name: [each.first for each in known if each.lane == name] for name in {e.lane for e in known}}
                for each in known:
                    beyond = next((first for first in firsts[each.lane] if first > each.first), None)
                    done = _bytes_read(each, beyond, read.get(each.lane))
                    found[folder] = {"segment": each.path.name, "position": done}
                    if done < each.length:
                        break
    return found


def _bytes_read(extent: Extent, beyond: int | None, position: Position | None) -> int:
    """How many bytes of a segment stand before a position."""
    if position is None:
        return 0
    if "id" in position:
        return _bytes_by_id(extent, beyond, None, int(position["id"]))[1]
    return _bytes_by_name(extent, None, position)[1]


def renamed(offsets: Offsets) -> Offsets:
    """Positions of earlier versions, which name a folder, a segment and a byte, as packet ids."""
    found: Offsets = {}
    for lane, position in offsets.items():
        if "segment" not in position or not Path(lane).is_dir():
            found[lane] = position
            continue
        last, byte = str(position["segment"]), int(position["position"])
        for extent in folder_extents(lane):
            if extent.path.name > last:
                break
            is_last = extent.path.name == last
            if not extent.epoch:
                found[lane] = {"segment": extent.path.name, "position": byte if is_last else extent.length}
            else:
                found[extent.lane] = _position(extent, extent.id_from(byte) if is_last else extent.next_id())
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
            found[number].append(dataclasses.replace(whole, start=at, end=stop))
            before += stop - at
            at = stop
    return [tuple(group) for group in found if group]
