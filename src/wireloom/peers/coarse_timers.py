"""Timers that need not be exact: all that are due in the same second share one.

A timer of the event loop takes half a kilobyte. Ten thousand idle connections that are to be pinged in half a minute
are content with a place in a round.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable

FAR = 5.0
"""Seconds ahead from which on a second more or less does not matter."""


class Rounds:
    """What is to be called, by the second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rounds: dict[float, dict[Callable[[], None], None]] = {}

    def join(self, deadline: float, call: Callable[[], None]) -> float:
        """Call this at the first full second after a deadline; returns that second, to `leave` with."""
        at = math.ceil(deadline)
        waiting = self._rounds.get(at)
        if waiting is None:
            waiting = self._rounds[at] = {}
            self._loop.call_at(at, self._fire, at)
        waiting[call] = None
        return at

    def leave(self, at: float, call: Callable[[], None]) -> None:
        """Do not call it after all."""
        waiting = self._rounds.get(at)
        if waiting is not None:
            waiting.pop(call, None)

    def _fire(self, at: float) -> None:
        for call in self._rounds.pop(at, ()):
            self._loop.call_soon(call)


@functools.lru_cache(maxsize=1)
def rounds_of(loop: asyncio.AbstractEventLoop) -> Rounds:
    """The rounds of a loop; all its timers share them."""
    return Rounds(loop)
