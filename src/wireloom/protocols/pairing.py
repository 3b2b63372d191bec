"""The rules of a conversation as data: which messages belong together, and what well-formed bytes can still break.

A session enforces these rules while the conversation goes on. Whoever reads it afterwards, the pipeline above all,
needs them in a form that works on thousands of messages at a time and knows neither clock nor peer: that is a
`Conversation`. What breaks it is a finding; decoding goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wireloom.model import Direction, Kind


class Severity(StrEnum):
    """How much a finding matters."""

    INFO = "info"
    """Allowed, or harmless, and yet worth knowing."""
    WARNING = "warning"
    """A peer broke a rule of its protocol."""
    CRITICAL = "critical"
    """Somebody may be deceiving somebody."""


@dataclass(frozen=True, slots=True)
class PairingRule:
    """A rule that well-formed messages can break; `name` is stable, `text` says what was seen."""

    name: str
    severity: Severity
    text: str


class Key(StrEnum):
    """What tells which question an answer belongs to."""

    ID = "id"
    """The id of the one is the correlation id of the other."""
    BODY = "body"
    """Both have the same body."""
    NOTHING = "nothing"
    """There is at most one, or they are all alike."""


_NO_KINDS: frozenset[Kind] = frozenset()


@dataclass(frozen=True, slots=True)
class Pairing:
    """Messages that open something and those, in the other direction, that close it.

    An answer belongs to the latest message before it that has its key and is still open.
    """

    opens: frozenset[Kind]
    closes: frozenset[Kind]
    steps: frozenset[Kind] = _NO_KINDS
    """What comes from the other side in between (progress)."""
    key: Key = Key.ID
    id_attribute: str | None = None
    """Where the id of what opens stands, if it is not the message's own."""
    asked_by: str | None = None
    """The attribute, `true`, of an opening message that asks for steps."""
    stopped_by: str | None = None
    """The attribute, `true`, of a cancel after which nobody waits for an answer."""
    counted: bool = False
    """Whether several may be open under one key, each to be closed once."""
    exchange: bool = False
    """Whether each pair is a row of `exchanges`."""
    unknown: PairingRule | None = None
    """What a close, or a step, breaks for which nothing is open."""
    again: PairingRule | None = None
    """What an opening breaks while another one with its key is open."""
    unasked: PairingRule | None = None
    """What a step breaks that the opening did not ask for."""
    resent_by: str | None = None
    """The attribute, a whole number, that tells a message that is sent again from a new one. A number that the same
    direction of the connection had in the last ten minutes is that message once more: it opens and closes nothing."""
    resent: PairingRule | None = None
    """What a message that is sent again breaks, if anything is to be said about it."""


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
    """Requests and their outcomes, which every protocol that has them correlates by id."""
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
    """How a direction begins: the kinds its first message may have, and what else breaks."""

    first: Mapping[Direction, frozenset[Kind]]
    missing: PairingRule
    repeated: PairingRule


@dataclass(frozen=True, slots=True)
class Conversation:
    """What can be said about a protocol's conversations after the fact."""

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
    """What a message of the kind `other` is that nobody here could decrypt, by the value of its `locked_attribute`."""
    locked_attribute: str = ""

    @property
    def rules(self) -> tuple[PairingRule, ...]:
        """Every rule, each once."""
        found = [rule for p in self.pairings for rule in (p.unknown, p.again, p.unasked, p.resent)]
        found += [self.greeting.missing, self.greeting.repeated] if self.greeting else []
        found += [rule for _, rule in self.one_way.values()]
        return tuple(dict.fromkeys(rule for rule in found if rule is not None))
