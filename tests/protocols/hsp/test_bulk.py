"""Large reads in columns: a session with `enable_bulk()` must behave exactly like one without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wireloom.protocols.hsp.bulk import HspBulk

from tests.protocols.hsp.strategies import any_frame
from wireloom.model import Kind, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Role, Run, SessionState
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.frames import Ack, Data, DataAck, Error, ErrorUndef
from wireloom.protocols.hsp.profile import ENVELOPE, FIRST_RESERVED, LAST_RESERVED, MAP_TYPE, OPERATIONS, make_envelope
from wireloom.protocols.hsp.session import BULK_FROM, HspSession

TOPICS = {7: "sensors/kitchen", 8: "sensors/kitchen", 9: "hsp/300"}
PADDING = Data(1, bytes(BULK_FROM))
"""Makes any read a large one."""


def opened(*, bulk: bool, profile: bool = True, waiting: int = 0, limit: int = 2000) -> HspSession:
    """A session that waits for answers to the ids from 0 on."""
    session = HSP.session(Role.SERVER, HSP.settings({"profile": profile, "max_payload": limit}), topics=TOPICS)
    session.connected(0)
    if bulk:
        assert session.enable_bulk()
    for _ in range(waiting):
        session.send(Message(Kind.REQUEST, "hsp/1", b""), 0)
    session.outgoing()
    return session


def wire(*many: frames.Frame) -> bytes:
    return b"".join(map(frames.encode, many))


def bulk_of(session: HspSession, *many: frames.Frame) -> HspBulk:
    run = session.receive(wire(*many), 0)
    assert isinstance(run.bulk, HspBulk)
    return run.bulk


def is_plain(message: Message, profile: bool) -> bool:
    """Whether a bulk keeps this in columns: an event or a publish of an ordinary type."""
    if message.kind not in (Kind.EVENT, Kind.REQUEST):
        return False
    return not profile or not FIRST_RESERVED <= int(message.attributes["type"]) <= LAST_RESERVED


def is_enclosed(run: Run) -> bool:
    """Whether a bulk is all envelopes for one topic; those it keeps in columns, too."""
    return isinstance(run.bulk, HspBulk) and run.bulk.envelope != b""


def split(run: Run, profile: bool, *, enclosed: bool = False) -> tuple[list[Message], list[Message]]:
    """The plain messages of a run, and the others."""
    if run.bulk is not None:
        return run.bulk.messages(), run.bulk.others()
    if enclosed:
        return list(run.messages), []
    plain = [message for message in run.messages if is_plain(message, profile)]
    return plain, [message for message in run.messages if not is_plain(message, profile)]


def answer_all(session: HspSession, run: Run, profile: bool) -> None:
    """Acknowledge what a run asks for: the plain ones first, in order, then the rest."""
    if session.state is SessionState.CLOSED:
        return
    plain, others = split(run, profile)
    if run.bulk is not None:
        count = run.bulk.unanswered
        session.send_frames(run.bulk.acknowledgements(), count)
        plain = []
    for message in [*plain, *others]:
        if message.kind is Kind.REQUEST:
            session.send(Message(Kind.RESPONSE, correlation_id=message.id), 0)


def state_of(session: HspSession) -> tuple[object, ...]:
    violation = session.violation
    return (
        session.state,
        session.owed_ids(),
        None if violation is None else (violation.clause, violation.detail, violation.reply, violation.offset),
        session.refused,
        session.close_reason,
        session.counters,
        session._waiting,
        dict(session.topic_numbers()),
        session.deadline(),
        session.sent,
    )


few_ids = st.integers(0, 6)
busy_types = st.sampled_from([7, 8, 9, 300, 65535, ENVELOPE, MAP_TYPE, *OPERATIONS, 0xFD0F])
bodies = st.one_of(
    st.binary(max_size=30),
    st.builds(make_envelope, st.sampled_from(["a/b", "$hub/map", "hsp/64768", ""]), st.just(b"{}"), st.none()),
)
maps = st.sampled_from(
    [
        b'{"topics": {"7": "renamed"}}',
        b'{"topics": {"300": "three/hundred", "7": "x"}}',
        b'{"topics": {"70000": "x"}}',
        b"[" * 1500,
    ]
)
envelope_with_map = maps.map(lambda body: make_envelope("$hub/map", body, "application/json"))
busy_frame = st.one_of(
    any_frame(),
    st.builds(Data, busy_types, bodies),
    st.builds(DataAck, few_ids, busy_types, bodies),
    st.builds(DataAck, st.integers(100, 140), st.sampled_from([7, 8, 300]), st.binary(max_size=30)),
    st.builds(Ack, few_ids),
    st.builds(ErrorUndef, few_ids),
    st.builds(Error, few_ids, busy_types, bodies),
    st.sampled_from([frames.PING, frames.PONG, PADDING]),
)
rare_frame = st.one_of(
    st.builds(DataAck, st.integers(200, 210), st.just(MAP_TYPE), maps),
    st.builds(DataAck, st.integers(210, 220), st.just(ENVELOPE), envelope_with_map),
    st.builds(Data, st.just(MAP_TYPE), maps),
)
endings = st.one_of(
    st.just(b""),
    st.just(b""),
    st.just(b"\x2a"),
    st.just(b"\x01\x00\x00\x00\x63\x00\x07\xff\xff\xff\xff"),
    st.binary(max_size=6),
)


@st.composite
def ascending_run(draw: st.DrawFn) -> bytes:
    """What a busy publisher sends: ids one after the other."""
    first = draw(st.integers(0, 50))
    return wire(*(DataAck(first + step, 7 + step % 3, bytes(20)) for step in range(draw(st.integers(20, 40)))))


@st.composite
def wrapping_run(draw: st.DrawFn) -> bytes:
    """What a publisher sends whose ids begin again, for one topic; some of them may still be unanswered."""
    starts = draw(st.lists(st.tuples(st.integers(0, 120), st.integers(1, 30)), min_size=1, max_size=6))
    return wire(*(DataAck(first + step, 7, bytes(60)) for first, count in starts for step in range(count)))


@st.composite
def enclosed_run(draw: st.DrawFn) -> bytes:
    """What a publisher without a map sends: envelopes for one topic, events or publishes, with another in between."""
    head = make_envelope(draw(st.sampled_from(["a/b", "c", "$hub/login"])), b"", draw(st.sampled_from([None, "t/p"])))
    many: list[frames.Frame] = [Data(ENVELOPE, head + bytes(size)) for size in draw(st.lists(st.integers(0, 99)))]
    if draw(st.booleans()):
        first = draw(st.integers(0, 300))
        many = [DataAck(first + at, ENVELOPE, each.payload) for at, each in enumerate(many) if isinstance(each, Data)]
    if draw(st.booleans()):
        many.insert(draw(st.integers(0, len(many))), draw(busy_frame))
    return wire(*many)


reads = st.lists(
    st.one_of(
        st.tuples(st.lists(busy_frame, max_size=12), st.just(b"")).map(lambda both: wire(*both[0])),
        st.tuples(st.lists(st.one_of(busy_frame, rare_frame), max_size=12), endings).map(
            lambda both: wire(PADDING, *both[0]) + both[1]
        ),
        ascending_run(),
        wrapping_run(),
        enclosed_run(),
        st.integers(9, 40).map(lambda count: wire(*[Data(300, bytes(60))] * count)),
    ),
    min_size=1,
    max_size=5,
)


@given(
    reads, st.lists(st.booleans(), min_size=5, max_size=5), st.booleans(), st.lists(st.integers(0, 9000), max_size=3)
)
@settings(max_examples=400)
def test_a_session_in_bulk_behaves_like_one_without(
    stream: list[bytes], answers: list[bool], profile: bool, cuts: list[int]
) -> None:
    """Same messages, bytes, debts, counters and violations after every read, answered now or later."""
    slow, fast = (opened(bulk=bulk, profile=profile, waiting=4) for bulk in (False, True))
    later: list[tuple[Run, Run]] = []
    whole = b"".join(stream)
    if cuts:
        edges = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
        stream = [whole[low:high] for low, high in pairwise(edges)]
    for index, read in enumerate(stream):
        one, many = slow.receive(read, index), fast.receive(read, index)
        assert one.bulk is None
        assert split(many, profile) == split(one, profile, enclosed=is_enclosed(many))
        assert (bytes(many.data), many.count) == (bytes(one.data), one.count)
        assert state_of(fast) == state_of(slow)
        if answers[index % len(answers)]:
            answer_all(slow, one, profile)
            answer_all(fast, many, profile)
        else:
            later.append((one, many))
        assert state_of(fast) == state_of(slow)
        assert fast.outgoing() == slow.outgoing()
    for one, many in later:
        answer_all(slow, one, profile)
        answer_all(fast, many, profile)
    for session in (slow, fast):
        session.end_of_input(99)
    assert state_of(fast) == state_of(slow)
    assert fast.outgoing() == slow.outgoing()


def test_large_reads_come_in_bulk_and_small_ones_do_not() -> None:
    session = opened(bulk=True)
    small = wire(Data(7, bytes(BULK_FROM - 8)))
    assert len(small) == BULK_FROM - 1
    assert session.receive(small, 0).bulk is None
    large = session.receive(wire(Data(7, bytes(BULK_FROM - 7))), 0)
    assert large.bulk is not None
    assert (large.count, list(large.messages)) == (1, [])
    assert opened(bulk=False).receive(wire(PADDING), 0).bulk is None


def test_a_run_in_bulk_counts_every_frame() -> None:
    session = opened(bulk=True, waiting=1)
    run = session.receive(wire(PADDING, frames.PING, Ack(0), Ack(99), DataAck(1, ENVELOPE, b"")), 0)
    assert run.bulk is not None
    assert run.count == 5
    assert [m.kind for m in run.bulk.others()] == [Kind.PING, Kind.RESPONSE, Kind.REQUEST]


# Topics and messages

MIXED = (
    DataAck(1, 7, b"one"),
    Data(300, b"two"),
    DataAck(2, 8, b"three"),
    Data(9, b"four"),
    DataAck(3, 300, b"five"),
    Data(7, b"six"),
    PADDING,
)


def test_topics_are_told_each_once() -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    assert sorted(bulk.topics()) == ["hsp/1", "hsp/300", "sensors/kitchen"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("sensors/kitchen", [b"one", b"three", b"six"]), ("hsp/300", [b"two", b"four", b"five"]), ("nobody", [])],
)
def test_messages_of_one_topic_in_order_whatever_numbers_stand_for_it(topic: str, expected: list[bytes]) -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    assert [m.body for m in bulk.messages(topic)] == expected
    assert {m.topic for m in bulk.messages(topic)} <= {topic}
    assert bulk.count_of(topic) == len(expected)


def test_messages_of_all_topics_in_order() -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    assert [m.body for m in bulk.messages()] == [b"one", b"two", b"three", b"four", b"five", b"six", PADDING.payload]
    assert [m.id for m in bulk.messages()] == ["1", None, "2", None, "3", None, None]


# Forwarding


def test_forward_gives_unacknowledged_frames_of_one_topic() -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    assert bulk.forward("sensors/kitchen") == wire(Data(7, b"one"), Data(8, b"three"), Data(7, b"six"))
    assert bulk.forward("hsp/300") == wire(Data(300, b"two"), Data(9, b"four"), Data(300, b"five"))
    assert bulk.forward("nobody") == b""


def test_forwarding_a_read_of_plain_data_gives_the_same_bytes() -> None:
    many = [Data(300, bytes(50))] * 20
    assert bulk_of(opened(bulk=True), *many).forward("hsp/300") == wire(*many)


def test_forwarding_a_read_of_publishes_asks_for_no_acknowledgement() -> None:
    many = [DataAck(number, 300, bytes(50)) for number in range(20)]
    assert bulk_of(opened(bulk=True), *many).forward("hsp/300") == wire(*[Data(300, bytes(50))] * 20)


def test_forwarding_leaves_out_what_did_not_pass() -> None:
    session = opened(bulk=True)
    run = session.receive(wire(Data(300, bytes(600)), Data(300, b"x")) + b"\x63 and more", 0)
    assert run.bulk is not None
    assert run.bulk.forward("hsp/300") == wire(Data(300, bytes(600)), Data(300, b"x"))
    cut = opened(bulk=True).receive(wire(Data(300, bytes(600)), Data(300, b"xyz"))[:-1], 0)
    assert cut.bulk is not None
    assert cut.bulk.forward("hsp/300") == wire(Data(300, bytes(600)))


@given(st.lists(busy_frame, min_size=1, max_size=20), st.booleans())
def test_what_is_forwarded_reads_as_the_same_events(many: list[frames.Frame], profile: bool) -> None:
    session = opened(bulk=True, profile=profile)
    run = session.receive(wire(PADDING, *many), 0)
    if run.bulk is None:
        return  # a new map: read frame by frame
    for topic in run.bulk.topics():
        peer = opened(bulk=False, profile=profile)
        received = peer.receive(run.bulk.forward(topic), 0).messages
        assert [(m.kind, m.topic, m.body) for m in received] == [
            (Kind.EVENT, m.topic, m.body) for m in run.bulk.messages(topic)
        ]


def test_frames_go_as_they_are_to_peers_that_know_their_numbers() -> None:
    bulk = bulk_of(opened(bulk=True), Data(7, bytes(600)), Data(8, b""), Data(300, b""))
    stranger, friend = opened(bulk=True), opened(bulk=True)
    friend.receive(wire(DataAck(1, MAP_TYPE, b'{"topics": {"7": "sensors/kitchen", "8": "sensors/kitchen"}}')), 0)
    assert friend.can_forward(bulk, "sensors/kitchen")
    assert not stranger.can_forward(bulk, "sensors/kitchen")
    friend.receive(wire(DataAck(2, MAP_TYPE, b'{"topics": {"8": "elsewhere"}}')), 0)
    assert not friend.can_forward(bulk, "sensors/kitchen")


def test_without_the_profile_numbers_are_all_there_is() -> None:
    bulk = bulk_of(opened(bulk=True), Data(7, bytes(600)))
    assert opened(bulk=True, profile=False).can_forward(bulk, "sensors/kitchen")
    assert not opened(bulk=True, profile=False, limit=1999).can_forward(bulk, "sensors/kitchen")
    assert not opened(bulk=False, profile=False).can_forward(bulk, "sensors/kitchen")


# Acknowledging


def test_acknowledgements_answer_every_publish_in_order_once() -> None:
    session = opened(bulk=True)
    bulk = bulk_of(session, *MIXED)
    assert (bulk.unanswered, session.owed_ids()) == (3, {1, 2, 3})
    assert bulk.acknowledgements() == wire(Ack(1), Ack(2), Ack(3))
    assert (bulk.unanswered, session.owed_ids()) == (0, set())
    assert bulk.acknowledgements() == b""


def test_large_ids_are_acknowledged_with_all_their_bytes() -> None:
    bulk = bulk_of(opened(bulk=True), PADDING, DataAck(0xFFFFFFFF, 7, b""), DataAck(0x01020304, 7, b""))
    assert bulk.acknowledgements() == wire(Ack(0xFFFFFFFF), Ack(0x01020304))


def test_refused_topics_are_answered_with_the_plain_error() -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    answers = bulk.acknowledgements(refused=frozenset(["sensors/kitchen", "unknown"]))
    assert answers == wire(ErrorUndef(1), ErrorUndef(2), Ack(3))


def test_ids_in_bulk_may_be_reused_once_acknowledged_and_not_before() -> None:
    session = opened(bulk=True)
    bulk = bulk_of(session, *MIXED)
    bulk.acknowledgements()
    bulk_of(session, *MIXED)
    assert session.violation is None
    for again in (wire(DataAck(2, 7, b"")), wire(PADDING, DataAck(2, 7, b""))):
        victim = opened(bulk=True)
        bulk_of(victim, *MIXED)
        victim.receive(again, 0)
        assert victim.violation is not None
        assert victim.violation.clause == "hsp.message-id.reused"


def test_ids_that_begin_again_are_taken_as_long_as_none_of_them_waits() -> None:
    session = opened(bulk=True)
    late = bulk_of(session, *(DataAck(number, 7, bytes(60)) for number in range(100, 120)))
    wrapped = bulk_of(session, *(DataAck(number, 7, bytes(60)) for number in [*range(120, 140), *range(100)]))
    assert session.violation is None
    assert (wrapped.count, wrapped.unanswered) == (120, 120)
    assert late.acknowledgements() == wire(*map(Ack, range(100, 120)))
    bulk_of(session, *(DataAck(number, 7, bytes(60)) for number in range(100, 120)))
    assert wrapped.acknowledgements() == wire(*map(Ack, [*range(120, 140), *range(100)]))
    session.receive(wire(*(DataAck(number, 7, bytes(60)) for number in [*range(200, 220), *range(90, 101)])), 0)
    assert session.violation is not None
    assert session.violation.detail == "id 100 is still unanswered"


@pytest.mark.parametrize(("first", "second"), [(3, 4), (0, 1)])
def test_the_bounds_of_the_waiting_ids_are_waiting_too(first: int, second: int) -> None:
    session = opened(bulk=True)
    bulk_of(session, PADDING, DataAck(1, 7, b""), DataAck(3, 7, b""))
    session.receive(wire(PADDING, DataAck(first, 7, b""), DataAck(second, 7, b"")), 0)
    assert session.violation is not None
    assert session.violation.clause == "hsp.message-id.reused"


def test_an_id_waiting_in_bulk_is_not_answered_one_by_one() -> None:
    session = opened(bulk=True)
    bulk_of(session, *MIXED)
    with pytest.raises(NotSupported, match="id 1"):
        session.send(Message(Kind.RESPONSE, correlation_id="1"), 0)


def test_several_runs_may_wait_and_be_acknowledged_in_any_order() -> None:
    session = opened(bulk=True)
    first = bulk_of(session, PADDING, DataAck(1, 7, b""))
    second = bulk_of(session, PADDING, DataAck(2, 7, b""))
    assert session.owed_ids() == {1, 2}
    assert second.acknowledgements() == wire(Ack(2))
    assert session.owed_ids() == {1}
    assert first.acknowledgements() == wire(Ack(1))
    assert session.owed_ids() == set()


def test_a_half_closed_peer_gets_its_acknowledgements_in_bulk() -> None:
    session = opened(bulk=True)
    bulk = bulk_of(session, *MIXED)
    session.end_of_input(0)
    assert session.state is SessionState.CLOSING
    count = bulk.unanswered
    answers = bulk.acknowledgements()
    assert count == 3
    assert answers == wire(Ack(1), Ack(2), Ack(3))
    assert session.state is SessionState.CLOSED


def test_a_refused_peer_gets_no_acknowledgements() -> None:
    session = opened(bulk=True)
    run = session.receive(wire(*MIXED) + b"\x63", 0)
    assert run.bulk is not None
    assert run.bulk.unanswered == 3
    with pytest.raises(PeerClosed):
        session.send_frames(run.bulk.acknowledgements(), 3)


# Taking topics out


def test_taken_messages_are_answered_one_by_one() -> None:
    session = opened(bulk=True)
    bulk = bulk_of(session, *MIXED)
    taken = bulk.take("sensors/kitchen")
    assert [m.body for m in taken] == [b"one", b"three", b"six"]
    assert "sensors/kitchen" not in bulk.topics()
    assert bulk.messages("sensors/kitchen") == []
    assert [m.body for m in bulk.messages()] == [b"two", b"four", b"five", PADDING.payload]
    assert (bulk.unanswered, session.owed_ids()) == (1, {1, 2, 3})
    assert bulk.acknowledgements() == wire(Ack(3))
    assert session.owed_ids() == {1, 2}
    session.send(Message(Kind.ERROR, correlation_id="2", status="5"), 0)
    session.send(Message(Kind.RESPONSE, correlation_id="1"), 0)
    assert session.outgoing() == wire(Error(2, 5, b""), Ack(1))
    assert session.owed_ids() == set()


def test_taking_a_topic_that_is_not_there_takes_nothing() -> None:
    bulk = bulk_of(opened(bulk=True), *MIXED)
    assert bulk.take("nobody") == []
    assert bulk.unanswered == 3


def test_when_every_topic_is_taken_nothing_waits_for_the_bulk() -> None:
    session = opened(bulk=True)
    bulk = bulk_of(session, *MIXED)
    for topic in bulk.topics():
        bulk.take(topic)
    assert (bulk.unanswered, list(bulk.topics())) == (0, [])
    session.end_of_input(0)
    for number in (1, 2, 3):
        assert session.state is SessionState.CLOSING
        session.send(Message(Kind.RESPONSE, correlation_id=str(number)), 0)
    assert session.state is SessionState.CLOSED


@given(st.lists(busy_frame, min_size=1, max_size=20), st.integers(0, 3), st.booleans())
def test_taking_and_acknowledging_answers_everything_exactly_once(
    many: list[frames.Frame], index: int, profile: bool
) -> None:
    session = opened(bulk=True, profile=profile)
    run = session.receive(wire(PADDING, *many), 0)
    if run.bulk is None or session.violation is not None:
        return
    asked = sorted(session.owed_ids())
    session.outgoing()
    topics: Sequence[str] = run.bulk.topics()
    one_by_one = [*run.bulk.others(), *(run.bulk.take(topics[index]) if index < len(topics) else ())]
    session.send_frames(run.bulk.acknowledgements(), 0)
    for message in one_by_one:
        if message.kind is Kind.REQUEST:
            session.send(Message(Kind.RESPONSE, correlation_id=message.id), 0)
    answers = session.outgoing()
    assert session.owed_ids() == set()
    assert sorted(int.from_bytes(answers[at + 1 : at + 5]) for at in range(0, len(answers), 5)) == asked
    assert answers[::5] == b"\x02" * len(asked)


# New topic maps


@pytest.mark.parametrize("how", [MAP_TYPE, ENVELOPE])
def test_frames_after_a_map_in_the_same_large_read_have_its_topics(how: int) -> None:
    session = opened(bulk=True)
    named = b'{"topics": {"300": "three/hundred"}}'
    body = named if how == MAP_TYPE else make_envelope("$hub/map", named, None)
    run = session.receive(wire(PADDING, Data(300, b"before"), DataAck(1, how, body), Data(300, b"after")), 0)
    assert [(m.topic, m.body) for m in run.messages if m.body in (b"before", b"after")] == [
        ("hsp/300", b"before"),
        ("three/hundred", b"after"),
    ]
    assert bulk_of(session, PADDING, Data(300, b"next")).messages("three/hundred")[0].body == b"next"


def test_a_number_that_stands_for_the_map_topic_is_a_map_in_a_large_read_too() -> None:
    for bulk in (False, True):
        session = HSP.session(Role.SERVER, HSP.settings({"profile": False}), topics={7: "$hub/map"})
        session.connected(0)
        if bulk:
            session.enable_bulk()
        run = session.receive(wire(PADDING, DataAck(1, 7, b'{"topics": {"9": "nine"}}'), Data(9, b"")), 0)
        assert [m.topic for m in run.messages][1:] == ["$hub/map", "nine"]


@pytest.mark.parametrize("number", [FIRST_RESERVED - 1, FIRST_RESERVED, LAST_RESERVED, LAST_RESERVED + 1])
def test_reserved_types_are_not_kept_in_columns(number: int) -> None:
    bulk = bulk_of(opened(bulk=True), PADDING, Data(number, b"x"))
    reserved = FIRST_RESERVED <= number <= LAST_RESERVED
    assert [m.body for m in bulk.others()] == ([b"x"] if reserved else [])
    assert len(bulk.messages()) == (1 if reserved else 2)


def test_an_event_for_the_map_topic_changes_nothing() -> None:
    session = opened(bulk=True)
    bulk_of(session, PADDING, Data(MAP_TYPE, b'{"topics": {"300": "x"}}'))
    assert session.topic_numbers() == TOPICS
