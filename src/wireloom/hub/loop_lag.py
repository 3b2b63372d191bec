"""How long the event loop was blocked: by work for one peer, by a sync on the loop, or by other processes.

A timer is due every 20 ms. While a callback blocks the loop, the timer waits, and so does every peer. The delay of the
timer is the delay that a message had at that moment. So the histogram is a sample of message delays. The worst block
may have been up to 20 ms longer than measured. An idle hub spends less than half a percent of a core on it.
"""

from __future__ import annotations

import asyncio
import time

from wireloom.hub.metrics import Histogram

EVERY = 0.02


class LoopStalls:
    """Measures one event loop, from `start` to `stop`."""

    def __init__(self, seen: Histogram) -> None:
        self._seen = seen
        self.worst = 0.0
        """The longest delay, in seconds."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start measuring a loop."""
        self._loop = loop
        self._wait()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        # Not the loop's own clock: it may stand still while a callback runs.
        self._due = time.monotonic() + EVERY
        self._timer = self._loop.call_later(EVERY, self._look)

    def _look(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        self._seen.add(late)
        self.worst = max(self.worst, late)
        self._wait()
