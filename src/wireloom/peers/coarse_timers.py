"""Coarse timers: all that are due in the same second share one timer of the event loop.

A timer of the event loop takes half a kilobyte. Ten thousand idle connections each need a ping in about half a minute.
For them a second more or less does not matter.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable

FAR = 5.0
"""Deadlines at least this many seconds ahead may use a coarse timer."""


class Rounds:
    """Callbacks by the second at which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rounds: dict[float, dict[Callable[[], None], None]] = {}

    def join(self, deadline: float, call: Callable[[], None]) -> float:
        """Call this at the first full second after a deadline. Returns that second, for `leave`."""
        at = math.ceil(deadline)
        waiting = self._rounds.get(at)
        if waiting is None:
            waiting = self._rounds[at] = {}
            self._loop.call_at(at, self._fire, at)
        waiting[call] = None
        return at

    def leave(self, at: float, call: Callable[[], None]) -> None:
        """Cancel a callback."""
        waiting = self._rounds.get(at)
        if waiting is not None:
            waiting.pop(call, None)

    def _fire(self, at: float) -> None:
        for call in self._rounds.pop(at, ()):
            self._loop.call_soon(call)


@functools.lru_cache(maxsize=1)
def rounds_of(loop: asyncio.AbstractEventLoop) -> Rounds:
    """The coarse timers of a loop. All drivers of the loop share them."""
    return Rounds(loop)
