"""The conversation: handshake, liveness, requests and their outcomes, goodbye."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.reading import joined, messages_of
from tests.protocols.yamp.strategies import any_frame, spoiled
from wireloom.formats import body_formats
from wireloom.model import BodyError, InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Batch, Role, SessionState
from wireloom.protocols.yamp import YAMP, frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.protocol import KILL, PROGRESSIVE
from wireloom.protocols.yamp.session import YampSession
from wireloom.protocols.yamp.states import RECEIVES

UID = bytes(range(16))
OTHER = bytes(range(16, 32))


def session(role: Role, *, unique: int = 0, **values: object) -> YampSession:
    made = YAMP.session(role, YAMP.settings(values), unique=unique)
    made.connected(0.0)
    return made


def said(by: YampSession) -> list[frames.Frame]:
    """What a session wants to write, as frames."""
    data = by.outgoing()
    found, position = [], 0
    while position < len(data):
        frame, position = frames.decode(data, position) or pytest.fail("half a frame")
        found.append(frame)
    return found


def hears(by: YampSession, *heard: frames.Frame, now: float = 0.0) -> Batch:
    return joined(by.receive(b"".join(map(frames.encode, heard)), now))


def opened(role: Role, **values: object) -> YampSession:
    made = session(role, **values)
    hears(made, frames.Handshake(1, str(values.get("serializer", "json"))))
    assert made.state is SessionState.OPEN
    made.outgoing()
    return made


def pair(**values: object) -> tuple[YampSession, YampSession]:
    client, server = session(Role.CLIENT, unique=1, **values), session(Role.SERVER, unique=2, **values)
    server.receive(client.outgoing(), 0.0)
    client.receive(server.outgoing(), 0.0)
    assert client.state is server.state is SessionState.OPEN
    return client, server


def waits_for(by: YampSession, request: Message) -> bool:
    """Whether a session takes a response to a request; it is answered then."""
    uid = uuid.UUID(request.id).bytes
    return bool(hears(by, frames.Response(OTHER, "late", uid, ResponseType.DONE, b"")).messages)


def clause(of: YampSession) -> str | None:
    return None if of.violation is None else of.violation.clause


# Handshake


def test_a_client_sends_the_handshake_first_and_at_once() -> None:
    assert said(session(Role.CLIENT, serializer="cbor")) == [frames.Handshake(1, "cbor")]


def test_a_server_says_nothing_before_the_handshake() -> None:
    assert said(session(Role.SERVER)) == []


@pytest.mark.parametrize("serializer", ["", *body_formats.SERIALIZERS])
def test_a_server_echoes_the_same_handshake(serializer: str) -> None:
    server = session(Role.SERVER)
    run = hears(server, frames.Handshake(1, serializer))
    assert said(server) == [frames.Handshake(1, serializer)]
    assert server.state is SessionState.OPEN
    assert [m.kind for m in run.messages] == [Kind.OPEN]
    assert server.serializer == (serializer or "json")
    assert server.content_type == body_formats.content_type(serializer)


def test_an_empty_serializer_is_taken_as_json() -> None:
    server = session(Role.SERVER)
    hears(server, frames.Handshake(1, ""))
    assert (server.serializer, server.content_type) == ("json", "application/json")
    client = session(Role.CLIENT)
    hears(client, frames.Handshake(1, ""))
    assert (client.state, client.serializer) == (SessionState.OPEN, "json")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("version", [0, 2, 256, 65535])
def test_another_version_is_closed_with_a_reason_that_names_what_is_supported(role: Role, version: int) -> None:
    made = session(role)
    made.outgoing()
    hears(made, frames.Handshake(version, "json"))
    (goodbye,) = said(made)
    assert isinstance(goodbye, frames.Close)
    assert goodbye.reason.endswith(f"version {version} is not supported; supported: 1")
    assert (made.state, clause(made)) == (SessionState.CLOSED, "yamp.handshake.version")


def test_a_serializer_the_server_does_not_support_is_closed_with_a_reason() -> None:
    server = session(Role.SERVER, serializers=["json", "raw"])
    hears(server, frames.Handshake(1, "cbor"))
    (goodbye,) = said(server)
    assert isinstance(goodbye, frames.Close)
    assert "'cbor' is not supported; supported: json, raw" in goodbye.reason
    assert (server.state, clause(server)) == (SessionState.CLOSED, "yamp.handshake.serializer")


def test_an_answer_that_is_not_an_echo_is_refused() -> None:
    client = session(Role.CLIENT, serializer="msgpack")
    client.outgoing()
    hears(client, frames.Handshake(1, "json"))
    assert clause(client) == "yamp.handshake.echo"
    assert isinstance(said(client)[0], frames.Close)


def test_a_server_may_answer_the_handshake_with_close() -> None:
    client = session(Role.CLIENT)
    run = hears(client, frames.Close("full"))
    assert (client.state, client.close_reason, client.violation) == (SessionState.CLOSED, "close", None)
    assert client.close_detail == "full"
    assert run.messages[0].attributes == {"reason": "full"}


def test_a_server_may_answer_the_handshake_with_close_redirect() -> None:
    server = session(Role.SERVER, redirect="tcp://other:5043")
    hears(server, frames.Handshake(1, "json"))
    assert said(server) == [frames.CloseRedirect("tcp://other:5043")]
    assert (server.state, server.close_reason) == (SessionState.CLOSED, "redirect")


@pytest.mark.parametrize("role", Role)
def test_a_handshake_that_does_not_come_in_time_ends_the_connection(role: Role) -> None:
    made = session(role, handshake_timeout=3)
    made.outgoing()
    assert made.deadline() == 3.0
    made.receive(b"\x00\x00", 2.0)
    made.expire(2.9)
    assert made.state is SessionState.OPENING
    made.expire(3.0)
    assert (made.state, clause(made)) == (SessionState.CLOSED, "yamp.handshake.timeout")
    assert made.refused == b"\x00\x00"
    (goodbye,) = said(made)
    assert isinstance(goodbye, frames.Close)
    assert "handshake_timeout" in goodbye.reason


def test_without_a_handshake_timeout_there_is_no_deadline_before_the_handshake() -> None:
    assert session(Role.SERVER, handshake_timeout=0).deadline() is None


def test_frames_right_behind_the_handshake_are_taken_in_the_same_read() -> None:
    server = session(Role.SERVER)
    run = hears(server, frames.Handshake(1, "cbor"), frames.Event(UID, "a", b"\x01"))
    assert [(m.kind, m.content_type) for m in run.messages] == [(Kind.OPEN, None), (Kind.EVENT, "application/cbor")]


def test_what_a_client_sends_before_the_echo_is_held_back_and_goes_out_after_it() -> None:
    client = session(Role.CLIENT)
    client.send(Message(Kind.EVENT, "a"), 0.0)
    request = client.send(Message(Kind.REQUEST, "b"), 0.0)
    assert said(client) == [frames.Handshake(1, "json")]
    assert client.sent == 1
    hears(client, frames.Handshake(1, "json"))
    assert [type(frame) for frame in said(client)] == [frames.Event, frames.Request]
    assert client.sent == 3
    assert waits_for(client, request)


def test_what_is_held_back_is_limited() -> None:
    client = session(Role.CLIENT, max_body=100, serializer="raw")
    client.send(Message(Kind.EVENT, "a", bytes(60)), 0.0)
    with pytest.raises(LimitExceeded, match="max_body"):
        client.send(Message(Kind.EVENT, "a", bytes(60)), 0.0)


# Who may send what


FRAME_OF = {
    FrameType.HANDSHAKE: frames.Handshake(1, "json"),
    FrameType.PING: frames.Ping(b"x"),
    FrameType.PONG: frames.Pong(b"x"),
    FrameType.CLOSE: frames.Close("x"),
    FrameType.CLOSE_REDIRECT: frames.CloseRedirect("tcp://h:1"),
    FrameType.EVENT: frames.Event(UID, "u", b""),
    FrameType.REQUEST: frames.Request(UID, "u", False, b""),
    FrameType.CANCEL: frames.Cancel(UID, "u", OTHER, False),
    FrameType.RESPONSE: frames.Response(UID, "u", OTHER, ResponseType.DONE, b""),
}
OUT_OF_TURN = {"yamp.handshake.first", "yamp.handshake.repeated", "yamp.redirect.direction"}


@pytest.mark.parametrize("type_", FrameType, ids=lambda t: t.name.lower())
@pytest.mark.parametrize(("role", "state"), RECEIVES, ids=lambda value: str(value))
def test_each_frame_is_taken_or_refused_as_the_table_says(role: Role, state: SessionState, type_: FrameType) -> None:
    made = session(role) if state is SessionState.OPENING else opened(role)
    if state in (SessionState.CLOSING, SessionState.CLOSED):
        if state is SessionState.CLOSING:
            hears(made, frames.Request(OTHER, "owed", False, b""))
        made.close(0.0)
    made.outgoing()
    assert made.state is state
    run = hears(made, FRAME_OF[type_])
    if type_ in RECEIVES[role, state]:
        assert made.violation is None
        assert run.count == 1
    elif state is SessionState.CLOSED:
        assert (made.violation, run.count) == (None, 0)
    else:
        assert clause(made) in OUT_OF_TURN
        assert (run.data, run.count) == (b"", 0)
        assert made.refused == frames.encode(FRAME_OF[type_])
        assert isinstance(said(made)[-1], frames.Close)


@pytest.mark.parametrize("role", Role)
def test_a_frame_before_the_handshake_is_refused_by_its_first_byte(role: Role) -> None:
    made = session(role)
    made.receive(b"\x05", 0.0)
    assert clause(made) == "yamp.handshake.first"


def test_a_second_handshake_is_refused() -> None:
    for role in Role:
        made = opened(role)
        hears(made, frames.Handshake(1, "json"))
        assert clause(made) == "yamp.handshake.repeated"


def test_a_client_that_redirects_is_refused() -> None:
    for server in (session(Role.SERVER), opened(Role.SERVER)):
        hears(server, frames.CloseRedirect("tcp://h:1"))
        assert clause(server) == "yamp.redirect.direction"


def test_frames_can_be_taken_one_by_one_for_transports_that_carry_messages() -> None:
    client = session(Role.CLIENT)
    client.send(Message(Kind.EVENT, "a"), 0.0)
    hears(client, frames.Handshake(1, "json"), frames.Ping(b"x"))
    found = [frames.decode(data) for data in client.outgoing_frames()]
    assert [type(each[0]) for each in found if each] == [frames.Handshake, frames.Event, frames.Pong]
    assert (client.outgoing_frames(), client.outgoing()) == ([], b"")


# Ping and pong


@pytest.mark.parametrize("role", Role)
@given(payload=st.binary(max_size=255))
def test_a_pong_echoes_the_payload_of_its_ping(role: Role, payload: bytes) -> None:
    made = opened(role)
    run = hears(made, frames.Ping(payload))
    assert said(made) == [frames.Pong(payload)]
    assert [(m.kind, m.body) for m in run.messages] == [(Kind.PING, payload)]


@pytest.mark.parametrize("role", Role)
def test_an_idle_peer_is_pinged_and_a_pong_keeps_it(role: Role) -> None:
    made = opened(role, ping_interval=30, pong_timeout=10)
    assert made.deadline() == 30.0
    made.expire(29.9)
    assert said(made) == []
    made.expire(30.0)
    (ping,) = said(made)
    assert isinstance(ping, frames.Ping)
    hears(made, frames.Pong(ping.payload), now=39.0)
    assert made.counters == {}
    assert made.deadline() == 69.0
    made.expire(69.0)
    assert made.deadline() == 79.0
    hears(made, frames.Pong(ping.payload), now=39.0)
    assert made.counters == {"yamp.pong.unasked": 1}


@pytest.mark.parametrize("role", Role)
def test_a_peer_that_no_longer_answers_pings_is_closed_with_a_reason(role: Role) -> None:
    made = opened(role, ping_interval=30, pong_timeout=10)
    made.expire(30.0)
    (ping,) = said(made)
    assert isinstance(ping, frames.Ping)
    hears(made, frames.Pong(ping.payload), now=31.0)
    made.expire(61.0)
    made.outgoing()
    made.expire(71.0)
    assert (made.state, made.close_reason, made.violation) == (SessionState.CLOSED, "idle", None)
    (goodbye,) = said(made)
    assert isinstance(goodbye, frames.Close)
    assert "pong_timeout" in goodbye.reason


def test_any_traffic_shows_that_a_peer_lives_even_if_it_never_answers_pings() -> None:
    made = opened(Role.SERVER, ping_interval=30, pong_timeout=10)
    now = 0.0
    for _ in range(1000):
        now += 30
        made.expire(now)
        assert isinstance(said(made)[0], frames.Ping)
        now += 9
        hears(made, frames.Event(UID, "a", b""), now=now)
    assert made.state is SessionState.OPEN
    assert made.deadline() == now + 30


@pytest.mark.parametrize("role", Role)
def test_a_peer_that_never_sent_a_pong_is_never_closed_for_want_of_one(role: Role) -> None:
    made = opened(role, ping_interval=30, pong_timeout=10)
    for turn in range(1, 1000):
        assert made.deadline() == 30.0 * turn
        made.expire(30.0 * turn)
        assert [type(each) for each in said(made)] == [frames.Ping]
    assert made.state is SessionState.OPEN


def test_a_pong_nobody_asked_for_is_counted_and_ignored() -> None:
    made = opened(Role.CLIENT)
    hears(made, frames.Pong(b"x"))
    assert (made.state, made.counters) == (SessionState.OPEN, {"yamp.pong.unasked": 1})


def test_pings_can_be_turned_off_and_sent_by_hand() -> None:
    made = opened(Role.CLIENT, ping_interval=0)
    assert made.deadline() is None
    made.send(Message(Kind.PING, body=b"now"), 1.0)
    assert said(made) == [frames.Ping(b"now")]
    hears(made, frames.Pong(b"now"))
    assert made.counters == {}
    with pytest.raises(LimitExceeded, match="255"):
        made.send(Message(Kind.PING, body=bytes(256)), 1.0)


# Close and redirect


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", [SessionState.OPENING, SessionState.OPEN])
def test_closing_sends_system_close_with_the_reason_and_drops_the_connection(role: Role, state: SessionState) -> None:
    made = session(role) if state is SessionState.OPENING else opened(role)
    made.close(0.0, "bye now")
    assert said(made)[-1] == frames.Close("bye now")
    assert (made.state, made.close_reason) == (SessionState.CLOSED, "close")
    made.close(0.0, "again")
    assert said(made) == []


@pytest.mark.parametrize("role", Role)
def test_a_close_that_arrives_ends_the_session_and_tells_the_reason(role: Role) -> None:
    made = opened(role)
    run = hears(made, frames.Close("bye now"), frames.Event(UID, "late", b""))
    assert [(m.kind, dict(m.attributes)) for m in run.messages] == [(Kind.CLOSE, {"reason": "bye now"})]
    assert (made.state, made.close_reason, said(made)) == (SessionState.CLOSED, "close", [])
    assert made.counters == {"yamp.close.followed": 1}
    assert hears(made, frames.Event(UID, "later", b"")).count == 0


def test_a_reason_too_long_for_its_field_is_cut() -> None:
    made = opened(Role.CLIENT)
    made.close(0.0, "ü" * 40000)
    assert said(made) == [frames.Close("ü" * 32767)]


def test_a_redirect_reaches_the_client_with_its_url_and_ends_the_session() -> None:
    url = "ws://hostname:8888/hello/world?msg=goodmorning"
    for client in (session(Role.CLIENT), opened(Role.CLIENT)):
        run = hears(client, frames.CloseRedirect(url))
        assert [(m.kind, dict(m.attributes)) for m in run.messages] == [(Kind.REDIRECT, {"url": url})]
        assert (client.state, client.close_reason, client.close_detail) == (SessionState.CLOSED, "redirect", url)


@pytest.mark.parametrize(
    "url", ["", "tcp://", "tcp://host", "host:5000", "tcp://host:0", "tcp://host:65536", "tcp://a b:1", "tcp://:1"]
)
def test_a_redirect_whose_url_has_not_the_form_is_refused(url: str) -> None:
    client = opened(Role.CLIENT)
    hears(client, frames.CloseRedirect(url))
    assert clause(client) == "yamp.redirect.url"
    server = opened(Role.SERVER)
    with pytest.raises(NotSupported, match="url"):
        server.send(Message(Kind.REDIRECT, attributes={"url": url}), 0.0)


def test_a_server_sends_a_redirect_and_closes() -> None:
    server = opened(Role.SERVER)
    server.send(Message(Kind.REDIRECT, attributes={"url": "tcp://192.168.0.42:5000"}), 0.0)
    assert said(server) == [frames.CloseRedirect("tcp://192.168.0.42:5000")]
    assert (server.state, server.close_reason) == (SessionState.CLOSED, "redirect")
    with pytest.raises(NotSupported, match="server"):
        opened(Role.CLIENT).send(Message(Kind.REDIRECT, attributes={"url": "tcp://h:1"}), 0.0)


def test_closing_waits_for_answers_that_are_owed_and_refuses_new_requests() -> None:
    server = opened(Role.SERVER)
    request = hears(server, frames.Request(UID, "slow", False, b"")).messages[0]
    server.close(0.0, "restart")
    assert (server.state, said(server)) == (SessionState.CLOSING, [])
    with pytest.raises(PeerClosed):
        server.send(Message(Kind.EVENT, "new"), 0.0)
    run = hears(server, frames.Request(OTHER, "new", False, b""))
    assert (run.messages, run.count) == ([], 1)
    (refusal,) = said(server)
    assert isinstance(refusal, frames.Response)
    assert (refusal.type, refusal.request_uid, refusal.uri) == (ResponseType.ERROR, OTHER, "new")
    server.send(Message(Kind.RESPONSE, correlation_id=request.id), 0.0)
    assert [type(frame) for frame in said(server)] == [frames.Response, frames.Close]
    assert server.state is SessionState.CLOSED


def test_a_second_close_does_not_wait() -> None:
    server = opened(Role.SERVER)
    hears(server, frames.Request(UID, "slow", False, b""))
    server.close(0.0, "restart")
    server.close(1.0)
    assert said(server) == [frames.Close("restart")]
    assert server.state is SessionState.CLOSED


def test_a_peer_that_half_closes_still_gets_its_answers() -> None:
    server = opened(Role.SERVER)
    request = hears(server, frames.Request(UID, "a", False, b"")).messages[0]
    server.end_of_input(0.0)
    assert (server.state, server.deadline()) == (SessionState.CLOSING, None)
    server.send(Message(Kind.RESPONSE, correlation_id=request.id), 0.0)
    assert [type(frame) for frame in said(server)] == [frames.Response]
    assert (server.state, server.close_reason) == (SessionState.CLOSED, "close")


@pytest.mark.parametrize("role", Role)
def test_the_end_of_input_closes_a_session_that_owes_nothing(role: Role) -> None:
    for made in (session(role), opened(role)):
        joined(made.receive(b"\x00", 0.0)) if made.state is SessionState.OPENING else joined(made.receive(b"\x05", 0.0))
        made.end_of_input(0.0)
        assert (made.state, made.counters) == (SessionState.CLOSED, {"stream.cut": 1})
        with pytest.raises(PeerClosed):
            made.send(Message(Kind.EVENT, "a"), 0.0)


# Events


def test_events_go_by_uri_in_both_directions() -> None:
    client, server = pair()
    for sender, receiver in ((client, server), (server, client)):
        sent = sender.send(Message(Kind.EVENT, "sensors/küche", b'{"c":1}', content_type="application/json"), 5.0)
        (got,) = messages_of(receiver.receive(sender.outgoing(), 5.0))
        assert (got.kind, got.topic, got.body, got.id) == (Kind.EVENT, "sensors/küche", b'{"c":1}', sent.id)
        assert got.direction is sent.direction is sender.role.sends


def test_a_message_is_returned_as_it_was_sent_and_keeps_what_is_not_on_the_wire() -> None:
    message = Message(Kind.EVENT, "a", b"1", time=7, connection="c", attributes={"x": "y"})
    sent = opened(Role.CLIENT).send(message, 0.0)
    assert (sent.time, sent.connection, dict(sent.attributes), sent.protocol) == (7, "c", {"x": "y"}, "yamp")


@pytest.mark.parametrize("kind", [Kind.EVENT, Kind.REQUEST])
@pytest.mark.parametrize("topic", [None, ""])
def test_an_event_or_request_without_a_topic_is_not_sent(kind: Kind, topic: str | None) -> None:
    with pytest.raises(NotSupported, match="topic"):
        opened(Role.CLIENT).send(Message(kind, topic), 0.0)


def test_what_is_too_long_is_not_sent() -> None:
    client = opened(Role.CLIENT, max_body=10, max_requests=1, serializer="raw")
    with pytest.raises(LimitExceeded, match="255"):
        client.send(Message(Kind.EVENT, "u" * 256), 0.0)
    with pytest.raises(LimitExceeded, match="max_body"):
        client.send(Message(Kind.REQUEST, "u", bytes(11)), 0.0)
    assert client.outgoing() == b""
    client.send(Message(Kind.REQUEST, "u", bytes(10)), 0.0)


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.PONG, Kind.ACK, Kind.OTHER])
def test_what_yamp_cannot_say_is_refused(kind: Kind) -> None:
    with pytest.raises(NotSupported):
        opened(Role.CLIENT).send(Message(kind, "a"), 0.0)


@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), max_size=300),
    bodies=st.lists(st.binary(max_size=1100), min_size=1, max_size=4),
    kind=st.sampled_from([None, "application/json", "text/plain", "größe"]),
)
def test_events_written_for_many_are_what_one_would_be_sent(topic: str, bodies: list[bytes], kind: str | None) -> None:
    events = [Message(Kind.EVENT, topic, body, content_type=kind) for body in bodies]
    once, usual = opened(Role.SERVER, max_body=1024), opened(Role.SERVER, max_body=1024)
    try:
        for event in events:
            usual.send(event, 1.0)
    except (NotSupported, LimitExceeded) as error:
        try:
            assert once.write_events(events, 1.0) is None, "one by one it is found out"
        except (NotSupported, LimitExceeded) as same:
            assert type(same) is type(error)
        return
    written = once.write_events(events, 1.0)
    if written is None:
        return  # its body is converted: one by one
    assert once.outgoing() == b"", "nothing is queued"
    assert written == usual.outgoing()
    assert b"".join(once.frames_of(written)) == written
    assert len(once.frames_of(written)) == len(events)


def test_events_are_written_alike_under_the_same_settings_while_the_conversation_is_open() -> None:
    settings = YAMP.settings()
    first, second, other = (YAMP.session(Role.SERVER, settings) for _ in range(3))
    assert first.event_style is None
    for each, serializer in ((first, "json"), (second, "json"), (other, "cbor")):
        hears(each, frames.Handshake(1, serializer))
    assert first.event_style == second.event_style != other.event_style
    first.close(1.0)
    assert first.event_style is None


# Requests


def test_a_response_repeats_the_uri_of_its_request_and_names_its_uid() -> None:
    client, server = pair()
    sent = client.send(Message(Kind.REQUEST, "math/add", b"[1,2]"), 0.0)
    (request,) = messages_of(server.receive(client.outgoing(), 0.0))
    server.send(Message(Kind.RESPONSE, "another/topic", b"3", correlation_id=request.id), 0.0)
    (response,) = messages_of(client.receive(server.outgoing(), 0.0))
    assert (response.kind, response.topic, response.body) == (Kind.RESPONSE, "math/add", b"3")
    assert (response.correlation_id, response.status) == (sent.id, "done")
    assert not waits_for(client, sent)


def test_requests_go_from_server_to_client_as_well() -> None:
    client, server = pair()
    sent = server.send(Message(Kind.REQUEST, "client-echo", b"1"), 0.0)
    (request,) = messages_of(client.receive(server.outgoing(), 0.0))
    client.send(Message(Kind.RESPONSE, body=b"1", correlation_id=request.id), 0.0)
    assert messages_of(server.receive(client.outgoing(), 0.0))[0].correlation_id == sent.id


@pytest.mark.parametrize(
    ("kind", "status", "type_"),
    [
        (Kind.RESPONSE, None, ResponseType.DONE),
        (Kind.RESPONSE, "done", ResponseType.DONE),
        (Kind.RESPONSE, "cancelled", ResponseType.CANCELLED),
        (Kind.ERROR, None, ResponseType.ERROR),
        (Kind.ERROR, "error", ResponseType.ERROR),
    ],
)
def test_a_final_answer_has_its_type_and_can_be_given_once(kind: Kind, status: str | None, type_: ResponseType) -> None:
    server = opened(Role.SERVER)
    request = hears(server, frames.Request(UID, "a", False, b"")).messages[0]
    answer = Message(kind, body=b"1", correlation_id=request.id, status=status)
    server.send(answer, 0.0)
    (frame,) = said(server)
    assert isinstance(frame, frames.Response)
    assert (frame.type, frame.request_uid, frame.body) == (type_, UID, b"1")
    with pytest.raises(InvalidState, match="waits for an answer"):
        server.send(answer, 0.0)


def test_responses_are_matched_by_request_uid_alone() -> None:
    client = opened(Role.CLIENT)
    first, second = (client.send(Message(Kind.REQUEST, "a"), 0.0) for _ in range(2))
    uid = uuid.UUID(second.id).bytes
    (got,) = hears(client, frames.Response(OTHER, "quite/another", uid, ResponseType.DONE, b"")).messages
    assert got.correlation_id == second.id
    assert waits_for(client, first)


def test_a_response_to_nothing_is_counted_and_ignored() -> None:
    client = opened(Role.CLIENT)
    frame = frames.Response(UID, "a", OTHER, ResponseType.DONE, b"")
    run = hears(client, frame)
    assert (run.messages, run.count, run.data) == ([], 1, frames.encode(frame))
    assert (client.state, client.counters) == (SessionState.OPEN, {"yamp.response.unknown": 1})


def test_progress_reaches_a_requester_that_asked_for_it() -> None:
    client, server = pair()
    client.send(Message(Kind.REQUEST, "count", b"2", attributes=PROGRESSIVE), 0.0)
    (request,) = messages_of(server.receive(client.outgoing(), 0.0))
    assert request.attributes == {"progressive": "true"}
    for step in (b"1", b"2"):
        server.send(Message(Kind.PROGRESS, body=step, correlation_id=request.id), 0.0)
    server.send(Message(Kind.RESPONSE, body=b'"end"', correlation_id=request.id), 0.0)
    got = messages_of(client.receive(server.outgoing(), 0.0))
    assert [(m.kind, m.status, m.body) for m in got] == [
        (Kind.PROGRESS, "progress", b"1"),
        (Kind.PROGRESS, "progress", b"2"),
        (Kind.RESPONSE, "done", b'"end"'),
    ]


def test_progress_that_nobody_asked_for_is_dropped_and_counted_on_receipt() -> None:
    client = opened(Role.CLIENT)
    sent = client.send(Message(Kind.REQUEST, "a"), 0.0)
    uid = uuid.UUID(sent.id).bytes
    run = hears(client, frames.Response(UID, "a", uid, ResponseType.PROGRESS, b""))
    assert (run.messages, run.count) == ([], 1)
    assert client.counters == {"yamp.progress.unrequested": 1}
    assert waits_for(client, sent)


def test_progress_that_nobody_asked_for_is_not_sent() -> None:
    server = opened(Role.SERVER)
    request = hears(server, frames.Request(UID, "a", False, b"")).messages[0]
    server.send(Message(Kind.PROGRESS, correlation_id=request.id), 0.0)
    assert (said(server), server.counters) == ([], {"yamp.progress.unrequested": 1})


def test_cancel_reaches_the_responder_which_answers_cancelled() -> None:
    client, server = pair()
    sent = client.send(Message(Kind.REQUEST, "slow"), 0.0)
    (request,) = messages_of(server.receive(client.outgoing(), 0.0))
    client.send(Message(Kind.CANCEL, correlation_id=sent.id), 0.0)
    (cancel,) = messages_of(server.receive(client.outgoing(), 0.0))
    assert (cancel.kind, cancel.topic, cancel.correlation_id, dict(cancel.attributes)) == (
        Kind.CANCEL, "slow", sent.id, {},
    )  # fmt: skip
    server.send(Message(Kind.RESPONSE, correlation_id=request.id, status="cancelled"), 0.0)
    (answer,) = messages_of(client.receive(server.outgoing(), 0.0))
    assert (answer.kind, answer.status) == (Kind.RESPONSE, "cancelled")
    assert not waits_for(client, sent)


def test_after_kill_no_response_follows() -> None:
    client, server = pair()
    sent = client.send(Message(Kind.REQUEST, "slow", attributes=PROGRESSIVE), 0.0)
    (request,) = messages_of(server.receive(client.outgoing(), 0.0))
    client.send(Message(Kind.CANCEL, correlation_id=sent.id, attributes=KILL), 0.0)
    assert not waits_for(client, sent)
    (cancel,) = messages_of(server.receive(client.outgoing(), 0.0))
    assert cancel.attributes == {"kill": "true"}
    server.send(Message(Kind.PROGRESS, correlation_id=request.id), 0.0)
    server.send(Message(Kind.RESPONSE, correlation_id=request.id), 0.0)
    assert (said(server), server.counters) == ([], {"yamp.response.killed": 2})


def test_the_uid_of_a_killed_request_may_be_used_again() -> None:
    server = opened(Role.SERVER)
    request = frames.Request(UID, "a", False, b"")
    hears(server, request, frames.Cancel(OTHER, "a", UID, True), request)
    answer = Message(Kind.RESPONSE, correlation_id=str(uuid.UUID(bytes=UID)))
    server.send(answer, 0.0)
    assert len(said(server)) == 1
    with pytest.raises(InvalidState, match="waits for an answer"):
        server.send(answer, 0.0)


def test_a_request_that_timed_out_is_forgotten_by_killing_it() -> None:
    client = opened(Role.CLIENT, max_requests=1)
    sent = client.send(Message(Kind.REQUEST, "slow"), 0.0)
    client.send(Message(Kind.CANCEL, correlation_id=sent.id, attributes=KILL), 5.0)
    uid = uuid.UUID(sent.id).bytes
    assert hears(client, frames.Response(UID, "slow", uid, ResponseType.DONE, b"late")).messages == []
    client.send(Message(Kind.REQUEST, "next"), 6.0)


def test_cancelled_requests_that_are_never_answered_make_room_for_new_ones() -> None:
    client = opened(Role.CLIENT, max_requests=2)
    first, second = (client.send(Message(Kind.REQUEST, "slow"), 0.0) for _ in range(2))
    client.send(Message(Kind.CANCEL, correlation_id=second.id), 5.0)
    third = client.send(Message(Kind.REQUEST, "next"), 6.0)
    with pytest.raises(LimitExceeded, match="max_requests"):
        client.send(Message(Kind.REQUEST, "more"), 6.0)
    assert [waits_for(client, each) for each in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("kill", [False, True])
def test_a_cancel_for_a_request_that_is_unknown_or_done_is_ignored(kill: bool) -> None:
    server = opened(Role.SERVER)
    request = hears(server, frames.Request(UID, "a", False, b"")).messages[0]
    server.send(Message(Kind.RESPONSE, correlation_id=request.id), 0.0)
    server.outgoing()
    run = hears(server, frames.Cancel(OTHER, "a", UID, kill), frames.Cancel(OTHER, "a", OTHER, kill))
    assert (run.messages, run.count, said(server)) == ([], 2, [])
    assert (server.state, server.counters) == (SessionState.OPEN, {"yamp.cancel.unknown": 2})


def test_a_cancel_that_comes_too_late_is_not_sent() -> None:
    client = opened(Role.CLIENT)
    sent = client.send(Message(Kind.REQUEST, "a"), 0.0)
    hears(client, frames.Response(OTHER, "a", uuid.UUID(sent.id).bytes, ResponseType.DONE, b""))
    client.outgoing()
    client.send(Message(Kind.CANCEL, correlation_id=sent.id), 0.0)
    assert said(client) == []


def test_a_uid_that_is_still_unanswered_must_not_be_used_again() -> None:
    server = opened(Role.SERVER)
    request = frames.Request(UID, "a", False, b"")
    hears(server, request)
    hears(server, request)
    assert clause(server) == "yamp.request.uid-reused"


def test_requests_that_wait_are_limited_in_both_directions() -> None:
    client, server = pair(max_requests=3)
    for _ in range(3):
        client.send(Message(Kind.REQUEST, "a"), 0.0)
    with pytest.raises(LimitExceeded, match="max_requests"):
        client.send(Message(Kind.REQUEST, "a"), 0.0)
    server.receive(client.outgoing(), 0.0)
    assert server.violation is None
    hears(server, frames.Request(UID, "a", False, b""))
    assert clause(server) == "yamp.request.too-many"


def test_killed_requests_are_remembered_only_up_to_a_limit() -> None:
    server = opened(Role.SERVER, max_requests=2)
    for number in range(5):
        uid = bytes((number,)) * 16
        hears(server, frames.Request(uid, "a", False, b""), frames.Cancel(UID, "a", uid, True))
    server.send(Message(Kind.RESPONSE, correlation_id=str(uuid.UUID(bytes=b"\x04" * 16))), 0.0)
    assert server.counters == {"yamp.response.killed": 1}
    with pytest.raises(InvalidState):
        server.send(Message(Kind.RESPONSE, correlation_id=str(uuid.UUID(bytes=b"\x00" * 16))), 0.0)


# Limits


def test_a_body_above_the_limit_is_refused_before_it_arrives() -> None:
    server = opened(Role.SERVER, max_body=1000)
    head = frames.encode(frames.Event(UID, "a", bytes(1001)))[:23]
    run = joined(server.receive(frames.encode(FRAME_OF[FrameType.EVENT]) + head, 0.0))
    assert run.count == 1
    assert (clause(server), server.refused) == ("yamp.body.too-large", head)
    (goodbye,) = said(server)
    assert isinstance(goodbye, frames.Close)
    assert "max_body is 1000" in goodbye.reason


def test_a_large_body_may_arrive_in_many_reads() -> None:
    server = opened(Role.SERVER)
    data = frames.encode(frames.Event(UID, "a", bytes(range(256)) * 1000))
    runs = [joined(server.receive(data[at : at + 1000], 0.0)) for at in range(0, len(data), 1000)]
    assert [run.count for run in runs] == [0] * (len(runs) - 1) + [1]
    assert runs[-1].data == data
    assert runs[-1].messages[0].body == bytes(range(256)) * 1000


# Uids


def test_uids_are_uuids_of_version_7_with_the_time_that_was_passed_in() -> None:
    client = opened(Role.CLIENT)
    client.epoch = 1_700_000_000.0
    sent = [client.send(Message(Kind.EVENT, "a"), now) for now in (0.0, 0.0, 0.5, 0.25, 7.0)]
    ids = [uuid.UUID(m.id) for m in sent]
    assert {(uid.version, uid.variant) for uid in ids} == {(7, uuid.RFC_4122)}
    assert [uid.int >> 80 for uid in ids] == [1_700_000_000_000 + ms for ms in (0, 0, 500, 500, 7000)]
    assert ids == sorted(ids)
    assert [frame.uid for frame in said(client) if isinstance(frame, frames.Event)] == [uid.bytes for uid in ids]


def test_uids_ascend_when_thousands_are_drawn_in_one_millisecond() -> None:
    client = opened(Role.CLIENT)
    ids = [client.send(Message(Kind.EVENT, "a"), 1.0).id or "" for _ in range(10_000)]
    assert ids == sorted(set(ids))


def test_the_seed_alone_decides_the_random_part_of_uids() -> None:
    def drawn(unique: int) -> str | None:
        made = session(Role.CLIENT, unique=unique)
        return made.send(Message(Kind.EVENT, "a"), 1.0).id

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("uid", [bytes(16), b"\xff" * 16, b"\x07" * 16])
def test_any_16_bytes_are_taken_as_a_uid(uid: bytes) -> None:
    server = opened(Role.SERVER)
    (request,) = hears(server, frames.Request(uid, "a", False, b"")).messages
    server.send(Message(Kind.RESPONSE, correlation_id=request.id), 0.0)
    (answer,) = said(server)
    assert isinstance(answer, frames.Response)
    assert answer.request_uid == uid


# Bodies and the hub profile


def test_a_body_of_another_format_is_converted_to_the_one_agreed_on() -> None:
    client = opened(Role.CLIENT, serializer="msgpack")
    sent = client.send(Message(Kind.EVENT, "a", b'{"a":1}', content_type="application/json"), 0.0)
    assert (sent.body, sent.content_type) == (b"\x81\xa1a\x01", "application/msgpack")
    plain = client.send(Message(Kind.EVENT, "a", b"hello", content_type="text/plain"), 0.0)
    assert (plain.body, plain.content_type) == (b"\xa5hello", "application/msgpack")
    bare = client.send(Message(Kind.EVENT, "a", b"\x01"), 0.0)
    assert (bare.body, bare.content_type) == (b"\xa4AQ==", "application/msgpack")
    picture = client.send(Message(Kind.EVENT, "a", b"\x01", content_type="image/png"), 0.0)
    assert (picture.body, picture.attributes) == (b"\xa4AQ==", {"content_type": "image/png"})
    with pytest.raises(BodyError, match="application/json"):
        client.send(Message(Kind.EVENT, "a", b"{", content_type="application/json"), 0.0)


NOTHING = {"json": b"null", "msgpack": b"\xc0", "cbor": b"\xf6", "bson": b"\5\0\0\0\0", "raw": b"", "xml": b""}


@pytest.mark.parametrize(("serializer", "body"), NOTHING.items())
def test_no_body_is_the_null_of_the_serializer_in_every_user_message(serializer: str, body: bytes) -> None:
    server = opened(Role.SERVER, serializer=serializer)
    (request,) = hears(server, frames.Request(UID, "a", True, b"")).messages
    assert (request.body, request.value()) in ((b"", None), (b"", b""))
    answers = [Message(kind, correlation_id=request.id) for kind in (Kind.PROGRESS, Kind.RESPONSE)]
    for message in (Message(Kind.EVENT, "a"), Message(Kind.REQUEST, "a"), *answers):
        server.send(message, 0.0)
    written = server.write_events([Message(Kind.EVENT, "a"), Message(Kind.EVENT, "b", b"")], 0.0)
    server.send_frames(written or b"", 2)
    found = said(server)
    assert [type(each) for each in found] == [frames.Event, frames.Request, *2 * [frames.Response], *2 * [frames.Event]]
    assert {each.body for each in found if not isinstance(each, frames.Ping)} == {body}


def test_a_request_that_comes_too_late_is_refused_with_a_body_that_can_be_read() -> None:
    server = opened(Role.SERVER)
    hears(server, frames.Request(UID, "a", False, b"1"))
    server.close(0.0)
    hears(server, frames.Request(OTHER, "b", False, b"1"))
    (refused,) = said(server)
    assert isinstance(refused, frames.Response)
    assert (refused.type, refused.body) == (ResponseType.ERROR, b"null")


@pytest.mark.parametrize("serializer", ["raw", "xml", "protobuf", "flatbuffers"])
def test_operations_are_json_text_with_serializers_that_have_no_plain_values(serializer: str) -> None:
    server = opened(Role.SERVER, serializer=serializer)
    (operation,) = hears(server, frames.Request(UID, "$hub/subscribe", False, b'{"topic":"a/#"}')).messages
    assert operation.body == b'{"topic":"a/#"}'


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor", "bson"])
def test_operations_of_the_hub_arrive_as_json_whatever_was_agreed_on(serializer: str) -> None:
    server = opened(Role.SERVER, serializer=serializer)
    body = body_formats.body_format(serializer).dumps({"topic": "a/#"})
    (operation, publish) = hears(
        server,
        frames.Request(UID, "$hub/subscribe", False, body),
        frames.Request(OTHER, "$hub/publish/a/b", False, body),
    ).messages
    assert (operation.body, operation.content_type) == (b'{"topic":"a/#"}', "application/json")
    assert (publish.body, publish.content_type) == (body, body_formats.CONTENT_TYPES[serializer])


def test_an_operation_whose_body_does_not_parse_arrives_as_it_is() -> None:
    server = opened(Role.SERVER, serializer="msgpack")
    (operation,) = hears(server, frames.Request(UID, "$hub/subscribe", False, b"\xc1")).messages
    assert (operation.body, operation.content_type) == (b"\xc1", "application/msgpack")


def test_the_serializer_is_kept_among_the_numbers_of_a_connection_unless_it_is_json() -> None:
    assert opened(Role.SERVER).agreed() == {}
    assert opened(Role.SERVER, serializer="cbor").agreed() == {"serializer": "cbor"}


# Anything at all


def test_what_follows_a_close_is_counted_once_wherever_the_stream_is_cut() -> None:
    close, event = frames.encode(frames.Close("bye")), frames.encode(frames.Event(bytes(16), "a", b"1"))
    for reads in ([close + event + event], [close, event, event], [close + event, event], [close, event + event]):
        made = opened(Role.SERVER)
        for read in reads:
            made.receive(read, 0.0)
        assert made.counters == {"yamp.close.followed": 1}, reads


@given(st.lists(any_frame, max_size=8), st.sampled_from(Role), st.lists(st.integers(0, 500), max_size=5))
def test_a_session_gives_the_same_however_the_stream_is_cut(
    stream: list[frames.Frame], role: Role, at: list[int]
) -> None:
    data = b"".join(map(frames.encode, stream))
    whole, cut = opened(role), opened(role)
    expected = joined(whole.receive(data, 0.0))
    edges = [0, *sorted(edge for edge in at if edge < len(data)), len(data)]
    runs = [joined(cut.receive(data[start:end], 0.0)) for start, end in itertools.pairwise(edges)]
    assert [m for run in runs for m in run.messages] == list(expected.messages)
    assert b"".join(bytes(run.data) for run in runs) == expected.data
    assert sum(run.count for run in runs) == expected.count
    assert (cut.state, cut.counters, clause(cut)) == (whole.state, whole.counters, clause(whole))
    assert cut.outgoing() == whole.outgoing()


@given(st.one_of(spoiled(), st.binary(max_size=100)), st.sampled_from(Role), st.booleans())
def test_nothing_a_peer_sends_makes_a_session_raise(data: bytes, role: Role, greeted: bool) -> None:
    made = opened(role) if greeted else session(role)
    run = joined(made.receive(data, 0.0))
    if made.violation is not None:
        assert clause(made) in YAMP.clauses
        assert bytes(run.data) + made.refused == data
        assert isinstance(said(made)[-1], frames.Close)
    made.end_of_input(0.0)


# Errors with a code (hub profile)


def failing(serializer: str, error: Message) -> tuple[bytes, Message]:
    """The body an error has on the wire, and what the requester gets."""
    client, server = pair(serializer=serializer)
    sent = client.send(Message(Kind.REQUEST, "a/b"), 0.0)
    (asked,) = messages_of(server.receive(client.outgoing(), 0.0))
    server.send(error.with_(correlation_id=asked.id), 0.0)
    data = server.outgoing()
    frame, _ = frames.decode(data, 0) or pytest.fail("half a frame")
    assert isinstance(frame, frames.Response) and frame.type is ResponseType.ERROR
    (received,) = messages_of(client.receive(data, 0.0))
    assert (received.kind, received.correlation_id) == (Kind.ERROR, sent.id)
    return frame.body, received


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor", "bson"])
@pytest.mark.parametrize(
    ("body", "content_type"), [(b"no such table", "text/plain"), (b"", None), (b"\xff\x00", None), (b'{"id": 7}', None)]
)
def test_an_error_keeps_its_code_and_reason(serializer: str, body: bytes, content_type: str | None) -> None:
    _, received = failing(serializer, Message(Kind.ERROR, body=body, status="404", content_type=content_type))
    assert (received.status, received.body) == ("404", body)


def test_an_error_with_a_code_is_an_object_of_the_agreed_serializer() -> None:
    body, _ = failing("json", Message(Kind.ERROR, body=b"no", status="404", content_type="text/plain"))
    assert body == b'{"code":"404","reason":"no"}'
    body, received = failing(
        "cbor", Message(Kind.ERROR, body=b'{"left": 3}', status="429", content_type="application/json")
    )
    assert body_formats.body_format("cbor").loads(body) == {"code": "429", "reason": {"left": 3}}
    assert received.status == "429"
    assert body_formats.body_format("cbor").loads(received.body) == {"left": 3}


@pytest.mark.parametrize("serializer", ["xml", "protobuf", "flatbuffers", "raw"])
def test_a_serializer_without_plain_values_carries_the_reason_alone(serializer: str) -> None:
    body, received = failing(serializer, Message(Kind.ERROR, body=b"no", status="404"))
    assert (body, received.body, received.status) == (b"no", b"no", "error")


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"[1]", "error", b"[1]"),
        (b'{"error": "no"}', "error", b'{"error": "no"}'),
        (b'{"code": 7, "text": "no"}', "7", b'{"code": 7, "text": "no"}'),
        (b'{"code": 7}', "7", b""),
        (b'{"code": true}', "error", b'{"code": true}'),
        (b'{"code": null, "reason": "x"}', "error", b'{"code": null, "reason": "x"}'),
        (b'{"code": "1", "reason_base64": "%"}', "1", b'{"code": "1", "reason_base64": "%"}'),
        (b"not json", "error", b"not json"),
        (b"", "error", b""),
    ],
)
def test_errors_of_peers_that_know_nothing_of_codes(body: bytes, status: str, expected: bytes) -> None:
    client = opened(Role.CLIENT)
    sent = client.send(Message(Kind.REQUEST, "a/b"), 0.0)
    uid = uuid.UUID(sent.id or "").bytes
    (received,) = hears(client, frames.Response(UID, "a/b", uid, ResponseType.ERROR, body)).messages
    assert received.status == status
    assert received.body == expected
