"""The message model that all packages share: Message, Kind, and the errors. No I/O and no third-party import.

One model serves five protocols. A protocol maps its frames to messages and back. Hub, journal, pipeline and command
line work with messages only.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast, overload

from wireloom.chunked_json import read_json, write_json
from wireloom.errors import (
    BodyError,
    ConfigError,
    HandshakeFailed,
    InvalidState,
    JournalError,
    LimitExceeded,
    MalformedBody,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    RequestFailed,
    RequestTimeout,
    ValidationError,
    WireloomError,
    without_traces,
)
from wireloom.values import Reader, plain, reader_of

__all__ = [
    "BODY_READERS", "KINDS", "NO_ATTRIBUTES", "Authenticity", "BodyError", "ConfigError", "Direction",
    "HandshakeFailed", "InvalidState", "JournalError", "Kind", "LimitExceeded", "MalformedBody", "Message",
    "NotSupported",
    "PeerClosed", "ProtocolViolation", "RequestFailed", "RequestTimeout", "ValidationError", "WireloomError",
    "encode_value", "from_event_data", "iso_time", "local_path", "message_of", "parse_iso_time", "parse_size",
    "plain_value", "to_event_data", "type_of_json", "typed_value", "without_traces",
]  # fmt: skip

NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})

type_of_json = str | int | float | bool | None | list["type_of_json"] | dict[str, "type_of_json"]


class Kind(StrEnum):
    """The purpose of a message, in any protocol. A closed set."""

    OPEN = "open"
    CLOSE = "close"
    REDIRECT = "redirect"
    PING = "ping"
    PONG = "pong"
    EVENT = "event"
    REQUEST = "request"
    PROGRESS = "progress"
    RESPONSE = "response"
    CANCEL = "cancel"
    ACK = "ack"
    ERROR = "error"
    OTHER = "other"


KINDS: tuple[Kind, ...] = tuple(Kind)
"""Every kind in a fixed order. Columns store a kind as its index in this tuple."""


class Direction(StrEnum):
    """Which way a message went: client to server, server to client, or a datagram."""

    C2S = "c2s"
    S2C = "s2c"
    DGRAM = "dgram"

    @property
    def opposite(self) -> Direction:
        """The direction of answers."""
        return {Direction.C2S: Direction.S2C, Direction.S2C: Direction.C2S}.get(self, self)


class Authenticity(StrEnum):
    """What is known about who sent a message."""

    NONE = "none"
    VERIFIED = "verified"
    SELF_SIGNED = "self-signed"
    FAILED = "failed"
    UNCHECKED = "unchecked"


BODY_READERS: dict[str, Callable[[bytes], object]] = {}
"""Decoders for content types other than JSON and text. Protocols with such bodies add to it."""


T = TypeVar("T")


class Message(NamedTuple):
    """One message of any protocol. A named tuple because it is created six times in a round trip, and must be cheap.

    >>> reading = Message(kind=Kind.EVENT, topic="sensors/kitchen", body=b'{"c": 21.5}',
    ...                   content_type="application/json")
    >>> reading.value()
    {'c': 21.5}
    """

    kind: Kind
    topic: str | None = None
    body: bytes = b""
    id: str | None = None
    correlation_id: str | None = None
    status: str | None = None
    content_type: str | None = None
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    protocol: str = ""
    time: int | None = None
    """When the last byte arrived, in nanoseconds since 1970."""
    connection: str | None = None
    direction: Direction | None = None
    authenticity: Authenticity = Authenticity.NONE

    @overload
    def value(self) -> type_of_json | bytes: ...
    @overload
    def value(self, kind: type[T], /) -> T: ...
    @overload
    def value(self, kind: object, /) -> Any: ...
    def value(self, *kind: object) -> Any:
        """The body as a Python value: parsed where it is JSON or its type is in `BODY_READERS`, text where it is text.

        An empty body of such a type is None. MalformedBody is raised for a body that is not what its type says.

        With a type the value is of that type, or ValidationError names the place where it does not fit. The type may be
        a dataclass, TypedDict, NamedTuple, enum, union, Literal, a collection of those, or one of msgspec or pydantic.
        A body without a content type is then read as JSON.

        >>> Message(Kind.EVENT, body=b'{"c": 21.5}', content_type="application/json").value(dict[str, float])
        {'c': 21.5}
        """
        if kind:
            return typed_value(self.body, self.content_type, kind[0], plain_value)
        return self.body if self.content_type is None else plain_value(self.body, self.content_type)

    def with_(self, **changes: object) -> Message:
        """A copy with some fields changed."""
        values: list[object] = list(self)
        for name, value in changes.items():
            values[_POSITIONS[name]] = value
        return Message._make(values)


def plain_value(body: bytes, content_type: str) -> object:
    """The value of a body with a content type. The body itself if the type is unknown."""
    try:
        if _is_json(content_type):
            return cast(object, read_json(body)) if body else None
        if content_type.startswith("text/"):
            return body.decode()
        read = BODY_READERS.get(content_type)
        return body if read is None else read(body)
    except (ValueError, RecursionError) as error:
        raise MalformedBody("body.content-type", f"the body is not {content_type}: {error}") from None


def typed_value(body: bytes, content_type: str | None, kind: object, loads: Callable[[bytes, str], object]) -> object:
    """A body as a value of a type. `loads` decodes it to plain values.

    >>> typed_value(b"[1]", None, list[int], plain_value)
    [1]
    """
    if kind is bytes and content_type in _BYTES:
        return body
    if content_type is None:
        if kind is str:
            return plain_value(body, "text/plain")
        content_type = "application/json"
    reader = kind if isinstance(kind, Reader) else reader_of(kind)
    whole = reader.bodies.get(content_type) if reader.bodies and body else None
    return reader.convert(loads(body, content_type)) if whole is None else whole(body)


_BYTES = (None, "application/octet-stream")


def to_event_data(body: bytes, content_type: str | None = None) -> dict[str, type_of_json]:
    """A body as the data of a CloudEvent in JSON form: JSON and text as they are, everything else in base64.

    A body without a content type is in base64, too.

    >>> to_event_data(b"[1]", "application/json"), to_event_data(b"hi", "text/plain"), to_event_data(b"hi")
    ({'data': [1]}, {'data': 'hi'}, {'data_base64': 'aGk='})
    """
    with contextlib.suppress(ValueError, RecursionError):
        if content_type is not None and _is_json(content_type):
            data = json.loads(body)
            # Python accepts numbers that JSON does not have, and texts that are not valid Unicode.
            json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
            return {"data": data}
        if content_type is not None and content_type.lower().startswith("text/"):
            return {"data": body.decode()}
    return {"data_base64": base64.b64encode(body).decode()}


def from_event_data(event: Mapping[str, type_of_json]) -> tuple[bytes, str | None]:
    """The body and the content type of a CloudEvent in JSON form. Raises ValueError for invalid base64.

    >>> from_event_data({"data": [1]})
    (b'[1]', 'application/json')
    """
    named = event.get("datacontenttype")
    content_type = None if named is None else str(named)
    if "data_base64" in event:
        return base64.b64decode(str(event["data_base64"]), validate=True), content_type
    if "data" not in event:
        return b"", content_type
    data = event["data"]
    is_text = isinstance(data, str) and content_type is not None and not _is_json(content_type)
    text = str(data) if is_text else json.dumps(data, ensure_ascii=False)
    return text.encode(), content_type or "application/json"


def _is_json(content_type: str) -> bool:
    """Whether a content type is JSON, ignoring its parameters."""
    name = content_type.partition(";")[0].strip().lower()
    return name == "application/json" or name.endswith("+json")


_POSITIONS = {name: position for position, name in enumerate(Message._fields)}

message_of: Callable[[tuple[object, ...]], Message] = functools.partial(tuple.__new__, Message)
"""Make a message from a tuple of all its fields. For hot paths: it takes half the time of calling the class.

>>> message_of((Kind.EVENT, "a", b"", None, None, None, None, {}, "", None, None, None, Authenticity.NONE)).topic
'a'
"""


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def encode_value(value: object) -> tuple[bytes, str | None]:
    """A Python value as a body and its content type: bytes as they are, text as UTF-8, the rest as JSON.

    >>> encode_value({"c": 21.5}), encode_value("hi"), encode_value(b"raw")
    ((b'{"c":21.5}', 'application/json'), (b'hi', 'text/plain'), (b'raw', None))
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    if value is None:
        return b"", None
    try:
        if isinstance(value, str):
            return value.encode(), "text/plain"
        return encode_json(value).encode(), "application/json"
    except BodyError:
        raise
    except (TypeError, ValueError) as error:
        raise NotSupported(f"a body is bytes, text or what JSON can say, not {type(value).__name__}: {error}") from None


def encode_json(value: object) -> str:
    """A value as JSON. Typed values are converted only if the JSON encoder does not know them."""
    if value.__class__ in _JSON_HAS:
        try:
            return write_json(value, _JSON.encode)
        except TypeError:
            pass  # it contains another type
    return write_json(plain(value), _JSON.encode)


_JSON_HAS = frozenset((dict, list, tuple, int, float, bool))


def iso_time(nanoseconds: int) -> str:
    """A time as RFC 3339 text in UTC with nine decimals.

    >>> iso_time(1_500_000_000)
    '1970-01-01T00:00:01.500000000Z'
    """
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def parse_iso_time(text: str) -> int:
    """The inverse of `iso_time`; any RFC 3339 time is understood.

    >>> parse_iso_time("1970-01-01T00:00:01.500000000Z")
    1500000000
    """
    head, dot, tail = text.upper().partition(".")
    digits = 0
    if dot:
        digits = next((i for i, c in enumerate(tail) if not c.isdigit()), len(tail))
        if not digits:
            raise ValueError(f"Invalid isoformat string: {text!r}")
        fraction, tail = tail[:digits], tail[digits:]
        nanoseconds = int(fraction.ljust(9, "0")[:9])
        head += tail
    else:
        nanoseconds = 0
    moment = datetime.fromisoformat(head)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + nanoseconds


def local_path(given: Path | str, what: str) -> Path:
    """A path on this machine. Raises ConfigError for a URL, which would otherwise become a folder of that name.

    >>> local_path("s3://bucket/tables", "a warehouse")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: 's3://bucket/tables' is a URL, and a warehouse is a path on this machine: name a folder
    """
    # `Path` reduces the two slashes of a URL to one.
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text := str(given)):
        raise ConfigError(f"{text!r} is a URL, and {what} is a path on this machine: name a folder")
    return Path(given)


def parse_size(name: str, text: str) -> int:
    """A number of bytes such as `16m`.

    >>> parse_size("partitionBytes", "16m")
    16777216
    """
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    size = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else 0
    if size < 1:
        raise ConfigError(f"option {name!r} is {text!r}; it must be a number of bytes such as 16m")
    return size
