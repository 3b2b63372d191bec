"""Long reads are taken in chunks, so that no peer occupies the event loop for long.

Theory of operation
-------------------
The problem: one read can contain a hundred thousand tiny frames. To handle them all at once would block the event loop,
and all other peers with it.

The idea: a session yields the frames of a read batch by batch (`Session.batches`). The driver checks the clock after
each batch. Once a read has taken `LONG` seconds, its remainder waits in a `Rest`. A `Rest` holds the iterator over the
remaining batches, and the bytes that were received after this read.

All rests of an event loop wait in one queue (`transports/portions.py`). Each iteration of the loop spends `LONG`
seconds on this queue in total, then runs everything else. So the delay for other peers does not depend on how many
peers send long reads.

The invariants: the order of a peer's messages is kept, because later bytes wait behind the rest. Memory is bounded,
because reading from this peer stops while its rest waits: at most one or two reads are held.

A driver can be on hold: its peer is over its rate, a queue is full, or the disk is slow. It takes no chunks until it is
released. So a peer exceeds its rate by at most one batch.

Example: `LONG` is 3 ms, and a read takes 12 ms in all. Its driver works for 3 ms, then puts a `Rest` into the queue. If
no other rest waits, it is done three iterations later, and reading from the peer resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from wireloom.protocols.contract import Batch

WAITING = "portions"
"""The reason for which reading from a peer is on hold while its rest waits."""


class Rest:
    """Bytes and batches of a peer that are not taken yet."""

    __slots__ = ("end", "input_is_over", "is_due", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[bytes | Iterator[Batch]] = deque()
        """The batches of the current read, then the bytes that were received after it."""
        self.is_due = False
        """Whether this rest is in the queue."""
        self.input_is_over = False
        """Whether the end of the input was received after these bytes."""
        self.end: tuple[Exception | None] | None = None
        """Set once the pipe is gone, with the error if there was one. The bytes received before still count."""

    @property
    def size(self) -> int:
        """How many bytes are not decoded yet."""
        return sum(len(each) for each in self.waiting if isinstance(each, bytes))
