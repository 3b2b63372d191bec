"""Single values: what is accepted as each, and the text that stands for those that JSON does not have.

| type | text |
|---|---|
| `datetime` | RFC 3339 with its offset from UTC, such as `2026-01-31T12:00:00.250000+00:00` |
| `date`, `time` | ISO 8601, such as `2026-01-31` and `12:00:00` |
| `Decimal` | its digits, such as `12.50`; never rounded |
| `UUID` | 36 characters, lower case |
| `bytes` | base64 with padding |

A text is looked at before anything is made of it, so that a hostile one costs no more than its length.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from types import NoneType
from uuid import UUID

from wireloom.errors import ValidationError

MAX_DIGITS = 1000
"""Maximum characters of a Decimal. A number as the key of a map may have a tenth of that."""
_SHOWN = 40

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)?")
_NUMBER = re.compile(r"-?\d{1,100}")
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([Ee][+-]?\d{1,9})?")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

ScalarReader = Callable[[object], object]


def show(value: object) -> str:
    """A value as quoted in an error: its type, and the start of its text.

    >>> show("six"), show(None), show([1, 2]), show(b"x" * 1000)
    ("str 'six'", 'null', 'list', 'bytes')
    """
    if value is None:
        return "null"
    if isinstance(value, int) and abs(value) > 10**_SHOWN:
        return "int"
    if isinstance(value, bool | int | float | str):
        text = ascii(value if not isinstance(value, str) else value[:_SHOWN])
        more = "..." if isinstance(value, str) and len(value) > _SHOWN else ""
        return f"{type(value).__name__} {text}{more}"
    return type(value).__name__


def expected(what: str, value: object) -> ValidationError:
    """The error for a value of the wrong type."""
    return ValidationError(f"expected {what}, got {show(value)}")


def read_str(value: object) -> object:
    """A text."""
    if isinstance(value, str):
        return value
    raise expected("str", value)


def read_int(value: object) -> object:
    """An int. True and False are refused."""
    if value.__class__ is int or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise expected("int", value)


def read_float(value: object) -> object:
    """A number. An int becomes a float."""
    if value.__class__ is float:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValidationError("this number is too large for a float") from None
    raise expected("float", value)


def read_bool(value: object) -> object:
    """True or False."""
    if value is True or value is False:
        return value
    raise expected("bool", value)


def read_none(value: object) -> object:
    """None."""
    if value is None:
        return None
    raise expected("null", value)


def read_bytes(value: object) -> object:
    """Bytes, or base64."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if not isinstance(value, str):
        raise expected("bytes", value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise expected("bytes as base64", value) from None


def read_datetime(value: object) -> object:
    """A datetime. One without a time zone is refused, because it is ambiguous."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValidationError("a datetime needs its time zone")
        return value
    text = _matching(value, _TIMESTAMP, "datetime as RFC 3339 with a time zone")
    return _parsed(datetime.fromisoformat, _microseconds(text.upper()), "datetime", value)


def read_date(value: object) -> object:
    """A date."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return _parsed(date.fromisoformat, _matching(value, _DATE, "date as YYYY-MM-DD"), "date", value)


def read_time(value: object) -> object:
    """A time of day."""
    if isinstance(value, time):
        return value
    text = _matching(value, _TIME, "time as HH:MM:SS")
    return _parsed(time.fromisoformat, _microseconds(text.upper()), "time", value)


def read_decimal(value: object) -> object:
    """A Decimal with all its digits: from text, or from a number as it is written."""
    if isinstance(value, Decimal):
        if value.is_finite():
            return value
        raise ValidationError("a Decimal must be finite")
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if found.is_finite():
            return found
        raise expected("Decimal", value)
    if isinstance(value, str) and len(value) > MAX_DIGITS:
        raise ValidationError(f"a Decimal has at most {MAX_DIGITS} characters, this has {len(value)}")
    return Decimal(_matching(value, _DECIMAL, "Decimal"))


def read_uuid(value: object) -> object:
    """A UUID: the object, its 36 characters, or its 16 bytes."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, bytes) and len(value) == 16:
        return UUID(bytes=value)
    return UUID(_matching(value, _UUID, "UUID"))


def read_anything(value: object) -> object:
    """Any value, unchanged."""
    return value


SCALARS: dict[object, ScalarReader] = {
    str: read_str,
    int: read_int,
    float: read_float,
    bool: read_bool,
    None: read_none,
    NoneType: read_none,
    bytes: read_bytes,
    datetime: read_datetime,
    date: read_date,
    time: read_time,
    Decimal: read_decimal,
    UUID: read_uuid,
    object: read_anything,
}


def read_int_key(value: object) -> object:
    """An int as the key of a map. In JSON keys are text."""
    if isinstance(value, str):
        return int(_matching(value, _NUMBER, "int"))
    return read_int(value)


KEYS: dict[object, ScalarReader] = {
    **{kind: SCALARS[kind] for kind in (str, datetime, date, time, Decimal, UUID, object)},
    int: read_int_key,
}
"""Types that keys of a map may have, beside enums and Literal."""


def text_of(value: object) -> str | None:
    """The text for a value of a type that JSON does not have; None for other values.

    >>> text_of(Decimal("12.50")), text_of(b"hi"), text_of(1)
    ('12.50', 'aGk=', None)
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValidationError("a datetime needs its time zone, such as datetime.now(UTC)")
        return value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValidationError("a Decimal must be finite")
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return None


def _matching(value: object, pattern: re.Pattern[str], what: str) -> str:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    raise expected(what, value)


def _microseconds(text: str) -> str:
    """The same text with at most six decimals of a second: Python supports no more."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


def _parsed(parse: Callable[[str], object], text: str, what: str, value: object) -> object:
    try:
        return parse(text)
    except ValueError:
        raise expected(what, value) from None
