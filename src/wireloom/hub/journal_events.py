"""Reads published events from a journal, in order, under every topic that they have.

The journal contains a message once, with its original topic. Routes may add topics, or give a message its only topic.
Routes are applied when the journal is read, with the routes in force at that time. So replays and webhooks also get
what routes publish, and a new route applies to past messages.
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
"""A published message, with its offset in the journal."""


class Routing:
    """Applies routes to messages that are read from the journal. Thread-safe."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def is_routed(self) -> bool:
        """Whether there are any routes."""
        return bool(self._hub.router.routes)

    def events(self, entry: Entry) -> Sequence[Message]:
        """The events of a message: the message itself if it is an event, then the copies that routes make."""
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
        """The URL of the listener that received a message, by its connection or its address; empty if unknown."""
        message = entry.message
        connection = self._hub.connections.get(int(message.connection or "0", 16))
        if connection is not None:
            return connection.listener.url
        return self._hub.listener_at(message.protocol, entry.local) or ""


class Publications:
    """Extracts published events from a journal that is read in order."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._excluded = Exclusions(DENIED, TAKEN)

    def take(self, found: Found) -> Sequence[Message]:
        """The events of the next journal entry, one for each topic. Empty if it contains none."""
        if not isinstance(found, Entry):
            self._excluded.note(found.block)
            return ()
        if not found.inbound or found in self._excluded:
            return ()
        return self._routing.events(found)

    def read(self, tail: Tail, pattern: str, limit: int) -> tuple[list[Published], Offset | None] | None:
        """The events of the next piece of a journal for some topics, and the offset at its end. None at the end of the
        journal.

        A message with several matching topics comes once, under the first of them, because its offset identifies it.
        Reads the disk and decodes: call it on a thread.
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
    """The events for some topics since a point, piece by piece, with their offsets. Only one thread may use it at a
    time.

    Where the journal cannot be read, `read` first returns everything before that place, then raises JournalError. It
    raises again until the place is readable: no message is skipped.
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
        """The segment and the byte offset of the next read."""
        return self._tail.position

    @property
    def is_remote(self) -> bool:
        """Whether the next piece comes from an archive, or may do so. Then it may take long."""
        return self._tail.is_remote

    def missed(self) -> bool:
        """Whether something was removed before it was read, since the last call."""
        missed, self._tail.missed = self._tail.missed, 0
        return bool(missed)

    def read(self) -> tuple[list[Published], Offset | None] | None:
        """The next piece, and the offset at its end. None at the end of the journal.

        Reads the disk and decodes: call it on a thread.
        """
        if self._failed:
            # The old reader stopped in the middle of the piece that failed.
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
            # Go on from here next time. A piece that contains only records has no offset to go on from.
            self._since = found[1]
            self._limit = min(2 * self._limit, self._piece)
        return found

    def close(self) -> None:
        """Close the segment."""
        self._tail.close()

    def close_after(self, reading: Future[T] | None) -> None:
        """Close the segment once a read on a thread is done. The thread goes on even if its waiter was cancelled."""
        if reading is None:
            self.close()
        else:
            reading.add_done_callback(lambda _: self.close())
