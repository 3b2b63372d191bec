"""Reads whose acknowledged publishes are answered in bulk: what a session must remember of them until then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from wireloom.protocols.publishes import Publishes

Key = TypeVar("Key", int, bytes)

BULK_FROM = 512
"""Bytes of a read from which on the kernels are tried."""
FEWEST = 4
"""Reads of fewer frames are handled faster one by one."""


class OwedReads(Generic[Key]):
    """The reads that wait for their answers."""

    def __init__(self) -> None:
        self._reads: dict[Publishes[Key], None] = {}

    def __bool__(self) -> bool:
        return bool(self._reads)

    def are_for(self, size: int) -> bool:
        """Whether a read of so many bytes is to be tried in bulk: if it is large, or others are answered that way."""
        return size >= BULK_FROM or bool(self._reads)

    @property
    def fewest(self) -> int:
        """How many frames make a bulk; while others wait, any, so that ids need not be known one by one."""
        return 1 if self._reads else FEWEST

    def admit(self, read: Publishes[Key], alone: Iterable[Key], count: int, limit: int) -> bool:
        """Take a read in; False if its keys may be in use already, or if that were more than the limit.

        `alone` are the keys that are owed one by one, `count` is how many there are.
        """
        new = read.stretches()
        if not new:
            return True
        pending = count + sum(each.unanswered for each in self._reads if not each.singled)
        if pending + read.unanswered > limit or any(low <= key <= high for key in alone for low, high in new):
            return False
        known = [stretch for each in self._reads for stretch in each.stretches()]
        for low, high in new:
            if any(low <= last and first <= high for first, last in known):
                return False
            known.append((low, high))
        self._reads[read] = None
        return True

    def single_out(self) -> list[tuple[Publishes[Key], int]]:
        """Every request that waits, as its read and its row: from now on they are owed one by one as well."""
        return [(read, row) for read in self._reads if not read.singled for row in read.single()]

    def forget(self, read: Publishes[Key]) -> None:
        """A read is answered."""
        self._reads.pop(read, None)
