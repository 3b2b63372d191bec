"""How much one peer, one address, one principal, and all of them together may use.

No limit costs work for each message. Rates are charged once for each read. Memory and idle time are checked by the
hub's timer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import NamedTuple

from wireloom.model import ConfigError, Kind, WireloomError
from wireloom.protocols.contract import PUBLISH, Batch, Protocol, Publishes, Settings
from wireloom.topics import shortened, validate_pattern, validate_topic
from wireloom.transports.busy_poll import BUSY_POLL

LEAST_MESSAGE = 1024
"""Minimum size of a message: the hub's own operations must fit."""
KEPT = 10_000
"""How many addresses and principals are remembered. The least recently used are forgotten, and start anew."""
_DEBT = 1.0
"""Maximum seconds that one sender can delay others of its address or principal."""
_REMEMBERED = 4096
_TOPICAL = (Kind.EVENT, Kind.REQUEST)
"""Kinds of messages that have a topic."""


def check_positive(settings: Settings, *may_be_zero: str) -> None:
    """Reject settings that are zero or negative, except those for which 0 means "none"."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            if each.name not in may_be_zero:
                raise ConfigError(f"setting {each.name!r} is {value}; it must be more than 0")
            if value != 0:
                raise ConfigError(f"setting {each.name!r} is {value}; it must be 0 or more")


class SlowConsumer(StrEnum):
    """What happens to events for a subscriber whose queue is full."""

    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"
    DISCONNECT = "disconnect"


class OverRate(StrEnum):
    """What happens to a principal that is over its rate."""

    PAUSE = "pause"
    """Stop reading from the peer until its token bucket refills: the peer feels back-pressure."""
    REFUSE = "refuse"
    """Refuse what is over the rate: requests get an error, events are dropped and counted."""


@dataclass(frozen=True, slots=True)
class HubLimits(Settings):
    """The table `[limits]`."""

    message_bytes: int = 16 * 1024 * 1024
    """Maximum size of one message, on every listener. A listener's own settings can only lower it."""
    decompressed_bytes: int = 16 * 1024 * 1024
    """Maximum size of one message after decompression. A listener's own settings can only lower it."""
    queue_bytes: int = 4 * 1024 * 1024
    """Maximum bytes of unsent events for each subscriber."""
    slow_consumer: SlowConsumer = SlowConsumer.DROP_OLDEST
    max_connections: int = 20_000
    max_connections_per_address: int = 2_000
    messages_per_second: float = math.inf
    """Rate of one principal, over all its connections."""
    stranger_messages_per_second: float = 100.0
    """Rate of one address, for peers without any rights."""
    over_rate: OverRate = OverRate.PAUSE
    handshake_seconds: float = 10.0
    """Time for TLS, WebSocket and the protocol's own handshake, and for a peer without rights to present a token."""
    handshakes: int = 2000
    """Maximum TLS and WebSocket handshakes of one listener at a time."""
    handshakes_per_address: int = 1000
    idle_seconds: float = 3600.0
    memory_bytes: int = 1024 * 1024 * 1024
    """Maximum bytes of all queues, of data that waits for the journal, and of incomplete messages."""
    topic_bytes: int = 1024
    """Maximum bytes of a topic or pattern."""
    topic_levels: int = 64
    """Maximum levels of a topic or pattern."""
    subscriptions: int = 100_000
    """Maximum patterns that all connections together subscribe to or provide."""
    subscriptions_per_connection: int = 10_000
    wildcard_shapes: int = 128
    """Maximum number of wildcard shapes among all patterns: `a/+` and `b/+` share one, `+/+` and `a/#` have others.
    Each shape costs one step in the lookup of a topic's subscribers.
    """
    last_values_bytes: int = 32 * 1024 * 1024
    """Maximum bytes for the index of last values. Beyond it, the topics that were silent longest are forgotten."""
    replays: int = 256
    """Maximum subscriptions that read the journal (`since`, `retained`) at a time."""
    replays_per_principal: int = 64
    """The same for one principal, or for one address if a peer has proved nothing."""
    replay_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of messages that were read from the journal and are not sent yet. Beyond it, messages for
    subscribers that do not read are dropped from memory. They are read again later.
    """
    requests: int = 100_000
    """Maximum requests that wait for a provider's answer, of all connections together."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bytes that may wait for the journal's sync before the hub stops reading from its peers."""
    drain_seconds: float = 10.0
    request_timeout: float = 30.0
    """Seconds a provider has to answer a request."""

    http_connections: int = 1000
    """Maximum connections to the HTTP pages."""
    http_connections_per_address: int = 100
    http_body_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of all bodies that are being posted."""
    http_body_seconds: float = 30.0
    """Seconds for the body of one request to arrive."""
    http_json_bytes: int = 128 * 1024
    """Maximum bytes of one CloudEvent in JSON. In binary mode it may be as large as a message."""

    busy_poll_seconds: float = BUSY_POLL
    """Seconds of busy polling after a read on a stream: the hub polls for the next read without sleeping. 0: never."""

    def __post_init__(self) -> None:
        check_positive(self, "busy_poll_seconds")
        for name in ("message_bytes", "decompressed_bytes", "http_body_bytes", "http_json_bytes"):
            if getattr(self, name) < LEAST_MESSAGE:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be {LEAST_MESSAGE} or more")

    def amounts(self) -> dict[str, float]:
        """All settings that are numbers, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, int | float)}

    def hold_down(self, protocol: Protocol, settings: Settings) -> Settings:
        """A listener's settings, with its message size capped by the hub's limits.

        >>> from wireloom.protocols.registry import protocol
        >>> hsp = protocol("hsp")
        >>> HubLimits(message_bytes=2048).hold_down(hsp, hsp.settings()).max_payload
        2048
        """
        sizes: dict[str, int] = {}
        for name, most in (
            (protocol.message_size, self.message_bytes),
            (protocol.decompressed_size, self.decompressed_bytes),
        ):
            if name is not None:
                sizes[name] = min(most, sizes.get(name, getattr(settings, name)))
        return replace(settings, **sizes) if sizes else settings


class LimitReached(WireloomError):
    """A peer asks for more than a setting of `[limits]` allows."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(f"{text} ({setting} in [limits])")
        self.setting = setting


class TopicFault(NamedTuple):
    """The reason why a topic or a pattern is refused."""

    text: str
    setting: str | None
    """The limit that was exceeded, if any."""


class TopicLimits:
    """Checks topics and patterns: they must be well formed, and not too long.

    >>> limits = TopicLimits(HubLimits(topic_levels=2))
    >>> limits.fault("a/b"), limits.fault("a/b/c")
    (None, TopicFault(text="topic 'a/b/c' has 3 levels; topic_levels in [limits] is 2", setting='topic_levels'))
    """

    def __init__(self, limits: HubLimits) -> None:
        self._limits = limits
        self._good: dict[str, None] = {}
        """Topics that were found valid lately."""

    def allow(self, batch: Batch) -> bool:
        """Whether the topics of all events and requests in a batch are valid."""
        good = self._good
        if isinstance(batch, Publishes):
            return all(topic in good or not topic or self.fault(topic) is None for topic, _ in batch.topics())
        for message in batch.messages:
            topic = message.topic
            if topic and topic not in good and message.kind in _TOPICAL and self.fault(topic) is not None:
                return False
        return True

    def fault(self, topic: str) -> TopicFault | None:
        """What is wrong with a topic, with or without `$hub/publish/` before it; None if it is valid."""
        if topic in self._good:
            return None
        own = topic.removeprefix(PUBLISH)
        found = self._too_large("topic", own)
        if found is not None:
            return found
        try:
            validate_topic(own)
        except ConfigError as error:
            return TopicFault(str(error), None)
        if len(self._good) >= _REMEMBERED:
            self._good.clear()
        self._good[topic] = None
        return None

    def check(self, topic: str) -> str:
        """The topic, or a ConfigError that says what is wrong with it."""
        found = self.fault(topic)
        if found is not None:
            raise ConfigError(found.text)
        return topic

    def pattern_fault(self, pattern: str) -> TopicFault | None:
        """The same for a pattern."""
        found = self._too_large("pattern", pattern)
        if found is None:
            try:
                validate_pattern(pattern)
            except ConfigError as error:
                return TopicFault(str(error), None)
        return found

    def _too_large(self, what: str, text: str) -> TopicFault | None:
        limits = self._limits
        # A character has one to four bytes in UTF-8, so most texts need not be encoded to know they fit.
        if len(text) * 4 > limits.topic_bytes:
            size = len(text) if len(text) > limits.topic_bytes else len(text.encode(errors="replace"))
            if size > limits.topic_bytes:
                said = f"{what} {shortened(text)} is longer than topic_bytes in [limits], {limits.topic_bytes}"
                return TopicFault(said, "topic_bytes")
        levels = text.count("/") + 1
        if levels > limits.topic_levels:
            most = f"topic_levels in [limits] is {limits.topic_levels}"
            return TopicFault(f"{what} {shortened(text)} has {levels} levels; {most}", "topic_levels")
        return None


class Bucket:
    """A token bucket: it holds one second's worth of tokens, and refills at the rate.

    A sender that takes more than the bucket holds waits until all of it is refilled. Others that share the bucket wait
    for one second at most.

    >>> bucket = Bucket(10.0)
    >>> bucket.take(10, now=0.0), bucket.take(5, now=0.0), bucket.take(0, now=0.5)
    (0.0, 0.5, 0.0)
    >>> bucket.take(1000, now=0.5), bucket.take(1, now=0.5)
    (100.0, 1.0)
    """

    __slots__ = ("_at", "_level", "most", "rate")

    def __init__(self, rate: float, most: float | None = None) -> None:
        self.rate = rate
        self.most = max(rate, 1.0) if most is None else most
        self._level = self.most
        self._at = -math.inf

    def take(self, count: float, now: float) -> float:
        """Take tokens, even more than there are. Returns the seconds until the bucket is no longer in debt."""
        if now > self._at:
            self._level = min(self.most, self._level + (now - self._at) * self.rate)
            self._at = now
        left = self._level - count
        self._level = max(left, -_DEBT * self.rate)
        return max(-self._level, count - max(left + count, 0.0)) / self.rate if left < 0 else 0.0

    def is_empty(self, now: float) -> bool:
        """Whether no token is left now."""
        return self.take(0, now) > 0 or self._level < 1


class Buckets:
    """A bucket for each name."""

    def __init__(self, make: Callable[[], Bucket]) -> None:
        self._make = make
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str) -> Bucket:
        """The bucket of a name. The least recently used one is forgotten if there are too many."""
        bucket = self._buckets.pop(name, None) or self._make()
        if len(self._buckets) >= KEPT:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = bucket
        return bucket


class Doorkeeper:
    """Counts connections, in total and by address, and holds the token buckets."""

    def __init__(self, limits: HubLimits, attempts_per_minute: float) -> None:
        self._here: Counter[str] = Counter()
        self._count = 0
        self.configure(limits, attempts_per_minute)

    def configure(self, limits: HubLimits, attempts_per_minute: float) -> None:
        """Apply new limits. Existing connections stay."""
        self.limits = limits
        rate = attempts_per_minute / 60
        self.attempts = Buckets(lambda: Bucket(rate, attempts_per_minute))
        self._principals = Buckets(lambda: Bucket(limits.messages_per_second))
        self._strangers = Buckets(lambda: Bucket(limits.stranger_messages_per_second))

    def refusal(self, address: str) -> str | None:
        """Why one more connection from this address is refused; None if it is accepted."""
        if self._count >= self.limits.max_connections:
            return "connections"
        if self._here[address] >= self.limits.max_connections_per_address:
            return "address"
        return None

    def enter(self, address: str) -> None:
        """Count a new connection."""
        self._count += 1
        self._here[address] += 1

    def leave(self, address: str) -> None:
        """Count a closed connection."""
        self._count -= 1
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def bucket(self, principal: str, address: str, *, stranger: bool) -> Bucket | None:
        """The bucket that a principal's messages are charged to; None if its rate is unlimited."""
        if stranger:
            return self._strangers.of(address) if self.limits.stranger_messages_per_second < math.inf else None
        if self.limits.messages_per_second == math.inf:
            return None
        return self._principals.of(principal)


def address_of(peername: str) -> str:
    """The address of a peer without its port, the account without its resource, the socket without its client.

    >>> address_of("192.0.2.1:5042"), address_of("[::1]:5042"), address_of("ada@example.org/desk")
    ('192.0.2.1', '[::1]', 'ada@example.org')
    >>> address_of("unix:/run/hub.sock@4711")
    'unix:/run/hub.sock'
    """
    if peername.startswith("unix:"):
        return peername.partition("@")[0]
    return peername.partition("/")[0] if "@" in peername else peername.rpartition(":")[0]
