"""What was read, in the order in which it came: the form in which messages leave a session.

One read of one connection becomes one `Batch` or a few. Everything that acts on messages takes batches and does not
know how they were filled: from `frames.py`, a message at a time, or by a protocol's kernel, thousands at a time.

A batch ends with the first control message in it (see `is_control`), so what such a message changes (rights, the
numbers that stand for topics, subscriptions) is in force for the next batch and not before. Nothing has to split a
batch later.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from wireloom.model import Message
from wireloom.protocols.decoding import Rejected

if TYPE_CHECKING:
    from wireloom.protocols.session import Session

HUB_PREFIX = "$hub/"
"""Requests for topics under this prefix are operations of the hub profile: `$hub/subscribe`,
`$hub/unsubscribe`, `$hub/provide`, `$hub/withdraw`, `$hub/map`, `$hub/login`, each with a JSON body, and
`$hub/publish/<topic>`, an acknowledged publish of the request's body."""

PUBLISH = HUB_PREFIX + "publish/"
"""What the topics of acknowledged publishes begin with."""


TRACE = ("traceparent", "tracestate")
"""Attributes with the context of a trace (W3C Trace Context) in which a message is sent. A protocol whose messages
have a place that peers may ignore carries them there; the others leave them out."""


def is_control(message: Message) -> bool:
    """Whether a message changes how the messages behind it are taken: an operation of the hub profile.

    >>> from wireloom.model import Kind
    >>> is_control(Message(Kind.REQUEST, "$hub/subscribe")), is_control(Message(Kind.REQUEST, "$hub/publish/a"))
    (True, False)
    """
    topic = message.topic
    return topic is not None and topic.startswith(HUB_PREFIX) and not topic.startswith(PUBLISH)


class Batch:
    """Messages that came one after the other on one connection.

    `data` holds their frames exactly as they came, for the journal, except for credentials: the body of a login is
    blanked there. `count` says how many messages `data` holds.
    """

    __slots__ = ("count", "data", "messages", "numbers", "refused")

    def __init__(
        self,
        data: bytes | memoryview = b"",
        messages: Sequence[Message] = (),
        *,
        ignored: int = 0,
        added: int = 0,
        refused: Sequence[Rejected] = (),
    ) -> None:
        """`ignored` messages are in `data` alone: nobody is to act on them. `added` ones are in `messages` alone."""
        self.data = data
        self.messages = messages
        self.count = len(messages) + ignored - added
        self.refused = refused
        """Datagrams or lines that were not accepted; the conversation goes on without them."""
        self.numbers: Mapping[int, str] | None = None
        """The numbers that stand for topics in it, where its last message has changed them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self.data)!r}, {self.messages!r})"


NOTHING: tuple[Batch, ...] = ()
"""What a session returns that has nothing to hand over."""


class Events(abc.ABC):
    """Events in the order in which they were published: what a router delivers.

    The topic of each is an index into `topics`, which may name a topic more than once.
    """

    topics: Sequence[str]
    is_signed: ClassVar[bool] = False
    """Whether each frame proves who wrote it. Then it is passed on as it came, and copies that routes make may follow
    later: only protocols of datagrams, which promise no order, have such frames."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def of(self, chosen: Sequence[int]) -> Events:
        """Those with one of the chosen topics, given by index, in order."""

    @abc.abstractmethod
    def messages(self) -> Sequence[Message]:
        """All of them, as events."""

    @abc.abstractmethod
    def frames(self, session: Session, now: float) -> bytes | None:
        """All of them as frames in a row, for a session and all others of its `event_style`.

        None where they have to be sent one by one.
        """

    def frames_apart(
        self, choices: Sequence[Sequence[int]], session: Session, now: float
    ) -> tuple[bytes, Sequence[int], Sequence[int]] | None:
        """The frames of several choices of topics, which have no topic in common, one choice behind the other.

        With where the frames of each choice end, and how many they are. None where that is not faster than `frames` of
        each choice by itself.
        """
        return None


class EventList(Events):
    """Events that are messages."""

    def __init__(self, events: Sequence[Message]) -> None:
        self._events = events
        known: dict[str, int] = {}
        self._codes = [known.setdefault(event.topic or "", len(known)) for event in events]
        self.topics = list(known)

    def __len__(self) -> int:
        return len(self._events)

    def of(self, chosen: Sequence[int]) -> EventList:
        """Those with one of the chosen topics."""
        if len(chosen) == len(self.topics):
            return self
        wanted = frozenset(chosen)
        return EventList([event for event, code in zip(self._events, self._codes, strict=True) if code in wanted])

    def messages(self) -> Sequence[Message]:
        """All of them."""
        return self._events

    def frames(self, session: Session, now: float) -> bytes | None:
        """What the session writes for them."""
        return session.write_events(self._events, now)


class Calls(Batch):
    """Nothing but requests for providers, or nothing but responses that are done, of one connection.

    No object is made for each. `messages` of the base class stays empty; see `as_messages`.

    This class and `Publishes` are not declared abstract: `isinstance` takes five times as long with an abstract class,
    and it is asked several times for each batch.
    """

    __slots__ = ()

    is_answers: bool
    ids: Sequence[str]
    """Of each request its id, of each response that of its request."""
    topics: Sequence[str]
    """Each topic, once for each content type that bodies have in it. Responses may have none."""
    content_types: Sequence[str | None]
    """The content type that goes with each of `topics`."""
    codes: Sequence[int]
    """Of each message the index of its topic."""

    def bodies(self, rows: Sequence[int]) -> Sequence[bytes]:
        """The bodies of some of them."""
        raise NotImplementedError

    def message(self, row: int) -> Message:
        """One of them."""
        raise NotImplementedError

    def as_messages(self) -> Batch:
        """The same as a batch of messages."""
        return Batch(self.data, [self.message(row) for row in range(self.count)])


class Acknowledgements(NamedTuple):
    """The answers to the publishes of a batch, in the order of the sessions that read them."""

    frames: bytes
    """All of them."""
    ends: Sequence[int]
    """Of each session: where its answers end in `frames`. They begin where those of the one before end."""
    counts: Sequence[int]
    """Of each session: how many publishes are answered."""


class Publishes(Batch):
    """Nothing but events and acknowledged publishes, of one connection or of several: no object is made for each.

    `sessions` are those that read them. `messages` of the base class stays empty; see `as_messages`.
    """

    __slots__ = ("sessions", "unanswered")

    sessions: Sequence[Session]
    unanswered: int
    """How many of them wait for their acknowledgement."""

    def events(self) -> Events:
        """All of them, as the events that they publish."""
        raise NotImplementedError

    def topics(self) -> Iterable[tuple[str, str | None]]:
        """Each topic, and who wrote to it, as `Session.written_by` names them."""
        return [(topic, None) for topic in dict.fromkeys(self.events().topics)]

    def acknowledgements(self) -> Acknowledgements:
        """The answers to all acknowledged publishes. Whoever sends those of a read calls `settle` afterwards."""
        return Acknowledgements(b"", (), ())

    def settle(self, read: int) -> None:
        """The publishes of one session's read are answered."""

    def split(self, allowed: Callable[[str, str | None], bool]) -> tuple[Batch, Sequence[tuple[str, bytes]]] | None:
        """The events that are allowed, given topic and author, and of each other one the topic and the frame.

        None where that takes a look at each message; see `as_messages`.
        """
        return None

    def as_calls(self) -> Calls | None:
        """The same as requests for providers, each of which is answered by itself.

        None, and nothing done, where it is more than requests of one connection.
        """
        return None

    def as_messages(self) -> Sequence[Batch]:
        """The same as batches of messages, one for each session; acknowledged publishes are requests there.

        Each request is then answered by itself.
        """
        raise NotImplementedError
