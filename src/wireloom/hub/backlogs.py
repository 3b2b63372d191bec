"""Messages that were read from the journal for subscribers, and are not sent yet: a byte budget for all of them.

A subscriber of the past that stops reading would keep what was read for it in memory. All such backlogs together stay
within `replay_bytes` in `[limits]`. Beyond, those are dropped whose subscribers have not read for longest: their owners
read the same from the journal again, once there is room to send. So nothing is lost.
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
"""Bytes that a message takes beside its topic and its body."""


def weight(message: Message) -> int:
    """Bytes of memory that a message takes."""
    return len(message.body) + len(message.topic or "") + _OVERHEAD


class Backlogs:
    """All backlogs of a hub."""

    def __init__(self, most: Callable[[], int], on_dropped: Callable[[], None]) -> None:
        """`most` says how many bytes there may be; `on_dropped` is called whenever a backlog is dropped."""
        self._most = most
        self._on_dropped = on_dropped
        self.held_bytes = 0
        self._blocked: dict[Droppable, None] = {}
        """Those whose subscriber does not read, the longest first."""
        self._waiters: list[asyncio.Future[None]] = []

    def count(self, change: int) -> None:
        """A backlog has grown or shrunk."""
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
        """Wait until more may be read from the journal. Who has a backlog meanwhile sends it, or loses it."""
        while self.held_bytes >= self._most():
            self._make_room(self._most() - 1)
            if self.held_bytes < self._most():
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    @contextlib.contextmanager
    def blocked(self, backlog: Droppable) -> Iterator[None]:
        """The subscriber of a backlog does not read: it may be dropped."""
        self._blocked[backlog] = None
        try:
            yield
        finally:
            self._blocked.pop(backlog, None)


class Droppable(Protocol):
    """A backlog of any kind."""

    def drop(self) -> None:
        """Let go of all messages."""


class Backlog(Generic[Place]):
    """What was read for one subscriber, each message with its place."""

    def __init__(self, backlogs: Backlogs, on_drop: Callable[[], None] | None = None) -> None:
        """`on_drop` lets go of what else is kept for what comes next."""
        self._backlogs = backlogs
        self._on_drop = on_drop
        self._messages: deque[tuple[Place, Message]] = deque()
        self.was_dropped = False
        """Whether some was not sent, so that its owner has to read it again."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    def fill(self, messages: Iterable[tuple[Place, Message]]) -> None:
        """Take what was read."""
        more = list(messages)
        self._messages.extend(more)
        self.was_dropped = False
        self._backlogs.count(sum(weight(message) for _, message in more))

    def pop(self) -> tuple[Place, Message]:
        """Take out the first message."""
        first = self._messages.popleft()
        self._backlogs.count(-weight(first[1]))
        return first

    def drop(self) -> None:
        """Let go of all messages."""
        self.was_dropped = bool(self._messages)
        size = sum(weight(message) for _, message in self._messages)
        self._messages.clear()
        self._backlogs.count(-size)
        if self._on_drop is not None:
            self._on_drop()

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """The subscriber does not read: the backlog may be dropped meanwhile."""
        with self._backlogs.blocked(self):
            yield
