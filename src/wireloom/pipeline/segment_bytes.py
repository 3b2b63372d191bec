"""The bytes of a segment for a task that decodes a part of it, also on a disk that cannot give all of them.

Files are read, never mapped: where a mapped page cannot be read the operating system ends the process, and a worker
that dies takes the batch with it. Here such a page becomes zeros and a `Damage`.
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

from wireloom.journal.disk import LOCAL, READ, Disk

log = logging.getLogger("wireloom.pipeline")

PAGE = 4096
"""Bytes that become unreadable together."""
UNREADABLE = frozenset((errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO))
"""What a disk or a file system answers for bytes that are lost; all else is no damage, and another attempt may help."""
_PIECE = 1 << 20
"""Bytes a call reads; they stay in the processor's cache until they are copied."""


_ONLY_OURS = 2
"""References to an array that nobody else has, as `sys.getrefcount` counts them."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that cannot be understood."""

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


class SegmentBytes:
    """The part of a segment that a task needs, read as far as somebody asks for.

    `data` is an array for the whole segment, up to `limit`. What it holds is valid up to `filled`, except what
    `skip_to` left out: that is never read, and takes no memory.
    """

    def __init__(self, path: Path, limit: int, disk: Disk = LOCAL) -> None:
        self.path = path
        self.limit = limit
        self.unreadable: list[Damage] = []
        """Pages that are zeros in `data` because they cannot be read, in order."""
        self._disk = disk
        self._filled = 0
        # Whoever only reads may follow links.
        self._file = disk.open(Path(os.path.realpath(path)), READ)
        found = os.stat(path)  # noqa: PTH116
        self.identity = (str(path), found.st_ino, found.st_mtime_ns, limit)
        """Tells a segment from another, and from itself after it was changed."""
        self._buffer = _buffer(limit)
        self.data: NDArray[np.uint8] = self._buffer[:limit]
        # One type of array, so one compilation of each kernel.
        self.data.flags.writeable = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close(self._file)
        # Whoever still looks at the bytes has a reference to one of these.
        if sys.getrefcount(self.data) == _ONLY_OURS and sys.getrefcount(self._buffer) == _ONLY_OURS + 1:
            _spare[:] = [self._buffer]

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
        """Nobody needs what stands before a place, and was not read yet."""
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
