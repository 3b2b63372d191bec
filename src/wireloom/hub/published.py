"""What was published, read from a journal in order, under every topic that it has.

The journal holds a message once, with the topic it came with. Routes may give it others, or its only one: they are
applied when it is read, as they are in force then. So what a route publishes is there for who asks for the past and
for webhooks, and a new route reaches back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wireloom.journal.blocks import MAX_COMMENT, Block
from wireloom.journal.reader import Entry, Offset
from wireloom.journal.tail import Found, Since, Tail
from wireloom.model import BodyError, JournalError, Kind, Message, type_of_json
from wireloom.protocols.published import published
from wireloom.topics import matches

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

__all__ = [
    "DENIED",
    "TAKEN",
    "Excluded",
    "PublicationReader",
    "Publications",
    "Published",
    "Routing",
    "excluding",
    "published",
]
T = TypeVar("T")

DENIED = "denied"
"""The record before a run with publishes that were answered with an error: which requests those are."""
TAKEN = "taken"
"""The record before a run with requests that a provider takes, of a protocol whose other requests are publishes."""
_LONGEST_ID = 1000
"""Characters of an id that such a record holds; of a longer one, its beginning."""
_ROOM = MAX_COMMENT - 200
"""Bytes of ids in one record."""


Published = tuple[Offset, Message]
"""A message that was published, and its place in the journal."""


class Routing:
    """Gives what is read from the journal the topics that routes give it. May be used on any thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def is_routed(self) -> bool:
        """Whether there are routes at all."""
        return bool(self._hub.router.routes)

    def events(self, entry: Entry) -> Sequence[Message]:
        """What a message brings to its subscribers: the event it is, then the copies that routes make of it."""
        message = entry.message
        event = published(message)
        routes = self._hub.router.routes
        if not routes:
            return () if event is None else (event,)
        own = message if event is None else event
        found = [] if event is None else [event]
        if event is not None or message.kind is Kind.OTHER or (message.kind is Kind.EVENT and not message.topic):
            for route in routes.concerning(self._listener(entry), own.topic):
                with contextlib.suppress(BodyError):
                    copy = route.take(own)
                    if copy is not None and copy.topic and self._hub.topic_limits.fault(copy.topic) is None:
                        found.append(copy)
        return found

    def _listener(self, entry: Entry) -> str:
        """The URL of the listener that a message came to: of its connection, or by the address; else nothing."""
        message = entry.message
        connection = self._hub.connections.get(int(message.connection or "0", 16))
        if connection is not None:
            return connection.listener.url
        return self._hub.listener_at(message.protocol, entry.local) or ""


def excluding(ids: Iterable[str | None]) -> Iterator[dict[str, type_of_json]]:
    """What the records `denied` and `taken` say of requests: their ids; decimal ones that follow each other as a range.

    There is one record, or as many as it takes where they are too many for one.

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
    """The same ranges in order, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


class Publications:
    """Finds what was published in a journal that is read in order."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._excluded: dict[str, tuple[Excluded, int | None]] = {}
        """By connection: requests in its next run that are no publishes, and that run once it is there."""

    def take(self, found: Found) -> Sequence[Message]:
        """The event in what comes next, under each of its topics; nothing if there is none."""
        if not isinstance(found, Entry):
            self._note(found.block)
            return ()
        if not found.inbound or (self._excluded and self._is_excluded(found)):
            return ()
        return self._routing.events(found)

    def _note(self, block: Block) -> None:
        if block.connection is None:
            return
        connection = f"{block.connection:016x}"
        if block.record in (DENIED, TAKEN):
            excluded, run = self._excluded.get(connection, (None, None))
            if excluded is None or run is not None:
                # The first about the next run; others may follow.
                excluded = Excluded()
                self._excluded[connection] = excluded, None
            excluded.add(block.details)
        elif block.record == "closed":
            self._excluded.pop(connection, None)

    def read(self, tail: Tail, pattern: str, limit: int) -> tuple[list[Published], Offset | None] | None:
        """What the next piece of a journal holds for some topics, and the offset it ends with; None at the end.

        A message that has several of these topics comes once, under the first of them: its offset is its name.
        Reads the disk and decodes: for a thread.
        """
        entries = tail.read(limit)
        if not entries:
            return None
        found: list[Published] = []
        last = None
        for entry in entries:
            events = self.take(entry)
            if isinstance(entry, Entry):
                last = entry.place
                for event in events:
                    if matches(pattern, event.topic or ""):
                        found.append((entry.place, event))
                        break
        return found, last

    def _is_excluded(self, entry: Entry) -> bool:
        connection, run = entry.message.connection or "", entry.place.packet_id
        excluded, own = self._excluded.get(connection, (None, run))
        if excluded is None:
            return False
        if own is None:
            self._excluded[connection] = excluded, run
        elif own != run:
            del self._excluded[connection]
            return False
        return entry.message.kind is Kind.REQUEST and entry.message.id in excluded


class PublicationReader:
    """What was published for some topics since a point, piece by piece, with its place. One thread at a time.

    Where the journal cannot be read, `read` first gives all that stands before that place, then raises JournalError.
    It does so again until the place is readable: nothing is passed over.
    """

    def __init__(self, folder: Path, since: Since, pattern: str, routing: Routing, piece: int) -> None:
        self._folder, self._since, self._pattern, self._routing = folder, since, pattern, routing
        self._piece = self._limit = piece
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._tail, self._publications = Tail(self._folder, self._since), Publications(self._routing)

    @property
    def position(self) -> tuple[str, int]:
        """The segment and the byte that come next."""
        return self._tail.position

    def missed(self) -> bool:
        """Whether something was removed before it was read, since this was last asked."""
        missed, self._tail.missed = self._tail.missed, 0
        return bool(missed)

    def read(self) -> tuple[list[Published], Offset | None] | None:
        """The next piece, and the offset it ends with; None at the end. Reads the disk and decodes: for a thread."""
        if self._failed:
            # The old one stands somewhere amid the piece that failed.
            self._tail.close()
            self._begin()
            self._failed = False
        try:
            found = self._publications.read(self._tail, self._pattern, self._limit)
        except JournalError:
            self._failed = True
            if self._limit == 1:
                raise
            self._limit = 1
            return self.read()
        if found is not None and found[1] is not None:
            # Only then is what failed further on, or past: a piece of records alone does not say so.
            self._since = found[1]
            self._limit = min(2 * self._limit, self._piece)
        return found

    def close(self) -> None:
        """Let go of the segment."""
        self._tail.close()

    def close_after(self, reading: Future[T] | None) -> None:
        """The same once nobody reads: whoever waited for a thread may be cancelled, the thread goes on."""
        if reading is None:
            self.close()
        else:
            reading.add_done_callback(lambda _: self.close())
