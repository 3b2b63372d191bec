"""Which values are large: those are read and written by another thread, so that the event loop turns meanwhile."""

from __future__ import annotations

from collections.abc import Sized

LARGE = 64 * 1024
"""Bytes of a body, or characters of a text, from which on reading or writing it takes long."""
MANY = 2000
"""Values inside a value from which on it takes long."""


def is_large(value: object) -> bool:
    """Whether writing a value as JSON or the like takes long; a look at a part of it is enough to tell.

    >>> is_large({"c": 21.5}), is_large(["x"] * 5000), is_large({"text": "x" * 100_000})
    (False, True, True)
    """
    left = MANY
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            left -= len(each) * MANY // LARGE
        elif isinstance(each, dict | list | tuple):
            left -= len(each)
            if left > 0:
                waiting.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, Sized) and not isinstance(each, bytes | bytearray | memoryview):
            left -= 20 * len(each)  # an XML element: so many children, and theirs
        if left <= 0:
            return True
    return False
