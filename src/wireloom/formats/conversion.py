"""Converts a body from one format to another, within limits.

JSON, MessagePack, CBOR and BSON hold mostly the same values, so a body of one can be written as another. The number of
values in a body is limited before any value is made (`value_count.py`). The size of the result is limited, too. A long
conversion runs on another thread, once for all peers that need the same result.
"""

from __future__ import annotations

import base64
import contextlib
import re
import threading
from functools import lru_cache
from weakref import WeakValueDictionary

from wireloom.formats.body_formats import CONTENT_TYPES, CONVERTIBLE, DEFAULT, MALFORMED, BodyFormat, format_for
from wireloom.formats.value_count import COUNTERS, VALUE, TooManyValues
from wireloom.model import BodyError, ProtocolViolation

DEFAULT_TYPE = CONTENT_TYPES[DEFAULT]
MAX_CONVERTED = 16 * 1024 * 1024
"""Bytes of a body that is made by conversion, unless told otherwise."""
QUICK = 4096
"""Bodies of up to this many bytes are converted on the event loop."""


def takes_long(body: bytes, source: str | None, target: str | None) -> bool:
    """Whether `convert` has so much to do that another thread should do it."""
    return len(body) > QUICK and _writer(source, target) is not None


def _writer(source: str | None, target: str | None) -> BodyFormat | None:
    """The format that writes the converted body; None if no conversion is needed."""
    writer = None if source == target else format_for(target)
    return None if writer is None or writer.name not in CONVERTIBLE else writer


def convert(body: bytes, source: str | None, target: str | None, most: int = MAX_CONVERTED) -> tuple[bytes, str | None]:
    """A body as a peer reads it that agreed on `target`, where that holds plain values; else as it is.

    Nothing on the wire says what a body is: such a peer reads every body with the agreed serializer. So plain values
    of another format are written anew. Text becomes a string, and other bytes a string in base64. A body without a
    content type is taken for JSON if it can be, else for text if it can be.

    Raises BodyError where it would become more than `most` bytes, of which each value counts for `VALUE` at least.

    >>> convert(b'{"a":1}', "application/json", "application/msgpack")
    (b'\\x81\\xa1a\\x01', 'application/msgpack')
    >>> convert(b"hello", "text/plain", "application/json")
    (b'"hello"', 'application/json')
    >>> convert(b"[1]", None, "application/json"), convert(bytes([255]), "image/png", "application/json")
    ((b'[1]', 'application/json'), (b'"/w=="', 'application/json'))
    """
    if not body:
        return body, source if _writer(source, target) is None else target
    return _convert_quickly(body, source, target, most) if len(body) <= QUICK else _convert(body, source, target, most)


def _convert(body: bytes, source: str | None, target: str | None, most: int) -> tuple[bytes, str | None]:
    writer = _writer(source, target)
    if writer is None:
        return body, source
    reader = format_for(DEFAULT_TYPE if source is None else source)
    try:
        if reader is None or reader.name not in CONVERTIBLE:
            value: object = _wrapped(body, source, most)
        else:
            value = _read(reader, body, most)
            if source is None and reader is writer:
                return body, target
    except ProtocolViolation:
        if source is not None:
            raise
        value = _wrapped(body, source, most)
    converted = writer.dumps_within(value, most)
    if converted is None:
        raise _too_large(most)
    return converted, target


def _read(reader: BodyFormat, body: bytes, most: int) -> object:
    """What a body says; its values are counted first."""
    try:
        COUNTERS[reader.name](body, most // VALUE)
    except TooManyValues:
        raise _too_large(most) from None
    except ValueError as error:
        raise ProtocolViolation(MALFORMED, f"not a {reader.name} body: {error}") from None
    return reader.loads(body)


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def _wrapped(body: bytes, source: str | None, most: int) -> str:
    """A body that holds no plain values as one: as text if it is text, else in base64."""
    if len(body) > most:
        raise _too_large(most)
    if source is None or source.startswith("text/"):
        with contextlib.suppress(UnicodeDecodeError):
            text = body.decode()
            if not _CONTROL.search(text):
                return text
    return base64.b64encode(body).decode()


_convert_quickly = lru_cache(maxsize=256)(_convert)
"""A cache for small bodies: many subscribers of one format share the result."""


def _too_large(most: int) -> BodyError:
    return BodyError(
        f"a body that would become more than {most} bytes in another format, {VALUE} for each value at least; "
        "max_converted and decompressed_bytes set the limit"
    )


class Conversion:
    """The conversion of one body. The first caller runs it, in any thread; other callers wait for the result."""

    def __init__(self, body: bytes, source: str | None, target: str | None, most: int) -> None:
        self._asked = body, source, target, most
        self._lock = threading.Lock()
        self._result: tuple[bytes, str | None] | None = None
        self._failure = ""

    def result(self) -> tuple[bytes, str | None]:
        """The body in the other format. Raises BodyError."""
        with self._lock:
            if self._result is None and not self._failure:
                try:
                    self._result = converted(*self._asked)
                except BodyError as error:
                    self._failure = str(error)
        if self._result is None:
            raise BodyError(self._failure)
        return self._result


def conversion_of(body: bytes, source: str | None, target: str | None, most: int) -> Conversion:
    """The conversion of a body; concurrent callers share one object."""
    key = id(body), source, target, most
    found = _CONVERSIONS.get(key)
    if found is None:
        found = _CONVERSIONS[key] = Conversion(body, source, target, most)
    return found


_CONVERSIONS: WeakValueDictionary[tuple[int, str | None, str | None, int], Conversion] = WeakValueDictionary()
"""Conversions in use, by `id` of the body. An entry keeps its body alive, so the `id` stays valid."""


def converted(
    body: bytes, source: str | None, target: str | None, most: int = MAX_CONVERTED
) -> tuple[bytes, str | None]:
    """A body in another format. Raises BodyError."""
    try:
        return convert(body, source, target, most)
    except ProtocolViolation as error:
        raise BodyError(f"the body is not {source}: {error.detail}") from None
