"""The conversation: handshake, termination, ping-pong, data, request-response, compression, limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.emp.strategies import any_message, mutated_stream, said, stream
from tests.protocols.reading import joined, messages_of
from wireloom.model import Direction, InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Publishes, Role, SessionState
from wireloom.protocols.emp import EMP, EmpSettings, extensions, frames
from wireloom.protocols.emp.extensions import RequestResponse
from wireloom.protocols.emp.frames import ErrorCode, ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.session import EmpSession
from wireloom.protocols.emp.states import APPLICATION, CONVERSATION, MAY_SEND, OUT_OF_TURN

HELLO = bytes.fromhex("0000000c0000000001000000")
BYE = bytes.fromhex("0000000801000000")
PING = bytes.fromhex("0000000802000000")
PONG = bytes.fromhex("0000000803000000")
ERROR = frames.encode(Frame(Type.ERROR, frames.encode_error(frames.Error(0, "sorry"))))
DATA = bytes.fromhex("0000000d0500000068656c6c6f")
OWN = bytes.fromhex("0000000880000000")
SAMPLES = {
    Type.HELLO: HELLO,
    Type.BYE: BYE,
    Type.PING: PING,
    Type.PONG: PONG,
    Type.ERROR: ERROR,
    Type.DATA: DATA,
    APPLICATION: OWN,
}


def fresh(role: Role = Role.SERVER, **values: object) -> EmpSession:
    """A session with nothing left open; `test_auto.py` is about the rest."""
    session = EmpSession(role, EmpSettings.parse({"size_mode": "inclusive", "profile": "on", **values}))
    session.connected(0.0)
    return session


def opened(role: Role = Role.SERVER, **values: object) -> EmpSession:
    """A session whose handshake is over."""
    session = fresh(role, **values)
    session.outgoing()
    session.receive(HELLO, 0.0)
    assert session.state is SessionState.OPEN
    return session


def request(number: int, body: bytes = b"?") -> bytes:
    return related(True, number, body)


def response(number: int, body: bytes = b"!") -> bytes:
    return related(False, number, body)


def related(asks: bool, number: int, body: bytes) -> bytes:
    content = extensions.encode_request_response(RequestResponse(asks, number))
    return frames.encode(Frame(Type.DATA, body, (ExtensionBlock(0, content),)))


def last_words(session: EmpSession) -> frames.Error:
    """The error that the session sent as its last message."""
    data = session.outgoing()
    last = None
    position = 0
    while (found := frames.decode(data, position, size_mode=session.settings.size_mode)) is not None:
        last, position = found
    assert position == len(data)
    assert last is not None
    assert last.type == Type.ERROR
    return frames.decode_error(last.body)


def assert_refused(session: EmpSession, clause: str, code: ErrorCode = ErrorCode.PROTOCOL) -> None:
    assert session.violation is not None
    assert session.violation.clause == clause
    assert clause in EMP.clauses
    assert session.state is SessionState.CLOSED
    assert session.close_reason == "error"
    assert last_words(session).code == code


# Handshake


@pytest.mark.parametrize("role", Role)
def test_both_sides_send_hello_at_once_with_the_highest_version(role: Role) -> None:
    session = fresh(role)
    assert session.outgoing() == HELLO
    assert session.state is SessionState.OPENING


@pytest.mark.parametrize("role", Role)
def test_a_hello_with_a_supported_version_ends_the_handshake(role: Role) -> None:
    session = fresh(role)
    run = joined(session.receive(HELLO, 1.0))
    assert session.state is SessionState.OPEN
    assert [message.kind for message in run.messages] == [Kind.OPEN]
    assert run.data == HELLO


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_gets_error_3_and_a_close(version: int) -> None:
    session = fresh()
    run = joined(session.receive(frames.encode(Frame(Type.HELLO, bytes((version, 0, 0, 0)))), 1.0))
    assert_refused(session, "emp.hello.version")
    assert run.messages == []


@pytest.mark.parametrize(("data", "reason"), [(BYE, "close"), (ERROR, "error")], ids=["bye", "error"])
def test_bye_or_error_during_the_handshake_ends_the_connection(data: bytes, reason: str) -> None:
    session = fresh()
    session.outgoing()
    run = joined(session.receive(data, 1.0))
    assert (session.state, session.close_reason) == (SessionState.CLOSED, reason)
    assert session.outgoing() == b""
    assert run.count == 1


@pytest.mark.parametrize("data", [PING, PONG, DATA, OWN, request(1), response(1)])
def test_anything_else_before_the_handshake_ends_is_a_protocol_error(data: bytes) -> None:
    session = fresh()
    run = joined(session.receive(data + HELLO, 1.0))
    assert_refused(session, "emp.handshake.order")
    assert (run.data, run.messages, session.refused) == (b"", [], data + HELLO)


def test_a_second_hello_is_a_protocol_error() -> None:
    session = opened()
    session.receive(HELLO, 1.0)
    assert_refused(session, "emp.hello.repeated")


def test_the_handshake_times_out_after_5_seconds_with_error_2() -> None:
    session = fresh()
    session.outgoing()
    assert session.deadline() == 5.0
    session.expire(4.999)
    assert session.state is SessionState.OPENING
    session.expire(5.0)
    assert_refused(session, "emp.handshake.timeout", ErrorCode.TIMEOUT)
    assert session.deadline() is None


def test_half_a_hello_does_not_stop_the_handshake_timer() -> None:
    session = fresh()
    session.receive(HELLO[:7], 4.0)
    assert session.deadline() == 5.0


def test_exchanges_are_not_initiated_during_the_handshake() -> None:
    session = fresh()
    assert session.outgoing() == HELLO
    sent = session.send(Message(Kind.REQUEST, body=b"?"), 0.0)
    session.send(Message(Kind.EVENT, body=b"hello"), 0.0)
    assert sent.id == "1"
    assert session.outgoing() == b""
    with pytest.raises(InvalidState, match="after the handshake"):
        session.send(Message(Kind.PING), 0.0)
    session.receive(HELLO, 1.0)
    assert session.outgoing() == request(1) + DATA
    assert [message.correlation_id for message in messages_of(session.receive(response(1), 1.0))] == ["1"]


def test_what_waits_for_the_handshake_is_bounded() -> None:
    session = fresh(max_message=1024)
    session.send(Message(Kind.EVENT, body=b"x" * 1000), 0.0)
    with pytest.raises(LimitExceeded, match="handshake"):
        session.send(Message(Kind.REQUEST, body=b"x" * 100), 0.0)
    session.receive(HELLO, 1.0)
    assert session.send(Message(Kind.REQUEST), 1.0).id == "1"


# Who may send what


@pytest.mark.parametrize(
    ("state", "type_"), list(itertools.product([SessionState.OPENING, SessionState.OPEN], SAMPLES))
)
def test_the_table_of_the_conversation_is_what_happens(state: SessionState, type_: int) -> None:
    session = fresh() if state is SessionState.OPENING else opened()
    session.receive(SAMPLES[type_], 1.0)
    then = CONVERSATION[state].get(type_)
    if then is None:
        assert_refused(session, OUT_OF_TURN[state])
    else:
        assert session.violation is None
        assert session.state is then


@pytest.mark.parametrize("type_", SAMPLES)
def test_the_table_of_the_conversation_holds_while_closing(type_: int) -> None:
    session = opened()
    session.receive(request(1), 1.0)
    session.close(1.0)
    assert session.state is SessionState.CLOSING
    session.receive(SAMPLES[type_], 1.0)
    then = CONVERSATION[SessionState.CLOSING].get(type_)
    assert session.state is (then or SessionState.CLOSED)
    assert (session.violation is None) == (then is not None)


@pytest.mark.parametrize("kind", Kind)
def test_only_the_kinds_of_the_table_are_sent(kind: Kind) -> None:
    session = opened()
    session.receive(request(7), 1.0)
    session.outgoing()
    message = Message(kind, correlation_id="7" if kind is Kind.RESPONSE else None, attributes={"type": "200"})
    if kind in MAY_SEND[SessionState.OPEN]:
        session.send(message, 1.0)
        assert session.outgoing() or kind is Kind.CLOSE
    else:
        with pytest.raises(NotSupported, match=f"kind {kind}"):
            session.send(message, 1.0)
        assert session.outgoing() == b""


# Termination


def test_closing_says_bye_and_then_nothing() -> None:
    session = opened()
    session.close(1.0)
    assert session.outgoing() == BYE
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "close")
    session.close(2.0)
    assert session.outgoing() == b""
    with pytest.raises(PeerClosed):
        session.send(Message(Kind.EVENT), 2.0)


def test_closing_during_the_handshake_says_bye_too() -> None:
    session = fresh()
    session.send(Message(Kind.EVENT), 0.0)
    session.close(1.0)
    assert session.outgoing() == HELLO + BYE
    assert session.state is SessionState.CLOSED


def test_bye_waits_for_the_answers_that_are_owed() -> None:
    session = opened()
    session.receive(request(1) + request(2), 1.0)
    session.close(1.0)
    assert session.outgoing() == b""
    with pytest.raises(PeerClosed, match="closing"):
        session.send(Message(Kind.EVENT), 1.0)
    with pytest.raises(PeerClosed, match="closing"):
        session.send(Message(Kind.OTHER, attributes={"type": "200"}), 1.0)
    session.send(Message(Kind.RESPONSE, body=b"!", correlation_id="2"), 1.0)
    assert session.outgoing() == response(2)
    session.send(Message(Kind.RESPONSE, body=b"!", correlation_id="1"), 1.0)
    assert session.outgoing() == response(1) + BYE
    assert session.state is SessionState.CLOSED


def test_bye_does_not_wait_for_ever() -> None:
    session = opened(close_timeout=3)
    session.receive(request(1), 1.0)
    session.close(10.0)
    assert session.deadline() == 13.0
    session.expire(12.9)
    assert session.outgoing() == b""
    session.expire(13.0)
    assert session.outgoing() == BYE
    assert session.state is SessionState.CLOSED


def test_a_peer_that_says_bye_is_left() -> None:
    session = opened()
    run = joined(session.receive(DATA + BYE, 1.0))
    assert [message.kind for message in run.messages] == [Kind.EVENT, Kind.CLOSE]
    assert (session.state, session.close_reason, session.violation) == (SessionState.CLOSED, "close", None)
    assert session.outgoing() == b""


def test_an_error_received_closes_the_connection() -> None:
    session = opened()
    run = joined(session.receive(ERROR, 1.0))
    assert [(message.kind, message.status, message.value()) for message in run.messages] == [(Kind.ERROR, "0", "sorry")]
    assert (session.state, session.close_reason, session.violation) == (SessionState.CLOSED, "error", None)
    assert session.outgoing() == b""


def test_an_error_sent_closes_the_connection() -> None:
    session = opened()
    session.send(Message(Kind.ERROR, body=b"disk full", status="1"), 1.0)
    assert last_words(session) == frames.Error(ErrorCode.IO, "disk full")
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "error")


@pytest.mark.parametrize("code", [5, 42, 127])
def test_error_codes_below_128_are_reserved_and_not_sent_for_an_application_but_understood(code: int) -> None:
    session = opened()
    session.send(Message(Kind.ERROR, body=b"why", status=str(code)), 1.0)
    assert last_words(session) == frames.Error(ErrorCode.UNSPECIFIED, "why")
    session = opened()
    session.send(Message(Kind.ERROR, body=b"why", status="128"), 1.0)
    assert last_words(session) == frames.Error(128, "why")
    session = opened()
    received = frames.encode(frames.Frame(Type.ERROR, frames.encode_error(frames.Error(code, "why"))))
    assert [message.status for message in messages_of(session.receive(received, 1.0))] == [str(code)]
    assert (session.state, session.violation) == (SessionState.CLOSED, None)


def test_a_connection_that_just_ends_is_closed() -> None:
    session = opened()
    session.receive(DATA[:5], 1.0)
    session.end_of_input(2.0)
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "close")
    assert session.counters == {"stream.cut": 1}
    assert not session.receive(DATA, 3.0)


@pytest.mark.parametrize("end", [BYE, ERROR], ids=["bye", "error"])
def test_what_follows_bye_or_error_is_refused_without_a_word(end: bytes) -> None:
    session = opened()
    run = joined(session.receive(end + DATA, 1.0))
    assert run.data == end
    assert session.refused == DATA
    assert session.violation is not None
    assert session.violation.clause == "emp.flow.after-end"
    assert session.outgoing() == b""


def test_messages_before_a_violation_are_returned() -> None:
    session = opened()
    bad = bytes.fromhex("0000000806000000")
    run = joined(session.receive(DATA + PING + bad + DATA, 1.0))
    assert [message.kind for message in run.messages] == [Kind.EVENT, Kind.PING]
    assert (run.data, session.refused) == (DATA + PING, bad + DATA)
    assert_refused(session, "emp.type.reserved")


# Ping-pong


def test_a_ping_is_answered_with_a_pong() -> None:
    session = opened()
    session.receive(PING, 1.0)
    assert session.outgoing() == PONG


def test_a_ping_or_pong_with_a_body_is_accepted_and_the_body_ignored() -> None:
    session = opened()
    run = joined(
        session.receive(frames.encode(Frame(Type.PING, b"body")) + frames.encode(Frame(Type.PONG, b"body")), 1.0)
    )
    assert [(message.kind, message.body) for message in run.messages] == [(Kind.PING, b""), (Kind.PONG, b"")]
    assert session.outgoing() == PONG
    assert session.state is SessionState.OPEN


def test_a_ping_is_sent_every_10_seconds() -> None:
    session = opened()
    for number in range(1, 6):
        due = 10.0 * number
        assert session.deadline() == due
        session.expire(due - 0.001)
        assert session.outgoing() == b""
        session.expire(due)
        assert session.outgoing() == PING
        session.receive(PONG, due + 1.0)


def test_no_second_ping_before_the_first_is_answered() -> None:
    session = opened(pong_timeout=100)
    session.expire(10.0)
    assert session.outgoing() == PING
    session.expire(20.0)
    assert session.outgoing() == b""
    with pytest.raises(InvalidState, match="one ping at a time"):
        session.send(Message(Kind.PING), 20.0)
    session.receive(PONG, 30.0)
    session.expire(30.0)
    assert session.outgoing() == PING


def test_an_application_may_ping_at_any_time() -> None:
    session = opened()
    session.send(Message(Kind.PING), 3.0)
    assert session.outgoing() == PING
    assert session.deadline() == 8.0
    session.receive(PONG, 4.0)
    assert session.deadline() == 13.0


def test_without_a_pong_in_5_seconds_error_2_is_sent_and_the_connection_closed() -> None:
    session = opened()
    session.expire(10.0)
    session.outgoing()
    assert session.deadline() == 15.0
    session.expire(14.9)
    assert session.state is SessionState.OPEN
    session.expire(15.0)
    assert last_words(session).code == ErrorCode.TIMEOUT
    assert (session.state, session.close_reason, session.violation) == (SessionState.CLOSED, "idle", None)


def test_other_messages_are_processed_as_usual_while_a_pong_is_awaited() -> None:
    session = opened()
    session.expire(10.0)
    session.outgoing()
    run = joined(session.receive(DATA + PING, 11.0))
    assert [message.kind for message in run.messages] == [Kind.EVENT, Kind.PING]
    assert session.outgoing() == PONG
    assert session.deadline() == 15.0


def test_the_procedure_ends_at_the_first_pong_and_another_is_ignored() -> None:
    session = opened()
    session.expire(10.0)
    session.receive(PONG, 11.0)
    assert session.counters == {}
    session.receive(PONG, 12.0)
    assert session.counters == {"emp.pong.unasked": 1}
    assert session.state is SessionState.OPEN
    assert session.deadline() == 20.0


def test_pings_that_overlap_are_counted_and_answered() -> None:
    session = opened()
    session.receive(PING + PING, 1.0)
    assert session.outgoing() == PONG + PONG
    assert session.counters == {"emp.ping.overlap": 1}
    assert "emp.ping.overlap" in frames.COUNTED
    session.receive(PING, 2.0)
    session.outgoing()
    session.receive(PING, 3.0)
    assert session.counters == {"emp.ping.overlap": 1}


def test_a_peer_that_keeps_sending_pings_before_the_pong_is_told_and_closed() -> None:
    session = opened()
    session.receive(PING * 4, 1.0)
    assert session.outgoing() == PONG * 4
    assert session.state is SessionState.OPEN
    batches = session.receive(PING * 3, 2.0)
    assert [message.kind for batch in batches for message in batch.messages] == [Kind.PING]
    assert_refused(session, "emp.ping.too-many", ErrorCode.PROTOCOL)


def test_pings_one_at_a_time_may_go_on_for_ever() -> None:
    session = opened()
    for number in range(1000):
        session.receive(PING, float(number))
        assert session.outgoing() == PONG
    assert session.state is SessionState.OPEN


def test_pings_can_be_turned_off() -> None:
    session = opened(ping_interval=0)
    assert session.deadline() is None
    session.send(Message(Kind.PING), 3.0)
    assert session.deadline() == 8.0


# Data, application types, extensions


def test_data_can_be_sent_and_received_at_any_moment() -> None:
    session = opened()
    session.send(Message(Kind.EVENT, body=b"hello"), 1.0)
    assert session.outgoing() == DATA
    run = joined(session.receive(DATA, 1.0))
    assert run.messages == [Message(Kind.EVENT, body=b"hello", protocol="emp", direction=Direction.C2S)]


def test_application_types_are_sent_and_handed_on() -> None:
    session = opened(Role.CLIENT)
    session.send(Message(Kind.OTHER, body=b"!", attributes={"type": "200"}), 1.0)
    assert session.outgoing() == bytes.fromhex("00000009c800000021")
    run = joined(session.receive(bytes.fromhex("00000009c800000021"), 1.0))
    assert [(m.kind, m.body, m.attributes["type"]) for m in run.messages] == [(Kind.OTHER, b"!", "200")]


def test_an_unknown_extension_is_ignored_and_kept_in_attributes() -> None:
    session = opened()
    run = joined(session.receive(frames.encode(Frame(Type.DATA, b"x", (ExtensionBlock(77, b"\xca\xfe"),))), 1.0))
    assert run.messages[0].body == b"x"
    assert run.messages[0].attributes == {"extension.77": "cafe"}
    assert session.state is SessionState.OPEN


@pytest.mark.parametrize(
    ("blocks", "body", "clause", "code"),
    [
        ((ExtensionBlock(0, b""),), b"", "emp.request-response.size", 4),
        ((ExtensionBlock(0, bytes(12)),), b"", "emp.request-response.zero-id", 3),
        ((ExtensionBlock(1, b""),), b"", "emp.compression.size", 4),
        ((ExtensionBlock(1, bytes(4)), ExtensionBlock(1, bytes(4))), b"", "emp.compression.repeated", 4),
        ((ExtensionBlock(1, bytes.fromhex("02000000")),), b"", "emp.compression.scheme", 4),
        ((ExtensionBlock(1, bytes.fromhex("01000000")),), b"no gzip", "emp.compression.data", 4),
        ((ExtensionBlock(1, bytes.fromhex("01000000")),), extensions.gzip(bytes(101)), "emp.compression.too-large", 4),
        ((ExtensionBlock(128, b""),), b"", "emp.hub.content", 4),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_malformed_block_of_a_known_extension_ends_the_connection(
    blocks: tuple[ExtensionBlock, ...], body: bytes, clause: str, code: int
) -> None:
    session = opened(max_decompressed=100)
    run = joined(session.receive(DATA + frames.encode(Frame(Type.DATA, body, blocks)), 1.0))
    assert run.data == DATA
    assert_refused(session, clause, ErrorCode(code))


def test_compressed_data_is_received_and_sent() -> None:
    session = opened(compress_above=100)
    session.send(Message(Kind.EVENT, body=b"x" * 1000), 1.0)
    data = session.outgoing()
    assert len(data) < 100
    assert messages_of(session.receive(data, 1.0))[0].body == b"x" * 1000


def test_everything_that_is_queued_is_counted_once() -> None:
    session = fresh()
    session.send(Message(Kind.EVENT), 0.0)
    assert session.sent == 1
    session.receive(HELLO + PING, 0.0)
    assert session.sent == 3
    session.send(Message(Kind.REQUEST), 0.0)
    session.expire(10.0)
    session.receive(HELLO, 11.0)
    data, position, count = session.outgoing(), 0, 0
    while (found := frames.decode(data, position)) is not None:
        position, count = found[1], count + 1
    assert session.sent == count == 6


# Request-response


def test_requests_are_numbered_from_1() -> None:
    session = opened()
    sent = [session.send(Message(Kind.REQUEST, body=b"?", id="77"), 1.0) for _ in range(3)]
    assert [message.id for message in sent] == ["1", "2", "3"]
    assert session.outgoing() == request(1) + request(2) + request(3)


def test_an_id_is_never_used_twice_even_when_it_is_answered_or_its_message_was_too_large() -> None:
    session = opened(max_message=1024)
    session.send(Message(Kind.REQUEST), 1.0)
    session.receive(response(1), 1.0)
    with pytest.raises(LimitExceeded):
        session.send(Message(Kind.REQUEST, body=bytes(2000)), 1.0)
    assert session.send(Message(Kind.REQUEST), 1.0).id == "2"


def test_when_all_ids_are_used_no_request_is_sent() -> None:
    session = opened()
    session._pending.last_id = 2**64 - 2
    assert session.send(Message(Kind.REQUEST), 1.0).id == str(2**64 - 1)
    with pytest.raises(LimitExceeded, match="identifiers"):
        session.send(Message(Kind.REQUEST), 1.0)


def test_responses_may_come_in_any_order() -> None:
    session = opened()
    for _ in range(3):
        session.send(Message(Kind.REQUEST), 1.0)
    run = joined(session.receive(response(3) + response(1) + response(2), 1.0))
    assert [message.correlation_id for message in run.messages] == ["3", "1", "2"]
    assert session.violation is None


@pytest.mark.parametrize("number", [2, 2**64 - 1])
def test_a_response_with_an_unknown_id_gets_error_3_and_a_close(number: int) -> None:
    session = opened()
    session.send(Message(Kind.REQUEST), 1.0)
    session.outgoing()
    session.receive(response(number), 1.0)
    assert_refused(session, "emp.response.unknown-id")


def test_a_second_response_is_one_with_an_unknown_id() -> None:
    session = opened()
    session.send(Message(Kind.REQUEST), 1.0)
    session.outgoing()
    run = joined(session.receive(response(1) + response(1), 1.0))
    assert run.data == response(1)
    assert_refused(session, "emp.response.unknown-id")


def test_a_response_has_the_identifier_of_its_request() -> None:
    session = opened()
    asked = messages_of(session.receive(request(2**63), 1.0))[0]
    session.send(Message(Kind.RESPONSE, body=b"!", correlation_id=asked.id), 1.0)
    assert session.outgoing() == response(2**63)


def test_a_request_is_answered_once() -> None:
    session = opened()
    session.receive(request(5), 1.0)
    session.send(Message(Kind.RESPONSE, correlation_id="5"), 1.0)
    session.outgoing()
    with pytest.raises(InvalidState, match="no request 5 waits"):
        session.send(Message(Kind.RESPONSE, correlation_id="5"), 1.0)
    assert session.outgoing() == b""


def test_an_error_for_one_request_does_not_end_the_connection() -> None:
    ours, theirs = opened(Role.CLIENT), opened(Role.SERVER)
    ours.send(Message(Kind.REQUEST, "no/such", b"?"), 1.0)
    theirs.receive(ours.outgoing(), 1.0)
    theirs.send(Message(Kind.ERROR, body=b"no such topic", correlation_id="1", status="404"), 1.0)
    run = joined(ours.receive(theirs.outgoing(), 1.0))
    assert [(m.kind, m.status, m.correlation_id) for m in run.messages] == [(Kind.ERROR, "404", "1")]
    assert (ours.state, theirs.state) == (SessionState.OPEN, SessionState.OPEN)


def test_both_sides_may_ask_with_the_same_ids() -> None:
    session = opened()
    session.send(Message(Kind.REQUEST), 1.0)
    run = joined(session.receive(request(1) + response(1), 1.0))
    assert [message.kind for message in run.messages] == [Kind.REQUEST, Kind.RESPONSE]
    assert session.state is SessionState.OPEN


def test_a_request_with_an_id_that_is_still_unanswered_is_a_protocol_error() -> None:
    session = opened()
    run = joined(session.receive(request(1) + request(1), 1.0))
    assert run.data == request(1)
    assert_refused(session, "emp.request.reused-id")


def test_requests_that_wait_are_bounded_on_both_sides() -> None:
    session = opened(max_requests=2)
    session.send(Message(Kind.REQUEST), 1.0)
    session.send(Message(Kind.REQUEST), 1.0)
    with pytest.raises(LimitExceeded, match="max_requests"):
        session.send(Message(Kind.REQUEST), 1.0)
    session.outgoing()
    session.receive(request(1) + request(2) + request(3), 1.0)
    assert_refused(session, "emp.request.too-many", ErrorCode.UNSPECIFIED)


def test_requests_of_application_types_are_requests_too() -> None:
    session = opened()
    block = ExtensionBlock(0, extensions.encode_request_response(RequestResponse(True, 9)))
    session.receive(frames.encode(Frame(200, b"", (block,))), 1.0)
    session.send(Message(Kind.OTHER, correlation_id="9", attributes={"type": "200"}), 1.0)
    assert session.outgoing()[4] == 200
    session.receive(frames.encode(Frame(200, b"", (ExtensionBlock(0, bytes(11) + b"\1"),))), 1.0)
    assert_refused(session, "emp.response.unknown-id")


def test_large_reads_of_requests_are_read_one_by_one() -> None:
    session = opened()
    assert session.enable_columns()
    numbers = [*range(1, 40), 2**63 - 1, 2**63, 2**64 - 1]
    run = joined(session.receive(b"".join(request(number, b"x" * 64) for number in numbers), 1.0))
    assert [message.id for message in run.messages] == [str(number) for number in numbers]


def test_an_id_that_is_owed_in_columns_is_refused_while_closing_too() -> None:
    client, session = opened(Role.CLIENT), opened()
    session.enable_columns()
    for _ in range(40):
        client.send(Message(Kind.REQUEST, "$hub/publish/a", b"x" * 64), 1.0)
    (batch,) = session.receive(client.outgoing(), 1.0)
    assert isinstance(batch, Publishes)
    session.close(1.0)
    session.receive(request(20), 1.0)
    assert session.violation is not None
    assert session.violation.clause == "emp.request.reused-id"


@pytest.mark.parametrize("columns", [False, True])
def test_a_publish_cannot_have_the_id_of_a_request_that_is_unanswered(columns: bool) -> None:
    client, session = opened(Role.CLIENT), opened()
    if columns:
        session.enable_columns()
    session.receive(request(20), 1.0)
    for _ in range(40):
        client.send(Message(Kind.REQUEST, "$hub/publish/a", b"x" * 64), 1.0)
    assert len(messages_of(session.receive(client.outgoing(), 1.0))) == 19
    assert_refused(session, "emp.request.reused-id")


# Sizes, limits, splits


def test_a_message_that_is_too_large_is_refused_by_its_first_four_bytes() -> None:
    session = opened(max_message=1024)
    session.receive((1025).to_bytes(4), 1.0)
    assert_refused(session, "emp.envelope.too-large")


def test_a_session_with_exclusive_sizes_speaks_and_understands_them_only() -> None:
    session = fresh(size_mode="exclusive")
    hello = session.outgoing()
    assert hello == bytes.fromhex("000000080000000001000000")
    session.receive(hello, 0.0)
    session.send(Message(Kind.REQUEST, "t", b"?"), 0.0)
    echoed = session.outgoing()
    found = frames.decode(echoed, 0, size_mode=SizeMode.EXCLUSIVE)
    assert found is not None
    assert found[1] == len(echoed)
    session.receive(bytes.fromhex("0000000406000000"), 1.0)
    assert_refused(session, "emp.type.reserved")


@given(st.lists(any_message(), max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_any_split_into_reads_gives_the_same_run(messages: list[Message], steps: list[int]) -> None:
    data = HELLO + b"".join(said(message) for message in messages) + PING
    whole, pieces = fresh(), fresh()
    for session in (whole, pieces):
        session.outgoing()
    run = joined(whole.receive(data, 1.0))
    taken, found, replies, position = b"", [], b"", 0
    while position < len(data):
        step = steps[position % len(steps)]
        part = joined(pieces.receive(data[position : position + step], 1.0))
        taken += bytes(part.data)
        found += part.messages
        replies += pieces.outgoing()
        position += step
    assert (taken, found, replies) == (run.data, run.messages, whole.outgoing())
    assert str(pieces.violation) == str(whole.violation)
    assert pieces.state is whole.state


@given(st.binary(max_size=200) | mutated_stream() | stream(), st.booleans(), st.sampled_from(Role))
@settings(max_examples=300)
def test_nothing_a_peer_sends_escapes_as_an_exception(data: bytes, greets: bool, role: Role) -> None:
    session = opened(role) if greets else fresh(role)
    run = joined(session.receive(data, 1.0))
    session.end_of_input(2.0)
    assert data.startswith(bytes(run.data))
    if session.violation is not None:
        assert session.violation.clause in EMP.clauses
        assert bytes(run.data) + session.refused == data
    assert session.state is SessionState.CLOSED


@pytest.mark.parametrize("compression", [None, "identity", "gzip"])
def test_what_is_kept_of_a_login_is_stars(compression: str | None) -> None:
    attributes = {} if compression is None else {"compression": compression}
    client, server = opened(Role.CLIENT), opened()
    for topic in ("before", "$hub/login", "after"):
        client.send(Message(Kind.REQUEST, topic, b'{"token": "secret"}', attributes=attributes), 0)
    run = joined(server.receive(client.outgoing(), 0))
    assert [each.body for each in run.messages] == [b'{"token": "secret"}'] * 3
    decoder = EMP.decoder(Direction.C2S, EMP.settings())
    decoder.feed(run.data)
    kept = [(each.message.topic, each.message.id, each.message.body) for each in decoder]
    stars = b"*" * 19
    assert kept == [(each.topic, each.id, stars if each.topic == "$hub/login" else each.body) for each in run.messages]
