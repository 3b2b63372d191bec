"""Sessions have a short way for the most common frames: whatever comes, it must give what the long way gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.emp import strategies as emp_strategies
from tests.protocols.hsp import strategies as hsp_strategies
from tests.protocols.yamp import strategies as yamp_strategies
from wireloom.model import BodyError, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Role, Session
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.registry import protocol
from wireloom.protocols.yamp import frames as yamp_frames

READERS = {
    "hsp": ("hsp.session.read_plain",),
    "yamp": ("yamp.session.read_plain", "yamp.talk.read_plain"),
}
LIMITS = {"hsp": "max_payload", "yamp": "max_body"}
"""The setting that bounds what is sent."""
STREAMS = {
    "emp": emp_strategies.stream() | emp_strategies.mutated_stream(),
    "hsp": hsp_strategies.stream() | hsp_strategies.mutated_stream(),
    "yamp": yamp_strategies.streams | yamp_strategies.spoiled(),
}
GREETINGS = {
    "emp": emp_frames.encode(emp_frames.Frame(emp_frames.Type.HELLO, emp_frames.encode_hello(emp_frames.Hello()))),
    "yamp": yamp_frames.encode(yamp_frames.Handshake(1, "json")),
}
TOPICS = {7: "sensors/kitchen", 300: "$hub/map"}


@contextmanager
def long_way(name: str) -> Iterator[None]:
    """The short ways find nothing."""
    patches = [patch(f"wireloom.protocols.{place}", lambda buffer, start, *rest: start) for place in READERS[name]]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def talking(name: str, role: Role = Role.SERVER, **values: object) -> Session:
    """A session whose handshake is done, with a few requests on their way."""
    own = protocol(name)
    session = own.session(role, own.settings(values), unique=1, topics=TOPICS if name == "hsp" else None)
    session.connected(0.0)
    session.receive(GREETINGS.get(name, b""), 0.0)
    session.outgoing()
    return session


def asked(name: str) -> list[Message]:
    kind = "application/json" if name == "yamp" else None
    return [
        Message(Kind.REQUEST, "a/b", b"1", content_type=kind),
        Message(Kind.REQUEST, "größe", b"2", content_type=kind),
    ]


def seen(session: Session, name: str, data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """Everything that can be seen of a session that reads these bytes in these pieces."""
    ids = [session.ask(request, 0.0) for request in asked(name)]
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    messages: list[Message] = []
    taken = b""
    ignored = 0
    for start, end in itertools.pairwise(places):
        run = session.receive(data[start:end], 1.0)
        messages += run.messages
        taken += bytes(run.data)
        ignored += run.ignored
    violation = session.violation
    return (
        ids, messages, taken, ignored, session.state, session.counters, session.outgoing(), session.outstanding(),
        session.unread(), session.refused, None if violation is None else (violation.clause, violation.detail),
    )  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(data=st.data(), cuts=st.lists(st.integers(0, 600), max_size=4), role=st.sampled_from(Role))
@settings(max_examples=150, deadline=None)
def test_the_short_way_reads_what_the_long_way_reads(
    name: str, data: st.DataObject, cuts: list[int], role: Role
) -> None:
    stream = data.draw(STREAMS[name])
    quick = seen(talking(name, role), name, stream, cuts)
    with long_way(name):
        assert seen(talking(name, role), name, stream, cuts) == quick


class Asking:
    """Somebody who waits for one answer."""

    def __init__(self, request: Message) -> None:
        self.request = request
        self.answers: list[tuple[bytes, str | None]] = []

    def answered(self, body: bytes, content_type: str | None) -> None:
        self.answers.append((body, content_type))


def taken(session: Session, data: bytes, cuts: list[int], *, plain: bool) -> list[Message]:
    """The messages of these bytes in these pieces; with `plain` what can be is taken without a run."""
    messages: list[Message] = []
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, stop in itertools.pairwise(places):
        end = start + (session.take_plain(data[start:stop], 1.0, messages) if plain else 0)
        if end < stop:
            messages += session.receive(data[end:stop], 1.0).messages
    return messages


def answers_to(name: str, requests: bytes) -> bytes:
    server = talking(name, Role.SERVER)
    for request in server.receive(requests, 1.0).messages:
        server.respond(request, b"3", request.content_type, 1.0)
    return server.outgoing()


@pytest.mark.parametrize("name", READERS)
@given(
    data=st.data(),
    cuts=st.lists(st.integers(0, 600), max_size=4),
    role=st.sampled_from(Role),
    order=st.permutations(range(3)),
)
@settings(max_examples=150, deadline=None)
def test_what_is_taken_without_a_run_is_what_a_run_would_hold(
    name: str, data: st.DataObject, cuts: list[int], role: Role, order: list[int]
) -> None:
    usual, quick = talking(name, role), talking(name, role)
    askers = [Asking(request) for request in asked(name)]
    ids = [usual.ask(each.request, 0.0) for each in askers]
    for each, expected in zip(askers, ids, strict=True):
        request = each.request
        assert quick.ask_for(each, request.topic or "", request.body, request.content_type, 0.0) == expected
    requests = usual.outgoing()
    assert quick.outgoing() == requests
    parts = [data.draw(STREAMS[name]), answers_to(name, requests), data.draw(STREAMS[name])]
    stream = b"".join(parts[index] for index in order)

    messages = taken(usual, stream, cuts, plain=False)
    rest = taken(quick, stream, cuts, plain=True)

    given_out = {identifier: each.answers for identifier, each in zip(ids, askers, strict=True)}
    expected_answers = []
    for message in messages:
        answers = given_out.get(message.correlation_id)
        if answers and message.kind is Kind.RESPONSE:
            assert answers.pop() == (message.body, message.content_type)
        else:
            expected_answers.append(message)
    assert rest == expected_answers
    assert not any(given_out.values()), "nobody is answered twice"
    assert [each.id for each in quick.outstanding()] == [each.id for each in usual.outstanding()]
    assert quick.outgoing() == usual.outgoing()
    assert (quick.state, quick.counters, quick.unread()) == (usual.state, usual.counters, usual.unread())
    assert str(quick.violation) == str(usual.violation)


@pytest.mark.parametrize("name", READERS)
def test_answers_go_to_who_asked_unless_somebody_wants_the_messages(name: str) -> None:
    for wants_messages in (False, True):
        client, server = talking(name, Role.CLIENT), talking(name, Role.SERVER)
        askers = [Asking(request) for request in asked(name)]
        for each in askers:
            assert client.ask_for(each, each.request.topic or "", each.request.body, each.request.content_type, 1.0)
        assert [each.body for each in client.outstanding()] == [b"1", b"2"]
        data, requests = client.outgoing(), []
        assert server.take_plain(data, 1.0, requests) == len(data)
        for request in requests:
            server.respond(request, b"3", request.content_type, 1.0)
        data, messages = server.outgoing(), []
        if wants_messages:
            assert len(client.receive(data, 1.0).messages) == 2
            assert not any(each.answers for each in askers)
        else:
            assert client.take_plain(data, 1.0, messages) == len(data)
            body = b"" if name == "hsp" else b"3"
            assert [each.answers for each in askers] == [[(body, asked(name)[0].content_type)]] * 2
            assert messages == []
        assert client.outstanding() == []


@pytest.mark.parametrize("name", READERS)
@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300),
    body=st.binary(max_size=1100),
    kind=st.sampled_from([None, "application/json", "text/plain", "application/octet-stream"]),
)
@settings(max_examples=150, deadline=None)
def test_who_asks_sends_what_a_message_would_say(name: str, topic: str, body: bytes, kind: str | None) -> None:
    request = Message(Kind.REQUEST, topic, body, content_type=kind)
    session, usual = (talking(name, Role.CLIENT, **{LIMITS[name]: 1024}) for _ in range(2))
    try:
        found = session.ask_for(Asking(request), topic, body, kind, 1.0)
    except NotSupported:
        found = None
    if found is None:
        assert session.outgoing() == b"", "nothing was done"
        return
    assert found == usual.ask(request, 1.0)
    assert session.outgoing() == usual.outgoing()
    assert session.outstanding() == usual.outstanding()


@pytest.mark.parametrize("name", READERS)
def test_whole_conversations_take_the_short_way(name: str) -> None:
    """Else the test above would hold nothing against nothing."""
    client, server = talking(name, Role.CLIENT), talking(name, Role.SERVER)
    ids = [client.ask(request, 1.0) for request in asked(name)]
    with patch(f"wireloom.protocols.{name}.frames.decode", side_effect=lambda *_: None) as decode:
        requests = server.receive(client.outgoing(), 1.0).messages
        assert [(each.kind, each.topic, each.body, each.id) for each in requests] == [
            (Kind.REQUEST, "a/b", b"1", ids[0]),
            (Kind.REQUEST, "größe", b"2", ids[1]),
        ]
        for request in requests:
            server.respond(request, b"3", request.content_type, 1.0)
        answers = client.receive(server.outgoing(), 1.0).messages
        assert [(each.kind, each.correlation_id, each.status) for each in answers] == [
            (Kind.RESPONSE, identifier, "done") for identifier in ids
        ]
        assert not any(call.args[1] < len(call.args[0]) for call in decode.call_args_list)
    assert client.outstanding() == []


@pytest.mark.parametrize("name", READERS)
@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300),
    body=st.binary(max_size=1100),
    kind=st.sampled_from([None, "application/json", "text/plain", "application/octet-stream"]),
    attributes=st.sampled_from([{}, {"progressive": "true"}, {"type": "7"}]),
)
@settings(max_examples=150, deadline=None)
def test_the_short_way_writes_what_the_long_way_writes(
    name: str, topic: str, body: bytes, kind: str | None, attributes: dict[str, str]
) -> None:
    request = Message(Kind.REQUEST, topic, body, content_type=kind, attributes=attributes)
    outcomes = []
    for way in ("ask", "send"):
        session = talking(name, Role.CLIENT, **{LIMITS[name]: 1024})
        try:
            found = session.ask(request, 1.0) if way == "ask" else session.send(request, 1.0).id
        except (NotSupported, LimitExceeded) as error:
            outcomes.append((type(error), str(error)))
            continue
        outcomes.append((found, session.outgoing(), session.sent, [each.id for each in session.outstanding()]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", READERS)
@given(body=st.binary(max_size=1100), kind=st.sampled_from([None, "application/json", "text/plain"]))
@settings(max_examples=100, deadline=None)
def test_the_short_way_answers_what_the_long_way_answers(name: str, body: bytes, kind: str | None) -> None:
    asking = talking(name, Role.CLIENT)
    asking.ask(asked(name)[0], 1.0)
    data = asking.outgoing()
    outcomes: list[object] = []
    for way in ("respond", "send"):
        session = talking(name, Role.SERVER, **{LIMITS[name]: 1024})
        (request,) = session.receive(data, 1.0).messages
        try:
            if way == "respond":
                session.respond(request, body, kind, 1.0)
            else:
                session.send(Message(Kind.RESPONSE, request.topic, body, None, request.id, "done", kind), 1.0)
        except (NotSupported, LimitExceeded) as error:
            outcomes.append((type(error), str(error)))
            continue
        outcomes.append((session.outgoing(), session.sent, session.counters))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", READERS)
def test_a_request_is_answered_once(name: str) -> None:
    client, server = talking(name, Role.CLIENT), talking(name, Role.SERVER)
    client.ask(asked(name)[0], 1.0)
    (request,) = server.receive(client.outgoing(), 1.0).messages
    server.respond(request, b"", request.content_type, 1.0)
    with pytest.raises(NotSupported):
        server.respond(request, b"", request.content_type, 1.0)


@pytest.mark.parametrize("name", READERS)
def test_nothing_is_asked_when_the_conversation_is_over(name: str) -> None:
    session = talking(name, Role.CLIENT)
    session.close(1.0)
    with pytest.raises(PeerClosed):
        session.ask(asked(name)[0], 1.0)


@pytest.mark.parametrize("name", ["emp", "yamp"])
def test_no_more_requests_than_max_requests_wait(name: str) -> None:
    session = talking(name, Role.CLIENT, max_requests=2)
    for request in asked(name):
        session.ask(request, 1.0)
    with pytest.raises(LimitExceeded, match="max_requests"):
        session.ask(asked(name)[0], 1.0)


@pytest.mark.parametrize("name", READERS)
@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300),
    bodies=st.lists(st.binary(max_size=1100), min_size=1, max_size=4),
    kind=st.sampled_from([None, "application/json", "text/plain", "größe"]),
)
@settings(max_examples=150, deadline=None)
def test_the_short_way_writes_the_events_that_the_long_way_writes(
    name: str, topic: str, bodies: list[bytes], kind: str | None
) -> None:
    events = [Message(Kind.EVENT, topic, body, content_type=kind) for body in bodies]
    quick, slow = (talking(name, **{LIMITS[name]: 1024}) for _ in range(2))
    try:
        written = quick.write_events(events, 1.0)
    except (NotSupported, LimitExceeded):
        written = None
    if written is None:
        return
    for event in events:
        slow.send(event, 1.0)
    assert written == slow.outgoing()
    assert quick.outgoing() == b"", "nothing is queued"


@pytest.mark.parametrize("name", READERS)
@given(
    topic=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300),
    body=st.binary(max_size=1100),
    kind=st.sampled_from([None, "application/json", "text/plain", "größe"]),
    attributes=st.sampled_from([{}, {"urgent": "1"}, {"type": "7"}]),
)
@settings(max_examples=150, deadline=None)
def test_the_short_way_tells_what_the_long_way_tells(
    name: str, topic: str, body: bytes, kind: str | None, attributes: dict[str, str]
) -> None:
    event = Message(Kind.EVENT, topic, body, content_type=kind, attributes=attributes)
    outcomes: list[object] = []
    for way in ("tell", "send"):
        session = talking(name, Role.CLIENT, **{LIMITS[name]: 1024})
        try:
            session.tell(event, 1.0) if way == "tell" else session.send(event, 1.0)
        except (NotSupported, LimitExceeded, BodyError) as error:
            outcomes.append((type(error), str(error)))
            continue
        outcomes.append((session.outgoing(), session.sent, session.counters))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", READERS)
def test_plain_events_are_told_the_short_way_until_the_conversation_is_over(name: str) -> None:
    session = talking(name, Role.CLIENT)
    event = Message(Kind.EVENT, "a/b", b"1", content_type=session.content_type)
    with patch.object(session, "send", side_effect=AssertionError("the long way")):
        session.tell(event, 1.0)
    session.close(1.0)
    with pytest.raises(PeerClosed):
        session.tell(event, 1.0)


@pytest.mark.parametrize("name", READERS)
def test_plain_events_take_the_short_way_while_the_conversation_is_open(name: str) -> None:
    first, second = talking(name), talking(name)
    assert first.event_style is not None
    assert first.write_events([Message(Kind.EVENT, "a", b"1"), Message(Kind.EVENT, "a", b"2")], 1.0)
    first.close(1.0)
    assert first.event_style is None
    assert second.event_style is not None


def test_events_do_not_overtake_a_large_one_that_is_still_being_packed() -> None:
    session = talking("emp", compress_above=10)
    session.enable_work()
    session.send(Message(Kind.EVENT, "a", b"x" * 1_000_000), 1.0)
    assert session.work() is not None
    assert session.event_style is None
