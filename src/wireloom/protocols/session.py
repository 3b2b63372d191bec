"""The base class of sessions. A session is one end of one connection, without a socket."""

from __future__ import annotations

import abc
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from wireloom.model import Direction, Message, ProtocolViolation
from wireloom.protocols.batch import NOTHING, TRACE, Batch

if TYPE_CHECKING:
    from wireloom.protocols.publish_columns import PublishColumns

_NO_SECRETS: Mapping[str, str] = types.MappingProxyType({})
_NO_NUMBERS: Mapping[int, str] = types.MappingProxyType({})
NOTHING_AGREED: Mapping[str, str | bool] = types.MappingProxyType({})
"""The result of `Session.agreed` if no setting differs from what a reader assumes."""


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


class EventHead(NamedTuple):
    """The part of an event's frame before the body. Except for the size, it depends only on topic and content type.

    A big-endian 32-bit size is at `size_at`: the size of the body plus `extra`. A body has `smallest` to `largest`
    bytes. In protocols whose events have uids, the bytes for the uid are zero.
    """

    head: bytes
    size_at: int
    extra: int
    largest: int
    smallest: int = 0

    def with_size(self, body_size: int) -> bytes:
        """The head of an event with a body of so many bytes."""
        at = self.size_at
        return self.head[:at] + (body_size + self.extra).to_bytes(4) + self.head[at + 4 :]


class Session(abc.ABC):
    """One end of one connection. It uses no clock, socket or randomness except what is passed in.

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
    """Irregularities that are counted and otherwise ignored, by clause (unknown ids, unexpected pongs)."""
    sent: int = 0
    """How many messages were queued for sending so far, control frames included."""
    content_type: str | None = None
    """The content type of bodies, if the protocol negotiates one for a connection; see `Protocol.format_for`."""
    epoch: float = 0.0
    """What to add to `now` to get seconds since 1970; the owner sets it, for ids that tell the time."""
    sends_topics: bool = True
    """Whether what is sent names its topic."""
    hears_topics: bool = True
    """Whether what is received may name its topic. Where it does not, every subscription gets all events."""
    is_misled: bool = False
    """Whether the peer needs other settings than this session has. A new session can use them; see `Sessions.learn`."""
    peer: str = ""
    """The address of the other end; the owner sets it before `connected`."""
    hears_itself: ClassVar[bool] = True
    """Whether a peer receives its own events if it subscribes to their topic."""
    steady: bool = False
    """Whether only `send`, `expire` and a change of `state` can make `deadline` earlier."""
    offloads: bool = False
    """Whether `work` may return slow work for another thread.

    After `enable_work`, this may be False while there is no such work.
    """
    max_frame: int = 0
    """The most bytes of one frame that the transport takes; 0: any. The owner sets it before `connected`."""
    remembers: ClassVar[bool] = False
    """Whether sent messages are kept until the peer confirms them. Events then wait while `is_full`."""
    event_uid_at: ClassVar[int] = -1
    """Position of the 16-byte uid in the frame of an event; -1 in protocols whose events have none."""
    authored: ClassVar[bool] = False
    """Whether messages prove by themselves who wrote them; see `written_by`."""
    identities: tuple[str, ...] = ()
    """The identities that the peer has proved by the protocol, such as `user:ada`; see `Protocol.identity_kinds`."""
    linger: ClassVar[float | None] = None
    """Seconds that the peer has to close its half after our last message; None for the default."""
    protected: bool = False
    """Whether nobody can eavesdrop (TLS, or both ends on this machine); the owner sets it before `connected`."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.counters = {}

    def connected(self, now: float) -> None:
        """The transport is up: say hello, start timers."""
        self.state = SessionState.OPEN

    @abc.abstractmethod
    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take bytes from the transport; what they brought, in order. A batch ends with its first control message."""

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        """The same as `receive`, one batch at a time: what a batch changes is in force before the next is decoded."""
        return self.receive(data, now)

    def receive_datagrams(self, data: bytes, ends: Sequence[int], now: float) -> Iterable[Batch]:
        """Take datagrams that arrived together: one after the other in `data`, each up to its place in `ends`."""
        start = 0
        for end in ends:
            yield from self.receive(data[start:end], now)
            start = end

    @property
    def inbound(self) -> Direction:
        """The direction of what is received."""
        return self.role.sends.opposite

    @property
    def outbound(self) -> Direction:
        """The direction of what is sent."""
        return self.role.sends

    def end_of_input(self, now: float) -> None:
        """The peer will send no more. Pending answers can still be sent."""
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

    def expire(self, now: float) -> Sequence[Batch]:
        """A deadline has passed: send pings, resend, give up."""
        return NOTHING

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
        """If it `remembers`: whether so much is unconfirmed that events should wait for confirmations."""
        return False

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event ahead of messages that wait for slow work, so that `outgoing` returns it at once.

        `packed` is the result of `packing`, or None if there was nothing to do. The owner keeps events in order.
        """
        self.send(event, now)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already (from `Events.frames` or `Publishes.acknowledgements`)."""
        raise NotImplementedError

    @property
    def event_style(self) -> object:
        """Sessions with equal styles encode events identically now, so `write_events` of one serves all of them.

        None if there is no fast path for events, or the session is closed.
        """
        return None

    def event_head(self, topic: str, content_type: str | None) -> EventHead | None:
        """The head of the frames of such events, for this session and all with an equal `event_style`.

        None if events have to be sent one by one. Raises what `send` raises.
        """
        return None

    def draw_uids(self, now: float) -> bytes:
        """A uid to count up from, in protocols whose events have uids at `event_uid_at`."""
        raise NotImplementedError

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """Encode events, without queueing them; None if one of them has to be sent separately.

        Only their topic, body and content type are used. Raises what `send` raises.
        """
        written: list[bytes] = []
        uid_at = self.event_uid_at
        for event in events:
            topic, body = event.topic, event.body
            head = self.event_head(topic, event.content_type) if topic else None
            if head is None or not head.smallest <= len(body) <= head.largest:
                return None
            if event.attributes and not event.attributes.keys().isdisjoint(TRACE):
                return None
            frame = head.with_size(len(body))
            if uid_at >= 0:
                frame = frame[:uid_at] + self.draw_uids(now) + frame[uid_at + 16 :]
            written += (frame, body)
        return b"".join(written)

    def say_all(self) -> None:
        """Make `outgoing` return everything, also confirmations that would wait to share a write."""

    def messages_in(self, frame: bytes) -> int:
        """How many messages a frame of `outgoing_frames` completes: 0 for a fragment that is not the last."""
        return 1

    def recordable(self, data: bytes) -> bytes:
        """Sent bytes in the form for records: credentials are blanked.

        For received bytes, `Batch.data` has that form already.
        """
        return data

    def frames_of(self, encoded: bytes) -> Sequence[bytes]:
        """Encoded frames (from `Events.frames`) one by one, for transports that carry messages."""
        return (encoded,)

    def is_urgent(self, frame: bytes) -> bool:
        """Whether an encoded frame goes ahead of others in every queue."""
        return False

    @property
    def refuses(self) -> bool:
        """Whether `refusal` can ever return a reason."""
        return False

    def refusal(self, request: Message) -> str | None:
        """Why a hub must not treat this request as a publish: the sender expects an action that nobody performs."""
        return None

    look_ahead: int = 16 * 1024
    """Most bytes that the kernel scans in a call; the owner sets it by how long batches take."""
    columns: type[PublishColumns] | None = None
    """The class of the kernel's batches; None before `enable_columns` or without a kernel. See `ColumnSession`."""

    def enable_columns(self) -> bool:
        """Let `receive` use the kernel for long reads; False where there is none."""
        return False

    def enable_work(self) -> None:
        """The owner promises to call `work` after each step and run it. Without this, steps do the work themselves."""

    def work(self) -> Callable[[], object] | None:
        """Slow work for another thread, one job at a time; its result goes to `worked`."""
        return None

    def worked(self, result: object, now: float) -> Iterable[Batch]:
        """A job is done: go on with what waited for it, a batch at a time."""
        return NOTHING

    @abc.abstractmethod
    def close(self, now: float, reason: str = "") -> None:
        """Say goodbye as the protocol does it."""

    def unread(self) -> bytes:
        """Received bytes that are not a complete frame yet."""
        return b""

    @property
    def buffered(self) -> int:
        """How many bytes `unread` and half-assembled messages hold."""
        return len(self.unread())

    def discard(self) -> None:
        """The connection is gone: drop what `unread` returns.

        A session is part of reference cycles, so it stays in memory until a garbage collection.
        """

    def written_by(self, message: Message) -> str | None:
        """Who wrote a message, proved by the message itself: `mesh:<node>`; empty if nothing is proved.

        None where messages have no authors of their own: then they are the peer's.
        """
        return None

    @property
    def secrets(self) -> Mapping[str, str]:
        """The settings that decrypt recorded traffic of this connection, if it is encrypted."""
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
