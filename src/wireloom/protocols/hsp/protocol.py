"""hsp as a `Protocol`: names, settings, and what each frame means as a message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

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
from wireloom.protocols.contract import Decoder, Protocol, Role, Scheme, Settings
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.pairing import CONVERSATION
from wireloom.protocols.hsp.profile import ENVELOPE, Names, attributes_of, make_envelope
from wireloom.protocols.pairing import Conversation

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder
    from wireloom.protocols.hsp.session import HspSession

UNDEFINED = "undefined"
"""The status of an `ERROR_UNDEF`."""


@dataclass(frozen=True, slots=True)
class HspSettings(Settings):
    """Limits and timers of one hsp connection."""

    agreed_fields: ClassVar[tuple[str, ...]] = ("profile",)

    max_payload: int = frames.MAX_PAYLOAD_DEFAULT
    ping_interval: float = 30.0
    pong_timeout: float = 10.0
    profile: bool = True
    """Whether the reserved types of the hub profile are active."""
    max_numbers: int = 256
    """Numbers that a connection may have topics for, beside those of the listener: each new map states all of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_payload <= frames.MAX_PAYLOAD_LIMIT:
            raise ConfigError(f"setting 'max_payload' is {self.max_payload}; it must be from 0 to 2^32-1")
        if self.max_numbers < 0:
            raise ConfigError(f"setting 'max_numbers' is {self.max_numbers}; it must be 0 or more")
        for name in ("ping_interval", "pong_timeout"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be 0 or more seconds")


# Looking up a member of an enum costs as much as making a message, and one of these is needed for each.
_EVENT, _REQUEST, _RESPONSE, _ERROR = Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.ERROR
_NOBODY = Authenticity.NONE
# Likewise a union of classes, which `isinstance` takes as well.
_DATA = (frames.DataAck, frames.Data)


def to_message(frame: frames.Frame, names: Names, direction: Direction | None) -> Message:
    """What a frame means."""
    kind, topic, body, attributes = _EVENT, None, b"", NO_ATTRIBUTES
    id_ = correlation_id = status = content_type = None
    if isinstance(frame, _DATA):
        topic, body, content_type = names.read(frame.type, frame.payload)
        attributes = attributes_of(frame.type)
        if isinstance(frame, frames.DataAck):
            kind, id_ = _REQUEST, str(frame.message_id)
    elif isinstance(frame, frames.Ack):
        kind, correlation_id, status = _RESPONSE, str(frame.message_id), "done"
    elif isinstance(frame, frames.Error):
        kind, correlation_id, status, body = _ERROR, str(frame.message_id), str(frame.type), frame.payload
    elif isinstance(frame, frames.ErrorUndef):
        kind, correlation_id, status = _ERROR, str(frame.message_id), UNDEFINED
    else:
        kind = Kind.PING if isinstance(frame, frames.Ping) else Kind.PONG
    return message_of((
        kind, topic, body, id_, correlation_id, status, content_type, attributes, "hsp", None, None, direction, _NOBODY
    ))  # fmt: skip


def to_frame(message: Message, names: Names, settings: HspSettings) -> frames.Frame:
    """The frame that says this; raises NotSupported where hsp has no word for it."""
    kind = message.kind
    if kind is _RESPONSE:
        return frames.Ack(_number(message.correlation_id, "correlation_id", 32))
    if kind is _EVENT or kind is _REQUEST:
        type_, payload = _typed_payload(message, names)
        _check_size(payload, settings)
        if kind is _EVENT:
            return frames.Data(type_, payload)
        return frames.DataAck(_number(message.id, "id", 32), type_, payload)
    if kind is _ERROR:
        request = _number(message.correlation_id, "correlation_id", 32)
        status = message.status or UNDEFINED
        _check_size(message.body, settings)
        if status.isascii() and status.isdecimal():
            return frames.Error(request, _number(status, "status", 16), message.body)
        return frames.Error(request, 0, message.body) if message.body else frames.ErrorUndef(request)
    if kind is Kind.PING:
        return frames.PING
    if kind is Kind.PONG:
        return frames.PONG
    raise NotSupported(f"hsp has no frame for a message of kind {kind}")


def _check_size(payload: bytes, settings: HspSettings) -> None:
    if len(payload) > settings.max_payload:
        raise LimitExceeded(f"payload of {len(payload)} bytes; max_payload is {settings.max_payload}")


def _typed_payload(message: Message, names: Names) -> tuple[int, bytes]:
    """Type and payload: the type the message names itself, else the one its topic stands for."""
    type_text = message.attributes.get("type")
    if type_text is not None:
        number = _number(type_text, "attributes['type']", 16)
        if number == ENVELOPE and names.profile and message.topic not in (None, names.topic(ENVELOPE)):
            return number, make_envelope(str(message.topic), message.body, message.content_type)
        return number, message.body
    if message.topic is None:
        raise NotSupported("an hsp message needs a topic, or its number in attributes['type']")
    return names.write(message.topic, message.body, message.content_type)


def _number(text: str | None, what: str, bits: int) -> int:
    if text is None or not (text.isascii() and text.isdecimal()) or int(text) >= 1 << bits:
        raise NotSupported(f"{what} of an hsp message is a decimal number below 2^{bits}, not {text!r}")
    return int(text)


class HspDecoder(Decoder):
    """Frames of one direction, as messages."""

    def __init__(self, direction: Direction, settings: HspSettings, names: Names) -> None:
        super().__init__()
        self._direction = direction
        self._max_payload = settings.max_payload
        self._names = names

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next frame, by `frames.decode`."""
        return frames.decode(buffer, start, self._max_payload)

    def to_message(self, frame: object) -> Message:
        """The frame's meaning under this connection's names."""
        return to_message(cast(frames.Frame, frame), self._names, self._direction)


class Hsp(Protocol):
    """The protocol object of hsp."""

    name: ClassVar[str] = "hsp"
    title: ClassVar[str] = "HSP"
    schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme("hsp", "tcp", 5042),
        Scheme("hsps", "tls", 5042, secure=True),
    )
    settings_type: ClassVar[type[Settings]] = HspSettings
    carried_attributes: ClassVar[tuple[str, ...]] = ("type",)
    message_size: ClassVar[str | None] = "max_payload"
    clauses: ClassVar[Mapping[str, str]] = frames.CLAUSES
    conversation: ClassVar[Conversation] = CONVERSATION
    request_is_publish: ClassVar[bool] = True

    def lenient(self) -> Settings:
        """No limit on payloads but the protocol's own."""
        return HspSettings(max_payload=frames.MAX_PAYLOAD_LIMIT)

    def observing(self) -> Settings:
        """Likewise; the reserved types are types like any other, because nobody says that a hub is at one end."""
        return HspSettings(max_payload=frames.MAX_PAYLOAD_LIMIT, profile=False)

    def has_profile(self, settings: Settings) -> bool:
        """What the setting says."""
        return cast(HspSettings, settings).profile

    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction."""
        own = cast(HspSettings, settings)
        return HspDecoder(direction, own, Names(topics or {}, own.profile))

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as one frame."""
        own = cast(HspSettings, settings)
        return frames.encode(to_frame(message, Names(topics or {}, own.profile), own))

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> HspSession:
        """A new session; its message ids count up from `unique`."""
        from wireloom.protocols.hsp.session import HspSession

        return HspSession(role, cast(HspSettings, settings), unique=unique, topics=topics)

    def cases(self) -> Sequence[Case]:
        """What any implementation must do."""
        from wireloom.protocols.hsp.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether frames in a row hold from the first byte on, and one of them is more than a single byte.

        hsp has no magic number: a byte 3 or 4 could be anything, so an answer or a header with a plausible
        length is asked for.

        >>> HSP.recognise(bytes.fromhex("0000070000000568656c"), Direction.C2S)
        True
        >>> HSP.recognise(b"\\x03", Direction.C2S)
        False
        """
        position, telling = 0, False
        while position < len(head):
            try:
                found = frames.decode(head, position, frames.MAX_PAYLOAD_DEFAULT)
            except ProtocolViolation:
                return False
            if found is None:
                # A header that is all there has been checked for its length.
                return telling or len(head) - position >= frames.header_size(head[position])
            telling = telling or not isinstance(found[0], frames.Ping | frames.Pong)
            position = found[1]
        return telling

    def columns(self) -> ColumnDecoder:
        """The numba kernels."""
        from wireloom.protocols.hsp.columns import HspColumns

        return HspColumns()


HSP = Hsp()
