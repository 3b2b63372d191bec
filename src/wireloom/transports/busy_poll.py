"""Stay awake for a moment after a read, instead of sleeping until the next.

To wake a process that sleeps takes longer than to handle a request: on a virtual machine, whose host has taken the core
away meanwhile, 50 µs and more. Where one answer follows another, the next read comes sooner than that. A vigil keeps
the event loop turning until then. It takes a core for as long as there is such traffic; so it is kept only where it
pays, which those before have shown, and not while others need the core.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable

BUSY_POLL = 0.0002
"""Seconds that are waited for the next read unless told otherwise."""
CROWDED = 0.0005
"""Seconds that it takes to let others run, from which on they obviously need the core."""
FIRST_REST, LONGEST_REST = 0.005, 5.12
"""Seconds without a vigil after that, twice as long if it happens again soon. Who sleeps is woken as soon as there is
something to do; who gives way has to wait until others have had their share."""

MOST_IN_VAIN = 6
"""Vigils kept in vain that are counted: after so many, none is kept after the next reads, as many as a power of two."""

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
_now = time.monotonic


class Vigil:
    """Keeps one event loop awake."""

    __slots__ = ("_in_vain", "_is_kept", "_loop", "_rest", "_rested_at", "_skipped", "_turned", "_until", "patience")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self.patience = 0.0
        """How long the last read is to be waited after, if nothing was waited yet: handling it may take longer."""
        self._is_kept = False
        """Whether the loop is kept awake; or nothing is to be done about it, while others need the core."""
        self._turned = False
        """Whether it was since the last read."""
        self._in_vain = 0
        """Vigils in a row that ended without a read."""
        self._skipped = 0
        """Reads to come after which none is kept."""
        self._rest = self._rested_at = 0.0

    def stir(self, patience: float) -> None:
        """Something was read: stay awake for so many seconds once it is handled, if that is likely to pay."""
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
            # Once is nothing: every conversation pauses.
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
    """All connections of a loop share one."""
    return Vigil(loop)


@functools.cache
def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def awake(received: Callable[[bytes], None], patience: float) -> Callable[[bytes], None]:
    """What takes a read, and stays awake after it for so many seconds; the same as before, if for none.

    Or if there is but one core: whoever is to send the next may need it.
    """
    if not patience or _cores() == 1:
        return received
    # Not a function within this one: there is one for each connection, and this takes a third of the memory.
    return functools.partial(_take, received, _vigil_of(asyncio.get_running_loop()), patience)


def _take(received: Callable[[bytes], None], vigil: Vigil, patience: float, data: bytes) -> None:
    received(data)
    if vigil.patience < patience:  # else the loop stays awake already, after a read that came together with this one
        vigil.stir(patience)
