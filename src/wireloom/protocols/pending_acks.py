"""Pending acknowledgements: the ids of publishes whose answers were not sent yet, kept a batch at a time.

Theory of operation
-------------------
Problem: a peer may use an id again only after its answer. So a session must know all ids with a pending answer.
Thousands of publishes can come in one read, and one write answers them all. One dictionary entry for each is too slow.

Idea: keep one `Owed` for each read: its id range (`low` to `high`) and how many ids it has. The ids themselves stay in
the columns of the batch. They become a set (`Keyed.keys`) only where an id range cannot decide.

Invariant: no id is pending twice, and no more than `limit` ids are pending. `OwedBatches.admit` checks this:

1. The sum of all sizes must stay within the limit.
2. Ids that are pending one by one are looked up in the set of the new ids.
3. Two batches whose id ranges are disjoint share no id. Only where ranges overlap are the sets compared.
4. Within the batch, ascending ids are unique. Only where they are not ascending is the size of their set compared.

Example: ids 1 to 500 are pending. A batch with 501 to 900 is admitted after two comparisons of integers. A batch with
400 to 700 overlaps; the sets are compared, 400 to 500 are in both, and the batch is refused. The caller then decodes
that read one message at a time, and the reference decoder finds the message that breaks the rule.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, Protocol


class Keyed(Protocol):
    """A batch whose publishes have ids."""

    def keys(self, read: int) -> frozenset[object]:
        """The ids of the acknowledged publishes of one of its reads, in the form in which the session compares them."""


class Owed(NamedTuple):
    """The pending acknowledgements of one read."""

    batch: Keyed
    read: int
    low: int
    high: int
    size: int
    """How many ids there are."""
    ascending: int
    """1 if each id is larger than the one before, which rules out duplicates; else 0."""


class OwedBatches(list[Owed]):
    """All pending acknowledgements of one session that are kept a batch at a time."""

    __slots__ = ()

    def admit(self, new: Owed, alone: Container[object], others: int, limit: int) -> bool:
        """Add the ids of a read; returns False, and adds nothing, if one is in use or the limit would be exceeded.

        `alone` holds the ids that are pending one by one, `others` is their number.
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
        """Whether the answer to this id is pending."""
        return any(key in each.batch.keys(each.read) for each in self)

    @property
    def size(self) -> int:
        """How many acknowledgements are pending."""
        return sum(each.size for each in self)

    def settle(self, batch: Keyed, read: int) -> None:
        """Remove the ids of a read: they were answered, or they are kept one by one from now on."""
        for index, each in enumerate(self):
            if each[0] is batch and each[1] == read:
                del self[index]
                return
