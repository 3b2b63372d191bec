"""A clock that tests advance by hand: minutes of timeouts pass in milliseconds.

Peers, sessions and the hub take the time from the event loop. The journal takes its time of day from this clock. So
advancing it moves all of them together. Time also passes by itself.

Some times come from the operating system and are not moved: the event loop lag (a metric), how often webhooks save
their cursor, the rate limit of log lines, `since="15m"` of a subscription (use a time instead), and the age of mesh
packets.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakKeyDictionary

from wireloom.model import ConfigError

STEP = 0.25
"""Seconds of one step. Small enough for pings to be answered before their timeout."""
TURNS = 8
"""Iterations of the loop after each step: enough for a request and its answer."""


class ManualClock:
    """The clock of one event loop. Made by `ManualClock.of`, once for each loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offset = 0.0
        """Seconds by which this clock is ahead."""
        self._movable = isinstance(loop, asyncio.BaseEventLoop)
        if self._movable:
            real = loop.time
            loop.time = lambda: real() + self.offset  # type: ignore[method-assign]

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ManualClock:
        """The clock of a loop."""
        if loop not in _CLOCKS:
            _CLOCKS[loop] = cls(loop)
        return _CLOCKS[loop]

    def time_ns(self) -> int:
        """The time of day, advanced in the same way."""
        return time.time_ns() + int(self.offset * 1e9)

    async def advance(self, seconds: float) -> None:
        """Advance the clock. Timers fire in order, and their work is done before this returns.

        Work on other threads, such as a commit of the journal, may take longer: wait for its outcome.
        """
        if not self._movable:
            raise ConfigError("only asyncio's own event loop can be moved in time: run the test with asyncio.run")
        if seconds < 0:
            raise ConfigError(f"time goes forward only, not by {seconds:g} s")
        target = self.offset + seconds
        while self.offset < target:
            self.offset = min(self.offset + STEP, target)
            for _ in range(TURNS):
                await asyncio.sleep(0)


_CLOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, ManualClock] = WeakKeyDictionary()
