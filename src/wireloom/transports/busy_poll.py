"""Busy polling: after a read, the event loop polls for the next one instead of sleeping in the kernel.

Theory of operation
-------------------
Problem: waking a sleeping process takes longer than handling a request. On a virtual machine it takes 50 µs and more,
because the host has given the core away meanwhile. In a request-response exchange the next read comes sooner than that.

Idea: after a read, a callback schedules itself again and again with `call_soon`. A loop with a ready callback polls its
sockets without blocking, so the next read is noticed at once. Polling ends `patience` seconds after the last read was
handled.

Polling occupies a core. Two rules limit it:

- Back-off when polling is fruitless. After `n` polling phases in a row without a read, the next `2**n - 2` reads start
  no polling phase. One fruitless phase costs nothing, because every conversation pauses. A read during a phase sets `n`
  to 0.
- Back-off when the core is contended. Each pass calls `sched_yield`. If that takes `CROWDED` seconds or more, another
  process needs the core. Polling then rests for `FIRST_REST` seconds, and for twice as long each time this happens
  again soon.

Invariant: at most one polling callback is scheduled for an event loop. `Vigil._is_kept` is True while it is scheduled,
and also during a rest, so that no read starts a second one.

Example, with a patience of 200 µs: a read at 0 µs is handled until 30 µs. The loop polls until 230 µs. A read at 100 µs
that is handled until 120 µs extends this to 320 µs. If nothing follows, the phase ends, and `n` becomes 1.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable

BUSY_POLL = 0.0002
"""Default patience: seconds of polling after a read."""
CROWDED = 0.0005
"""If `sched_yield` takes this many seconds or more, other processes need the core."""
FIRST_REST, LONGEST_REST = 0.005, 5.12
"""Seconds without polling after that, doubled each time it happens again soon. A sleeping process is woken as soon as
there is something to do; a process that yields waits until the others have used their time slices."""

MOST_IN_VAIN = 6
"""Upper limit of the count of fruitless phases: at most `2**6 - 2` reads in a row start no polling phase."""

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
_now = time.monotonic


class Vigil:
    """Busy polling of one event loop."""

    __slots__ = ("_in_vain", "_is_kept", "_loop", "_rest", "_rested_at", "_skipped", "_turned", "_until", "patience")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self.patience = 0.0
        """Seconds to poll after the last read, until the next pass turns it into a deadline; 0 after that. The deadline
        counts from the end of handling, which may take longer than the patience."""
        self._is_kept = False
        """Whether a polling phase is active, or polling rests because others need the core."""
        self._turned = False
        """Whether a pass has run since the last read."""
        self._in_vain = 0
        """Polling phases in a row that ended without a read."""
        self._skipped = 0
        """Coming reads that start no polling phase."""
        self._rest = self._rested_at = 0.0

    def stir(self, patience: float) -> None:
        """Note a read: poll for `patience` seconds once it is handled, unless fruitless phases advise against it."""
        if self._is_kept:
            self.patience = max(self.patience, patience)
            if self._turned:
                self._turned, self._in_vain = False, 0
        elif self._skipped:
            self._skipped -= 1
        else:
            self.patience, self._is_kept, self._turned = patience, True, False
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        began = _now()
        if self.patience:
            self._until = max(self._until, began + self.patience)
            self.patience = 0.0
        elif began > self._until:
            self._is_kept = False
            # A single fruitless phase skips nothing: every conversation pauses.
            self._in_vain = min(self._in_vain + 1, MOST_IN_VAIN)
            self._skipped = 2**self._in_vain - 2
            return
        self._turned = True
        _give_way()
        now = _now()
        if now - began < CROWDED:
            self._loop.call_soon(self._turn)
        else:
            again = now < self._rested_at + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST) if again else FIRST_REST
            self._rested_at = now + self._rest
            self._loop.call_later(self._rest, self._rested)

    def _rested(self) -> None:
        self._is_kept = False


@functools.lru_cache(maxsize=1)
def _vigil_of(loop: asyncio.AbstractEventLoop) -> Vigil:
    """The polling state that all connections of a loop share."""
    return Vigil(loop)


@functools.cache
def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def awake(received: Callable[[bytes], None], patience: float) -> Callable[[bytes], None]:
    """Wrap `received` so that each read is followed by `patience` seconds of busy polling.

    Returns `received` itself if the patience is 0, or if there is only one core: the sender of the next read may need
    that core.
    """
    if not patience or _cores() == 1:
        return received
    # A `partial` instead of a closure: one exists for each connection, and it takes a third of the memory.
    return functools.partial(_take, received, _vigil_of(asyncio.get_running_loop()), patience)


def _take(received: Callable[[bytes], None], vigil: Vigil, patience: float, data: bytes) -> None:
    received(data)
    if vigil.patience < patience:  # else another read of this pass asked for as much
        vigil.stir(patience)
