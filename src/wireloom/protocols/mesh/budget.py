"""Limits the signature checks for each source, so that forged packets cannot exhaust the processor.

Each source that sent an authentic packet has a token bucket. All other sources share one, because source addresses
are easily forged.
"""

from __future__ import annotations

from collections import OrderedDict

SOURCES_KEPT = 4096


class Budget:
    """Token buckets: `rate` verifications a second for each source, and no more than that many at once.

    >>> budget = Budget(2)
    >>> budget.welcome("10.0.0.1:5041", 0.0)
    >>> [budget.take("10.0.0.1:5041", 0.0) for _ in range(3)], budget.take("10.0.0.1:5041", 0.5)
    ([True, True, False], True)
    """

    def __init__(self, rate: float, sources: int = SOURCES_KEPT) -> None:
        self.rate = rate
        self._kept = sources
        self._sources: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Tokens left and when that was, least recently heard first."""
        self._strangers: tuple[float, float] | None = None

    def welcome(self, source: str, now: float) -> None:
        """This source sent an authentic packet: give it a bucket of its own."""
        if source in self._sources:
            self._sources.move_to_end(source)
            return
        self._sources[source] = (self.rate, now)
        if len(self._sources) > self._kept:
            self._sources.popitem(last=False)

    def take(self, source: str, now: float) -> bool:
        """Whether one more signature may be verified for this source."""
        known = self._sources.get(source)
        level, then = known or self._strangers or (self.rate, now)
        level = min(self.rate, level + max(0.0, now - then) * self.rate)
        allowed = level >= 1.0
        left = (level - 1.0 if allowed else level, now)
        if known is None:
            self._strangers = left
        else:
            self._sources[source] = left
        return allowed
