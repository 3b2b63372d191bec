"""After a crash: find the torn tail of a segment, cut it, seal what is left, say what was cut.

Implements "Committing and recovery" of docs/reference/journal-format.md. Only segments that were not sealed
are touched, and never below the committed length: what was acknowledged stays, even next to damage. A segment is synced
before it is sealed: what a reader saw once is there after the next crash, too. A crash inside recovery leaves a journal
that recovery can begin with again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wireloom.journal.disk import CHANGE, LOCAL, Disk, read_around, write_all
from wireloom.journal.segment import (
    COMMITTED,
    committed_path,
    first_packet_id,
    last_block,
    last_id_before,
    segments,
    sound_length_of,
    synced_length,
)
from wireloom.journal.valid_prefix import holds_no_packet, without_padding

SMALLEST_PACKET = 72
"""Bytes of a packet block without tags, payload and comment."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What recovery took off the end of a segment, and why."""

    segment: str
    cut_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """The state in which a journal was found, once every segment in it is sealed."""

    last_packet_id: int
    """The last that a block has; 0 if there is none."""
    last_time_ns: int
    cuts: tuple[Cut, ...]


def recover(folder: Path, disk: Disk = LOCAL) -> Recovery:
    """Seal every segment of a folder nobody writes to, cutting torn tails."""
    cuts: list[Cut] = []
    left: list[Path] = []
    open_names = {name.removesuffix(COMMITTED) for name in disk.list(folder) if name.endswith(COMMITTED)}
    # From the last to the first: a segment says with which packet id the one before it ended, unless it is empty.
    for path in reversed(segments(folder, disk)):
        if path.name in open_names:
            # Blocks of a segment that a failed write ended went into the next one: they count there.
            last = last_id_before(left[-1], disk) if left else None
            cut, is_empty = _seal(path, last, disk)
            cuts += cut
        else:
            # Without a byte it never held any: its name came to the disk before the name of its committed length.
            is_empty = not disk.look(path).size
            if is_empty:
                disk.unlink(path)
                disk.sync_folder(folder)
        open_names.discard(path.name)
        if not is_empty:
            left.append(path)
    for name in sorted(open_names):
        disk.unlink(folder / (name + COMMITTED))
        disk.sync_folder(folder)
    packet_id, time_ns = 0, 0
    for path in left[:1]:
        found = last_block(path, disk)
        if found is None:
            # Damaged at its end: leave out as many ids as it could possibly hold, rather than use one twice.
            packet_id = first_packet_id(path) + disk.look(path).size // SMALLEST_PACKET
        else:
            packet_id, time_ns = found.packet_id, found.time_ns
    return Recovery(packet_id, time_ns, tuple(reversed(cuts)))


def _seal(path: Path, last: int | None, disk: Disk) -> tuple[list[Cut], bool]:
    """Seal a segment; what was cut, and whether nothing was left of it."""
    file = disk.open(path, CHANGE)
    try:
        size = disk.status(file).size
        # What cannot be read is judged like what was torn: it ends what counts, but never what was committed.
        data, _ = read_around(disk, file, 0, size)
        stated = synced_length(path, disk)
        committed = stated if stated <= size else 0
        keep, reason = sound_length_of(path, data, committed, last)
        torn = without_padding(data, keep) - keep
        empty = keep == 0 or (committed == 0 and holds_no_packet(data, keep))
        if not empty:
            if keep < size:
                disk.truncate(file, keep)
            # Written again: after a sync that failed, the next one succeeds without writing what the first did not.
            write_all(disk, file, [data[committed:keep]], committed)
            disk.sync(file)
    finally:
        disk.close(file)
    if empty:
        disk.unlink(path)
        # Before its committed length: alone it would pass for a sealed segment.
        disk.sync_folder(path.parent)
    disk.unlink(committed_path(path))
    disk.sync_folder(path.parent)
    cuts = [Cut(path.name, torn, reason or "a write that is not complete")] if torn else []
    return cuts, empty
