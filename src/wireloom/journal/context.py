"""What a writer states in each segment, so that it can be understood by itself: contexts and principals.

Implements "Context" and the record `principal` of docs/reference/journal-format.md. Readers get a context as
`blocks.Stated`; keys, which are stated in the same way, are in `keys.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from wireloom.journal import blocks
from wireloom.model import type_of_json

_NO_TOPICS: Mapping[int, str] = MappingProxyType({})
_NO_SETTINGS: Mapping[str, str | bool] = MappingProxyType({})
_CONTEXT_IDS = itertools.count(1)


class Context:
    """What a reader must know to decode some connections, with its id and the records that state it. Never changes.

    `topics` are the numbers that stand for topics; `settings` are settings of the protocol that the peers agreed on.
    A context too large for one comment is stated in several records, which readers unite. Ids are counted, not computed
    from the content: a peer that chooses topics must not be able to choose an id that is taken.

    >>> Context({1: "a/b"}, {"profile": False}).records[0].decode()
    'record=context {"ctx":"...","settings":{"profile":false},"topics":{"1":"a/b"}}'
    """

    __slots__ = ("id", "records", "settings", "topics", "word")

    def __init__(
        self, topics: Mapping[int, str] = _NO_TOPICS, settings: Mapping[str, str | bool] = _NO_SETTINGS
    ) -> None:
        self.topics = dict(topics)
        self.settings = dict(settings)
        named: dict[str, type_of_json] = {str(number): topic for number, topic in self.topics.items()}
        chosen: dict[str, type_of_json] = {"settings": {**self.settings}} if self.settings else {}
        self.id = next(_CONTEXT_IDS) & 0xFFFFFFFF
        self.word = b" ctx=%08x" % self.id
        self.records = [
            blocks.record_comment("context", {"ctx": f"{self.id:08x}", **chosen, "topics": part})
            for part in _parts(named)
        ]


def _parts(topics: dict[str, type_of_json]) -> Iterator[dict[str, type_of_json]]:
    """The topics in pieces that fit a comment; no topics are one empty piece."""
    part: dict[str, type_of_json] = {}
    size = 0
    for number, topic in topics.items():
        # At most: a character has up to 4 bytes, or 6 where it is escaped.
        entry = 6 * len(str(topic)) + len(number) + 8
        if part and size + entry > blocks.MAX_COMMENT - 1000:
            yield part
            part, size = {}, 0
        part[number] = topic
        size += entry
    yield part


class Principal:
    """Who a connection was proved to be, with the record that states it. Never changes."""

    __slots__ = ("connection", "name", "record")

    def __init__(self, connection: int, name: str) -> None:
        self.connection = connection
        self.name = name
        self.record = blocks.record_comment("principal", {"principal": name}, connection)
