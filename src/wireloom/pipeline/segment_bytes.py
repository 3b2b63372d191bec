"""Reads the bytes of a segment for a task, even if parts of the disk are unreadable.

Files are not memory-mapped: if a mapped page is unreadable, the operating system kills the process (SIGBUS), and the
batch fails. Here an unreadable page becomes zeros and a `Damage`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from wireloom.journal.archive_format import FRAME_BYTES, ArchivedSegment, FrameCache, SegmentId, load_index
from wireloom.journal.disk import LOCAL, READ, Disk
from wireloom.journal.segment import REFUSED, committed_length
from wireloom.model import JournalError
from wireloom.store import open_store

log = logging.getLogger("wireloom.pipeline")

PAGE = 4096
"""Bytes that become unreadable together."""
UNREADABLE = frozenset((errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO))
"""What a disk or a file system answers for bytes that are lost; all else is no damage, and another attempt may help."""
_PIECE = 1 << 20
"""Bytes a call reads; they stay in the processor's cache until they are copied."""


PACKED = ".pcapng.zst"
"""How the URLs of segments in an archive end."""
_FETCH = 16 * FRAME_BYTES
"""Bytes of a segment that are asked for together."""
_ONLY_OURS = 2
"""References to an array that nobody else has, as `sys.getrefcount` counts them."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A byte range of a segment that cannot be read or parsed."""

    offset: int
    size: int
    reason: str


_spare: list[NDArray[np.uint8]] = []
"""A buffer that is not in use: getting memory for a segment from the operating system takes longer than reading it."""


def _buffer(size: int) -> NDArray[np.uint8]:
    """Memory for a segment; what is in it may be anything."""
    try:
        found = _spare.pop()
    except IndexError:
        return np.empty(size, np.uint8)
    return found if len(found) >= size else np.empty(size, np.uint8)


def open_segment(file: str, disk: Disk = LOCAL) -> SegmentBytes:
    """The bytes of a segment on this machine, as far as they are committed, or of one in an archive, by its URL."""
    if file.endswith(PACKED):
        return ArchivedBytes(file)
    path = Path(file)
    return SegmentBytes(path, committed_length(path, disk), disk)


class SegmentBytes:
    """The part of a segment that a task needs, read as far as somebody asks for.

    `data` is an array for the whole segment, up to `limit`. What it holds is valid up to `filled`, except what
    `skip_to` left out: that is never read, and takes no memory.
    """

    def __init__(self, path: Path, limit: int, disk: Disk = LOCAL) -> None:
        # Whoever only reads may follow links.
        self._file = disk.open(Path(os.path.realpath(path)), READ)
        self._disk = disk
        found = os.stat(path)  # noqa: PTH116
        self.identity = (str(path), found.st_ino, found.st_mtime_ns, limit)
        """Tells a segment from another, and from itself after it was changed."""
        self._prepare(path, limit)

    def _prepare(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.unreadable: list[Damage] = []
        """Pages that are zeros in `data` because they cannot be read, in order."""
        self._filled = 0
        self._buffer = _buffer(limit)
        self.data: NDArray[np.uint8] = self._buffer[:limit]
        # One type of array, so one compilation of each kernel.
        self.data.flags.writeable = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        # Reuse the buffer only if nobody else holds a reference to it or to its view.
        if sys.getrefcount(self.data) == _ONLY_OURS and sys.getrefcount(self._buffer) == _ONLY_OURS + 1:
            _spare[:] = [self._buffer]

    def _close(self) -> None:
        self._disk.close(self._file)

    @property
    def filled(self) -> int:
        """How much of `data` is valid."""
        return self._filled

    def window(self, window: NDArray[np.uint8], at: int) -> int:
        """Read a piece of the segment, apart from `data`: how many bytes that were. None can be read: 0."""
        try:
            return self._disk.pread_into(self._file, window.data[: max(self.limit - at, 0)], at)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return 0

    def skip_to(self, place: int) -> None:
        """Skip the unread bytes before an offset: they are not needed."""
        self._filled = max(self._filled, place // PAGE * PAGE)

    def fill(self, end: int) -> None:
        """Read up to a place; a file that turns out to be shorter lowers `limit`."""
        end = min(-(-end // PAGE) * PAGE, self.limit)
        most = _PIECE
        while self._filled < end:
            at = self._filled
            size = min(end - at, most)
            try:
                size = self._disk.pread_into(self._file, self._buffer.data[at : at + size], at)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                page_end = min(at // PAGE * PAGE + PAGE, end)
                if size > page_end - at:
                    most = page_end - at
                    continue
                self._lose(at, page_end, error)
                self._buffer[at:page_end] = 0
            if not size:
                self.limit = at
                self.data = self.data[:at]
                return
            self._filled = at + size
            most = min(most * 2, _PIECE)

    def _lose(self, start: int, end: int, error: OSError) -> None:
        reason = f"cannot be read: {error.strerror or error}"
        before = self.unreadable[-1] if self.unreadable else None
        if before is None or before.offset + before.size != start:
            log.warning("%s: %s, from byte %d on", self.path, reason, start)
        self.unreadable.append(Damage(start, end - start, reason))

    def unreadable_between(self, start: int, end: int) -> list[Damage]:
        """Pages that begin between two places, those that follow each other as one."""
        found: list[Damage] = []
        for each in self.unreadable:
            if not start <= each.offset < end:
                continue
            if found and (found[-1].offset + found[-1].size, found[-1].reason) == (each.offset, each.reason):
                found[-1] = Damage(found[-1].offset, found[-1].size + each.size, each.reason)
            else:
                found.append(each)
        return found


class ArchivedBytes(SegmentBytes):
    """The same of a segment in an archive: frames are fetched and decompressed as far as somebody asks for."""

    def __init__(self, url: str) -> None:
        place, _, name = url.rpartition("/")
        above = place.rsplit("/", 3 if place.endswith(f"/{REFUSED}") else 2)
        store = open_store(above[0])
        key = f"{url[len(above[0]) + 1 :].removesuffix(PACKED)}.index.json"
        segment = SegmentId.of_key(key)
        if segment is None:
            raise JournalError(f"{url}: no segment of an archive")
        # Blocks before the range are looked at first, then those in it: frames at the border are needed twice.
        self._segment = ArchivedSegment(store, load_index(store, segment), FrameCache(4 * FRAME_BYTES))
        self.identity = (url, 0, 0, self._segment.size)
        self._prepare(Path(name), self._segment.size)

    def _close(self) -> None:
        """Nothing is open."""

    def window(self, window: NDArray[np.uint8], at: int) -> int:
        """Read a piece of the segment, apart from `data`: how many bytes that were."""
        data = self._segment.read(at, min(at + len(window), self.limit))
        window[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def fill(self, end: int) -> None:
        """Fetch up to a place, some frames at a time."""
        end = min(end, self.limit)
        while self._filled < end:
            frames = self._segment.index.frames_between(self._filled, min(end, self._filled + _FETCH))
            stop = frames[-1].start + frames[-1].length
            data = self._segment.read(self._filled, stop)
            self._buffer[self._filled : stop] = np.frombuffer(data, np.uint8)
            self._filled = stop
