"""What was published, read from a journal in order, under every topic that it has.

The journal holds a message once, with the topic it came with. Routes may give it others, or its only one: they are
applied when it is read, as they are in force then. So what a route publishes is there for who asks for the past and
for webhooks, and a new route reaches back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wireloom.journal.reader import Entry, Offset
from wireloom.journal.tail import Found, Tail
from wireloom.model import BodyError, Kind, Message
from wireloom.protocols.published import published
from wireloom.topics import matches

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

__all__ = ["DENIED", "Publications", "Published", "Routing", "published"]

DENIED = "denied"
"""The record before a run with publishes that were answered with an error: `ids` of those requests."""


Published = tuple[Offset, Message]
"""A message that was published, and its place in the journal."""


class Routing:
    """Gives what is read from the journal the topics that routes give it. May be used on any thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

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
                    if copy is not None and copy.topic:
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
        self._denied: dict[str, tuple[frozenset[str], int | None]] = {}
        """By connection: ids of requests in its next run that were denied, and that run once it is there."""

    def take(self, found: Found) -> Sequence[Message]:
        """The event in what comes next, under each of its topics; nothing if there is none."""
        if not isinstance(found, Entry):
            block = found.block
            if block.record == DENIED and block.connection is not None:
                ids = block.details.get("ids")
                known = frozenset(map(str, ids)) if isinstance(ids, list) else frozenset()
                self._denied[f"{block.connection:016x}"] = known, None
            return ()
        if not found.inbound or (self._denied and self._is_denied(found)):
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

    def _is_denied(self, entry: Entry) -> bool:
        connection, run = entry.message.connection or "", entry.place.packet_id
        ids, own = self._denied.get(connection, (frozenset(), run))
        if own is None:
            self._denied[connection] = ids, run
        elif own != run:
            del self._denied[connection]
            return False
        return entry.message.kind is Kind.REQUEST and entry.message.id in ids
