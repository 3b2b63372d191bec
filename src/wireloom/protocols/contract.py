"""The contract of a protocol: what each protocol implements, and what all other packages rely on.

A protocol is one object of a subclass of `Protocol`. It has these modules:

- `frames.py`: the wire, one frame at a time, as frozen values (reached through `Protocol.decoder`
  and `Protocol.encode`);
- `session.py`: one end of one conversation (`Protocol.session`): bytes in, messages out;
- `columns.py`: the wire again, thousands of frames a call (`Protocol.columns`, loaded on first use,
  so that the bare library runs without numpy).

The hub's own operations need no part of the contract: every protocol maps its extension points to
requests for topics that begin with `$hub/` (see `HUB_PREFIX`), and the hub acts on those.

The base classes of settings, decoders and sessions have modules of their own. This module exports their names, too.
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
"""This many valid frames in a row show that decoding began at a frame boundary; see `Protocol.holds`."""


class Framing(StrEnum):
    """What a violation does to the bytes after it."""

    STREAM = "stream"
    """The rest of that direction is lost."""
    LINES = "lines"
    """Only that line is lost."""
    DATAGRAM = "datagram"
    """Only that datagram is lost."""


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

    A protocol whose sessions share state (a replay cache, trusted keys) has a subclass.
    """

    def __init__(self, protocol: Protocol, settings: Settings, topics: Mapping[int, str] | None = None) -> None:
        self.protocol = protocol
        self.settings = settings
        self.topics = topics

    def new(self, role: Role, *, unique: int = 0, url: str = "") -> Session:
        """A new session; `url` is where a client will connect to."""
        return self.protocol.session(role, self.settings, unique=unique, topics=self.topics)

    def learn(self, session: Session, url: str) -> bool:
        """Whether a client's session failed, but showed which settings the server needs. Then a retry makes sense."""
        return False

    def renew(self, settings: Settings) -> None:
        """Use these settings for sessions that are made from now on."""
        self.settings = settings

    def contact(self, *, unique: int = 0) -> Session:
        """A listener's session with one of `Settings.contacts`: the listener sends first."""
        raise NotSupported(f"listeners of {self.protocol.name} wait to be spoken to")

    def join(self, others: Sequence[Sessions]) -> None:
        """Share state with the other listeners of the same hub and protocol."""

    @property
    def recalls(self) -> float:
        """How many seconds of accepted packets these sessions must know after a restart; 0 for none.

        If it is not 0, the owner calls `begin_recall` before the first packet, then `recall` with all packets that were
        accepted within that time, and `recalled` at the end.
        """
        return 0.0

    def begin_recall(self, now: float) -> None:
        """Packets before `now`, in seconds since 1970, are not known yet."""

    def recall(self, frames: bytes, source: str, arrived: float) -> None:
        """Recall consecutive frames that were accepted before the restart: their source and time of arrival."""

    def recalled(self) -> None:
        """All packets were recalled."""

    def admit(self, datagram: bytes, source: str, time: float) -> ProtocolViolation | None:
        """Why the first datagram of a source gets no session; None if it gets one. `time` is seconds since 1970."""
        return None

    @property
    def counters(self) -> Mapping[str, int]:
        """What all sessions together have counted, by clause."""
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
    """One protocol: its names, and access to its frames, sessions and columns."""

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
    """The kinds of identity that peers can prove by the protocol: the prefix before the colon, and what follows it."""
    decode_options: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Options of `wireloom decode` that only this protocol has, and the setting each of them gives."""
    case_settings: ClassVar[Sequence[str]] = ()
    """Settings that the conformance cases use, because some peers cannot be reached without them."""
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
        """Settings to read bytes that were accepted before: the limits then may have been higher than ours."""
        return self.settings()

    def observing(self) -> Settings:
        """Settings to read bytes that nobody has checked, such as a capture's: what breaks a rule is to be reported."""
        return self.lenient()

    def has_profile(self, settings: Settings) -> bool:
        """Whether the hub profile is in use with these settings; it is optional in some protocols."""
        return True

    @abc.abstractmethod
    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction of one connection.

        `topics` maps numbers to topics, in protocols that number them. For a recorded connection, the settings
        include what it agreed on: `apply_agreed`.
        """

    @abc.abstractmethod
    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as bytes on the wire; the inverse of decoding."""

    @abc.abstractmethod
    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> Session:
        """A new session. `unique` seeds the ids that the protocol draws."""

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
        """Whether the bytes begin with several valid frames; None while there are too few bytes to tell.

        This finds a frame boundary inside a stream. `final`: no more bytes will come, so fewer frames are enough if
        they end where the bytes end.
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
        """Where the next frame begins after lost bytes; None if not in these bytes.

        Only protocols with a delimiter between frames can tell. It is not called for `Framing.STREAM`.
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
        """The protocol's schemes, and for each plain TCP scheme the same over a Unix socket."""
        plain = (scheme.name for scheme in self.schemes if scheme.transport == "tcp")
        return (*self.schemes, *(Scheme(f"{name}+unix", "unix", 0, local=True) for name in plain))

    def scheme(self, name: str) -> Scheme:
        """The scheme of that name."""
        return next(s for s in self.all_schemes if s.name == name)
