"""Extents: the segments that planning can read, their lengths, and the byte offset of a packet id. Imports no Spark.

**The problem.** A plan names a position in a journal by hub, epoch and packet id. That name is valid wherever the
segment is: in the hub's folder, in an archive, in a copy. But tasks read byte ranges. So each packet id must be
converted to a byte offset. The result must always be the same, even if the segment has grown since.

**The rule.** The offset of packet id `P` is the end of the last block with an id below `P`. If there is no such block,
it is the start of the segment. If a sealed segment has no id from `P` on, it is the end of the segment. So damaged
bytes after the last block are read together with that block.

**Example.** A segment has the blocks 10, 11 and 12, which end at the bytes 300, 400 and 500. The offset of 12 is 400.
The offset of 10 is 0. The offset of 13 is 500 while the segment is being written. If it is sealed with 20 damaged bytes
at its end, the offset of 13 is 520.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wireloom.journal import blocks
from wireloom.journal.archive_format import ArchivedSegment, Index, SegmentId, archived_segments, load_index
from wireloom.journal.segment import (
    REFUSED,
    OpenSegment,
    committed_length,
    epoch_in,
    first_packet_id,
    is_sealed,
    segments,
)
from wireloom.model import JournalError
from wireloom.store import Store, open_store

_WINDOW = 1 << 20
"""Bytes looked at together."""


class Extent(Protocol):
    """A segment and how much of it may be read."""

    @property
    def file(self) -> str:
        """Where it is: a path or a URL."""

    @property
    def name(self) -> str:
        """What rows call it, wherever it is."""

    @property
    def lane(self) -> str:
        """The lane it belongs to."""

    @property
    def hub(self) -> str:
        """The id of the hub that wrote it."""

    @property
    def epoch(self) -> str:
        """The journal it belongs to; empty in format 1."""

    @property
    def journal(self) -> str:
        """Who wrote it: connections end when that hub starts."""

    @property
    def first(self) -> int:
        """The packet id that its name says."""

    @property
    def length(self) -> int:
        """How many bytes of it may be read."""

    @property
    def refused(self) -> bool:
        """Whether it holds bytes that the hub refused."""

    @property
    def sealed(self) -> bool:
        """Whether it never changes again."""

    def next_id(self) -> int:
        """The packet id after its last one."""

    def byte_of(self, packet_id: int) -> int:
        """The byte of a packet id, see above."""

    def cut(self, start: int, most: int, after: int) -> int:
        """A packet id above `after`, at most so many bytes behind a place, or else the first one above."""


@dataclass(frozen=True, slots=True)
class FileExtent:
    """A segment on this machine."""

    path: Path
    hub: str
    epoch: str
    length: int
    sealed: bool

    @property
    def file(self) -> str:
        """Its path."""
        return str(self.path)

    @property
    def refused(self) -> bool:
        """Whether it holds bytes that the hub refused."""
        return self.path.parent.name == REFUSED

    @property
    def name(self) -> str:
        """Its name, after `refused/` if it is one of these."""
        return f"{REFUSED}/{self.path.name}" if self.refused else self.path.name

    @property
    def lane(self) -> str:
        """Hub and epoch; the folder where the segment does not tell."""
        return lane_name(self.hub, self.epoch, refused=self.refused) if self.epoch else str(self.path.parent)

    @property
    def journal(self) -> str:
        """The hub, or what else tells it apart from others."""
        return self.hub or self.epoch or str(self.path.parent)

    @property
    def first(self) -> int:
        """The packet id that its name says."""
        return first_packet_id(self.path)

    def next_id(self) -> int:
        """The packet id after its last one. A sealed segment in which none can be read takes one all the same."""
        return max(_last_packet(self.path, self.length), self.first - 1 + (self.sealed and self.length > 0)) + 1

    def byte_of(self, packet_id: int) -> int:
        """The byte of a packet id."""
        return _byte_of(self.path, self.length, self.sealed, packet_id)

    def cut(self, start: int, most: int, after: int) -> int:
        """A packet id above `after`, at most so many bytes behind a place, or else the first one above."""
        from wireloom.pipeline import packet_ids

        best, at = packet_ids.NO_ID, start
        with OpenSegment(self.path) as segment:
            data = _Window(segment, self.length)
            while at < self.length:
                best, stop, state = (int(v) for v in packet_ids.cut(data.at(at), start + most - at, after, best))
                if state == packet_ids.FOUND:
                    return min(best, self.next_id())
                if state == packet_ids.BROKEN or not stop:
                    break
                at += stop
        # Damage: it goes with what stands before it.
        return self.next_id()

    def id_from(self, byte: int) -> int:
        """The first packet id of a block that begins at a place or behind it."""
        from wireloom.pipeline import packet_ids

        with OpenSegment(self.path) as segment:
            found = [int(packet_ids.id_from(data, byte - begin)) for begin, data in _stretches(segment, self.length)]
        return next((each for each in found if each != packet_ids.NO_ID), self.next_id())


@dataclass(frozen=True, slots=True)
class ArchivedExtent:
    """A segment in an archive."""

    store: Store
    segment: SegmentId

    @property
    def sealed(self) -> bool:
        """What is archived never changes."""
        return True

    @property
    def index(self) -> Index:
        """What is in it."""
        return _index(self.store.url, self.segment)

    @property
    def file(self) -> str:
        """The URL of its object."""
        return f"{self.store.url}/{self.segment.object_key}"

    @property
    def refused(self) -> bool:
        """Whether it holds bytes that the hub refused."""
        return self.segment.refused

    @property
    def name(self) -> str:
        """The name it has in a journal's folder, after `refused/` if it is one of these."""
        return f"{REFUSED}/{self.segment.file_name}" if self.refused else self.segment.file_name

    @property
    def hub(self) -> str:
        """The id of the hub that wrote it."""
        return self.segment.hub

    @property
    def epoch(self) -> str:
        """The journal it belongs to."""
        return self.segment.epoch

    @property
    def lane(self) -> str:
        """Hub and epoch."""
        return lane_name(self.hub, self.epoch, refused=self.refused)

    @property
    def journal(self) -> str:
        """The hub."""
        return self.hub

    @property
    def first(self) -> int:
        """The packet id that its name says."""
        return self.segment.first

    @property
    def length(self) -> int:
        """Bytes of the segment."""
        return self.index.length

    def next_id(self) -> int:
        """The packet id after its last one."""
        return max(self.index.last, self.first) + 1

    def byte_of(self, packet_id: int) -> int:
        """The byte of a packet id: only the frame in which it stands is fetched, unless it is the first there."""
        from wireloom.pipeline import packet_ids

        after = 0
        for frame in self.index.frames:
            if not frame.blocks or frame.last < packet_id:
                after = frame.start + frame.length if frame.blocks else after
                continue
            if frame.first >= packet_id:
                # The end of the last block before it. What may stand between has no id, and is read by nobody.
                return after
            data = ArchivedSegment(self.store, self.index).read(frame.start, frame.start + frame.length)
            here, _, _ = (int(v) for v in packet_ids.seek(np.frombuffer(data, np.uint8), packet_id))
            return frame.start + here if here >= 0 else after
        return self.length

    def cut(self, start: int, most: int, after: int) -> int:
        """The first packet id of a frame, above `after`, at most so many bytes behind a place, or the first above."""
        best = None
        for frame in self.index.frames:
            if frame.blocks and frame.first > after:
                if frame.start > start + most:
                    return frame.first if best is None else best
                best = frame.first
        return self.next_id()


def archive_extents(store: Store) -> list[ArchivedExtent]:
    """All segments that are in an archive."""
    return [ArchivedExtent(store, segment) for segment in archived_segments(store)]


@lru_cache(maxsize=1 << 14)
def _index(url: str, segment: SegmentId) -> Index:
    """An index never changes once it is there."""
    return load_index(open_store(url), segment)


def lane_name(hub: str, epoch: str, *, refused: bool = False) -> str:
    """How positions call what one hub wrote in one epoch.

    >>> lane_name("kitchen", "00c0ffee00c0ffee", refused=True)
    'kitchen/00c0ffee00c0ffee/refused'
    """
    return f"{hub}/{epoch}/{REFUSED}" if refused else f"{hub}/{epoch}"


def folder_extents(folder: str) -> list[FileExtent]:
    """The segments of a folder, or a single one, in order. One that retention removes meanwhile is left out."""
    found: list[FileExtent] = []
    hub = ""
    for path in segments(folder):
        try:
            # Before its length: one that is sealed in between has all of it.
            sealed = is_sealed(path)
            length = committed_length(path)
            own, epoch = _owner(path, length)
        except (JournalError, FileNotFoundError):
            if path.exists():
                raise
            continue
        hub = own or hub
        found.append(FileExtent(path, hub if epoch else "", epoch, length, sealed))
    return found


@lru_cache(maxsize=1 << 16)
def _owner(path: Path, length: int) -> tuple[str, str]:
    """Hub and epoch of a segment. Where its head is damaged its name tells the epoch, and its neighbour the hub."""
    try:
        with OpenSegment(path) as segment:
            head = segment.head()
    except (blocks.BlockFault, JournalError):
        return "", epoch_in(path)
    return head.hub, head.epoch


class _Window:
    """The bytes of a segment, as many as are looked at together. What cannot be read is zeros."""

    def __init__(self, segment: OpenSegment, limit: int) -> None:
        self._segment, self._limit = segment, limit

    def at(self, place: int, least: int = 0) -> NDArray[np.uint8]:
        end = min(place + max(_WINDOW, least), self._limit)
        try:
            data = np.frombuffer(self._segment.read(place, end), np.uint8)
        except JournalError:
            data = np.frombuffer(self._segment.read_around()[place:end], np.uint8)
        if len(data) >= 8:
            size = int.from_bytes(data[4:8].tobytes(), "little")
            if len(data) < size <= self._limit - place and not least:
                return self.at(place, size)
        return data


@lru_cache(maxsize=1024)
def _last_packet(path: Path, length: int) -> int:
    """The last packet id: from the end back to a block that has one; from the beginning where that leads nowhere."""
    with OpenSegment(path) as segment:
        end = length
        while end >= 12:
            try:
                size = int.from_bytes(segment.read(end - 4, end), "little")
                if not 12 <= size <= end:
                    break
                data = segment.read(end - size, end)
                if blocks.block_at(data, 0, len(data))[0] == blocks.ENHANCED_PACKET:
                    return blocks.parse_packet(data, 0, size).packet_id
            except (JournalError, blocks.BlockFault):
                break
            end -= size
        return max(_last_sound_id(data) for _, data in _stretches(segment, length))


def _last_sound_id(data: NDArray[np.uint8]) -> int:
    """The highest packet id among blocks whose hash is right; -1 if there is none."""
    from wireloom.journal.index import index_blocks

    at, last = 0, -1
    while at < len(data):
        found = index_blocks(data, at, len(data))
        last = max(last, int(found.packet_id.max(initial=-1)))
        if found.fault is None:
            break
        at = found.end + max(int.from_bytes(data[found.end + 4 : found.end + 8].tobytes(), "little"), 12)
    return last


def _stretches(segment: OpenSegment, length: int) -> list[tuple[int, NDArray[np.uint8]]]:
    """The ranges of blocks before damage and after it: the offset of each range, and its bytes."""
    from wireloom.pipeline import packet_ids

    data = np.frombuffer(segment.read_around()[:length], np.uint8)
    broken = int(packet_ids.hop(data, 0))
    if broken >= len(data):
        return [(0, data)]
    resumed = int(packet_ids.walk_back(data, broken))
    return [(0, data[:broken]), (resumed, data[resumed:])]


_hints: dict[Path, tuple[int, int]] = {}
"""By segment: the last id that was looked for, and its byte. The next one looked for mostly stands behind it."""
_MOST_HINTS = 4096


@lru_cache(maxsize=1024)
def _byte_of(path: Path, length: int, sealed: bool, packet_id: int) -> int:
    from wireloom.pipeline import packet_ids

    known, begin = _hints.get(path, (0, 0))
    if known > packet_id or begin > length:
        begin = 0
    with OpenSegment(path) as segment:
        data = _Window(segment, length)
        at = after = begin
        while at < length:
            here, stop, state = (int(v) for v in packet_ids.seek(data.at(at), packet_id))
            after = at + here if here >= 0 else after
            if state == packet_ids.FOUND:
                break
            if state == packet_ids.BROKEN or not stop:
                return _byte_in_damaged(segment, length, sealed, packet_id)
            at += stop
        else:
            after = length if sealed else after
    if len(_hints) >= _MOST_HINTS:
        _hints.clear()
    _hints[path] = packet_id, after
    return after


def _byte_in_damaged(segment: OpenSegment, length: int, sealed: bool, packet_id: int) -> int:
    from wireloom.pipeline import packet_ids

    after = 0
    for begin, data in _stretches(segment, length):
        here, _, state = (int(v) for v in packet_ids.seek(data, packet_id))
        after = begin + here if here >= 0 else after
        if state == packet_ids.FOUND:
            return after
    return length if sealed else after
