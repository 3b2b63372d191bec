"""Converts typed values to plain ones that the library of a format can encode.

A `Form` says which of `datetime`, `Decimal`, `UUID` and `bytes` a format encodes itself. The others become text
(`scalars.py`). A dataclass, a TypedDict or a pydantic model becomes a map. A NamedTuple becomes an array in the order
of its fields, a set becomes an array, an enum becomes its value. msgspec converts its own values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from wireloom.errors import BodyError, ValidationError
from wireloom.values import foreign
from wireloom.values.scalars import text_of

MAX_DEPTH = 128
"""Maximum nesting depth, for reading and writing."""

T = TypeVar("T")
_AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))


@dataclass(frozen=True, slots=True)
class Form:
    """The types that a format encodes itself.

    `as_json` is set for JSON. A function may convert one to a library's type.
    """

    name: str
    as_json: bool = False
    natives: Mapping[type, Callable[[object], object]] = field(default_factory=lambda: MappingProxyType({}))
    library: str = ""
    """Values of classes of this package are left unchanged."""


JSON_FORM = Form("json", as_json=True)


def plain(value: object, form: Form = JSON_FORM) -> object:
    """A value as dicts, lists, texts, numbers, and further types of the format.

    Raises BodyError, with the place, if the value cannot be expressed.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Reading:
    ...     sensor: UUID
    ...     celsius: Decimal
    >>> plain(Reading(UUID(int=1), Decimal("21.50")))
    {'sensor': '00000000-0000-0000-0000-000000000001', 'celsius': '21.50'}
    """
    try:
        return _plain(value, form, 0)
    except ValidationError as error:
        raise BodyError(f"{form.name} cannot hold this {type(value).__name__}: {error}") from None
    except RecursionError:
        raise BodyError(f"{form.name} cannot hold this {type(value).__name__}: it is nested too deeply") from None


def _plain(value: object, form: Form, depth: int) -> object:
    kind = value.__class__
    if kind in _AS_THEY_ARE:
        return value
    native = form.natives.get(kind)
    if native is not None:
        try:
            return native(value)
        except ValueError as error:
            raise ValidationError(str(error)) from None
    if form.library and kind.__module__.partition(".")[0] == form.library:
        return value
    if depth > MAX_DEPTH:
        raise ValidationError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Enum):
        return _plain(value.value, form, depth + 1)
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime | date | time | Decimal | UUID | bytes | bytearray | memoryview):
        return text_of(value)
    if isinstance(value, Mapping):
        return _map(((_key(key), each) for key, each in value.items()), form, depth)
    if isinstance(value, list | tuple | Set):
        return _list(value, form, depth)
    names = _fields_of(kind)  # type: ignore[arg-type]  # a class has a hash
    if names is not None:
        return _map([(name, getattr(value, name)) for name in names], form, depth)
    return foreign.plain(value, form.as_json, lambda inner: _plain(inner, form, depth + 1))


@lru_cache(maxsize=1024)
def _fields_of(kind: type) -> tuple[str, ...] | None:
    """The field names of a dataclass; None for other classes, and for those of other packages."""
    if not dataclasses.is_dataclass(kind) or foreign.is_foreign(kind):
        return None
    return tuple(each.name for each in dataclasses.fields(kind))


def _map(items: object, form: Form, depth: int) -> dict[object, object]:
    found: dict[object, object] = {}
    key: object = None
    try:
        for key, each in items:  # type: ignore[attr-defined]
            found[key] = each if each.__class__ in _AS_THEY_ARE else _plain(each, form, depth + 1)
    except ValidationError as error:
        raise error.within(step(key)) from None
    return found


def _list(items: object, form: Form, depth: int) -> list[object]:
    found: list[object] = []
    try:
        for each in items:  # type: ignore[attr-defined]
            found.append(each if each.__class__ in _AS_THEY_ARE else _plain(each, form, depth + 1))  # noqa: PERF401
    except ValidationError as error:
        raise error.within(f"[{len(found)}]") from None
    return found


def _key(key: object) -> object:
    """The key of a map. A type with a text form becomes text in every format."""
    if key.__class__ in _AS_THEY_ARE:
        return key
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, bytes):
        return key
    return text_of(key) or key


def step(key: object) -> str:
    """The step into a map, as a path contains it.

    >>> step("sum"), step("a b"), step(7)
    ('.sum', "['a b']", '[7]')
    """
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() and key.isascii() and len(key) <= 64 else f"[{key[:64]!a}]"
    return f"[{ascii(key)[:64]}]"
