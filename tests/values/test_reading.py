"""Plain values become typed ones, or the error names the place where they do not fit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pytest

from wireloom import ConfigError, ValidationError
from wireloom.values import MAX_DEPTH, convert, reader_of


class Unit(StrEnum):
    CELSIUS = "C"
    KELVIN = "K"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Door(Enum):
    OPEN = True
    SHUT = False


@dataclass
class Reading:
    value: float
    unit: Unit = Unit.CELSIUS
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Place(NamedTuple):
    latitude: float
    longitude: float
    name: str = ""


class Sensor(TypedDict):
    id: int
    place: NotRequired[Place]


@dataclass
class Move:
    kind: Literal["move"]
    to: Place


@dataclass
class Stop:
    kind: Literal["stop"]
    reason: str = ""


@dataclass
class Even:
    a: int

    def __post_init__(self) -> None:
        if self.a % 2:
            raise ValueError("an even number is wanted")


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: str | None = None


Identifier = NewType("Identifier", int)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ({"value": 21.5}, Reading, Reading(21.5)),
        ({"value": 21, "unit": "K", "tags": ["a"], "unknown": 1}, Reading, Reading(21.0, Unit.KELVIN, ["a"])),
        ({"name": "a", "children": [{"name": "b"}]}, Tree, Tree("a", [Tree("b")])),
        ([1, 2.5], Place, Place(1.0, 2.5)),
        ([1, 2.5, "x"], Place, Place(1.0, 2.5, "x")),
        ({"id": 1}, Sensor, {"id": 1}),
        ({"id": 1, "place": [1, 2], "more": 3}, Sensor, {"id": 1, "place": Place(1.0, 2.0)}),
        ({"kind": "move", "to": [1, 2]}, Move | Stop, Move("move", Place(1.0, 2.0))),
        (
            {"kind": "stop"},
            Union[Move, Stop],  # noqa: UP007
            Stop("stop"),
        ),
        (
            None,
            Optional[Reading],  # noqa: UP045
            None,
        ),
        (1, float | int, 1),
        ("x", int | str, "x"),
        ([1], list[str] | list[int], [1]),
        ({"items": [{"value": 1.0}], "next": None}, Page[Reading], Page([Reading(1.0)])),
        ("K", Unit, Unit.KELVIN),
        (2, Level, Level.HIGH),
        (False, Door, Door.SHUT),
        ("a", Literal["a", 1], "a"),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([], tuple[()], ()),
        ([1, 1, 2], set[int], {1, 2}),
        (["C"], frozenset[Unit], frozenset((Unit.CELSIUS,))),
        ({"1": "x"}, dict[int, str], {1: "x"}),
        ({"C": 1}, dict[Unit, int], {Unit.CELSIUS: 1}),
        ({"a": [1]}, Mapping[str, Sequence[int]], {"a": [1]}),
        ({"a": 1}, dict, {"a": 1}),
        ([1, "a"], list, [1, "a"]),
        (7, Identifier, 7),
        (7, Annotated[int, "percent"], 7),
        ({"x": [1]}, Any, {"x": [1]}),
        ("2026-01-31T12:00:00Z", datetime, datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.123456789+00:00", datetime, datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-01-31", date, date(2026, 1, 31)),
        ("12.50", Decimal, Decimal("12.50")),
        (0.1, Decimal, Decimal("0.1")),
        ("00000000-0000-0000-0000-00000000000A", UUID, UUID(int=10)),
        ("aGk=", bytes, b"hi"),
    ],
)
def test_what_fits(value: object, kind: Any, expected: object) -> None:
    found = convert(value, kind)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"value": "warm"}, Reading, r"\$\.value: expected float, got str 'warm'"),
        ({}, Reading, r"\$\.value: is missing"),
        ([], Reading, r"\$: expected Reading as a map, got list"),
        ({"value": 1, "tags": ["a", None]}, Reading, r"\$\.tags\[1\]: expected str, got null"),
        ({"value": 1, "unit": "F"}, Reading, r"\$\.unit: expected one of 'C', 'K', got str 'F'"),
        (
            {"name": "a", "children": [{"name": "b", "children": [{"name": 1}]}]},
            Tree,
            r"\$\.children\[0\]\.children\[0\]\.name",
        ),
        ({"kind": "move", "to": [1, "x"]}, Move | Stop, r"\$\.to\[1\]: expected float"),
        ({"kind": "jump"}, Move | Stop, "expected 'move', got str 'jump'|expected 'stop', got str 'jump'"),
        (True, int, "expected int, got bool True"),
        (1, bool, "expected bool"),
        (1.5, int, "expected int"),
        (1, Door, "expected one of"),
        (1, Literal[True], "expected True"),
        ([1], tuple[int, int], "expected 2 values, got 1"),
        ([1, 2, "x", 4], Place, "expected the 3 values of Place, got 4"),
        ({"a b": 1}, dict[str, str], r"\$\['a b'\]: expected str"),
        ({"x": 1}, dict[int, int], "expected int, got str 'x'"),
        ({"a": 1}, Even, r"\$: an even number is wanted"),
        ("2026-01-31T12:00:00", datetime, "RFC 3339 with a time zone"),
        ("2026-02-31T12:00:00Z", datetime, "expected datetime"),
        ("1e5x", Decimal, "expected Decimal"),
        ("NaN", Decimal, "expected Decimal"),
        ("1" * 2000, Decimal, "at most 1000 characters"),
        ("{00000000-0000-0000-0000-000000000000}", UUID, "expected UUID"),
        ("a*b=", bytes, "base64"),
        (10**400, float, "too large"),
        ([[1]], set[Any], "must have a hash"),
        (None, Reading, "got null"),
        (None, Move | Stop, r"expected Move \| Stop, got null"),
    ],
)
def test_what_does_not_fit_is_named(value: object, kind: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        convert(value, kind)


@pytest.mark.parametrize("kind", [object(), complex, dict[complex, int], "Reading", type("Plain", (), {})])
def test_a_type_that_no_body_can_hold_is_refused(kind: object) -> None:
    with pytest.raises(ConfigError):
        reader_of(kind)


def nested(levels: int) -> object:
    value: dict[str, object] = {"name": "leaf"}
    for _ in range(levels - 1):
        value = {"name": "a", "children": [value]}
    return value


def test_nesting_has_a_limit() -> None:
    assert convert(nested(MAX_DEPTH // 2), Tree).name == "a"
    for levels in (MAX_DEPTH, 10_000):
        with pytest.raises(ValidationError, match="nested deeper than"):
            convert(nested(levels), Tree)


@dataclass
class Left:
    next: Left | Right | None
    end: int = 0


@dataclass
class Right:
    next: Left | Right | None
    end: int = 0


def test_unions_inside_unions_cost_no_more_than_their_size() -> None:
    """Each level could be tried as either: 2**60 ways to fail."""
    value: dict[str, object] = {"next": None, "end": "wrong"}
    for _ in range(60):
        value = {"next": value}
    began = time.process_time()
    with pytest.raises(ValidationError, match="too many members of unions"):
        convert(value, Left | Right)
    assert time.process_time() - began < 2


def test_a_long_list_of_unions_is_read() -> None:
    items = [{"kind": "move", "to": [1, 2]}, {"kind": "stop"}] * 10_000
    assert len(convert(items, list[Move | Stop])) == 20_000


def test_a_hostile_text_is_not_quoted_whole() -> None:
    with pytest.raises(ValidationError) as refused:
        convert({"value": "\x1b[31m" + "x" * 10**6}, Reading)
    assert len(str(refused.value)) < 200 and "\x1b" not in str(refused.value)
    with pytest.raises(ValidationError) as refused:
        convert({"k" * 10**6: 1}, dict[str, str])
    assert len(str(refused.value)) < 200
