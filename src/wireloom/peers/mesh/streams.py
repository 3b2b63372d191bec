"""Bounded streams of a mesh node: events, and changes of its neighbours.

The mesh has no back-pressure: if a program is slow, the oldest items are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from wireloom.model import Message
from wireloom.protocols.mesh.node import Change

if TYPE_CHECKING:
    from wireloom.peers.mesh.node import Node

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A neighbour, as it was at the time of the call."""

    node_id: str
    address: str
    capabilities: bytes
    since: float
    """When it said Hello, in seconds since 1970."""
    heard: float
    """When it was last heard, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class PeerChange:
    """A neighbour joined or was lost."""

    what: Change
    peer: PeerInfo


class Newest(Generic[T]):
    """A bounded queue. Urgent items come first. When it is full, the oldest item is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._urgent: deque[T] = deque()
        self._normal: deque[T] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False
        self.dropped = 0

    def put(self, item: T, *, urgent: bool = False) -> bool:
        """Add an item. Returns False if another item was dropped for it."""
        full = len(self._urgent) + len(self._normal) >= self._limit
        if full:
            (self._normal or self._urgent).popleft()
            self.dropped += 1
        (self._urgent if urgent else self._normal).append(item)
        self._wake()
        return not full

    def close(self) -> None:
        """Accept no more items. The present ones can still be taken."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def get(self) -> T:
        """The next item. Cancelling loses nothing: an item is removed only when it is returned."""
        while not self._urgent and not self._normal:
            if self._closed:
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return (self._urgent or self._normal).popleft()


class Events(AsyncIterator[Message]):
    """Events of one pattern. Leaving the `async with`, or `close`, ends it.

    `dropped` counts events that were lost because nobody took them in time.
    """

    def __init__(self, node: Node, pattern: str, queue: Newest[Message]) -> None:
        self._node = node
        self.pattern = pattern
        self._queue = queue

    @property
    def dropped(self) -> int:
        """Events that were lost because nobody took them in time."""
        return self._queue.dropped

    async def __anext__(self) -> Message:
        return await self._queue.get()

    def close(self) -> None:
        """End it. A pending `get` is woken."""
        self._node.drop_events(self.pattern, self._queue)
        self._queue.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Changes(AsyncIterator[PeerChange]):
    """Changes of the neighbours. Leaving the `async with`, or `close`, ends it."""

    def __init__(self, node: Node, queue: Newest[PeerChange]) -> None:
        self._node = node
        self._queue = queue

    async def __anext__(self) -> PeerChange:
        return await self._queue.get()

    def close(self) -> None:
        """End it. A pending `get` is woken."""
        self._node.drop_changes(self._queue)
        self._queue.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
