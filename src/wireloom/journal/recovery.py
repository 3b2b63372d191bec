"""Recovery after a crash: cut the torn tail of each open segment, seal the segment, report what was cut.

Implements "Committing and recovery" of docs/reference/journal-format.md.

Theory of operation
===================

**The problem.** A crash may leave half a write at the end of a segment. It may also leave blocks that were written and
never acknowledged. And a segment that ended with a failed write may hold blocks that are repeated in the next one.

**The idea.** An open segment has a `.committed` file beside it, with the length that was synced. Sealing deletes that
file. Recovery goes through the open segments. It keeps every block up to the committed length, and after that all
valid blocks up to the first that is damaged or incomplete. It ignores packet ids that the next segment has replaced.
So it begins with the last segment: each segment's head names the last packet id before it that counts.

**The invariants.**

- Sealed segments are not touched.
- Nothing below the committed length is cut, even if it is damaged: it was acknowledged.
- A segment is synced before it is sealed. What a reader has seen once survives the next crash, too.
- A crash during recovery is harmless: recovery starts again from what it finds.

**Example.** Segment A holds packets 1 to 14. Its committed length ends with packet 10. The write of 11 to 14 failed, so
their blocks are in segment B, as 15 to 18, and B's head names 10 as the last packet that counts. Recovery seals B
first, then cuts A after packet 10. If there were no B, A would keep 11 to 14 as far as they are valid.
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
    """How many bytes recovery cut off the end of a segment, and why."""

    segment: str
    cut_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of `recover`: every segment of the journal is sealed now."""

    last_packet_id: int
    """The highest packet id in the journal; 0 if it has no packets."""
    last_time_ns: int
    cuts: tuple[Cut, ...]


def recover(folder: Path, disk: Disk = LOCAL) -> Recovery:
    """Cut torn tails and seal every segment of a folder. Nobody else may write to it meanwhile."""
    cuts: list[Cut] = []
    left: list[Path] = []
    open_names = {name.removesuffix(COMMITTED) for name in disk.list(folder) if name.endswith(COMMITTED)}
    # Backwards: the head of a segment names the packet id with which the segment before it ends, unless it is empty.
    for path in reversed(segments(folder, disk)):
        if path.name in open_names:
            # After a failed write, the blocks in doubt were repeated in the next segment. They count only there.
            last = last_id_before(left[-1], disk) if left else None
            cut, is_empty = _seal(path, last, disk)
            cuts += cut
        else:
            # An empty file without a `.committed` file never held data: the crash came between creating the two.
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
            # The end is damaged, so the last packet id is unknown. Skip as many ids as the file can hold: an id must
            # not be used twice.
            packet_id = first_packet_id(path) + disk.look(path).size // SMALLEST_PACKET
        else:
            packet_id, time_ns = found.packet_id, found.time_ns
    return Recovery(packet_id, time_ns, tuple(reversed(cuts)))


def _seal(path: Path, last: int | None, disk: Disk) -> tuple[list[Cut], bool]:
    """Seal a segment. Returns what was cut, and whether nothing was left, so that the segment was deleted."""
    file = disk.open(path, CHANGE)
    try:
        size = disk.status(file).size
        # Unreadable bytes are treated like torn ones: the valid part ends there, but not below the committed length.
        data, _ = read_around(disk, file, 0, size)
        stated = synced_length(path, disk)
        committed = stated if stated <= size else 0
        keep, reason = sound_length_of(path, data, committed, last)
        torn = without_padding(data, keep) - keep
        empty = keep == 0 or (committed == 0 and holds_no_packet(data, keep))
        if not empty:
            if keep < size:
                disk.truncate(file, keep)
            # Write these bytes again before the sync. After a failed sync, the kernel may mark the pages clean, and the
            # next sync would succeed without writing them.
            write_all(disk, file, [data[committed:keep]], committed)
            disk.sync(file)
    finally:
        disk.close(file)
    if empty:
        disk.unlink(path)
        # Delete the segment before its `.committed` file. A segment without that file would count as sealed.
        disk.sync_folder(path.parent)
    disk.unlink(committed_path(path))
    disk.sync_folder(path.parent)
    cuts = [Cut(path.name, torn, reason or "a write that is not complete")] if torn else []
    return cuts, empty
