"""The disk, as everything that keeps state sees it: a small interface, and the operating system behind it.

Segments, committed lengths, recovery, readers, retention, cursors and last values touch files through a `Disk` and in
no other way. So tests can run all of them on a disk that fails, is slow, or loses its power between two calls.

Two rules hold for every implementation. A name is created, replaced or removed for good only once its folder was synced
(`sync_folder`). Bytes are there for good only once their file was synced (`sync`).
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

CREATE = os.O_CREAT | os.O_RDWR | os.O_EXCL
"""Flags for `open`: a file that must not be there yet."""
CHANGE = os.O_RDWR
READ = os.O_RDONLY
WRITE_SYNCED = getattr(os, "RWF_DSYNC", 0)
"""A flag for `pwritev`: return when the disk has the bytes. 0 where the operating system has no such thing."""
NOT_SUPPORTED = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))

_PIECE = 8 * 1024 * 1024
"""Bytes that one call reads at most."""
_SECTOR = 4096
_MOST_BUFFERS = 1024
"""Buffers that one call writes at most."""


class Status(NamedTuple):
    """What a file or a folder is."""

    size: int
    inode: int
    links: int
    """Names it has; 0 once somebody deleted it."""
    is_folder: bool = False
    is_link: bool = False
    """Whether it is a symbolic link."""


class Disk(abc.ABC):
    """Files and folders. Everything raises OSError where the operating system would."""

    @abc.abstractmethod
    def open(self, path: Path, flags: int) -> int:
        """Open a file, readable by its owner only if this creates it. A symbolic link is refused (ELOOP)."""

    @abc.abstractmethod
    def close(self, file: int) -> None:
        """Let go of an open file."""

    @abc.abstractmethod
    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        """Write at a place; returns how many bytes that were, which may be fewer than given."""

    @abc.abstractmethod
    def pread(self, file: int, size: int, at: int) -> bytes:
        """Read at most so many bytes from a place; none at the end."""

    def pread_into(self, file: int, buffer: memoryview, at: int) -> int:
        """Read from a place into a buffer; returns how many bytes that were, 0 at the end."""
        piece = self.pread(file, len(buffer), at)
        buffer[: len(piece)] = piece
        return len(piece)

    @abc.abstractmethod
    def sync(self, file: int) -> None:
        """Return when the disk has the file's bytes and its size."""

    @abc.abstractmethod
    def truncate(self, file: int, length: int) -> None:
        """Cut a file, or lengthen it with zeros."""

    @abc.abstractmethod
    def status(self, file: int) -> Status:
        """What an open file is."""

    @abc.abstractmethod
    def look(self, path: Path) -> Status:
        """What stands under a name, without following a symbolic link; FileNotFoundError if nothing does."""

    @abc.abstractmethod
    def unlink(self, path: Path) -> None:
        """Remove a name."""

    @abc.abstractmethod
    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of whatever had that name."""

    @abc.abstractmethod
    def make_folder(self, path: Path) -> None:
        """Create one folder, for its owner only; FileExistsError if it is there."""

    @abc.abstractmethod
    def sync_folder(self, path: Path) -> None:
        """Return when the disk has the names in a folder."""

    def sync_all(self, path: Path) -> None:
        """Return when the disk has everything on the file system of a folder, whoever wrote it."""
        os.sync()

    @abc.abstractmethod
    def list(self, path: Path) -> list[str]:
        """The names in a folder, in no particular order."""

    def list_after(self, path: Path, name: str) -> Sequence[str]:
        """Those of them that come behind a name in order."""
        return [each for each in self.list(path) if each > name]

    def is_remote(self, path: Path) -> bool:
        """Whether a segment is not on this machine, so that reading it may take long."""
        return False

    def name_since(self, path: Path, time_ns: int) -> str:
        """The name of a segment in a folder before which all are older than a time; empty if nobody knows."""
        return ""

    @abc.abstractmethod
    def lock(self, path: Path, *, shared: bool = False) -> int:
        """Open a file and lock it; `close` gives the lock back. BlockingIOError while another process has it."""


class LocalDisk(Disk):
    """The files of this machine."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, file: int) -> None:
        """Close it."""
        os.close(file)

    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        """Write."""
        return os.pwritev(file, buffers, at, flags)

    def pread(self, file: int, size: int, at: int) -> bytes:
        """Read."""
        return os.pread(file, size, at)

    def pread_into(self, file: int, buffer: memoryview, at: int) -> int:
        """Read without a copy."""
        return os.preadv(file, [buffer], at)

    def sync(self, file: int) -> None:
        """Sync data and size, not the times of the file."""
        os.fdatasync(file)

    def truncate(self, file: int, length: int) -> None:
        """Cut."""
        os.ftruncate(file, length)

    def status(self, file: int) -> Status:
        """Ask for the status."""
        return _status(os.fstat(file))

    def look(self, path: Path) -> Status:
        """Ask for the status."""
        return _status(os.lstat(path))

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""
        old.replace(new)

    def make_folder(self, path: Path) -> None:
        """Create a folder."""
        path.mkdir(0o700)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in it."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def sync_all(self, path: Path) -> None:
        """Sync its file system, or all of them where that is not possible."""
        if _syncfs is None:
            os.sync()
            return
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(folder):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(folder)

    def list(self, path: Path) -> list[str]:
        """Read the names in it."""
        with os.scandir(path) as entries:
            return [entry.name for entry in entries]

    def lock(self, path: Path, *, shared: bool = False) -> int:
        """Lock by `flock`."""
        file = self.open(path, os.O_RDONLY if shared else os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        return file


_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def _status(found: os.stat_result) -> Status:
    kind = found.st_mode & 0o170000
    return Status(found.st_size, found.st_ino, found.st_nlink, kind == 0o040000, kind == 0o120000)


LOCAL = LocalDisk()
"""The disk that is meant where none is named."""


def read_range(disk: Disk, file: int, start: int, end: int) -> bytes:
    """The bytes of an open file between two places; fewer if it ends before."""
    pieces = []
    while start < end:
        piece = disk.pread(file, min(end - start, _PIECE), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_around(disk: Disk, file: int, start: int, end: int) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of an open file between two places, and which parts of them cannot be read: zeros stand there."""
    try:
        return read_range(disk, file, start, end), []
    except OSError:
        pieces: list[bytes] = []
        faults: list[tuple[int, int]] = []
        end = min(end, disk.status(file).size)
        while start < end:
            stop = min(end, start + _SECTOR - start % _SECTOR)
            try:
                piece = disk.pread(file, stop - start, start)
            except OSError:
                piece = bytes(stop - start)
                if faults and faults[-1][1] == start:
                    faults[-1] = faults[-1][0], stop
                else:
                    faults.append((start, stop))
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces), faults


def write_all(
    disk: Disk, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0, total: int | None = None
) -> bool:
    """Write buffers one behind the other, however many calls that takes; True if `flags` held for all of it.

    `total` is the size of all buffers, for who knows it.
    """
    held = bool(flags)
    if total is not None and len(buffers) <= _MOST_BUFFERS:
        written = disk.pwritev(file, buffers, at, flags)
        if written == total:
            return held
        held, flags, at = False, 0, at + written
        buffers = [memoryview(b"".join(buffers))[written:]]
    for start in range(0, len(buffers), _MOST_BUFFERS):
        some = buffers[start : start + _MOST_BUFFERS]
        size = sum(map(len, some))
        written = disk.pwritev(file, some, at, flags)
        if written < size:
            held = False
            rest = memoryview(b"".join(some))
            while written < size:
                written += disk.pwritev(file, [rest[written:]], at + written)
        at += size
    return held


def replace_file(path: Path, content: Buffer, disk: Disk = LOCAL) -> None:
    """Replace a file. When this returns, the new content survives a power cut; if it raises, the old does."""
    replace_file_by_parts(path, (content,), disk)


def replace_file_by_parts(path: Path, parts: Iterable[Buffer], disk: Disk = LOCAL) -> int:
    """The same with content that is made part by part; returns the size of the file."""
    draft = path.with_name(f".{os.getpid()}.{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(draft)
    file = disk.open(draft, CREATE)
    try:
        try:
            size = 0
            for part in parts:
                write_all(disk, file, [part], size)
                size += len(part)
            disk.sync(file)
        finally:
            disk.close(file)
        disk.rename(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(draft)
        raise
    disk.sync_folder(path.parent)
    return size


def make_folders(disk: Disk, path: Path) -> None:
    """Create a folder and those above it that are missing, for good: each new name is synced."""
    if path.parent != path:
        try:
            found = disk.look(path)
            if found.is_folder or found.is_link:
                return
        except FileNotFoundError:
            make_folders(disk, path.parent)
    try:
        disk.make_folder(path)
    except FileExistsError:
        return
    disk.sync_folder(path.parent)
