"""How long the event loop was held: by work for one peer, by a sync on the loop, or by others who need the processor.

A timer is due every 20 ms. While a callback holds the loop, the timer waits, and so does every peer; by how much it
comes late is what a message felt that came at that moment. So the histogram is a sample of what messages feel, and the
worst is seen as up to 20 ms shorter than it was. An idle hub pays less than half a percent of a core for it.
"""

from __future__ import annotations

import asyncio
import time

from wireloom.hub.metrics import Histogram

EVERY = 0.02


class LoopStalls:
    """Watches one event loop, from `start` to `stop`."""

    def __init__(self, seen: Histogram) -> None:
        self._seen = seen
        self.worst = 0.0
        """Seconds."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch a loop."""
        self._loop = loop
        self._wait()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        # The loop's own clock may stand still while a callback runs.
        self._due = time.monotonic() + EVERY
        self._timer = self._loop.call_later(EVERY, self._look)

    def _look(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        self._seen.add(late)
        self.worst = max(self.worst, late)
        self._wait()
