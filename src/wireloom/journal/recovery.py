"""After a crash: find the torn tail of a segment, cut it, say what was cut.

Implements "Committing and recovery" of docs/reference/journal-format.md. Only segments that were not sealed
are touched, and never below the committed length: what was acknowledged stays, even next to damage.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.segment import (
    COMMITTED,
    committed_path,
    first_packet_id,
    is_sealed,
    segments,
    stated_length,
    sync_folder,
)

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

    next_packet_id: int
    last_time_ns: int
    cuts: tuple[Cut, ...]


def recover(folder: Path) -> Recovery:
    """Seal every segment of a folder nobody writes to, cutting torn tails."""
    cuts: list[Cut] = []
    found = segments(folder)
    for path, following in zip(found, [*found[1:], None], strict=False):
        if not is_sealed(path):
            # Blocks of a segment that a failed write ended went into the next one: they count there.
            limit = None if following is None else first_packet_id(following)
            cuts += _seal(path, limit)
    for path in folder.glob(f"*{COMMITTED}"):
        path.unlink()
    packet_id, time_ns = 0, 0
    for path in segments(folder)[-1:]:
        last = last_block(path)
        if last is None:
            # Damaged at its end: leave out as many ids as it could possibly hold, rather than use one twice.
            packet_id = first_packet_id(path) + path.stat().st_size // SMALLEST_PACKET
        else:
            packet_id, time_ns = last.packet_id, last.time_ns
    return Recovery(packet_id + 1, time_ns, tuple(cuts))


def _seal(path: Path, limit: int | None) -> Iterator[Cut]:
    with mapped(path) as data:
        size = len(data)
        stated = stated_length(path) or 0
        committed = stated if stated <= size else 0
        keep, reason = sound_length(data, committed, limit)
        torn = _without_padding(data, keep) - keep
        empty = keep == 0 or (committed == 0 and _holds_no_packet(data, keep))
    if empty:
        path.unlink()
    elif keep < size:
        with path.open("r+b") as file:
            file.truncate(keep)
            os.fsync(file.fileno())
    committed_path(path).unlink()
    sync_folder(path.parent)
    if torn:
        yield Cut(path.name, torn, reason or "a write that is not complete")


def sound_length(data: blocks.Buffer, committed: int = 0, limit: int | None = None) -> tuple[int, str]:
    """How much of a segment is whole blocks of complete runs, and why it ends there ("" at the end).

    At least `committed`; from the first block with a packet id of `limit` or more on, nothing.
    """
    try:
        head = blocks.check_head(data)
        if committed > head:
            # What was committed is not judged, so a sound tail is found without a walk through all of it.
            tail, reason = _sound_from(data, committed, limit)
            if not reason:
                return tail, ""
        sound, reason = _sound_from(data, head, limit)
        if sound < committed:
            return _sound_from(data, committed, limit)
    except blocks.BlockFault as fault:
        return committed, fault.reason
    return sound, reason


def _sound_from(data: blocks.Buffer, start: int, limit: int | None) -> tuple[int, str]:
    sound = start
    try:
        for block in blocks.blocks(data, start, len(data)):
            if limit is not None and block.packet_id >= limit:
                return sound, "blocks that went into the next segment"
            if not block.more:
                # A run counts once its last block is there: half a message is none.
                sound = block.offset + block.size
    except blocks.BlockFault as fault:
        return sound, fault.reason
    whole = sound == len(data) or blocks.is_padding(data, sound)
    return sound, "" if whole else "a run that goes on in a block that is missing"


def _without_padding(data: blocks.Buffer, start: int) -> int:
    """Where the padding at the end of a segment begins, if not before `start`."""
    end = len(data)
    while end - blocks.PAGE >= start and data[end - blocks.PAGE : end] == blocks.PAGE_OF_PADDING:
        end -= blocks.PAGE
    return start if data[start:end] == blocks.filler(start) else end


def _holds_no_packet(data: blocks.Buffer, end: int) -> bool:
    return end <= blocks.check_head(data)


def last_block(path: Path) -> blocks.Block | None:
    """The last packet block of a sealed segment; None if there is none or the end is damaged."""
    with mapped(path) as data:
        if len(data) < 12:
            return None
        size = int.from_bytes(data[-4:], "little")
        try:
            if size > len(data) or blocks.block_at(data, len(data) - size, len(data))[0] != blocks.ENHANCED_PACKET:
                return None
            return blocks.parse_packet(data, len(data) - size, size)
        except blocks.BlockFault:
            return None


@contextmanager
def mapped(path: Path | int) -> Iterator[memoryview]:
    """The bytes of a file, or of one that is open, without reading them all."""
    with open(path, "rb", closefd=not isinstance(path, int)) as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        # Unmapped when the last view is gone: an error on its way out may still hold one.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
