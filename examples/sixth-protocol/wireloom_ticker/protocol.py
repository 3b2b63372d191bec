"""ticker as a `Protocol`: its names, its settings, and what its frames mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from wireloom.model import ConfigError, Direction, Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols.contract import Decoder, Protocol, Role, Scheme, Settings
from wireloom.protocols.pairing import Conversation, PairingRule, Severity, pings, requests
from wireloom_ticker import frames
from wireloom_ticker.frames import Frame

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom_ticker.session import TickerSession


@dataclass(frozen=True, slots=True)
class TickerSettings(Settings):
    """What can be set for a connection, with a default for everything."""

    max_body: int = 1024 * 1024
    ping_interval: float = 30.0
    """Seconds of silence after which the peer is asked whether it is there; 0: never."""
    pong_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_body <= frames.MAX_BODY:
            raise ConfigError(f"setting 'max_body' is {self.max_body}; it must be from 0 to 2^31-1")
        for name in ("ping_interval", "pong_timeout"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be 0 or more seconds")


KINDS: Mapping[str, Kind] = {
    "EVENT": Kind.EVENT,
    "ASK": Kind.REQUEST,
    "DONE": Kind.RESPONSE,
    "FAIL": Kind.ERROR,
    "PING": Kind.PING,
    "PONG": Kind.PONG,
    "BYE": Kind.CLOSE,
}
VERBS: Mapping[Kind, str] = {kind: verb for verb, kind in KINDS.items()}


def to_message(frame: Frame, direction: Direction) -> Message:
    """What a frame means."""
    number = None if frame.id is None else str(frame.id)
    answers = frame.verb in ("DONE", "FAIL")
    return Message(
        kind=KINDS[frame.verb],
        topic=frame.topic,
        body=frame.body,
        id=None if answers else number,
        correlation_id=number if answers else None,
        status="done" if frame.verb == "DONE" else frame.code,
        content_type=frame.content_type,
        protocol="ticker",
        direction=direction,
    )


def to_frame(message: Message, settings: TickerSettings) -> Frame:
    """The frame that says this; NotSupported where ticker has no verb for it."""
    verb = VERBS.get(message.kind)
    if verb is None:
        raise NotSupported(f"ticker has no way to say {message.kind}")
    words = frames.VERBS[verb]
    if "size" not in words:
        return Frame(verb)
    if len(message.body) > settings.max_body:
        raise LimitExceeded(f"a body of {len(message.body)} bytes; max_body allows {settings.max_body}")
    if "topic" in words and not message.topic:
        raise NotSupported(f"in ticker every {message.kind} has a topic")
    number = None
    if "id" in words:
        text = message.id if verb == "ASK" else message.correlation_id
        if text is None or not (text.isascii() and text.isdecimal()) or int(text) > frames.MAX_ID:
            raise NotSupported(f"ids of ticker are numbers below 2^32, not {text!r}")
        number = int(text)
    frame = Frame(
        verb,
        number,
        message.topic if "topic" in words else None,
        (message.status or "error") if "code" in words else None,
        message.content_type or None,
        message.body,
    )
    if len(frames.encode_line(frame)) > frames.MAX_LINE:
        raise LimitExceeded(f"topic, content type and status need a line of more than {frames.MAX_LINE} bytes")
    return frame


class TickerDecoder(Decoder):
    """One direction of one connection, frame by frame."""

    def __init__(self, direction: Direction, settings: TickerSettings) -> None:
        super().__init__()
        self._direction = direction
        self._max_body = settings.max_body

    def decode_one(self, buffer: bytearray, start: int) -> tuple[Frame, int] | None:
        """The next frame."""
        return frames.decode(buffer, start, self._max_body)

    def to_message(self, frame: object) -> Message:
        """Its meaning."""
        return to_message(cast(Frame, frame), self._direction)


CONVERSATION = Conversation(
    pairings=(
        requests(
            unknown=PairingRule("ticker.answer.unknown-id", Severity.WARNING, "an answer to no pending request"),
            again=PairingRule("ticker.id.reused", Severity.WARNING, "a request with the id of one that is pending"),
        ),
        pings(unknown=PairingRule("ticker.pong.unasked", Severity.INFO, "a PONG that nobody asked for")),
    )
)


class Ticker(Protocol):
    """The protocol object, which the entry point names."""

    name: ClassVar[str] = "ticker"
    title: ClassVar[str] = "Ticker"
    schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme("ticker", "tcp", 5050),
        Scheme("tickers", "tls", 5050, secure=True),
    )
    settings_type: ClassVar[type[Settings]] = TickerSettings
    clauses: ClassVar[Mapping[str, str]] = frames.CLAUSES
    conversation: ClassVar[Conversation] = CONVERSATION

    def lenient(self) -> Settings:
        """No limit on bodies but the protocol's own."""
        return TickerSettings(max_body=frames.MAX_BODY)

    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder for one direction; ticker has no numbers for topics."""
        return TickerDecoder(direction, cast(TickerSettings, settings))

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as one frame."""
        return frames.encode(to_frame(message, cast(TickerSettings, settings)))

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> TickerSession:
        """A new session; its ids count up from `unique`."""
        from wireloom_ticker.session import TickerSession

        return TickerSession(role, cast(TickerSettings, settings), unique=unique)

    def cases(self) -> Sequence[Case]:
        """What `wireloom conformance` asks of every implementation."""
        from wireloom_ticker.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether a stream begins with a verb of ticker.

        >>> TICKER.recognise(b"ASK 7 prices/of - 3", Direction.C2S), TICKER.recognise(b"GET / HTTP", Direction.C2S)
        (True, False)
        """
        return any(head.startswith(verb.encode() + (b" " if words else b"\n")) for verb, words in frames.VERBS.items())


TICKER = Ticker()
