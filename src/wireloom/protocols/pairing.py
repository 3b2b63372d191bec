"""The rules of a conversation as data: which messages belong together, and what well-formed bytes can still break.

A session enforces these rules on a live connection. The pipeline reads recorded connections, thousands of messages at a
time, without clock or peer. A `Conversation` states the rules for that. A violation is a finding; decoding goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wireloom.model import Direction, Kind


class Severity(StrEnum):
    """How much a finding matters."""

    INFO = "info"
    """Allowed or harmless, but worth knowing."""
    WARNING = "warning"
    """A peer broke a rule of its protocol."""
    CRITICAL = "critical"
    """It may be an attack."""


@dataclass(frozen=True, slots=True)
class PairingRule:
    """A rule that well-formed messages can break; `name` is stable, `text` says what was seen."""

    name: str
    severity: Severity
    text: str


class Key(StrEnum):
    """How an answer is matched to its request."""

    ID = "id"
    """The correlation id of the answer is the id of the request."""
    BODY = "body"
    """Both have the same body."""
    NOTHING = "nothing"
    """At most one is open, or all are interchangeable."""


_NO_KINDS: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class Pairing:
    """Messages that open something and those, in the other direction, that close it.

    An answer belongs to the latest message before it that has its key and is still open.
    """

    opens: frozenset[Kind]
    closes: frozenset[Kind]
    steps: frozenset[Kind] = _NO_KINDS
    """Kinds that come from the other direction before the close (progress)."""
    key: Key = Key.ID
    id_attribute: str | None = None
    """The attribute that holds the id of an opening message, if it is not `Message.id`."""
    asked_by: str | None = None
    """The attribute, `true`, of an opening message that asks for steps."""
    stopped_by: str | None = None
    """The attribute, `true`, of a cancel after which no answer is expected."""
    counted: bool = False
    """Whether several may be open under one key, each to be closed once."""
    exchange: bool = False
    """Whether each pair is a row of `exchanges`."""
    unknown: PairingRule | None = None
    """The rule that a close or a step breaks if nothing is open for it."""
    again: PairingRule | None = None
    """The rule that an opening breaks while another with its key is open."""
    unasked: PairingRule | None = None
    """The rule that a step breaks if the opening did not ask for steps."""
    resent_by: str | None = None
    """The attribute, an integer, that identifies resent messages. If the same direction of the connection had the
    number in the last ten minutes, the message is a copy: it opens and closes nothing."""
    resent: PairingRule | None = None
    """The rule that a resent message breaks, if it is to be reported."""


def requests(
    *,
    unknown: PairingRule | None = None,
    again: PairingRule | None = None,
    unasked: PairingRule | None = None,
    asked_by: str | None = None,
    stopped_by: str | None = None,
    resent_by: str | None = None,
    resent: PairingRule | None = None,
) -> Pairing:
    """Requests and their outcomes, correlated by id."""
    return Pairing(
        frozenset({Kind.REQUEST}),
        frozenset({Kind.RESPONSE, Kind.ERROR}),
        frozenset({Kind.PROGRESS}),
        exchange=True,
        unknown=unknown,
        again=again,
        unasked=unasked,
        asked_by=asked_by,
        stopped_by=stopped_by,
        resent_by=resent_by,
        resent=resent,
    )


def pings(
    *,
    key: Key = Key.NOTHING,
    counted: bool = False,
    unknown: PairingRule | None = None,
    again: PairingRule | None = None,
) -> Pairing:
    """Pings and pongs."""
    return Pairing(
        frozenset({Kind.PING}), frozenset({Kind.PONG}), key=key, counted=counted, unknown=unknown, again=again
    )


@dataclass(frozen=True, slots=True)
class Greeting:
    """How a direction begins: the kinds that its first message may have, and the rule that others break."""

    first: Mapping[Direction, frozenset[Kind]]
    missing: PairingRule
    repeated: PairingRule


@dataclass(frozen=True, slots=True)
class Conversation:
    """The rules of a protocol for recorded connections."""

    pairings: tuple[Pairing, ...] = (requests(),)
    greeting: Greeting | None = None
    one_way: Mapping[Kind, tuple[Direction, PairingRule]] = field(default_factory=dict)
    """Kinds that only one direction may have."""
    farewells: Mapping[Kind, str] = field(default_factory=lambda: {Kind.CLOSE: "close", Kind.REDIRECT: "redirect"})
    """Kinds, without a correlation id, after which the connection closes, and the reason they give."""
    answer_limit: float = 30.0
    """Seconds after which a request without an answer, or without further progress, has timed out."""
    node_attribute: str | None = None
    """The attribute that names the node a message comes from, in protocols that have nodes."""
    locked_kinds: Mapping[str, Kind] = field(default_factory=dict)
    """The real kind of a message that could not be decrypted (kind `other`), by its `locked_attribute`."""
    locked_attribute: str = ""

    @property
    def rules(self) -> tuple[PairingRule, ...]:
        """Every rule, each once."""
        found = [rule for p in self.pairings for rule in (p.unknown, p.again, p.unasked, p.resent)]
        found += [self.greeting.missing, self.greeting.repeated] if self.greeting else []
        found += [rule for _, rule in self.one_way.values()]
        return tuple(dict.fromkeys(rule for rule in found if rule is not None))
