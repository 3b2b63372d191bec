"""A disk whose syncs take as long as a test wants."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import pytest


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
