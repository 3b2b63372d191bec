"""Reads are taken in portions, so that no peer keeps the event loop for long.

Theory of operation
-------------------
A read can hold a hundred thousand tiny frames. A session gives them out a batch at a time (`Session.batches`), and its
driver looks at the clock behind each batch. Once a read has taken `LONG` seconds, what is left of it waits in a `Rest`:
the iterator over its batches, and whatever is received behind it. Nothing more is read from that peer meanwhile. So
order is kept, and a peer has at most a read or two waiting.

All rests of a loop wait in one row (`transports/portions.py`). Each iteration of the loop takes portions for `LONG`
seconds in all, then lets everybody else have a turn. So how long others wait does not depend on how many send much.

A driver that is on hold (its peer is over its rate, a queue is full, the disk is slow) takes no portions until it is
released. A peer is therefore never in debt by more than one batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from wireloom.protocols.contract import Batch

WAITING = "portions"
"""Why nothing is read while a rest waits."""


class Rest:
    """What a peer sent that is not taken yet."""

    __slots__ = ("end", "input_is_over", "is_due", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[bytes | Iterator[Batch]] = deque()
        """The batches of the read at hand, then what was received behind it."""
        self.is_due = False
        """Whether it stands in the row."""
        self.input_is_over = False
        """The end of the input came behind it."""
        self.end: tuple[Exception | None] | None = None
        """The pipe is gone, and why; what it brought before counts."""

    @property
    def size(self) -> int:
        """How many bytes have not been looked at."""
        return sum(len(each) for each in self.waiting if isinstance(each, bytes))
