"""Large reads of envelopes for one topic: kept in columns, and in everything else as frame by frame."""

from __future__ import annotations

import pytest

from tests.protocols.hsp.test_bulk import opened, wire
from wireloom.model import Kind, Message
from wireloom.protocols.contract import Run
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.frames import Data, DataAck
from wireloom.protocols.hsp.profile import ENVELOPE, MAP_TYPE, make_envelope
from wireloom.protocols.hsp.session import HspSession

Frame = frames.Frame


def enclosed(topic: str, *bodies: bytes, kind: str | None = None, first_id: int | None = None) -> list[Frame]:
    payloads = [make_envelope(topic, body, kind) for body in bodies]
    if first_id is None:
        return [Data(ENVELOPE, payload) for payload in payloads]
    return [DataAck(first_id + at, ENVELOPE, payload) for at, payload in enumerate(payloads)]


BODIES = [b"%d" % number * (number % 9) for number in range(60)]


def heard(many: list[Frame]) -> tuple[HspSession, Run, list[Message]]:
    """A read in bulk, and its messages frame by frame."""
    fast, slow = opened(bulk=True), opened(bulk=False)
    return fast, fast.receive(wire(*many), 0), list(slow.receive(wire(*many), 0).messages)


@pytest.mark.parametrize("kind", [None, "text/plain"])
@pytest.mark.parametrize("topic", ["a", "sensors/büro"])
@pytest.mark.parametrize("first_id", [None, 5])
def test_envelopes_for_one_topic_are_kept_in_columns(topic: str, kind: str | None, first_id: int | None) -> None:
    session, run, expected = heard(enclosed(topic, *BODIES, kind=kind, first_id=first_id))
    assert run.bulk is not None
    assert list(run.bulk.topics()) == [topic]
    assert run.bulk.messages(topic) == expected
    assert run.bulk.others() == []
    assert run.bulk.count_of(topic) == len(BODIES)
    assert run.bulk.unanswered == (0 if first_id is None else len(BODIES))
    if first_id is not None:
        session.send_frames(run.bulk.acknowledgements(), len(BODIES))
        assert session.outgoing() == wire(*(frames.Ack(first_id + at) for at in range(len(BODIES))))


@pytest.mark.parametrize("first_id", [None, 5])
def test_they_are_passed_on_to_whom_they_would_be_written_the_same(first_id: int | None) -> None:
    _, run, _ = heard(enclosed("a/b", *BODIES, kind="text/plain", first_id=first_id))
    assert run.bulk is not None
    other = opened(bulk=True)
    assert other.can_forward(run.bulk, "a/b")
    events = [Message(Kind.EVENT, "a/b", body, content_type="text/plain") for body in BODIES]
    assert run.bulk.forward("a/b") == other.write_events(events, 0)
    assert not opened(bulk=True, profile=False).can_forward(run.bulk, "a/b")
    assert not opened(bulk=True, limit=100).can_forward(run.bulk, "a/b")


def test_who_knows_a_number_for_the_topic_is_told_by_that() -> None:
    _, run, _ = heard(enclosed("sensors/kitchen", *BODIES))
    assert run.bulk is not None
    other = opened(bulk=True)
    assert other.can_forward(run.bulk, "sensors/kitchen")
    other.receive(wire(DataAck(1, MAP_TYPE, b'{"topics": {"7": "sensors/kitchen"}}')), 0)
    assert not other.can_forward(run.bulk, "sensors/kitchen")


def test_publishes_that_are_for_a_provider_leave_the_bulk() -> None:
    session, run, expected = heard(enclosed("a/b", *BODIES, first_id=1))
    assert run.bulk is not None
    assert run.bulk.take("a/b") == expected
    assert run.bulk.unanswered == 0
    for message in expected:
        session.send(Message(Kind.RESPONSE, correlation_id=message.id, status="done"), 0)
    assert session.outgoing() == wire(*(frames.Ack(1 + at) for at in range(len(BODIES))))


@pytest.mark.parametrize(
    "odd",
    [
        enclosed("other", b"x"),
        enclosed("a/b", b"x", kind="text/html"),
        enclosed("a/b", b"x", first_id=9),
        [Data(7, b"x")],
        [Data(ENVELOPE, b"")],
        [Data(ENVELOPE, b"\x00\x09a")],
        [Data(ENVELOPE, make_envelope("a/b", b"", None)[:-1])],
        [frames.PING],
    ],
)
@pytest.mark.parametrize("place", [0, 30, 60])
def test_among_anything_else_each_is_read_by_itself(odd: list[Frame], place: int) -> None:
    many = enclosed("a/b", *BODIES)
    many[place:place] = odd
    _, run, expected = heard(many)
    found = [*run.bulk.messages(), *run.bulk.others()] if run.bulk is not None else list(run.messages)
    assert sorted(map(meaning, found)) == sorted(map(meaning, expected))


def meaning(message: Message) -> tuple[str, ...]:
    """What can be put in order."""
    return (str(message.kind), str(message.topic), message.body.hex(), str(message.id), str(message.content_type))


@pytest.mark.parametrize("topic", ["$hub/login", "$hub/map", "$hub/else", f"hsp/{ENVELOPE}"])
def test_what_is_the_hubs_own_is_read_by_itself(topic: str) -> None:
    _, run, expected = heard(enclosed(topic, *BODIES))
    found = run.bulk.others() if run.bulk is not None else list(run.messages)
    assert found == expected


def test_without_the_profile_an_envelope_is_ordinary_data() -> None:
    fast, slow = opened(bulk=True, profile=False), opened(bulk=False, profile=False)
    data = wire(*enclosed("a/b", *BODIES))
    run = fast.receive(data, 0)
    assert run.bulk is not None
    assert run.bulk.messages() == slow.receive(data, 0).messages
    assert list(run.bulk.topics()) == [f"hsp/{ENVELOPE}"]
