"""Begin a coroutine at once, and give it a task only if it waits for something.

Most handlers answer without waiting, and a task for each would cost more than everything else about a request. But
whatever runs in a coroutine may ask for the current task (`asyncio.timeout` does), so there must be one: a task
that stands by. A coroutine begins in its name; if it is not done then, the task takes it over.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import _enter_task, _leave_task
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any

Work = Coroutine[Any, Any, object]


class Standby:
    """A task that waits for a coroutine to take over. It can begin many, as long as none of them waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self._clean = self._context.copy()
        self._next: asyncio.Future[Coroutine[Any, Any, None]] = loop.create_future()
        self._late_cancel: asyncio.CancelledError | None = None
        self._steps = self._run()
        self._step: Callable[[Work | None], object] = self._steps.send
        self._step(None)
        self.is_ready = False
        """Whether `begin` can be called: not before the task has started."""
        self.is_done = False
        """Whether what was begun last is done; it waits for something if not."""
        self.error: BaseException | None = None
        """What it raised."""
        self.task: asyncio.Task[None] = loop.create_task(self._stand_by(), context=self._context)

    def begin(self, work: Work) -> object:
        """Run a coroutine up to its end, or to where it waits. Returns its result, or what it waits for: see `is_done`.

        Raises RuntimeError, and has not begun, where another task is running.
        """
        _enter_task(self._loop, self.task)
        self.is_done = False
        try:
            return self._context.run(self._step, work)
        finally:
            _leave_task(self._loop, self.task)

    @types.coroutine
    def _run(self) -> Generator[object, Any, object]:
        """One coroutine after the other, and then the one that waited.

        A generator that goes on is faster than calling `send` of each coroutine, which has to raise its result.
        """
        result: object = None
        while True:
            work = yield result
            try:
                result = yield from work
            except (Exception, asyncio.CancelledError) as error:
                if self._next.done():
                    raise
                result, self.error = None, error
            if self._next.done():
                return result
            self.is_done = True

    @property
    def is_clean(self) -> bool:
        """Whether no coroutine left a context variable changed for the next one."""
        return self._context == self._clean

    def rest(self, waits_for: object) -> Awaitable[object]:
        """What is left of the coroutine that waits, to be awaited by what `take_over` gets."""
        return self._rest(waits_for)

    def take_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the task run this coroutine, which awaits the `rest`, and end with it."""
        self._next.set_result(work)

    def close(self) -> None:
        """The task is not needed any more."""
        if not self._next.done():
            self._next.cancel()

    async def _stand_by(self) -> None:
        self.is_ready = True
        try:
            work = await self._next
        except asyncio.CancelledError as error:
            self.is_ready = False
            if not self._next.done() or self._next.cancelled():
                return
            # Cancelled, maybe by itself (`asyncio.timeout`), between its beginning and now.
            self._late_cancel = error
            work = self._next.result()
        await work

    @types.coroutine
    def _rest(self, waits_for: Any) -> Generator[Any, None, object]:
        steps = self._steps
        try:
            # What a task does that is cancelled while it waits.
            if self._late_cancel is not None and (waits_for is None or not waits_for.cancel()):
                waits_for = steps.throw(self._late_cancel)
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(None)
        except StopIteration as done:
            return done.value
