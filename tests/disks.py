"""The real disk, with calls that fail, pages that cannot be read, or syncs that take long."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from wireloom.journal.disk import WRITE_SYNCED, Buffer, Disk, LocalDisk

PAGE = 4096


class FaultyDisk(LocalDisk):
    """Notes the calls that change something, and fails those that it is told to."""

    def __init__(self, failing: Mapping[str, int] | None = None) -> None:
        self.failing = dict(failing or {})
        """The error number, by the name of the call; `create` is an `open` that may create, `pwritev synced` a write that syncs."""
        self.calls: list[tuple[str, str]] = []
        """Names of calls, and of the files or folders they concern."""
        self._paths: dict[int, Path] = {}

    def _call(self, name: str, path: Path) -> None:
        self.calls.append((name, path.name))
        if name in self.failing:
            raise OSError(self.failing[name], os.strerror(self.failing[name]))

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._call("create", path)
        file = super().open(path, flags)
        self._paths[file] = path
        return file

    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        self._call("pwritev synced" if flags & WRITE_SYNCED else "pwritev", self._paths[file])
        return super().pwritev(file, buffers, at, flags)

    def sync(self, file: int) -> None:
        self._call("sync", self._paths[file])
        super().sync(file)

    def truncate(self, file: int, length: int) -> None:
        self._call("truncate", self._paths.get(file, Path("lock")))
        super().truncate(file, length)

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        super().unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        self._call("rename", new)
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder", path)
        super().sync_folder(path)

    def sync_all(self, path: Path) -> None:
        self._call("sync_all", path)
        super().sync_all(path)

    def make_folder(self, path: Path) -> None:
        self._call("make_folder", path)
        super().make_folder(path)


class BadSectors(LocalDisk):
    """A disk on which some pages of every file cannot be read."""

    def __init__(self, *pages: int, error: int = errno.EIO) -> None:
        self.pages = set(pages)
        self.error = error

    def pread(self, file: int, size: int, at: int) -> bytes:
        """As Linux does it: what stands before the bad page, then an error."""
        bad = [page * PAGE for page in self.pages if at < (page + 1) * PAGE and page * PAGE < at + size]
        if bad and min(bad) <= at:
            raise OSError(self.error, os.strerror(self.error))
        return super().pread(file, min(bad) - at if bad else size, at)

    pread_into = Disk.pread_into


class SlowDisk:
    """Every sync of file data, and every write that syncs, takes `seconds`; while it is `stalled`, it does not end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.entered = threading.Event()
        """Set once a sync is under way that does not end."""
        self._go_on = threading.Event()
        self._go_on.set()
        self._sync, self._write = os.fdatasync, os.pwritev
        monkeypatch.setattr(os, "fdatasync", self._slow_sync)
        monkeypatch.setattr(os, "pwritev", self._slow_write)

    def stall(self) -> None:
        """No sync that begins from now on ends."""
        self.entered.clear()
        self._go_on.clear()

    def go_on(self) -> None:
        """All syncs end."""
        self._go_on.set()

    def _wait(self) -> None:
        if not self._go_on.is_set():
            self.entered.set()
            self._go_on.wait(60)
        time.sleep(self.seconds)

    def _slow_sync(self, file: int) -> None:
        self._wait()
        self._sync(file)

    def _slow_write(self, file: int, buffers: Sequence[bytes], at: int, flags: int = 0) -> int:
        if flags & getattr(os, "RWF_DSYNC", 0):
            self._wait()
        return self._write(file, buffers, at, flags)
