"""Large messages: read and written by another thread, in order, without holding up the loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wireloom
from tests.protocols.reading import joined, messages_of
from tests.protocols.wolpertinger.strategies import mutated_stream, stream
from tests.protocols.wolpertinger.talk import CALL_ID, call, documents, line, opened, pair, results, said
from tests.protocols.wolpertinger.test_components import URL, Everything
from wireloom.model import Kind, LimitExceeded, Message, PeerClosed
from wireloom.peers.components import Components
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.wolpertinger import layer1, transmission
from wireloom.protocols.wolpertinger.frames import Data
from wireloom.protocols.wolpertinger.layer2 import Error, RemoteMethodCall
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.protocols.wolpertinger.values import Value

LARGE = Value("string", "x" * 50_000)
JSON = "application/json"


def large_request(topic: str = "Test.Echo") -> Message:
    return Message(Kind.REQUEST, topic, json.dumps([LARGE.data]).encode(), content_type=JSON)


def working(role: Role = Role.SERVER, **settings: object) -> WolpertingerSession:
    session = opened(role, **settings)
    session.enable_work()
    return session


def do_work(session: WolpertingerSession, now: float = 0.0) -> list[Message]:
    """Do all there is to do; what came of it."""
    found: list[Message] = []
    while (work := session.work()) is not None:
        assert session.work() is None, "one at a time"
        found += messages_of(session.worked(work(), now))
    return found


def test_what_follows_a_large_message_waits_for_it() -> None:
    server = working(gzip_from=0)
    data = line(call("Test", "Large", LARGE), 1) + line(call("Test", "Small", call_id="0" + CALL_ID[1:]), 2)
    run = joined(server.receive(b"result:0;message_id:9;\n" + data, 0.0))
    assert not run.messages
    assert run.count == 1
    assert not messages_of(server.receive(line(call("Test", "Later", call_id="1" + CALL_ID[1:]), 3)[:50], 0.0))
    assert not messages_of(server.receive(line(call("Test", "Later", call_id="1" + CALL_ID[1:]), 3)[50:], 0.0))
    assert server.outgoing() == b""
    assert [each.topic for each in do_work(server)] == ["Test.Large", "Test.Small", "Test.Later"]
    assert results(server.outgoing()) == [(1, 0), (2, 0), (3, 0)]


def test_what_is_said_after_a_large_message_follows_it() -> None:
    client = working(Role.CLIENT, gzip_from=0, split=10**6)
    client.send(large_request("Test.A"), 0.0)
    client.send(Message(Kind.REQUEST, "Test.B"), 0.0)
    client.send(large_request("Test.C"), 0.0)
    client.send(Message(Kind.REQUEST, "Test.D"), 0.0)
    assert client.outgoing() == b""
    do_work(client)
    assert [each.method for each in documents(client.outgoing())] == ["A", "B", "C", "D"]  # type: ignore[union-attr]


def test_a_large_answer_is_written_elsewhere_and_closing_waits_for_it() -> None:
    server = working(gzip_from=0, split=10**6)
    server.receive(line(call("Test", "Echo")), 0.0)
    server.send(
        Message(Kind.RESPONSE, body=json.dumps(LARGE.data).encode(), correlation_id=CALL_ID, content_type=JSON), 0.0
    )
    server.outgoing()
    server.close(0.0)
    assert server.state is SessionState.CLOSING
    do_work(server)
    assert server.state is SessionState.CLOSED
    (answer,) = documents(server.outgoing())
    assert answer.value == LARGE  # type: ignore[union-attr]


def test_the_end_of_the_input_waits_for_what_came_before_it() -> None:
    server = working(gzip_from=0)
    server.receive(line(call("Test", "Large", LARGE)), 0.0)
    server.end_of_input(0.0)
    assert server.state is SessionState.OPEN
    assert [each.topic for each in do_work(server)] == ["Test.Large"]
    assert server.state is SessionState.CLOSING
    server.send(Message(Kind.RESPONSE, correlation_id=CALL_ID), 0.0)
    assert server.state is SessionState.CLOSED


def test_what_cannot_be_written_is_told_later() -> None:
    client = working(Role.CLIENT, max_message=100_000)
    with pytest.raises(LimitExceeded, match="max_message"):
        client.send(Message(Kind.REQUEST, "A.B", b"x" * 100_001), 0.0)
    # The body fits, the XML it becomes does not.
    asked = client.send(Message(Kind.REQUEST, "A.B", b"&" * 90_000, content_type="text/plain"), 0.0)
    (failed,) = do_work(client)
    assert (failed.kind, failed.correlation_id) == (Kind.ERROR, asked.id)
    assert "max_message" in failed.body.decode()
    server = working(max_message=100_000)
    server.receive(line(call("Test", "Echo")), 0.0)
    server.outgoing()
    server.send(Message(Kind.RESPONSE, body=b"&" * 90_000, correlation_id=CALL_ID, content_type="text/plain"), 0.0)
    do_work(server)
    assert documents(server.outgoing()) == [Error("Test", 100, CALL_ID)]


def test_a_large_event_and_a_large_carried_request() -> None:
    both = pair()
    both.client.enable_work()
    both.server.enable_work()
    body = json.dumps({"large": LARGE.data}).encode()
    both.client.send(Message(Kind.EVENT, "a/b", body, content_type=JSON), 0.0)
    both.client.send(Message(Kind.REQUEST, "c/d", body, content_type=JSON), 0.0)
    do_work(both.client)
    _, early = both.settle()
    event, request = [*early, *do_work(both.server)]
    assert (event.kind, event.topic, event.body) == (Kind.EVENT, "a/b", body)
    both.server.send(Message(Kind.RESPONSE, body=body, correlation_id=request.id, content_type=JSON), 0.0)
    do_work(both.server)
    early, _ = both.settle()
    (answer,) = [*early, *do_work(both.client)]
    assert (answer.body, answer.content_type) == (body, JSON)


def event(body: bytes, topic: str = "a/b") -> Message:
    return Message(Kind.EVENT, topic, body, content_type="text/plain")


def methods(data: bytes) -> list[str]:
    return [each.method if isinstance(each, RemoteMethodCall) else "answer" for each in documents(data)]


def test_an_event_passes_a_large_answer_that_is_being_written() -> None:
    server = working(gzip_from=0, split=10**6)
    server.receive(line(call("Test", "Echo")), 0.0)
    server.send(
        Message(Kind.RESPONSE, body=json.dumps(LARGE.data).encode(), correlation_id=CALL_ID, content_type=JSON), 0.0
    )
    server.outgoing()
    pack = server.packing(event(b"x" * 50_000))
    assert pack is not None
    server.send_event(event(b"x" * 50_000), pack(), 0.0)
    assert server.packing(event(b"small")) is None
    server.send_event(event(b"small"), None, 0.0)
    first = server.outgoing()
    assert methods(first) == ["Event", "Event"]
    do_work(server)
    last = server.outgoing()
    assert methods(last) == ["answer"]
    numbers = [each.message_id for each in said(first + last)]
    assert numbers == list(range(numbers[0], numbers[0] + 3)), "ids count up in the order of the lines"


def test_an_event_that_was_packed_waits_for_its_confirmation_from_when_it_is_sent() -> None:
    server = working(gzip_from=0, split=20_000)
    pack = server.packing(event(b"x" * 50_000))
    assert pack is not None
    packed = pack()
    assert server.deadline() is None
    server.send_event(event(b"x" * 50_000), packed, 100.0)
    lines = server.outgoing_frames()
    assert [server.messages_in(each) for each in lines] == [0] * (len(lines) - 1) + [1]
    assert server.deadline() == 120.0
    server.expire(120.0)
    assert server.outgoing_frames() == lines


def test_an_event_packed_before_the_key_exchange_is_encrypted_if_it_is_sent_after_it() -> None:
    both = pair({"authenticate": 2})
    both.server.enable_work()
    pack = both.server.packing(event(b"x" * 50_000))
    assert pack is not None
    packed = pack()
    both.settle()
    assert both.server.trust == 2
    both.server.send_event(event(b"x" * 50_000), packed, 0.0)
    assert {each.encryption for each in said(both.server.outgoing()) if isinstance(each, Data)} == {"aes"}


def test_a_session_is_full_until_the_peer_confirms_what_it_got() -> None:
    server = working(max_unconfirmed=2)
    server.send_event(event(b"1"), None, 0.0)
    assert not server.is_full
    server.send_event(event(b"2"), None, 0.0)
    assert server.is_full
    with pytest.raises(LimitExceeded, match="max_unconfirmed"):
        server.send(event(b"3"), 0.0)
    first = next(each for each in said(server.outgoing()) if isinstance(each, Data))
    server.receive(b"result:0;message_id:%d;\n" % first.message_id, 1.0)
    assert not server.is_full


def test_events_are_not_packed_for_a_peer_that_is_gone() -> None:
    server = working()
    server.close(0.0)
    with pytest.raises(PeerClosed):
        server.packing(event(b"x" * 50_000))
    with pytest.raises(PeerClosed):
        server.send_event(event(b"small"), None, 0.0)


def test_a_large_ciphertext_that_is_wrong_is_answered_as_late_as_a_small_one() -> None:
    both = pair({"authenticate": 2})
    both.settle()
    both.server.enable_work()
    sealed = layer1.pack(b"x" * 50_000, 77, both.client.settings, both.client._cipher, compress=False)
    lines = b"".join(map(transmission.frames.encode, sealed))
    both.server.receive(lines, 10.0)
    do_work(both.server, 10.2)
    assert both.server.outgoing() == b""
    assert both.server.deadline() == 10.25


def test_the_end_of_the_connection_ends_the_work() -> None:
    server = working(gzip_from=0)
    server.receive(line(call("Test", "Large", LARGE)), 0.0)
    work = server.work()
    assert work is not None
    server.state = SessionState.CLOSED
    assert joined(server.worked(work(), 0.0)).count == 0
    assert server.work() is None


@given(st.one_of(stream(), mutated_stream()), st.lists(st.integers(0, 3000), max_size=6), st.integers(0, 5))
def test_the_same_comes_out_whether_work_is_handed_out_or_not(data: bytes, cuts: list[int], patience: int) -> None:
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]

    def talk(handed_out: bool) -> tuple[object, ...]:
        server = opened()
        if handed_out:
            server.enable_work()
        found: list[Message] = []
        refused: list[tuple[str, bytes]] = []
        kept, count = b"", 0
        runs = []
        for turn, (start, end) in enumerate(itertools.pairwise(edges)):
            runs.append(joined(server.receive(data[start:end], 0.0)))
            if turn % (patience + 1) == 0 and (work := server.work()) is not None:
                runs.append(joined(server.worked(work(), 0.0)))
        while (work := server.work()) is not None:
            runs.append(joined(server.worked(work(), 0.0)))
        for run in runs:
            found += run.messages
            refused += [(each.clause, each.data) for each in run.refused]
            kept += bytes(run.data)
            count += run.count
        return found, refused, kept, count, server.outgoing(), server.counters

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transmission, "LARGE", 60)
        assert talk(True) == talk(False)


async def test_the_loop_turns_while_a_large_message_is_worked_on() -> None:
    """A list of many numbers takes a second to read; meanwhile others are answered."""
    numbers = [random.Random(1).randrange(10**6) for _ in range(100_000)]
    async with wireloom.serve(URL, Components(Everything())) as server:
        async with wireloom.connect(server.url) as large, wireloom.connect(server.url) as small:
            task = asyncio.create_task(large.call("Test", "Echo", numbers))
            answered = 0
            while not task.done():
                assert await small.call("Test", "Add", 1, 2) == 3
                answered += 1
            assert await task == numbers
    assert answered > 5


async def test_large_calls_in_both_directions_at_once_keep_their_answers() -> None:
    async with wireloom.serve(URL, Components(Everything())) as server, wireloom.connect(server.url) as peer:
        texts = [str(number) * 20_000 for number in range(10)]
        answers = await asyncio.gather(*(peer.call("Test", "Echo", text) for text in texts))
        assert answers == texts
