"""Retention: sealed segments that are too old or too many are removed, but not before every pipeline has read them.

A pipeline leaves a file in `cursors/` that says how far it has read (see "Retention" in
docs/reference/journal-format.md). The newest segment always stays.

How old a segment is, its own last block says. But the age also depends on the clock, which may be wrong. So a hub
removes only so much of its journal for its age at a time (`most_aged`), and somebody has time to notice.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.segment import is_sealed, last_block, segment_time, segments, stated_length
from wireloom.journal.state import StateDamaged, load_state
from wireloom.model import JournalError

CURSORS = "cursors"
ARCHIVE = "the archive"
"""What a segment is kept for that is not archived yet."""
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a journal is kept; 0 means all of it. What goes beyond either limit is removed."""

    days: float = 0.0
    size: int = 0
    past_cursors: bool = False
    """Whether segments go although a pipeline has not read them."""
    most_aged: int | None = None
    """At most so many segments go because of `days`; None: as many as there are."""
    is_archived: Callable[[Path], bool] | None = None
    """Asked of a segment before it is removed. If it is not archived, it stays, and those after it stay, too."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one reader of a journal is: everything before `position` of `segment` is done with."""

    name: str
    segment: str
    position: int


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that is past its time, and the reader or the archive it is kept for, if it is."""

    path: Path
    size: int
    why: str
    for_age: bool = False
    kept_for: str | None = None


def cursors(folder: Path | str, disk: Disk = LOCAL) -> list[Cursor]:
    """Who reads a journal and how far each is; a damaged cursor counts as one that has read nothing."""
    found = []
    place = Path(folder) / CURSORS
    try:
        names = sorted(name for name in disk.list(place) if name.endswith(".json") and not name.startswith("."))
    except OSError:
        return []
    for name in names:
        reader = name.removesuffix(".json")
        try:
            value = load_state(place / name, disk)
            if value is not None:
                found.append(Cursor(reader, str(value["segment"]), int(str(value["position"]))))
        except (StateDamaged, ValueError, KeyError):
            found.append(Cursor(reader, "", 0))
    return found


def expired(folder: Path | str, keep: Keep, now_ns: int, disk: Disk = LOCAL) -> Iterator[Expired]:
    """The segments that `keep` lets go, oldest first; those that must stay say what for."""
    # One that is only just begun disappears in a crash, and the one before it must still be there.
    sizes = [(path, _size(path, disk)) for path in segments(folder, disk) if stated_length(path, disk) != 0]
    total = sum(size for _, size in sizes)
    readers = [] if keep.past_cursors else sorted(cursors(folder, disk), key=lambda each: (each.segment, each.position))
    is_held = False
    aged = 0
    for (path, size), _ in itertools.pairwise(sizes):
        is_too_much = keep.size and total > keep.size
        if not is_too_much:
            is_aged = keep.days and now_ns - _last_time(path, disk) > keep.days * _DAY_NS
            if not is_aged or aged == keep.most_aged:
                break
        if not is_sealed(path, disk):
            break
        why = f"more than {keep.size} bytes" if is_too_much else f"older than {keep.days:g} days"
        needed = _needed_by(path.name, size, readers)
        if needed is None and keep.is_archived is not None:
            is_held = is_held or not keep.is_archived(path)
            needed = ARCHIVE if is_held else None
        aged += not is_too_much and needed is None
        total -= size
        yield Expired(path, size, why, for_age=not is_too_much, kept_for=needed)


def _last_time(path: Path, disk: Disk) -> int:
    """The time of the last block of a segment; of the first where the last is damaged."""
    last = last_block(path, disk)
    return segment_time(path, disk) if last is None else last.time_ns


def prune(folder: Path | str, keep: Keep, now_ns: int, *, dry_run: bool = False, disk: Disk = LOCAL) -> list[Expired]:
    """Remove what `expired` names and nobody needs; returns all of it, removed or kept."""
    found: list[Expired] = []
    for each in expired(folder, keep, now_ns, disk):
        found.append(each)
        if each.kept_for is not None or dry_run:
            continue
        try:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(each.path)
            # One by one: a power cut must not leave an older segment and take a younger one.
            disk.sync_folder(Path(folder))
        except OSError as error:
            raise JournalError(
                f"{folder}: cannot remove segments: {error.strerror}; let this user write there"
            ) from None
    return found


def _needed_by(name: str, size: int, readers: Sequence[Cursor]) -> str | None:
    for reader in readers:
        if reader.segment < name or (reader.segment == name and reader.position < size):
            return reader.name
    return None


def _size(path: Path, disk: Disk) -> int:
    try:
        return disk.look(path).size
    except OSError:
        return 0
