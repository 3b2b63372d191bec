"""yamp as a `Protocol`: names, settings, and what each frame means as a message.

A user message's `uri` is the topic. Ids are the 16 bytes of a uid as hyphenated UUID text. What is left
goes to attributes: `version` and `serializer` of a handshake, `reason` of a close, `url` of a redirect,
`progressive` of a request and `kill` of a cancel (`true`, or absent).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, cast

from wireloom.formats import body_formats
from wireloom.formats.conversion import MAX_CONVERTED
from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    ConfigError,
    Direction,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    ProtocolViolation,
    message_of,
)
from wireloom.protocols.contract import Decoder, Format, Protocol, Role, Scheme, Settings
from wireloom.protocols.pairing import Conversation
from wireloom.protocols.yamp import errors, frames
from wireloom.protocols.yamp.frames import ResponseType
from wireloom.protocols.yamp.pairing import CONVERSATION
from wireloom.protocols.yamp.uids import uid_text

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder
    from wireloom.protocols.yamp.session import YampSession

_TRUE = "true"
PROGRESSIVE: Mapping[str, str] = MappingProxyType({"progressive": _TRUE})
"""The attributes of a request that wants progress."""
KILL: Mapping[str, str] = MappingProxyType({"kill": _TRUE})
"""The attributes of a cancel that kills."""
# Looking up a member of an enum takes as long as making a message.
_EVENT, _REQUEST, _CANCEL, _UNPROVEN = Kind.EVENT, Kind.REQUEST, Kind.CANCEL, Authenticity.NONE

STATUS = {
    ResponseType.DONE: (Kind.RESPONSE, "done"),
    ResponseType.ERROR: (Kind.ERROR, "error"),
    ResponseType.PROGRESS: (Kind.PROGRESS, "progress"),
    ResponseType.CANCELLED: (Kind.RESPONSE, "cancelled"),
}
"""Kind and status of each type of response."""

_TYPES = {
    Kind.RESPONSE: ResponseType.DONE,
    Kind.ERROR: ResponseType.ERROR,
    Kind.PROGRESS: ResponseType.PROGRESS,
}

REDIRECT_SCHEMES = {"tcp": "yamp", "tls": "yamps", "ws": "yamp+ws", "wss": "yamp+wss"}
"""What a protocol in the url of a close-redirect means; our own names mean themselves."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://((?:\[[0-9A-Fa-f:.]+\]|[^\s/:?#@\[\]]+):([0-9]{1,5})(?:/\S*)?)")


@dataclass(frozen=True, slots=True)
class YampSettings(Settings):
    """Limits, timers and choices of one yamp connection."""

    agreed_fields: ClassVar[tuple[str, ...]] = ("serializer",)

    serializer: str = body_formats.DEFAULT
    """What a client names in its handshake, and what bodies are taken for where no handshake was seen."""
    serializers: tuple[str, ...] = body_formats.SERIALIZERS
    """What a server accepts."""
    max_body: int = frames.MAX_BODY_DEFAULT
    max_converted: int = MAX_CONVERTED
    """Bytes of a body that came in another format and is converted; each value counts for 16 at least."""
    max_requests: int = 10_000
    """How many requests may wait for their response at a time, in each direction."""
    handshake_timeout: float = 5.0
    ping_interval: float = 30.0
    """Ping a peer that was not heard for so long; 0 turns pings off."""
    pong_timeout: float = 10.0
    redirect: str = ""
    """A server that has this answers every handshake with a close-redirect to this url."""
    allow_downgrade: bool = False
    """Whether a client follows a redirect from TLS to plain."""

    def __post_init__(self) -> None:
        for name in (self.serializer, *self.serializers):
            if name not in body_formats.CONTENT_TYPES:
                known = ", ".join(body_formats.SERIALIZERS)
                raise ConfigError(f"setting 'serializer' or 'serializers' names {name!r}; known: {known}")
        if not 0 <= self.max_body <= frames.MAX_BODY_LIMIT:
            raise ConfigError(f"setting 'max_body' is {self.max_body}; it must be 0 to {frames.MAX_BODY_LIMIT}")
        if self.max_converted < 0:
            raise ConfigError(f"setting 'max_converted' is {self.max_converted}; it must be 0 or more")
        if self.redirect and split_url(self.redirect) is None:
            raise ConfigError(f"setting 'redirect' is {self.redirect!r}; it must be <protocol>://<host>:<port>[/uri]")


def parse_uid(text: str | None, what: str) -> bytes:
    """The uid a text stands for; the inverse of `uid_text`."""
    try:
        uid = bytes.fromhex((text or "").replace("-", ""))
    except ValueError:
        uid = b""
    if len(uid) != frames.UID_SIZE:
        raise NotSupported(f"{what} of a yamp message is a UUID, not {text!r}")
    return uid


def to_message(frame: frames.Frame, direction: Direction | None, content_type: str | None) -> Message:
    """What a frame means; `content_type` is that of bodies on this connection."""
    match frame:
        case frames.Event(uid, uri, body):
            return message_of((
                _EVENT, uri, body, uid_text(uid), None, None, content_type,
                NO_ATTRIBUTES, "yamp", None, None, direction, _UNPROVEN,
            ))  # fmt: skip
        case frames.Request(uid, uri, progressive, body):
            return message_of((
                _REQUEST, uri, body, uid_text(uid), None, None, content_type,
                PROGRESSIVE if progressive else NO_ATTRIBUTES, "yamp", None, None, direction, _UNPROVEN,
            ))  # fmt: skip
        case frames.Response(uid, uri, request_uid, type_, body):
            kind, status = STATUS[type_]
            if kind is Kind.ERROR:
                status = errors.status_of(body, content_type)
            return message_of((
                kind, uri, body, uid_text(uid), uid_text(request_uid), status, content_type,
                NO_ATTRIBUTES, "yamp", None, None, direction, _UNPROVEN,
            ))  # fmt: skip
        case frames.Cancel(uid, uri, request_uid, kill):
            return message_of((
                _CANCEL, uri, b"", uid_text(uid), uid_text(request_uid), None, None,
                KILL if kill else NO_ATTRIBUTES, "yamp", None, None, direction, _UNPROVEN,
            ))  # fmt: skip
        case frames.Handshake(version, serializer):
            named = {"version": str(version), "serializer": serializer}
            return Message(Kind.OPEN, attributes=named, protocol="yamp", direction=direction)
        case frames.Ping(payload):
            return Message(Kind.PING, body=payload, protocol="yamp", direction=direction)
        case frames.Pong(payload):
            return Message(Kind.PONG, body=payload, protocol="yamp", direction=direction)
        case frames.Close(reason):
            why = {"reason": reason} if reason else NO_ATTRIBUTES
            return Message(Kind.CLOSE, attributes=why, protocol="yamp", direction=direction)
        case frames.CloseRedirect(url):
            return Message(Kind.REDIRECT, attributes={"url": url}, protocol="yamp", direction=direction)


def to_frame(message: Message, settings: YampSettings) -> frames.Frame:
    """The frame that says this; raises NotSupported where yamp has no word for it."""
    match message.kind:
        case Kind.EVENT:
            return frames.Event(parse_uid(message.id, "id"), _uri(message), _body(message, settings))
        case Kind.REQUEST:
            progressive = message.attributes.get("progressive") == _TRUE
            return frames.Request(parse_uid(message.id, "id"), _uri(message), progressive, _body(message, settings))
        case Kind.RESPONSE | Kind.ERROR | Kind.PROGRESS:
            uid, request_uid = parse_uid(message.id, "id"), parse_uid(message.correlation_id, "correlation_id")
            return frames.Response(uid, _uri(message), request_uid, _type(message), _body(message, settings))
        case Kind.CANCEL:
            uid, request_uid = parse_uid(message.id, "id"), parse_uid(message.correlation_id, "correlation_id")
            return frames.Cancel(uid, _uri(message), request_uid, message.attributes.get("kill") == _TRUE)
        case Kind.OPEN:
            version = message.attributes.get("version", str(frames.VERSION))
            if not (version.isascii() and version.isdecimal() and int(version) <= 0xFFFF):
                raise NotSupported(f"attributes['version'] of a yamp handshake is 0 to 65535, not {version!r}")
            serializer = message.attributes.get("serializer", settings.serializer)
            return frames.Handshake(int(version), fits(serializer, "attributes['serializer']", 0xFF))
        case Kind.PING | Kind.PONG:
            if len(message.body) > 0xFF:
                raise LimitExceeded(f"payload of {len(message.body)} bytes; a yamp ping has at most 255")
            return frames.Ping(message.body) if message.kind is Kind.PING else frames.Pong(message.body)
        case Kind.CLOSE:
            return frames.Close(fits(message.attributes.get("reason", ""), "attributes['reason']", frames.MAX_TEXT))
        case Kind.REDIRECT:
            return frames.CloseRedirect(fits(message.attributes.get("url", ""), "attributes['url']", frames.MAX_TEXT))
        case _:
            raise NotSupported(f"yamp has no frame for a message of kind {message.kind}")


def _type(message: Message) -> ResponseType:
    if message.status == "cancelled" and message.kind is Kind.RESPONSE:
        return ResponseType.CANCELLED
    return _TYPES[message.kind]


def _uri(message: Message) -> str:
    return fits(message.topic or "", "topic", frames.MAX_URI)


def _body(message: Message, settings: YampSettings) -> bytes:
    if len(message.body) > settings.max_body:
        raise LimitExceeded(f"body of {len(message.body)} bytes; max_body is {settings.max_body}")
    return message.body


def fits(text: str, what: str, limit: int) -> str:
    """The text itself; raises LimitExceeded where it is longer than its field, NotSupported where it is no text."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise NotSupported(f"{what} of a yamp message must be text that UTF-8 can hold, not {text!r}") from None
    if size > limit:
        raise LimitExceeded(f"{what} of {size} bytes; yamp has room for {limit}")
    return text


def uri_of(message: Message) -> str:
    """The topic of a message: yamp sends nothing without one."""
    if not message.topic:
        raise NotSupported(f"a yamp {message.kind} needs a topic: it is the uri")
    return message.topic


@lru_cache(maxsize=1024)
def event_beginning(uri: str) -> bytes:
    """An event without uid and body."""
    return frames.encode(frames.Event(bytes(16), fits(uri, "topic", frames.MAX_URI), b""))


def agreed_serializer(theirs: frames.Handshake, role: Role, settings: YampSettings) -> str:
    """What a handshake says bodies are written with; a violation if that is not what this end can do, or asked for."""
    if theirs.version != frames.VERSION:
        raise frames.violation(
            "yamp.handshake.version", f"version {theirs.version} is not supported; supported: {frames.VERSION}"
        )
    serializer = theirs.serializer or body_formats.DEFAULT
    if role is Role.CLIENT and serializer != settings.serializer:
        raise frames.violation(
            "yamp.handshake.echo",
            f"asked for serializer {settings.serializer!r}, the server answered {theirs.serializer!r}",
        )
    if role is Role.SERVER and serializer not in settings.serializers:
        supported = ", ".join(settings.serializers)
        raise frames.violation(
            "yamp.handshake.serializer", f"serializer {serializer!r} is not supported; supported: {supported}"
        )
    return serializer


def split_url(url: str) -> tuple[str, str] | None:
    """Protocol and the rest of a close-redirect's url; None where it has not that form.

    >>> split_url("ws://hostname:8888/hello/world?msg=goodmorning")
    ('ws', 'hostname:8888/hello/world?msg=goodmorning')
    >>> split_url("tcp://hostname") is None
    True
    """
    found = _URL.fullmatch(url)
    if found is None or not 0 < int(found[3]) < 0x10000:
        return None
    return found[1].lower(), found[2]


SERIALIZER = 0
"""In topic maps of journals of format 1 only: the number under which they state the serializer of a connection."""


class YampDecoder(Decoder):
    """Frames of one direction, as messages; the handshake says what the bodies after it are.

    Number 0 of `topics` is the serializer that was agreed on before, in journals of format 1.
    """

    def __init__(self, direction: Direction, settings: YampSettings, topics: Mapping[int, str] | None = None) -> None:
        super().__init__()
        self.content_type = body_formats.content_type((topics or {}).get(SERIALIZER, settings.serializer))
        self._direction = direction
        self._max_body = settings.max_body

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next frame, by `frames.decode`."""
        return frames.decode(buffer, start, self._max_body)

    def to_message(self, frame: object) -> Message:
        """The frame's meaning under the serializer that was named last."""
        if isinstance(frame, frames.Handshake):
            self.content_type = body_formats.content_type(frame.serializer)
        return to_message(cast(frames.Frame, frame), self._direction, self.content_type)


class Yamp(Protocol):
    """The protocol object of yamp."""

    name: ClassVar[str] = "yamp"
    title: ClassVar[str] = "Yamp"
    schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme("yamp", "tcp", 5043),
        Scheme("yamps", "tls", 5043, secure=True),
        Scheme("yamp+ws", "ws", 5044),
        Scheme("yamp+wss", "wss", 5044, secure=True),
    )
    settings_type: ClassVar[type[Settings]] = YampSettings
    carried_attributes: ClassVar[tuple[str, ...]] = ("progressive",)
    message_size: ClassVar[str | None] = "max_body"
    decompressed_size: ClassVar[str | None] = "max_converted"
    clauses: ClassVar[Mapping[str, str]] = frames.CLAUSES
    conversation: ClassVar[Conversation] = CONVERSATION
    decode_options: ClassVar[Mapping[str, str]] = MappingProxyType({"format": "serializer"})
    case_settings: ClassVar[Sequence[str]] = ("serializer",)

    def lenient(self) -> Settings:
        """No limit on bodies but the size field's own."""
        return YampSettings(max_body=frames.MAX_BODY_LIMIT)

    def observing(self) -> Settings:
        """Bodies as large as they usually may be: a size beyond that is rather a stream that is broken."""
        return self.settings()

    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> YampDecoder:
        """A decoder for one direction."""
        return YampDecoder(direction, cast(YampSettings, settings), topics)

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as one frame; user messages must have their id."""
        return frames.encode(to_frame(message, cast(YampSettings, settings)))

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> YampSession:
        """A new session; its uids are drawn from a generator seeded with `unique`."""
        from wireloom.protocols.yamp.session import YampSession

        return YampSession(role, cast(YampSettings, settings), unique=unique)

    def cases(self) -> Sequence[Case]:
        """What any implementation must do."""
        from wireloom.protocols.yamp.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether this begins with a handshake of version 1, or with a server's refusal.

        >>> YAMP.recognise(bytes.fromhex("000001046a736f6e05"), Direction.C2S)
        True
        """
        if not head:
            return False
        if head[0] in (frames.FrameType.CLOSE, frames.FrameType.CLOSE_REDIRECT):
            return direction is Direction.S2C and _is_refusal(head)
        if len(head) < 4 or head[:3] != b"\x00\x00\x01":
            return False
        name, rest = head[4 : 4 + head[3]], head[4 + head[3] :]
        known = any(known.encode().startswith(name) for known in body_formats.SERIALIZERS) and (
            len(name) < head[3] or name.decode(errors="replace") in ("", *body_formats.SERIALIZERS)
        )
        # A second handshake never follows the first: that is another protocol's zero byte.
        return known and (not rest or 0 < rest[0] <= frames.FrameType.RESPONSE)

    def columns(self) -> ColumnDecoder:
        """The numba kernels."""
        from wireloom.protocols.yamp.columns import YampColumns

        return YampColumns()

    def format_for(self, content_type: str | None) -> Format | None:
        """The serializer of a content type."""
        return body_formats.format_for(content_type)

    def redirected(self, url: str, settings: Settings, *, secure: bool) -> str:
        """The URL to connect to after a close-redirect.

        >>> YAMP.redirected("ws://example.org:5044/chat", YampSettings(), secure=False)
        'yamp+ws://example.org:5044/chat'
        """
        parts = split_url(url)
        if parts is None:
            raise NotSupported(f"yamp.redirect.url: {url!r} is not <protocol>://<host>:<port>[/uri]")
        name = REDIRECT_SCHEMES.get(parts[0], parts[0])
        scheme = next((known for known in self.schemes if known.name == name), None)
        if scheme is None:
            known = ", ".join((*REDIRECT_SCHEMES, *(each.name for each in self.schemes)))
            raise NotSupported(f"a redirect to {url!r} cannot be followed: {parts[0]!r} is none of {known}")
        if secure and not scheme.secure and not cast(YampSettings, settings).allow_downgrade:
            raise NotSupported(f"a redirect from TLS to {url!r} is refused; the setting allow_downgrade allows it")
        return f"{name}://{parts[1]}"


def _is_refusal(head: bytes) -> bool:
    """Whether a server's first bytes are one whole close or close-redirect with readable text."""
    try:
        found = frames.decode(head)
    except ProtocolViolation:
        return False
    if found is None or found[1] != len(head):
        return False
    frame = found[0]
    if isinstance(frame, frames.CloseRedirect):
        return split_url(frame.url) is not None
    return isinstance(frame, frames.Close) and len(head) > 3 and frame.reason.isprintable()


YAMP = Yamp()
"""yamp: events and requests by uri, with progress, cancel and a choice of serializers."""
