"""Types of msgspec and pydantic.

Neither is imported here: a program with such a type has already imported its package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from wireloom.errors import MalformedBody, ValidationError

MALFORMED = "body.content-type"
"""The clause for a body that does not match its content type."""
_PLACE = re.compile(r"(.*) - at `(?:key in )?(\$.*)`", re.DOTALL)


class ForeignReader(NamedTuple):
    """Reads a type of another package: from a plain value, or directly from a body if the package can."""

    convert: Callable[[object], object]
    bodies: dict[str, Callable[[bytes], object]]
    """Readers of whole bodies, by content type."""


def is_foreign(kind: type) -> bool:
    """Whether a class belongs to msgspec or pydantic."""
    return hasattr(kind, "__struct_fields__") or hasattr(kind, "__pydantic_validator__")


def reader(kind: type) -> ForeignReader | None:
    """The reader of a msgspec or pydantic type; None for other types."""
    if hasattr(kind, "__struct_fields__"):
        return _struct(kind)
    if hasattr(kind, "__pydantic_validator__"):
        return _model(kind)
    return None


def _struct(kind: type) -> ForeignReader:
    msgspec: Any = import_module("msgspec")

    def guarded(read: Callable[[Any], object]) -> Callable[[Any], object]:
        def run(value: Any) -> object:
            try:
                return read(value)
            except msgspec.ValidationError as error:
                found = _PLACE.fullmatch(str(error))
                problem, path = found.groups() if found else (str(error), "$")
                raise ValidationError(_lower(problem), path) from None
            except msgspec.DecodeError as error:
                raise MalformedBody(MALFORMED, _lower(str(error))) from None
            except RecursionError:
                raise ValidationError("nested too deeply") from None

        return run

    return ForeignReader(
        guarded(lambda value: msgspec.convert(value, kind)),
        {
            "application/json": guarded(msgspec.json.Decoder(kind).decode),
            "application/msgpack": guarded(msgspec.msgpack.Decoder(kind).decode),
        },
    )


def _model(kind: type) -> ForeignReader:
    pydantic: Any = import_module("pydantic")
    validator: Any = kind.__pydantic_validator__  # type: ignore[attr-defined]

    def guarded(read: Callable[[Any], object]) -> Callable[[Any], object]:
        def run(value: Any) -> object:
            try:
                return read(value)
            except pydantic.ValidationError as error:
                first = error.errors(include_url=False, include_input=False, include_context=False)[0]
                if first["type"] == "json_invalid":
                    raise MalformedBody(MALFORMED, _lower(first["msg"])) from None
                path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}"[:64] for each in first["loc"])
                raise ValidationError(_lower(first["msg"]), f"${path}") from None
            except RecursionError:
                raise ValidationError("nested too deeply") from None

        return run

    return ForeignReader(guarded(validator.validate_python), {"application/json": guarded(validator.validate_json)})


def plain(value: object, as_json: bool, inner: Callable[[object], object]) -> object:
    """A msgspec or pydantic value as plain values. `inner` converts nested values.

    Raises ValidationError for all other values.
    """
    kind = type(value)
    if hasattr(kind, "__struct_fields__"):
        msgspec: Any = import_module("msgspec")
        if as_json:
            return msgspec.to_builtins(value, str_keys=True)
        return inner(msgspec.to_builtins(value, builtin_types=_kept()))
    if hasattr(kind, "__pydantic_serializer__"):
        serializer: Any = kind.__pydantic_serializer__
        found: object = serializer.to_python(value, mode="json" if as_json else "python")
        return found if as_json else inner(found)
    raise ValidationError(f"{kind.__name__} has no form in a body")


@cache
def _kept() -> tuple[type, ...]:
    """Types that msgspec leaves unchanged, for `writing.py` to convert."""
    from datetime import date, datetime, time
    from decimal import Decimal
    from uuid import UUID

    return (bytes, bytearray, memoryview, datetime, date, time, Decimal, UUID)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
