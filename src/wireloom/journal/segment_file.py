"""The segment that is being written: its file, and the committed-length file beside it.

Implements the order of steps in "Committing and recovery" of docs/reference/journal-format.md.

**The invariant.** A segment without a committed-length file is sealed. So that file is created before the segment, and
deleted after the segment is complete and synced. Each step is synced before the next. Then no crash can make an
incomplete segment look sealed.
"""

from __future__ import annotations

import contextlib
import errno
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.disk import (
    CREATE,
    NO_SPACE,
    NOT_SUPPORTED,
    WRITE_SYNCED,
    Disk,
    read_range,
    replace_file,
    write_all,
)
from wireloom.journal.segment import SYNCED, UNSYNCED, committed_path

_SMALL, _FEW = 16 * 1024, 32
"""A commit up to this many bytes is small. After so many small commits in a row, the file is padded."""
_PAGES_AHEAD = 64
"""Pages of padding that are written at a time."""
_LOOK_EVERY = 0.25
"""Seconds between two checks whether somebody deleted or moved the files."""


class SegmentFile:
    """The segment being written. Every method may raise OSError; after that, only `abandon` may be called.

    If a file has grown, a sync takes longer: the file system must store the new size, too. So after several small
    commits in a row, padding extends the file by many pages at once. The next commits overwrite the padding.
    """

    def __init__(self, path: Path, disk: Disk, *, sync: bool) -> None:
        self.path = path
        self.committed = 0
        self.sync = sync
        self._disk = disk
        self._small = 0
        """Small commits in a row."""
        self._padded = 0
        """Where the padding ends; 0 while there is none."""
        self._synced_writes = WRITE_SYNCED
        self._looked = time.monotonic()
        self._data = -1
        self._length = disk.open(committed_path(path), CREATE)
        try:
            self._state_length(0)
            disk.sync_folder(path.parent)
            self._data = disk.open(path, CREATE)
            disk.sync_folder(path.parent)
        except OSError:
            self.abandon()
            raise

    def store(self, pieces: Sequence[blocks.Buffer], size: int) -> None:
        """Write, sync, then write the new committed length."""
        end = self.committed + size
        padding = self._padding(end, size) if self.sync else b""
        is_synced = False
        try:
            if padding:
                buffers = (*pieces, padding)
                is_synced = write_all(
                    self._disk, self._data, buffers, self.committed, self._synced_writes, size + len(padding)
                )
            else:
                write_all(self._disk, self._data, pieces, self.committed, 0, size)
        except OSError as error:
            if not padding or error.errno not in NO_SPACE | NOT_SUPPORTED:
                raise
            if error.errno in NOT_SUPPORTED:
                self._synced_writes = 0
            # The disk may have room for the blocks, but not for padding: never pad this segment again.
            self._small, self._padded = -sys.maxsize, 0
            self._disk.truncate(self._data, self.committed)
            write_all(self._disk, self._data, pieces, self.committed)
        if self.sync and not is_synced:
            self._disk.sync(self._data)
        if time.monotonic() - self._looked > _LOOK_EVERY:
            self.check()
        self._state_length(end)
        self.committed = end

    def check(self) -> None:
        """Raise OSError if somebody deleted or moved the segment, its committed-length file, or the folder.

        The check is not made with every commit: reading the status of a file makes the next write to it slower.
        """
        disk = self._disk
        # If this raises, the next commit checks again.
        self._looked = -math.inf
        if not (disk.status(self._data).links and disk.status(self._length).links):
            raise OSError(errno.ENOENT, f"{self.path.name} was deleted by somebody while it was being written")
        for path, file in ((self.path, self._data), (committed_path(self.path), self._length)):
            try:
                inode = disk.look(path).inode
            except FileNotFoundError:
                inode = -1
            if inode != disk.status(file).inode:
                raise OSError(
                    errno.ESTALE, f"{path.name} or its folder was moved by somebody while it was being written"
                )
        self._looked = time.monotonic()

    def _padding(self, end: int, size: int) -> bytes:
        """The padding after a commit: up to the next page of padding, and new pages if none are left."""
        self._small = self._small + 1 if size <= _SMALL else min(self._small, 0)
        often = self._small > _FEW
        if not often and end >= self._padded:
            return b""
        padding = blocks.filler(end)
        if end + len(padding) > self._padded:
            if often:
                padding += blocks.PAGE_OF_PADDING * _PAGES_AHEAD
            self._padded = end + len(padding)
        return padding

    def _state_length(self, length: int) -> None:
        self._disk.pwritev(self._length, [b"%020d%b" % (length, SYNCED if self.sync else UNSYNCED)], 0)

    def seal(self) -> None:
        """Seal the segment: it will not change any more."""
        if self._padded > self.committed:
            self._disk.truncate(self._data, self.committed)
        if not self.sync or self._padded:
            self._disk.sync(self._data)
        self.check()
        self.close()
        self._disk.unlink(committed_path(self.path))
        self._disk.sync_folder(self.path.parent)

    def abandon(self) -> None:
        """After a failure: cut off the uncommitted bytes, and seal the segment if the disk allows it.

        If it does not, the committed-length file stays. Readers then do not read beyond that length, and the next
        recovery seals the segment. The head of the next segment names the last packet id of this one. If somebody
        deleted the segment, its committed bytes are written again from the open file: they were acknowledged.

        A segment whose commits were not synced is not sealed here. After a failed sync, the next sync may succeed
        without writing the bytes, so success would prove nothing.
        """
        try:
            if self.committed and not self._disk.status(self._data).links:
                self._write_again()
            elif self.committed == 0:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self.path)
                # Delete the segment before its committed-length file: without that file it would count as sealed.
                self._disk.sync_folder(self.path.parent)
            else:
                self._disk.truncate(self._data, self.committed)
                self._disk.sync(self._data)
                if not self.sync:
                    return
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(committed_path(self.path))
        except OSError:
            return
        finally:
            self.close()

    def _write_again(self) -> None:
        """Write the committed bytes of a deleted segment to a new file of the same name."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(committed_path(self.path))
        replace_file(self.path, read_range(self._disk, self._data, 0, self.committed), self._disk)

    def close(self) -> None:
        """Close the files."""
        for file in (self._data, self._length):
            if file >= 0:
                with contextlib.suppress(OSError):
                    self._disk.close(file)
        self._data = self._length = -1
