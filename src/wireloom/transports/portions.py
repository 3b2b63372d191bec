"""One row for an event loop in which all wait who have more to do than fits into one iteration.

Each iteration takes portions for `LONG` seconds in all, then lets everybody else have a turn. So the time that others
wait does not depend on how many send much. WebSockets wait here with frames, drivers with batches.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import Protocol

LONG = 0.003
"""Seconds that the portions of one iteration take."""
SHORT = 4096
"""Reads of up to so many bytes are taken at once, even if others wait with longer ones."""

clock = time.monotonic


class Portioned(Protocol):
    """Who can wait in the row."""

    def take_portion(self, until: float) -> None:
        """Go on with what waits, up to a time."""

    def stand_in_row(self) -> None:
        """Join the row again, if something is left."""


class Portions:
    """Those of one loop with something left to do, in a row."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._row: deque[Portioned] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._row)

    def join(self, one: Portioned) -> None:
        """Stand at the end of the row."""
        self._row.append(one)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        until = clock() + LONG
        row = self._row
        for _ in range(len(row)):
            one = row.popleft()
            one.take_portion(until)
            one.stand_in_row()
            if clock() > until:
                break
        self._is_scheduled = False
        if row:
            self._schedule()


@functools.lru_cache(maxsize=1)
def portions_of(loop: asyncio.AbstractEventLoop) -> Portions:
    """The row of a loop."""
    return Portions(loop)
