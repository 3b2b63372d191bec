"""Frames that come in pieces: what a read costs depends on what it brought, and any split gives the same messages."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.protocols.reading import data_of, messages_of
from tests.protocols.talking import STREAMS, talking
from wireloom.model import Kind, Message, ProtocolViolation
from wireloom.protocols.contract import Batch, Role, Session, SessionState
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.emp.frames import SizeMode
from wireloom.protocols.hsp import frames as hsp_frames
from wireloom.protocols.yamp import frames as yamp_frames

MIB = 1024 * 1024
LARGE = 16 * MIB
LARGEST: dict[str, dict[str, object]] = {
    "emp": {"max_message": 2 * LARGE},
    "hsp": {"max_payload": 2 * LARGE},
    "yamp": {"max_body": 2 * LARGE},
    "wolpertinger": {"max_message": 10_000_000, "split": 20_000_000, "gzip_from": 0},
}
WAYS = [(name, columns) for name in LARGEST for columns in (False, True) if not columns or name != "wolpertinger"]


def made(name: str, role: Role, *, columns: bool = False) -> Session:
    session = talking(name, role, **LARGEST[name])
    if columns:
        assert session.enable_columns()
    return session


def written(name: str, bodies: Iterable[bytes]) -> bytes:
    """A stream with an event for each body."""
    client = made(name, Role.CLIENT)
    kind = "application/json" if name == "yamp" else None
    for body in bodies:
        client.send(Message(Kind.EVENT, "sensors/kitchen", body, content_type=kind), 0.0)
    return client.outgoing()


class Allocations:
    """Counts the bytes that a session takes from memory: whatever it joins or copies is among them."""

    def __init__(self) -> None:
        self.total = 0

    def count(self, receive: Callable[[bytes, float], Sequence[Batch]], data: bytes) -> Sequence[Batch]:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        batches = receive(data, 1.0)
        self.total += max(0, tracemalloc.get_traced_memory()[1] - before)
        return batches


@pytest.mark.parametrize(("name", "columns"), WAYS)
def test_a_large_message_in_tiny_reads_costs_what_its_bytes_cost(name: str, columns: bool) -> None:
    draw = random.Random(1)
    body = b'"%b"' % (b"x" * (LARGE - 2)) if name != "wolpertinger" else b"x" * 6_000_000
    others = [b'"before"'] * 100
    stream, position = written(name, [*others, body]), len(written(name, others)) + 600
    session, counted, found = made(name, Role.SERVER, columns=columns), Allocations(), list[Message]()
    tracemalloc.start(1)
    try:
        # The read that ends a hundred others brings the first bytes of the large one.
        first = messages_of(session.receive(stream[:position], 1.0))
        reads = 0
        while position < len(stream):
            data = stream[position : position + draw.randint(1, 100)]
            # Counting takes longer than reading: one of eight is enough to see what they cost.
            batches = session.receive(data, 1.0) if reads % 8 else counted.count(session.receive, data)
            position += len(data)
            reads += 1
            assert counted.total <= 8 * LARGE + 100 * reads, f"after {position} bytes in {reads} reads"
            found += messages_of(batches)
    finally:
        tracemalloc.stop()
    assert len(first) == 100
    assert [each.body for each in found] == [body]
    assert session.buffered == 0
    whole = made(name, Role.SERVER, columns=columns)
    assert [each.body for each in messages_of(whole.receive(stream, 1.0))] == [*others, body]


def seen(name: str, data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """Everything that can be seen of a session that waits for two answers and reads these bytes in these pieces."""
    session = talking(name)
    kind = "application/json" if name == "yamp" else None
    ids = [session.send(Message(Kind.REQUEST, topic, b"1", content_type=kind), 0.0).id for topic in ("a/b", "größe")]
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    batches = [batch for start, end in itertools.pairwise(places) for batch in session.receive(data[start:end], 1.0)]
    violation = session.violation
    return (
        ids, messages_of(batches), data_of(batches), sum(batch.count for batch in batches), session.state,
        session.counters, session.outgoing(), session.unread(), session.refused,
        None if violation is None else (violation.clause, violation.detail),
    )  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data(), cuts=st.lists(st.integers(0, 2000), max_size=30), every=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_split_of_a_stream_is_read_alike(name: str, data: st.DataObject, cuts: list[int], every: bool) -> None:
    stream = data.draw(STREAMS[name])
    cut = list(range(min(len(stream), 3000))) if every else cuts
    *whole, unread, refused, violation = seen(name, stream, [])
    # emp: that something follows the end is seen only if it is in the same read.
    assume(not isinstance(violation, tuple) or violation[0] != "emp.flow.after-end")
    *split, split_unread, split_refused, split_violation = seen(name, stream, cut)
    assert split == whole
    assert split_violation == violation
    # What comes after the end is not read any more.
    assert isinstance(refused, bytes) and isinstance(split_refused, bytes)
    assert refused.startswith(split_refused)
    assert SessionState.CLOSED in whole or split_unread == unread


@pytest.mark.parametrize(("name", "columns"), WAYS)
@given(
    bodies=st.lists(st.integers(0, 60) | st.integers(0, 3000), max_size=40),
    cuts=st.lists(st.integers(0, 30_000), max_size=30),
)
@settings(max_examples=80, deadline=None)
def test_any_split_of_events_brings_them_in_order(name: str, columns: bool, bodies: list[int], cuts: list[int]) -> None:
    texts = [b'"%d%b"' % (number, b"x" * size) for number, size in enumerate(bodies)]
    stream = written(name, texts)
    session = made(name, Role.SERVER, columns=columns)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    found: list[Message] = []
    taken = 0
    for start, end in itertools.pairwise(places):
        batches = session.receive(stream[start:end], 1.0)
        found += messages_of(batches)
        taken += len(data_of(batches))
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
