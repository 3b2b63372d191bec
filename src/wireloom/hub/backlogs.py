"""A byte budget for all messages that were read from the journal for subscribers and are not sent yet.

If a subscriber of a replay stops reading, its messages stay in memory. All such backlogs together stay within
`replay_bytes` in `[limits]`. Beyond that, the backlogs are dropped whose subscribers have not read for longest. Their
owners read the same messages from the journal again, once the subscriber reads. So nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from wireloom.model import Message

Place = TypeVar("Place")

_OVERHEAD = 600
"""Bytes of memory for a message beside its topic and its body."""


def weight(message: Message) -> int:
    """Bytes of memory for a message."""
    return len(message.body) + len(message.topic or "") + _OVERHEAD


class Backlogs:
    """All backlogs of a hub."""

    def __init__(self, most: Callable[[], int], on_dropped: Callable[[], None]) -> None:
        """`most` returns the maximum number of bytes. `on_dropped` is called whenever a backlog is dropped."""
        self._most = most
        self._on_dropped = on_dropped
        self.held_bytes = 0
        self._blocked: dict[Droppable, None] = {}
        """Backlogs whose subscribers do not read. The first has waited longest."""
        self._waiters: list[asyncio.Future[None]] = []

    def count(self, change: int) -> None:
        """Count that a backlog has grown or shrunk."""
        self.held_bytes += change
        if change > 0:
            self._make_room(self._most())
        elif self._waiters and self.held_bytes < self._most():
            waiters, self._waiters = self._waiters, []
            for each in waiters:
                if not each.done():
                    each.set_result(None)

    def _make_room(self, most: int) -> None:
        while self.held_bytes > most and self._blocked:
            longest = next(iter(self._blocked))
            del self._blocked[longest]
            longest.drop()
            self._on_dropped()

    async def room(self) -> None:
        """Wait until more may be read from the journal. Meanwhile other backlogs are sent or dropped."""
        while self.held_bytes >= self._most():
            self._make_room(self._most() - 1)
            if self.held_bytes < self._most():
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    @contextlib.contextmanager
    def blocked(self, backlog: Droppable) -> Iterator[None]:
        """While the subscriber of a backlog does not read, the backlog may be dropped."""
        self._blocked[backlog] = None
        try:
            yield
        finally:
            self._blocked.pop(backlog, None)


class Droppable(Protocol):
    """A backlog of any kind."""

    def drop(self) -> None:
        """Release all messages."""


class Backlog(Generic[Place]):
    """Messages that were read for one subscriber, each with its place in the journal."""

    def __init__(self, backlogs: Backlogs, on_drop: Callable[[], None] | None = None) -> None:
        """`on_drop` releases what else is kept for the next read."""
        self._backlogs = backlogs
        self._on_drop = on_drop
        self._messages: deque[tuple[Place, Message]] = deque()
        self.was_dropped = False
        """Whether messages were dropped, so that the owner must read them again."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    def fill(self, messages: Iterable[tuple[Place, Message]]) -> None:
        """Add messages that were read."""
        more = list(messages)
        self._messages.extend(more)
        self.was_dropped = False
        self._backlogs.count(sum(weight(message) for _, message in more))

    def pop(self) -> tuple[Place, Message]:
        """Remove and return the first message."""
        first = self._messages.popleft()
        self._backlogs.count(-weight(first[1]))
        return first

    def drop(self) -> None:
        """Release all messages."""
        self.was_dropped = bool(self._messages)
        size = sum(weight(message) for _, message in self._messages)
        self._messages.clear()
        self._backlogs.count(-size)
        if self._on_drop is not None:
            self._on_drop()

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """While the subscriber does not read, the backlog may be dropped."""
        with self._backlogs.blocked(self):
            yield
