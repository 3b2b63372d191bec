"""wolpertinger as a `Protocol`: names, settings, decoding lines one by one, encoding one message."""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, cast

from wireloom.model import ConfigError, Direction, Kind, Message, NotSupported, ProtocolViolation
from wireloom.protocols.contract import Decoder, Framing, Protocol, Rejected, Role, Scheme, Settings
from wireloom.protocols.pairing import Conversation
from wireloom.protocols.wolpertinger import frames, layer1, layer2, messages
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.pairing import CONVERSATION
from wireloom.protocols.wolpertinger.refusal import CLAUSES, Refused
from wireloom.protocols.wolpertinger.settings import MAX_FRAGMENTS, MAX_OPEN, MAX_TEXT, WolpertingerSettings

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder
    from wireloom.protocols.wolpertinger.session import WolpertingerSession

_DROPPED = "pieces of a message that was given up"
_HEAD = re.compile(rb"(?:[A-Za-z_]+:[^;\n]{0,200};){0,8}(?:message_id|MESSAGE_ID):[0-9]{1,10};")


def known_cipher(settings: WolpertingerSettings) -> Cipher | None:
    """The cipher the settings name, for recorded traffic."""
    return _cipher(settings.aes_key, settings.aes_iv) if settings.aes_key else None


def _cipher(key: str, iv: str) -> Cipher:
    return Cipher(bytes.fromhex(key), bytes.fromhex(iv or "00" * 16))


class WolpertingerDecoder(Decoder):
    """Decodes the lines of one direction. A bad line is dropped; the next line is not affected."""

    def __init__(self, direction: Direction, settings: WolpertingerSettings) -> None:
        super().__init__()
        self._direction = direction
        self._settings = settings
        self._max_line = settings.max_line
        self.cipher = known_cipher(settings)
        self._candidates: list[Cipher] = []
        self.assembly = layer1.Assembly(settings)
        self._line = 0
        """Where the line being decoded ends in the buffer."""
        self._searched = 0
        """Stream offset up to which no line ends."""
        self.skipping = False
        """Inside a line that is too long."""

    def unlock(self, secrets: Sequence[Mapping[str, str]]) -> None:
        """Keys that may be those of this connection: the first that opens a message is kept."""
        for each in secrets:
            try:
                cipher = _cipher(each.get("aes_key", ""), each.get("aes_iv", ""))
            except (ValueError, ConfigError):
                continue
            if cipher not in self._candidates:
                self._candidates.append(cipher)

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next line's frame."""
        if start == len(buffer):
            return None
        if self.skipping:
            raise ProtocolViolation("wolpertinger.line.too-long", "the rest of a line that is too long")
        base = self.offset - start
        end = frames.line_end(buffer, start, self._max_line, self._searched - base)
        if end is None:
            self._searched = base + len(buffer)
            return None
        self._line = end
        return frames.parse(bytes(buffer[start : end - 1])), end

    def to_message(self, frame: object) -> Message | None:
        """The frame's meaning; None for a piece that others must follow."""
        if isinstance(frame, frames.Confirmation):
            return messages.of_confirmation(frame, self._direction)
        data, wire = cast(frames.Data, frame), self._line - self._taken
        if data.fragment_count is not None:
            line = bytes(self._buffer[self._taken : self._line])
            kept = self.assembly.open.get(data.message_id)
            place = self.offset if kept is None else kept.place
            whole = self.assembly.add(data, wire=wire, line=line, place=place)
            if whole is None:
                return None
            data, wire, lines = whole
            try:
                return self._read(data, wire)
            except Refused:
                if len(lines) > len(line):
                    # Only the last fragment is refused here; the fragments before it must be reported, too.
                    self.assembly.lost.append(layer1.Lost(place, lines[: -len(line)]))
                raise
        return self._read(data, wire)

    def abandoned(self, *, final: bool) -> Sequence[Rejected]:
        """The lines of messages that were given up; at the end, of all that are not complete."""
        if final:
            self.assembly.give_up_all()
        lost = self.assembly.take_lost()
        return [Rejected("wolpertinger.fragment.dropped", _DROPPED, max(each.place, 0), each.lines) for each in lost]

    def _read(self, data: frames.Data, wire: int) -> Message:
        if data.encryption is not None and self.cipher is None and self._candidates:
            for cipher in self._candidates:
                try:
                    message = read(data, wire, self._settings, cipher, self._direction)
                except Refused:
                    continue
                self.cipher = cipher
                return message
        return read(data, wire, self._settings, self.cipher, self._direction)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        """Skip the bad line; of one that is too long, what is there of it."""
        newline = self._buffer.find(b"\n", self._taken)
        end = len(self._buffer) if newline < 0 else newline + 1
        self.skipping = newline < 0
        self.offset += end - self._taken
        self._taken = end


def read(
    whole: frames.Data,
    wire: int,
    settings: WolpertingerSettings,
    cipher: Cipher | None,
    direction: Direction | None,
) -> Message:
    """What a whole message says; `other` when it is encrypted and its key is not known."""
    if whole.encryption is not None and cipher is None:
        return messages.of_sealed(whole, wire, direction)
    document = layer1.unpack(whole, settings, cipher)
    return messages.of_document(document, whole, wire, direction, profile=settings.profile)


class Wolpertinger(Protocol):
    """The protocol object of wolpertinger."""

    name: ClassVar[str] = "wolpertinger"
    title: ClassVar[str] = "Wolpertinger"
    schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme("wolpertinger", "tcp", 5045),
        Scheme("wolpertinger+tls", "tls", 5045, secure=True),
        Scheme("wolpertinger+xmpp", "xmpp", 5222, secure=True),
    )
    framing: ClassVar[Framing] = Framing.LINES
    settings_type: ClassVar[type[Settings]] = WolpertingerSettings
    carried_attributes: ClassVar[tuple[str, ...]] = ("component", "types", "response", "xml")
    message_size: ClassVar[str | None] = "max_message"
    decompressed_size: ClassVar[str | None] = "max_message"
    clauses: ClassVar[Mapping[str, str]] = CLAUSES
    conversation: ClassVar[Conversation] = CONVERSATION
    identity_kinds: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"trust": "a level of trust, 1 to 4, that the peer has reached", "user": "the name of a user, at trust 4"}
    )
    decode_options: ClassVar[Mapping[str, str]] = MappingProxyType({"key": "aes_key", "iv": "aes_iv"})

    def lenient(self) -> Settings:
        """No limits but those of the settings themselves: a listener may have been told to take as much."""
        return WolpertingerSettings(max_message=MAX_TEXT, max_fragments=MAX_FRAGMENTS, max_open=MAX_OPEN)

    def observing(self) -> Settings:
        """The default limits: these lines were not checked before."""
        return self.settings()

    def decoder(
        self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None
    ) -> WolpertingerDecoder:
        """A decoder for one direction."""
        return WolpertingerDecoder(direction, cast(WolpertingerSettings, settings))

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as its line, or as several where it is split; `attributes["message_id"]` is its id."""
        own = cast(WolpertingerSettings, settings)
        others = messages.foreign(message.attributes)
        frames.check_others(others)
        if message.kind is Kind.ACK:
            result = _number(message.status or "0", "status")
            number = _number(message.correlation_id, "correlation_id")
            return frames.encode(frames.Confirmation(number, result, others))
        number = _number(message.attributes.get("message_id", "1"), "attributes['message_id']")
        cipher = known_cipher(own)
        if message.kind is Kind.OTHER and message.attributes.get("encryption") == "aes":
            payload = binascii.b2a_base64(message.body, newline=False)
            gzip = message.attributes.get("gzip")
            length = None if gzip is None else _number(gzip, "attributes['gzip']")
            whole = frames.Data(number, payload, length, "aes", others=others)
            return b"".join(map(frames.encode, layer1.split(whole, own.split, own.max_fragments)))
        xml = layer2.write(messages.to_document(message, profile=own.profile))
        if message.attributes.get("encryption") == "aes":
            if cipher is None:
                raise NotSupported("an encrypted message needs the connection's key: set aes_key and aes_iv")
        else:
            cipher = None
        compress = True if "gzip" in message.attributes else None
        return b"".join(map(frames.encode, layer1.pack(xml, number, own, cipher, compress=compress, others=others)))

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> WolpertingerSession:
        """A new session; its CallIds are drawn from `unique`."""
        from wireloom.protocols.wolpertinger.session import WolpertingerSession

        return WolpertingerSession(role, cast(WolpertingerSettings, settings).with_secrets(), unique=unique)

    case_settings: ClassVar[Sequence[str]] = ("authenticate", "secrets")

    def cases(self) -> Sequence[Case]:
        """What any implementation must do."""
        from wireloom.protocols.wolpertinger.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether this begins with metadata that has a message_id.

        >>> WOLPERTINGER.recognise(b"message_id:1;PFJlbW90ZU1l", Direction.C2S)
        True
        >>> WOLPERTINGER.recognise(b"GET / HTTP/1.1", Direction.C2S)
        False
        """
        return _HEAD.match(head) is not None

    def columns(self) -> ColumnDecoder:
        """A plain loop: XML leaves no choice."""
        from wireloom.protocols.wolpertinger.columns import WolpertingerColumns

        return WolpertingerColumns()


def _number(text: str | None, what: str) -> int:
    if text is None or not (text.isascii() and text.isdecimal()) or int(text) > frames.MAX_ID:
        raise NotSupported(f"{what} of a wolpertinger message is a number below 2^32, not {text!r}")
    return int(text)


WOLPERTINGER = Wolpertinger()
