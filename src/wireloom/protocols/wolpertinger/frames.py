"""The frames of wolpertinger: one layer-1 message each, as a line of text.

Implements "Message Metadata", "Message Id and Delivery Confirmation" and the metadata of "Compression",
"Encryption" and "Message Splitting". What the payload holds is the matter of `layer1` and `layer2`.

    message_id:1;encryption:aes;gzip:50;xdzBd2ITRH5uk00xz7sdPC4n4...
    result:0;message_id:1;
"""

from __future__ import annotations

import binascii
import re
from typing import NamedTuple

from wireloom.model import NotSupported
from wireloom.protocols.wolpertinger.refusal import Refused, ResultCode

MAX_ID = 2**32 - 1
NEWLINE = 0x0A
UNREADABLE = "wolpertinger.encryption.unreadable"
"""The one clause for everything that can be wrong with an encrypted message."""


class Data(NamedTuple):
    """A message of the layer above, or a piece of one. The payload is base64 text, as on the wire."""

    message_id: int
    payload: bytes
    gzip: int | None = None
    """Length of the data after compression."""
    encryption: str | None = None
    fragment_index: int | None = None
    fragment_count: int | None = None
    others: tuple[tuple[str, str], ...] = ()
    """Keys the specification does not define, and `signature`, which it leaves open."""


class Confirmation(NamedTuple):
    """A message has been received, or could not be taken."""

    message_id: int
    result: int
    others: tuple[tuple[str, str], ...] = ()


Frame = Data | Confirmation

_PLAIN = re.compile(rb"message_id:([0-9]{1,10});([A-Za-z0-9+/]*={0,2})")
_CONFIRMED = re.compile(rb"result:([0-9]{1,9});message_id:([0-9]{1,10});")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_DIGITS = re.compile(r"[0-9]{1,10}")


def encode(frame: Frame) -> bytes:
    """A frame as a line.

    >>> encode(Data(1, b"PGE+", gzip=50, encryption="aes"))
    b'message_id:1;gzip:50;encryption:aes;PGE+\\n'
    >>> encode(Confirmation(1, 0))
    b'result:0;message_id:1;\\n'
    """
    if not frame.others and isinstance(frame, Confirmation):
        return b"result:%d;message_id:%d;\n" % (frame.result, frame.message_id)
    others = "".join([f"{key}:{value};" for key, value in frame.others])
    if isinstance(frame, Confirmation):
        return f"result:{frame.result};message_id:{frame.message_id};{others}\n".encode()
    head = ""
    if frame.fragment_count is not None:
        head = f"fragment_index:{frame.fragment_index};fragment_count:{frame.fragment_count};"
    head += f"message_id:{frame.message_id};"
    if frame.gzip is not None:
        head += f"gzip:{frame.gzip};"
    if frame.encryption is not None:
        head += f"encryption:{frame.encryption};"
    return f"{head}{others}".encode() + frame.payload + b"\n"


def decode(
    buffer: bytes | bytearray, start: int = 0, max_line: int = MAX_ID, searched: int = 0
) -> tuple[Frame, int] | None:
    """The frame at `start` and where its line ends; None when only a part of the line is there.

    `searched` says up to where it is known that no line ends.

    >>> decode(b"result:0;message_id:1;\\n")
    (Confirmation(message_id=1, result=0, others=()), 23)
    >>> decode(b"message_id:1;PGE") is None
    True
    """
    end = line_end(buffer, start, max_line, searched)
    return None if end is None else (parse(bytes(buffer[start : end - 1])), end)


def line_end(buffer: bytes | bytearray, start: int, max_line: int, searched: int = 0) -> int | None:
    """Where the line that begins at `start` ends, with its newline; None when it is not all there."""
    newline = buffer.find(b"\n", max(start, searched))
    if (len(buffer) if newline < 0 else newline) - start > max_line:
        raise Refused("wolpertinger.line.too-long", f"a line of more than {max_line} bytes; max_message sets the limit")
    return None if newline < 0 else newline + 1


def parse(line: bytes) -> Frame:
    """The frame in a line, given without its newline.

    >>> parse(b"Message_ID:8;fragment_count:5;fragment_index:2;secure:aes;xdzB").encryption
    'aes'
    >>> parse(b"PGE+")
    Traceback (most recent call last):
    wireloom.protocols.wolpertinger.refusal.Refused: wolpertinger.metadata.form: a line without metadata
    """
    plain = _PLAIN.fullmatch(line)
    if plain is not None and (number := int(plain[1])) <= MAX_ID:
        return Data(number, plain[2])
    confirmed = _CONFIRMED.fullmatch(line)
    if confirmed is not None and (number := int(confirmed[2])) <= MAX_ID:
        return Confirmation(number, int(confirmed[1]))
    return _parse_metadata(line)


def _parse_metadata(line: bytes) -> Frame:
    head, semicolon, payload = line.removesuffix(b"\r").rpartition(b";")
    if not semicolon:
        raise Refused("wolpertinger.metadata.form", "a line without metadata")
    fields: dict[str, str] = {}
    broken: Refused | None = None
    for pair in head.split(b";"):
        key, colon, value = pair.partition(b":")
        try:
            name, text = key.decode().lower(), value.decode()
        except UnicodeDecodeError:
            name = text = ""
        if not colon or not name:
            broken = broken or _invalid("wolpertinger.metadata.form", "a pair is not <KEY>:<VALUE>;")
            continue
        name = "encryption" if name == "secure" else name
        if name in fields:
            if name == "message_id":
                raise _invalid("wolpertinger.metadata.twice", "message_id is given twice")
            broken = broken or _invalid("wolpertinger.metadata.twice", f"{name[:40]!r} is given twice")
        fields[name] = text
    try:
        message_id = _message_id(fields.pop("message_id", None))
    except Refused as unusable:
        raise (broken or unusable) from None
    if broken is not None:
        broken.message_id = message_id
        raise broken
    result = fields.pop("result", None)
    if result is not None:
        # A confirmation is never confirmed, not even a wrong one: else two peers could go on for ever.
        if not _DIGITS.fullmatch(result) or payload:
            raise Refused("wolpertinger.result.form", "a result is a number, and no payload follows")
        return Confirmation(message_id, int(result), tuple(fields.items()))
    return _data(message_id, fields, payload)


def _data(message_id: int, fields: dict[str, str], payload: bytes) -> Data:
    encryption, gzip = fields.pop("encryption", None), fields.pop("gzip", None)
    if encryption is not None and encryption.lower() != "aes":
        raise Refused(
            "wolpertinger.encryption.unknown",
            f"encryption:{encryption[:40]}",
            message_id=message_id,
            result=ResultCode.ENCRYPTION,
        )
    index, count = fields.pop("fragment_index", None), fields.pop("fragment_count", None)
    fragment: tuple[int | None, int | None] = None, None
    if index is None and count is None:
        pass
    elif index is None or count is None or not _DIGITS.fullmatch(index) or not _DIGITS.fullmatch(count):
        raise _split("fragment_index and fragment_count are numbers and come together", message_id)
    elif int(index) >= int(count):
        raise _split(f"piece {index} of {count}", message_id)
    else:
        fragment = int(index), int(count)
    length = gzip is None or _DIGITS.fullmatch(gzip)
    if not length or not _BASE64.fullmatch(payload):
        if encryption is not None:
            raise unreadable(message_id)
        if not length:
            raise _invalid("wolpertinger.gzip.length", f"gzip:{(gzip or '')[:40]}", message_id)
        raise _invalid("wolpertinger.payload.base64", "the payload has characters that base64 has not", message_id)
    return Data(
        message_id,
        payload,
        None if gzip is None else int(gzip),
        None if encryption is None else "aes",
        *fragment,
        tuple(fields.items()),
    )


def _message_id(text: str | None) -> int:
    if text is None:
        raise Refused("wolpertinger.message-id.missing", "no message_id")
    if not _DIGITS.fullmatch(text) or int(text) > MAX_ID:
        raise Refused("wolpertinger.message-id.range", f"message_id:{text[:40]}")
    return int(text)


def unreadable(message_id: int) -> Refused:
    """What every encrypted message that cannot be read is refused with, whatever is wrong with it."""
    return Refused(
        UNREADABLE,
        "an encrypted message cannot be read",
        message_id=message_id,
        result=ResultCode.ENCRYPTION,
    )


def decoy(message_id: int, line: bytes) -> Data:
    """An encrypted message as long as a line, and as wrong.

    >>> decoy(7, b"message_id:7;encryption:aes;%%%%").payload
    b'AAAA'
    """
    size = len(line) - line.rfind(b";") - 1
    return Data(message_id, b"A" * (size - size % 4), None, "aes")


def _invalid(clause: str, detail: str, message_id: int | None = None) -> Refused:
    return Refused(clause, detail, message_id=message_id, result=ResultCode.INVALID_FORMAT)


def _split(detail: str, message_id: int) -> Refused:
    return Refused("wolpertinger.fragment.form", detail, message_id=message_id, result=ResultCode.SPLITTING)


def decode_base64(payload: bytes) -> bytes:
    """The bytes of a payload. Raises ValueError where it is not base64 to the letter.

    >>> decode_base64(b"PGE+")
    b'<a>'
    """
    if len(payload) % 4:
        raise ValueError("the length of base64 text is a multiple of 4")
    return binascii.a2b_base64(payload, strict_mode=True)


def check_others(others: tuple[tuple[str, str], ...]) -> None:
    """Raise NotSupported for keys and values that would not be read as they were written."""
    known = ("message_id", "result", "gzip", "encryption", "secure", "fragment_index", "fragment_count")
    for key, value in others:
        if not key or key.lower() in known or not _free(key + value) or ":" in key:
            raise NotSupported(f"metadata {key[:40]!r} cannot be written as <KEY>:<VALUE>;")


def _free(text: str) -> bool:
    return not any(mark in text for mark in ";\r\n") and text.isprintable()
