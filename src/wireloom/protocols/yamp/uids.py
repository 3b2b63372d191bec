"""Message ids of yamp: UUIDs of version 7 (RFC 9562), without a clock or randomness of their own."""

from __future__ import annotations

import struct
from random import Random

_pack = struct.Struct(">QQ").pack
_VERSION = 7 << 12
_VARIANT = 2 << 62
_COUNTER_BITS = 12


class Uids:
    """Draws uids that ascend, also within one millisecond and when the clock steps back.

    `seed` decides everything that is not time: two generators with the same seed draw the same uids at the
    same times, so whoever makes one passes a number nobody else has. The ids are unique, not secret.

    >>> uids = Uids(seed=1)
    >>> first, second = uids.draw(1_700_000_000_000), uids.draw(1_700_000_000_000)
    >>> first < second, first.hex()[:13]
    (True, '018bcfe568007')
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._last = -1
        self._counter = 0

    def draw(self, milliseconds: int) -> bytes:
        """The next uid, at a time in milliseconds since 1970."""
        if milliseconds > self._last:
            self._last = milliseconds
            # The upper bit stays free, so that there is room to count within the millisecond.
            self._counter = self._random.getrandbits(_COUNTER_BITS - 1)
        else:
            self._counter += 1
            if self._counter >> _COUNTER_BITS:
                self._last += 1
                self._counter = 0
        high = (self._last & 0xFFFF_FFFF_FFFF) << 16 | _VERSION | self._counter
        return _pack(high, _VARIANT | self._random.getrandbits(62))
