"""The conversation: confirmations, resends, duplicates, calls and answers, Heartbeats, time."""

from __future__ import annotations

import base64
import itertools
import json
import random
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.reading import joined, messages_of
from tests.protocols.wolpertinger.strategies import documents as any_document
from tests.protocols.wolpertinger.strategies import lines_of, mutated_stream, stream
from tests.protocols.wolpertinger.talk import (
    CALL_ID,
    HELLO,
    Pair,
    call,
    documents,
    line,
    opened,
    pair,
    results,
    said,
    session,
)
from wireloom.model import InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Role, SessionState, decode_stream
from wireloom.protocols.wolpertinger import WOLPERTINGER, WolpertingerSettings, frames, layer2
from wireloom.protocols.wolpertinger.delivery import Seen
from wireloom.protocols.wolpertinger.layer2 import Error, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.refusal import ErrorCode, ResultCode
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.protocols.wolpertinger.values import Value

JSON = "application/json"


def request(topic: str = "Test.Echo", value: object = ("hello",), **attributes: str) -> Message:
    body = json.dumps(list(value) if isinstance(value, tuple) else value).encode()
    return Message(Kind.REQUEST, topic, body, content_type=JSON, attributes=attributes)


def response(to: Message, value: object = None, **attributes: str) -> Message:
    body = b"" if value is None else json.dumps(value).encode()
    return Message(
        Kind.RESPONSE, to.topic, body, correlation_id=to.id, status="done", content_type=JSON if body else None,
        attributes=attributes,
    )  # fmt: skip


# Delivery confirmation


def test_every_message_is_confirmed_when_it_was_received() -> None:
    server = opened()
    server.receive(line(call("Test", "Echo", HELLO), 17), 0.0)
    assert server.outgoing() == b"result:0;message_id:17;\n"


def test_the_confirmation_of_an_answer_goes_out_with_what_is_said_next_or_soon_by_itself() -> None:
    client = opened(Role.CLIENT)
    first = client.send(request(), 0.0)
    client.outgoing()
    client.receive(line(Response("Test", first.id or ""), 1), 1.0)
    assert client.outgoing() == b""
    assert client.deadline() == 1.01
    client.send(request(), 1.0)
    assert client.outgoing().startswith(b"result:0;message_id:1;\nmessage_id:2;")
    client.receive(line(Error("Test", 1), 2), 2.0)
    assert client.outgoing_frames() == []
    client.expire(2.01)
    assert client.outgoing_frames() == [b"result:0;message_id:2;\n"]
    client.receive(line(Error("Test", 1), 3), 3.0)
    client.close(3.0)
    assert client.outgoing() == b"result:0;message_id:3;\n"


def test_a_confirmation_is_not_confirmed() -> None:
    server = opened()
    for data in (b"result:0;message_id:1;\n", b"result:5;message_id:1;\n", b"result:x;message_id:1;\n"):
        assert not messages_of(server.receive(data, 0.0))
    assert server.outgoing() == b""
    assert server.counters == {"wolpertinger.result.unknown-id": 2}


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"message_id:3;%%%\n", b"result:5;message_id:3;\n"),
        (b"message_id:3;AAA\n", b"result:5;message_id:3;\n"),
        (b"message_id:3;gzip:1;AAAA\n", b"result:5;message_id:3;\n"),
        (b"message_id:3;gzip:1;gzip:1;AAAA\n", b"result:5;message_id:3;\n"),
        (b"message_id:3;fragment_index:4;fragment_count:2;AAAA\n", b"result:3;message_id:3;\n"),
        (b"message_id:3;encryption:rot13;AAAA\n", b"result:4;message_id:3;\n"),
        (b"gzip:1;AAAA\n", b""),
        (b"message_id:x;AAAA\n", b""),
        (b"\n", b""),
        (b"nonsense\n", b""),
    ],
)
def test_what_cannot_be_taken_is_answered_with_its_result_code_and_the_conversation_goes_on(
    data: bytes, answer: bytes
) -> None:
    server = opened()
    run = joined(server.receive(data + line(call("Test", "Echo", HELLO), 9), 0.0))
    assert server.outgoing() == answer + b"result:0;message_id:9;\n"
    assert [message.topic for message in run.messages] == ["Test.Echo"]
    # Of a piece without those before it nobody knows whether it holds credentials.
    shown = data.replace(b";AAAA", b";****") if b"fragment_index:4;" in data else data
    assert [(each.clause in WOLPERTINGER.clauses, each.data) for each in run.refused] == [(True, shown)]
    assert run.data == line(call("Test", "Echo", HELLO), 9)
    assert run.count == 1
    assert server.state is SessionState.OPEN
    assert server.violation is None


def test_a_failed_delivery_fails_the_call() -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    (failed,) = messages_of(client.receive(b"result:5;message_id:1;\n", 0.1))
    assert (failed.kind, failed.correlation_id, failed.status) == (Kind.ERROR, asked.id, "result 5")
    assert not client._waiting


def test_message_ids_count_up_wrap_and_skip_those_that_still_wait() -> None:
    client = opened(Role.CLIENT)
    client._unconfirmed.next_id = 2**31 - 2
    for _ in range(3):
        client.send(request(), 0.0)
    assert [frame.message_id for frame in said(client.outgoing())] == [2**31 - 2, 2**31 - 1, 1]
    client._unconfirmed.next_id = 2**31 - 2
    client.send(request(), 0.0)
    assert [frame.message_id for frame in said(client.outgoing())] == [2]


@pytest.mark.parametrize("unique", [0, 1, 2**31, 2**32 - 1, 2**64 - 1])
def test_message_ids_begin_at_1_because_some_peers_read_them_as_signed_numbers(unique: int) -> None:
    client = opened(Role.CLIENT, unique=unique)
    client.send(request(), 0.0)
    assert [frame.message_id for frame in said(client.outgoing())] == [1]


@pytest.mark.parametrize("message_id", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_every_id_of_32_bits_is_taken_and_confirmed(message_id: int) -> None:
    server = opened()
    (asked,) = messages_of(server.receive(line(call("Test", "Echo", HELLO), message_id), 0.0))
    assert asked.topic == "Test.Echo"
    assert results(server.outgoing()) == [(message_id, 0)]


# Answers that are held back


def test_an_answer_waits_for_the_delay_and_its_confirmation_does_not() -> None:
    server = opened(answer_delay=0.5)
    (asked,) = messages_of(server.receive(line(call("Test", "Echo", HELLO)), 1.0))
    server.send(Message(Kind.RESPONSE, correlation_id=asked.id, body=b'"hello"', content_type="application/json"), 1.0)
    assert server.outgoing() == b"result:0;message_id:1;\n"
    assert server.deadline() == 1.5
    server.expire(1.4)
    assert server.outgoing() == b""
    server.expire(1.5)
    assert [type(each) for each in documents(server.outgoing())] == [Response]
    # The peer has the whole time to confirm it, from when it was sent.
    assert server.deadline() == 1.5 + server.settings.delivery_timeout


def test_what_is_said_after_an_answer_that_waits_stays_behind_it() -> None:
    server = opened(answer_delay=0.5)
    (asked,) = messages_of(server.receive(line(call("Test", "Echo", HELLO)), 1.0))
    server.send(Message(Kind.RESPONSE, correlation_id=asked.id), 1.0)
    server.send(request(), 1.1)
    assert documents(server.outgoing()) == []
    server.expire(1.5)
    assert [type(each) for each in documents(server.outgoing())] == [Response, RemoteMethodCall]
    server.send(request(), 1.6)
    assert [type(each) for each in documents(server.outgoing())] == [RemoteMethodCall]


def test_a_session_that_ends_sends_the_answers_it_held_back() -> None:
    server = opened(answer_delay=0.5)
    (asked,) = messages_of(server.receive(line(call("Test", "Echo", HELLO)), 1.0))
    server.end_of_input(1.0)
    server.send(Message(Kind.RESPONSE, correlation_id=asked.id), 1.1)
    assert server.state is SessionState.CLOSING
    server.expire(1.6)
    assert [type(each) for each in documents(server.outgoing())] == [Response]
    assert server.state is SessionState.CLOSED


# What errors say


@pytest.mark.parametrize(
    ("code", "text"), [(305, b"invalid parameters"), (502, b"item not found"), (401, b"invalid response"), (7, b"")]
)
def test_an_error_reaches_the_caller_with_the_meaning_of_its_code(code: int, text: bytes) -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    (failed,) = messages_of(client.receive(line(Error("Test", code, asked.id)), 0.1))
    assert (failed.kind, failed.status, failed.body) == (Kind.ERROR, str(code), text)
    # Whoever passes it on to another wolpertinger peer says the same code.
    server = opened()
    (owed,) = messages_of(server.receive(line(call("Test", "Echo", HELLO)), 0.2))
    server.send(failed.with_(correlation_id=owed.id), 0.2)
    (error,) = documents(server.outgoing())
    assert isinstance(error, Error)
    assert error.code == code


# Resends and duplicates


def test_a_message_that_is_not_confirmed_is_sent_again_and_then_given_up() -> None:
    client = opened(Role.CLIENT)
    client.send(request(), 0.0)
    first = client.outgoing()
    for attempt in range(1, 4):
        assert client.deadline() == 20.0 * attempt
        client.expire(20.0 * attempt)
        assert client.outgoing() == first
        assert client.state is SessionState.OPEN
    client.expire(80.0)
    assert client.state is SessionState.CLOSED
    assert client.counters == {"wolpertinger.delivery.resent": 3, "wolpertinger.delivery.failed": 1}


def test_a_confirmed_message_is_not_sent_again() -> None:
    client = opened(Role.CLIENT, unique=1)
    client.send(request(), 0.0)
    client.outgoing()
    client.receive(b"result:0;message_id:1;\n", 19.0)
    assert client.deadline() is None
    client.expire(100.0)
    assert client.outgoing() == b""


def test_a_resent_message_is_confirmed_again_and_executed_once() -> None:
    server = opened()
    data = line(call("Test", "Echo", HELLO), 5)
    assert len(messages_of(server.receive(data, 0.0))) == 1
    again = joined(server.receive(data, 20.0))
    assert not again.messages
    assert again.count == 1
    assert results(server.outgoing()) == [(5, 0), (5, 0)]
    assert server.counters == {"wolpertinger.message-id.again": 1}


def test_a_document_that_was_refused_is_refused_when_it_comes_again() -> None:
    server = opened()
    wrong = line(b"<Nonsense/>", 7)
    first, again = joined(server.receive(wrong, 0.0)), joined(server.receive(wrong, 20.0))
    for run in (first, again):
        assert (run.data, run.count, [each.data for each in run.refused]) == (b"", 0, [wrong])
    assert [run.refused[0].clause.rpartition(".")[2] for run in (first, again)] == ["unknown-message", "again"]
    # It is confirmed each time, and its error is told once.
    written = server.outgoing()
    assert results(written) == [(7, 0), (7, 0)]
    assert len(documents(written)) == 1


def test_ids_are_remembered_for_ten_minutes() -> None:
    server = opened()
    data = line(call("Test", "Echo", HELLO), 5)
    server.receive(data, 0.0)
    # What comes in between makes old ids go; this one is not old enough.
    for number, at in ((100, 200.0), (200, 400.0), (300, 590.0)):
        server.receive(line(Error("Core", 1), number), at)
    assert not messages_of(server.receive(data, 599.0))
    server.send(Message(Kind.RESPONSE, correlation_id=CALL_ID), 599.0)
    assert not joined(server.receive(line(call("Test", "Echo", HELLO), 7), 720.0)).refused
    server.send(Message(Kind.RESPONSE, correlation_id=CALL_ID), 720.0)
    assert len(messages_of(server.receive(data, 721.0))) == 1


def test_a_million_ids_cost_no_more_than_a_few() -> None:
    seen = Seen(600.0)
    for number in range(200_000):
        seen.add(number, number / 1000)
    assert len(seen) < 10
    assert 5 in seen
    assert 199_999 in seen
    assert 200_000 not in seen
    for number in range(10**6, 10**6 + 300_000, 2):
        seen.add(number, 300.0)
    assert len(seen) <= 65_536


def test_a_message_that_failed_is_not_remembered() -> None:
    server = opened()
    server.receive(b"message_id:5;AAA\n", 0.0)
    assert len(messages_of(server.receive(line(call("Test", "Echo", HELLO), 5), 1.0))) == 1


def test_lost_lines_are_made_good_and_every_call_is_executed_once() -> None:
    """Every third line is lost, in both directions; time passes; nothing is missing, nothing happens twice."""
    both = pair(delivery_timeout=20.0, resends=50)
    executed: list[str] = []
    answered: list[object] = []
    for number in range(20):
        both.client.send(request(value=(number,)), 0.0)
    lost = now = 0
    for now in range(0, 2000, 10):
        for source, target in ((both.client, both.server), (both.server, both.client)):
            for each in source.outgoing_frames():
                lost += 1
                if lost % 3 == 0:
                    continue
                for message in messages_of(target.receive(each, float(now))):
                    if message.kind is Kind.REQUEST:
                        executed.append(str(message.value()))
                        target.send(response(message, message.value()), float(now))
                    elif message.kind is Kind.RESPONSE:
                        answered.append(message.value())
            source.expire(float(now))
    assert sorted(executed) == sorted(f"[{number}]" for number in range(20))
    assert sorted(answered) == [[number] for number in range(20)]  # type: ignore[type-var]
    assert both.client.deadline() is None


# Splitting


def test_a_split_message_is_confirmed_once_when_it_is_complete() -> None:
    server = opened()
    lines = lines_of(call("Test", "Echo", Value("string", "x" * 300)), 5, WolpertingerSettings(split=100, gzip_from=0))
    for number, each in enumerate(lines[:-1], 1):
        run = joined(server.receive(each, 0.0))
        assert not run.messages
        assert (run.data, run.count) == (b"", 0)
        assert server.unread() == b"".join(lines[:number])
        assert server.outgoing() == b""
    run = joined(server.receive(lines[-1], 0.0))
    # The lines of a message stand together, whatever lay between them.
    assert (run.data, run.count, server.unread()) == (b"".join(lines), 1, b"")
    assert server.outgoing() == b"result:0;message_id:5;\n"


def test_a_split_message_that_is_sent_again_is_confirmed_once_more() -> None:
    server = opened()
    lines = lines_of(call("Test", "Echo", Value("string", "x" * 300)), 5, WolpertingerSettings(split=100, gzip_from=0))
    server.receive(b"".join(lines), 0.0)
    run = joined(server.receive(b"".join(lines), 20.0))
    assert not run.messages
    assert results(server.outgoing()) == [(5, 0), (5, 0)]


def test_the_pieces_of_a_message_that_is_sent_again_are_recorded_together_once_all_are_there() -> None:
    server = opened()
    lines = lines_of(call("Test", "Echo", Value("string", "x" * 300)), 5, WolpertingerSettings(split=100, gzip_from=0))
    server.receive(b"".join(lines), 0.0)
    runs = [joined(server.receive(each, 20.0)) for each in lines]
    assert [(run.data, run.count) for run in runs] == [*[(b"", 0)] * (len(lines) - 1), (b"".join(lines), 1)]
    # Of a copy that does not become complete nothing is lost either.
    run = joined(server.receive(lines[1], 30.0))
    assert (run.data, run.count, server.unread()) == (b"", 0, b"fragment_index:1;" + starred(lines[1]))
    (refused,) = joined(server.expire(90.0)).refused
    assert (refused.clause, len(refused.data)) == ("wolpertinger.fragment.dropped", len(lines[1]))


def starred(line: bytes) -> bytes:
    """A line without its index, and with stars for its payload."""
    head, _, payload = line.removeprefix(b"fragment_index:1;").rpartition(b";")
    return head + b";" + b"*" * (len(payload) - 1) + b"\n"


def test_pieces_of_two_messages_mixed_and_in_any_order() -> None:
    server = opened()
    own = WolpertingerSettings(split=100, gzip_from=0)
    one = lines_of(call("Test", "One", Value("string", "x" * 300)), 5, own)
    two = lines_of(call("Test", "Two", Value("string", "y" * 300), call_id="0" + CALL_ID[1:]), 6, own)
    data = b"".join(each for both in zip(reversed(one), two, strict=True) for each in both)
    assert [message.topic for message in messages_of(server.receive(data, 0.0))] == ["Test.One", "Test.Two"]


def test_an_incomplete_message_is_dropped_after_60_seconds() -> None:
    server = opened()
    lines = lines_of(call("Test", "Echo", Value("string", "x" * 300)), 5, WolpertingerSettings(split=100, gzip_from=0))
    server.receive(lines[0], 10.0)
    assert server.deadline() == 70.0
    server.expire(70.0)
    assert server.counters == {"wolpertinger.fragment.dropped": 1}
    assert server.deadline() is None


def test_a_piece_of_another_message_is_a_splitting_error() -> None:
    server = opened()
    server.receive(b"fragment_index:0;fragment_count:3;message_id:5;AAAA\n", 0.0)
    run = joined(server.receive(b"fragment_index:1;fragment_count:4;message_id:5;AAAA\n", 0.0))
    assert [each.clause for each in run.refused] == ["wolpertinger.fragment.dropped", "wolpertinger.fragment.differs"]
    assert [each.data[-18:] for each in run.refused] == [b"message_id:5;AAAA\n", b"message_id:5;****\n"]
    assert server.outgoing() == b"result:3;message_id:5;\n"


def test_a_large_call_is_split_compressed_and_answered_in_pieces() -> None:
    both = pair(split=1000)
    noise = base64.b64encode(random.Random(1).randbytes(20_000)).decode()
    asked = both.client.send(request(value=(noise,)), 0.0)
    _, (came,) = both.settle()
    assert int(came.attributes["fragment_count"]) > 3
    assert "gzip" in came.attributes
    assert came.value() == [noise]
    both.server.send(response(came, noise), 0.0)
    (answer,), _ = both.settle()
    assert answer.correlation_id == asked.id
    assert answer.value() == noise


# Calls and answers


def test_a_call_and_its_answer() -> None:
    both = pair()
    asked = both.client.send(request("Test.Add", (2, 3)), 0.0)
    _, (came,) = both.settle()
    assert (came.kind, came.topic, came.id, came.value()) == (Kind.REQUEST, "Test.Add", asked.id, [2, 3])
    assert came.attributes["types"] == "int32*2"
    both.server.send(response(came, 5), 0.0)
    (answer,), _ = both.settle()
    assert (answer.kind, answer.correlation_id, answer.value(), answer.status) == (
        Kind.RESPONSE, asked.id, 5, "done",
    )  # fmt: skip
    assert not both.client._waiting


def test_call_ids_are_guids_with_hyphens_and_never_the_same() -> None:
    client = opened(Role.CLIENT)
    drawn = {client.send(request(), 0.0).id or "" for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(str(uuid.UUID(each)) == each and uuid.UUID(each).version == 4 for each in drawn)


def test_a_method_without_response_value_is_settled_by_the_confirmation() -> None:
    both = pair()
    asked = both.client.send(request("Test.Nothing", (), response="none"), 0.0)
    _, (came,) = both.settle()
    both.server.send(response(came, response="none"), 0.0)
    assert both.server.outgoing() == b""
    assert not both.client._waiting
    assert asked.id


def test_a_confirmation_settles_such_a_call_with_an_ack() -> None:
    client = opened(Role.CLIENT, unique=1)
    asked = client.send(request("Test.Nothing", (), response="none"), 0.0)
    run = joined(client.receive(b"result:0;message_id:1;\n", 0.0))
    assert [(each.kind, each.correlation_id) for each in run.messages] == [(Kind.ACK, asked.id)]
    assert run.count == 1


def test_an_error_that_comes_with_the_confirmation_goes_before_it() -> None:
    client = opened(Role.CLIENT, unique=1)
    asked = client.send(request("Test.Nothing", (), response="none"), 0.0)
    error = line(Error("Test", 303, asked.id), 9)
    run = joined(client.receive(b"result:0;message_id:1;\n" + error, 0.0))
    assert [(each.kind, each.status) for each in run.messages] == [(Kind.ERROR, "303")]


def test_no_value_is_an_empty_response_value() -> None:
    server = opened()
    (came,) = messages_of(server.receive(line(call("Test", "Null")), 0.0))
    server.outgoing()
    server.send(response(came), 0.0)
    assert documents(server.outgoing()) == [Response("Test", CALL_ID, None)]


@pytest.mark.parametrize(
    ("status", "body", "code", "component"),
    [
        ("502", b"", 502, "Test"),
        ("500", b"", 500, "Test"),
        ("-7", b"", -7, "Test"),
        ("304", b"", 304, ""),
        ("404", b"nobody provides it", 304, ""),
        ("400", b"a bad request", 305, "Test"),
        ("403", b"not yours", 201, "Test"),
        ("500", b"it broke", 100, "Test"),
        ("503", b"gone", 100, "Test"),
        ("error", b"", 100, "Test"),
        ("error", b"why", 100, "Test"),
        ("201", b"why", 201, "Test"),
        ("99999999999", b"", 100, "Test"),
        (None, b"", 100, "Test"),
    ],
)
def test_errors_map_to_codes(status: str | None, body: bytes, code: int, component: str) -> None:
    server = opened()
    server.receive(line(call("Test", "Echo")), 0.0)
    server.outgoing()
    server.send(Message(Kind.ERROR, "Test.Echo", body, correlation_id=CALL_ID, status=status), 0.0)
    assert documents(server.outgoing()) == [Error(component, code, CALL_ID)]


def test_an_error_of_no_call_has_no_call_id() -> None:
    both = pair()
    both.server.send(Message(Kind.ERROR, "Disk.Full", status="100"), 0.0)
    (error,), _ = both.settle()
    assert (error.kind, error.correlation_id, error.status) == (Kind.ERROR, None, "100")
    assert error.attributes["component"] == "Disk"


def test_any_error_code_is_accepted() -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    (error,) = messages_of(client.receive(line(Error("Test", 77777, asked.id)), 0.0))
    assert error.status == "77777"


def test_an_answer_to_an_unknown_call_is_confirmed_and_ignored() -> None:
    client = opened(Role.CLIENT)
    run = joined(client.receive(line(Response("Test", CALL_ID), 1) + line(Error("Test", 1, CALL_ID), 2), 0.0))
    assert not run.messages
    assert run.count == 2
    client.expire(0.1)
    assert results(client.outgoing()) == [(1, 0), (2, 0)]
    assert client.counters == {"wolpertinger.response.unknown-call": 2}


def test_a_call_id_that_still_waits_for_its_answer_cannot_be_used_again() -> None:
    server = opened()
    run = joined(server.receive(line(call("Test", "Echo"), 1) + line(call("Test", "Echo"), 2), 0.0))
    assert len(run.messages) == 1
    assert documents(server.outgoing()) == [Error("Test", 300, CALL_ID)]


def test_the_number_of_calls_is_limited_in_both_directions() -> None:
    server = opened(max_calls=1)
    server.receive(line(call("Test", "Echo"), 1), 0.0)
    run = joined(server.receive(line(call("Test", "Echo", call_id="0" + CALL_ID[1:]), 2), 0.0))
    assert not run.messages
    assert documents(server.outgoing()) == [Error("Test", 300, "0" + CALL_ID[1:])]
    server.send(request(), 0.0)
    with pytest.raises(LimitExceeded, match="max_calls"):
        server.send(request(), 0.0)


def test_unconfirmed_messages_are_limited() -> None:
    client = opened(Role.CLIENT, max_unconfirmed=2)
    client.send(request(), 0.0)
    client.send(request(), 0.0)
    with pytest.raises(LimitExceeded, match="max_unconfirmed"):
        client.send(request(), 0.0)


def test_a_peer_that_never_confirms_is_left() -> None:
    server = opened(max_unconfirmed=5)
    for number in range(1, 12):
        server.receive(line(b"<a/>", number), 0.0)
    assert server.state is SessionState.CLOSED


@pytest.mark.parametrize(
    ("xml", "code", "call_id"),
    [
        (b"<a", 301, None),
        (b"<!DOCTYPE a><a/>", 301, None),
        (b"<RemoteMethodCall><ComponentName>T</ComponentName></RemoteMethodCall>", 301, None),
        (b"<Something/>", 302, None),
    ],
)
def test_an_invalid_document_is_confirmed_and_answered_with_an_error(
    xml: bytes, code: int, call_id: str | None
) -> None:
    server = opened()
    run = joined(server.receive(line(xml, 4), 0.0))
    written = server.outgoing()
    assert results(written) == [(4, 0)]
    (error,) = documents(written)
    assert isinstance(error, Error)
    assert (error.code, error.call_id) == (code, call_id)
    assert len(run.refused) == 1


def test_unknown_types_and_wrong_values_are_told_to_the_caller() -> None:
    server = opened()
    xml = layer2.write(call("Test", "Echo", HELLO))
    server.receive(line(xml.replace(b'"string"', b'"decimal"'), 1), 0.0)
    server.receive(line(xml.replace(b'"string"', b'"int32"'), 2), 0.0)
    assert documents(server.outgoing()) == [Error("Test", 306, CALL_ID), Error("Test", 305, CALL_ID)]


def test_an_invalid_response_fails_its_call_with_401() -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    client.outgoing()
    xml = layer2.write(Response("Test", asked.id or "", HELLO)).replace(b'"string"', b'"int32"')
    run = joined(client.receive(line(xml), 0.0))
    assert [(each.kind, each.status, each.correlation_id) for each in run.messages] == [(Kind.ERROR, "401", asked.id)]
    # Responses expect no response.
    assert documents(client.outgoing()) == []


def test_component_names_without_case_and_method_names_with() -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    run = joined(client.receive(line(RemoteMethodCall("CORE", CALL_ID, "Heartbeat"), 1), 0.0))
    assert [(each.kind, each.correlation_id) for each in run.messages] == [(Kind.PROGRESS, asked.id)]
    run = joined(client.receive(line(RemoteMethodCall("Core", CALL_ID, "heartbeat"), 2), 0.0))
    assert [(each.kind, each.topic) for each in run.messages] == [(Kind.REQUEST, "Core.heartbeat")]


# Time


def test_a_heartbeat_resets_the_time_of_every_call_that_waits() -> None:
    client = opened(Role.CLIENT)
    asked = [client.send(request(), 0.0).id for _ in range(3)]
    run = joined(client.receive(line(RemoteMethodCall("Core", CALL_ID, "Heartbeat")), 0.0))
    assert [(each.kind, each.correlation_id) for each in run.messages] == [(Kind.PROGRESS, each) for each in asked]
    assert run.count == 1
    assert b"result:0;message_id:1;\n" in client.outgoing()


def test_heartbeats_in_a_row_count_once_a_second_and_in_batches() -> None:
    client = opened(Role.CLIENT, max_calls=1000, max_unconfirmed=1000)
    for _ in range(200):
        client.send(request(), 0.0)
    beats = [line(RemoteMethodCall("Core", CALL_ID, "Heartbeat"), number) for number in range(1, 4)]
    batches = [batch for beat in beats for batch in client.receive(beat, 0.0)]
    assert sum(len(batch.messages) for batch in batches) == 200
    assert max(len(batch.messages) for batch in batches) <= 64
    assert len(joined(client.receive(line(RemoteMethodCall("Core", CALL_ID, "Heartbeat"), 9), 1.0)).messages) == 200


def test_a_heartbeat_without_a_call_is_confirmed_and_nothing_else() -> None:
    client = opened(Role.CLIENT)
    run = joined(client.receive(line(RemoteMethodCall("Core", CALL_ID, "Heartbeat")), 0.0))
    assert not run.messages
    assert run.count == 1
    assert client.outgoing() == b"result:0;message_id:1;\n"


def test_every_ten_seconds_of_work_a_heartbeat_is_sent() -> None:
    server = opened(delivery_timeout=1000.0)
    server.receive(line(call("Test", "Slow")), 5.0)
    server.outgoing()
    for at in (15.0, 25.0, 35.0):
        assert server.deadline() == at
        server.expire(at - 0.1)
        assert server.outgoing() == b""
        server.expire(at)
        (beat,) = documents(server.outgoing())
        assert isinstance(beat, RemoteMethodCall)
        assert (beat.component, beat.method, beat.parameters) == ("Core", "Heartbeat", ())
    server.send(Message(Kind.RESPONSE, correlation_id=CALL_ID), 36.0)
    server.outgoing()
    server.expire(60.0)
    assert server.outgoing() == b""


def test_heartbeats_do_not_put_off_a_timeout_of_layer_1() -> None:
    client = opened(Role.CLIENT)
    client.send(request(), 0.0)
    first = client.outgoing()
    for number, at in enumerate(range(1, 20), 50):
        client.receive(line(RemoteMethodCall("Core", str(uuid.UUID(int=number)), "Heartbeat"), number), float(at))
        client.outgoing()
    assert client.deadline() == 20.0
    client.expire(20.0)
    assert client.outgoing() == first


def test_components_have_no_children() -> None:
    both = pair()
    both.client.send(request("Core.Inner.Heartbeat", (), component="Core.Inner"), 0.0)
    (sent,) = [each for each in documents(both.client.outgoing()) if isinstance(each, RemoteMethodCall)]
    assert (sent.component, sent.method) == ("Core.Inner", "Heartbeat")
    # It is no part of Core, and so none of its heartbeats.
    (came,) = messages_of(both.server.receive(line(sent, 9), 0.0))
    assert (came.kind, came.topic, came.attributes["types"]) == (Kind.REQUEST, "Core.Inner.Heartbeat", "")


def test_a_step_of_work_is_a_heartbeat_but_not_more_than_one_a_second() -> None:
    server = opened()
    (came,) = messages_of(server.receive(line(call("Test", "Slow")), 0.0))
    server.outgoing()
    step = Message(Kind.PROGRESS, came.topic, b"1", correlation_id=came.id)
    for at in (0.5, 0.6, 0.7, 1.6):
        server.send(step, at)
    assert len(documents(server.outgoing())) == 2
    server.send(response(came), 2.0)
    with pytest.raises(InvalidState):
        server.send(step, 3.0)


def test_the_time_for_an_answer_begins_with_the_confirmation() -> None:
    client = opened(Role.CLIENT, unique=1)
    asked = client.send(request(), 0.0)
    run = joined(client.receive(b"result:0;message_id:1;\n", 19.0))
    assert [(each.kind, each.correlation_id) for each in run.messages] == [(Kind.PROGRESS, asked.id)]
    assert run.count == 1


def test_a_call_cannot_be_cancelled_but_its_answer_is_ignored() -> None:
    client = opened(Role.CLIENT)
    asked = client.send(request(), 0.0)
    with pytest.raises(NotSupported, match="cancel"):
        client.send(Message(Kind.CANCEL, correlation_id=asked.id), 0.0)
    assert not client._waiting
    assert not messages_of(client.receive(line(Response("Test", asked.id or "")), 0.0))


# The hub profile


@pytest.mark.parametrize("profile", [True, False])
def test_a_component_cannot_pass_for_an_operation_of_the_hub(profile: bool) -> None:
    server = opened(profile=profile)
    assert not messages_of(server.receive(line(call("$hub/publish/a", "b")), 0.0))
    assert documents(server.outgoing()) == [Error("", 304, CALL_ID)]


def test_events_travel_as_calls_of_hub_event() -> None:
    both = pair()
    both.client.send(Message(Kind.EVENT, "sensors/kitchen", b'{"c":21.5}', content_type=JSON), 0.0)
    _, (event,) = both.settle()
    assert (event.kind, event.topic, event.body, event.content_type) == (
        Kind.EVENT, "sensors/kitchen", b'{"c":21.5}', JSON,
    )  # fmt: skip
    both.client.send(Message(Kind.EVENT, "sensors/raw", b"\xff\x00"), 0.0)
    _, (event,) = both.settle()
    assert (event.body, event.content_type) == (b"\xff\x00", None)
    assert not both.server._owed


def test_without_the_profile_there_are_no_events_and_hub_is_a_component_like_any_other() -> None:
    client = opened(Role.CLIENT, profile=False)
    with pytest.raises(NotSupported, match="profile"):
        client.send(Message(Kind.EVENT, "a", b""), 0.0)
    with pytest.raises(NotSupported, match=r"Component\.Method"):
        client.send(request("no-dot"), 0.0)
    (came,) = messages_of(client.receive(line(call("Hub", "Event", *[Value("string", "a")] * 3)), 0.0))
    assert (came.kind, came.topic) == (Kind.REQUEST, "Hub.Event")


@pytest.mark.parametrize("operation", ["subscribe", "unsubscribe", "provide", "withdraw"])
def test_operations_of_the_hub_are_methods_of_hub(operation: str) -> None:
    both = pair()
    both.client.send(Message(Kind.REQUEST, f"$hub/{operation}", b'{"topic":"a/#"}', content_type=JSON), 0.0)
    _, (came,) = both.settle()
    assert (came.topic, came.value()) == (f"$hub/{operation}", {"topic": "a/#"})
    sent = documents(b"".join(each for who, each in both.lines if who == "client"))[0]
    assert isinstance(sent, RemoteMethodCall)
    assert (sent.component, sent.method, sent.parameters) == ("Hub", operation.title(), (Value("string", "a/#"),))
    both.server.send(response(came), 0.0)
    (answer,), _ = both.settle()
    assert answer.kind is Kind.RESPONSE


def test_an_acknowledged_publish_is_hub_publish() -> None:
    both = pair()
    both.client.send(Message(Kind.REQUEST, "$hub/publish/a/b", b"hi", content_type="text/plain"), 0.0)
    _, (came,) = both.settle()
    assert (came.topic, came.body, came.content_type) == ("$hub/publish/a/b", b"hi", "text/plain")


def test_topics_that_are_no_methods_are_carried_by_hub_request_and_so_are_their_answers() -> None:
    both = pair()
    asked = both.client.send(Message(Kind.REQUEST, "math/add", b"\x00\x01", content_type="image/png"), 0.0)
    _, (came,) = both.settle()
    assert (came.topic, came.body, came.content_type) == ("math/add", b"\x00\x01", "image/png")
    both.server.send(response(came, {"a": None}), 0.0)
    (answer,), _ = both.settle()
    assert (answer.correlation_id, answer.value(), answer.content_type) == (asked.id, {"a": None}, JSON)


def test_options_of_a_subscription_travel_beside_the_topic() -> None:
    both = pair()
    both.client.send(Message(Kind.REQUEST, "$hub/subscribe", b'{"topic":"a","since":5}', content_type=JSON), 0.0)
    _, (came,) = both.settle()
    assert came.value() == {"topic": "a", "since": 5}


@pytest.mark.parametrize(
    ("method", "texts"),
    [
        ("Publish", ["a"]), ("Publish", ["a", "b", "c", "rot13"]), ("Publish", ["", "", ""]), ("Event", []),
        ("Event", ["a", "", "%", "base64"]), ("Subscribe", ["a", "b"]), ("Subscribe", ["a", "{}", "c"]),
        ("Request", ["$hub/map", "", ""]), ("Other", ["a"]), ("Publish", ["$hub/publish/a", "", ""]),
        ("Publish", ["$hub/subscribe", "", '{"topic":"a"}']), ("Event", ["$hub/subscribe", "", "b"]),
        ("Event", ["$hub/provide", JSON, '{"topic":"a"}']), ("Login", ["a", "b"]), ("Login", [""]),
    ],
)  # fmt: skip
def test_a_call_of_hub_that_does_not_fit_is_a_call_like_any_other(method: str, texts: list[str]) -> None:
    server = opened()
    (came,) = messages_of(server.receive(line(call("Hub", method, *[Value("string", each) for each in texts])), 0.0))
    assert (came.kind, came.topic, came.value()) == (Kind.REQUEST, f"Hub.{method}", texts)


# Bodies


@pytest.mark.parametrize(
    ("body", "content_type", "parameters"),
    [
        (b"", None, ()),
        (b"null", JSON, ()),
        (b"[]", JSON, ()),
        (b'["a",1,true,1.5,[2]]', JSON, (
            Value("string", "a"), Value("int32", 1), Value("boolean", True), Value("double", 1.5),
            Value("list", (Value("int32", 2),)))),
        (b"7", JSON, (Value("int32", 7),)),
        (b"[4294967296,18446744073709551615]", JSON, (Value("int64", 2**32), Value("uint64", 2**64 - 1))),
        (b'{"a":1}', JSON, (Value("string", '{"a": 1}'),)),
        (b"[null]", JSON, (Value("string", "null"),)),
        (b'["\\u0000"]', JSON, (Value("string", '"\\u0000"'),)),
        (b"[1e999]", JSON, (Value("double", "INF"),)),
        (b"{broken", JSON, (Value("string", "{broken"),)),
        (b"text", "text/plain", (Value("string", "text"),)),
        (b"text", None, (Value("string", "text"),)),
        (b"\xff", None, (Value("string", "/w=="),)),
    ],
)  # fmt: skip
def test_bodies_become_parameters(body: bytes, content_type: str | None, parameters: tuple[Value, ...]) -> None:
    client = opened(Role.CLIENT)
    client.send(Message(Kind.REQUEST, "A.B", body, content_type=content_type), 0.0)
    (sent,) = documents(client.outgoing())
    assert isinstance(sent, RemoteMethodCall)
    assert sent.parameters == parameters


def test_a_signature_says_the_types_and_one_that_does_not_fit_is_ignored() -> None:
    client = opened(Role.CLIENT)
    client.send(request("A.B", (1, "7e4c8b32-f269-4b48-a6ba-625df091ad6a"), types="int64,guid"), 0.0)
    client.send(request("A.B", (1, "x"), types="int64,guid"), 0.0)
    client.send(request("A.B", (1, "x"), types="nonsense"), 0.0)
    sent = [each.parameters for each in documents(client.outgoing()) if isinstance(each, RemoteMethodCall)]
    assert [tuple(value.type for value in each) for each in sent] == [
        ("int64", "guid"), ("int32", "string"), ("int32", "string"),
    ]  # fmt: skip


def test_topics_with_odd_components_and_methods_survive() -> None:
    both = pair()
    for component, method in (("A", "b.c"), ("a b", "c"), ("", ""), ("ä", "ö"), ("A.B", "C")):
        data = line(
            RemoteMethodCall(component, both.client._draw_call_id(), method), hash((component, method)) & 0xFFFF
        )
        (came,) = messages_of(both.server.receive(data, 0.0))
        (again,) = documents(WOLPERTINGER.encode(came, WolpertingerSettings(profile=False)))
        assert isinstance(again, RemoteMethodCall)
        assert (again.component, again.method) == (component, method)


# The stream


@given(stream(), st.lists(st.integers(0, 3000), max_size=10))
def test_any_split_of_the_stream_into_reads_gives_the_same_messages(data: bytes, cuts: list[int]) -> None:
    def read(edges: Sequence[int]) -> tuple[object, ...]:
        server = opened()
        found, rejected, count, kept = [], [], 0, b""
        for start, end in itertools.pairwise(edges):
            run = joined(server.receive(data[start:end], 0.0))
            found += run.messages
            rejected += [(each.clause, each.data) for each in run.refused]
            count += run.count
            kept += bytes(run.data)
        return found, rejected, count, kept, server.outgoing()

    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    assert read(edges) == read([0, len(data)])


@given(mutated_stream(), st.sampled_from(Role))
@settings(max_examples=200)
def test_nothing_a_peer_sends_raises(data: bytes, role: Role) -> None:
    session = opened(role)
    run = joined(session.receive(data, 0.0))
    waiting = len(session.unread())
    taken = len(run.data) + sum(len(each.data) for each in run.refused) + len(session.refused)
    assert taken + waiting == len(data) or session.violation is not None
    late = joined(session.expire(100.0))
    session.outgoing()
    session.end_of_input(101.0)
    taken += len(late.data) + sum(len(each.data) for each in late.refused)
    assert taken + len(session.unread()) == len(data) or session.violation is not None
    unread = zip(session.unread(), data[data.rfind(b"\n") + 1 :], strict=True)
    assert session.violation is not None or all(kept in (came, ord("*")) for kept, came in unread)
    assert all(each.clause in WOLPERTINGER.clauses for each in run.refused)


@given(any_document, st.booleans())
def test_what_one_session_writes_the_decoder_reads(document: object, profile: bool) -> None:
    both = Pair(opened(Role.CLIENT, profile=profile), opened(profile=profile))
    both.client._say(document, 0.0)  # type: ignore[arg-type]
    data = both.client.outgoing()
    decoder = WOLPERTINGER.decoder(Role.CLIENT.sends, WolpertingerSettings(profile=profile))
    (found,) = list(decode_stream(decoder, data))
    (again,) = documents(WOLPERTINGER.encode(found.message, WolpertingerSettings(profile=profile)))  # type: ignore[union-attr]
    assert again == document


def test_a_line_that_is_too_long_is_refused_and_the_next_is_taken() -> None:
    server = opened(max_message=400)
    long = b"message_id:1;" + b"A" * server.settings.max_line
    refused = b""
    for piece in (long[:5000], long[5000:], b"AAAA", b"A\n" + line(Error("a", 1), 5)):
        run = joined(server.receive(piece, 0.0))
        refused += b"".join(each.data for each in run.refused)
        assert all(each.clause == "wolpertinger.line.too-long" for each in run.refused)
    assert refused == long + b"AAAAA\n"
    assert [each.kind for each in run.messages] == [Kind.ERROR]
    assert server._tail_size == 0


# The end


def test_a_peer_that_half_closes_still_gets_its_answers() -> None:
    server = opened()
    (came,) = messages_of(server.receive(line(call("Test", "Echo")), 0.0))
    server.outgoing()
    server.end_of_input(1.0)
    assert server.state is SessionState.CLOSING
    with pytest.raises(PeerClosed):
        server.send(request(), 2.0)
    server.send(response(came, 1), 2.0)
    assert documents(server.outgoing()) == [Response("Test", CALL_ID, Value("int32", 1))]
    assert server.state is SessionState.CLOSED


def test_closing_tells_callers_that_there_will_be_no_answer() -> None:
    server = opened()
    server.receive(line(call("Test", "Echo")), 0.0)
    server.outgoing()
    server.close(1.0)
    assert server.state is SessionState.CLOSED
    assert documents(server.outgoing()) == [Error("Test", 100, CALL_ID)]
    with pytest.raises(PeerClosed):
        server.send(request(), 2.0)
    assert joined(server.receive(line(call("Test", "Echo")), 3.0)).count == 0


def test_only_what_has_a_meaning_can_be_sent() -> None:
    server = opened()
    for kind in (Kind.ACK, Kind.OPEN, Kind.CLOSE, Kind.PING, Kind.PONG, Kind.OTHER, Kind.REDIRECT):
        with pytest.raises(NotSupported):
            server.send(Message(kind, "a.b"), 0.0)
    with pytest.raises(InvalidState, match="no call"):
        server.send(Message(Kind.RESPONSE, correlation_id=CALL_ID), 0.0)
    with pytest.raises(NotSupported, match="authenticate"):
        server.send(request("Authentication.KeyExchange", ()), 0.0)
    with pytest.raises(LimitExceeded, match="max_message"):
        opened(max_message=64).send(request(value=("x" * 100,)), 0.0)


def test_a_response_that_is_too_large_becomes_an_error() -> None:
    server = opened(max_message=400)
    (came,) = messages_of(server.receive(line(call("Test", "Echo")), 0.0))
    server.outgoing()
    server.send(response(came, "x" * 1000), 0.0)
    assert documents(server.outgoing()) == [Error("Test", 100, CALL_ID)]


def test_the_session_is_the_one_the_protocol_makes() -> None:
    made = WOLPERTINGER.session(Role.CLIENT, WolpertingerSettings())
    assert isinstance(made, WolpertingerSession)
    made.connected(0.0)
    made.send(request(), 0.0)
    frame = said(made.outgoing())[0]
    assert isinstance(frame, frames.Data)
    assert frame.message_id == 1


def test_a_limit_of_the_transport_is_kept_by_splitting() -> None:
    client = session(Role.CLIENT, gzip_from=0)
    client.max_frame = 1000
    client.connected(0.0)
    client.send(request(value=("x" * 5000,)), 0.0)
    lines = client.outgoing_frames()
    assert len(lines) > 5
    assert all(len(each) <= 1000 for each in lines)


def test_codes_are_those_of_the_decisions() -> None:
    assert [code.value for code in ResultCode] == [0, 1, 2, 3, 4, 5]
    assert {code.name: code.value for code in ErrorCode} == {
        "UNSPECIFIED": 100,
        "SECURITY": 200, "NOT_AUTHORISED": 201, "ENCRYPTION": 202, "SIGNATURE": 203,
        "REQUEST": 300, "INVALID_XML": 301, "UNKNOWN_MESSAGE": 302, "METHOD_NOT_FOUND": 303,
        "COMPONENT_NOT_FOUND": 304, "INVALID_PARAMETERS": 305, "UNSUPPORTED_DATATYPE": 306,
        "RESPONSE": 400, "INVALID_RESPONSE": 401,
        "FILE_SERVER": 500, "MOUNT": 501, "ITEM_NOT_FOUND": 502,
    }  # fmt: skip


def test_the_plain_stream_has_port_5045_and_xmpp_its_own() -> None:
    ports = {scheme.name: scheme.port for scheme in WOLPERTINGER.schemes}
    assert ports == {"wolpertinger": 5045, "wolpertinger+tls": 5045, "wolpertinger+xmpp": 5222}


def test_a_message_counts_with_its_last_piece() -> None:
    session = opened()
    lines = lines_of(call("Test", "Echo", Value("string", "x" * 300)), 5, WolpertingerSettings(split=100, gzip_from=0))
    assert [session.messages_in(each) for each in lines] == [0] * (len(lines) - 1) + [1]
    assert session.messages_in(b"result:0;message_id:5;\n") == session.messages_in(line(call("Test", "Echo"))) == 1
