"""What a protocol must offer to live in Wireloom: the contract between `protocols/` and every other room.

A protocol is one object of a subclass of `Protocol`. It brings, each in a module of its own:

- `frames.py`: the wire, one frame at a time, as frozen values (reached through `Protocol.decoder`
  and `Protocol.encode`);
- `session.py`: one end of one conversation (`Protocol.session`): bytes in, messages out;
- `columns.py`: the wire again, thousands of frames a call (`Protocol.columns`, loaded only when asked
  for, so that the bare library runs without numpy).

The hub's own operations need no part of the contract: every protocol maps its extension points to
requests for topics that begin with `$hub/` (see `HUB_PREFIX`), and the hub acts on those.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from wireloom.model import ConfigError, Direction, Kind, Message, NotSupported, ProtocolViolation
from wireloom.protocols.conversation import Conversation

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder

HUB_PREFIX = "$hub/"
"""Requests for topics under this prefix are operations of the hub profile: `$hub/subscribe`,
`$hub/unsubscribe`, `$hub/provide`, `$hub/withdraw`, `$hub/map`, `$hub/login`, each with a JSON body, and
`$hub/publish/<topic>`, an acknowledged publish of the request's body."""

PUBLISH = HUB_PREFIX + "publish/"
"""What the topics of acknowledged publishes begin with."""

LOGIN = HUB_PREFIX + "login"
"""Shows a token: `{"token": "..."}`. Sessions blank the body of such a message in `Run.data`."""

URGENT = "urgent"
"""The attribute, `1`, of a message that goes ahead of others in every queue."""

TRACE = ("traceparent", "tracestate")
"""Attributes with the context of a trace (W3C Trace Context) in which a message is sent. A protocol whose messages
have a place that peers may ignore carries them there; the others leave them out."""

_NO_SECRETS: Mapping[str, str] = types.MappingProxyType({})

CUT = "stream.cut"
"""The clause of a frame that is cut off by the end of its stream."""

HOLDING = 3
"""So many frames in a row show that reading began at a frame; see `Protocol.holds`."""


_RESPONSE = Kind.RESPONSE


class Role(StrEnum):
    """Which end of a conversation a session is."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def sends(self) -> Direction:
        """The direction of what this end sends."""
        return Direction.C2S if self is Role.CLIENT else Direction.S2C


class Framing(StrEnum):
    """What a violation does to the bytes after it."""

    STREAM = "stream"
    """The rest of that direction is lost with it."""
    LINES = "lines"
    """The next line stands alone."""
    DATAGRAM = "datagram"
    """Each datagram stands alone."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A URL scheme, the transport behind it and the port it uses when the URL names none."""

    name: str
    transport: str
    port: int
    secure: bool = False
    local: bool = False
    """Whether URLs name a file of this machine instead of host and port."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of a protocol's settings: a frozen dataclass with a default for every field.

    >>> @dataclass(frozen=True, slots=True)
    ... class Example(Settings):
    ...     max_payload: int = 8192
    >>> Example.parse({"max_payload": "100"})
    Example(max_payload=100)
    >>> Example.parse({"max_paylod": 1})
    Traceback (most recent call last):
    wireloom.model.ConfigError: unknown setting 'max_paylod'; known: max_payload
    """

    @property
    def contacts(self) -> Sequence[str]:
        """Addresses that a listener with these settings gets in touch with by itself: `host:port`, or URLs."""
        return ()

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """Settings from plain values (TOML, command line), checked by name and type.

        Fields are plain types, enums, mappings, `tuple[X, ...]`, and unions of these.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        hints = _hints(cls)  # type: ignore[arg-type]
        parsed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in fields:
                raise ConfigError(f"unknown setting {name!r}; known: {', '.join(sorted(fields))}")
            parsed[name] = _coerce(name, value, hints[name])
        return cls(**parsed)


@functools.cache
def _hints(kind: type[Settings]) -> dict[str, Any]:
    """The types of a class's fields; looking them up takes longer than everything else about settings."""
    return typing.get_type_hints(kind)


_BOOLEANS = {"true": True, "false": False, "on": True, "off": False, "1": True, "0": False}


def _coerce(name: str, value: object, hint: object) -> object:
    """`value` as the type the settings field asks for, or a ConfigError that says what is wanted."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if value is None and option is types.NoneType:
            return None
        if option is bool:
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in _BOOLEANS:
                return _BOOLEANS[value.lower()]
        elif option in (int, float):
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                continue
            try:
                number: float = int(value) if option is int else float(value)
            except (ValueError, OverflowError):
                continue
            if not (option is int and isinstance(value, float) and value != number):
                return number
        elif isinstance(option, type) and issubclass(option, Enum):
            try:
                return option(value)
            except ValueError:
                continue
        elif origin is tuple and isinstance(value, list | tuple):
            element = typing.get_args(option)[0]
            return tuple(_coerce(name, each, element) for each in value)
        elif isinstance(origin, type) and isinstance(value, origin):
            return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        wanted = "one of " + ", ".join(str(choice.value) for choice in hint)
    else:
        wanted = "of type " + " or ".join(getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(f"setting {name!r} is {value!r}; it must be {wanted}")


@dataclass(frozen=True, slots=True)
class Decoded:
    """One message and where it stood in the stream; `frame` is the protocol's own value."""

    message: Message
    frame: object
    offset: int
    size: int


class Decoder(abc.ABC):
    """Frames of one direction of one connection, one at a time: feed bytes, then iterate.

    Iteration stops when the buffer holds no complete frame; feed more and iterate again. The first
    violation raises `ProtocolViolation` with its offset. For `Framing.STREAM` it is final and raises
    again; for lines and datagrams the bad unit is gone and iteration goes on after it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._taken = 0
        """Bytes of the buffer already decoded; cut off in one go, not per frame."""
        self.offset = 0
        """Stream offset of the first byte not yet decoded."""
        self.violation: ProtocolViolation | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes in the order of the stream."""
        if self._taken:
            del self._buffer[: self._taken]
            self._taken = 0
        self._buffer += data

    def unlock(self, secrets: Sequence[Mapping[str, str]]) -> None:
        """Keys that may open what is encrypted (see `Session.secrets`); ignored where nothing is."""

    def abandoned(self, *, final: bool) -> Sequence[Rejected]:
        """What was taken in pieces and will never be a message, each time once; `final`: no more pieces come."""
        return ()

    @property
    def buffered(self) -> bytes:
        """Bytes fed and not decoded yet: the beginning of a frame, or what follows a violation."""
        return bytes(self._buffer[self._taken :])

    @abc.abstractmethod
    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The frame at `start` and where it ends, or None when the buffer holds only a part of it.

        Must raise as soon as a limit is broken, before the bytes it speaks of are waited for.
        """

    @abc.abstractmethod
    def to_message(self, frame: object) -> Message | None:
        """What the frame means; None while it is a part of a larger message."""

    def __iter__(self) -> Iterator[Decoded]:
        return self

    def __next__(self) -> Decoded:
        if self.violation is not None:
            raise self.violation
        while True:
            try:
                found = self.decode_one(self._buffer, self._taken)
                if found is None:
                    raise StopIteration
                frame, end = found
                size = end - self._taken
                message = self.to_message(frame)
            except ProtocolViolation as violation:
                if violation.offset is None:
                    violation.offset = self.offset
                self._after_violation(violation)
                raise
            start = self.offset
            self._taken = end
            self.offset += size
            if message is not None:
                return Decoded(message, frame, start, size)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        """Remember a final violation. Decoders of lines and datagrams skip the bad unit instead."""
        self.violation = violation


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
        self, data: bytes | memoryview = b"", messages: Sequence[Message] = (), bulk: Bulk | None = None, **unusual: Any
    ) -> None:
        self.data = data
        self.messages = messages
        if bulk is not None:
            self.bulk = bulk
        for name, value in unusual.items():
            setattr(self, name, value)

    @property
    def count(self) -> int:
        """How many messages the run's data holds."""
        return len(self.messages) + self.ignored - self.added if self.bulk is None else self.bulk.count


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

    def ask(self, request: Message, now: float) -> str | None:
        """Queue a request as `send` does; returns only the id it got, None where the protocol has no requests.

        Sessions bring a shorter way for the usual request; so do they for `respond`.
        """
        return self.send(request, now).id

    def ask_many(self, requests: Sequence[Message], now: float) -> list[str]:
        """Queue as many of these requests, from the first on, as can go the short way; returns their ids.

        The next one, if any is left, is one for `ask`. There is nothing to do where there is no short way.
        """
        return []

    def respond(self, request: Message, body: bytes, content_type: str | None, now: float) -> None:
        """Queue the response to a request that came in."""
        self.send(Message(_RESPONSE, request.topic, body, None, request.id, "done", content_type), now)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already (from `Bulk.forward` or `Bulk.acknowledgements`)."""
        raise NotImplementedError

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether `bulk.forward(topic)`, read on another connection, means the same to this session's peer."""
        return False

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

    def outstanding(self) -> Sequence[Message]:
        """Requests sent and not answered yet, in the order they were sent."""
        return ()

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
        """The numbers that stand for topics on this connection, in protocols that number them."""
        return {}

    def count(self, what: str) -> None:
        """Count something that is otherwise ignored."""
        self.counters[what] = self.counters.get(what, 0) + 1


class Sessions:
    """Makes the sessions of one listener, or of one client that connects again and again.

    A protocol whose sessions have something in common (what was seen, whom to trust) brings a subclass.
    """

    def __init__(self, protocol: Protocol, settings: Settings, topics: Mapping[int, str] | None = None) -> None:
        self.protocol = protocol
        self.settings = settings
        self.topics = topics

    def new(self, role: Role, *, unique: int = 0) -> Session:
        """A session at the start of its life."""
        return self.protocol.session(role, self.settings, unique=unique, topics=self.topics)

    def renew(self, settings: Settings) -> None:
        """Other sizes from now on, for sessions that are not there yet."""
        self.settings = settings

    def contact(self, *, unique: int = 0) -> Session:
        """A listener's session with one of `Settings.contacts`: the listener speaks first."""
        raise NotSupported(f"listeners of {self.protocol.name} wait to be spoken to")

    def join(self, others: Sequence[Sessions]) -> None:
        """Share with other listeners of the same hub and protocol what belongs to the hub, not to a listener."""

    def admit(self, datagram: bytes, source: str, time: float) -> ProtocolViolation | None:
        """Why the first datagram of a source is not worth a session; None when it is. `time` is since 1970."""
        return None

    @property
    def counters(self) -> Mapping[str, int]:
        """Things that all sessions together count, by clause."""
        return {}


class Format(typing.Protocol):
    """How Python values become bodies of one content type, and back.

    `dumps` raises `BodyError` for a value the format cannot hold, `loads` a `ProtocolViolation` for
    bytes that are not of the format.
    """

    @property
    def content_type(self) -> str:
        """The content type of what `dumps` returns."""

    def dumps(self, value: object) -> bytes:
        """A value as a body."""

    def loads(self, data: bytes) -> object:
        """The value a body stands for."""


class Protocol(abc.ABC):
    """One protocol: its names, and the way to its frames, sessions and columns."""

    name: ClassVar[str]
    title: ClassVar[str]
    schemes: ClassVar[tuple[Scheme, ...]]
    framing: ClassVar[Framing] = Framing.STREAM
    settings_type: ClassVar[type[Settings]]
    clauses: ClassVar[Mapping[str, str]]
    """Every clause a violation can name, and the sentence of the specification behind it."""
    request_is_publish: ClassVar[bool] = False
    """Whether a request for a topic that nobody provides is an acknowledged publish (no answer has a body)."""
    hub_settings: ClassVar[Mapping[str, object]] = types.MappingProxyType({})
    """Settings that a listener of the hub has unless its configuration says otherwise."""
    message_size: ClassVar[str | None] = None
    """The setting that says how large a message may be; the hub's limit on all messages holds it down."""
    decompressed_size: ClassVar[str | None] = None
    """Likewise for what a message may become when it is decompressed."""
    loopback_settings: ClassVar[Mapping[str, object]] = types.MappingProxyType({})
    """Settings of the listener on loopback that a hub without any configuration opens."""
    takes_tokens: ClassVar[bool] = True
    """Whether peers have a way to show a token (see `LOGIN`)."""
    identity_kinds: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """What peers can prove to be by means of the protocol: the words before the colon, and what follows it."""
    decode_options: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Options of `wireloom decode` that only this protocol has, and the setting each of them gives."""
    conversation: ClassVar[Conversation] = Conversation()
    """Which messages belong together, and what can be found when a conversation is read afterwards."""

    def settings(self, values: Mapping[str, object] | None = None) -> Settings:
        """Settings from plain values."""
        return self.settings_type.parse(values or {})

    def lenient(self) -> Settings:
        """Settings to read bytes that somebody accepted before: their limits may have been higher than ours."""
        return self.settings()

    def observing(self) -> Settings:
        """Settings to read bytes that nobody has checked, such as a capture's: what breaks a rule is to be reported."""
        return self.lenient()

    @abc.abstractmethod
    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction of one connection.

        `topics` are the numbers that stand for topics, in protocols that number them.
        """

    @abc.abstractmethod
    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as bytes on the wire; the inverse of decoding."""

    @abc.abstractmethod
    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> Session:
        """A session at the start of its life. `unique` seeds whatever ids the protocol draws."""

    def sessions(self, settings: Settings, topics: Mapping[int, str] | None = None) -> Sessions:
        """The sessions of one listener or client."""
        return Sessions(self, settings, topics)

    def cases(self) -> Sequence[Case]:
        """What any implementation of the protocol must do, for `wireloom conformance`; see `protocols/cases.py`."""
        return ()

    def dissector(self) -> str | None:
        """A Wireshark dissector in Lua, named `wireloom.<name>`: the file `dissector.lua` beside the protocol's module.

        It may use what `protocols/dissector.lua` offers. None where Wireshark needs none.
        """
        package = type(self).__module__.rpartition(".")[0]
        file = resources.files(package) / "dissector.lua" if package else None
        return file.read_text() if file is not None and file.is_file() else None

    @abc.abstractmethod
    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether a stream that begins with `head` is likely to be this protocol."""

    def holds(self, data: bytes, direction: Direction, settings: Settings, *, final: bool = False) -> bool | None:
        """Whether several frames in a row hold from the first byte on; None while there are too few bytes to tell.

        This is how reading begins inside a stream. `final`: no more bytes will come, so fewer frames must do, if
        they end where the bytes do.
        """
        decoder = self.decoder(direction, settings)
        decoder.feed(data)
        try:
            found = sum(1 for _ in itertools.islice(decoder, HOLDING))
        except ProtocolViolation:
            return False
        if found == HOLDING:
            return True
        return bool(found and not decoder.buffered) if final else None

    def resynchronise(self, data: bytes) -> int | None:
        """Where, after bytes that were lost, the next frame begins; None: not in these bytes.

        Only protocols with a mark between frames can say; of the others (`Framing.STREAM`) nobody asks.
        """
        end = data.find(b"\n")
        return None if end < 0 else end + 1

    def columns(self) -> ColumnDecoder:
        """The fast decoder; by default a slow one made from `decoder`."""
        from wireloom.protocols.columns import SlowColumns

        return SlowColumns(self)

    def format_for(self, content_type: str | None) -> Format | None:
        """How bodies of this content type are read and written, where the protocol says so."""
        return None

    def redirected(self, url: str, settings: Settings, *, secure: bool) -> str:
        """The URL to connect to after a `redirect` message that named `url`; `secure` if TLS was in use.

        Raises NotSupported for a redirect that must not be followed.
        """
        raise NotSupported(f"{self.name} has no redirects")

    @property
    def all_schemes(self) -> tuple[Scheme, ...]:
        """The protocol's schemes, and with each of them that is plain TCP the same over a Unix socket."""
        plain = (scheme.name for scheme in self.schemes if scheme.transport == "tcp")
        return (*self.schemes, *(Scheme(f"{name}+unix", "unix", 0, local=True) for name in plain))

    def scheme(self, name: str) -> Scheme:
        """The scheme of that name."""
        return next(s for s in self.all_schemes if s.name == name)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bytes that did not decode: from `offset` to the end of the unit that is lost with them.

    Pieces of one message are one reject, although other frames may lie between them.
    """

    clause: str
    detail: str
    offset: int
    data: bytes


def decode_stream(decoder: Decoder, data: bytes, *, final: bool = True) -> Iterator[Decoded | Rejected]:
    """Everything a whole stream holds, messages and rejects in order; every byte is in exactly one of them.

    `decoder` is fresh. With `final` a frame that is cut off at the end is a reject, too.
    """
    decoder.feed(data)
    while True:
        start = decoder.offset
        try:
            for decoded in decoder:
                start = decoded.offset + decoded.size
                yield decoded
            break
        except ProtocolViolation as violation:
            if decoder.violation is None and violation.offset is not None:
                # Before the bad unit may lie pieces of a message that is not complete yet.
                start = violation.offset
            end = len(data) if decoder.violation is not None else decoder.offset
            yield Rejected(violation.clause, violation.detail, start, data[start:end])
            if decoder.violation is not None:
                return
    yield from decoder.abandoned(final=final)
    if final and decoder.offset < len(data):
        yield Rejected(CUT, "the stream ends inside a frame", decoder.offset, data[decoder.offset :])
