"""The records `denied` and `taken`: they list requests in the next run that do not count as publishes.

Implements those records of docs/reference/journal-format.md: how they are made (`excluding`), what one says
(`Excluded`), and to which requests it applies when a journal is read in order (`Exclusions`).
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from wireloom.journal.blocks import MAX_COMMENT, Block
from wireloom.journal.reader import Entry
from wireloom.model import Kind, type_of_json

DENIED = "denied"
"""The record before a run with publishes that were answered with an error: which requests those are."""
TAKEN = "taken"
"""The record before a run with requests that a provider takes, of a protocol whose other requests are publishes."""
_LONGEST_ID = 1000
"""Characters of an id that such a record holds; of a longer one, its beginning."""
_ROOM = MAX_COMMENT - 200
"""Bytes of ids in one record."""


def excluding(ids: Iterable[str | None]) -> Iterator[dict[str, type_of_json]]:
    """The details of `denied` and `taken` records for some requests: intervals of decimal ids, and a list of others.

    If the ids are too many for one record, there are several.

    >>> list(excluding(["7", "8", "9", "a"]))
    [{'ids': ['a'], 'ranges': [[7, 9]]}]
    """
    texts, numbers = list[str](), list[int]()
    for each in ids:
        number = None if each is None else _number(each)
        if number is not None:
            numbers.append(number)
        elif each is not None:
            texts.append(each[:_LONGEST_ID])
    part: dict[str, list[type_of_json]] = {}
    room = _ROOM
    for name, said in itertools.chain(_by_number(sorted(numbers)), (("ids", each) for each in texts)):
        size = len(json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")) + 1
        if size > room:
            yield {key: part[key] for key in sorted(part)}
            part, room = {}, _ROOM
        part.setdefault(name, []).append(said)
        room -= size
    if part:
        yield {key: part[key] for key in sorted(part)}


def _by_number(numbers: list[int]) -> Iterator[tuple[str, type_of_json]]:
    """Single numbers as ids, those that follow each other as ranges."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            first, last = numbers[start], numbers[at - 1]
            yield ("ids", str(first)) if first == last else ("ranges", [first, last])
            start = at


def _number(identifier: str) -> int | None:
    """The number that an id is, written as numbers are; None if it is none, or too large."""
    if not identifier.isascii() or not identifier.isdecimal() or len(identifier) > 18:
        return None
    return None if identifier[0] == "0" and identifier != "0" else int(identifier)


class Excluded:
    """Requests that are no publishes, as the records before their run say.

    >>> excluded = Excluded()
    >>> excluded.add({"ids": ["a"], "ranges": [[7, 9]]})
    >>> "a" in excluded, "8" in excluded, "10" in excluded
    (True, True, False)
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._ranges: list[tuple[int, int]] = []
        self._firsts: list[int] | None = None
        """The beginnings of the ranges, once these are in order and apart."""

    def add(self, details: Mapping[str, type_of_json]) -> None:
        """Take what a record says; what makes no sense is left out."""
        ids, ranges = details.get("ids"), details.get("ranges")
        if isinstance(ids, list):
            self._ids.update(map(str, ids))
        if isinstance(ranges, list):
            for each in ranges:
                match each:
                    case [int(first), int(last)] if first <= last:
                        self._ranges.append((first, last))
            self._firsts = None

    def __contains__(self, identifier: str | None) -> bool:
        if identifier is None:
            return False
        if identifier[:_LONGEST_ID] in self._ids:
            return True
        number = _number(identifier) if self._ranges else None
        if number is None:
            return False
        if self._firsts is None:
            self._ranges = _apart(self._ranges)
            self._firsts = [first for first, _ in self._ranges]
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._ranges[at][1]


def _apart(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """An interval set: the ranges in order, with overlapping ones merged."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


class Exclusions:
    """Follows a journal that is read in order, and tells which requests such records are about."""

    def __init__(self, *names: str) -> None:
        """`names` are those of the records that count."""
        self._names = names
        self._excluded: dict[str, tuple[Excluded, int | None]] = {}
        """By connection: requests in its next run, and the packet id of that run once it is there."""

    def note(self, block: Block) -> None:
        """Take what a record says of the next run of its connection."""
        if block.connection is None:
            return
        connection = f"{block.connection:016x}"
        if block.record in self._names:
            excluded, run = self._excluded.get(connection, (None, None))
            if excluded is None or run is not None:
                # The first about the next run; others may follow.
                excluded = Excluded()
                self._excluded[connection] = excluded, None
            excluded.add(block.details)
        elif block.record == "closed":
            self._excluded.pop(connection, None)

    def __contains__(self, entry: Entry) -> bool:
        connection, run = entry.message.connection or "", entry.place.packet_id
        excluded, own = self._excluded.get(connection, (None, run)) if entry.inbound else (None, run)
        if excluded is None:
            return False
        if own is None:
            self._excluded[connection] = excluded, run
        elif own != run:
            del self._excluded[connection]
            return False
        return entry.message.kind is Kind.REQUEST and entry.message.id in excluded
