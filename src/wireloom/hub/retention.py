"""Removes old segments of the journal while the hub runs, and logs problems of its disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wireloom.hub.config import JournalSettings
from wireloom.hub.logs import about
from wireloom.hub.metrics import Metrics
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.retention import ARCHIVE, Expired, Keep, prune
from wireloom.journal.segment import segments
from wireloom.model import JournalError

log = logging.getLogger("wireloom.hub")

SHARE = 0.25
"""Share of the segments that may be removed for their age within an eighth of the retention time. In steady state an
eighth of them is enough. If the clock jumps ahead, this limit gives an operator time to notice.
"""
_DAY = 24 * 3600.0
INTERVAL = 60.0
"""Seconds between two checks for old segments."""


class Retention:
    """Removes segments from time to time, on a thread, as the configuration says."""

    def __init__(
        self,
        settings: JournalSettings,
        folder: Path,
        metrics: Metrics,
        interval: float = INTERVAL,
        *,
        is_archived: Callable[[Path], bool] | None = None,
        disk: Disk = LOCAL,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`is_archived` says whether a segment may be removed from this disk. It is not called without an archive."""
        self._disk, self._now_ns = disk, now_ns
        self.keep = Keep(settings.keep_days, settings.keep_bytes, settings.ignore_cursors, is_archived=is_archived)
        self._left = 0
        """Segments that may still be removed for their age until `_until`; see `SHARE`."""
        self._until = 0.0
        self.held = 0
        """Old segments that are kept because a pipeline has not read them, or because they are not archived."""
        self._folder = folder
        self._metrics = metrics
        self._interval = interval
        self._due = 0.0
        self._running: asyncio.Future[list[Expired]] | None = None
        self._told_held = ""
        self._thread = DaemonExecutor("retention")

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called often: checks when it is due."""
        if not (self.keep.days or self.keep.size) or self._running is not None or loop.time() < self._due:
            return
        self._due = loop.time() + self._interval
        self._running = loop.run_in_executor(self._thread, self._prune, loop.time())
        self._running.add_done_callback(self._done)

    def _prune(self, now: float) -> list[Expired]:
        """Runs on the thread."""
        if now >= self._until:
            self._until = now + self.keep.days * _DAY / 8
            self._left = max(int(len(segments(self._folder, self._disk)) * SHARE), 1)
        keep = replace(self.keep, most_aged=self._left)
        found = prune(self._folder, keep, self._now_ns(), disk=self._disk)
        self._left -= sum(each.for_age and each.kept_for is None for each in found)
        return found

    def _done(self, running: asyncio.Future[list[Expired]]) -> None:
        self._running = None
        try:
            found = running.result()
        except (JournalError, asyncio.CancelledError) as error:
            log.error("retention: %s", error, extra=about("retention.failed"))
            return
        for each in found:
            if each.kept_for is None:
                extra = about("retention.removed")
                log.info("retention: removed %s, %d bytes: %s", each.path.name, each.size, each.why, extra=extra)
                self._metrics.removed_segments.add(1)
                self._metrics.removed_bytes.add(each.size)
        held = [each for each in found if each.kept_for is not None]
        self.held = len(held)
        slowest = held[0].kept_for or "" if held else ""
        if slowest == ARCHIVE and slowest != self._told_held:
            what = "retention: %d segments are past their time but not archived yet; they stay on this disk until then"
            log.warning(what, len(held), extra=about("retention.held"))
        elif slowest and slowest != self._told_held:
            log.warning(
                "retention: %d segments are past their time but pipeline %s has not read them; start it, or remove its "
                "file from %s if it is gone for good",
                *(len(held), slowest, self._folder / "cursors"),
                extra=about("retention.held"),
            )
        self._told_held = slowest


class DiskWatch:
    """Logs when the disk refuses journal writes, and when it accepts them again."""

    def __init__(self) -> None:
        self._said: str | None = None

    def look(self, error: str | None) -> None:
        """Check the journal's last error, or None. Called often."""
        if error is not None and error != self._said:
            log.error("%s; publishes are not acknowledged until then", error, extra=about("journal.full"))
        elif error is None and self._said is not None:
            log.warning("the journal is written again; what waited is acknowledged", extra=about("journal.recovered"))
        self._said = error
