"""One end of one conversation, without a socket: the base of every session, and what it hands to its owner."""

from __future__ import annotations

import abc
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from wireloom.model import Direction, Message, ProtocolViolation
from wireloom.protocols.decoding import Rejected

_NO_SECRETS: Mapping[str, str] = types.MappingProxyType({})
_NO_NUMBERS: Mapping[int, str] = types.MappingProxyType({})
NOTHING_AGREED: Mapping[str, str | bool] = types.MappingProxyType({})
"""What `Session.agreed` returns where all is as a reader assumes."""


class Role(StrEnum):
    """Which end of a conversation a session is."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def sends(self) -> Direction:
        """The direction of what this end sends."""
        return Direction.C2S if self is Role.CLIENT else Direction.S2C


class SessionState(StrEnum):
    """Where a conversation stands."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """We said goodbye and send nothing new."""
    CLOSED = "closed"
    """Send what is left in `outgoing`, then close the transport."""


class Renumbered(NamedTuple):
    """Up to `end` in a run's data, and for its first `messages` messages, other numbers were in force."""

    end: int
    messages: int
    topics: Mapping[int, str]


@dataclass(init=False)
class Run:
    """What a session took from one read.

    `data` is the run of complete, accepted frames exactly as they came, for the journal, but for credentials: the
    body of a `LOGIN` is blanked there. `messages`
    are those frames as messages, in order. A session with column kernels may leave `messages` empty
    and fill `bulk` instead; then no object was made per message.
    """

    data: bytes | memoryview = b""
    messages: Sequence[Message] = ()
    bulk: Bulk | None = None
    ignored: int = 0
    """Messages that `data` holds and `messages` does not: valid on the wire, but nobody is to act on them."""
    added: int = 0
    """Messages that `messages` holds and `data` does not: what a frame implies beside itself."""
    refused: Sequence[Rejected] = ()
    """Datagrams or lines that were not accepted; the conversation goes on without them."""
    renumbered: Sequence[Renumbered] = ()
    """Where the numbers that stand for topics changed inside the run; what follows has `Session.topic_numbers`."""

    # One is made for every read: what is as usual stays with the class.
    def __init__(
        self,
        data: bytes | memoryview = b"",
        messages: Sequence[Message] = (),
        bulk: Bulk | None = None,
        ignored: int = 0,
        added: int = 0,
        refused: Sequence[Rejected] = (),
        renumbered: Sequence[Renumbered] = (),
    ) -> None:
        self.data = data
        self.messages = messages
        if bulk is not None:
            self.bulk = bulk
        if ignored or added:
            self.ignored, self.added = ignored, added
        if refused or renumbered:
            self.refused, self.renumbered = refused, renumbered

    @property
    def count(self) -> int:
        """How many messages the run's data holds."""
        if self.bulk is not None:
            return self.bulk.count
        return len(self.messages) + self.ignored - self.added


class Bulk(abc.ABC):
    """Many messages of one read in columns: the hub's way to route and acknowledge without objects."""

    count: int
    unanswered: int
    """How many publishes left in the bulk wait for their acknowledgement."""

    @abc.abstractmethod
    def topics(self) -> Sequence[str]:
        """The topics that events and acknowledged publishes of this run are for, each once."""

    @abc.abstractmethod
    def messages(self, topic: str | None = None) -> list[Message]:
        """The events and publishes of one topic (or of all) as messages, in order."""

    @abc.abstractmethod
    def count_of(self, topic: str) -> int:
        """How many events and publishes of one topic there are."""

    @abc.abstractmethod
    def forward(self, topic: str) -> bytes:
        """The events and publishes of one topic as unacknowledged frames, for whom `Session.can_forward` says so."""

    def authors(self, topic: str) -> Sequence[str]:
        """Who wrote the events of one topic, each once, as `Session.written_by` names them.

        Empty where messages have no authors but the peer.
        """
        return ()

    def drop(self, topic: str, author: str) -> list[bytes]:
        """Take out what one of those authors wrote; returns the frames, as they came."""
        raise NotImplementedError

    @abc.abstractmethod
    def others(self) -> list[Message]:
        """Everything that is neither event nor publish, as messages: responses, errors, pings."""

    @abc.abstractmethod
    def take(self, topic: str) -> list[Message]:
        """Take a topic out of the bulk: its messages will be handled, and answered, one by one."""

    @abc.abstractmethod
    def acknowledgements(self, refused: frozenset[str] = frozenset()) -> bytes:
        """The answers to all acknowledged publishes left in the bulk, as frames; they count as answered.

        What was published to a topic in `refused` is answered with the protocol's plain error.
        """


class Session(abc.ABC):
    """One end of one conversation. No clock, no socket, no randomness that is not passed in.

    The owner calls `connected` once, `receive` with what the transport read, `expire` when `deadline`
    has passed, and after each of them writes what `outgoing` returns and closes the transport when
    `state` is CLOSED. `now` is any monotonic clock in seconds.

    A peer's mistake never raises: messages before it are returned, `violation` says what it was,
    `outgoing` holds the last words and `state` is CLOSED. The caller's own mistakes do raise.
    """

    state: SessionState = SessionState.OPENING
    violation: ProtocolViolation | None = None
    close_reason: str | None = None
    close_detail: str = ""
    """The words that went with it, where the protocol has any: the reason of a goodbye, the place of a redirect."""
    refused: bytes = b""
    """After a violation: the bytes that were not accepted (the bad frame and what followed)."""
    counters: dict[str, int]
    """Things that are counted and otherwise ignored, by clause (unknown ids, unasked pongs)."""
    sent: int = 0
    """How many messages were queued for sending so far, control frames included."""
    content_type: str | None = None
    """What bodies are on this connection, where the protocol agrees on that; see `Protocol.format_for`."""
    epoch: float = 0.0
    """What to add to `now` to get seconds since 1970; the owner sets it, for ids that tell the time."""
    peer: str = ""
    """The address of the other end; the owner sets it before `connected`."""
    hears_itself: ClassVar[bool] = True
    """Whether a peer that subscribes to what it publishes is sent that, too."""
    steady: bool = False
    """Whether `deadline` comes nearer only with `send`, `expire` and a change of `state`, never with anything else."""
    offloads: bool = False
    """Whether slow work is handed out by `work`, so that the owner's loop need not wait for it.

    Once `enable_work` was called, a session may say False as long as it has none.
    """
    max_frame: int = 0
    """The most bytes of one frame that the transport takes; 0: any. The owner sets it before `connected`."""
    remembers: ClassVar[bool] = False
    """Whether what was sent is remembered until the peer has confirmed it; events then wait for their turn unsent."""
    authored: ClassVar[bool] = False
    """Whether messages prove by themselves who wrote them; see `written_by`."""
    identities: tuple[str, ...] = ()
    """Who the peer has proved to be by means of the protocol, such as `user:ada`; see `Protocol.identity_kinds`."""
    protected: bool = False
    """Whether nobody else can listen (TLS, or both ends on this machine); the owner sets it before `connected`."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.counters = {}

    def connected(self, now: float) -> None:
        """The transport is up: say hello, start timers."""
        self.state = SessionState.OPEN

    @abc.abstractmethod
    def receive(self, data: bytes, now: float) -> Run:
        """Take bytes from the transport."""

    def receive_datagrams(self, data: bytes, ends: Sequence[int], now: float) -> Run:
        """Take datagrams that arrived together: one after the other in `data`, each up to its place in `ends`."""
        runs: list[Run] = []
        start = 0
        for end in ends:
            runs.append(self.receive(data[start:end], now))
            start = end
        return Run(
            b"".join(run.data for run in runs),
            [message for run in runs for message in run.messages],
            ignored=sum(run.ignored for run in runs),
            added=sum(run.added for run in runs),
            refused=[refused for run in runs for refused in run.refused],
        )

    @property
    def inbound(self) -> Direction:
        """The direction of what is received."""
        return self.role.sends.opposite

    @property
    def outbound(self) -> Direction:
        """The direction of what is sent."""
        return self.role.sends

    def end_of_input(self, now: float) -> None:
        """The peer will send no more. What is still owed to it can be sent."""
        self.state = SessionState.CLOSED

    @abc.abstractmethod
    def outgoing(self) -> bytes:
        """Bytes to write now; they are handed out once."""

    def outgoing_frames(self) -> Sequence[bytes]:
        """The same as `outgoing`, a frame an item, for transports that carry messages (WebSocket)."""
        data = self.outgoing()
        return (data,) if data else ()

    def deadline(self) -> float | None:
        """When `expire` wants to be called, if nothing else happens."""
        return None

    def expire(self, now: float) -> Run:
        """A deadline has passed: send pings, resend, give up."""
        return Run()

    @abc.abstractmethod
    def send(self, message: Message, now: float) -> Message:
        """Queue a message; returned with the id (and whatever else) it got on the wire.

        Events, requests, progress, responses, errors and cancels are sent this way; `correlation_id`
        of an answer is the `id` of its request. A request with `attributes["progressive"] = "true"` asks for
        progress, a cancel with `attributes["kill"] = "true"` for no answer; progress that nobody asked for is
        NotSupported. Raises NotSupported for what the protocol cannot
        say, LimitExceeded for what is too large, PeerClosed when it is too late.
        """

    def packing(self, event: Message) -> Callable[[], object] | None:
        """The slow part of sending an event, for another thread; its result goes to `send_event`.

        None where there is none. Both this and the work raise what `send` raises.
        """
        return None

    @property
    def is_full(self) -> bool:
        """Where it `remembers`: whether so much is not confirmed yet that events should wait until more comes in."""
        return False

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event ahead of all that waits for slow work, so that `outgoing` gives it at once.

        `packed` is what `packing` came to, None if there was nothing to do. The owner keeps events in order.
        """
        self.send(event, now)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already (from `Bulk.forward` or `Bulk.acknowledgements`)."""
        raise NotImplementedError

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether `bulk.forward(topic)`, read on another connection, means the same to this session's peer."""
        return False

    @property
    def event_style(self) -> object:
        """Sessions with equal styles write events alike, at this moment: `write_events` of one serves all of them.

        None where there is no short way to write events, or it is closed.
        """
        return None

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """Events of one topic as frames in a row, not queued; None if one of them is not for the short way.

        Only their topic, body and content type are looked at. Raises what `send` raises.
        """
        return None

    def say_all(self) -> None:
        """Have `outgoing` give all there is to say, also what would wait for company."""

    def messages_in(self, frame: bytes) -> int:
        """How many messages a frame of `outgoing_frames` completes: none, for all pieces of a message but the last."""
        return 1

    def recordable(self, data: bytes) -> bytes:
        """What a record of the conversation may keep of bytes that were sent: credentials are blanked.

        Of what was received, `Run.data` is that already.
        """
        return data

    def frames_of(self, encoded: bytes) -> Sequence[bytes]:
        """Encoded frames (from `Bulk.forward`) one by one, for transports that carry messages."""
        return (encoded,)

    def is_urgent(self, frame: bytes) -> bool:
        """Whether an encoded frame goes ahead of others in every queue."""
        return False

    def enable_bulk(self) -> bool:
        """Allow `receive` to answer with `Run.bulk` for large reads; False where there is no kernel."""
        return False

    def enable_work(self) -> None:
        """The owner will ask for `work` after each step and run it; without this it is done inside the step."""

    def work(self) -> Callable[[], object] | None:
        """Something slow for another thread to do, one at a time; its result goes to `worked`."""
        return None

    def worked(self, result: object, now: float) -> Run:
        """Slow work is done; what waited for it goes on."""
        return Run()

    @abc.abstractmethod
    def close(self, now: float, reason: str = "") -> None:
        """Say goodbye as the protocol does it."""

    def unread(self) -> bytes:
        """What was received and is no complete frame yet; at the end of the stream it never will be."""
        return b""

    @property
    def buffered(self) -> int:
        """How many bytes `unread` and half-assembled messages hold."""
        return len(self.unread())

    def written_by(self, message: Message) -> str | None:
        """Who wrote a message, proved by the message itself: `mesh:<node>`; empty if nothing is proved.

        None where messages have no authors of their own: then they are the peer's.
        """
        return None

    @property
    def secrets(self) -> Mapping[str, str]:
        """The settings with which recorded traffic of this connection can be read, where it is encrypted."""
        return _NO_SECRETS

    def topic_numbers(self) -> Mapping[int, str]:
        """The numbers that stand for topics on this connection, in protocols that number them.

        The same object every time until they change.
        """
        return _NO_NUMBERS

    def agreed(self) -> Mapping[str, str | bool]:
        """Settings without which recorded bytes of this connection cannot be read, by the names of their fields.

        Only those that differ from what `Protocol.lenient` assumes; `Settings.agreed_fields` names them all. The same
        object every time until something changes: it is asked for at every read.
        """
        return NOTHING_AGREED

    def count(self, what: str) -> None:
        """Count something that is otherwise ignored."""
        self.counters[what] = self.counters.get(what, 0) + 1
