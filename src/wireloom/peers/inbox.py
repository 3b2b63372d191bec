"""A bounded queue between the event loop's callbacks and those who await: nothing lost, nothing unbounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from wireloom.model import WireloomError

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items in order, with water marks.

    `put` never fails: a read that is already here has to go somewhere. At `limit` items `on_full` is called, so that
    no more is read; at half of it `on_room`. So an inbox holds at most `limit` items and those of one more read.
    Cancelling `get` loses nothing: an item leaves only when it is returned.
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
        """Whether nothing more will come."""
        return self._closed

    def put(self, item: T) -> None:
        """Add an item; ignored after the end."""
        if self._closed:
            return
        self._items.append(item)
        if len(self._items) >= self._limit and not self._full:
            self._full = True
            self._on_full()
        self._wake()

    def close(self, error: WireloomError | None = None) -> None:
        """Nothing more comes. What is there can still be taken; then `get` raises, or says it is over."""
        if not self._closed:
            self._closed = True
            self._end = error
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def discard(self) -> None:
        """Close and throw away what is there: nobody will take it."""
        self.close()
        self._items.clear()
        self._make_room()

    async def get(self) -> T:
        """The next item. Raises the error the inbox was closed with, or StopAsyncIteration."""
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
