"""Batches: the form in which a session returns received messages, in order of arrival.

One read of one connection becomes one `Batch` or a few. The code that acts on messages takes batches. It does not
depend on how they were filled: by `frames.py`, a message at a time, or by a protocol's kernel, thousands at a time.

A batch ends with its first control message (see `is_control`). Such a message changes rights, topic numbers or
subscriptions. The change applies from the next batch on, so nothing has to split a batch later.
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
"""The prefix of the topics of acknowledged publishes."""


TRACE = ("traceparent", "tracestate")
"""Attributes with the context of a trace (W3C Trace Context) in which a message is sent. A protocol whose messages
have a place that peers may ignore carries them there; the others leave them out."""


def is_control(message: Message) -> bool:
    """Whether a message changes how later messages are handled: an operation of the hub profile.

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
        """`ignored` counts messages that are only in `data` and need no action; `added`, those only in `messages`."""
        self.data = data
        self.messages = messages
        self.count = len(messages) + ignored - added
        self.refused = refused
        """Datagrams or lines that were not accepted; the conversation goes on without them."""
        self.numbers: Mapping[int, str] | None = None
        """The topic numbers that apply to this batch, if its last message has changed them."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self.data)!r}, {self.messages!r})"


NOTHING: tuple[Batch, ...] = ()
"""The result of a session that has no messages."""


class Events(abc.ABC):
    """Events in the order in which they were published: what a router delivers.

    The topic of each is an index into `topics`, which may name a topic more than once.
    """

    topics: Sequence[str]
    is_signed: ClassVar[bool] = False
    """Whether each frame is signed by its author. Such a frame is forwarded unchanged, and copies that routes make may
    follow later. Only datagram protocols have such frames, and they do not promise order."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def of(self, chosen: Sequence[int]) -> Events:
        """Those with one of the chosen topics, given by index, in order."""

    @abc.abstractmethod
    def messages(self) -> Sequence[Message]:
        """All events, as messages."""

    @abc.abstractmethod
    def frames(self, session: Session, now: float) -> bytes | None:
        """Encode all events, for this session and all others with an equal `event_style`.

        None if they have to be sent one by one.
        """

    def frames_apart(
        self, choices: Sequence[Sequence[int]], session: Session, now: float
    ) -> tuple[bytes, Sequence[int], Sequence[int]] | None:
        """Encode several disjoint choices of topics, one after the other.

        Returns the frames, where those of each choice end, and how many each has. None if this is no faster than
        `frames` for each choice.
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
        """Encode by the session."""
        return session.write_events(self._events, now)


class Calls(Batch):
    """A homogeneous batch of one connection: only requests for providers, or only final responses.

    It has no object for each message. `messages` of the base class stays empty; see `as_messages`.

    This class and `Publishes` are not declared abstract: `isinstance` takes five times as long with an abstract class,
    and it is called several times for each batch.
    """

    __slots__ = ()

    is_answers: bool
    ids: Sequence[str]
    """The id of each request; for a response, the id of its request."""
    topics: Sequence[str]
    """Each topic, once for each content type that bodies have in it. Responses may have none."""
    content_types: Sequence[str | None]
    """The content type that goes with each of `topics`."""
    codes: Sequence[int]
    """The index of the topic of each message."""

    def bodies(self, rows: Sequence[int]) -> Sequence[bytes]:
        """The bodies of some rows."""
        raise NotImplementedError

    def message(self, row: int) -> Message:
        """Decode one row."""
        raise NotImplementedError

    def as_messages(self) -> Batch:
        """Decode into a batch of messages."""
        return Batch(self.data, [self.message(row) for row in range(self.count)])


class Acknowledgements(NamedTuple):
    """The answers to the publishes of a batch, in the order of the sessions that read them."""

    frames: bytes
    """All answers."""
    ends: Sequence[int]
    """For each session, where its answers end in `frames`. They begin where those of the session before end."""
    counts: Sequence[int]
    """For each session, the number of publishes that are answered."""


class Publishes(Batch):
    """A homogeneous batch of one or more connections: only events and acknowledged publishes.

    It has no object for each message. `sessions` are the sessions that received them.
    `messages` of the base class stays empty; see `as_messages`.
    """

    __slots__ = ("sessions", "unanswered")

    sessions: Sequence[Session]
    unanswered: int
    """The number of pending acknowledgements."""

    def events(self) -> Events:
        """The events that they publish."""
        raise NotImplementedError

    def topics(self) -> Iterable[tuple[str, str | None]]:
        """Each topic, and who wrote to it, as `Session.written_by` names them."""
        return [(topic, None) for topic in dict.fromkeys(self.events().topics)]

    def acknowledgements(self) -> Acknowledgements:
        """Encode the answers to all acknowledged publishes. After sending those of a read, call `settle`."""
        return Acknowledgements(b"", (), ())

    def settle(self, read: int) -> None:
        """The publishes of one read were answered: nothing of it is pending."""

    def split(self, allowed: Callable[[str, str | None], bool]) -> tuple[Batch, Sequence[tuple[str, bytes]]] | None:
        """Split by `allowed(topic, author)`: the allowed events, and topic and frame of each other one.

        None if each message has to be examined; see `as_messages`.
        """
        return None

    def as_calls(self) -> Calls | None:
        """Treat the batch as requests for providers, each of which is answered separately.

        Returns None, and changes nothing, unless the batch holds only requests of one connection.
        """
        return None

    def as_messages(self) -> Sequence[Batch]:
        """Decode into batches of messages, one for each session.

        Acknowledged publishes become requests, and each request is then answered separately.
        """
        raise NotImplementedError
