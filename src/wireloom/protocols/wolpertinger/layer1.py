"""Layer 1: converts messages between XML and lines.

Implements "Transmission Layer" of the specification. Sending: XML, gzip, AES, base64, split. Receiving:
fragments are assembled in any order, then the reverse. Limits are checked before memory is allocated.
"""

from __future__ import annotations

import binascii
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from wireloom.model import LimitExceeded
from wireloom.protocols.wolpertinger.frames import Data, decode_base64, unreadable
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Document, parse
from wireloom.protocols.wolpertinger.refusal import Refused, ResultCode
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings

_GZIP = 31
"""zlib's number for the gzip format with the largest window."""
_LEVEL = 6
_OFTEN = 5
"""Limit of the bytes of one incomplete message, resent fragments included, as a multiple of the largest message."""


# Sending


def pack(
    xml: bytes,
    message_id: int,
    settings: WolpertingerSettings,
    cipher: Cipher | None = None,
    *,
    compress: bool | None = None,
    others: tuple[tuple[str, str], ...] = (),
) -> list[Data]:
    """A document as frames: one, or as many as its length needs."""
    if len(xml) > settings.max_message:
        raise LimitExceeded(f"a message of {len(xml)} bytes of XML; max_message is {settings.max_message}")
    length: int | None = None
    if compress if compress is not None else 0 < settings.gzip_from <= len(xml):
        machine = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        xml = machine.compress(xml) + machine.flush()
        length = len(xml)
    if cipher is not None:
        xml = cipher.seal(xml)
    whole = Data(
        message_id,
        binascii.b2a_base64(xml, newline=False),
        length,
        None if cipher is None else "aes",
        others=others,
    )
    return split(whole, settings.split, settings.max_fragments)


def split(whole: Data, size: int, most: int) -> list[Data]:
    """A message in pieces of at most `size` characters.

    >>> [piece.payload for piece in split(Data(1, b"abcdefgh"), 3, 10)]
    [b'abc', b'def', b'gh']
    """
    payload = whole.payload
    if len(payload) <= size:
        return [whole]
    count = -(-len(payload) // size)
    if count > most:
        raise LimitExceeded(f"a message in {count} pieces; max_fragments is {most}")
    return [
        whole._replace(payload=payload[at * size : (at + 1) * size], fragment_index=at, fragment_count=count)
        for at in range(count)
    ]


# Receiving


class Lost(NamedTuple):
    """Lines of an incomplete message that was dropped, and the position of the first."""

    place: int
    lines: bytes


@dataclass(slots=True)
class _Open:
    """An incomplete message."""

    first: Data
    since: float
    place: int = 0
    """Position of its first fragment, if the caller gave one."""
    pieces: dict[int, bytes | memoryview] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    """The lines of its fragments, if the caller gave them."""
    size: int = 0
    held: int = 0
    """Bytes that are buffered for it, resent fragments included."""
    wire: int = 0


@dataclass(slots=True)
class Assembly:
    """Assembles fragments; they may come in any order, with other lines between them."""

    settings: WolpertingerSettings
    open: dict[int, _Open] = field(default_factory=dict)
    dropped: int = 0
    """Number of incomplete messages that were dropped."""
    pending: int = 0
    """Bytes of all buffered fragments."""
    lost: list[Lost] = field(default_factory=list)
    """The lines of messages that were dropped."""

    def add(
        self, frame: Data, now: float = 0.0, wire: int = 0, line: bytes = b"", place: int = 0
    ) -> tuple[Data, int, bytes] | None:
        """Add a fragment; returns the message, its bytes on the wire and its lines once it is complete.

        Raises Refused for a fragment that does not fit the others; they are dropped with it.
        """
        count = frame.fragment_count
        if count is None or count == 1:
            return frame, wire, line
        if count > self.settings.max_fragments:
            detail = f"{count} pieces; max_fragments is {self.settings.max_fragments}"
            raise _refused("wolpertinger.fragment.too-many", detail, frame)
        index = frame.fragment_index or 0
        kept = self.open.get(frame.message_id)
        if kept is None:
            self._make_room()
            kept = self.open[frame.message_id] = _Open(frame, now, place)
        elif _metadata(kept.first) != _metadata(frame) or kept.pieces.get(index, frame.payload) != frame.payload:
            self._give_up(frame.message_id)
            raise _refused("wolpertinger.fragment.differs", f"piece {index} is of another message", frame)
        if index not in kept.pieces:
            kept.pieces[index] = _part_of(line, frame.payload)
            kept.size += len(frame.payload)
        held = max(len(frame.payload), len(line))
        kept.held += held
        self.pending += held
        kept.wire += wire
        if line:
            kept.lines.append(line)
        if kept.size > self.settings.max_line or kept.held > _OFTEN * self.settings.max_line:
            if line:
                kept.lines.pop()  # refused by itself
            self._give_up(frame.message_id)
            raise _refused("wolpertinger.message.too-large", "the pieces are more than max_message allows", frame)
        if len(kept.pieces) < count:
            self._bound(frame.message_id)
            return None
        self._forget(frame.message_id)
        payload = b"".join([kept.pieces[at] for at in range(count)])
        return kept.first._replace(payload=payload, fragment_index=0), kept.wire, b"".join(kept.lines)

    def take_lost(self) -> list[Lost]:
        """The lines of messages that were given up since the last time."""
        lost, self.lost = self.lost, []
        return lost

    def expire(self, now: float) -> None:
        """Drop messages that have been incomplete for too long."""
        limit = now - self.settings.reassembly_timeout
        for message_id in [each for each, kept in self.open.items() if kept.since <= limit]:
            self._give_up(message_id)

    @property
    def deadline(self) -> float | None:
        """When the oldest incomplete message is dropped."""
        for kept in self.open.values():
            return kept.since + self.settings.reassembly_timeout
        return None

    def give_up_all(self) -> None:
        """Nothing more will come."""
        for message_id in list(self.open):
            self._give_up(message_id)

    def _make_room(self) -> None:
        while len(self.open) >= self.settings.max_open:
            self._give_up(next(iter(self.open)))

    def _bound(self, keep: int) -> None:
        """Limit the buffer to twice the largest message: the oldest message is dropped first."""
        while self.pending > 2 * self.settings.max_line and len(self.open) > 1:
            self._give_up(next(each for each in self.open if each != keep))

    def _give_up(self, message_id: int) -> None:
        kept = self._forget(message_id)
        self.dropped += 1
        if kept.lines:
            self.lost.append(Lost(kept.place, b"".join(kept.lines)))

    def _forget(self, message_id: int) -> _Open:
        kept = self.open.pop(message_id)
        self.pending -= kept.held
        return kept


def _part_of(line: bytes, payload: bytes) -> bytes | memoryview:
    """The payload, as a view of its line if that is kept: this saves a copy."""
    end = len(line) - 1
    start = end - len(payload)
    return memoryview(line)[start:end] if line[start:end] == payload and payload else payload


def _metadata(frame: Data) -> tuple[object, ...]:
    return frame.gzip, frame.encryption, frame.fragment_count, frame.others


def _refused(clause: str, detail: str, frame: Data, result: ResultCode = ResultCode.SPLITTING) -> Refused:
    return Refused(clause, detail, message_id=frame.message_id, result=result)


def unpack(whole: Data, settings: WolpertingerSettings, cipher: Cipher | None) -> Document:
    """The document in a whole message. Raises Refused.

    All errors of an encrypted message have the same text and take the same steps: it is always decrypted once,
    decompressed once and parsed once. So an attacker who sends altered messages cannot tell by the answer, or by its
    timing, which step failed.
    """
    invalid = ResultCode.INVALID_FORMAT
    if whole.encryption is None:
        try:
            data = decode_base64(whole.payload)
        except ValueError as error:
            raise _refused("wolpertinger.payload.base64", str(error), whole, invalid) from None
        return parse(_inflate(data, whole, settings), whole.message_id)
    if cipher is None:
        raise unreadable(whole.message_id)
    try:
        data, sound = decode_base64(whole.payload), True
    except ValueError:
        data, sound = bytes(len(whole.payload) * 3 // 4), False
    text, padded = cipher.open(data)
    try:
        xml = _inflate(text, whole, settings)
    except Refused:
        xml, sound = text[: settings.max_message], False
    try:
        document = parse(xml, whole.message_id)
    except Refused:
        raise unreadable(whole.message_id) from None
    if not (sound and padded):
        raise unreadable(whole.message_id)
    return document


def _inflate(data: bytes, whole: Data, settings: WolpertingerSettings) -> bytes:
    limit, invalid = settings.max_message, ResultCode.INVALID_FORMAT
    if whole.gzip is None:
        if len(data) > limit:
            raise _refused("wolpertinger.message.too-large", f"more than max_message, {limit} bytes", whole, invalid)
        return data
    if whole.gzip > len(data):
        detail = f"gzip:{whole.gzip}; but there are {len(data)} bytes"
        raise _refused("wolpertinger.gzip.length", detail, whole, invalid)
    rest, out, size = data[: whole.gzip], [], 0
    # A gzip file may have several members, one after the other.
    while True:
        machine = zlib.decompressobj(_GZIP)
        try:
            text = machine.decompress(rest, limit + 1 - size)
        except zlib.error as error:
            raise _refused("wolpertinger.gzip.data", str(error), whole, invalid) from None
        out.append(text)
        size += len(text)
        if size > limit:
            raise _refused("wolpertinger.message.too-large", f"more than max_message, {limit} bytes", whole, invalid)
        if not machine.eof:
            raise _refused("wolpertinger.gzip.data", "the compressed data is cut off", whole, invalid)
        rest = machine.unused_data
        if not rest:
            return b"".join(out)
