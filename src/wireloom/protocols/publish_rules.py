"""What counts as published: one rule for live messages, for the journal and for tables.

Protocols carry an acknowledged publish in different operations: a request for `$hub/publish/<topic>`, or, in hsp, a
request that no provider took. `meaning` says what such a message is, whatever carried it: an event under its own topic.
Other requests under `$hub/` are operations of the hub: control traffic, which has no topic.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from wireloom.model import ConfigError, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH
from wireloom.protocols.registry import protocols
from wireloom.topics import validate_topic

_SHORT = 1024
"""Characters of the longest topic that is cached."""
OPERATION = "operation"
"""The attribute that names the operation of the hub in what has no topic, such as `subscribe`."""


class Verb(StrEnum):
    """What a message that expects an answer asks for."""

    PUBLISH = "publish"
    REQUEST = "request"


class PublishMeaning(NamedTuple):
    """What a message is, whatever operation carried it."""

    kind: Kind
    topic: str | None
    verb: Verb | None = None
    """None if no answer is expected."""
    operation: str | None = None
    """The operation of the hub that it asks for or answers, without `$hub/`."""


def meaning(kind: Kind, topic: str | None, *, acknowledges: bool = False) -> PublishMeaning:
    """What a message of this kind and topic is.

    `acknowledges`: a request to any topic is an acknowledged publish, as hsp's that no provider took are.

    >>> meaning(Kind.REQUEST, "$hub/publish/a/b")
    PublishMeaning(kind=<Kind.EVENT: 'event'>, topic='a/b', verb=<Verb.PUBLISH: 'publish'>, operation=None)
    >>> meaning(Kind.RESPONSE, "$hub/publish/a/b").topic, meaning(Kind.REQUEST, "$hub/subscribe").operation
    ('a/b', 'subscribe')
    """
    asks = kind is Kind.REQUEST
    if topic is not None and topic.startswith(HUB_PREFIX) and kind is not Kind.EVENT:
        goal = topic.removeprefix(PUBLISH)
        if goal is topic or not may_be_published(goal):
            return PublishMeaning(kind, None, Verb.REQUEST if asks else None, topic.removeprefix(HUB_PREFIX))
        topic, acknowledges = goal, True
    if asks and acknowledges and topic and may_be_published(topic):
        return PublishMeaning(Kind.EVENT, topic, Verb.PUBLISH)
    return PublishMeaning(kind, topic, Verb.REQUEST if asks else None)


def published(message: Message) -> Message | None:
    """The event that a message publishes; None if it publishes none.

    A request of a protocol whose requests are publishes (hsp) is taken for one, whoever provides its topic. One with a
    topic that nobody may publish to was answered with an error.

    >>> published(Message(Kind.REQUEST, "$hub/publish/a/b", b"1", protocol="emp")).topic
    'a/b'
    """
    if message.kind is Kind.EVENT:
        return message if message.topic and not message.topic.startswith(HUB_PREFIX) else None
    if message.kind is not Kind.REQUEST:
        return None
    found = meaning(message.kind, message.topic, acknowledges=requests_are_publishes(message.protocol))
    return message.with_(kind=found.kind, topic=found.topic) if found.verb is Verb.PUBLISH else None


def as_meant(message: Message, *, called: bool = False) -> tuple[Message, PublishMeaning]:
    """A message in the form shown to people, and its meaning; `called`: a provider took this request.

    >>> as_meant(Message(Kind.REQUEST, "$hub/subscribe", protocol="emp"))[0].attributes
    {'operation': 'subscribe'}
    """
    found = meaning(message.kind, message.topic, acknowledges=not called and requests_are_publishes(message.protocol))
    if found.operation is not None:
        attributes = {**message.attributes, OPERATION: found.operation}
        return message.with_(topic=None, attributes=attributes), found
    if found.kind is message.kind and found.topic == message.topic:
        return message, found
    return message.with_(kind=found.kind, topic=found.topic), found


def may_be_published(topic: str) -> bool:
    """Whether a publish may have this topic."""
    try:
        validate_publish(topic)
    except ConfigError:
        return False
    return True


def validate_publish(topic: str) -> None:
    """Raise ConfigError for a topic that no publish may have: only the hub publishes under `$hub/`."""
    (_validate if len(topic) <= _SHORT else _validate.__wrapped__)(topic)


@lru_cache(maxsize=1024)
def _validate(topic: str) -> None:
    validate_topic(topic)
    if topic.startswith(HUB_PREFIX):
        raise ConfigError(f"topic {topic!r} is the hub's own; publish to one that does not begin with {HUB_PREFIX}")


def requests_are_publishes(name: str) -> bool:
    """Whether requests of a protocol that no provider takes are acknowledged publishes."""
    known = protocols().get(name)
    return known is not None and known.request_is_publish
