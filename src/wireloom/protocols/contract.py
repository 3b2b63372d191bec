"""What a protocol must offer to live in Wireloom: the contract between `protocols/` and every other room.

A protocol is one object of a subclass of `Protocol`. It brings, each in a module of its own:

- `frames.py`: the wire, one frame at a time, as frozen values (reached through `Protocol.decoder`
  and `Protocol.encode`);
- `session.py`: one end of one conversation (`Protocol.session`): bytes in, messages out;
- `columns.py`: the wire again, thousands of frames a call (`Protocol.columns`, loaded only when asked
  for, so that the bare library runs without numpy).

The hub's own operations need no part of the contract: every protocol maps its extension points to
requests for topics that begin with `$hub/` (see `HUB_PREFIX`), and the hub acts on those.

The bases of settings, decoders and sessions stand in modules of their own beside this one; all of their names are
here, too.
"""

from __future__ import annotations

import abc
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import TYPE_CHECKING, ClassVar

from wireloom.model import Direction, Message, NotSupported, ProtocolViolation
from wireloom.protocols.batch import (
    HUB_PREFIX,
    NOTHING,
    PUBLISH,
    TRACE,
    Batch,
    Calls,
    EventList,
    Events,
    Publishes,
    is_control,
)
from wireloom.protocols.decoding import CUT, Decoded, Decoder, Rejected, decode_stream
from wireloom.protocols.pairing import Conversation
from wireloom.protocols.session import (
    NOTHING_AGREED,
    EventHead,
    Role,
    Session,
    SessionState,
)
from wireloom.protocols.settings import Settings, apply_agreed

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder

__all__ = [
    "CUT",
    "HOLDING",
    "HUB_PREFIX",
    "LOGIN",
    "NOTHING_AGREED",
    "PUBLISH",
    "TRACE",
    "URGENT",
    "NOTHING",
    "Batch",
    "Calls",
    "EventHead",
    "EventList",
    "Events",
    "Publishes",
    "is_control",
    "Decoded",
    "Decoder",
    "Format",
    "Framing",
    "Protocol",
    "Rejected",
    "Role",
    "Scheme",
    "Session",
    "SessionState",
    "Sessions",
    "Settings",
    "apply_agreed",
    "decode_stream",
]

LOGIN = HUB_PREFIX + "login"
"""Shows a token: `{"token": "..."}`. Sessions blank the body of such a message in `Batch.data`."""

URGENT = "urgent"
"""The attribute, `1`, of a message that goes ahead of others in every queue."""

HOLDING = 3
"""So many frames in a row show that reading began at a frame; see `Protocol.holds`."""


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


class Sessions:
    """Makes the sessions of one listener, or of one client that connects again and again.

    A protocol whose sessions have something in common (what was seen, whom to trust) brings a subclass.
    """

    def __init__(self, protocol: Protocol, settings: Settings, topics: Mapping[int, str] | None = None) -> None:
        self.protocol = protocol
        self.settings = settings
        self.topics = topics

    def new(self, role: Role, *, unique: int = 0, url: str = "") -> Session:
        """A session at the start of its life; `url` is where a client will connect to."""
        return self.protocol.session(role, self.settings, unique=unique, topics=self.topics)

    def learn(self, session: Session, url: str) -> bool:
        """Whether a client's session failed and showed how to talk to the server: then it is worth another try."""
        return False

    def renew(self, settings: Settings) -> None:
        """Other sizes from now on, for sessions that are not there yet."""
        self.settings = settings

    def contact(self, *, unique: int = 0) -> Session:
        """A listener's session with one of `Settings.contacts`: the listener speaks first."""
        raise NotSupported(f"listeners of {self.protocol.name} wait to be spoken to")

    def join(self, others: Sequence[Sessions]) -> None:
        """Share with other listeners of the same hub and protocol what belongs to the hub, not to a listener."""

    @property
    def recalls(self) -> float:
        """How many seconds of the past these sessions must know of after a restart; 0 for none.

        Where there are any, the owner calls `begin_recall` before the first packet, then `recall` with all that was
        accepted within that time, and `recalled` at the end.
        """
        return 0.0

    def begin_recall(self, now: float) -> None:
        """What came before `now`, in seconds since 1970, is not known yet."""

    def recall(self, frames: bytes, source: str, arrived: float) -> None:
        """Frames that were accepted before the restart, one after the other, and when they came from an address."""

    def recalled(self) -> None:
        """All of it was recalled."""

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
    trust_setting: ClassVar[str | None] = None
    """The setting that names a file of trusted keys, in protocols whose packets are signed."""
    loopback_settings: ClassVar[Mapping[str, object]] = types.MappingProxyType({})
    """Settings of the listener on loopback that a hub without any configuration opens."""
    takes_tokens: ClassVar[bool] = True
    """Whether peers have a way to show a token (see `LOGIN`)."""
    carried_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes of events and requests that have a place on the wire; `extension.*` stands for all that begin so."""
    identity_kinds: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """What peers can prove to be by means of the protocol: the words before the colon, and what follows it."""
    decode_options: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Options of `wireloom decode` that only this protocol has, and the setting each of them gives."""
    case_settings: ClassVar[Sequence[str]] = ()
    """Settings that the conformance cases act on: what a peer may need to be talked to at all."""
    conversation: ClassVar[Conversation] = Conversation()
    """Which messages belong together, and what can be found when a conversation is read afterwards."""

    def settings(self, values: Mapping[str, object] | None = None) -> Settings:
        """Settings from plain values."""
        return self.settings_type.parse(values or {})

    def check_attributes(self, attributes: Mapping[str, str]) -> None:
        """Raise NotSupported for attributes that would be lost; the context of a trace is always optional."""
        lost = [
            name
            for name in attributes
            if name not in TRACE
            and not any(
                name == each or (each[-1] == "*" and name.startswith(each[:-1])) for each in self.carried_attributes
            )
        ]
        if lost:
            carries = ", ".join(self.carried_attributes) or "none"
            raise NotSupported(f"{self.name} cannot carry the attributes {', '.join(sorted(lost))}; it has: {carries}")

    def lenient(self) -> Settings:
        """Settings to read bytes that somebody accepted before: their limits may have been higher than ours."""
        return self.settings()

    def observing(self) -> Settings:
        """Settings to read bytes that nobody has checked, such as a capture's: what breaks a rule is to be reported."""
        return self.lenient()

    def has_profile(self, settings: Settings) -> bool:
        """Whether settings say that the hub profile is in use, in a protocol where it may not be."""
        return True

    @abc.abstractmethod
    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction of one connection.

        `topics` are the numbers that stand for topics, in protocols that number them. Whoever reads a recorded
        connection has put what it agreed on into the settings: `apply_agreed`.
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
