"""Key and trust files that may change while we run: read again when they do, so that keys can be rotated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from wireloom.model import ConfigError
from wireloom.protocols.mesh.identity import Identity, load_identity
from wireloom.protocols.mesh.trust import TrustStore, load_trust

LOG = logging.getLogger("wireloom.mesh")
LOOK_EVERY = 1.0

T = TypeVar("T")


class Watched(Generic[T]):
    """What a file holds; looked at again at most once a second."""

    def __init__(self, path: str | Path, load: Callable[[Path], T]) -> None:
        self.path = Path(path)
        self._load = load
        self._stamp = self._look()
        self.value = load(self.path)
        self._looked = 0.0
        self.failures = 0
        """How often the file had changed and could not be read; what it held before stays in force."""

    def _look(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def refresh(self, now: float) -> bool:
        """Read the file again if it has changed; True when it had."""
        if abs(now - self._looked) < LOOK_EVERY:
            return False
        self._looked = now
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.value = self._load(self.path)
        except ConfigError as error:
            self.failures += 1
            LOG.warning("%s; what was read before stays in force", error)
            return False
        return True


def load_trust_file(path: str | Path) -> Watched[TrustStore]:
    """A trust file that is read again when it changes."""
    return Watched(path, load_trust)


def load_key_file(path: str | Path) -> Watched[Identity]:
    """A key file that is read again when it changes."""
    return Watched(path, load_identity)
