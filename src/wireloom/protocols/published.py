"""What counts as published: one answer for what arrives, what is read from a journal, and what stands in a table."""

from __future__ import annotations

from functools import lru_cache

from wireloom.model import ConfigError, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH
from wireloom.protocols.registry import protocols
from wireloom.topics import validate_topic

_SHORT = 1024
"""Characters of the longest topic that is remembered."""
_KINDS = (Kind.EVENT, Kind.REQUEST)


def published(message: Message) -> Message | None:
    """The event that a message brings to its subscribers; None if it brings none.

    A request of a protocol whose requests are publishes (hsp) is taken for one, whoever provides its topic. One with a
    topic that nobody may publish to was answered with an error.

    >>> published(Message(Kind.REQUEST, "$hub/publish/a/b", b"1", protocol="emp")).topic
    'a/b'
    """
    topic = message.topic
    if not topic or message.kind not in _KINDS:
        return None
    if message.kind is Kind.EVENT and topic.startswith(HUB_PREFIX):
        return None
    if message.kind is Kind.REQUEST:
        if topic.startswith(PUBLISH):
            topic = topic.removeprefix(PUBLISH)
        elif topic.startswith(HUB_PREFIX) or not _requests_are_publishes(message.protocol):
            return None
        try:
            validate_publish(topic)
        except ConfigError:
            return None
    return message if topic is message.topic else message.with_(topic=topic)


def validate_publish(topic: str) -> None:
    """Raise ConfigError for a topic that no publish may have: under `$hub/` only the hub itself speaks."""
    (_validate if len(topic) <= _SHORT else _validate.__wrapped__)(topic)


@lru_cache(maxsize=1024)
def _validate(topic: str) -> None:
    validate_topic(topic)
    if topic.startswith(HUB_PREFIX):
        raise ConfigError(f"topic {topic!r} is the hub's own; publish to one that does not begin with {HUB_PREFIX}")


def _requests_are_publishes(name: str) -> bool:
    known = protocols().get(name)
    return known is not None and known.request_is_publish
