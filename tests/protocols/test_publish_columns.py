"""Batches in columns: a session with `enable_columns()` behaves like one that reads frame by frame with `frames.py`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.reading import data_of, messages_of
from tests.protocols.talking import STREAMS, TOPICS, talking
from wireloom.model import InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.contract import Batch, Calls, Publishes, Role, Session, SessionState, decode_stream, is_control
from wireloom.protocols.decoding import Decoded
from wireloom.protocols.hsp import frames as hsp_frames
from wireloom.protocols.hsp.profile import ENVELOPE, MAP_TYPE, make_envelope
from wireloom.protocols.publish_columns import OFFSET, READ, PublishColumns, Taken
from wireloom.protocols.publish_rules import published
from wireloom.protocols.registry import protocol

NAMES = tuple(STREAMS)
SETTINGS = {"emp": {"max_message": 4000}, "hsp": {"max_payload": 4000}, "yamp": {"max_body": 4000}}
FORMATS = {"emp": (None, "text/plain"), "hsp": (None, "text/plain"), "yamp": ("application/json",)}


def in_columns(name: str) -> Session:
    session = talking(name, **SETTINGS[name])
    assert session.enable_columns()
    return session


def frame_by_frame(name: str) -> Session:
    return talking(name, **SETTINGS[name])


# What a publisher sends

topics = st.sampled_from(["a", "a/b", "sensors/kitchen", "größe", "hsp/9", "a/#", "$SYS", "x" * 300])
several = st.integers(1, 3) | st.integers(20, 60)


@st.composite
def published_run(draw: st.DrawFn, name: str) -> bytes:
    """Publishes and calls one after the other, most of them alike; two runs may use the same ids."""
    client = talking(name, Role.CLIENT, unique=draw(st.sampled_from([1, 1, 30, 2**32 - 20])), **SETTINGS[name])
    for _ in range(draw(st.integers(1, 4))):
        topic, kind = draw(topics), draw(st.sampled_from(FORMATS[name]))
        asks, body = draw(st.booleans()), b'"%b"' % (b"x" * draw(st.integers(0, 60)))
        prefix = "$hub/publish/" if name != "hsp" and draw(st.booleans()) else ""
        for _ in range(draw(several)):
            named = f"{prefix}{topic}" if asks else topic
            message = Message(Kind.REQUEST if asks else Kind.EVENT, named, body, content_type=kind)
            with contextlib.suppress(NotSupported, LimitExceeded):
                client.send(message, 0.0)
    return client.outgoing()


@st.composite
def operations(draw: st.DrawFn, name: str) -> bytes:
    """Control messages, and a request that is none."""
    client = talking(name, Role.CLIENT, unique=draw(st.sampled_from([1, 90, 91])))
    for topic in draw(st.lists(st.sampled_from(["$hub/login", "$hub/subscribe", "$hub/map", "calls/one"]), max_size=2)):
        body = b'{"token": "secret"}' if topic == "$hub/login" else b'{"topics": {"9": "nine"}}'
        client.send(Message(Kind.REQUEST, topic, body, content_type="application/json"), 0.0)
    return client.outgoing()


def streams(name: str) -> st.SearchStrategy[bytes]:
    parts = st.one_of(published_run(name), published_run(name), operations(name), STREAMS[name])
    return st.lists(parts, min_size=1, max_size=5).map(b"".join)


# What can be seen of a session


def messages_in(batch: Batch) -> list[Message]:
    """The messages of a batch; whoever answers it is not affected."""
    if isinstance(batch, PublishColumns | Calls):
        return [batch.message(row) for row in range(batch.count)]
    return list(batch.messages)


def state_of(session: Session) -> tuple[object, ...]:
    violation = session.violation
    return (
        session.state, None if violation is None else (violation.clause, violation.detail, violation.reply),
        session.refused, session.close_reason, session.counters, dict(session.topic_numbers()), session.deadline(),
        session.sent, session.unread(), session.buffered,
    )  # fmt: skip


def said(name: str, data: bytes) -> list[Message]:
    """What a server wrote, without the ids of its own."""
    own = protocol(name)
    decoder = own.decoder(Role.SERVER.sends, own.settings(SETTINGS[name]), TOPICS if name == "hsp" else None)
    found = list(decode_stream(decoder, data))
    assert all(isinstance(each, Decoded) for each in found)
    return [each.message.with_(id=None) for each in found if isinstance(each, Decoded)]


def meanings(events: Sequence[Message]) -> list[tuple[object, ...]]:
    return [(event.kind, event.topic, event.body, event.content_type) for event in events]


def answer(session: Session, batches: Sequence[Batch]) -> None:
    """Acknowledge everything that is asked for, in order."""
    for batch in batches:
        if isinstance(batch, Publishes):
            frames, _, counts = batch.acknowledgements()
            if counts:
                with contextlib.suppress(PeerClosed):
                    session.send_frames(frames, *counts)
                batch.settle(0)
            continue
        for message in messages_in(batch):
            if message.kind is Kind.REQUEST:
                with contextlib.suppress(PeerClosed, InvalidState):
                    session.send(Message(Kind.RESPONSE, correlation_id=message.id, status="done"), 1.0)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


ways = st.sampled_from(["now", "one by one", "later"])
cuts = st.lists(st.integers(0, 30_000), max_size=4)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), cuts=cuts, how=st.lists(ways, min_size=5, max_size=5))
@settings(max_examples=250, deadline=None)
def test_a_session_with_columns_behaves_like_one_without(
    name: str, data: st.DataObject, cuts: list[int], how: list[str]
) -> None:
    """Same messages, bytes, answers, counters and refusals after every read, answered together, singly or later."""
    usual, quick = frame_by_frame(name), in_columns(name)
    later: list[tuple[Sequence[Batch], Sequence[Batch]]] = []
    for read, way in zip(pieces(data.draw(streams(name)), cuts), itertools.cycle(how), strict=False):
        expected, found = usual.receive(read, 1.0), quick.receive(read, 1.0)
        assert [each for batch in found for each in messages_in(batch)] == messages_of(expected)
        assert data_of(found) == data_of(expected)
        assert sum(batch.count for batch in found) == sum(batch.count for batch in expected)
        assert state_of(quick) == state_of(usual)
        if way == "one by one":
            found = [
                part for batch in found for part in (batch.as_messages() if isinstance(batch, Publishes) else [batch])
            ]
        if way == "later":
            later.append((expected, found))
        else:
            answer(usual, expected)
            answer(quick, found)
        assert said(name, quick.outgoing()) == said(name, usual.outgoing())
        assert state_of(quick) == state_of(usual)
    for expected, found in later:
        answer(usual, expected)
        answer(quick, found)
    for session in (usual, quick):
        session.end_of_input(2.0)
    assert said(name, quick.outgoing()) == said(name, usual.outgoing())
    assert state_of(quick) == state_of(usual)


@st.composite
def answered(draw: st.DrawFn, name: str, requests: bytes) -> bytes:
    """What a peer says that was asked all this: mostly answers that are done, in any order, some to nothing."""
    peer = talking(name, Role.CLIENT)
    asked = [each.id for batch in peer.receive(requests, 0.0) for each in batch.messages if each.kind is Kind.REQUEST]
    form, parts = FORMATS[name][-1], list[bytes]()
    for number in draw(st.permutations(asked)):
        kind = draw(st.sampled_from([Kind.RESPONSE] * 30 + [Kind.ERROR, Kind.PROGRESS]))
        body = b'"%b"' % (b"x" * draw(st.integers(0, 40)))
        with contextlib.suppress(NotSupported):
            peer.send(Message(kind, "a/b", body, None, number, "404" if kind is Kind.ERROR else "done", form), 0.0)
        parts.append(peer.outgoing())
    if parts and draw(st.integers(0, 4)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(parts)))
    return b"".join(parts)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), cuts=cuts)
@settings(max_examples=150, deadline=None)
def test_answers_in_columns_are_those_that_frames_give(name: str, data: st.DataObject, cuts: list[int]) -> None:
    """The same messages, counters and refusals, whoever waits for them, sent one by one or together."""
    sessions, form = (frame_by_frame(name), in_columns(name)), FORMATS[name][-1]
    bodies, together = [b"%d" % number for number in range(data.draw(several))], data.draw(st.booleans())
    asked = []
    for session in sessions:
        assert isinstance(session, CallSession)
        if together:
            assert session.ask_all("a/b", form, bodies, 1.0) is not None
        else:
            for body in bodies:
                session.send(Message(Kind.REQUEST, "a/b", body, content_type=form), 1.0)
        asked.append(session.outgoing())
    assert asked[0] == asked[1]
    usual, quick = sessions
    for read in pieces(data.draw(answered(name, asked[0])), cuts):
        expected, found = usual.receive(read, 1.0), quick.receive(read, 1.0)
        assert [each for batch in found for each in messages_in(batch)] == messages_of(expected)
        assert data_of(found) == data_of(expected)
        assert state_of(quick) == state_of(usual)


@pytest.mark.parametrize("name", NAMES)
def test_requests_sent_together_are_those_sent_one_by_one_and_so_are_their_answers(name: str) -> None:
    form, bodies = FORMATS[name][-1], [b'"%d"' % number for number in range(40)]
    alone, together = talking(name, Role.CLIENT), talking(name, Role.CLIENT)
    assert isinstance(together, CallSession)
    ids = together.ask_all("a/b", form, bodies, 1.0)
    sent = [alone.send(Message(Kind.REQUEST, "a/b", body, content_type=form), 1.0) for body in bodies]
    requests = together.outgoing()
    assert (ids, requests, together.sent) == ([each.id for each in sent], alone.outgoing(), alone.sent)
    servers = talking(name), talking(name)
    for server in servers:
        server.receive(requests, 1.0)
    one, many = servers
    assert isinstance(many, CallSession)
    for number, body in zip(ids or (), bodies, strict=True):
        one.send(Message(Kind.RESPONSE, "a/b", body, None, number, "done", form), 1.0)
    assert many.answer_all("a/b", form, ids or (), bodies, 1.0)
    assert (many.outgoing(), many.sent, many.counters) == (one.outgoing(), one.sent, one.counters)
    assert not many.answer_all("a/b", form, (ids or ())[:3], bodies[:3], 1.0), "answered twice"


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), cuts=cuts)
@settings(max_examples=100, deadline=None)
def test_a_batch_ends_with_its_first_control_message(name: str, data: st.DataObject, cuts: list[int]) -> None:
    stream = data.draw(streams(name))
    for session in (frame_by_frame(name), in_columns(name)):
        for read in pieces(stream, cuts):
            for batch in session.receive(read, 1.0):
                assert not any(map(is_control, messages_in(batch)[:-1]))
                assert not isinstance(batch, Publishes) or not any(map(is_control, messages_in(batch)))
                assert b"secret" not in bytes(batch.data)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_columns_hold_nothing_but_what_may_be_published(name: str, data: st.DataObject) -> None:
    for batch in in_columns(name).receive(data.draw(streams(name)), 1.0):
        if isinstance(batch, Publishes):
            expected = [published(message) for message in messages_in(batch)]
            assert None not in expected
            found = batch.events().messages()
            assert {event.kind for event in found} == {Kind.EVENT}
            assert meanings(found) == meanings([e.with_(kind=Kind.EVENT) for e in expected if e is not None])
            assert {topic for topic, _ in batch.topics()} == {event.topic for event in found}


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), keep=st.lists(st.booleans(), min_size=4, max_size=4))
@settings(max_examples=80, deadline=None)
def test_what_is_passed_on_reads_as_the_same_events(
    name: str, target: str, data: st.DataObject, keep: list[bool]
) -> None:
    """The kernel writes for a subscriber what `Session.send` writes."""
    for batch in in_columns(name).receive(data.draw(streams(name)), 1.0):
        if not isinstance(batch, Publishes):
            continue
        events = batch.events()
        chosen = [code for code, kept in zip(range(len(events.topics)), itertools.cycle(keep), strict=False) if kept]
        if not chosen:
            continue
        some = events.of(chosen)
        wanted = {events.topics[code] for code in chosen}
        if len(set(events.topics)) == len(events.topics):
            assert [e.topic for e in some.messages()] == [e.topic for e in events.messages() if e.topic in wanted]
        writer, sender = frame_by_frame(target), frame_by_frame(target)
        try:
            written = some.frames(writer, 1.0)
        except (NotSupported, LimitExceeded):
            written = None
        if written is None:
            continue
        for event in some.messages():
            sender.send(event, 1.0)
        assert meanings(said(target, written)) == meanings(said(target, sender.outgoing()))
        if target != "yamp":  # there, bodies are written as the agreed serializer wants them
            assert [e.body for e in said(target, written)] == [e.body for e in some.messages()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_plain_publishes_are_passed_on_by_the_kernel(name: str, target: str) -> None:
    """Else the test above would compare nothing."""
    client, kind = talking(name, Role.CLIENT), "application/json" if "yamp" in (name, target) else None
    for number in range(60):
        client.send(Message(Kind.EVENT, f"a/{number % 3}", b"%d" % number, content_type=kind), 0.0)
    (batch,) = in_columns(name).receive(client.outgoing(), 1.0)
    assert isinstance(batch, Publishes)
    written = batch.events().of([0, 2]).frames(frame_by_frame(target), 1.0)
    assert written is not None
    assert [(e.topic, e.body) for e in said(target, written)] == [
        (f"a/{number % 3}", b"%d" % number) for number in range(60) if number % 3 != 1
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_frames_for_several_choices_of_topics_are_those_of_each_choice(name: str, target: str) -> None:
    client, kind = talking(name, Role.CLIENT), "application/json" if "yamp" in (name, target) else None
    for number in range(60):
        topic = "$hub/publish/a/0" if number % 5 == 0 else f"a/{number % 4}"
        asks = Kind.REQUEST if number % 5 == 0 else Kind.EVENT
        client.send(Message(asks, topic, b"%d" % number * (number % 7 + 1), content_type=kind), 0.0)
    (batch,) = in_columns(name).receive(client.outgoing(), 1.0)
    assert isinstance(batch, Publishes)
    events, choices = batch.events(), [(2,), (3, 0), (1,)]
    apart = events.frames_apart(choices, frame_by_frame(target), 1.0)
    assert apart is not None
    written, ends, counts = apart
    alone = [events.of(each).frames(frame_by_frame(target), 1.0) for each in choices]
    parts = [written[start:end] for start, end in itertools.pairwise([0, *ends])]
    assert [said(target, each) for each in parts] == [said(target, each or b"") for each in alone]
    assert (counts, len(written)) == ([len(events.of(each)) for each in choices], ends[-1])


def test_choices_with_a_body_that_one_of_them_cannot_express_are_written_one_by_one() -> None:
    client = talking("hsp", Role.CLIENT)
    for number in range(60):
        client.send(Message(Kind.EVENT, f"a/{number % 2}", bytes(2000 if number == 1 else 10)), 0.0)
    (batch,) = in_columns("hsp").receive(client.outgoing(), 1.0)
    assert isinstance(batch, Publishes)
    reader = talking("hsp", max_payload=1000)
    assert batch.events().frames_apart([(0,), (1,)], reader, 1.0) is None
    assert batch.events().of((0,)).frames(reader, 1.0) is not None


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), count=st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_reads_of_several_sessions_taken_together_are_what_each_takes_alone(
    name: str, data: st.DataObject, count: int
) -> None:
    reads = [data.draw(streams(name)) for _ in range(count)]
    ends = list(itertools.accumulate(map(len, reads)))
    starts = [0, *ends[:-1]]
    alone, together = [frame_by_frame(name) for _ in reads], [in_columns(name) for _ in reads]
    assert len({session.batch_key(1.0) for session in together}) == 1
    kind = together[0].columns
    assert kind is not None
    taken = kind.take(together, b"".join(reads), starts, ends)
    batch = taken.batch
    found: list[list[Message]] = [[] for _ in reads]
    if batch is not None:
        for row, read in enumerate(batch.columns[READ].tolist()):
            assert starts[read] <= batch.columns[OFFSET, row] < taken.ends[read]
            found[read].append(batch.message(row))
        assert batch.counts().tolist() == [len(each) for each in found]
        frames, until, numbers = batch.acknowledgements()
        for read, (begin, end, number) in enumerate(zip([0, *until], until, numbers, strict=False)):
            if number:
                together[read].send_frames(frames[begin:end], number)
                batch.settle(read)
    for index, read in enumerate(reads):
        rest = together[index].receive(read[taken.ends[index] - starts[index] :], 1.0)
        found[index] += [message for part in rest for message in messages_in(part)]
        expected = messages_of(alone[index].receive(read, 1.0))
        # What was acknowledged in between may be used again: then more is read.
        assert found[index][: len(expected)] == expected
        if alone[index].violation is None:
            assert len(found[index]) == len(expected)


# Acknowledging, one case at a time


def publishes(name: str, count: int) -> bytes:
    client = talking(name, Role.CLIENT)
    kind = "application/json" if name == "yamp" else None
    for number in range(count):
        client.send(Message(Kind.REQUEST, "$hub/publish/a", b"%064d" % number, content_type=kind), 0.0)
    return client.outgoing()


def taken(session: Session, data: bytes) -> Publishes:
    (batch,) = session.receive(data, 1.0)
    assert isinstance(batch, Publishes)
    return batch


REUSED = {"emp": "emp.request.reused-id", "hsp": "hsp.message-id.reused", "yamp": "yamp.request.uid-reused"}


@pytest.mark.parametrize("name", NAMES)
def test_ids_may_be_used_again_once_acknowledged_and_not_before(name: str) -> None:
    session = in_columns(name)
    answer(session, [taken(session, publishes(name, 40))])
    waiting = taken(session, publishes(name, 40))
    assert (session.violation, waiting.unanswered) == (None, 40)
    session.receive(publishes(name, 20), 1.0)
    assert session.violation is not None
    assert session.violation.clause == REUSED[name]


@pytest.mark.parametrize("name", NAMES)
def test_batches_may_be_acknowledged_in_any_order_and_each_once(name: str) -> None:
    session = in_columns(name)
    data = publishes(name, 60)
    first, second = taken(session, data[: len(data) // 2]), taken(session, data[len(data) // 2 :])
    ids = [[message.id for message in messages_in(batch)] for batch in (second, first)]
    answer(session, [second, first, second])
    assert [each.correlation_id for each in said(name, session.outgoing())] == [*ids[0], *ids[1]]


@pytest.mark.parametrize("name", NAMES)
def test_an_id_that_waits_in_columns_is_not_answered_one_by_one(name: str) -> None:
    session = in_columns(name)
    first = messages_in(taken(session, publishes(name, 30)))[0]
    with pytest.raises(InvalidState):
        session.send(Message(Kind.RESPONSE, correlation_id=first.id, status="done"), 1.0)


@pytest.mark.parametrize("name", ["hsp", "yamp"])
def test_a_half_closed_peer_gets_its_acknowledgements(name: str) -> None:
    session = in_columns(name)
    batch = taken(session, publishes(name, 30))
    session.end_of_input(1.0)
    assert session.state is SessionState.CLOSING
    frames, ends, counts = batch.acknowledgements()
    assert (ends, counts, len(said(name, frames))) == ([len(frames)], [30], 30)
    session.send_frames(frames, 30)
    batch.settle(0)
    assert (session.outgoing(), session.state) == (frames, SessionState.CLOSED)


@pytest.mark.parametrize("how", [MAP_TYPE, ENVELOPE])
def test_frames_after_a_map_in_the_same_read_have_its_topics(how: int) -> None:
    session = in_columns("hsp")
    before, after = hsp_frames.Data(301, b"before" * 100), hsp_frames.Data(301, b"after" * 200)
    named = b'{"topics": {"301": "three/hundred"}}'
    changes = hsp_frames.DataAck(1, how, named if how == MAP_TYPE else make_envelope("$hub/map", named, None))
    batches = session.receive(b"".join(map(hsp_frames.encode, (before, changes, after))), 1.0)
    assert [message.topic for message in messages_of(batches)] == ["hsp/301", "$hub/map", "three/hundred"]
    assert isinstance(batches[0], Publishes) and isinstance(batches[-1], Publishes)


def test_large_ids_are_acknowledged_with_all_their_bytes() -> None:
    sent = [hsp_frames.DataAck(number, 7, bytes(600)) for number in (0xFFFFFFFF, 0x01020304)]
    frames, _, _ = taken(in_columns("hsp"), b"".join(map(hsp_frames.encode, sent))).acknowledgements()
    assert frames == b"".join(hsp_frames.encode(hsp_frames.Ack(each.message_id)) for each in sent)


@pytest.mark.parametrize("between", [0, 5, 100])
def test_topics_that_nobody_may_publish_to_do_not_make_a_read_cost_more_than_its_bytes(between: int) -> None:
    """Each of them ends a batch, and what the kernel has looked at behind it is looked at again."""
    session = in_columns("hsp")
    usual = session.columns
    assert usual is not None
    looked = 0

    class Counting(usual):  # type: ignore[misc, valid-type]
        __slots__ = ()

        @classmethod
        def take(cls, sessions: Sequence[Session], buffer: bytes, starts: Sequence[int], ends: Sequence[int]) -> Taken:
            nonlocal looked
            looked += ends[0] - starts[0]
            taken: Taken = usual.take(sessions, buffer, starts, ends)
            return taken

    session.columns = Counting
    wrong = hsp_frames.encode(hsp_frames.Data(ENVELOPE, make_envelope("a/#", b"", None)))
    stream = (wrong + hsp_frames.encode(hsp_frames.Data(7, b"x")) * between) * (20_000 // (1 + between))
    assert sum(batch.count for batch in session.receive(stream, 1.0)) > 19_000
    assert 0 < looked <= 12 * len(stream)
