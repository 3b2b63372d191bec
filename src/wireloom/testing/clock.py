"""A clock that tests move by hand: minutes of timeouts pass in milliseconds.

Peers, sessions and the hub take the time from the event loop; the journal takes its time of the day from here, too. So
moving the loop's clock moves them all, together. Time also goes on by itself.

Not moved are, because they ask the operating system: how long the loop was held (a metric), how often webhooks save
their cursor, the rate of lines in the log, `since="15m"` of a subscription (give a time instead), and the age of mesh
packets.
"""

from __future__ import annotations

import asyncio
import time
from weakref import WeakKeyDictionary

from wireloom.model import ConfigError

STEP = 0.25
"""Seconds that pass at a time, so that pings are answered before their time is up."""
TURNS = 8
"""Turns of the loop after each step: as many as a question and its answer need."""


class ManualClock:
    """The clock of one event loop. Made by `ManualClock.of`, once for each loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offset = 0.0
        """Seconds that this clock is ahead."""
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
        """The time of the day, moved likewise."""
        return time.time_ns() + int(self.offset * 1e9)

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass now. Timers fire in their order, and what they do is done before this returns.

        Work on other threads, such as a commit of the journal, may take a moment longer: wait for its outcome.
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
