"""The event loop in a thread behind `wireloom.sync`, and how other threads run work on it.

One loop serves all synchronous peers of a process. Its thread starts with the first peer. When the interpreter exits,
every open peer and server is closed, pending output is sent, and the thread ends.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from wireloom.transports.loop import new_event_loop

T = TypeVar("T")

HANDLERS = 32
"""Maximum handlers of all synchronous peers at the same time. Each runs in its own thread."""
AT_EXIT = 10.0
"""Seconds that the interpreter's exit waits for open peers and servers."""


class Closing(Protocol):
    """Something that is closed when the interpreter exits."""

    async def close(self) -> None:
        """Finish what is in flight, and close."""


class Portal:
    """A running event loop and its thread."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.open: set[Any] = set()
        """Open async peers and servers. Only the loop's thread may touch it."""
        self.handlers = ThreadPoolExecutor(HANDLERS, thread_name_prefix="wireloom-handler")
        self._thread = threading.Thread(target=self._serve, name="wireloom-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_running(self) -> bool:
        """Whether the loop is running."""
        return self._thread.is_alive() and not self.loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a synchronous call inside the event loop would wait for itself: use a plain `def` handler"
            )
        if not self.is_running:
            work.close()
            raise RuntimeError("the interpreter is exiting: wireloom.sync has been closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop, and wait for its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting. Does nothing after the loop has ended."""
        if self.is_running:
            try:
                self.loop.call_soon_threadsafe(function)
            except RuntimeError:
                return  # the loop was closed meanwhile

    def in_thread(self, function: Callable[..., T], *arguments: object) -> Awaitable[T]:
        """Run a handler in a thread."""
        return self.loop.run_in_executor(self.handlers, lambda: function(*arguments))

    def close(self) -> None:
        """Close everything that is open, and end the thread."""
        if not self.is_running:
            return

        async def close_all() -> None:
            closing = [asyncio.ensure_future(each.close()) for each in self.open]
            if closing:
                await asyncio.wait(closing, timeout=AT_EXIT)

        try:
            self.run(close_all())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(AT_EXIT)
            self.handlers.shutdown(wait=False, cancel_futures=True)
            if not self._thread.is_alive():
                self.loop.close()


_LOCK = threading.Lock()
_PORTALS: list[Portal] = []


def portal() -> Portal:
    """The portal of this process."""
    with _LOCK:
        if not _PORTALS:
            _PORTALS.append(Portal())
            atexit.register(_PORTALS[0].close)
        return _PORTALS[0]
