"""A disk in memory that simulates power cuts, errors, a full disk, slow calls and damaged bytes.

Theory of operation
-------------------
A file has three states: what programs read (`content`), what is durable (`durable`), and for each 512-byte sector that
changed since the last sync all its versions (`history`). The kernel may write any version of any sector at any time. So
after a power cut each sector has one of its versions, independently of other sectors. The same applies to the size. It
may have grown without the data; then the sectors contain zeros or old garbage. A sector is the smallest unit: a version
contains all its bytes at one moment.

A folder has the names that programs see and the names that are durable. All name changes are in one list. After a power
cut any subset of them may be on the disk, with one rule: a change of a name requires all earlier changes of that name.
A rename changes two names at once.

`sync` makes the content of one file durable, not its name. `sync_folder` makes names durable, not contents. A write
with WRITE_SYNCED makes its own sectors durable, and the size that they need, but no earlier writes. After a failed
`sync` the affected sectors are in doubt: programs still read them, a later `sync` succeeds without writing them, and a
power cut may lose them.

Example: a program writes "a" to sector 0, syncs, then writes "b" to sector 0 and "c" to sector 1. After a power cut
sector 0 contains "a" or "b", and sector 1 contains "c", zeros or garbage, or is missing: in any combination.

Copies share unchanged data (copy on write), so that ten thousand states cost little.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from wireloom.journal.disk import WRITE_SYNCED, Buffer, Disk, Status
from wireloom.testing.simulated_files import (
    NOTHING,
    SECTOR,
    Choices,
    Extreme,
    File,
    FileChange,
    Folder,
    Inode,
    Link,
    apply,
)

MUTATIONS = frozenset(
    ("open", "pwritev", "sync", "truncate", "unlink", "rename", "make_folder", "sync_folder", "lock"),
)
"""Operations that change what a power cut may leave. `open` and `lock` count if they create a file."""

_ROOT = 1
_MOST_LINKS = 40
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


class DiskCall(NamedTuple):
    """One call of an operation."""

    number: int
    operation: str
    path: Path
    at: int = 0
    size: int = 0
    flags: int = 0

    def __str__(self) -> str:
        return f"{self.number} {self.operation} {self.path.name} {self.at}+{self.size}"


@dataclass(slots=True)
class DiskFault:
    """Calls that fail: those of an operation for which `when` holds. The first `skip` pass, the next `times` fail."""

    operation: str
    error: int
    when: Callable[[DiskCall], bool] | None = None
    skip: int = 0
    times: int | None = 1
    """None: all further calls."""
    short: int | None = None
    """For a write with `error` 0: write only this many bytes, and return their number. An error writes nothing."""
    hits: int = 0

    def strikes(self, call: DiskCall) -> bool:
        """Whether this call fails."""
        if call.operation != self.operation or self.times == 0 or (self.when is not None and not self.when(call)):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


@dataclass(slots=True)
class _Handle:
    number: int
    path: Path
    flags: int
    locked: str = ""


@dataclass(slots=True)
class Recording:
    """The operations that changed a disk, and the state of the disk after each."""

    steps: list[tuple[DiskCall, SimulatedDisk]] = field(default_factory=list)

    def states_after(self, number: int, random: Random, count: int) -> Iterator[tuple[str, SimulatedDisk]]:
        """Possible states of the disk after a power cut that follows the operation with this number."""
        return self.steps[number][1].crash_states(random, count)


EXTREMES: tuple[tuple[str, Choices], ...] = (
    ("nothing", Extreme(data=False, names=lambda _at, _count: False)),
    ("everything", Extreme(data=True, names=lambda _at, _count: True)),
    ("only names", Extreme(data=False, names=lambda _at, _count: True)),
    ("only data", Extreme(data=True, names=lambda _at, _count: False)),
    ("names in reverse", Extreme(data=True, names=lambda at, count: at >= count // 2)),
    ("last name only", Extreme(data=False, names=lambda at, count: at == count - 1)),
    ("names and sizes", Extreme(data=False, names=lambda _at, _count: True, size=True)),
)


class SimulatedDisk(Disk):
    """The simulated disk. `before` is called before each operation, `after` after each that changes something."""

    def __init__(self) -> None:
        self.before: Callable[[DiskCall], None] | None = None
        self.after: Callable[[DiskCall], None] | None = None
        self.faults: list[DiskFault] = []
        self.calls = 0
        self._owner = object()
        self._inodes: dict[int, Inode] = {_ROOT: Folder(_ROOT, self._owner, {}, {})}
        self._changes: list[FileChange] = []
        self._handles: dict[int, _Handle] = {}
        self._last_inode = _ROOT
        self._last_handle = 1_000_000
        self._mutex = threading.RLock()

    # Faults, hooks, copies

    def fail(
        self,
        operation: str,
        error: int,
        when: Callable[[DiskCall], bool] | None = None,
        *,
        skip: int = 0,
        times: int | None = 1,
        short: int | None = None,
    ) -> DiskFault:
        """Make calls of an operation fail; see `DiskFault`."""
        fault = DiskFault(operation, error, when, skip, times, short)
        self.faults.append(fault)
        return fault

    def damage(self, path: Path, start: int, end: int) -> None:
        """Make every read of these bytes fail with EIO, permanently."""
        file = self._own(self._find(path).number)
        assert isinstance(file, File)
        file.unreadable += ((start, end),)

    def record(self) -> Recording:
        """Record the operations from now on, and the disk after each."""
        recording = Recording()
        self.after = lambda call: recording.steps.append((call, self.copy()))
        return recording

    def symlink(self, path: Path, target: Path) -> None:
        """Create a symbolic link, as another program would."""
        folder, name = self._place(path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        number = self._new_number()
        self._inodes[number] = Link(number, self._owner, target)
        self._change((folder.number, name, number))

    def copy(self) -> SimulatedDisk:
        """A disk in the same state, including open files, without hooks and faults."""
        with self._mutex:
            other = type(self)()
            other._inodes = dict(self._inodes)
            other._changes = list(self._changes)
            other._handles = {
                file: _Handle(each.number, each.path, each.flags, each.locked) for file, each in self._handles.items()
            }
            other._last_inode, other._last_handle, other.calls = self._last_inode, self._last_handle, self.calls
            self._owner = object()
            return other

    def kill(self) -> None:
        """Simulate the end of the process: its files are closed, and nothing is lost."""
        with self._mutex:
            for file in list(self._handles):
                self._close(file)

    # Power cuts

    def crash(self, random: Random) -> SimulatedDisk:
        """The disk after a power cut: one of the possible states."""
        return self.after_cut(Choices(random, self.old_sector))

    def crash_states(self, random: Random, count: int) -> Iterator[tuple[str, SimulatedDisk]]:
        """`count` states after a power cut, each with a name: first the extreme ones, then random ones."""
        for at in range(count):
            if at < len(EXTREMES):
                yield EXTREMES[at][0], self.after_cut(EXTREMES[at][1])
            else:
                yield f"random {at}", self.crash(random)

    def any_state(self, random: Random) -> tuple[str, SimulatedDisk]:
        """One random state after a power cut, often an extreme one, with its name."""
        if random.random() < 0.35:
            name, choices = random.choice(EXTREMES)
            return name, self.after_cut(choices)
        return "random", self.crash(random)

    def after_cut(self, choices: Choices) -> SimulatedDisk:
        """The disk after a power cut with these choices. Open files and locks are gone."""
        with self._mutex:
            self._owner = object()
            other = type(self)()
            folders = {number: dict(each.durable) for number, each in self._inodes.items() if isinstance(each, Folder)}
            lost = set[tuple[int, str]]()
            wanted = choices.of_names(self._changes) if self._changes else []
            for change, keep in zip(self._changes, wanted, strict=True):
                if keep and not change.names & lost:
                    apply(change, folders)
                else:
                    lost |= change.names
            other._inodes = {}
            waiting = [_ROOT]
            while waiting:
                number = waiting.pop()
                inode = self._inodes[number]
                if isinstance(inode, Folder):
                    names = folders[number]
                    inode = Folder(number, other._owner, names, dict(names))
                    waiting += names.values()
                elif isinstance(inode, File):
                    inode = inode.after_cut(choices, other._owner)
                    if inode.links != 1:
                        inode = inode.clone(other._owner)
                        inode.links = 1
                other._inodes[number] = inode
            other._last_inode, other._last_handle = self._last_inode, self._last_handle
            return other

    def old_sector(self, random: Random, sector: int) -> bytes:
        """Garbage that the file system may show in a sector: bytes of any file, also of a deleted one."""
        files = [each for each in self._inodes.values() if isinstance(each, File) and len(each.durable) > SECTOR]
        if not files:
            return NOTHING
        data = random.choice(files).durable
        start = (sector if random.random() < 0.5 else random.randrange(1 << 16)) % (len(data) // SECTOR) * SECTOR
        return data[start : start + SECTOR]

    # The interface `Disk`

    def open(self, path: Path, flags: int) -> int:
        """Open a file."""
        return self._open("open", path, flags)

    def _open(self, operation: str, path: Path, flags: int) -> int:
        call = self._begin(operation, path, flags=flags)
        with self._mutex:
            created = False
            if flags & os.O_CREAT:
                folder, name = self._place(path)
                number = folder.names.get(name)
                if number is not None and flags & os.O_EXCL:
                    raise _error(errno.EEXIST, path)
                if number is None:
                    created = True
                    number = self._new_number()
                    self._inodes[number] = File(number, self._owner)
                    self._change((folder.number, name, number))
            else:
                number = self._find(path).number
            inode = self._inodes[number]
            if isinstance(inode, Link):
                raise _error(errno.ELOOP, path)
            if isinstance(inode, Folder) and (flags & _ACCESS != os.O_RDONLY or flags & os.O_CREAT):
                raise _error(errno.EISDIR, path)
            if flags & os.O_TRUNC and isinstance(inode, File) and inode.size:
                created = True
                self._own_file(number).truncate(0)
            self._last_handle += 1
            self._handles[self._last_handle] = _Handle(number, path, flags)
            file = self._last_handle
        if created:
            self._done(call)
        return file

    def close(self, file: int) -> None:
        """Close a file."""
        self._begin("close", self._path_of(file))
        with self._mutex:
            self._close(file)

    def _close(self, file: int) -> None:
        self._handle(file)
        del self._handles[file]

    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        """Write. The changed sectors are not durable until a sync."""
        data = b"".join(buffers)
        call, fault = self._ask("pwritev", self._path_of(file), at=at, size=len(data), flags=flags)
        with self._mutex:
            handle = self._handle(file)
            if handle.flags & _ACCESS == os.O_RDONLY:
                raise _error(errno.EBADF, handle.path)
            if at < 0:
                raise _error(errno.EINVAL, handle.path)
            if fault is not None and fault.short is not None:
                data = data[: fault.short]
            is_synced = bool(flags and flags & WRITE_SYNCED)
            in_doubt = fault is not None and is_synced and fault.error == errno.EIO
            if data and (fault is None or fault.short is not None or in_doubt):
                inode = self._own_file(handle.number)
                inode.write(data, at)
                if is_synced and fault is None:
                    inode.sync_range(at, at + len(data))
                elif in_doubt:
                    inode.clean |= set(range(at // SECTOR, -(-(at + len(data)) // SECTOR)))
        self._done(call)
        if fault is not None and fault.error:
            raise _error(fault.error, handle.path)
        return len(data)

    def pread(self, file: int, size: int, at: int) -> bytes:
        """Read."""
        self._begin("pread", self._path_of(file), at=at, size=size)
        with self._mutex:
            handle = self._handle(file)
            inode = self._inodes[handle.number]
            if handle.flags & _ACCESS == os.O_WRONLY:
                raise _error(errno.EBADF, handle.path)
            if at < 0 or size < 0:
                raise _error(errno.EINVAL, handle.path)
            if not isinstance(inode, File):
                raise _error(errno.EISDIR, handle.path)
            data = bytes(memoryview(inode.content)[at : at + size])
            for start, end in inode.unreadable:
                if at < end and start < at + len(data):
                    if start <= at:
                        raise _error(errno.EIO, handle.path)
                    data = data[: start - at]
            return data

    def sync(self, file: int) -> None:
        """Make the content durable."""
        path = self._path_of(file)
        call, fault = self._ask("sync", path)
        with self._mutex:
            number = self._handle(file).number
            if isinstance(self._inodes[number], File):
                inode = self._own_file(number)
                if fault is None:
                    inode.sync()
                elif fault.error == errno.EIO:
                    inode.fail_sync()
        self._done(call)
        if fault is not None:
            raise _error(fault.error, path)

    def truncate(self, file: int, length: int) -> None:
        """Truncate or extend a file."""
        path = self._path_of(file)
        call = self._begin("truncate", path, size=length)
        with self._mutex:
            handle = self._handle(file)
            if length < 0 or handle.flags & _ACCESS == os.O_RDONLY:
                raise _error(errno.EINVAL, path)
            self._own_file(handle.number).truncate(length)
        self._done(call)

    def status(self, file: int) -> Status:
        """The status of an open file."""
        self._begin("status", self._path_of(file))
        with self._mutex:
            return _status(self._inodes[self._handle(file).number])

    def look(self, path: Path) -> Status:
        """The status of a path."""
        self._begin("look", path)
        with self._mutex:
            return _status(self._find(path))

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        call = self._begin("unlink", path)
        with self._mutex:
            folder, name = self._place(path)
            number = folder.names.get(name)
            if number is None:
                raise _error(errno.ENOENT, path)
            if isinstance(self._inodes[number], Folder):
                raise _error(errno.EISDIR, path)
            self._change((folder.number, name, None))
            self._lose(number)
        self._done(call)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file."""
        call = self._begin("rename", old)
        with self._mutex:
            source, old_name = self._place(old)
            target, new_name = self._place(new)
            number = source.names.get(old_name)
            if number is None:
                raise _error(errno.ENOENT, old)
            replaced = target.names.get(new_name)
            if replaced == number:
                return
            moved = self._inodes[number]
            if isinstance(moved, Folder) and number in self._numbers_above(new):
                raise _error(errno.EINVAL, new)
            if replaced is not None:
                there = self._inodes[replaced]
                if isinstance(there, Folder) and not isinstance(moved, Folder):
                    # Check this first, as the kernel does: whether one path contains the other.
                    raise _error(errno.ENOTEMPTY if replaced in self._numbers_above(old) else errno.EISDIR, new)
                if isinstance(moved, Folder) and not isinstance(there, Folder):
                    raise _error(errno.ENOTDIR, new)
                if isinstance(there, Folder) and there.names:
                    raise _error(errno.ENOTEMPTY, new)
            self._change((source.number, old_name, None), (target.number, new_name, number))
            if replaced is not None:
                self._lose(replaced)
        self._done(call)

    def make_folder(self, path: Path) -> None:
        """Create a folder."""
        call = self._begin("make_folder", path)
        with self._mutex:
            if not path.name:
                raise _error(errno.EEXIST, path)
            folder, name = self._place(path)
            if name in folder.names:
                raise _error(errno.EEXIST, path)
            number = self._new_number()
            self._inodes[number] = Folder(number, self._owner, {}, {})
            self._change((folder.number, name, number))
        self._done(call)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        call = self._begin("sync_folder", path)
        with self._mutex:
            number = self._folder(path).number
            needed, kept, done = set[tuple[int, str]](), list[FileChange](), list[FileChange]()
            for change in reversed(self._changes):
                names = change.names
                if names & needed or any(folder == number for folder, _ in names):
                    needed |= names
                    done.append(change)
                else:
                    kept.append(change)
            for change in reversed(done):
                owned = {folder: self._own_folder(folder).durable for folder, _ in change.names}
                apply(change, owned)
            self._changes = kept[::-1]
            if done:
                self._collect()
        self._done(call)

    def list(self, path: Path) -> list[str]:
        """The names in a folder."""
        self._begin("list", path)
        with self._mutex:
            return list(self._folder(path).names)

    def lock(self, path: Path, *, shared: bool = False) -> int:
        """Open a file and lock it."""
        file = self._open("lock", path, os.O_RDONLY if shared else os.O_CREAT | os.O_RDWR)
        with self._mutex:
            handle = self._handles[file]
            others = {each.locked for each in self._handles.values() if each.number == handle.number} - {""}
            if others and not (shared and others == {"shared"}):
                self._close(file)
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
            handle.locked = "shared" if shared else "exclusive"
            return file

    # For tests: whole files

    def read_file(self, path: Path) -> bytes:
        """The content of a file, as programs read it."""
        inode = self._find(path)
        assert isinstance(inode, File)
        return bytes(inode.content)

    def write_file(self, path: Path, data: bytes) -> None:
        """Create a durable file, as if it had always existed."""
        file = self.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        self.pwritev(file, [data], 0)
        self.sync(file)
        self.close(file)
        self.sync_folder(path.parent)

    def files(self, path: Path = Path("/")) -> dict[str, bytes]:
        """Every file below a folder by its path, to compare disks."""
        found: dict[str, bytes] = {}
        with suppress(FileNotFoundError):
            for name, number in sorted(self._folder(path).names.items()):
                inode = self._inodes[number]
                if isinstance(inode, Folder):
                    found |= self.files(path / name)
                elif isinstance(inode, File):
                    found[str(path / name)] = bytes(inode.content)
        return found

    @property
    def pending(self) -> int:
        """How many changes a power cut may lose: sectors, sizes and names."""
        files = [each for each in self._inodes.values() if isinstance(each, File)]
        return len(self._changes) + sum(len(each.history) + len(each.sizes) for each in files)

    # Internals

    def _ask(
        self, operation: str, path: Path, *, at: int = 0, size: int = 0, flags: int = 0
    ) -> tuple[DiskCall, DiskFault | None]:
        self.calls += 1
        call = DiskCall(self.calls, operation, path, at, size, flags)
        if self.before is not None:
            self.before(call)
        return call, next((each for each in self.faults if each.strikes(call)), None)

    def _begin(self, operation: str, path: Path, *, at: int = 0, size: int = 0, flags: int = 0) -> DiskCall:
        call, fault = self._ask(operation, path, at=at, size=size, flags=flags)
        if fault is not None:
            raise _error(fault.error, path)
        return call

    def _done(self, call: DiskCall) -> None:
        if self.after is not None:
            self.after(call)

    def _handle(self, file: int) -> _Handle:
        try:
            return self._handles[file]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _path_of(self, file: int) -> Path:
        return self._handle(file).path

    def _new_number(self) -> int:
        self._last_inode += 1
        return self._last_inode

    def _own(self, number: int) -> Inode:
        inode = self._inodes[number]
        if inode.owner is not self._owner:
            inode = self._inodes[number] = inode.clone(self._owner)
        return inode

    def _own_file(self, number: int) -> File:
        inode = self._own(number)
        assert isinstance(inode, File)
        return inode

    def _own_folder(self, number: int) -> Folder:
        inode = self._own(number)
        assert isinstance(inode, Folder)
        return inode

    def _change(self, *entries: tuple[int, str, int | None]) -> None:
        change = FileChange(entries)
        apply(change, {folder: self._own_folder(folder).names for folder, _ in change.names})
        self._changes.append(change)

    def _lose(self, number: int) -> None:
        inode = self._own(number)
        if isinstance(inode, File):
            inode.links = 0

    def _collect(self) -> None:
        """Remove files that have no name, now or after a power cut, and are not open."""
        needed = {each.number for each in self._handles.values()} | {_ROOT}
        needed |= {number for change in self._changes for _, _, number in change.entries if number is not None}
        for each in self._inodes.values():
            if isinstance(each, Folder):
                needed |= set(each.names.values()) | set(each.durable.values())
        if len(needed) < len(self._inodes):
            self._inodes = {number: each for number, each in self._inodes.items() if number in needed}

    def _place(self, path: Path) -> tuple[Folder, str]:
        if not path.name:
            raise _error(errno.EISDIR, path)
        return self._folder(path.parent), path.name

    def _folder(self, path: Path) -> Folder:
        inode = self._find(path, follow=True)
        if not isinstance(inode, Folder):
            raise _error(errno.ENOTDIR, path)
        return inode

    def _numbers_above(self, path: Path) -> set[int]:
        return {self._folder(each).number for each in path.parents}

    def _find(self, path: Path, *, follow: bool = False, links: int = 0) -> Inode:
        inode = self._inodes[_ROOT]
        parts = [part for part in str(path).split("/") if part]
        for at, part in enumerate(parts):
            if not isinstance(inode, Folder):
                raise _error(errno.ENOTDIR, path)
            number = inode.names.get(part)
            if number is None:
                raise _error(errno.ENOENT, path)
            inode = self._inodes[number]
            if isinstance(inode, Link) and (follow or at < len(parts) - 1):
                if links >= _MOST_LINKS:
                    raise _error(errno.ELOOP, path)
                inode = self._find(Path("/", *parts[:at]) / inode.target, follow=True, links=links + 1)
        return inode


def _status(inode: Inode) -> Status:
    if isinstance(inode, File):
        return Status(inode.size, inode.number, inode.links)
    if isinstance(inode, Link):
        return Status(len(str(inode.target)), inode.number, 1, is_link=True)
    return Status(0, inode.number, 2, is_folder=True)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
