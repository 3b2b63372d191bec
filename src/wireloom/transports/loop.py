"""The event loop everything runs on: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, the fastest there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[object, object, T]) -> T:
    """Run a program to its end, as `asyncio.run` does, on the fastest loop there is.

    >>> async def main():
    ...     return "done"
    >>> run(main())
    'done'
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
