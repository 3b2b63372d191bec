"""One end of a conversation: ids, answers owed, limits, violations, half-close, and reads cut anywhere."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.hsp.strategies import any_frame, mutated_stream
from tests.protocols.reading import data_of, joined, messages_of
from wireloom.model import Direction, InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.frames import Ack, Data, DataAck, Error, ErrorUndef
from wireloom.protocols.hsp.session import HspSession

EVENT = Message(Kind.EVENT, "hsp/7", b"hello")
REQUEST = Message(Kind.REQUEST, "hsp/7", b"please")


def opened(role: Role = Role.SERVER, *, unique: int = 0, **values: object) -> HspSession:
    session = HSP.session(role, HSP.settings(values), unique=unique)
    session.connected(0)
    return session


def wire(*many: frames.Frame) -> bytes:
    return b"".join(map(frames.encode, many))


def said(session: HspSession) -> list[frames.Frame]:
    """The frames a session wants to send."""
    data, position, found = session.outgoing(), 0, []
    while position < len(data):
        decoded = frames.decode(data, position, frames.MAX_PAYLOAD_LIMIT)
        assert decoded is not None
        found.append(decoded[0])
        position = decoded[1]
    return found


def acknowledge(session: HspSession, message_id: int) -> None:
    session.send(Message(Kind.RESPONSE, correlation_id=str(message_id)), 0)


# Opening


def test_hsp_has_no_handshake() -> None:
    session = HSP.session(Role.CLIENT, HSP.settings())
    assert session.state is SessionState.OPENING
    session.connected(0)
    assert (session.state, session.outgoing()) == (SessionState.OPEN, b"")


@pytest.mark.parametrize("role", list(Role))
def test_both_ends_may_send_everything(role: Role) -> None:
    session = opened(role)
    session.receive(wire(DataAck(5, 7, b"")), 0)
    session.send(EVENT, 0)
    session.send(REQUEST, 0)
    acknowledge(session, 5)
    assert said(session) == [Data(7, b"hello"), DataAck(0, 7, b"please"), Ack(5)]


@pytest.mark.parametrize(("role", "direction"), [(Role.SERVER, Direction.C2S), (Role.CLIENT, Direction.S2C)])
def test_messages_say_which_way_they_went(role: Role, direction: Direction) -> None:
    (message,) = messages_of(opened(role).receive(wire(Data(7, b"")), 0))
    assert (message.direction, message.protocol) == (direction, "hsp")


# DATA


def test_data_is_delivered_and_never_answered() -> None:
    session = opened()
    run = joined(session.receive(wire(Data(7, b"hello")), 0))
    assert [(m.kind, m.topic, m.body, m.id) for m in run.messages] == [(Kind.EVENT, "hsp/7", b"hello", None)]
    assert session.outgoing() == b""
    assert set(session._owed) == set()


def test_sent_data_is_forgotten_at_once() -> None:
    session = opened()
    session.send(EVENT, 0)
    assert said(session) == [Data(7, b"hello")]
    assert not session._waiting


# DATA_ACK received: answers owed


def test_a_data_ack_is_owed_an_answer_until_it_gets_one() -> None:
    session = opened()
    (message,) = messages_of(session.receive(wire(DataAck(5, 7, b"please")), 0))
    assert (message.kind, message.id, message.body) == (Kind.REQUEST, "5", b"please")
    assert session.outgoing() == b""
    assert session.owes(5)
    acknowledge(session, 5)
    assert said(session) == [Ack(5)]
    assert not session.owes(5)


@pytest.mark.parametrize(
    ("answer", "frame"),
    [
        (Message(Kind.RESPONSE, correlation_id="5"), Ack(5)),
        (Message(Kind.ERROR, correlation_id="5", status="404", body=b"no"), Error(5, 404, b"no")),
        (Message(Kind.ERROR, correlation_id="5", status="0"), Error(5, 0, b"")),
        (Message(Kind.ERROR, correlation_id="5", status="timeout", body=b"late"), Error(5, 0, b"late")),
        (Message(Kind.ERROR, correlation_id="5", status="undefined"), ErrorUndef(5)),
        (Message(Kind.ERROR, correlation_id="5"), ErrorUndef(5)),
    ],
)
def test_each_of_the_three_answers_settles_a_data_ack(answer: Message, frame: frames.Frame) -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")), 0)
    session.send(answer, 0)
    assert said(session) == [frame]
    assert set(session._owed) == set()


@given(
    st.lists(st.integers(0, 2**32 - 1), unique=True, max_size=12).flatmap(
        lambda n: st.tuples(st.just(n), st.permutations(n))
    )
)
def test_answers_may_go_out_in_any_order(orders: tuple[list[int], list[int]]) -> None:
    asked, answered = orders
    session = opened()
    session.receive(wire(*(DataAck(number, 7, b"") for number in asked)), 0)
    assert set(session._owed) == set(asked)
    for number in answered:
        acknowledge(session, number)
    assert said(session) == [Ack(number) for number in answered]
    assert set(session._owed) == set()


def test_a_data_ack_is_answered_once() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")), 0)
    acknowledge(session, 5)
    with pytest.raises(InvalidState, match="no DATA_ACK with id 5 waits for an answer"):
        acknowledge(session, 5)
    assert said(session) == [Ack(5)]


def test_an_answer_to_nothing_cannot_be_sent() -> None:
    session = opened()
    for answer in (Message(Kind.RESPONSE, correlation_id="5"), Message(Kind.ERROR, correlation_id="5")):
        with pytest.raises(InvalidState, match="id 5"):
            session.send(answer, 0)
    assert session.outgoing() == b""


def test_an_answer_that_cannot_be_said_leaves_the_data_ack_waiting() -> None:
    session = opened(max_payload=3)
    session.receive(wire(DataAck(5, 7, b"")), 0)
    with pytest.raises(LimitExceeded):
        session.send(Message(Kind.ERROR, correlation_id="5", status="1", body=b"long"), 0)
    assert session.owes(5)
    assert session.outgoing() == b""


def test_an_ack_has_no_room_for_a_body_and_the_loss_is_counted() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b""), DataAck(6, 7, b"")), 0)
    session.send(Message(Kind.RESPONSE, correlation_id="5", body=b"result"), 0)
    acknowledge(session, 6)
    assert said(session) == [Ack(5), Ack(6)]
    assert session.counters == {"hsp.response.body-dropped": 1}


def test_an_id_that_is_still_unanswered_must_not_come_again() -> None:
    session = opened()
    run = joined(
        session.receive(wire(DataAck(5, 7, b"one"), DataAck(6, 7, b"two"), DataAck(5, 7, b"three"), Data(7, b"")), 0)
    )
    assert [message.body for message in run.messages] == [b"one", b"two"]
    assert session.violation is not None
    assert session.violation.clause == "hsp.message-id.reused"
    assert "id 5" in session.violation.detail
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "error")
    assert session.refused == wire(DataAck(5, 7, b"three"), Data(7, b""))
    assert session.outgoing() == b""


@pytest.mark.parametrize(
    "answer",
    [
        Message(Kind.RESPONSE, correlation_id="5"),
        Message(Kind.ERROR, correlation_id="5", status="1"),
        Message(Kind.ERROR, correlation_id="5"),
    ],
)
def test_an_id_may_be_reused_once_it_was_answered(answer: Message) -> None:
    session = opened()
    for _ in range(3):
        run = joined(session.receive(wire(DataAck(5, 7, b"again")), 0))
        assert len(run.messages) == 1
        session.send(answer, 0)
    assert session.violation is None


def test_the_two_directions_have_ids_of_their_own() -> None:
    session = opened(unique=5)
    session.send(REQUEST, 0)
    session.receive(wire(DataAck(5, 7, b"")), 0)
    assert session.violation is None
    acknowledge(session, 5)
    assert session._waiting == {5}


# DATA_ACK sent: ids and answers received


def test_ids_count_up_from_where_they_are_told_to() -> None:
    session = opened(unique=41)
    assert [session.send(REQUEST, 0).id for _ in range(3)] == ["41", "42", "43"]
    assert said(session) == [DataAck(number, 7, b"please") for number in (41, 42, 43)]
    assert session._waiting == {41, 42, 43}


def test_an_id_the_application_brings_is_not_used() -> None:
    session = opened(unique=1)
    assert session.send(REQUEST.with_(id="77"), 0).id == "1"
    assert said(session) == [DataAck(1, 7, b"please")]


def test_ids_wrap_around_after_four_bytes() -> None:
    session = opened(unique=2**32 - 1)
    assert [session.send(REQUEST, 0).id for _ in range(2)] == ["4294967295", "0"]


def test_ids_start_within_four_bytes_whatever_the_seed() -> None:
    assert opened(unique=2**40 + 3).send(REQUEST, 0).id == "3"


def test_ids_still_waiting_are_skipped() -> None:
    session = opened(unique=2**32 - 2)
    waiting = [session.send(REQUEST, 0).id for _ in range(4)]
    assert waiting == ["4294967294", "4294967295", "0", "1"]
    session.receive(wire(Ack(2**32 - 1)), 0)
    # All of the numbers come round again: only the answered one is free.
    session._next_id = 2**32 - 2
    assert session.send(REQUEST, 0).id == "4294967295"
    assert session.send(REQUEST, 0).id == "2"


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40))
def test_no_two_waiting_requests_ever_share_an_id(steps: list[int | None]) -> None:
    session = opened()
    waiting: list[str] = []
    for step in steps:
        if step is None:
            drawn = str(session.send(REQUEST, 0).id)
            assert drawn not in waiting
            waiting.append(drawn)
            session._next_id %= 4  # a very small number space, so that ids come round
        elif step < len(waiting):
            session.receive(wire(Ack(int(waiting.pop(step)))), 0)
        assert session._waiting == set(map(int, waiting))


@pytest.mark.parametrize(
    ("frame", "kind", "status", "body"),
    [
        (Ack(3), Kind.RESPONSE, "done", b""),
        (Error(3, 404, b"no"), Kind.ERROR, "404", b"no"),
        (ErrorUndef(3), Kind.ERROR, "undefined", b""),
    ],
)
def test_each_of_the_three_answers_is_delivered_and_settles_its_request(
    frame: frames.Frame, kind: Kind, status: str, body: bytes
) -> None:
    session = opened(Role.CLIENT, unique=3)
    session.send(REQUEST, 0)
    (answer,) = messages_of(session.receive(wire(frame), 0))
    assert (answer.kind, answer.correlation_id, answer.status, answer.body) == (kind, "3", status, body)
    assert not session._waiting
    assert session.counters == {}


def test_answers_may_arrive_in_any_order() -> None:
    session = opened(Role.CLIENT)
    for _ in range(4):
        session.send(REQUEST, 0)
    run = joined(session.receive(wire(Ack(2), ErrorUndef(0), Ack(3), Error(1, 1, b"")), 0))
    assert [m.correlation_id for m in run.messages] == ["2", "0", "3", "1"]
    assert session.violation is None
    assert not session._waiting


@pytest.mark.parametrize("frame", [Ack(9), Error(9, 1, b"x"), ErrorUndef(9)])
def test_an_answer_to_an_unknown_id_is_counted_and_ignored(frame: frames.Frame) -> None:
    session = opened(Role.CLIENT)
    session.send(REQUEST, 0)
    session.outgoing()
    run = joined(session.receive(wire(frame, Data(7, b"after")), 0))
    assert [m.body for m in run.messages] == [b"after"]
    assert (run.count, run.data) == (2, wire(frame, Data(7, b"after")))
    assert session.counters == {"hsp.response.unknown-id": 1}
    assert (session.state, session.violation, session.outgoing()) == (SessionState.OPEN, None, b"")
    assert len(session._waiting) == 1


def test_a_second_answer_is_an_answer_to_an_unknown_id() -> None:
    session = opened(Role.CLIENT)
    session.send(REQUEST, 0)
    run = joined(session.receive(wire(Ack(0), Ack(0)), 0))
    assert (len(run.messages), run.count) == (1, 2)
    assert session.counters == {"hsp.response.unknown-id": 1}


def test_unanswered_requests_are_known_after_the_connection_is_lost() -> None:
    """So that they can fail, or be sent again on the next connection."""
    session = opened(Role.CLIENT)
    first, second = session.send(REQUEST, 0), session.send(REQUEST.with_(body=b"second"), 0)
    session.receive(wire(Ack(0)), 0)
    session.end_of_input(1)
    assert session.state is SessionState.CLOSED
    assert session._waiting == {int(second.id or "")}
    assert first != second
    again = opened(Role.CLIENT, unique=100)
    resent = again.send(second, 2)
    assert (resent.id, resent.body) == ("100", b"second")


# PING and PONG


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_ping_gets_exactly_one_pong(count: int) -> None:
    session = opened()
    run = joined(session.receive(wire(*[frames.PING] * count), 0))
    assert [m.kind for m in run.messages] == [Kind.PING] * count
    assert session.outgoing() == b"\x04" * count
    assert session.outgoing() == b""


def test_pongs_cannot_be_sent_by_hand() -> None:
    session = opened()
    with pytest.raises(NotSupported, match="answers each PING itself"):
        session.send(Message(Kind.PONG), 0)
    assert session.outgoing() == b""


def test_a_pong_is_not_answered() -> None:
    session = opened()
    run = joined(session.receive(wire(frames.PONG), 0))
    assert [m.kind for m in run.messages] == [Kind.PONG]
    assert session.outgoing() == b""
    assert session.counters == {"hsp.pong.unasked": 1}
    assert session.state is SessionState.OPEN


# Limits and violations


def test_a_length_of_four_gigabytes_closes_at_once_and_answers_the_data_ack() -> None:
    session = opened()
    read = b"\x01\x00\x00\x00\x09\x00\x07\xff\xff\xff\xff"
    assert len(read) == 11
    tracemalloc.start()
    try:
        run = joined(session.receive(read, 0))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert (list(run.messages), run.data, run.count) == ([], b"", 0)
    assert said(session) == [ErrorUndef(9)]
    assert session.state is SessionState.CLOSED
    assert session.close_reason == "error"
    assert session.violation is not None
    assert session.violation.clause == "hsp.payload.too-large"
    assert session.violation.detail == "payload of 4294967295 bytes; max_payload is 8192"
    assert session.refused == read


@pytest.mark.parametrize(
    ("read", "clause"),
    [
        (wire(Data(7, bytes(11))), "hsp.payload.too-large"),
        (wire(Error(9, 7, bytes(11))), "hsp.payload.too-large"),
        (b"\x07", "hsp.command.unknown"),
        (b"\xff", "hsp.command.unknown"),
    ],
)
def test_other_violations_close_without_a_word(read: bytes, clause: str) -> None:
    session = opened(max_payload=10)
    session.receive(read, 0)
    assert session.violation is not None
    assert session.violation.clause == clause
    assert (session.state, session.outgoing(), session.refused) == (SessionState.CLOSED, b"", read)


@pytest.mark.parametrize("limit", [0, 8191, 8192, 8193, 100_000])
def test_the_limit_is_a_setting(limit: int) -> None:
    session = opened(max_payload=limit)
    run = joined(session.receive(wire(Data(7, bytes(limit))), 0))
    assert [len(m.body) for m in run.messages] == [limit]
    session.receive(wire(Data(7, bytes(limit + 1))), 0)
    assert session.violation is not None
    assert f"max_payload is {limit}" in session.violation.detail


def test_what_came_before_a_violation_is_kept() -> None:
    session = opened()
    good = wire(Data(7, b"one"), frames.PING, DataAck(5, 7, b"two"))
    run = joined(session.receive(good + b"\x63" + wire(Data(7, b"lost")), 0))
    assert [m.kind for m in run.messages] == [Kind.EVENT, Kind.PING, Kind.REQUEST]
    assert run.data == good
    assert session.refused == b"\x63" + wire(Data(7, b"lost"))
    assert session.outgoing() == b"\x04"


def test_what_comes_after_a_violation_is_not_looked_at() -> None:
    session = opened()
    session.receive(b"\x63", 0)
    run = joined(session.receive(wire(Data(7, b"late"), frames.PING), 1))
    assert (run.data, list(run.messages), session.outgoing()) == (b"", [], b"")
    with pytest.raises(PeerClosed):
        session.send(EVENT, 1)


def test_the_end_of_input_does_not_revive_a_refused_peer() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")) + b"\x63", 0)
    session.end_of_input(1)
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "error")
    with pytest.raises(PeerClosed):
        acknowledge(session, 5)


def test_our_own_messages_keep_to_the_limit() -> None:
    session = opened(max_payload=3)
    for message in (EVENT, REQUEST):
        with pytest.raises(LimitExceeded, match="max_payload is 3"):
            session.send(message, 0)
    assert session.outgoing() == b""
    assert not session._waiting


# Half-close and close


def test_a_peer_that_half_closes_still_gets_its_answers() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b""), DataAck(6, 7, b"")), 0)
    session.end_of_input(1)
    assert (session.state, session.close_reason) == (SessionState.CLOSING, "close")
    acknowledge(session, 6)
    assert session.state is SessionState.CLOSING
    session.send(Message(Kind.ERROR, correlation_id="5", status="1"), 2)
    assert session.state is SessionState.CLOSED
    assert said(session) == [Ack(6), Error(5, 1, b"")]


def test_a_peer_that_half_closes_gets_nothing_new() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")), 0)
    session.end_of_input(1)
    for message in (EVENT, REQUEST, Message(Kind.PING)):
        with pytest.raises(PeerClosed):
            session.send(message, 1)
    assert session.outgoing() == b""


def test_with_nothing_owed_the_end_of_input_closes_at_once() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")), 0)
    acknowledge(session, 5)
    session.end_of_input(1)
    assert session.state is SessionState.CLOSED
    assert said(session) == [Ack(5)]


def test_a_frame_cut_off_by_the_end_of_input_is_counted() -> None:
    session = opened()
    session.receive(wire(Data(7, b"hello"))[:-1], 0)
    session.end_of_input(1)
    assert session.counters == {"stream.cut": 1}
    assert session.state is SessionState.CLOSED


def test_closing_waits_for_the_answers_we_owe() -> None:
    session = opened()
    session.receive(wire(DataAck(5, 7, b"")), 0)
    session.close(1)
    assert (session.state, session.outgoing()) == (SessionState.CLOSING, b"")
    with pytest.raises(PeerClosed):
        session.send(EVENT, 1)
    acknowledge(session, 5)
    assert session.state is SessionState.CLOSED
    assert (said(session), session.close_reason) == ([Ack(5)], "close")


def test_closing_says_no_goodbye_and_keeps_its_reason() -> None:
    session = opened()
    session.close(1, "redirect")
    session.close(2, "error")
    assert (session.state, session.outgoing(), session.close_reason) == (SessionState.CLOSED, b"", "redirect")
    with pytest.raises(PeerClosed):
        session.send_frames(b"\x03", 1)


def test_what_was_queued_before_closing_is_sent() -> None:
    session = opened()
    session.send(EVENT, 0)
    session.close(0)
    assert (session.state, said(session)) == (SessionState.CLOSED, [Data(7, b"hello")])


# Bytes


def test_outgoing_bytes_are_handed_out_once_in_order() -> None:
    session = opened()
    session.send(EVENT, 0)
    session.receive(wire(frames.PING), 0)
    session.send_frames(wire(Ack(1), Ack(2)), 2)
    assert session.outgoing() == wire(Data(7, b"hello"), frames.PONG, Ack(1), Ack(2))
    assert session.outgoing() == b""
    assert session.sent == 4


def test_everything_that_is_sent_is_counted() -> None:
    session = opened(ping_interval=1)
    session.receive(wire(frames.PING, DataAck(1, 7, b"")), 0)
    acknowledge(session, 1)
    session.send(EVENT, 0)
    session.expire(1)
    assert (session.sent, len(said(session))) == (4, 4)
    session.receive(b"\x01\x00\x00\x00\x09\x00\x07\xff\xff\xff\xff", 1)
    assert (session.sent, len(said(session))) == (5, 1)


def outcome_of(reads: list[bytes]) -> tuple[object, ...]:
    session = opened(max_payload=64)
    runs = [joined(session.receive(read, 0)) for read in reads]
    messages = [message for run in runs for message in run.messages]
    data = b"".join(bytes(run.data) for run in runs)
    violation = None if session.violation is None else (session.violation.clause, session.violation.detail)
    return (messages, data, sum(run.count for run in runs), session.outgoing(), violation, session.state,
            session.counters, set(session._owed), dict(session.topic_numbers()))  # fmt: skip


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


@given(
    st.one_of(st.lists(any_frame(), max_size=12).map(lambda many: wire(*many)), mutated_stream()),
    st.lists(st.integers(0, 5000), max_size=10),
)
def test_any_split_of_the_input_gives_the_same_conversation(data: bytes, cuts: list[int]) -> None:
    assert outcome_of(pieces(data, cuts)) == outcome_of([data])


@given(st.one_of(st.lists(any_frame(), max_size=6).map(lambda many: wire(*many)), mutated_stream()))
def test_a_stream_read_byte_by_byte_gives_the_same_conversation(data: bytes) -> None:
    assert outcome_of([bytes((byte,)) for byte in data]) == outcome_of([data])


@given(st.one_of(mutated_stream(), st.binary(max_size=200)), st.lists(st.integers(0, 5000), max_size=5))
def test_accepted_waiting_and_refused_bytes_are_the_input(data: bytes, cuts: list[int]) -> None:
    # Credentials are blanked; without the profile there are none.
    session = opened(max_payload=64, profile=b"\xfd\x06" not in data)
    taken = b""
    for read in pieces(data, cuts):
        taken += bytes(data_of(session.receive(read, 0)))
        if session.violation is not None:
            assert data.startswith(taken + session.refused)
            return
    session.end_of_input(0)
    assert data.startswith(taken)
    assert (session.counters.get("stream.cut", 0) == 1) == (len(taken) < len(data))
