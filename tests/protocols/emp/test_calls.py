"""Large reads of plain requests, or plain responses: passed on as bytes they mean what they mean one by one."""

from __future__ import annotations

import random

import pytest

from tests.protocols.test_publishes import Pair
from wireloom.model import Kind, Message
from wireloom.protocols.contract import PUBLISH, Calls, Role, Run, Session
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
    assert list(map(str, calls.numbers)) == [each.id for each in slow.messages]
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
    numbers = there.fast.relay(calls)
    expected = [one_by_one.fast.ask(each, 1.0) for each in calls.messages()]
    assert list(map(str, numbers)) == expected
    written = there.fast.outgoing()
    assert written == one_by_one.fast.outgoing()
    assert there.fast.sent == one_by_one.fast.sent
    assert [each.id for each in there.fast.outstanding()] == [each.id for each in one_by_one.fast.outstanding()]

    arrived = there.client.receive(written, 1.0).messages
    for each in arrived:
        there.client.respond(each, each.body * 2, None, 1.0)
    back = calls_of(there.fast.receive(there.client.outgoing(), 2.0))
    assert not back.asks
    assert back.numbers == numbers
    assert here.fast.can_relay(back)
    assert isinstance(calls.numbers, range)
    here.fast.relay_back(back, calls.numbers)
    answers = here.client.receive(here.fast.outgoing(), 2.0).messages
    assert [(each.correlation_id, each.body, each.topic, each.status) for each in answers] == [
        (str(number), body * 2, "math/add", "done") for number, body in zip(calls.numbers, MANY, strict=True)
    ]
    assert here.client.outstanding() == []
    assert len(there.fast.outstanding()) == 1


def test_answers_in_any_order_are_read_together_and_told_apart() -> None:
    here, there = Pair("emp"), Pair("emp")
    there.fast.relay(calls_of(here.hear(asked(here, requests(*MANY)))[0]))
    arrived = list(there.client.receive(there.fast.outgoing(), 1.0).messages)
    random.Random(1).shuffle(arrived)
    for each in arrived[:30]:
        there.client.respond(each, each.body, None, 1.0)
    back = calls_of(there.fast.receive(there.client.outgoing(), 2.0))
    assert not isinstance(back.numbers, range)
    assert [(each.correlation_id, each.body) for each in back.messages()] == [
        (each.id, each.body) for each in arrived[:30]
    ]
    assert {each.id for each in there.fast.outstanding()} == {each.id for each in arrived[30:]}


@pytest.mark.parametrize("seed", range(40))
def test_requests_that_are_passed_on_and_those_that_are_not_do_not_disturb_each_other(seed: int) -> None:
    """The one session passes on what it can, the other reads and writes the same one by one: nobody sees a difference."""
    chance = random.Random(seed)
    pair = Pair("emp", max_requests=150)
    owed: list[Message] = []
    """What the two sessions at hand owe answers to."""
    asked_there: list[Message] = []
    """What their peers owe answers to."""
    for _ in range(60):
        match chance.randrange(5):
            case 0:
                few = min(chance.choice((1, 2, 40)), 150 - len(owed))
                fast, slow = pair.hear(asked(pair, requests(*MANY[:few])))
                assert (fast.calls.messages() if fast.calls else fast.messages) == slow.messages
                owed += slow.messages
            case 1 if owed:
                answered = owed[: chance.randrange(1, len(owed) + 1)]
                chance.shuffle(answered)
                for each in answered[: chance.randrange(1, 4)]:
                    owed.remove(each)
                    pair.fast.respond(each, b"one", None, 1.0)
                    pair.slow.respond(each, b"one", None, 1.0)
            case 2 if len(owed) >= 40:
                # Answers from far away, to the oldest that follow each other.
                first = int(owed[0].id or "")
                count = next((at for at, each in enumerate(owed) if int(each.id or "") != first + at), len(owed))
                if count >= 4:
                    back = _answers(count)
                    if pair.fast.can_relay(back):
                        pair.fast.relay_back(back, range(first, first + count))
                        for each, answer in zip(owed[:count], back.messages(), strict=True):
                            pair.slow.respond(each, answer.body, None, 1.0)
                        del owed[:count]
            case 3:
                calls = _requests(chance.randrange(8, 40))
                if pair.fast.can_relay(calls):
                    numbers = pair.fast.relay(calls)
                    assert [pair.slow.ask(each, 1.0) for each in calls.messages()] == list(map(str, numbers))
                    asked_there += [each.with_(id=str(n)) for each, n in zip(calls.messages(), numbers, strict=True)]
            case 4 if asked_there:
                chosen = asked_there[: chance.randrange(1, len(asked_there) + 1)]
                if chance.random() < 0.5:
                    chance.shuffle(chosen)
                for each in chosen:
                    asked_there.remove(each)
                data = b"".join(_related(0, int(each.id or "")) for each in chosen)
                fast, slow = pair.hear(data)
                assert (fast.calls.messages() if fast.calls else fast.messages) == slow.messages
        written = pair.fast.outgoing()
        assert written == pair.slow.outgoing()
        pair.client.receive(written, 1.0)
        pair.client.outgoing()
        assert pair.fast.violation is None
        assert pair.slow.violation is None
        if chance.random() < 0.2:
            assert {e.id for e in pair.fast.outstanding()} == {e.id for e in pair.slow.outstanding()}
    assert {e.id for e in pair.fast.outstanding()} == {e.id for e in asked_there}


def _requests(count: int) -> Calls:
    """So many requests, read on a connection that is of no further concern."""
    other = Pair("emp")
    return calls_of(other.hear(asked(other, requests(*[b"%064d" % number for number in range(count)])))[0])


def _answers(count: int) -> Calls:
    """So many answers."""
    other = Pair("emp")
    for server in (other.fast, other.slow):
        for message in requests(*[b""] * count):
            server.ask(message, 1.0)
    other.slow.outgoing()
    for each in other.client.receive(other.fast.outgoing(), 1.0).messages:
        other.client.respond(each, b"%099d" % int(each.id or ""), None, 1.0)
    return calls_of(other.hear(other.client.outgoing())[0])


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


def test_an_id_that_is_still_unanswered_is_not_taken_again_in_a_row_either() -> None:
    pair = Pair("emp")
    pair.hear(_related(0x80, 7))
    pair.hear(b"".join(_related(0x80, number) for number in range(1, 40)))
    assert pair.fast.violation is not None
    assert str(pair.fast.violation) == str(pair.slow.violation)
    assert pair.fast.outgoing() == pair.slow.outgoing()


def test_nor_by_a_publish() -> None:
    pair = Pair("emp")
    pair.hear(b"".join(_related(0x80, number) for number in range(1, 40)))
    other = Pair("emp")
    for _ in range(60):
        other.client.send(Message(Kind.REQUEST, PUBLISH + "a", b"x" * 64), 1.0)
    pair.hear(other.client.outgoing())
    assert pair.fast.violation is not None
    assert str(pair.fast.violation) == str(pair.slow.violation)


@pytest.mark.parametrize("size", [1, 7, 50, 130, 400, 1000])
def test_answers_to_what_was_passed_on_may_come_in_any_pieces(size: int) -> None:
    here, there = Pair("emp"), Pair("emp")
    calls = calls_of(here.hear(asked(here, requests(*MANY)))[0])
    numbers = there.fast.relay(calls)
    data = b"".join(_related(0, number, b"%d" % number) for number in numbers)
    found: list[Message] = []
    for start in range(0, len(data), size):
        run = there.fast.receive(data[start : start + size], 1.0)
        found += run.calls.messages() if run.calls is not None else run.messages
    assert there.fast.violation is None
    assert [(each.correlation_id, each.body) for each in found] == [(str(n), b"%d" % n) for n in numbers]
    assert there.fast.outstanding() == []


def test_large_ids_are_ids() -> None:
    pair = Pair("emp")
    numbers = [2**63 - 1, 2**62, 1, 2**40]
    calls = calls_of(pair.hear(b"".join(_related(0x80, number, b"y" * 200) for number in numbers))[0])
    assert calls.numbers == numbers
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
