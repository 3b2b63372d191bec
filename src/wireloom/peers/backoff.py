"""Delays between attempts: each longer than the last, with jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter.

    >>> waits = Backoff(minimum=0.1, maximum=1.0, factor=2, jitter=0).delays()
    >>> tuple(next(waits) for _ in range(5))
    (0.1, 0.2, 0.4, 0.8, 1.0)
    """

    minimum: float = 0.1
    maximum: float = 30.0
    factor: float = 2.0
    jitter: float = 0.5
    """The random part of a delay: 0.5 means between half of it and all of it."""
    attempts: int | None = None
    """Give up after this many tries in a row; None: never."""
    stable: float = 5.0
    """A connection that lasted this many seconds counts as a success: the next delay is the shortest again."""
    from_start: bool = False
    """Whether the first connection is retried, too, instead of failing at once."""
    random: Callable[[], float] = field(default=random.random, repr=False)
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False)

    def delays(self) -> Iterator[float]:
        """The delays before each attempt."""
        base, attempt = self.minimum, 0
        while self.attempts is None or attempt < self.attempts:
            yield base * (1 - self.jitter * self.random())
            base = min(self.maximum, base * self.factor)
            attempt += 1
