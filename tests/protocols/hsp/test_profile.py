"""Topics over 16-bit types: envelopes, the operations of the hub profile, and maps (docs/hub-profile.md)."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.reading import joined, messages_of
from wireloom.model import Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, Role
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.frames import Data, DataAck
from wireloom.protocols.hsp.profile import (
    ENVELOPE,
    FIRST_RESERVED,
    LAST_RESERVED,
    MAP_TYPE,
    OPERATIONS,
    Names,
    make_envelope,
    open_envelope,
    parse_map,
    parse_number,
)
from wireloom.protocols.hsp.session import MAX_MAPS, HspSession

MAP = "$hub/map"


def opened(*, profile: bool = True, topics: dict[int, str] | None = None) -> HspSession:
    session = HSP.session(Role.SERVER, HSP.settings({"profile": profile}), topics=topics)
    session.connected(0)
    return session


def topics_body(**named: object) -> bytes:
    return json.dumps({"topics": {name.removeprefix("n"): topic for name, topic in named.items()}}).encode()


# Reserved types


def test_the_reserved_types_of_the_profile() -> None:
    assert ENVELOPE == 0xFD00
    assert OPERATIONS == {
        0xFD01: "$hub/subscribe",
        0xFD02: "$hub/unsubscribe",
        0xFD03: "$hub/provide",
        0xFD04: "$hub/withdraw",
        0xFD05: "$hub/map",
        0xFD06: "$hub/login",
    }
    assert (FIRST_RESERVED, LAST_RESERVED) == (0xFD00, 0xFD0F)


@pytest.mark.parametrize("number", list(OPERATIONS))
def test_operations_are_requests_for_hub_topics_with_json_bodies(number: int) -> None:
    (message,) = messages_of(opened().receive(frames.encode(DataAck(1, number, b"{}")), 0))
    assert (message.kind, message.topic, message.body, message.content_type) == (
        Kind.REQUEST,
        OPERATIONS[number],
        b"{}",
        "application/json",
    )
    sent = opened()
    sent.send(Message(Kind.REQUEST, OPERATIONS[number], b"{}"), 0)
    assert sent.outgoing() == frames.encode(DataAck(0, number, b"{}"))


@pytest.mark.parametrize("number", [ENVELOPE, *OPERATIONS])
def test_without_the_profile_no_type_is_reserved(number: int) -> None:
    payload = make_envelope("a/b", topics_body(n7="x"), None) if number == ENVELOPE else topics_body(n7="x")
    session = opened(profile=False)
    (message,) = messages_of(session.receive(frames.encode(DataAck(1, number, payload)), 0))
    assert (message.topic, message.body, message.content_type) == (f"hsp/{number}", payload, None)
    assert session.topic_numbers() == {}


@pytest.mark.parametrize(("role", "profile"), [(Role.CLIENT, True), (Role.CLIENT, False), (Role.SERVER, False)])
def test_numbers_stand_for_topics_in_both_directions(role: Role, profile: bool) -> None:
    session = HSP.session(role, HSP.settings({"profile": profile}), topics={7: "sensors/kitchen"})
    (event,) = messages_of(session.receive(frames.encode(Data(7, b"x")), 0))
    session.send(Message(Kind.EVENT, "sensors/kitchen", b"y"), 0)
    assert event.topic == "sensors/kitchen"
    assert session.outgoing() == frames.encode(Data(7, b"y"))


def test_a_server_writes_envelopes_until_its_peer_has_named_the_numbers() -> None:
    session = opened(topics={7: "sensors/kitchen"})
    event = Message(Kind.EVENT, "sensors/kitchen", b"y")
    (read,) = messages_of(session.receive(frames.encode(Data(7, b"x")), 0))
    assert read.topic == "sensors/kitchen"
    session.send(event, 0)
    assert session.outgoing() == frames.encode(Data(ENVELOPE, make_envelope("sensors/kitchen", b"y", None)))
    session.receive(frames.encode(DataAck(1, 0xFD05, topics_body(n9="sensors/kitchen"))), 0)
    session.send(event, 0)
    assert session.outgoing() == frames.encode(Data(9, b"y"))


# Envelopes


def test_the_layout_of_an_envelope() -> None:
    assert make_envelope("ä", b"body", "text/plain") == b"\x00\x02" + "ä".encode() + b"\x0a" + b"text/plain" + b"body"
    assert make_envelope("", b"", None) == b"\x00\x00\x00"


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.binary(max_size=50),
    st.one_of(st.none(), st.text(st.characters(codec="ascii"), min_size=1, max_size=255)),
)
def test_an_envelope_opens_to_what_was_put_in(topic: str, body: bytes, content_type: str | None) -> None:
    assert open_envelope(make_envelope(topic, body, content_type)) == (topic, body, content_type)


@given(st.binary(max_size=40))
def test_what_opens_is_what_would_be_made(payload: bytes) -> None:
    opened_ = open_envelope(payload)
    if opened_ is not None:
        topic, body, content_type = opened_
        assert make_envelope(topic, body, content_type) == payload


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", b"\0\0", b"\0\1a", b"\0\2a\0", b"\0\1a\1", b"\0\1\xff\0x", b"\0\1a\1\xffx", b"\xff\xff" + bytes(9)],
)
def test_a_payload_that_does_not_fit_is_ordinary_data_of_its_type(payload: bytes) -> None:
    assert open_envelope(payload) is None
    assert Names().read(ENVELOPE, payload) == ("hsp/64768", payload, None)


def test_an_envelope_for_the_topic_of_its_own_type_is_ordinary_data() -> None:
    own = make_envelope("hsp/64768", b"x", None)
    assert Names().read(ENVELOPE, own) == ("hsp/64768", own, None)
    named = make_envelope("wrapped", b"x", None)
    assert Names({ENVELOPE: "wrapped"}).read(ENVELOPE, named) == ("wrapped", named, None)
    assert Names().read(ENVELOPE, named) == ("wrapped", b"x", None)


# Maps


def test_a_map_takes_effect_with_the_next_frame() -> None:
    session = opened(topics={8: "old"})
    stream = Data(7, b"1"), DataAck(1, 0xFD05, topics_body(n7="seven", n8="eight")), Data(7, b"2"), Data(8, b"3")
    run = joined(session.receive(b"".join(map(frames.encode, stream)), 0))
    assert [m.topic for m in run.messages] == ["hsp/7", MAP, "seven", "eight"]
    assert session.topic_numbers() == {7: "seven", 8: "eight"}
    assert session.owes(1)


def test_a_map_adds_to_what_is_named_already() -> None:
    session = opened(topics={8: "old"})
    session.receive(frames.encode(DataAck(1, 0xFD05, topics_body(n7="seven"))), 0)
    assert session.topic_numbers() == {7: "seven", 8: "old"}


def test_a_map_we_send_counts_for_us_too() -> None:
    session = opened()
    session.send(Message(Kind.REQUEST, MAP, topics_body(n7="seven")), 0)
    session.send(Message(Kind.EVENT, "seven", b"x"), 0)
    assert session.outgoing().endswith(frames.encode(Data(7, b"x")))


def test_a_new_map_is_a_new_value() -> None:
    """Who keeps the numbers of a run must not see them change."""
    session = opened(topics={8: "old"})
    before = session.topic_numbers()
    session.receive(frames.encode(DataAck(1, 0xFD05, topics_body(n8="new"))), 0)
    assert (before, session.topic_numbers()) == ({8: "old"}, {8: "new"})


BAD_MAPS = [
    b"",
    b"no json",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b"7",
    b'{"topics": []}',
    b'{"topics": {"x": "a"}}',
    b'{"topics": {"-1": "a"}}',
    b'{"topics": {"65536": "a"}}',
    b'{"topics": {"07": "a"}}',
    b'{"topics": {" 7": "a"}}',
    b'{"topics": {"7": 7}}',
    b'{"topics": {"7": null}}',
    b'{"topics": {"7": ""}}',
    b'{"topics": {"7": "$hub/subscribe"}}',
    b'{"topics": {"64768": "a"}}',
    b'{"topics": {"64783": "a"}}',
    b'{"topics": {"7": "good", "70000": "bad"}}',
    b"[" * 8000,
]


@pytest.mark.parametrize("body", BAD_MAPS, ids=lambda body: body[:30])
def test_a_map_that_is_none_changes_nothing_and_is_counted(body: bytes) -> None:
    session = opened(topics={8: "old"})
    run = joined(session.receive(frames.encode(DataAck(1, 0xFD05, body)), 0))
    assert [m.topic for m in run.messages] == [MAP]
    assert session.topic_numbers() == {8: "old"}
    assert session.counters == {"hsp.map.invalid": 1}
    assert session.violation is None


def test_maps_have_a_limit_on_their_number_their_size_and_the_topics_in_all() -> None:
    session = opened()
    for number in range(300):
        body = b'{"topics": {"%d": "topic/%d"}}' % (number, number)
        session.receive(frames.encode(DataAck(number, 0xFD05, body)), 0)
    assert len(session.topic_numbers()) == 256
    assert session.counters == {"hsp.map.too-many": 44}
    session = opened()
    for first in range(0, 400, 100):
        body = json.dumps({"topics": {str(number): "t" for number in range(first, first + 100)}}).encode()
        session.receive(frames.encode(DataAck(first, 0xFD05, body)), 0)
    assert len(session.topic_numbers()) == 200
    assert session.counters == {"hsp.map.too-many": 2}
    session = opened()
    for number in range(MAX_MAPS + 5):
        session.receive(frames.encode(DataAck(number, 0xFD05, b'{"topics": {"1": "t"}}')), 0)
    assert session.counters == {"hsp.map.invalid": 5}


@given(st.dictionaries(st.integers(0, 0xFCFF), st.text(min_size=1, max_size=9).filter(lambda t: not t.startswith("$"))))
def test_every_map_of_numbers_to_topics_is_understood(named: dict[int, str]) -> None:
    body = json.dumps({"topics": {str(number): topic for number, topic in named.items()}}).encode()
    assert parse_map(body) == named


@pytest.mark.parametrize("number", [0, 64767, 64784, 65535])
def test_numbers_around_the_reserved_ones_can_be_named(number: int) -> None:
    assert parse_map(json.dumps({"topics": {str(number): "a"}}).encode()) == {number: "a"}


@given(st.integers(0, 65535))
def test_a_number_is_read_from_its_decimal_text(number: int) -> None:
    assert parse_number(str(number)) == number


@given(st.one_of(st.text(max_size=8), st.integers(65536, 10**30).map(str), st.integers(max_value=-1).map(str)))
def test_a_number_has_one_way_to_be_written(text: str) -> None:
    number = parse_number(text)
    assert number is None or (str(number) == text and 0 <= number <= 65535)


def test_hub_topics_begin_with_the_prefix_of_the_contract() -> None:
    assert all(topic.startswith(HUB_PREFIX) for topic in OPERATIONS.values())


def test_the_example_on_the_page_of_the_profile() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hub-profile.md").read_text()
    section = page.partition("\n## hsp\n")[2].partition("\n## ")[0]
    example = section.split("```")[1]
    written = "".join(word for line in example.splitlines() for word in line[:46].partition("  " * 4)[0].split())
    session = HSP.session(Role.CLIENT, HSP.settings())
    session.send(Message(Kind.REQUEST, "$hub/subscribe", b'{"topic":"sensors/#"}'), 0)
    session.send(Message(Kind.EVENT, "a/b", b"21", content_type="text/plain"), 0)
    assert session.outgoing().hex() == written


def test_connections_with_the_same_map_share_their_names_as_long_as_one_of_them_lasts() -> None:
    def learned(*maps: dict[str, str]) -> HspSession:
        session = HspSession(Role.SERVER, HSP.settings({"profile": True}))
        session.connected(0.0)
        for number, names in enumerate(maps):
            body = json.dumps({"topics": names}).encode()
            session.receive(frames.encode(DataAck(number, MAP_TYPE, body)), 0.0)
        return session

    one, same = learned({"7": "a", "8": "b"}), learned({"7": "a"}, {"8": "b"})
    other = learned({"7": "b", "8": "a"})
    assert one.names is same.names and one.event_style == same.event_style
    assert other.names is not one.names and other.event_style != one.event_style
    assert (one.names.topic(7), other.names.topic(7)) == ("a", "b")
    held = weakref.ref(one.names)
    del one, same
    gc.collect()
    assert held() is None
