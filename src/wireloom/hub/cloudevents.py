"""CloudEvents over HTTP, as bytes: the binary, structured and batched modes of the CloudEvents HTTP binding 1.0.2.

An event is a dictionary in the JSON form of CloudEvents, with its data as separate bytes. This module does no I/O.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

from wireloom.model import Message, WireloomError, from_event_data, iso_time, to_event_data, type_of_json
from wireloom.protocols.contract import TRACE

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
CONTEXT = "extension.129"
"""In emp messages: an extension block of the hub that holds the context attributes of a CloudEvent, as JSON in hex."""
REQUIRED = ("specversion", "id", "source", "type")
JSON_BYTES = 128 * 1024
"""Default maximum bytes of one event in JSON. Parsing this takes about 5 ms. All protocols carry events of 64 KB."""
_NAME = re.compile(r"[a-z0-9]{1,40}")
_SPACE = re.compile(r"[ \t\n\r]*")
_NOT_CONTEXT = ("data", "data_base64", "subject", "datacontenttype")
_HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class Mode(StrEnum):
    """How an event is put into an HTTP message."""

    BINARY = "binary"
    STRUCTURED = "structured"


class NoCloudEvent(WireloomError):
    """The input is not a CloudEvent. The text says what is missing."""


class TooLarge(NoCloudEvent):
    """An event in JSON exceeds the maximum size."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"an event in JSON is no JSON, or larger than {most} bytes (http_json_bytes in [limits]); "
            "post large data in binary mode"
        )


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """Context attributes and data."""

    context: Mapping[str, type_of_json]
    data: bytes = b""

    @property
    def topic(self) -> str | None:
        """The topic of an event: its subject, or else its type."""
        found = self.context.get("subject") or self.context.get("type")
        return None if found is None else str(found)

    @property
    def content_type(self) -> str | None:
        """The content type of the data."""
        found = self.context.get("datacontenttype")
        return None if found is None else str(found)

    def kept(self) -> dict[str, str]:
        """Message attributes that preserve the context, so that it is the same at the receiver."""
        context = {name: value for name, value in self.context.items() if name not in _NOT_CONTEXT}
        return {CONTEXT: json.dumps(context).encode().hex()}


def from_message(message: Message, offset: str) -> CloudEvent:
    """A message as a CloudEvent, with its original context, or else one that names its offset in the journal.

    >>> from wireloom.model import Kind
    >>> event = from_message(Message(Kind.EVENT, "a/b", b"1", protocol="hsp", connection="7f"), "12.0")
    >>> event.context["id"], event.context["source"], event.topic
    ('12.0', 'wireloom:hsp/7f', 'a/b')
    """
    context: dict[str, type_of_json] = {
        "specversion": "1.0",
        "id": offset,
        "source": f"wireloom:{message.protocol}/{message.connection or ''}",
        "type": f"wireloom.{message.kind}",
    }
    context |= _context(message)
    if message.time is not None:
        context.setdefault("time", iso_time(message.time))
    context["subject"] = message.topic
    if message.content_type is not None:
        context["datacontenttype"] = message.content_type
    return CloudEvent(context, message.body)


def _context(message: Message) -> dict[str, type_of_json]:
    """The CloudEvent context in a message, or at least its trace."""
    trace: dict[str, type_of_json] = {name: message.attributes[name] for name in TRACE if name in message.attributes}
    try:
        # Any emp peer can write such a block, so it is validated like HTTP input.
        return _checked(dict(json.loads(bytes.fromhex(message.attributes[CONTEXT]))))
    except (KeyError, ValueError, TypeError, RecursionError, NoCloudEvent):
        return trace


def to_http(event: CloudEvent, mode: Mode) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request that carries an event.

    >>> event = CloudEvent({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "ä"}, b"x")
    >>> to_http(event, Mode.BINARY)[0]["ce-subject"]
    '%C3%A4'
    """
    if mode is Mode.BINARY:
        headers = {
            f"ce-{name}": quote(_text(value), safe=_HEADER_SAFE, errors="replace")
            for name, value in event.context.items()
            if name != "datacontenttype"
        }
        if event.content_type is not None and event.content_type.isprintable():
            # Some protocols allow any text as a content type, but a header does not.
            headers["Content-Type"] = event.content_type
        return headers, event.data
    whole = dict(event.context)
    if event.data:
        whole |= to_event_data(event.data, event.content_type or "application/json")
    return {"Content-Type": f"{STRUCTURED}; charset=utf-8"}, json.dumps(whole).encode()


def from_http(headers: Mapping[str, str], body: bytes, most: int = JSON_BYTES) -> Iterator[CloudEvent]:
    """The events in a request, one at a time: a single one, or those of a batch. Raises NoCloudEvent.

    `most` is the maximum size of one event in JSON. Data in binary mode is not parsed here, so it may be larger.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("application/cloudevents"):
        yield CloudEvent(_from_headers(lower), body)
        return
    if kind not in (STRUCTURED, BATCH):
        raise NoCloudEvent(f"events are read as {STRUCTURED} or {BATCH}, not as {kind}")
    for each in _elements(body, most) if kind == BATCH else _one(body, most):
        yield _structured(each, _trace(lower))


def topic_in(headers: Mapping[str, str]) -> str | None:
    """The topic of an event in binary mode, known before its data is read. None in the other modes."""
    lower = {name.lower(): value for name, value in headers.items()}
    if lower.get("content-type", "").lower().startswith("application/cloudevents"):
        return None
    return CloudEvent(_from_headers(lower)).topic


def _from_headers(lower: Mapping[str, str]) -> dict[str, type_of_json]:
    """The context of an event in binary mode."""
    context: dict[str, type_of_json] = {
        name[3:]: unquote(value, errors="replace") for name, value in lower.items() if name.startswith("ce-")
    }
    if "content-type" in lower:
        context["datacontenttype"] = lower["content-type"]
    return _checked(_trace(lower) | context)


def _one(body: bytes, most: int) -> Iterator[object]:
    if len(body) > most:
        raise TooLarge(most)
    try:
        yield json.loads(body)
    except (ValueError, RecursionError):
        raise NoCloudEvent("the body is no JSON") from None


def _elements(body: bytes, most: int) -> Iterator[object]:
    """The elements of a JSON array, one at a time, each with at most `most` characters.

    The text is decoded window by window. A window is larger than the largest allowed element. So an element that does
    not end within its window is too large, and one step never parses more than a window.
    """
    decode = codecs.getincrementaldecoder("utf-8")().decode
    scan = json.JSONDecoder().raw_decode
    text, at, position = "", 0, 0

    def read_on() -> bool:
        """Move the window. Returns False at the end of the body."""
        nonlocal text, at, position
        if position >= len(body):
            return False
        start, position = position, position + most
        text, at = text[at:] + decode(body[start:position], position >= len(body)), 0
        return True

    def mark() -> str:
        """The next character that is not white space; empty at the end.

        White space is bounded by the size of an event.
        """
        nonlocal at
        for _ in range(3):
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at < len(text) or not read_on():
                return text[at : at + 1]
        raise TooLarge(most)

    try:
        if mark() != "[":
            raise NoCloudEvent("a batch is a JSON array of events")
        at += 1
        following = mark() != "]"
        while following:
            while len(text) - at <= most and read_on():
                pass
            found, end = scan(text, at)
            if end - at > most:
                raise TooLarge(most)
            at = end
            yield found
            following = mark() == ","
            if following:
                at += 1
                mark()
        if mark() != "]":
            raise NoCloudEvent("the body is no JSON: the array does not end")
        at += 1
        if mark():
            raise NoCloudEvent("the body is no JSON: something follows the array")
    except (ValueError, RecursionError):
        if len(text) - at > most:
            raise TooLarge(most) from None
        raise NoCloudEvent("the body is no JSON") from None


def _trace(headers: Mapping[str, str]) -> dict[str, type_of_json]:
    """The trace context of a request. An event may have its own."""
    return {name: headers[name] for name in TRACE if name in headers}


def _structured(found: object, trace: dict[str, type_of_json]) -> CloudEvent:
    if not isinstance(found, dict):
        raise NoCloudEvent("an event is a JSON object")
    own = {name: value for name, value in found.items() if name not in ("data", "data_base64")}
    context = _checked(trace | own)
    try:
        data, content_type = from_event_data(found)
    except ValueError as error:
        raise NoCloudEvent(f"the data is no base64, or no text: {error}") from None
    return CloudEvent(context if content_type is None else context | {"datacontenttype": content_type}, data)


def _checked(context: dict[str, type_of_json]) -> dict[str, type_of_json]:
    for name in REQUIRED:
        if not context.get(name) or not isinstance(context[name], str):
            raise NoCloudEvent(f"the attribute {name} is missing; a CloudEvent has {', '.join(REQUIRED)}")
    if context["specversion"] != "1.0":
        raise NoCloudEvent(f"specversion is {context['specversion']}; this hub reads 1.0")
    for name, value in context.items():
        if not _NAME.fullmatch(name) or isinstance(value, list | dict):
            raise NoCloudEvent(f"{name[:40]!r} is no attribute: names are of small letters and digits, values plain")
    return context


def _text(value: type_of_json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
