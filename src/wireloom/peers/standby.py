"""Begin a coroutine at once, and give it a task only if it waits for something.

Most handlers answer without waiting, and a task for each would cost more than everything else about a request. But
whatever runs in a coroutine may ask for the current task (`asyncio.timeout` does), so there must be one: a task
that stands by. A coroutine begins in its name; if it is not done then, the task takes it over.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import _enter_task, _leave_task
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import copy_context
from typing import Any


class Standby:
    """A task that waits for a coroutine to take over. It can begin many, as long as none of them waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self._clean = self._context.copy()
        self._next: asyncio.Future[Coroutine[Any, Any, None]] = loop.create_future()
        self._started = False
        self._late_cancel: asyncio.CancelledError | None = None
        self.task: asyncio.Task[None] = loop.create_task(self._stand_by(), context=self._context)

    @property
    def is_ready(self) -> bool:
        """Whether `begin` can be called now: not before the task has started, and not inside of another task."""
        return self._started and asyncio.current_task(self._loop) is None

    @property
    def is_clean(self) -> bool:
        """Whether no coroutine left a context variable changed for the next one."""
        return self._context == self._clean

    def begin(self, work: Coroutine[Any, Any, object]) -> object:
        """Run a coroutine up to where it waits; returns what it waits for, for `take_over`.

        Raises StopIteration with its result when it is done instead, or whatever it raises.
        """
        _enter_task(self._loop, self.task)
        try:
            return self._context.run(work.send, None)
        finally:
            _leave_task(self._loop, self.task)

    def rest(self, work: Coroutine[Any, Any, object], waits_for: object) -> Awaitable[object]:
        """What is left of a coroutine that was begun, to be awaited in the task."""
        return self._rest(work, waits_for)

    def take_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the task run this coroutine, which awaits the `rest`, and end with it."""
        self._next.set_result(work)

    def close(self) -> None:
        """The task is not needed any more."""
        if not self._next.done():
            self._next.cancel()

    async def _stand_by(self) -> None:
        self._started = True
        try:
            work = await self._next
        except asyncio.CancelledError as error:
            if not self._next.done() or self._next.cancelled():
                return
            # Cancelled, maybe by itself (`asyncio.timeout`), between its beginning and now.
            self._late_cancel = error
            work = self._next.result()
        await work

    @types.coroutine
    def _rest(self, work: Coroutine[Any, Any, object], waits_for: Any) -> Generator[Any, None, object]:
        try:
            if self._late_cancel is not None:
                if waits_for is not None:
                    waits_for._asyncio_future_blocking = False
                if waits_for is None or not waits_for.cancel():
                    waits_for = work.throw(self._late_cancel)
                else:
                    waits_for._asyncio_future_blocking = True
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(None)
        except StopIteration as done:
            return done.value
