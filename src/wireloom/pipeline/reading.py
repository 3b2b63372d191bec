"""The bytes of a segment for a task that decodes a part of it, also on a disk that cannot give all of them.

Files are read, never mapped: where a mapped page cannot be read the operating system ends the process, and a worker
that dies takes the batch with it. Here such a page becomes zeros and a `Damage`.
"""

from __future__ import annotations

import errno
import logging
import os
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


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that cannot be understood."""

    offset: int
    size: int
    reason: str


class SegmentBytes:
    """The beginning of a segment, read as far as somebody asks for.

    `data` is an array for the whole segment, up to `limit`. What it holds is valid up to the last `fill`.
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
        self._buffer = np.empty(limit, np.uint8)
        self.data: NDArray[np.uint8] = self._buffer.view()
        # One type of array, so one compilation of each kernel.
        self.data.flags.writeable = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close(self._file)

    @property
    def filled(self) -> int:
        """How much of `data` is valid."""
        return self._filled

    def fill(self, end: int) -> None:
        """Read up to a place; a file that turns out to be shorter lowers `limit`."""
        end = min(-(-end // PAGE) * PAGE, self.limit)
        most = _PIECE
        while self._filled < end:
            at = self._filled
            size = min(end - at, most)
            try:
                piece = self._disk.pread(self._file, size, at)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                page_end = min(at // PAGE * PAGE + PAGE, end)
                if size > page_end - at:
                    most = page_end - at
                    continue
                self._lose(at, page_end, error)
                piece = bytes(page_end - at)
            if not piece:
                self.limit = at
                self.data = self.data[:at]
                return
            self._buffer[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            self._filled = at + len(piece)
            most = min(most * 2, _PIECE)

    def _lose(self, start: int, end: int, error: OSError) -> None:
        reason = f"cannot be read: {error.strerror or error}"
        log.warning("%s: %d bytes at byte %d %s", self.path, end - start, start, reason)
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
