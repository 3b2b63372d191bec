"""Threads for work on a disk that may never come back: they do not keep the process from ending.

`ThreadPoolExecutor` waits at the end of the process for every call that is under way. A call to a disk that hangs would
keep a hub that was told to stop for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = tuple[Future[T], Callable[[], T]]


class DaemonExecutor(Executor):
    """An executor whose threads end with the process, whatever they are doing. They start with the first call.

    >>> threads = DaemonExecutor("example")
    >>> threads.submit(sum, [1, 2]).result()
    3
    >>> threads.shutdown()
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        self._closed = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call something on one of the threads; calls begin in the order they are given."""
        if self._closed:
            raise RuntimeError("cannot submit after shutdown")
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        future: Future[T] = Future()
        self._work.put((future, lambda: call(*args, **kwargs)))  # type: ignore[arg-type]
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # Not while the next is waited for: a result may be large.
            del work, future, call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; the threads end when they have done what was given, which may be waited for."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
