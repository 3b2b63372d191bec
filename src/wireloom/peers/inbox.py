"""A bounded queue between callbacks of the event loop and coroutines that await items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from wireloom.model import WireloomError

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items in order, with high and low water marks.

    `put` never fails, because a read that has arrived must be stored. At `limit` items it calls `on_full`, which stops
    reading. At half of `limit` it calls `on_room`. So an inbox holds at most `limit` items plus those of one more read.
    Cancelling `get` loses nothing: an item is removed only when it is returned.
    """

    def __init__(
        self, limit: int, on_full: Callable[[], None] = lambda: None, on_room: Callable[[], None] = lambda: None
    ) -> None:
        self._items: deque[T] = deque()
        self._limit = limit
        self._low = limit // 2
        self._on_full = on_full
        self._on_room = on_room
        self._full = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._end: WireloomError | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether no more items will come."""
        return self._closed

    def put(self, item: T) -> None:
        """Add an item. Ignored after `close`."""
        if self._closed:
            return
        self._items.append(item)
        if len(self._items) >= self._limit and not self._full:
            self._full = True
            self._on_full()
        self._wake()

    def close(self, error: WireloomError | None = None) -> None:
        """Accept no more items.

        The present ones can still be taken; then `get` raises the error, or StopAsyncIteration.
        """
        if not self._closed:
            self._closed = True
            self._end = error
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def discard(self) -> None:
        """Close, and discard the present items."""
        self.close()
        self._items.clear()
        self._make_room()

    async def get(self) -> T:
        """The next item. Raises the error given to `close`, or StopAsyncIteration."""
        while not self._items:
            if self._closed:
                raise self._end or StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        item = self._items.popleft()
        self._make_room()
        if self._items:
            self._wake()
        return item

    def _make_room(self) -> None:
        if self._full and len(self._items) <= self._low:
            self._full = False
            self._on_room()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
                return
