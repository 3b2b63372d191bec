"""Message ids of yamp: UUIDs of version 7 (RFC 9562), without a clock or randomness of their own."""

from __future__ import annotations

import struct
from random import Random

_pack_counter = struct.Struct(">H").pack
_VERSION = 7 << 12
_VARIANT = 2 << 62
_COUNTER_BITS = 12
_LAST_COUNTER = (1 << _COUNTER_BITS) - 1


def uid_text(uid: bytes) -> str:
    """A uid as hyphenated text.

    >>> uid_text(bytes(range(16)))
    '00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    digits = uid.hex("-", 6)
    return f"{digits[:13]}-{digits[13:17]}-{digits[17:]}"


def uid_bytes(text: str) -> bytes:
    """The inverse of `uid_text`, for a text that it gave.

    >>> uid_bytes(uid_text(bytes(range(16)))) == bytes(range(16))
    True
    """
    return bytes.fromhex(text.replace("-", ""))


class Uids:
    """Draws uids that ascend, also within one millisecond and when the clock steps back.

    A uid is the time, a counter, and a tail that is drawn anew for each millisecond. `seed` decides everything that
    is not time: two generators with the same seed draw the same uids at the same times, so whoever makes one passes a
    number nobody else has. The ids are unique, not secret.

    >>> uids = Uids(seed=1)
    >>> first, second = uids.draw(1_700_000_000_000), uids.draw(1_700_000_000_000)
    >>> first < second, first.hex()[:13]
    (True, '018bcfe568007')
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        # A time before 1970 counts as the end of all time: nobody has such a clock, but nothing breaks.
        self._last, self._counter = -2, 0
        self._begin(-1)

    def draw(self, milliseconds: int) -> bytes:
        """The next uid, at a time in milliseconds since 1970."""
        if milliseconds != self._last or self._counter == _LAST_COUNTER:
            self._begin(milliseconds)
        else:
            self._counter += 1
        return self._time + _pack_counter(_VERSION | self._counter) + self._tail

    def _begin(self, milliseconds: int) -> None:
        """Go on to the next uid with the next millisecond, unless the clock has stepped back."""
        if milliseconds > self._last:
            # The upper bit stays free, so that there is room to count within the millisecond.
            self._last, self._counter = milliseconds, self._random.getrandbits(_COUNTER_BITS - 1)
        elif self._counter == _LAST_COUNTER:
            self._last, self._counter = self._last + 1, 0
        else:
            self._counter += 1
            return
        self._time = (self._last & 0xFFFF_FFFF_FFFF).to_bytes(6)
        self._tail = (_VARIANT | self._random.getrandbits(62)).to_bytes(8)
