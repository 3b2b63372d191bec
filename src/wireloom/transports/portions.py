"""A queue of long work for each event loop, processed in portions.

Each iteration of the loop processes portions for `LONG` seconds in total, then yields. So the latency of other
connections does not depend on how many peers send a lot. WebSockets queue frames here, drivers queue batches.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import Protocol

LONG = 0.003
"""Seconds for all portions of one iteration."""
SHORT = 4096
"""Reads of up to this many bytes bypass the queue."""

clock = time.monotonic


class Portioned(Protocol):
    """An object with work in the queue."""

    def take_portion(self, until: float) -> None:
        """Continue the work until a time."""

    def stand_in_row(self) -> None:
        """Enter the queue again if work is left."""


class Portions:
    """The queue of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._row: deque[Portioned] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._row)

    def join(self, one: Portioned) -> None:
        """Append to the queue."""
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
    """The queue of a loop."""
    return Portions(loop)
