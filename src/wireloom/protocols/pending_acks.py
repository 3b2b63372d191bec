"""Acknowledged publishes that wait for their answers, remembered a batch at a time.

A session must know which ids its peer waits on: an id may be used again only after its answer. Thousands of ids that
came in one read, and are answered in one write, are not worth an entry each. A session keeps the batch instead.

Whether a new batch uses an id that waits already is decided by the smallest and the largest id first. Only where two
ranges overlap are the ids themselves compared.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, Protocol


class Keyed(Protocol):
    """A batch whose publishes have ids."""

    def keys(self, read: int) -> frozenset[object]:
        """The ids of the acknowledged publishes of one of its reads, as the session tells them apart."""


class Owed(NamedTuple):
    """The acknowledged publishes of one read."""

    batch: Keyed
    read: int
    low: int
    high: int
    size: int
    """How many there are."""
    ascending: int
    """1 if each id is larger than the one before, so that none stands twice; else 0."""


class OwedBatches(list[Owed]):
    """All batches of one session that wait for their answers."""

    __slots__ = ()

    def admit(self, new: Owed, alone: Container[object], others: int, limit: int) -> bool:
        """Take in the publishes of a read; False if an id is in use, or if that were more than the limit.

        `alone` are the ids that are owed one by one, `others` is how many there are.
        """
        if others or self:
            if others + sum(each.size for each in self) + new.size > limit:
                return False
            if others and any(key in alone for key in new.batch.keys(new.read)):
                return False
            for each in self:
                overlaps = each.low <= new.high and new.low <= each.high
                if overlaps and not new.batch.keys(new.read).isdisjoint(each.batch.keys(each.read)):
                    return False
        elif new.size > limit:
            return False
        if not new.ascending and len(new.batch.keys(new.read)) < new.size:
            return False
        self.append(new)
        return True

    def has(self, key: object) -> bool:
        """Whether the peer waits for an answer to this id."""
        return any(key in each.batch.keys(each.read) for each in self)

    @property
    def size(self) -> int:
        """How many publishes wait."""
        return sum(each.size for each in self)

    def settle(self, batch: Keyed, read: int) -> None:
        """The publishes of a read are answered, or answered one by one from now on."""
        for index, each in enumerate(self):
            if each[0] is batch and each[1] == read:
                del self[index]
                return
