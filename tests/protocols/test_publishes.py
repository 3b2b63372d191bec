"""Large reads of emp and yamp in columns: the same messages, answers and rules as frame by frame."""

from __future__ import annotations

import random

import pytest

from wireloom.model import Kind, Message
from wireloom.protocols.contract import PUBLISH, Role, Run, Session, SessionState
from wireloom.protocols.registry import protocol

NAMES = ("emp", "yamp")


class Pair:
    """A client, and two servers that hear the same: one in bulk, one frame by frame."""

    def __init__(self, name: str, **settings: object) -> None:
        self.protocol = protocol(name)
        chosen = self.protocol.settings(settings)
        self.client = self.protocol.session(Role.CLIENT, self.protocol.settings(), unique=1)
        self.fast, self.slow = (self.protocol.session(Role.SERVER, chosen, unique=n) for n in (2, 3))
        assert self.fast.enable_bulk()
        for session in (self.client, self.fast, self.slow):
            session.connected(0.0)
        hello = self.client.outgoing()
        for server in (self.fast, self.slow):
            server.receive(hello, 0.0)
        self.client.receive(self.fast.outgoing(), 0.0)
        self.slow.outgoing()
        assert self.client.state is SessionState.OPEN

    def hear(self, data: bytes) -> tuple[Run, Run]:
        return self.fast.receive(data, 1.0), self.slow.receive(data, 1.0)


def publish(topic: str, body: bytes, *, ack: bool, content_type: str | None = None) -> Message:
    kind, topic = (Kind.REQUEST, PUBLISH + topic) if ack else (Kind.EVENT, topic)
    return Message(kind, topic, body, content_type=content_type)


def said(run: Run) -> list[tuple[str | None, bytes, str | None]]:
    """What was published, in order."""
    if run.bulk is not None:
        return [(m.topic, m.body, m.content_type) for m in run.bulk.messages()]
    found = [m for m in run.messages if m.kind in (Kind.EVENT, Kind.REQUEST)]
    return [((m.topic or "").removeprefix(PUBLISH), m.body, m.content_type) for m in found]


def answer(session: Session, run: Run) -> None:
    """As the hub answers: all publishes are done."""
    if run.bulk is not None:
        count = run.bulk.unanswered
        session.send_frames(run.bulk.acknowledgements(), count)
    for message in run.messages:
        if message.kind is Kind.REQUEST:
            session.send(Message(Kind.RESPONSE, message.topic, correlation_id=message.id, status="done"), 1.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(12))
def test_a_read_in_bulk_says_what_it_says_frame_by_frame(name: str, seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(name)
    bulks = 0
    waiting: list[Run] = []
    for _ in range(30):
        topics = [f"t/{n}" * chance.randint(1, 3) for n in range(chance.choice((1, 1, 3, 40)))]
        sent = []
        for _ in range(chance.choice((1, 3, 4, 30, 200))):
            body = b"%d" % chance.randrange(10**9) * chance.randint(0, 9)
            kind = None if name == "yamp" else chance.choice((None, "text/plain", "application/json"))
            message = publish(chance.choice(topics), body, ack=chance.random() < 0.6, content_type=kind)
            sent.append(pair.client.send(message, 1.0))
            if chance.random() < 0.002:
                pair.client.send(Message(Kind.REQUEST, "somebody/else", b"?"), 1.0)
        data = pair.client.outgoing()
        while data:
            cut = chance.choice((len(data), chance.randrange(1, len(data) + 1)))
            fast, slow = pair.hear(data[:cut])
            data = data[cut:]
            assert bytes(fast.data) == bytes(slow.data)
            assert said(fast) == said(slow)
            assert fast.count == slow.count
            if fast.bulk is not None:
                bulks += 1
                check_columns(pair, fast, slow)
            answer(pair.slow, slow)
            waiting.append(fast)
            if chance.random() < 0.5:
                for run in waiting:
                    answer(pair.fast, run)
                waiting.clear()
        pair.client.receive(pair.fast.outgoing(), 1.0)
    assert bulks > 5
    for run in waiting:
        answer(pair.fast, run)
    pair.client.receive(pair.fast.outgoing(), 1.0)
    assert pair.client.violation is None
    pair.fast.close(2.0)
    assert pair.fast.state is SessionState.CLOSED, "nothing is owed any more"


def check_columns(pair: Pair, fast: Run, slow: Run) -> None:
    bulk = fast.bulk
    assert bulk is not None
    expected = said(slow)
    assert list(bulk.topics()) == list(dict.fromkeys(topic for topic, _, _ in expected))
    for topic in bulk.topics():
        own = [each for each in expected if each[0] == topic]
        assert bulk.count_of(topic) == len(own)
        other = pair.protocol.session(Role.CLIENT, pair.protocol.settings(), unique=9)
        assert not other.can_forward(bulk, topic), "it is not open"
        decoder = pair.protocol.decoder(Role.CLIENT.sends, pair.protocol.settings())
        decoder.feed(bulk.forward(topic))
        heard = [found.message for found in decoder]
        assert [(m.topic, m.body) for m in heard] == [(topic, body) for topic, body, _ in own]
        assert {m.kind for m in heard} == {Kind.EVENT}
        assert decoder.buffered == b""
        if pair.protocol.name == "emp":
            assert [m.content_type for m in heard] == [kind for _, _, kind in own]


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_can_be_taken_out_and_is_answered_one_by_one(name: str) -> None:
    pair = Pair(name)
    for number in range(40):
        pair.client.send(publish("a" if number % 2 else "b", b"%d" % number, ack=True), 1.0)
    run, _ = pair.hear(pair.client.outgoing())
    assert run.bulk is not None
    taken = run.bulk.take("a")
    assert [m.body for m in taken] == [b"%d" % number for number in range(1, 40, 2)]
    assert {m.topic for m in taken} == {PUBLISH + "a"}
    assert list(run.bulk.topics()) == ["b"]
    assert run.bulk.unanswered == 20
    answer(pair.fast, Run(messages=taken))
    answer(pair.fast, run)
    answers = pair.client.receive(pair.fast.outgoing(), 1.0).messages
    assert len({each.correlation_id for each in answers}) == 40
    assert pair.client.violation is None


@pytest.mark.parametrize("name", NAMES)
def test_refused_topics_are_answered_with_an_error(name: str) -> None:
    pair = Pair(name)
    for number in range(20):
        pair.client.send(publish("a" if number % 2 else "b", b"", ack=True), 1.0)
    run, _ = pair.hear(pair.client.outgoing())
    assert run.bulk is not None
    pair.fast.send_frames(run.bulk.acknowledgements(frozenset(["a"])), 20)
    answers = pair.client.receive(pair.fast.outgoing(), 1.0).messages
    assert sorted(m.kind for m in answers) == [Kind.ERROR] * 10 + [Kind.RESPONSE] * 10


@pytest.mark.parametrize("name", NAMES)
def test_an_id_that_is_still_owed_in_bulk_is_refused_however_it_comes(name: str) -> None:
    for size in (20, 1):
        pair = Pair(name)
        for _ in range(20):
            pair.client.send(publish("a", b"x" * 50, ack=True), 1.0)
        data = pair.client.outgoing()
        first, _ = pair.hear(data)
        assert first.bulk is not None
        again, slow = pair.hear(data[: len(data) // 20 * size])
        assert again.count == slow.count == 0
        assert pair.fast.violation is not None
        assert pair.fast.violation.clause == pair.slow.violation.clause  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_more_than_max_requests_is_refused_at_the_same_frame(name: str) -> None:
    pair = Pair(name, max_requests=30)
    for _ in range(50):
        pair.client.send(publish("a", b"x" * 50, ack=True), 1.0)
    data = pair.client.outgoing()
    half = len(data) // 50 * 25
    for piece in (data[:half], data[half:]):
        fast, slow = pair.hear(piece)
        assert fast.count == slow.count
    assert fast.count == 5
    assert pair.fast.violation is not None


@pytest.mark.parametrize("name", NAMES)
def test_closing_waits_for_answers_that_are_owed_in_bulk(name: str) -> None:
    pair = Pair(name)
    for _ in range(20):
        pair.client.send(publish("a", b"x" * 50, ack=True), 1.0)
    run, _ = pair.hear(pair.client.outgoing())
    pair.fast.close(2.0)
    assert pair.fast.state is SessionState.CLOSING
    answer(pair.fast, run)
    assert pair.fast.state is SessionState.CLOSED
    answers = pair.client.receive(pair.fast.outgoing(), 2.0).messages
    assert len([m for m in answers if m.kind is Kind.RESPONSE]) == 20


def test_a_publish_that_was_killed_gets_no_answer() -> None:
    pair = Pair("yamp")
    sent = [pair.client.send(publish("a", b"x" * 50, ack=True), 1.0) for _ in range(20)]
    run, _ = pair.hear(pair.client.outgoing())
    pair.client.send(Message(Kind.CANCEL, sent[3].topic, correlation_id=sent[3].id, attributes={"kill": "true"}), 1.0)
    pair.client.send(publish("b", b"y" * 600, ack=False), 1.0)
    pair.hear(pair.client.outgoing())
    assert run.bulk is not None
    assert run.bulk.unanswered == 19
    answer(pair.fast, run)
    answers = pair.client.receive(pair.fast.outgoing(), 1.0).messages
    assert {m.correlation_id for m in answers} == {m.id for m in sent} - {sent[3].id}


def test_frames_made_in_bulk_go_one_by_one_over_transports_that_carry_messages() -> None:
    pair = Pair("yamp")
    for number in range(20):
        pair.client.send(publish("a", b"%d" % number * 20, ack=True), 1.0)
    run, _ = pair.hear(pair.client.outgoing())
    assert run.bulk is not None
    assert len(pair.fast.frames_of(run.bulk.forward("a"))) == 20
    answer(pair.fast, run)
    frames = pair.fast.outgoing_frames()
    assert len(frames) == 20
    for frame in frames:
        assert len(pair.client.receive(frame, 1.0).messages) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left_out", [0, 1, 5, 30])
def test_events_of_one_topic_are_passed_on_as_they_came_and_read_only_when_somebody_asks(
    name: str, left_out: int
) -> None:
    pair = Pair(name)
    bodies = [b"%d" % number * (number % 40 + 1) for number in range(60)]
    for body in bodies:
        pair.client.send(publish("a/b", body, ack=False), 1.0)
    data = pair.client.outgoing()
    cut = len(data) - left_out
    fast, slow = pair.hear(data[:cut])
    bulk = fast.bulk
    assert bulk is not None
    count = len(slow.messages)
    assert bulk.topics() == ["a/b"]
    assert (bulk.count, bulk.count_of("a/b"), bulk.count_of("a"), bulk.unanswered) == (count, count, 0, 0)
    assert bulk.forward("a/b") == bytes(fast.data) == slow.data
    assert bulk.acknowledgements() == b""
    assert bulk.messages("a/b") == slow.messages
    assert bulk.messages() == slow.messages
    # Having looked changes nothing.
    assert (bulk.count, bulk.count_of("a/b"), bulk.unanswered) == (count, count, 0)
    assert bulk.forward("a/b") == slow.data
    assert bulk.take("a/b") == slow.messages
    assert bulk.topics() == []
    fast, slow = pair.hear(data[cut:])
    assert said(fast) == said(slow)
    assert pair.fast.unread() == pair.slow.unread() == b""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 1, 30, 60])
@pytest.mark.parametrize("other", ["a/c", "a/b/c", "a", "$a", "größe"])
def test_one_event_of_another_topic_among_many_goes_to_its_own(name: str, place: int, other: str) -> None:
    pair = Pair(name)
    topics = ["a/b"] * 60
    topics.insert(place, other)
    for number, topic in enumerate(topics):
        pair.client.send(publish(topic, b"%030d" % number, ack=False), 1.0)
    fast, slow = pair.hear(pair.client.outgoing())
    assert sorted(said(fast)) == sorted(said(slow))
    if fast.bulk is not None:
        assert fast.bulk.count_of("a/b") == 60
        assert fast.bulk.count_of(other) == 1


def numbered(name: str, numbers: list[int]) -> bytes:
    """Publishes with these ids, as somebody else's sender may write them."""
    chosen = protocol(name)
    sent = []
    for number in numbers:
        identifier = str(number) if name == "emp" else f"00000000-0000-7000-8000-{number:012x}"
        message = publish(f"t/{number % 3}", b"%d" % number * 9, ack=True).with_(id=identifier)
        sent.append(chosen.encode(message, chosen.settings()))
    return b"".join(sent)


def answered_ids(pair: Pair, session: Session) -> list[str | None]:
    """Whom a server has answered, in order."""
    decoder = pair.protocol.decoder(Role.SERVER.sends, pair.protocol.settings())
    decoder.feed(session.outgoing())
    return [found.message.correlation_id for found in decoder]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "numbers",
    [
        [*range(100, 160), *range(1, 60)],
        [*range(50, 100), 1],
        [50, *range(1, 40)],
        [*range(300, 340), *range(200, 240), *range(100, 140), *range(1, 40)],
    ],
)
def test_ids_that_begin_again_inside_a_read_are_taken_in_bulk_and_answered_alike(name: str, numbers: list[int]) -> None:
    pair = Pair(name)
    fast, slow = pair.hear(numbered(name, numbers))
    assert fast.bulk is not None
    assert said(fast) == said(slow)
    check_columns(pair, fast, slow)
    # What comes before the answers may fill the gap between the stretches, and no more than that.
    more, slow_more = pair.hear(numbered(name, [*range(400, 420)]))
    assert more.bulk is not None
    for run, other in ((fast, slow), (more, slow_more)):
        answer(pair.fast, run)
        answer(pair.slow, other)
    assert answered_ids(pair, pair.fast) == answered_ids(pair, pair.slow)
    again, _ = pair.hear(numbered(name, numbers))
    assert again.bulk is not None, "all of them are free again"
    assert pair.fast.violation is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "numbers", [[*range(1, 60), *range(30, 40)], [*range(1, 30), *range(1, 30)], [5, 5, *range(9)]]
)
def test_an_id_that_comes_twice_in_a_read_is_refused_at_the_same_frame(name: str, numbers: list[int]) -> None:
    pair = Pair(name)
    fast, slow = pair.hear(numbered(name, numbers if name == "yamp" else [number + 1 for number in numbers]))
    assert fast.count == slow.count
    assert said(fast) == said(slow)
    assert pair.fast.violation is not None
    assert pair.fast.violation.clause == pair.slow.violation.clause  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_an_id_within_a_stretch_that_is_owed_in_bulk_is_refused(name: str) -> None:
    pair = Pair(name)
    first, _ = pair.hear(numbered(name, [*range(100, 160), *range(1, 60)]))
    assert first.bulk is not None
    between, _ = pair.hear(numbered(name, [*range(60, 90)]))
    assert between.bulk is not None
    again, slow = pair.hear(numbered(name, [*range(200, 220), 30, 91]))
    assert again.count == slow.count == 20
    assert pair.fast.violation is not None


@pytest.mark.parametrize("name", NAMES)
def test_ids_in_no_order_are_read_one_by_one(name: str) -> None:
    pair = Pair(name)
    numbers = random.Random(7).sample(range(1, 1000), 60)
    fast, slow = pair.hear(numbered(name, numbers))
    assert fast.bulk is None
    assert said(fast) == said(slow)
    answer(pair.fast, fast)
    answer(pair.slow, slow)
    assert answered_ids(pair, pair.fast) == answered_ids(pair, pair.slow)
