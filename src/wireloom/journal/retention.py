"""Retention: sealed segments that are too old or too many are removed, but not before every pipeline has read them.

A pipeline leaves a file in `cursors/` that says how far it has read (see "Retention" in
docs/reference/journal-format.md). The newest segment always stays: packet ids go on from it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal.segment import is_sealed, segment_time, segments, stated_length, sync_folder
from wireloom.model import JournalError

CURSORS = "cursors"
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a journal is kept; 0 means all of it. What goes beyond either limit is removed."""

    days: float = 0.0
    size: int = 0
    past_cursors: bool = False
    """Whether segments go although a pipeline has not read them."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one reader of a journal is: everything before `position` of `segment` is done with."""

    name: str
    segment: str
    position: int


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that is past its time, and the cursor it is kept for, if it is."""

    path: Path
    size: int
    why: str
    kept_for: str | None = None


def cursors(folder: Path | str) -> list[Cursor]:
    """Who reads a journal and how far each is; an unreadable cursor counts as one that has read nothing."""
    found = []
    for path in sorted((Path(folder) / CURSORS).glob("*.json")):
        try:
            value = json.loads(path.read_text())
            found.append(Cursor(path.stem, str(value["segment"]), int(value["position"])))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            found.append(Cursor(path.stem, "", 0))
    return found


def expired(folder: Path | str, keep: Keep, now_ns: int) -> list[Expired]:
    """The segments that `keep` lets go, oldest first; those that a pipeline still needs say so."""
    # One that is only just begun disappears in a crash: then packet ids go on from the one before it.
    sizes = [(path, _size(path)) for path in segments(folder) if stated_length(path) != 0]
    total = sum(size for _, size in sizes)
    readers = [] if keep.past_cursors else sorted(cursors(folder), key=lambda each: (each.segment, each.position))
    found = []
    for (path, size), (following, _) in itertools.pairwise(sizes):
        age = now_ns - segment_time(following)
        if keep.days and age > keep.days * _DAY_NS:
            why = f"older than {keep.days:g} days"
        elif keep.size and total > keep.size:
            why = f"more than {keep.size} bytes"
        else:
            break
        if not is_sealed(path):
            break
        total -= size
        found.append(Expired(path, size, why, _needed_by(path.name, size, readers)))
    return found


def prune(folder: Path | str, keep: Keep, now_ns: int, *, dry_run: bool = False) -> list[Expired]:
    """Remove what `expired` names and no cursor needs; returns all of it, removed or kept."""
    found = expired(folder, keep, now_ns)
    gone = [each for each in found if each.kept_for is None]
    if gone and not dry_run:
        try:
            for each in gone:
                each.path.unlink(missing_ok=True)
            sync_folder(Path(folder))
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
