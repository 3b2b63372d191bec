"""The model every room shares: messages, CloudEvents, times, errors."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom import model
from wireloom.model import (
    KINDS,
    Authenticity,
    Direction,
    InvalidState,
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    RequestFailed,
    RequestTimeout,
    WireloomError,
    encode_value,
    iso_time,
    parse_iso_time,
)

LAST_NANOSECOND = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 10**9 + 999_999_999
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
messages = st.builds(
    Message,
    kind=st.sampled_from(KINDS),
    topic=st.none() | texts,
    body=st.binary(max_size=40),
    id=st.none() | words,
    correlation_id=st.none() | texts,
    status=st.none() | texts,
    content_type=st.none() | st.sampled_from(["application/json", "text/plain", "image/png", "x/y; a=b"]),
    attributes=st.dictionaries(texts, texts, max_size=3),
    protocol=st.sampled_from(["", "hsp", "emp", "yamp"]),
    time=st.none() | st.integers(0, LAST_NANOSECOND),
    connection=st.none() | words,
    direction=st.none() | st.sampled_from(list(Direction)),
    authenticity=st.sampled_from(list(Authenticity)),
)


# Kinds and directions


def test_kinds_are_a_closed_set_in_a_fixed_order() -> None:
    """Columns hold a kind as its index: the order must never change."""
    assert [str(kind) for kind in KINDS] == [
        "open", "close", "redirect", "ping", "pong", "event", "request",
        "progress", "response", "cancel", "ack", "error", "other",
    ]  # fmt: skip


def test_answers_take_the_opposite_direction() -> None:
    assert Direction.C2S.opposite is Direction.S2C
    assert Direction.S2C.opposite is Direction.C2S
    assert Direction.DGRAM.opposite is Direction.DGRAM


def test_the_words_for_authenticity_are_those_of_the_messages_table() -> None:
    assert {str(each) for each in Authenticity} == {"none", "verified", "self-signed", "failed", "unchecked"}


# Messages


def test_messages_are_frozen_values() -> None:
    message = Message(Kind.EVENT, "a", b"x", attributes={"type": "7"})
    assert message == Message(Kind.EVENT, "a", b"x", attributes={"type": "7"}) != message.with_(body=b"y")
    with pytest.raises(AttributeError):
        message.topic = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        message.colour = "red"  # type: ignore[attr-defined]


def test_the_default_attributes_cannot_be_written_to() -> None:
    with pytest.raises(TypeError):
        Message(Kind.EVENT).attributes["x"] = "y"  # type: ignore[index]


@given(messages, st.binary(max_size=5))
def test_with_changes_only_what_is_named(message: Message, body: bytes) -> None:
    changed = message.with_(body=body, kind=Kind.OTHER)
    assert (changed.body, changed.kind) == (body, Kind.OTHER)
    assert changed.with_(body=message.body, kind=message.kind) == message


def test_with_refuses_fields_that_do_not_exist() -> None:
    with pytest.raises((TypeError, KeyError), match="colour"):
        Message(Kind.EVENT).with_(colour="red")


@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [
        (None, b"\xff", b"\xff"),
        ("application/json", b'{"c": 21.5}', {"c": 21.5}),
        ("application/json", b"", None),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("Application/JSON", b"[1]", [1]),
        ("application/cloudevents+json", b"7", 7),
        ("text/plain", "ä".encode(), "ä"),
        ("text/html", b"", ""),
        ("image/png", b"\x89", b"\x89"),
    ],
)
def test_a_body_is_read_by_its_content_type(content_type: str | None, body: bytes, value: object) -> None:
    assert Message(Kind.EVENT, body=body, content_type=content_type).value() == value


@pytest.mark.parametrize(
    ("value", "body", "content_type"),
    [
        (b"raw", b"raw", None),
        (bytearray(b"raw"), b"raw", None),
        (memoryview(b"raw"), b"raw", None),
        ("ä", "ä".encode(), "text/plain"),
        (None, b"", None),
        ({"ä": [1, None]}, '{"ä":[1,null]}'.encode(), "application/json"),
        (False, b"false", "application/json"),
        (0, b"0", "application/json"),
    ],
)
def test_a_value_becomes_a_body_and_its_content_type(value: object, body: bytes, content_type: str | None) -> None:
    assert encode_value(value) == (body, content_type)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda v: st.lists(v) | st.dictionaries(texts, v))
)
def test_values_come_back_from_their_bodies(value: object) -> None:
    body, content_type = encode_value(value)
    if value is not None:
        assert Message(Kind.EVENT, body=body, content_type=content_type).value() == value


@pytest.mark.parametrize("value", [object(), {1, object()}, {"a": 1j}])
def test_a_value_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(NotSupported, match=f"json cannot hold this {type(value).__name__}"):
        encode_value(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotSupported, match="not list"):
        encode_value(endless)


# Times


@given(st.integers(0, LAST_NANOSECOND))
def test_a_time_survives_the_way_through_text(nanoseconds: int) -> None:
    text = iso_time(nanoseconds)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", text)
    assert parse_iso_time(text) == nanoseconds


@given(st.integers(0, LAST_NANOSECOND), st.integers(0, LAST_NANOSECOND))
def test_texts_sort_like_the_times_they_stand_for(one: int, other: int) -> None:
    assert (iso_time(one) < iso_time(other)) == (one < other)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01t00:00:01.5z", 1_500_000_000),
        ("1970-01-01 00:00:01Z", 1_000_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T01:00:00.25+01:00", 250_000_000),
        ("1969-12-31T23:00:00.25-01:00", 250_000_000),
        ("1969-12-31T23:59:59.75Z", -250_000_000),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
        ("2106-02-07T06:28:16Z", 2**32 * 10**9),
    ],
)
def test_times_of_others_are_understood(text: str, nanoseconds: int) -> None:
    assert parse_iso_time(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "yesterday", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00.xZ"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_iso_time(text)


# Errors


def test_every_error_has_one_root() -> None:
    errors = [each for each in vars(model).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) > 10
    assert all(issubclass(error, WireloomError) for error in errors)


def test_a_violation_says_clause_detail_and_place() -> None:
    violation = ProtocolViolation("hsp.command.unknown", "command 9", reply=b"\x06", offset=0)
    assert str(violation) == "hsp.command.unknown: command 9 (at byte 0)"
    assert (violation.clause, violation.detail, violation.reply) == ("hsp.command.unknown", "command 9", b"\x06")
    bare = ProtocolViolation("hsp.command.unknown", "command 9")
    assert (str(bare), bare.reply, bare.offset) == ("hsp.command.unknown: command 9", b"", None)


def test_a_failed_request_says_code_and_body() -> None:
    assert str(RequestFailed("404", b"no such topic")) == "request failed with 404: no such topic"
    assert str(RequestFailed("404")) == "request failed with 404"
    assert "\ufffd" in str(RequestFailed("1", b"\xff"))


def test_errors_are_also_what_python_calls_them() -> None:
    """So `except TimeoutError` and `except ConnectionError` of a service work for ours."""
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(PeerClosed, ConnectionError)
    assert str(PeerClosed("gone")) == "gone" and PeerClosed("gone").errno is None


def test_never_and_not_now_are_different_errors() -> None:
    assert not issubclass(InvalidState, NotSupported)
    assert not issubclass(NotSupported, InvalidState)
