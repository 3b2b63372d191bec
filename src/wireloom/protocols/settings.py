"""The settings of a protocol: plain values from a file or the command line, checked by name and type."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypeVar

from wireloom.model import ConfigError, type_of_json


@dataclass(frozen=True, slots=True)
class Settings:
    """Base of a protocol's settings: a frozen dataclass with a default for every field.

    >>> @dataclass(frozen=True, slots=True)
    ... class Example(Settings):
    ...     max_payload: int = 8192
    >>> Example.parse({"max_payload": "100"})
    Example(max_payload=100)
    >>> Example.parse({"max_paylod": 1})
    Traceback (most recent call last):
    wireloom.errors.ConfigError: unknown setting 'max_paylod'; known: max_payload
    """

    agreed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that decide how recorded bytes are read, and that a journal may state: see `Session.agreed`."""

    @property
    def contacts(self) -> Sequence[str]:
        """Addresses that a listener with these settings gets in touch with by itself: `host:port`, or URLs."""
        return ()

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """Settings from plain values (TOML, command line), checked by name and type.

        Fields are plain types, enums, mappings, `tuple[X, ...]`, and unions of these.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        hints = _hints(cls)  # type: ignore[arg-type]
        parsed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in fields:
                raise ConfigError(f"unknown setting {name!r}; known: {', '.join(sorted(fields))}")
            parsed[name] = _coerce(name, value, hints[name])
        return cls(**parsed)


@functools.cache
def _hints(kind: type[Settings]) -> dict[str, Any]:
    """The types of a class's fields; looking them up takes longer than everything else about settings."""
    return typing.get_type_hints(kind)


_AnySettings = TypeVar("_AnySettings", bound=Settings)


def apply_agreed(settings: _AnySettings, agreed: Mapping[str, type_of_json]) -> _AnySettings:
    """The settings with which to read a connection that agreed on something; the rest, and all limits, stay.

    `agreed` may come from a journal of a later version: names that are none of `agreed_fields` are ignored. A value
    that a field cannot have raises ConfigError.
    """
    known = {name: agreed[name] for name in settings.agreed_fields if name in agreed} if agreed else None
    if not known:
        return settings
    hints = _hints(type(settings))  # type: ignore[arg-type]
    values: dict[str, Any] = {name: _coerce(name, value, hints[name]) for name, value in known.items()}
    return dataclasses.replace(settings, **values)


class Written(str):
    """A value as somebody wrote it on a command line or in a URL: in the syntax of TOML, where bare words are texts.

    >>> Written("[1, 2]").value, Written("abc").value, Written("a,b").value
    ([1, 2], 'abc', ['a', 'b'])
    """

    __slots__ = ()

    @property
    def value(self) -> object:
        """What it means; bare words with commas between them are a list."""
        try:
            found: object = tomllib.loads(f"value = {self}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            found = str(self).split(",") if "," in self else str(self)
        return found


_BOOLEANS = {"true": True, "false": False, "on": True, "off": False, "1": True, "0": False}


def _coerce(name: str, value: object, hint: object) -> object:
    """`value` as the type the settings field asks for, or a ConfigError that says what is wanted."""
    if isinstance(value, Written):
        try:
            return _coerce(name, value.value, hint)
        except ConfigError:
            # It may be a text that looks like something else: a key of digits alone, or a date.
            return _coerce(name, str(value), hint)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if value is None and option is types.NoneType:
            return None
        if option is bool:
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in _BOOLEANS:
                return _BOOLEANS[value.lower()]
        elif option in (int, float):
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                continue
            try:
                number: float = int(value) if option is int else float(value)
            except (ValueError, OverflowError):
                continue
            if not (option is int and isinstance(value, float) and value != number):
                return number
        elif isinstance(option, type) and issubclass(option, Enum):
            try:
                return option(value)
            except ValueError:
                continue
        elif origin is tuple and isinstance(value, list | tuple):
            element = typing.get_args(option)[0]
            return tuple(_coerce(name, each, element) for each in value)
        elif isinstance(origin, type) and isinstance(value, origin):
            return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        wanted = "one of " + ", ".join(str(choice.value) for choice in hint)
    else:
        wanted = "of type " + " or ".join(getattr(o, "__name__", str(o)) for o in options)
    raise ConfigError(f"setting {name!r} is {value!r}; it must be {wanted}")
