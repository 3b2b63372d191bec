"""Typed values survive every format, and the stated forms are what is on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom import BodyError, Kind, MalformedBody, Message, ValidationError
from wireloom.formats.body_formats import body_format
from wireloom.model import encode_value
from wireloom.values import convert, plain

FORMATS = ("json", "msgpack", "cbor", "bson")


class Unit(StrEnum):
    CELSIUS = "C"
    KELVIN = "K"


class Place(NamedTuple):
    latitude: float
    name: str


class Extra(TypedDict, total=False):
    note: str
    at: date


@dataclass(frozen=True)
class Part:
    number: int
    weight: Decimal


@dataclass
class Everything:
    time: datetime
    amount: Decimal
    key: UUID
    data: bytes
    unit: Unit
    place: Place
    parts: list[Part] = field(default_factory=list)
    by_key: dict[UUID, Part] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    extra: Extra | None = None
    pair: tuple[int, str] = (0, "")


zones = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-3, minutes=-30))])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
parts = st.builds(Part, st.integers(-(2**53), 2**53), decimals)
everything = st.builds(
    Everything,
    time=st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=zones),
    amount=decimals,
    key=st.uuids(),
    data=st.binary(max_size=50),
    unit=st.sampled_from(Unit),
    place=st.builds(Place, st.floats(allow_nan=False, allow_infinity=False), texts),
    parts=st.lists(parts, max_size=5),
    by_key=st.dictionaries(st.uuids(), parts, max_size=3),
    tags=st.frozensets(texts, max_size=3),
    extra=st.none() | st.just({"note": "x", "at": date(2026, 1, 31)}) | st.just({}),
    pair=st.tuples(st.integers(-5, 5), texts),
)


@pytest.mark.parametrize("name", FORMATS)
@given(value=everything)
def test_a_typed_value_survives(name: str, value: Everything) -> None:
    form = body_format(name)
    assert convert(form.loads(form.dumps(value)), Everything) == value


@given(value=everything)
def test_protocols_without_formats_use_json(value: Everything) -> None:
    body, content_type = encode_value(value)
    assert Message(Kind.EVENT, body=body, content_type=content_type).value(Everything) == value


@given(value=everything, names=st.permutations(FORMATS))
def test_a_hub_may_write_it_anew_in_another_format(value: Everything, names: list[str]) -> None:
    found: Any = value
    for name in names:
        form = body_format(name)
        found = form.loads(form.dumps(found))
    assert convert(found, Everything) == value


MOMENT = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
FINE = MOMENT.replace(microsecond=250_001)
TEXT = "2026-01-31T12:00:00.250000+00:00"


@pytest.mark.parametrize(
    ("name", "value", "wire"),
    [
        ("json", MOMENT, f'"{TEXT}"'.encode()),
        ("json", Decimal("12.50"), b'"12.50"'),
        ("json", UUID(int=10), b'"00000000-0000-0000-0000-00000000000a"'),
        ("json", b"hi", b'"aGk="'),
        ("msgpack", MOMENT, b"\xd9\x20" + TEXT.encode()),
        ("msgpack", Decimal("12.50"), b"\xa512.50"),
        ("msgpack", UUID(int=10), b"\xd9\x24" + str(UUID(int=10)).encode()),
        ("msgpack", b"hi", b"\xc4\x02hi"),
        ("cbor", MOMENT, b"\xc0\x78\x1b2026-01-31T12:00:00.250000Z"),
        ("cbor", Decimal("12.50"), b"\xc4\x82\x21\x19\x04\xe2"),
        ("cbor", UUID(int=10), b"\xd8\x25\x50" + UUID(int=10).bytes),
        ("cbor", b"hi", b"\x42hi"),
        ("bson", MOMENT, b"\x09v\0" + int(MOMENT.timestamp() * 1000).to_bytes(8, "little")),
        ("bson", FINE, b"\x02v\0\x21\0\0\0" + FINE.isoformat().encode() + b"\0"),
        ("bson", Decimal("12.50"), b"\x13v\0" + (1250).to_bytes(14, "little") + b"\x3c\x30"),
        ("bson", UUID(int=10), b"\x05v\0\x10\0\0\0\x04" + UUID(int=10).bytes),
        ("bson", b"hi", b"\x05v\0\x02\0\0\0\0hi"),
    ],
)
def test_the_form_on_the_wire(name: str, value: object, wire: bytes) -> None:
    body = body_format(name).dumps({"v": value})
    head = {"json": b'{"v":', "msgpack": b"\x81\xa1v", "cbor": b"\xa1\x61v", "bson": body[:4]}[name]
    tail = {"json": b"}", "bson": b"\0"}.get(name, b"")
    assert body == head + wire + tail


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [datetime(2026, 1, 1), Decimal("NaN"), object(), 1j])
def test_what_has_no_form_is_named(name: str, bad: object) -> None:
    if name == "cbor" and isinstance(bad, Decimal | complex):
        pytest.skip("CBOR has those")
    with pytest.raises(BodyError, match=r"\$\.a\[1\]\.b: "):
        body_format(name).dumps({"a": [1, {"b": bad}]})


def test_a_value_inside_itself_is_refused() -> None:
    part: dict[str, object] = {"key": UUID(int=1)}
    part["self"] = part
    with pytest.raises(BodyError, match="nested deeper"):
        plain(part)


class Struct(msgspec.Struct):
    name: str
    at: datetime
    amount: Decimal
    key: UUID
    data: bytes
    inner: list[int] = []


class Model(pydantic.BaseModel):
    name: str
    at: datetime
    amount: Decimal
    key: UUID
    inner: list[int] = []


@dataclass
class Holder:
    struct: Struct | None
    models: list[Model]


struct = Struct("a", MOMENT, Decimal("1.50"), UUID(int=3), b"\0\1", [1])
model = Model(name="a", at=MOMENT, amount=Decimal("1.50"), key=UUID(int=3), inner=[1])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [struct, model, Holder(struct, [model])])
def test_types_of_msgspec_and_pydantic(name: str, value: object) -> None:
    form = body_format(name)
    body = form.dumps(value)
    assert convert(form.loads(body), type(value)) == value
    assert Message(Kind.EVENT, body=body, content_type=form.content_type).value(type(value)) == value


@pytest.mark.parametrize("content_type", ["application/json", None])
@pytest.mark.parametrize("kind", [Struct, Model])
def test_their_errors_name_the_place(kind: type, content_type: str | None) -> None:
    rest = f'"at": "{TEXT}", "amount": "1", "key": "{UUID(int=3)}", "data": ""'
    body = f'{{"name": "a", {rest}, "inner": [1, "x"]}}'.encode()
    with pytest.raises(ValidationError) as refused:
        Message(Kind.EVENT, body=body, content_type=content_type).value(kind)
    assert refused.value.path == "$.inner[1]"
    with pytest.raises(MalformedBody):
        Message(Kind.EVENT, body=b"{nonsense", content_type=content_type).value(kind)


@pytest.mark.parametrize("kind", [dict, Struct, Model, Everything])
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"inner":' * 50_000])
def test_deep_bodies_are_refused(kind: type, body: bytes) -> None:
    with pytest.raises((MalformedBody, ValidationError)):
        Message(Kind.EVENT, body=body, content_type="application/json").value(kind)
