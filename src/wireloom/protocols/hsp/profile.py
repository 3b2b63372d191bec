"""Topics in hsp: numbers that stand for topics, and the reserved types of the hub profile.

hsp leaves the meaning of its 16-bit types to the application. Here a type means a topic: by a map
that both ends agree on, else the topic `hsp/<type>`. Where the hub profile is on, seven types are
reserved: one wraps a message together with its topic (`ENVELOPE`), the others are the hub's operations.

An envelope's payload is: topic length (2 bytes), topic (UTF-8), content type length (1 byte), content
type (ASCII), body. A payload that does not fit this is ordinary data of its type, and so is an envelope
for the topic that the type itself stands for: else two payloads would mean the same message.

A map's payload is a JSON object whose `topics` gives numbers (decimal text, none of the reserved) their topics.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from wireloom.model import NotSupported
from wireloom.protocols.contract import HUB_PREFIX, LOGIN, PUBLISH

ENVELOPE = 0xFD00
MAP_TYPE = 0xFD05
OPERATIONS = {
    0xFD01: HUB_PREFIX + "subscribe",
    0xFD02: HUB_PREFIX + "unsubscribe",
    0xFD03: HUB_PREFIX + "provide",
    0xFD04: HUB_PREFIX + "withdraw",
    MAP_TYPE: HUB_PREFIX + "map",
    0xFD06: LOGIN,
}
FIRST_RESERVED, LAST_RESERVED = 0xFD00, 0xFD0F
_OPERATION_TYPES = {topic: number for number, topic in OPERATIONS.items()}
UNNAMED = "hsp/"
"""Topics of types that no map names: `hsp/7`."""
REMEMBERED, SHORT = 1024, 256
"""How many topics are remembered as they are read and written, and the longest of them in bytes."""


_NOTHING: Mapping[int, str] = MappingProxyType({})


@dataclass(slots=True, weakref_slot=True)
class Names:
    """What types mean on one connection."""

    topics: Mapping[int, str] = field(default_factory=dict)
    profile: bool = True
    taken: Mapping[int, str] = field(default_factory=dict)
    """Numbers that stand for something else at this end, though the peer may not know."""
    _numbers: dict[str, int] = field(init=False, default_factory=dict)
    _written: dict[tuple[str, str | None], tuple[int, bytes]] = field(init=False, default_factory=dict)

    @classmethod
    def shared(cls, topics: Mapping[int, str], profile: bool, taken: Mapping[int, str] = _NOTHING) -> Names:
        """The same object for the same names, as long as somebody has it.

        Connections with the same names are read together, and written to alike.
        """
        key = (tuple(topics.items()), profile, tuple(taken.items()))
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = cls(topics, profile, taken)
        return found

    def __post_init__(self) -> None:
        self._numbers = {topic: number for number, topic in self.topics.items()}

    def topic(self, number: int) -> str:
        """The topic a type stands for.

        >>> Names({7: "sensors/kitchen"}).topic(7), Names().topic(7)
        ('sensors/kitchen', 'hsp/7')
        """
        named = self.topics.get(number)
        if named is None and self.profile:
            named = OPERATIONS.get(number)
        return named if named is not None else f"{UNNAMED}{number}"

    def is_kept_for_hub(self, number: int) -> bool:
        """Whether a type is one of the reserved, and stands for nothing else by a map.

        >>> Names().is_kept_for_hub(0xFD01), Names({0xFD01: "a"}).is_kept_for_hub(0xFD01)
        (True, False)
        """
        return FIRST_RESERVED <= number <= LAST_RESERVED and number not in self.topics

    def read(self, number: int, payload: bytes) -> tuple[str, bytes, str | None]:
        """Topic, body and content type of a typed payload."""
        if number == ENVELOPE and self.profile:
            opened = open_envelope(payload)
            if opened is not None and opened[0] != self.topic(ENVELOPE):
                return opened
        content_type = "application/json" if self.profile and number in OPERATIONS else None
        return self.topic(number), payload, content_type

    def says(self, number: int, topic: str) -> bool:
        """Whether a number stands for this topic at both ends, and for no other."""
        return self.topic(number) == topic and (number in self.topics or number not in self.taken)

    def write(self, topic: str, body: bytes, content_type: str | None) -> tuple[int, bytes]:
        """The typed payload that says this; an envelope where no number does."""
        number, head = self.head(topic, content_type)
        return number, head + body

    def head(self, topic: str, content_type: str | None) -> tuple[int, bytes]:
        """The type and the payload's beginning, before any body, that say this.

        >>> Names({7: "a"}).head("a", None), Names().head("a", None)
        ((7, b''), (64768, b'\\x00\\x01a\\x00'))
        """
        try:
            return self._written[topic, content_type]
        except KeyError:
            found = self._head(topic, content_type)
            if len(found[1]) <= SHORT:
                if len(self._written) >= REMEMBERED:
                    self._written.clear()
                self._written[topic, content_type] = found
            return found

    def _head(self, topic: str, content_type: str | None) -> tuple[int, bytes]:
        topic = topic.removeprefix(PUBLISH)
        number = self._numbers.get(topic)
        if number is None:
            number = _OPERATION_TYPES.get(topic) if self.profile else None
            if number is None and topic.startswith(UNNAMED):
                number = parse_number(topic.removeprefix(UNNAMED))
        if number is not None and self.says(number, topic):
            return number, b""
        if self.profile:
            return ENVELOPE, make_envelope(topic, b"", content_type)
        raise NotSupported(
            f"hsp has no type for topic {topic!r}: name it in `topics`, or turn the hub profile on (`profile`)"
        )


_Key = tuple[tuple[tuple[int, str], ...], bool, tuple[tuple[int, str], ...]]
_SHARED: weakref.WeakValueDictionary[_Key, Names] = weakref.WeakValueDictionary()


@lru_cache(maxsize=REMEMBERED)
def attributes_of(number: int) -> Mapping[str, str]:
    """The attributes of a message with this type.

    >>> dict(attributes_of(7))
    {'type': '7'}
    """
    return MappingProxyType({"type": str(number)})


def parse_number(text: str) -> int | None:
    """A 16-bit type from its one way to be written in decimal; None for any other text.

    >>> parse_number("7"), parse_number("07"), parse_number("65536")
    (7, None, None)
    """
    if len(text) > 5 or not (text.isascii() and text.isdecimal()) or str(int(text)) != text:
        return None
    number = int(text)
    return number if number <= 0xFFFF else None


def parse_map(body: bytes) -> dict[int, str] | None:
    """The numbers and topics of a `$hub/map`; None when the body is no such map.

    >>> parse_map(b'{"topics": {"7": "sensors/kitchen"}}')
    {7: 'sensors/kitchen'}
    >>> parse_map(b'{"topics": {"64769": "a"}}') is None
    True
    """
    try:
        named = json.loads(body)["topics"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    topics: dict[int, str] = {}
    for text, topic in named:
        number = parse_number(text)
        if number is None or FIRST_RESERVED <= number <= LAST_RESERVED:
            return None
        if not isinstance(topic, str) or not topic or topic.startswith(HUB_PREFIX):
            return None
        topics[number] = topic
    return topics


def make_envelope(topic: str, body: bytes, content_type: str | None) -> bytes:
    """A body together with its topic and content type.

    >>> make_envelope("a/b", b"!", "text/plain")
    b'\\x00\\x03a/b\\ntext/plain!'
    """
    try:
        name, kind = topic.encode(), (content_type or "").encode("ascii")
    except UnicodeEncodeError as error:
        raise NotSupported(f"an hsp envelope has a topic in UTF-8 and a content type in ASCII: {error}") from None
    if len(name) > 0xFFFF or len(kind) > 0xFF:
        raise NotSupported("a topic has at most 65535 bytes and a content type at most 255 in an hsp envelope")
    return len(name).to_bytes(2) + name + bytes((len(kind),)) + kind + body


def open_envelope(payload: bytes) -> tuple[str, bytes, str | None] | None:
    """Topic, body and content type; None when the payload is not an envelope.

    >>> open_envelope(b"\\x00\\x03a/b\\ntext/plain!")
    ('a/b', b'!', 'text/plain')
    """
    if len(payload) < 3:
        return None
    body_at = 3 + (payload[0] << 8 | payload[1])
    if len(payload) < body_at:
        return None
    body_at += payload[body_at - 1]
    if len(payload) < body_at:
        return None
    opened = _open_head(payload[:body_at]) if body_at <= SHORT else _open_head.__wrapped__(payload[:body_at])
    return None if opened is None else (opened[0], payload[body_at:], opened[1])


@lru_cache(maxsize=REMEMBERED)
def _open_head(head: bytes) -> tuple[str, str | None] | None:
    """Topic and content type that an envelope begins with; None when they are no text."""
    name_end = 2 + int.from_bytes(head[:2])
    try:
        return head[2:name_end].decode(), head[name_end + 1 :].decode("ascii") or None
    except UnicodeDecodeError:
        return None
