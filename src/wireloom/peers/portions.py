"""A driver that takes large reads in portions, so that no read keeps the event loop for long.

A read can hold a hundred thousand tiny frames. Portions shrink when one took too long and grow when it did not, so a
large body still passes in large pieces. Between portions the loop turns, and a queue that fills up stops the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from wireloom.model import WireloomError
from wireloom.peers.driver import Driver
from wireloom.protocols.contract import Batch, Session

LONG = 0.004
"""Seconds that one portion may take."""
SMALLEST, LARGEST = 512, 256 * 1024
_NONE, _ANY = -1, float("inf")
WAITING = "portions"


class PortionDriver(Driver):
    """Runs a session as `Driver` does, a portion of the input at a time."""

    def __init__(
        self,
        session: Session,
        *,
        on_batch: Callable[[Batch], None],
        on_open: Callable[[], None] | None = None,
        on_end: Callable[[WireloomError], None] | None = None,
    ) -> None:
        super().__init__(session, on_batch=on_batch, on_open=on_open, on_end=on_end)
        self._portion = 16 * 1024
        self._largest_read = SMALLEST
        self._waiting: deque[bytes] = deque()
        """What arrived and is not taken yet; as long as there is any, everything goes behind it."""
        self._ended_behind = False
        """The end of the input came, but waits behind what is not taken yet."""
        self._turn_due = False

    def _received_much(self, data: bytes) -> None:
        """Take what arrived, now or a portion at a time."""
        if self._finishing:
            return
        if self._waiting:
            self._waiting.append(data)
        elif len(data) <= self._portion and not self._holds:
            self._take(data)
        else:
            self._waiting.append(data)
            self._take_portion()

    def _take(self, data: bytes) -> None:
        started = time.monotonic()
        self._largest_read = _ANY
        super().received(data)
        self._largest_read = _NONE if self._waiting else SMALLEST
        self._adapt(time.monotonic() - started)

    def input_ended(self) -> None:
        """The end of the input, after everything before it."""
        if self._waiting and not self._finishing:
            self._ended_behind = True
        else:
            super().input_ended()

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone; what it brought before counts."""
        self._largest_read = _ANY
        while self._waiting and not self._finishing:
            super().received(self._waiting.popleft())
        super().ended(error)

    def release(self, reason: str) -> None:
        """Take back one reason not to read; what waits here goes first."""
        super().release(reason)
        if self._waiting:
            self._schedule()

    def _take_portion(self) -> None:
        self._turn_due = False
        if self._finishing:
            self._waiting.clear()
        if self._waiting and not self._holds - {WAITING}:
            data = self._waiting.popleft()
            if len(data) > self._portion:
                self._waiting.appendleft(data[self._portion :])
                data = data[: self._portion]
            self._take(data)
        if self._waiting:
            self._largest_read = _NONE
            self.hold(WAITING)
            self._schedule()
            return
        self._largest_read = SMALLEST
        super().release(WAITING)
        if self._ended_behind:
            self._ended_behind = False
            super().input_ended()

    def _adapt(self, took: float) -> None:
        if took > LONG:
            self._portion = max(SMALLEST, self._portion // 2)
        elif took < LONG / 4:
            self._portion = min(LARGEST, self._portion * 2)

    def _schedule(self) -> None:
        if not self._turn_due and not self._holds - {WAITING}:
            self._turn_due = True
            self._loop.call_soon(self._take_portion)
