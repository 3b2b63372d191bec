"""The values of calls and responses: fifteen types, as XML text, as Python values, as JSON.

Implements what the decisions say of types. In a message's body a value is plain JSON; its type, which JSON
cannot tell, is written beside it as a signature such as `string,list(int32*2,guid)`.

| type | JSON | Python, for components |
|---|---|---|
| boolean | true, false | bool |
| int32, int64, uint64 | number | int (Int32, Int64, UInt64 to choose) |
| double | number; "INF", "-INF", "NaN" | float |
| string | string | str |
| guid | string | uuid.UUID |
| dateTime | string | datetime with a time zone |
| list | array | list |
| clientInfo and the other structured ones | string: the XML inside the object | Structured |
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import NamedTuple
from uuid import UUID

from wireloom.model import BodyError, type_of_json

STRUCTURED = ("clientInfo", "directoryObject", "fileObject", "permission", "mountInfo", "snapshotInfo")
"""Types whose values are kept as XML."""
SCALARS = ("boolean", "dateTime", "double", "int32", "int64", "uint64", "string", "guid")
TYPES = (*SCALARS, "list", *STRUCTURED)
CANONICAL = {name.lower(): name for name in TYPES}
"""Type names are read without case."""

RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
MAX_DEPTH = 64
"""Lists in lists: more than anybody needs, and less than what would exhaust the stack."""
MAX_COUNT = 1_000_000
"""Values of one signature."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL = {"INF": "INF", "-INF": "-INF", "NaN": "NaN", "Infinity": "INF", "-Infinity": "-INF"}
_GUID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
_DATE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,20}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, not even escaped."""
_SPACE = " \t\r\n"


class Value(NamedTuple):
    """One typed value.

    `data` is what JSON would hold, but for a list, which is a tuple of values.
    """

    type: str
    data: bool | int | float | str | tuple[Value, ...]


def read(type_: str, text: str) -> Value:
    """The value a text stands for. Raises ValueError for a text that is not of the type.

    >>> read("int32", " 7 "), read("boolean", "True"), read("double", "Infinity")
    (Value(type='int32', data=7), Value(type='boolean', data=True), Value(type='double', data='INF'))
    """
    if type_ == "string":
        return Value(type_, text)
    text = text.strip(_SPACE)
    if type_ in RANGES:
        if not _INTEGER.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is no {type_}")
        return Value(type_, _in_range(type_, int(text)))
    if type_ == "boolean":
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"{text[:40]!r} is no boolean")
        return Value(type_, _BOOLEANS[text.lower()])
    if type_ == "double":
        if text in _SPECIAL:
            return Value(type_, _SPECIAL[text])
        if not _DOUBLE.fullmatch(text):
            raise ValueError(f"{text[:40]!r} is no double")
        number = float(text)
        return Value(type_, number if math.isfinite(number) else ("INF" if number > 0 else "-INF"))
    if type_ == "guid":
        if not is_guid(text):
            raise ValueError(f"{text[:40]!r} is no guid")
        return Value(type_, text.lower())
    return Value(type_, _date_time(text))


def write(value: Value) -> str:
    """The text of a scalar, as it is sent.

    >>> write(Value("boolean", True)), write(Value("double", 1e300)), write(Value("int32", -7))
    ('true', '1e+300', '-7')
    """
    data = value.data
    if data.__class__ is str:
        return data
    if isinstance(data, bool):
        return "true" if data else "false"
    return repr(data) if isinstance(data, float) else str(data)


def is_guid(text: str) -> bool:
    """Whether a text is a GUID with hyphens."""
    return _GUID.fullmatch(text) is not None


def _in_range(type_: str, number: int) -> int:
    low, high = RANGES[type_]
    if not low <= number <= high:
        raise ValueError(f"{number} is no {type_}")
    return number


def _date_time(text: str) -> str:
    """A time in UTC with seven decimals; without a time zone it is taken as UTC.

    >>> _date_time("2013-03-09T22:01:47.668+01:00")
    '2013-03-09T21:01:47.6680000Z'
    """
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no dateTime")
    try:
        moment = datetime.fromisoformat(found[1] + (found[3] or "Z").replace("Z", "+00:00")).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:40]!r} is no dateTime") from None
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}.{(found[2] or '')[:7].ljust(7, '0')}Z"


# JSON


def to_json(value: Value) -> type_of_json:
    """The value as JSON says it; its type goes into a signature."""
    data = value.data
    return [to_json(each) for each in data] if isinstance(data, tuple) else data


def from_json(data: object, depth: int = 0) -> Value:
    """The value that plain JSON becomes when nothing says its type. Raises ValueError where there is none.

    >>> from_json([2, 2**40, 1.5, "a", True])[1][1]
    Value(type='int64', data=1099511627776)
    """
    if data.__class__ is str:
        return Value("string", _xml_text(data))
    if isinstance(data, bool):
        return Value("boolean", data)
    if isinstance(data, int):
        for name in RANGES:
            if RANGES[name][0] <= data <= RANGES[name][1]:
                return Value(name, data)
        raise ValueError(f"{data} fits no integer type")
    if isinstance(data, float):
        return read("double", repr(data).replace("inf", "INF").replace("nan", "NaN"))
    if isinstance(data, str):
        return Value("string", _xml_text(data))
    if isinstance(data, list) and depth < MAX_DEPTH:
        return Value("list", tuple([from_json(each, depth + 1) for each in data]))
    raise ValueError(f"wolpertinger has no type for {type(data).__name__}")


def of_json(data: object, type_: Signature) -> Value:
    """The value of a given type that JSON stands for. Raises ValueError where it does not fit."""
    name, inner = type_
    if inner is not None:
        if not isinstance(data, list) or len(data) != len(inner):
            raise ValueError(f"a list of {len(inner)} values is needed")
        return Value(name, tuple([of_json(each, kind) for each, kind in zip(data, inner, strict=True)]))
    if name == "boolean":
        if isinstance(data, bool):
            return Value(name, data)
    elif name in RANGES:
        if isinstance(data, int) and not isinstance(data, bool):
            return Value(name, _in_range(name, data))
    elif name == "double":
        if isinstance(data, int | float) and not isinstance(data, bool):
            return from_json(float(data))
        if isinstance(data, str):
            return read(name, data)
    elif isinstance(data, str):
        return Value(name, _xml_text(data)) if name == "string" or name in STRUCTURED else read(name, data)
    raise ValueError(f"{str(data)[:40]!r} is no {name}")


def _xml_text(text: str) -> str:
    wrong = NOT_XML.search(text)
    if wrong is not None:
        raise ValueError(f"XML cannot hold the character {wrong[0]!r}")
    return text


# Signatures


class Signature(NamedTuple):
    """A type; of a list, the types of what is in it."""

    name: str
    inner: tuple[Signature, ...] | None = None


def signature(values: tuple[Value, ...]) -> str:
    """The types of values as text.

    >>> signature((Value("string", "a"), Value("list", (Value("int32", 1), Value("int32", 2)))))
    'string,list(int32*2)'
    """
    if len(values) == 1 and not isinstance(values[0].data, tuple):
        return values[0].type
    parts: list[str] = []
    last, times = "", 0
    for value in values:
        name = value.type if not isinstance(value.data, tuple) else f"list({signature(value.data)})"
        if name == last:
            times += 1
            parts[-1] = f"{name}*{times}"
        else:
            parts.append(name)
            last, times = name, 1
    return ",".join(parts)


_TOKEN = re.compile(r"(list\()|([A-Za-z0-9]+)|(\))|\*([0-9]{1,7})|(,)")


@lru_cache(maxsize=1024)
def _parse_short(text: str) -> tuple[Signature, ...]:
    return _parse(text)


def parse_signature(text: str) -> tuple[Signature, ...]:
    """The types a signature names. Raises ValueError where it is none.

    >>> parse_signature("string,list(int32*2)")[1].inner
    (Signature(name='int32', inner=None), Signature(name='int32', inner=None))
    """
    return _parse_short(text) if len(text) < 100 else _parse(text)


def _parse(text: str) -> tuple[Signature, ...]:
    open_lists: list[list[Signature]] = [[]]
    position, total, fresh = 0, 0, True
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or len(open_lists) > MAX_DEPTH:
            raise ValueError(f"{text[:80]!r} is no list of types")
        position = token.end()
        here = open_lists[-1]
        opens, name, closes, times, comma = token.groups()
        if opens and fresh:
            open_lists.append([])
        elif name and fresh and name in CANONICAL.values() and name != "list":
            here.append(Signature(name))
            fresh = False
        elif closes and len(open_lists) > 1 and not (fresh and here):
            open_lists.pop()
            open_lists[-1].append(Signature("list", tuple(here)))
            fresh = False
        elif times and not fresh:
            total += int(times)
            if not int(times) or total > MAX_COUNT:
                raise ValueError(f"{text[:80]!r} names too many types")
            here.extend(here[-1:] * (int(times) - 1))
        elif comma and not fresh:
            fresh = True
        else:
            raise ValueError(f"{text[:80]!r} is no list of types")
    if len(open_lists) > 1 or (fresh and text):
        raise ValueError(f"{text[:80]!r} is no list of types")
    return tuple(open_lists[0])


# Python values, for components and typed calls


class Int32(int):
    """An int that is sent as int32."""


class Int64(int):
    """An int that is sent as int64."""


class UInt64(int):
    """An int that is sent as uint64."""


class Structured(NamedTuple):
    """A value of a structured type: its name, and the XML inside the object."""

    type: str
    xml: str


_WIDTHS: dict[type, str] = {Int32: "int32", Int64: "int64", UInt64: "uint64"}


def from_python(value: object, depth: int = 0) -> Value:
    """The value to send for a Python value. Raises BodyError where there is none.

    >>> from_python(Int64(7)), from_python(UUID(int=0))[1][:9]
    (Value(type='int64', data=7), '00000000-')
    """
    kind = value.__class__
    try:
        if kind is str or kind is bool:
            return from_json(value)
        if kind in _WIDTHS:
            width = _WIDTHS[kind]
            return Value(width, _in_range(width, int(value)))  # type: ignore[call-overload]
        if isinstance(value, UUID):
            return Value("guid", str(value))
        if isinstance(value, datetime):
            moment = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
            return Value("dateTime", f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}.{moment.microsecond:06d}0Z")
        if isinstance(value, Structured):
            if value.type not in STRUCTURED:
                raise ValueError(f"{value.type!r} is none of {', '.join(STRUCTURED)}")
            return Value(value.type, value.xml)
        if isinstance(value, list | tuple):
            if depth >= MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} lists in lists")
            return Value("list", tuple([from_python(each, depth + 1) for each in value]))
        return from_json(value)
    except (ValueError, OverflowError) as error:
        raise BodyError(f"wolpertinger cannot send {str(value)[:60]!r}: {error}") from None


def to_python(value: Value) -> object:
    """The Python value of a value, as components get it.

    >>> to_python(Value("dateTime", "2013-03-09T21:01:47.6680000Z")).isoformat()
    '2013-03-09T21:01:47.668000+00:00'
    """
    name, data = value
    if name == "string":
        return data
    if isinstance(data, tuple):
        return [to_python(each) for each in data]
    if name == "guid":
        return UUID(str(data))
    if name == "dateTime":
        return datetime.fromisoformat(str(data)[:-2] + "+00:00")
    if name == "double":
        return float(data)
    return Structured(name, str(data)) if name in STRUCTURED else data


def dumps(value: type_of_json) -> bytes:
    """JSON as it stands in bodies."""
    return json_bytes(_ENCODER.encode(value))


def json_bytes(text: str) -> bytes:
    """JSON text as it stands in bodies."""
    return text.encode("utf-8", "surrogatepass")


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def json_text(value: Value) -> str:
    """The value as JSON text: what `dumps` makes of `to_json`, in one go.

    >>> json_text(Value("list", (Value("string", 'a"b'), Value("boolean", True), Value("double", 1.5))))
    '["a\\\\"b",true,1.5]'
    """
    data = value.data
    if isinstance(data, str):
        return encode_basestring(data)
    if isinstance(data, tuple):
        return f"[{','.join(map(json_text, data))}]"
    if isinstance(data, bool):
        return "true" if data else "false"
    return repr(data)
