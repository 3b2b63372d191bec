"""A folder on this machine as a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from wireloom.store.base import (
    TEMPORARY,
    AccessRefused,
    ObjectChanged,
    ObjectInfo,
    ObjectMissing,
    Store,
    StoreError,
    checked_key,
    checked_range,
)

_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
"""What a file system answers on which a file cannot have two names."""


class FolderStore(Store):
    """A folder on this machine. An object is a file; its etag is made of inode, time and size."""

    def __init__(self, folder: Path) -> None:
        """Use `open_store`."""
        self.folder = folder.absolute()
        self.url = str(self.folder)

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object: a link to a file that is complete and synced."""
        path = self._path(key)
        if path.exists():
            return False
        with self._file(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                with self._locked(path):
                    if path.exists():
                        return False
                    temporary.replace(path)
        _sync_folder(path.parent)
        return True

    def put(self, key: str, data: bytes) -> str:
        """Create or overwrite an object by renaming."""
        path = self._path(key)
        with self._file(path, data) as temporary:
            temporary.replace(path)
            _sync_folder(path.parent)
            return _info(key, path).etag

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Swap an object under a lock that all processes share."""
        path = self._path(key)
        with self._tell(key, "write"), self._locked(path):
            try:
                is_same = _info(key, path).etag == etag
            except FileNotFoundError:
                is_same = False
            if not is_same:
                raise ObjectChanged(f"{path}: somebody else has replaced or removed it")
            return self.put(key, data)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Hold the folder of an object against all other processes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.parent / f"{TEMPORARY}lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def get(self, key: str) -> bytes:
        """Read a file."""
        with self._tell(key, "read"):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Read a range of a file."""
        with self._tell(key, "read"), self._path(key).open("rb") as file:
            file.seek(start)
            return checked_range(file.read(max(end - start, 0)), start, end, str(self._path(key)))

    def head(self, key: str) -> ObjectInfo:
        """Look at a file."""
        with self._tell(key, "read"):
            return _info(key, self._path(key))

    def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """Walk through a folder."""
        for key in sorted(self._keys(prefix)):
            if key > after:
                # One that is removed meanwhile is none.
                with contextlib.suppress(FileNotFoundError):
                    yield _info(key, self.folder / key)

    def _keys(self, prefix: str) -> Iterator[str]:
        def fail(error: OSError) -> None:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise StoreError(f"{error.filename}: cannot list it: {error.strerror}")

        top = self.folder / checked_key(prefix) if prefix else self.folder
        for folder, _, names in os.walk(top, onerror=fail):
            base = Path(folder).relative_to(self.folder)
            yield from ((base / name).as_posix() for name in names if not name.startswith(TEMPORARY))

    def folders(self, prefix: str = "") -> tuple[str, ...]:
        """List one level."""
        try:
            with os.scandir(self.folder / checked_key(prefix) if prefix else self.folder) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise StoreError(f"{self.folder / prefix}: cannot list it: {error.strerror}") from None

    def delete(self, key: str) -> None:
        """Remove a file."""
        path = self._path(key)
        with self._tell(key, "delete"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
            _sync_folder(path.parent)

    def below(self, prefix: str) -> FolderStore:
        """A folder in this one."""
        return FolderStore(self.folder / checked_key(prefix))

    def delta_options(self) -> dict[str, str]:
        """None are needed."""
        return {}

    def delta_url(self, key: str = "") -> str:
        """The path."""
        return str(self.folder / key)

    def _path(self, key: str) -> Path:
        return self.folder / checked_key(key)

    @contextlib.contextmanager
    def _file(self, path: Path, data: bytes) -> Iterator[Path]:
        """A complete, synced file beside `path`; it is removed at the end if it is still there."""
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        with self._tell(str(path.relative_to(self.folder)), "write"):
            _make_folders(path.parent)
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _tell(self, key: str, verb: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(f"{self.folder / key}: there is no such object") from None
        except PermissionError as error:
            raise AccessRefused(f"{self.folder / key}: cannot {verb} it: {error.strerror}; let this user") from None
        except OSError as error:
            raise StoreError(f"{self.folder / key}: cannot {verb} it: {error.strerror}") from None


def _info(key: str, path: Path) -> ObjectInfo:
    status = path.stat()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key, status.st_size, etag, datetime.fromtimestamp(status.st_mtime, UTC))


def _make_folders(folder: Path) -> None:
    """Create a folder and those above it, durably."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
