"""What counts as published: the same answer for a message that arrives and for one that is read from the journal."""

from __future__ import annotations

from wireloom.journal.reader import Entry
from wireloom.journal.tail import Found
from wireloom.model import Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH
from wireloom.protocols.registry import protocol as find_protocol

DENIED = "denied"
"""The record before a run with publishes that were answered with an error: `ids` of those requests."""
_KINDS = (Kind.EVENT, Kind.REQUEST)


def published(message: Message) -> Message | None:
    """The event that a message brings to its subscribers; None if it brings none.

    A request of a protocol whose requests are publishes (hsp) is taken for one, whoever provides its topic.

    >>> published(Message(Kind.REQUEST, "$hub/publish/a/b", b"1", protocol="emp")).topic
    'a/b'
    """
    topic = message.topic
    if not topic or message.kind not in _KINDS:
        return None
    if message.kind is Kind.REQUEST:
        if topic.startswith(PUBLISH):
            topic = topic.removeprefix(PUBLISH)
        elif topic.startswith(HUB_PREFIX) or not find_protocol(message.protocol).request_is_publish:
            return None
    return message if topic is message.topic else message.with_(topic=topic)


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

    def _is_denied(self, entry: Entry) -> bool:
        connection, run = entry.message.connection or "", entry.place.packet_id
        ids, own = self._denied.get(connection, (frozenset(), run))
        if own is None:
            self._denied[connection] = ids, run
        elif own != run:
            del self._denied[connection]
            return False
        return entry.message.kind is Kind.REQUEST and entry.message.id in ids
