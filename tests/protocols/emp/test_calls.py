"""Large reads of plain requests, or plain responses: passed on as bytes they mean what they mean one by one."""

from __future__ import annotations

import random

import pytest

from tests.protocols.test_publishes import Pair
from wireloom.model import Kind, Message
from wireloom.protocols.contract import Calls, Role, Run, Session
from wireloom.protocols.emp import frames
from wireloom.protocols.registry import protocol


def requests(*bodies: bytes, topic: str = "math/add", kind: str | None = None) -> list[Message]:
    return [Message(Kind.REQUEST, topic, body, content_type=kind) for body in bodies]


def asked(pair: Pair, messages: list[Message]) -> bytes:
    for message in messages:
        pair.client.ask(message, 1.0)
    return pair.client.outgoing()


def calls_of(run: Run) -> Calls:
    assert run.calls is not None
    assert not run.messages
    assert run.bulk is None
    return run.calls


MANY = [b"%d" % number * (number % 7) for number in range(40)]


@pytest.mark.parametrize("kind", [None, "application/json"])
def test_a_read_of_requests_says_what_it_says_one_by_one(kind: str | None) -> None:
    pair = Pair("emp")
    data = asked(pair, requests(*MANY, kind=kind))
    fast, slow = pair.hear(data)
    calls = calls_of(fast)
    assert calls.asks
    assert calls.topic == "math/add"
    assert calls.messages() == slow.messages
    assert list(calls.ids) == [each.id for each in slow.messages]
    assert fast.count == slow.count == len(MANY)
    assert bytes(fast.data) == slow.data == data


def test_requests_get_ids_of_the_connection_they_go_to_and_answers_come_back_under_their_own() -> None:
    here, there, one_by_one = Pair("emp"), Pair("emp"), Pair("emp")
    for pair in (there, one_by_one):
        # Ids are in use there already.
        pair.fast.ask(requests(b"")[0], 1.0)
        pair.client.receive(pair.fast.outgoing(), 1.0)
    calls = calls_of(here.hear(asked(here, requests(*MANY)))[0])
    assert there.fast.can_relay(calls)
    ids = there.fast.relay(calls)
    expected = [one_by_one.fast.ask(each, 1.0) for each in calls.messages()]
    assert list(ids) == expected
    written = there.fast.outgoing()
    assert written == one_by_one.fast.outgoing()
    assert there.fast.sent == one_by_one.fast.sent
    assert [each.id for each in there.fast.outstanding()] == [each.id for each in one_by_one.fast.outstanding()]

    arrived = there.client.receive(written, 1.0).messages
    random.Random(1).shuffle(arrived := list(arrived))
    for each in arrived:
        there.client.respond(each, each.body * 2, None, 1.0)
    back = calls_of(there.fast.receive(there.client.outgoing(), 2.0))
    assert not back.asks
    assert list(back.ids) == [each.id for each in arrived]
    own = dict(zip(ids, calls.ids, strict=True))
    assert here.fast.can_relay(back)
    here.fast.relay_back(back, [own[each] for each in back.ids])
    answers = here.client.receive(here.fast.outgoing(), 2.0).messages
    assert [(each.correlation_id, each.body, each.topic, each.status) for each in answers] == [
        (own[each.id or ""], each.body * 2, "math/add", "done") for each in arrived
    ]
    assert here.client.outstanding() == []
    assert len(there.fast.outstanding()) == 1


def test_what_was_passed_on_may_still_be_answered_one_by_one() -> None:
    pair = Pair("emp")
    calls = calls_of(pair.hear(asked(pair, requests(*MANY)))[0])
    for message in calls.messages():
        pair.fast.respond(message, b"", None, 1.0)
    assert len(pair.client.receive(pair.fast.outgoing(), 2.0).messages) == len(MANY)
    pair.fast.close(3.0)
    assert pair.client.receive(pair.fast.outgoing(), 3.0).messages[-1].kind is Kind.CLOSE


def test_parts_are_what_they_are_of_the_whole() -> None:
    here, there = Pair("emp"), Pair("emp")
    calls = calls_of(here.hear(asked(here, requests(*MANY)))[0])
    for which in (slice(1, None, 3), slice(5, 9), slice(0, 40)):
        part = calls.part(which)
        assert part.messages() == calls.messages()[which]
        there.fast.relay(part)
        arrived = there.client.receive(there.fast.outgoing(), 1.0).messages
        assert [each.body for each in arrived] == MANY[which]


@pytest.mark.parametrize(
    "extra",
    [
        requests(b"1", topic="other"),
        requests(b"1", kind="text/plain"),
        requests(b"1", topic="größe"),
        [Message(Kind.EVENT, "math/add", b"1")],
        [Message(Kind.REQUEST, None, b"1")],
        [Message(Kind.OTHER, body=b"1", attributes={"type": "200"})],
    ],
    ids=lambda each: f"{each[0].kind} {each[0].topic} {each[0].content_type}",
)
@pytest.mark.parametrize("place", [0, 20, 40])
def test_a_read_with_anything_else_in_it_is_read_one_by_one(extra: list[Message], place: int) -> None:
    pair = Pair("emp")
    messages = requests(*MANY)
    messages[place:place] = extra
    for message in messages:
        pair.client.send(message, 1.0)
    fast, slow = pair.hear(pair.client.outgoing())
    assert fast.calls is None
    assert fast.messages == slow.messages
    assert len(slow.messages) == 41


@pytest.mark.parametrize("topic", ["$hub/subscribe", "$else"])
def test_what_is_for_the_hub_is_read_one_by_one(topic: str) -> None:
    pair = Pair("emp")
    fast, slow = pair.hear(asked(pair, requests(*MANY, topic=topic)))
    assert fast.calls is None
    assert fast.messages == slow.messages


@pytest.mark.parametrize("size", [1, 11, 27, 28, 60, 200, 999])
def test_reads_may_end_inside_a_frame(size: int) -> None:
    pair = Pair("emp")
    data = asked(pair, requests(*(b"%064d" % number for number in range(100))))
    heard: list[Message] = []
    for start in range(0, len(data), len(data) // 3 + size):
        fast, _ = pair.hear(data[start : start + len(data) // 3 + size])
        heard += fast.messages if fast.calls is None else fast.calls.messages()
    assert [each.body for each in heard] == [b"%064d" % number for number in range(100)]
    assert pair.fast.unread() == b""


def _related(asks: int, number: int, body: bytes = b"x" * 40) -> bytes:
    block = b"\x00\x00\x00\x0c\x80\x00\x00\x00\x01\x00\x01a"
    head = (28 + len(block) + len(body)).to_bytes(4) + b"\x05\x80\x00\x00"
    return head + b"\x00\x00\x00\x14\x00\x80\x00\x00" + bytes((asks, 0, 0, 0)) + number.to_bytes(8) + block + body


@pytest.mark.parametrize(
    "numbers",
    [[*range(1, 30), 7], [*range(1, 30), 0], [*range(1, 30), 5000, 5000], [*range(1, 200)]],
    ids=["used", "zero", "twice", "too many"],
)
def test_requests_against_the_rules_are_refused_as_one_by_one(numbers: list[int]) -> None:
    pair = Pair("emp", max_requests=100)
    run = pair.hear(_related(0x80, 7) if numbers[-1] == 7 else b"")
    assert run[0].messages == run[1].messages
    pair.hear(b"".join(_related(0x80, number) for number in numbers))
    assert pair.fast.violation is not None
    assert str(pair.fast.violation) == str(pair.slow.violation)
    assert pair.fast.outgoing() == pair.slow.outgoing()
    assert pair.fast.refused == pair.slow.refused


def test_large_ids_are_ids() -> None:
    pair = Pair("emp")
    numbers = [2**63 - 1, 2**62, 1, 2**40]
    calls = calls_of(pair.hear(b"".join(_related(0x80, number, b"y" * 200) for number in numbers))[0])
    assert list(calls.ids) == list(map(str, numbers))
    pair.hear(b"".join(_related(0x80, number, b"y" * 200) for number in (2**63, 2**64 - 1, 5, 6)))
    assert pair.fast.violation is None
    assert pair.fast.state is pair.slow.state


@pytest.mark.parametrize("numbers", [[*range(1, 30), 99], [*range(1, 30), 3]], ids=["unknown", "twice"])
def test_answers_against_the_rules_are_refused_as_one_by_one(numbers: list[int]) -> None:
    pair = Pair("emp")
    for server in (pair.fast, pair.slow):
        for message in requests(*MANY):
            server.ask(message, 1.0)
        server.outgoing()
    pair.hear(b"".join(_related(0, number) for number in numbers))
    assert pair.fast.violation is not None
    assert str(pair.fast.violation) == str(pair.slow.violation)
    assert pair.fast.outgoing() == pair.slow.outgoing()


def test_answers_without_a_topic_are_read_one_by_one() -> None:
    pair = Pair("emp")
    for server in (pair.fast, pair.slow):
        for message in requests(*MANY):
            server.ask(message, 1.0)
        server.outgoing()
    data = b"".join(
        frames.encode(
            frames.Frame(
                frames.Type.DATA,
                b"z" * 64,
                (frames.Block(frames.Extension.REQUEST_RESPONSE, bytes(4) + number.to_bytes(8)),),
            )
        )
        for number in range(1, 20)
    )
    fast, slow = pair.hear(data)
    assert fast.calls is None
    assert fast.messages == slow.messages
    assert len(fast.messages) == 19


def open_session(**settings: object) -> Session:
    own = protocol("emp")
    session = own.session(Role.SERVER, own.settings(settings))
    session.enable_bulk()
    session.connected(0.0)
    other = own.session(Role.CLIENT, own.settings())
    other.connected(0.0)
    session.receive(other.outgoing(), 0.0)
    session.outgoing()
    return session


def test_nothing_is_passed_on_to_whom_it_is_too_much() -> None:
    pair = Pair("emp")
    calls = calls_of(pair.hear(asked(pair, requests(*MANY)))[0])
    assert open_session().can_relay(calls)
    assert not open_session(max_requests=39).can_relay(calls)
    assert open_session(max_requests=40).can_relay(calls)
    assert not open_session(max_message=1024).can_relay(calls)
    assert not open_session(compress_above=10).can_relay(calls)
    assert not open_session(size_mode="exclusive").can_relay(calls)
    closing = open_session()
    closing.close(1.0)
    assert not closing.can_relay(calls)
    other = protocol("hsp")
    assert not other.session(Role.SERVER, other.settings()).can_relay(calls)
