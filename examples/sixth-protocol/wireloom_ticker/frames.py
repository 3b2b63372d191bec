"""The wire of ticker, one frame at a time.

A frame is a line: a verb, its words, and for most verbs the size of a body, which follows with a newline of its own.

    EVENT prices/tea text/plain 4
    3.20
    ASK 7 prices/of text/plain 3
    tea
    DONE 7 text/plain 4
    3.20

Words are percent-encoded, so that they hold neither space nor newline; `-` stands for a word that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from wireloom.model import ProtocolViolation

MAX_LINE = 4096
MAX_ID = 2**32 - 1
MAX_BODY = 2**31 - 1

VERBS: Mapping[str, tuple[str, ...]] = {
    "EVENT": ("topic", "content_type", "size"),
    "ASK": ("id", "topic", "content_type", "size"),
    "DONE": ("id", "content_type", "size"),
    "FAIL": ("id", "code", "content_type", "size"),
    "PING": (),
    "PONG": (),
    "BYE": (),
}
"""The words that follow each verb."""

CLAUSES: Mapping[str, str] = {
    "ticker.line.too-long": f"A line has at most {MAX_LINE} bytes.",
    "ticker.verb.unknown": "A line begins with one of the verbs " + ", ".join(VERBS) + ".",
    "ticker.words.count": "Each verb is followed by its own words, with one space before each.",
    "ticker.word.text": "A word is percent-encoded UTF-8; topics and codes are not left out.",
    "ticker.number.form": "Ids and sizes are decimal numbers below 2^32.",
    "ticker.id.reused": "An id is not used again before its request is answered.",
    "ticker.body.too-long": "A body is not longer than the receiver allows.",
    "ticker.body.end": "A newline follows each body.",
    "ticker.bye.last": "Nothing follows BYE.",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; which of the fields it has depends on its verb."""

    verb: str
    id: int | None = None
    topic: str | None = None
    code: str | None = None
    content_type: str | None = None
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    """A frame as bytes.

    >>> encode(Frame("EVENT", topic="prices/green tea", body=b"3.20"))
    b'EVENT prices/green%20tea - 4\\n3.20\\n'
    >>> encode(Frame("PING"))
    b'PING\\n'
    """
    line = encode_line(frame)
    return line + frame.body + b"\n" if "size" in VERBS[frame.verb] else line


def encode_line(frame: Frame) -> bytes:
    """The line alone, which has a limit of its own."""
    size = str(len(frame.body))
    words = [size if name == "size" else _quote(getattr(frame, name)) for name in VERBS[frame.verb]]
    return " ".join([frame.verb, *words]).encode() + b"\n"


def decode(buffer: bytes | bytearray, start: int, max_body: int) -> tuple[Frame, int] | None:
    """The frame at `start` and where it ends; None while only a part of it is there.

    >>> decode(b"PING\\nDONE 7 - 2\\nok\\n", 5, 1024)
    (Frame(verb='DONE', id=7, topic=None, code=None, content_type=None, body=b'ok'), 19)
    >>> decode(b"DONE 7 - 2\\no", 0, 1024) is None
    True
    """
    line_end = buffer.find(b"\n", start, start + MAX_LINE + 1)
    if line_end < 0:
        if len(buffer) - start > MAX_LINE:
            raise ProtocolViolation("ticker.line.too-long", f"a line of more than {MAX_LINE} bytes")
        return None
    verb, *words = bytes(buffer[start:line_end]).split(b" ")
    names = VERBS.get(verb.decode(errors="replace"))
    if names is None:
        raise ProtocolViolation("ticker.verb.unknown", f"verb {verb[:20]!r}")
    if len(words) != len(names):
        raise ProtocolViolation("ticker.words.count", f"{verb.decode()} has {len(names)} words, not {len(words)}")
    fields: dict[str, object] = {}
    end = line_end + 1
    for name, word in zip(names, words, strict=True):
        if name == "size":
            size = _number(word)
            if size > max_body:
                # Now, before anybody waits or takes memory for the body.
                raise ProtocolViolation("ticker.body.too-long", f"{size} bytes; max_body allows {max_body}")
            end += size + 1
            if len(buffer) < end:
                return None
            if buffer[end - 1] != ord("\n"):
                raise ProtocolViolation("ticker.body.end", f"no newline after a body of {size} bytes")
            fields["body"] = bytes(buffer[end - 1 - size : end - 1])
        elif name == "id":
            fields["id"] = _number(word)
        else:
            fields[name] = _unquote(name, word)
    return Frame(verb.decode(), **fields), end  # type: ignore[arg-type]


def _quote(word: object) -> str:
    if word is None:
        return "-"
    return "%2D" if word == "-" else quote_from_bytes(str(word).encode(), safe="/$+#:;=,")


def _unquote(name: str, word: bytes) -> str | None:
    if word == b"-" and name == "content_type":
        return None
    try:
        text = unquote_to_bytes(word).decode()
    except UnicodeDecodeError:
        text = ""
    if not text or word == b"-":
        raise ProtocolViolation("ticker.word.text", f"{name} {word[:20]!r}")
    return text


def _number(word: bytes) -> int:
    if not (word.isdigit() and len(word) <= 10 and int(word) <= MAX_ID):
        raise ProtocolViolation("ticker.number.form", f"{word[:20]!r} is not a number below 2^32")
    return int(word)
