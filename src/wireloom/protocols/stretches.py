"""Sets of numbers that are mostly used one after the other, and answered likewise."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Stretches:
    """A set of numbers, kept as the stretches it consists of: a thousand in a row take as much as one.

    >>> waiting = Stretches()
    >>> waiting.add(range(1, 65)), waiting.add(range(60, 70))
    (True, False)
    >>> waiting.remove(range(1, 33)), waiting.remove(range(1, 2)), len(waiting), 33 in waiting
    (True, False, 32, True)
    """

    __slots__ = ("_count", "_firsts", "_stops")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        """Ascending, and apart from each other: where one stretch stops the next does not begin."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[int]:
        for first, stop in zip(self._firsts, self._stops, strict=True):
            yield from range(first, stop)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number) - 1
        return place >= 0 and number < self._stops[place]

    def add(self, numbers: range) -> bool:
        """Take in numbers that follow each other; False, and nothing done, if one of them is in already."""
        first, stop, firsts, stops = numbers.start, numbers.stop, self._firsts, self._stops
        place = bisect_right(firsts, first)
        """Of the stretch after them."""
        if (place and stops[place - 1] > first) or (place < len(firsts) and firsts[place] < stop):
            return False
        before, after = place > 0 and stops[place - 1] == first, place < len(firsts) and firsts[place] == stop
        if before and after:
            stops[place - 1] = stops[place]
            del firsts[place], stops[place]
        elif before:
            stops[place - 1] = stop
        elif after:
            firsts[place] = first
        else:
            firsts.insert(place, first)
            stops.insert(place, stop)
        self._count += stop - first
        return True

    def remove(self, numbers: range) -> bool:
        """Take out numbers that follow each other; False, and nothing done, if one of them is not in."""
        first, stop, firsts, stops = numbers.start, numbers.stop, self._firsts, self._stops
        place = bisect_right(firsts, first) - 1
        if place < 0 or stop > stops[place]:
            return False
        left, right = firsts[place] < first, stop < stops[place]
        if left and right:
            firsts.insert(place + 1, stop)
            stops.insert(place, first)
        elif left:
            stops[place] = first
        elif right:
            firsts[place] = stop
        else:
            del firsts[place], stops[place]
        self._count -= stop - first
        return True

    def clear(self) -> None:
        """Take out all."""
        self._firsts.clear()
        self._stops.clear()
        self._count = 0
