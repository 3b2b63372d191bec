"""What was published, read from a journal in order, under every topic that it has.

The journal holds a message once, with the topic it came with. Routes may give it others, or its only one: they are
applied when it is read, as they are in force then. So what a route publishes is there for who asks for the past and
for webhooks, and a new route reaches back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.exclusions import DENIED, TAKEN, Exclusions
from wireloom.journal.reader import Entry, Offset
from wireloom.journal.tail import Found, Since, Tail
from wireloom.model import BodyError, JournalError, Kind, Message
from wireloom.protocols.publish_rules import published
from wireloom.topics import matches

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

T = TypeVar("T")

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


class Publications:
    """Finds what was published in a journal that is read in order."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._excluded = Exclusions(DENIED, TAKEN)

    def take(self, found: Found) -> Sequence[Message]:
        """The event in what comes next, under each of its topics; nothing if there is none."""
        if not isinstance(found, Entry):
            self._excluded.note(found.block)
            return ()
        if not found.inbound or found in self._excluded:
            return ()
        return self._routing.events(found)

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


class PublicationReader:
    """What was published for some topics since a point, piece by piece, with its place. One thread at a time.

    Where the journal cannot be read, `read` first gives all that stands before that place, then raises JournalError.
    It does so again until the place is readable: nothing is passed over.
    """

    def __init__(
        self, folder: Path, since: Since, pattern: str, routing: Routing, piece: int, disk: Disk = LOCAL
    ) -> None:
        self._folder, self._since, self._pattern, self._routing = folder, since, pattern, routing
        self._disk = disk
        self._piece = self._limit = piece
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._tail = Tail(self._folder, self._since, disk=self._disk)
        self._publications = Publications(self._routing)

    @property
    def position(self) -> tuple[str, int]:
        """The segment and the byte that come next."""
        return self._tail.position

    @property
    def is_remote(self) -> bool:
        """Whether the next piece comes from an archive, or may: then it may take long."""
        return self._tail.is_remote

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
