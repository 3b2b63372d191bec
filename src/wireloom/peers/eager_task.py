"""Eager tasks: start a coroutine at once, and give it a task only if it waits for something.

Theory of operation
-------------------
The problem: most handlers answer without waiting. A new task for each would cost more than the rest of a request. But
code in a coroutine may need the current task (`asyncio.timeout` does), so there must be one.

The idea: one standby task exists in advance and waits. `begin` sets it as the current task and runs a coroutine
directly, up to its end or its first wait. If the coroutine is done, the same standby task serves the next one. If the
coroutine waits, the standby task takes over the rest of it (`take_over`), and a new standby task is needed.

The invariant: a coroutine sees one current task and one context from its first step to its last.

Example: nine handlers return at once, and the tenth awaits a database. The first nine run on the standby task without a
task switch. The tenth becomes its work, and the next request gets a new standby task.
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
    """A task that waits for a coroutine to take over. It can start many coroutines, as long as none of them waits."""

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
        """Whether `begin` can be called. The task must have started first."""
        self.is_done = False
        """Whether the last coroutine is done. If not, it waits for something."""
        self.error: BaseException | None = None
        """The exception of the last coroutine, if any."""
        self.task: asyncio.Task[None] = loop.create_task(self._stand_by(), context=self._context)

    def begin(self, work: Work) -> object:
        """Run a coroutine to its end or its first wait. Returns its result, or what it waits for: see `is_done`.

        Raises RuntimeError, without a start of the coroutine, if another task is running.
        """
        _enter_task(self._loop, self.task)
        self.is_done = False
        try:
            return self._context.run(self._step, work)
        finally:
            _leave_task(self._loop, self.task)

    @types.coroutine
    def _run(self) -> Generator[object, Any, object]:
        """Run one coroutine after another, and finally the rest of the one that waits.

        One long-lived generator is faster than `send` on each coroutine, which raises StopIteration for each result.
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
        """Whether all coroutines left the context variables unchanged."""
        return self._context == self._clean

    def rest(self, waits_for: object) -> Awaitable[object]:
        """The rest of the coroutine that waits. The coroutine given to `take_over` awaits it."""
        return self._rest(waits_for)

    def take_over(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the task run this coroutine, which awaits the `rest`. The task ends with it."""
        self._next.set_result(work)

    def close(self) -> None:
        """End the task without work."""
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
            # Cancelled between `begin` and now, perhaps by its own `asyncio.timeout`.
            self._late_cancel = error
            work = self._next.result()
        await work

    @types.coroutine
    def _rest(self, waits_for: Any) -> Generator[Any, None, object]:
        steps = self._steps
        try:
            # Do what asyncio does with a task that is cancelled while it waits.
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
