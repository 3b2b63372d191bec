"""Stay awake for a moment after a read, instead of sleeping until the next.

To wake a process that sleeps takes longer than to handle a request: on a virtual machine, whose host has taken the core
away meanwhile, 50 µs and more. Where one answer follows another, the next read comes sooner than that. A vigil keeps
the event loop turning until then. It takes a core for as long as there is such traffic, so it is kept only where
somebody asks for it, and not while others need the core.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable

CROWDED = 0.0005
"""Seconds that it takes to let others run, from which on they obviously need the core."""
FIRST_REST, LONGEST_REST = 0.1, 6.4
"""Seconds without a vigil after that, twice as long if it happens again soon. Who sleeps is woken as soon as there is
something to do; who gives way has to wait until others have had their share."""

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
_now = time.monotonic


class Vigil:
    """Keeps one event loop awake."""

    __slots__ = ("_is_kept", "_loop", "_rest", "_rested_at", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._is_kept = False
        """Whether the loop is kept awake; or nothing is to be done about it, while others need the core."""
        self._rest = self._rested_at = 0.0

    def stir(self, patience: float) -> None:
        """Something was read: stay awake for so many seconds from now on."""
        self._until = max(self._until, _now() + patience)
        if not self._is_kept:
            self._is_kept = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        began = _now()
        if began > self._until:
            self._is_kept = False
            return
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


def awake(received: Callable[[bytes], None], patience: float) -> Callable[[bytes], None]:
    """What takes a read, and stays awake after it for so many seconds; the same as before, if for none."""
    if not patience:
        return received
    stir = _vigil_of(asyncio.get_running_loop()).stir

    def received_awake(data: bytes) -> None:
        received(data)
        stir(patience)

    return received_awake
