"""Archives sealed segments while the hub runs, on its own thread, and reports its state.

The thread claims the archive, lists it, and uploads every sealed segment that is missing, the oldest first. Then it
checks again every second. It retries a failed upload after `FIRST_WAIT` seconds, and later after up to `LONGEST_WAIT`.
Meanwhile the hub stays ready, its segments stay on the disk, and the limits of the disk apply.

Two errors stop archiving until an operator restarts the hub: different bytes under the name of a segment (`Conflict`),
and another hub with the same id (`FencedOff`). From then on no segment is removed from the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.hub.config import ArchiveSettings
from wireloom.hub.logs import about
from wireloom.hub.metrics import Metrics
from wireloom.journal.archive import Archive, Claim, Conflict, FencedOff, not_archived
from wireloom.journal.archive_disk import ArchiveDisk, remember_archive
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.index import warm
from wireloom.journal.segment import REFUSED, is_sealed, segments
from wireloom.model import JournalError, WireloomError, type_of_json
from wireloom.store import StoreError, open_store

if TYPE_CHECKING:
    from wireloom.journal.writer import Journal

log = logging.getLogger("wireloom.hub")

INTERVAL = 1.0
"""Seconds between two checks for sealed segments."""
READ_TIMEOUT = 20.0
"""Seconds that a replay's read from the archive may take."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a failed upload is tried again."""


class Archiver:
    """Archives the segments of one hub."""

    def __init__(self, settings: ArchiveSettings, journal: Journal, metrics: Metrics) -> None:
        # Compile the kernels here: on the thread, compiling would block the loop.
        warm()
        self.settings = settings
        self.error: str | None = None
        """Why archiving fails now; None while it works."""
        self.alarm: str | None = None
        """An error that needs an operator. Until the hub is restarted, no segment is removed from the disk."""
        self.waiting = 0
        """How many sealed segments are not archived."""
        self.waiting_bytes = 0
        self.archived_ns = 0
        """The time of the last block that is archived."""
        self._folder = journal.folder
        self._journal = journal
        self._metrics = metrics
        reads = open_store(settings.url, tries=2, timeout=READ_TIMEOUT)
        self._archive = Archive(open_store(settings.url), journal.identity, reads)
        self.disk = ArchiveDisk(journal.folder, self._archive)
        """The journal's folder together with its archive."""
        self._claim: Claim | None = None
        self._left_out: set[str] = set()
        """Segments that cannot be archived: they are damaged, or the archive has different ones with their names."""
        self._wait = 0.0
        self._wakes = threading.Event()
        self._stops = threading.Event()
        self._finishes = threading.Event()
        """Set once the journal is closed: one more check is enough."""
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)

    def start(self) -> None:
        """Start a daemon thread."""
        remember_archive(self._folder, self._archive.store.url)
        self._thread.start()

    def tick(self) -> None:
        """Called often, on the loop: seal a segment that is due by its age."""
        self._journal.end_older(self.settings.every)

    async def finish(self) -> None:
        """After the journal was closed: archive the rest, if this works at the first attempt. Cancel it to give up."""
        self._finishes.set()
        self._wakes.set()
        if self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(DaemonExecutor("archive-end"), self._thread.join)

    def stop(self) -> None:
        """Stop soon. An upload in progress is abandoned."""
        self._stops.set()
        self._wakes.set()

    def is_archived(self, path: Path) -> bool:
        """Whether a segment may be removed from the disk: the archive has it, with the same checksum.

        Slow: call it on the retention thread.
        """
        if self.alarm is not None:
            return False
        try:
            return self._archive.holds(path)
        except Conflict as error:
            self._raise_alarm(str(error), "archive.conflict")
            return False

    @property
    def healthy(self) -> bool:
        """Whether archiving works, as far as is known."""
        return self.error is None and self.alarm is None

    def status(self) -> dict[str, type_of_json]:
        """For `/status` and the console."""
        return {
            "url": self._archive.store.url,
            "healthy": self.healthy,
            "why": self.alarm or self.error,
            "waiting_segments": self.waiting,
            "waiting_bytes": self.waiting_bytes,
            "archived_until_ns": self.archived_ns,
            "generation": None if self._claim is None else self._claim.generation,
        }

    # Runs on the thread

    def _run(self) -> None:
        is_last = False
        while not self._stops.is_set() and not is_last:
            is_last = self._finishes.is_set()
            try:
                self._archive_all()
                self._tell_recovered()
            except FencedOff as error:
                self._raise_alarm(str(error), "archive.fenced")
                break
            except Exception as error:
                self._tell_failed(error)
            if not is_last:
                self._wakes.wait(self._wait or INTERVAL)
                self._wakes.clear()

    def _archive_all(self) -> None:
        """Archive every sealed segment that is missing in the archive."""
        self._count(self._unarchived())
        if self._claim is None:
            self._claim = self._archive.claim()
            self._archive.refresh()
            log.info(
                "archive %s: generation %d",
                self._archive.store.url,
                self._claim.generation,
                extra=about("archive.open"),
            )
        while not self._stops.is_set():
            left = self._unarchived()
            self._count(left)
            if not left:
                return
            self._upload(left[0], self._claim)

    def _upload(self, path: Path, own: Claim) -> None:
        try:
            index = self._archive.upload(path, own, level=self.settings.compression, recipient=self.settings.recipient)
        except FileNotFoundError:
            # Files of refused bytes are removed when there are too many.
            return
        except Conflict as error:
            self._left_out.add(path.name)
            self._metrics.archive_failures.add(1, "conflict")
            self._raise_alarm(str(error), "archive.conflict")
            return
        except (FencedOff, StoreError):
            raise
        except JournalError as error:
            self._left_out.add(path.name)
            self._metrics.archive_failures.add(1, "damaged")
            self._raise_alarm(str(error), "archive.damaged")
            return
        self._tell_recovered()
        self._metrics.archived_segments.add(1)
        self._metrics.archived_bytes.add(index.length)
        self._metrics.archive_stored_bytes.add(index.stored)
        if not index.refused:
            self.archived_ns = max(self.archived_ns, index.to_ns)
        log.debug("archived %s, %d bytes as %d", path.name, index.length, index.stored, extra=about("archive.stored"))

    def _unarchived(self) -> list[Path]:
        """Sealed segments that are not known to be archived, the oldest first."""
        found = []
        for folder in (self._folder, self._folder / REFUSED):
            with contextlib.suppress(JournalError):
                found += not_archived(self._archive, segments(folder))
        return [path for path in found if path.name not in self._left_out and is_sealed(path)]

    def _count(self, left: list[Path]) -> None:
        self.waiting = len(left)
        size = 0
        for path in left:
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        self.waiting_bytes = size

    def _tell_failed(self, error: Exception) -> None:
        self._wait = min(self._wait * 2, LONGEST_WAIT) or FIRST_WAIT
        self._metrics.archive_failures.add(1, "store" if isinstance(error, StoreError) else "other")
        if self.error is None:
            log.error(
                "segments cannot be archived: %s; they stay on this disk, and it is tried again",
                error,
                exc_info=None if isinstance(error, WireloomError) else error,
                extra=about("archive.failed"),
            )
        self.error = str(error)

    def _tell_recovered(self) -> None:
        self._wait = 0.0
        if self.error is not None:
            log.warning("segments are archived again", extra=about("archive.recovered"))
            self.error = None

    def _raise_alarm(self, what: str, event: str) -> None:
        if self.alarm is None:
            log.error(
                "%s; no segment is removed from this disk until the hub is started again", what, extra=about(event)
            )
            self.alarm = what
