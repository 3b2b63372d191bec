"""What one peer, one address, one principal and all of them together may take.

Nothing here costs anything for each message: rates are settled once for each read, memory and silence are looked at
by the hub's clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from wireloom.model import ConfigError
from wireloom.protocols.contract import Protocol, Settings
from wireloom.transports.vigil import BUSY_POLL

LEAST_MESSAGE = 1024
"""The hub's own operations must fit into a message."""
KEPT = 10_000
"""Addresses and principals remembered; beyond, those that are forgotten start anew."""


def check_positive(settings: Settings, *may_be_zero: str) -> None:
    """Sizes, counts and times of nothing or less make no sense here, unless 0 stands for none at all."""
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
    """What happens to a principal that sends more than it may."""

    PAUSE = "pause"
    """Nothing more is read from it until it has paid: it feels back-pressure."""
    REFUSE = "refuse"
    """What is too much is refused: requests get an error, events are dropped and counted."""


@dataclass(frozen=True, slots=True)
class Limits(Settings):
    """The table `[limits]`."""

    message_bytes: int = 16 * 1024 * 1024
    """Of one message, on every listener; a listener's own settings may only allow less."""
    decompressed_bytes: int = 16 * 1024 * 1024
    """Of what one message becomes when it is decompressed, likewise."""
    queue_bytes: int = 4 * 1024 * 1024
    """Unsent bytes of events per subscriber."""
    slow_consumer: SlowConsumer = SlowConsumer.DROP_OLDEST
    max_connections: int = 20_000
    max_connections_per_address: int = 2_000
    messages_per_second: float = math.inf
    """Of one principal, over all its connections."""
    stranger_messages_per_second: float = 100.0
    """Of one address, from peers that no rule allows anything."""
    over_rate: OverRate = OverRate.PAUSE
    handshake_seconds: float = 10.0
    """For TLS, WebSocket and the protocol's own handshake, and for a stranger to show a token."""
    idle_seconds: float = 3600.0
    memory_bytes: int = 1024 * 1024 * 1024
    """Of all queues, of what waits for the journal, and of messages that are not complete yet."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bytes waiting for the journal's sync before the hub stops reading from its peers."""
    drain_seconds: float = 10.0
    request_timeout: float = 30.0
    """Seconds a provider has to answer a request."""

    busy_poll_seconds: float = BUSY_POLL
    """How long the hub stays awake after a read, on streams, to take the next without delay; 0: it sleeps."""

    def __post_init__(self) -> None:
        check_positive(self, "busy_poll_seconds")
        for name in ("message_bytes", "decompressed_bytes"):
            if getattr(self, name) < LEAST_MESSAGE:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be {LEAST_MESSAGE} or more")

    def hold_down(self, protocol: Protocol, settings: Settings) -> Settings:
        """A listener's settings, with messages no larger than is allowed everywhere.

        >>> from wireloom.protocols.registry import protocol
        >>> hsp = protocol("hsp")
        >>> Limits(message_bytes=2048).hold_down(hsp, hsp.settings()).max_payload
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


class Bucket:
    """A rate: a second's worth may come at once, then as much as time brings.

    >>> bucket = Bucket(10.0)
    >>> bucket.take(10, now=0.0), bucket.take(5, now=0.0), bucket.take(0, now=0.5)
    (0.0, 0.5, 0.0)
    """

    __slots__ = ("_at", "_level", "most", "rate")

    def __init__(self, rate: float, most: float | None = None) -> None:
        self.rate = rate
        self.most = max(rate, 1.0) if most is None else most
        self._level = self.most
        self._at = -math.inf

    def take(self, count: float, now: float) -> float:
        """Take, even if that is too much; returns the seconds until it is paid for."""
        if now > self._at:
            self._level = min(self.most, self._level + (now - self._at) * self.rate)
            self._at = now
        self._level -= count
        return -self._level / self.rate if self._level < 0 else 0.0

    def is_empty(self, now: float) -> bool:
        """Whether nothing is left at the moment."""
        return self.take(0, now) > 0 or self._level < 1


class Buckets:
    """A bucket for each name."""

    def __init__(self, make: Callable[[], Bucket]) -> None:
        self._make = make
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str) -> Bucket:
        """The bucket of a name; those not used for longest make room."""
        bucket = self._buckets.pop(name, None) or self._make()
        if len(self._buckets) >= KEPT:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = bucket
        return bucket


class Doorkeeper:
    """Counts connections, in all and by address, and keeps the rates."""

    def __init__(self, limits: Limits, attempts_per_minute: float) -> None:
        self._here: Counter[str] = Counter()
        self._count = 0
        self.configure(limits, attempts_per_minute)

    def configure(self, limits: Limits, attempts_per_minute: float) -> None:
        """Take new limits; who is here stays."""
        self.limits = limits
        rate = attempts_per_minute / 60
        self.attempts = Buckets(lambda: Bucket(rate, attempts_per_minute))
        self._principals = Buckets(lambda: Bucket(limits.messages_per_second))
        self._strangers = Buckets(lambda: Bucket(limits.stranger_messages_per_second))

    def refusal(self, address: str) -> str | None:
        """Why there is no room for one more from this address; None when there is."""
        if self._count >= self.limits.max_connections:
            return "connections"
        if self._here[address] >= self.limits.max_connections_per_address:
            return "address"
        return None

    def enter(self, address: str) -> None:
        """One more is here."""
        self._count += 1
        self._here[address] += 1

    def leave(self, address: str) -> None:
        """One less."""
        self._count -= 1
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def bucket(self, principal: str, address: str, *, stranger: bool) -> Bucket | None:
        """What a principal pays its messages from; None where nothing is to be paid."""
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
