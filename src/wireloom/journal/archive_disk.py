"""A journal folder and its archive as one disk: readers find archived segments where local ones are gone.

`Tail`, `read_all`, `verify` and the others take a `Disk`. With an `ArchiveDisk` they see every segment of the journal
once, in order: the local one where there is one, else the archived one. Archived segments are sealed and read-only.
Their frames are fetched as they are read, a few are kept. Everything else goes to the local disk.

If the store cannot be reached, only readers of archived segments get an error. Until the archive has been listed for
the first time, its segments are unknown. Meanwhile a placeholder that cannot be opened stands before the first local
segment. So a reader of earlier messages gets an error, and not silently fewer messages.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from wireloom.journal.archive import Archive
from wireloom.journal.archive_format import ArchivedSegment, Index
from wireloom.journal.disk import LOCAL, READ, Buffer, Disk, Status
from wireloom.journal.identity import load_identity
from wireloom.journal.segment import REFUSED, first_packet_id, is_segment, segment_name
from wireloom.journal.state import StateDamaged, load_state, save_state
from wireloom.model import JournalError
from wireloom.store import StoreError, open_store

ARCHIVE_FILE = "archive.json"
"""In a journal folder: the URL of its archive."""
_FIRST_FILE = 1 << 40
"""Numbers of open archived segments begin here, far above those of files."""
_BREAK = 2.0
"""Seconds for which nobody reads from a store that has just failed."""
_PATIENCE = 10.0
"""Seconds before a list that failed is asked for again."""
_UNKNOWN = 0
"""The packet id in the name of the segment that stands for an archive which was never listed."""


class ArchiveDisk(Disk):
    """A disk on which the folder of one journal also holds what is archived of it."""

    def __init__(self, folder: Path, archive: Archive, local: Disk = LOCAL, *, archive_only: bool = False) -> None:
        """`archive_only`: there is no such folder, only the archive."""
        self.archive = archive
        self._archive_only = archive_only
        self._folder = folder.absolute()
        self._local = local
        self._numbers = itertools.count(_FIRST_FILE)
        self._open: dict[int, ArchivedSegment] = {}
        self._listing = threading.Lock()
        self._read_after = 0.0
        """When a store that failed may be asked again."""
        self._look_after, self._why = 0.0, "ask again"
        """When a list that failed may be asked for again, and why it failed."""

    # What archived segments are

    def _part(self, path: Path) -> bool | None:
        """Whether a path is the folder of refused bytes (True) or the journal's own (False); None if neither."""
        absolute = path.absolute()
        if absolute == self._folder:
            return False
        return True if absolute == self._folder / REFUSED else None

    def _archived(self, path: Path) -> ArchivedSegment | None:
        """The archived segment of this name; None if there is none. JournalError if the archive cannot be read."""
        part = self._part(path.parent)
        if part is None or not is_segment(path):
            return None
        self._look()
        segment = self.archive.find(path.name, refused=part)
        if segment is None:
            return None
        with self._reading(path.name):
            return self.archive.open(segment)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Ask the store; not while it has just failed, so that many readers do not all wait for it."""
        if time.monotonic() < self._read_after:
            raise JournalError(f"{name}: cannot be read from the archive: it is away")
        try:
            yield
        except StoreError as error:
            self._read_after = time.monotonic() + _BREAK
            raise JournalError(f"{name}: cannot be read from the archive: {error}") from None

    def _look(self) -> bool:
        """List the archive, if it was never listed; returns whether it was. Failures are remembered for a while."""
        if not self.archive.is_known:
            with self._listing:
                if time.monotonic() >= self._look_after:
                    try:
                        self.archive.refresh()
                    except StoreError as error:
                        self._why = str(error)
                        self._look_after = time.monotonic() + _PATIENCE
        return self.archive.is_known

    def list_after(self, path: Path, name: str) -> Sequence[str]:
        """The names in a folder behind one; in the journal's also those of archived segments."""
        part = self._part(path)
        found = () if self._archive_only else self._local.list_after(path, name)
        if part is None:
            return found
        local = {each[:20] for each in found if is_segment(Path(each))}
        if self._look():
            return [*found, *(each for each in self.archive.names(refused=part, after=name) if each[:20] not in local)]
        first = min(local, default="")
        if not part and not name and (not first or int(first) > 1):
            # Something was before it, and nobody knows what.
            return [*found, segment_name(_UNKNOWN, self.archive.identity.epoch)]
        return found

    def name_since(self, path: Path, time_ns: int) -> str:
        """The first segment that may hold blocks of that time or later, as far as the archive's indexes tell."""
        if self._part(path) is not False or not self._look():
            return ""
        with contextlib.suppress(StoreError):
            return self.archive.name_since(time_ns)
        return ""

    def is_remote(self, path: Path) -> bool:
        """Whether a segment is in the archive only, or no segment is named yet."""
        try:
            self._local.look(path)
        except FileNotFoundError:
            return True
        return self._part(path) is not None

    def index_of(self, path: Path) -> Index | None:
        """The index of a segment that is not on the local disk; None for one that is."""
        try:
            self._local.look(path)
        except FileNotFoundError:
            return self._found(path).index
        return None

    # Files

    def open(self, path: Path, flags: int) -> int:
        """Open a file, or an archived segment for reading."""
        try:
            return self._local.open(path, flags)
        except FileNotFoundError:
            if flags != READ:
                raise
            found = self._found(path)
        number = next(self._numbers)
        self._open[number] = found
        return number

    def _found(self, path: Path) -> ArchivedSegment:
        found = self._archived(path)
        if found is None:
            if is_segment(path) and first_packet_id(path) == _UNKNOWN:
                raise JournalError(f"what was before {self._folder} is archived, and the archive is away: {self._why}")
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found

    def close(self, file: int) -> None:
        """Close it."""
        if self._open.pop(file, None) is None:
            self._local.close(file)

    def pread(self, file: int, size: int, at: int) -> bytes:
        """Read."""
        archived = self._open.get(file)
        if archived is None:
            return self._local.pread(file, size, at)
        with self._reading(archived.name):
            return archived.read(at, at + size)

    def pread_into(self, file: int, buffer: memoryview, at: int) -> int:
        """Read into a buffer."""
        if file in self._open:
            return super().pread_into(file, buffer, at)
        return self._local.pread_into(file, buffer, at)

    def status(self, file: int) -> Status:
        """What an open file is."""
        archived = self._open.get(file)
        return self._local.status(file) if archived is None else Status(archived.size, 0, 1)

    def look(self, path: Path) -> Status:
        """What stands under a name."""
        try:
            return self._local.look(path)
        except FileNotFoundError:
            return Status(self._found(path).size, 0, 1)

    def sync(self, file: int) -> None:
        """An archived segment is where it should be."""
        if file not in self._open:
            self._local.sync(file)

    # Everything else is the local disk's

    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        """Write."""
        return self._local.pwritev(file, buffers, at, flags)

    def truncate(self, file: int, length: int) -> None:
        """Cut."""
        self._local.truncate(file, length)

    def unlink(self, path: Path) -> None:
        """Remove a local name."""
        self._local.unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""
        self._local.rename(old, new)

    def make_folder(self, path: Path) -> None:
        """Create a folder."""
        self._local.make_folder(path)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in it."""
        self._local.sync_folder(path)

    def lock(self, path: Path, *, shared: bool = False) -> int:
        """Lock."""
        return self._local.lock(path, shared=shared)

    def list(self, path: Path) -> list[str]:
        """The names in a folder; in the journal's also those of archived segments."""
        return [*self.list_after(path, "")]


def remember_archive(folder: Path, url: str) -> None:
    """Write into a journal folder where its archive is, so that readers find it."""
    with contextlib.suppress(StateDamaged):
        if load_state(folder / ARCHIVE_FILE) == {"url": url}:
            return
    save_state(folder / ARCHIVE_FILE, {"url": url})


def disk_for(folder: Path) -> Disk:
    """The disk with which a journal folder is read: with its archive, if it has one.

    A hub writes the URL of its archive into the folder. Credentials are those of whoever reads.
    """
    try:
        stated = load_state(folder / ARCHIVE_FILE)
        identity = None if stated is None else load_identity(folder)
    except StateDamaged:
        return LOCAL
    if stated is None or identity is None:
        return LOCAL
    return ArchiveDisk(folder, Archive(open_store(str(stated["url"])), identity))
