"""Frames that come in pieces: what a read costs depends on what it brought, and any split gives the same messages."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.protocols.emp import strategies as emp_strategies
from tests.protocols.hsp import strategies as hsp_strategies
from tests.protocols.yamp import strategies as yamp_strategies
from wireloom.model import Kind, Message, ProtocolViolation
from wireloom.protocols.contract import Role, Run, Session, SessionState
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.emp.frames import SizeMode
from wireloom.protocols.hsp import frames as hsp_frames
from wireloom.protocols.registry import protocol
from wireloom.protocols.yamp import frames as yamp_frames

MIB = 1024 * 1024
LARGE = 16 * MIB
LARGEST: dict[str, dict[str, object]] = {
    "emp": {"max_message": 2 * LARGE},
    "hsp": {"max_payload": 2 * LARGE},
    "yamp": {"max_body": 2 * LARGE},
    "wolpertinger": {"max_message": 10_000_000, "split": 20_000_000, "gzip_from": 0},
}
WAYS = [(name, bulk) for name in LARGEST for bulk in (False, True) if not bulk or name != "wolpertinger"]

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


def talking(name: str, role: Role = Role.SERVER, **values: object) -> Session:
    """A session whose handshake is done."""
    own = protocol(name)
    session = own.session(role, own.settings(values), unique=1, topics=TOPICS if name == "hsp" else None)
    session.connected(0.0)
    session.receive(GREETINGS.get(name, b""), 0.0)
    session.outgoing()
    return session


def seen(session: Session, name: str, data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """Everything that can be seen of a session that asks twice, and then reads these bytes in these pieces."""
    kind = "application/json" if name == "yamp" else None
    asked = [Message(Kind.REQUEST, topic, b"1", content_type=kind) for topic in ("a/b", "größe")]
    ids = [session.send(request, 0.0).id for request in asked]
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
        ids, messages, taken, ignored, session.state, session.counters, session.outgoing(),
        session.unread(), session.refused, None if violation is None else (violation.clause, violation.detail),
    )  # fmt: skip


def made(name: str, role: Role, *, bulk: bool = False) -> Session:
    session = talking(name, role, **LARGEST[name])
    if bulk:
        assert session.enable_bulk()
    return session


def written(name: str, bodies: Iterable[bytes]) -> bytes:
    """A stream with an event for each body."""
    client = made(name, Role.CLIENT)
    kind = "application/json" if name == "yamp" else None
    for body in bodies:
        client.send(Message(Kind.EVENT, "sensors/kitchen", body, content_type=kind), 0.0)
    return client.outgoing()


def messages_of(run: Run) -> list[Message]:
    found = list(run.messages)
    if run.bulk is not None:
        found += run.bulk.messages()
    return found


class Allocations:
    """Counts the bytes that a session takes from memory: whatever it joins or copies is among them."""

    def __init__(self) -> None:
        self.total = 0

    def count(self, receive: Callable[[bytes, float], Run], data: bytes) -> Run:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run = receive(data, 1.0)
        self.total += max(0, tracemalloc.get_traced_memory()[1] - before)
        return run


@pytest.mark.parametrize(("name", "bulk"), WAYS)
def test_a_large_message_in_tiny_reads_costs_what_its_bytes_cost(name: str, bulk: bool) -> None:
    draw = random.Random(1)
    body = b'"%b"' % (b"x" * (LARGE - 2)) if name != "wolpertinger" else b"x" * 6_000_000
    others = [b'"before"'] * 100
    stream, position = written(name, [*others, body]), len(written(name, others)) + 600
    session, counted, found = made(name, Role.SERVER, bulk=bulk), Allocations(), list[Message]()
    tracemalloc.start(1)
    try:
        # The read that ends a hundred others brings the first bytes of the large one.
        first = messages_of(session.receive(stream[:position], 1.0))
        reads = 0
        while position < len(stream):
            data = stream[position : position + draw.randint(1, 100)]
            # Counting takes longer than reading: one of eight is enough to see what they cost.
            run = session.receive(data, 1.0) if reads % 8 else counted.count(session.receive, data)
            position += len(data)
            reads += 1
            assert counted.total <= 8 * LARGE + 100 * reads, f"after {position} bytes in {reads} reads"
            found += run.messages if run.bulk is None else run.bulk.messages()
    finally:
        tracemalloc.stop()
    assert len(first) == 100
    assert [each.body for each in found] == [body]
    assert session.buffered == 0
    whole = made(name, Role.SERVER, bulk=bulk)
    assert [each.body for each in messages_of(whole.receive(stream, 1.0))] == [*others, body]


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data(), cuts=st.lists(st.integers(0, 2000), max_size=30), every=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_split_of_a_stream_is_read_alike(name: str, data: st.DataObject, cuts: list[int], every: bool) -> None:
    stream = data.draw(STREAMS[name])
    cut = list(range(min(len(stream), 3000))) if every else cuts
    *whole, unread, refused, violation = seen(talking(name), name, stream, [])
    # emp: that something follows the end is seen only if it is in the same read.
    assume(not isinstance(violation, tuple) or violation[0] != "emp.flow.after-end")
    *split, split_unread, split_refused, split_violation = seen(talking(name), name, stream, cut)
    assert split == whole
    assert split_violation == violation
    # What comes after the end is not read any more.
    assert isinstance(refused, bytes) and isinstance(split_refused, bytes)
    assert refused.startswith(split_refused)
    assert SessionState.CLOSED in whole or split_unread == unread


@pytest.mark.parametrize(("name", "bulk"), WAYS)
@given(
    bodies=st.lists(st.integers(0, 60) | st.integers(0, 3000), max_size=40),
    cuts=st.lists(st.integers(0, 30_000), max_size=30),
)
@settings(max_examples=80, deadline=None)
def test_any_split_of_events_brings_them_in_order(name: str, bulk: bool, bodies: list[int], cuts: list[int]) -> None:
    texts = [b'"%d%b"' % (number, b"x" * size) for number, size in enumerate(bodies)]
    stream = written(name, texts)
    session = made(name, Role.SERVER, bulk=bulk)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    found: list[Message] = []
    taken = 0
    for start, end in itertools.pairwise(places):
        run = session.receive(stream[start:end], 1.0)
        found += messages_of(run)
        taken += len(run.data)
        assert name == "wolpertinger" or taken + session.buffered == end
    assert [each.body for each in found] == texts


def none_before(decode: Callable[[bytes], object], needed: Callable[[bytes], int], stream: bytes) -> None:
    """`needed` never waits for too much: with fewer bytes there is neither a frame nor a violation."""
    for size in range(1, min(len(stream), 400)):
        try:
            if decode(stream[:size]) is not None:
                return
        except ProtocolViolation:
            return
        least = needed(stream[:size])
        assert least > size
        for more in {size + 1, (size + least) // 2, least - 1} - {size}:
            if more < min(least, len(stream)):
                assert decode(stream[:more]) is None


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_frame_and_no_violation_is_waited_for_in_vain(name: str, data: st.DataObject) -> None:
    stream = data.draw(STREAMS[name])
    if name == "emp":
        for mode in SizeMode:
            none_before(
                lambda part, mode=mode: emp_frames.decode(part, 0, 10_000, mode),  # type: ignore[misc]
                lambda part, mode=mode: emp_frames.needed(part, 0, mode),  # type: ignore[misc]
                stream,
            )
    elif name == "hsp":
        none_before(hsp_frames.decode, lambda part: hsp_frames.needed(part, 0), stream)
    else:
        none_before(yamp_frames.decode, lambda part: yamp_frames.needed(part, 0), stream)
