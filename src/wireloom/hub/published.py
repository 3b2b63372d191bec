"""What was published, read from a journal in order."""

from __future__ import annotations

from wireloom.journal.reader import Entry, Offset
from wireloom.journal.tail import Found, Tail
from wireloom.model import Kind, Message
from wireloom.protocols.published import published
from wireloom.topics import matches

__all__ = ["DENIED", "Publications", "Published", "published"]

DENIED = "denied"
"""The record before a run with publishes that were answered with an error: `ids` of those requests."""


Published = tuple[Offset, Message]
"""A message that was published, and its place in the journal."""


class Publications:
    """Finds what was published in a journal that is read in order."""

    def __init__(self) -> None:
        self._denied: dict[str, tuple[frozenset[str], int | None]] = {}
        """By connection: ids of requests in its next run that were denied, and that run once it is there."""

    def take(self, found: Found) -> Message | None:
        """The event in what comes next, if there is one."""
        if not isinstance(found, Entry):
            block = found.block
            if block.record == DENIED and block.connection is not None:
                ids = block.details.get("ids")
                known = frozenset(map(str, ids)) if isinstance(ids, list) else frozenset()
                self._denied[f"{block.connection:016x}"] = known, None
            return None
        if not found.inbound:
            return None
        if self._denied and self._is_denied(found):
            return None
        return published(found.message)

    def read(self, tail: Tail, pattern: str, limit: int) -> tuple[list[Published], Offset | None] | None:
        """What the next piece of a journal holds for some topics, and the offset it ends with; None at the end.

        Reads the disk and decodes: for a thread.
        """
        entries = tail.read(limit)
        if not entries:
            return None
        found: list[Published] = []
        last = None
        for entry in entries:
            message = self.take(entry)
            if isinstance(entry, Entry):
                last = entry.place
                if message is not None and matches(pattern, message.topic or ""):
                    found.append((entry.place, message))
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
