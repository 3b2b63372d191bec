"""Large values are written, and large bodies read, in pieces, so that other threads get their turn in between.

The libraries behind JSON and its kin are written in C: while one of them works on a value, nothing else in the process
runs Python code, whichever thread it is in. An event loop that has left a body to another thread would stand still all
the same. Python lets others run between two steps of its own; so here a value is cut where it can be, and the library
gets one piece after the other. What comes out is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

Item = TypeVar("Item")

LARGE = 64 * 1024
"""Bytes of a body, or characters of a text, from which on reading or writing it takes long."""
MANY = 2000
"""Values inside a value from which on it takes long."""


class TooLong(ValueError):
    """What is being written has become longer than it may be."""


_PLAIN = frozenset((int, float, bool, type(None), bytes, bytearray, memoryview))


def weight(value: object) -> int:
    """Roughly how many values are in a value; a long text counts for several. Counting ends at `MANY`.

    >>> weight([1, {"c": 21.5}]), weight("x" * 1000), weight(list(range(10**6))) >= MANY
    (4, 31, True)
    """
    total, waiting = 1, [value]
    while waiting and total < MANY:
        each = waiting.pop()
        if each.__class__ in _PLAIN:
            continue
        if isinstance(each, str):
            total += len(each) * MANY // LARGE
        elif isinstance(each, dict | list | tuple):
            total += len(each)
            if total < MANY:
                waiting.extend(each.values() if isinstance(each, dict) else each)
        elif (fields := _fields(each)) is not None:
            total += len(fields)
            if total < MANY:
                waiting.extend(getattr(each, name, None) for name in fields)
        elif isinstance(each, set | frozenset):
            total += len(each)
            if total < MANY:
                waiting.extend(each)
        elif isinstance(each, Sized):
            total += 20 * len(each)  # an XML element: so many children, and theirs
    return total


def _fields(value: object) -> tuple[str, ...] | None:
    """The names of the fields of a dataclass, or of a value of msgspec or pydantic; None for other values."""
    kind = type(value)
    for names in ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__"):
        found: tuple[str, ...] | None = getattr(kind, names, None)
        if found is not None:
            return tuple(found)
    return None


def is_large(value: object) -> bool:
    """Whether writing a value as JSON or the like takes long.

    >>> is_large({"c": 21.5}), is_large(["x"] * 5000), is_large({"text": "x" * 100_000})
    (False, True, True)
    """
    return weight(value) >= MANY


def write_json(value: object, encode: Callable[[object], str], most: int | None = None) -> str:
    """A value as JSON; `encode` writes one piece, without spaces between its parts.

    Raises TooLong as soon as it has more than `most` characters.

    >>> import json
    >>> value = {"numbers": list(range(5000)), "text": "x" * 100_000, "small": [1, {"a": None}]}
    >>> write_json(value, json.JSONEncoder(separators=(",", ":")).encode) == json.dumps(value, separators=(",", ":"))
    True
    """
    written: list[str] = []
    size = 0
    for piece in _json(value, encode, ()) if is_large(value) else (encode(value),):
        written.append(piece)
        size += len(piece)
        if most is not None and size > most:
            raise TooLong(f"more than {most} characters of JSON")
    return "".join(written)


def _json(value: object, encode: Callable[[object], str], around: tuple[int, ...]) -> Iterator[str]:
    if id(value) in around:
        raise ValueError("Circular reference detected")
    around = (*around, id(value))
    comma = ""
    if isinstance(value, dict):
        yield "{"
        for part in parts(value.items()):
            yield comma
            comma = ","
            if len(part) == 1 and is_large(part[0][1]):
                ((key, inner),) = part
                yield encode({key: 0})[1:-2]
                yield from _json(inner, encode, around)
            else:
                yield encode(dict(part))[1:-1]
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for part in parts(value):
            yield comma
            comma = ","
            if len(part) == 1 and is_large(part[0]):
                yield from _json(part[0], encode, around)
            else:
                yield encode(part)[1:-1]
        yield "]"
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), LARGE):
            yield encode(value[start : start + LARGE])[1:-1]
        yield '"'
    else:
        yield encode(value)


def parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in parts that are not large, but for parts of one large item.

    >>> [len(part) for part in parts([*range(3000), "x" * 100_000])]
    [2000, 1000, 1]
    """
    part: list[Item] = []
    total = 0
    for item in items:
        more = weight(item)
        if part and total + more > MANY:
            yield part
            part, total = [], 0
        part.append(item)
        total += more
    if part:
        yield part


def read_json(text: str | bytes, **options: Any) -> Any:
    """The value that JSON stands for; in a large text Python code is called for every object and number.

    Only where there is neither, as in a list of nothing but texts, nobody else gets a turn.

    >>> read_json('[1, 2.5, {"a": null}]')
    [1, 2.5, {'a': None}]
    """
    return json.loads(text, **options) if len(text) < LARGE else json.loads(text, **_STEPS, **options)


def _object(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


_STEPS: dict[str, Any] = {"object_hook": _object, "parse_int": _integer, "parse_float": _number}
