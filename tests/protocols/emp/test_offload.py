"""Large GZIP bodies: packed and unpacked by another thread, in order, without holding up the loop."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wireloom
from tests.protocols.reading import joined, messages_of
from wireloom.model import InvalidState, Kind, LimitExceeded, Message, NotSupported, PeerClosed, RequestFailed
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.emp import EMP, extensions, frames
from wireloom.protocols.emp.frames import Extension, ExtensionBlock, Frame, Type
from wireloom.protocols.emp.offload import LARGE, LARGE_PACKED
from wireloom.protocols.emp.session import EmpSession

BODY = bytes(range(256)) * 1024
NOISE = b"".join((n * n * 7919 % 65521).to_bytes(2) for n in range(4000))
GZIP = ExtensionBlock(Extension.COMPRESSION, extensions.encode_compression(extensions.CompressionScheme.GZIP))
PACKED = frames.encode(Frame(Type.DATA, extensions.gzip(NOISE * 9), (GZIP,)))
"""A frame whose GZIP data is large."""


def working(role: Role = Role.SERVER, **values: object) -> EmpSession:
    session = EMP.session(role, EMP.settings({"profile": "on", **values}))
    session.enable_work()
    session.connected(0.0)
    session.receive(frames.encode(Frame(Type.HELLO, frames.encode_hello(frames.Hello()))), 0.0)
    assert session.state is SessionState.OPEN
    session.outgoing()
    return session


def small(text: bytes) -> bytes:
    return frames.encode(Frame(Type.DATA, text))


def do_work(session: EmpSession, now: float = 0.0) -> list[Message]:
    """Do all there is to do; what came of it."""
    found: list[Message] = []
    while session.offloads and (work := session.work()) is not None:
        assert session.work() is None, "one at a time"
        found += messages_of(session.worked(work(), now))
    return found


def heard(data: bytes) -> list[Message]:
    """What a peer without threads takes from these bytes."""
    peer = EMP.session(Role.CLIENT, EMP.settings({}))
    peer.connected(0.0)
    peer.receive(frames.encode(Frame(Type.HELLO, frames.encode_hello(frames.Hello()))), 0.0)
    run = joined(peer.receive(data, 0.0))
    assert peer.violation is None, peer.violation
    return list(run.messages)


def compressed(body: bytes, **more: object) -> Message:
    return Message(Kind.EVENT, body=body, attributes={"compression": "gzip"}).with_(**more)


def test_there_is_no_work_without_large_bodies() -> None:
    session = working(compress_above=10)
    assert not session.offloads
    session.receive(small(b"a"), 0.0)
    session.send(Message(Kind.EVENT, body=b"x" * 1000), 0.0)
    assert not session.offloads and session.work() is None


def test_what_follows_a_large_body_waits_for_it() -> None:
    assert len(PACKED) > LARGE_PACKED
    session = working()
    run = joined(session.receive(small(b"before") + PACKED + small(b"after"), 0.0))
    assert [message.body for message in run.messages] == [b"before"]
    assert run.data == small(b"before")
    assert session.offloads
    assert not messages_of(session.receive(small(b"later")[:3], 0.0))
    assert not messages_of(session.receive(small(b"later")[3:], 0.0))
    assert [message.body for message in do_work(session)] == [NOISE * 9, b"after", b"later"]
    assert not session.offloads


@settings(max_examples=50)
@given(st.lists(st.sampled_from([PACKED, small(b"x"), PACKED[:-1] + b"!", b"\xff"]), max_size=6), st.data())
def test_the_same_messages_come_out_with_and_without_a_thread(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    plain, offloading = working(), working()
    plain._slow.is_allowed = False
    expected = joined(plain.receive(stream, 0.0))
    found: list[Message] = []
    taken = b""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    for start, end in itertools.pairwise([0, *cuts, len(stream)]):
        run = joined(offloading.receive(stream[start:end], 0.0))
        found += run.messages
        taken += bytes(run.data)
        if data.draw(st.booleans()) and (work := offloading.work()) is not None:
            run = joined(offloading.worked(work(), 0.0))
            found += run.messages
            taken += bytes(run.data)
    while (work := offloading.work()) is not None:
        run = joined(offloading.worked(work(), 0.0))
        found += run.messages
        taken += bytes(run.data)
    assert (found, taken) == (list(expected.messages), expected.data)
    assert offloading.state is plain.state
    assert str(offloading.violation) == str(plain.violation)
    assert offloading.outgoing() == plain.outgoing()


def test_bad_data_in_a_large_body_is_refused_as_in_a_small_one() -> None:
    session = working()
    session.receive(frames.encode(Frame(Type.DATA, b"\x00" * 5000, (GZIP,))), 0.0)
    do_work(session)
    assert session.violation is not None and session.violation.clause == "emp.compression.data"
    assert session.state is SessionState.CLOSED


def test_the_end_of_the_input_waits_behind_a_large_body() -> None:
    session = working()
    session.receive(PACKED, 0.0)
    session.end_of_input(0.0)
    assert session.state is SessionState.OPEN
    assert [message.body for message in do_work(session)] == [NOISE * 9]
    assert session.state is SessionState.CLOSED


def test_what_is_said_after_a_large_body_follows_it() -> None:
    session = working(compress_above=100)
    session.send(Message(Kind.EVENT, body=b"first"), 0.0)
    session.send(compressed(BODY), 0.0)
    session.send(Message(Kind.EVENT, body=b"second"), 0.0)
    session.send(Message(Kind.REQUEST, "a", b"third"), 0.0)
    session.send(Message(Kind.EVENT, body=BODY), 0.0)
    session.send(Message(Kind.EVENT, body=b"last"), 0.0)
    first = session.outgoing()
    assert [message.body for message in heard(first)] == [b"first"]
    do_work(session)
    assert [m.body for m in heard(session.outgoing())] == [BODY, b"second", b"third", BODY, b"last"]
    assert session.sent == 7, "hello and six messages"
    assert not session.offloads
    session.send(Message(Kind.REQUEST, "a", b"x"), 0.0)
    assert session.outgoing(), "nothing waits any more"


def test_goodbye_waits_for_a_large_body() -> None:
    session = working()
    session.send(compressed(BODY), 0.0)
    session.close(0.0)
    assert session.state is SessionState.CLOSING
    with pytest.raises(PeerClosed):
        session.send(Message(Kind.EVENT, body=b"too late"), 0.0)
    do_work(session)
    assert session.state is SessionState.CLOSED
    assert [message.kind for message in heard(session.outgoing())] == [Kind.EVENT, Kind.CLOSE]


def test_a_mistake_of_the_caller_raises_at_once() -> None:
    session = working()
    with pytest.raises(NotSupported, match="extension"):
        session.send(compressed(BODY, attributes={"compression": "gzip", "extension.200": "no hex"}), 0.0)
    with pytest.raises(InvalidState, match="no request 7 waits"):
        session.send(compressed(BODY, kind=Kind.RESPONSE, correlation_id="7"), 0.0)
    assert not session.offloads and session.outgoing() == b""


def incompressible(size: int) -> bytes:
    import random

    return random.Random(0).randbytes(size)


def test_a_request_that_is_too_large_even_when_packed_fails() -> None:
    session = working(max_message=2 * LARGE, max_decompressed=10 * LARGE)
    sent = session.send(compressed(incompressible(3 * LARGE), kind=Kind.REQUEST), 0.0)
    (failed,) = do_work(session)
    assert (failed.kind, failed.correlation_id, failed.status) == (Kind.ERROR, sent.id, "413")
    assert b"max_message" in failed.body
    assert session.outgoing() == b""
    session.receive(EMP.encode(Message(Kind.RESPONSE, correlation_id=sent.id), EMP.settings({})), 0.0)
    assert session.violation is not None and session.violation.clause == "emp.response.unknown-id"


def test_a_response_that_is_too_large_even_when_packed_becomes_an_error() -> None:
    session = working(max_message=2 * LARGE, max_decompressed=10 * LARGE)
    client = EMP.session(Role.CLIENT, EMP.settings({}))
    client.connected(0.0)
    session.receive(EMP.encode(Message(Kind.REQUEST, "a", b"x", "1"), EMP.settings({})), 0.0)
    session.send(compressed(incompressible(3 * LARGE), kind=Kind.RESPONSE, correlation_id="1"), 0.0)
    assert do_work(session) == []
    frame, _ = frames.decode(session.outgoing(), 0) or pytest.fail("half a frame")
    known = extensions.read(frame.blocks)
    assert known.hub is not None and known.hub.error and known.hub.status == "413"


def test_an_event_that_is_too_large_even_when_packed_is_counted() -> None:
    session = working(max_message=2 * LARGE, max_decompressed=10 * LARGE)
    session.send(compressed(incompressible(3 * LARGE)), 0.0)
    do_work(session)
    assert session.counters == {"emp.message.unsent": 1}


def test_without_work_nothing_is_handed_out() -> None:
    session = EMP.session(Role.CLIENT, EMP.settings({"max_message": 2 * LARGE}))
    session.connected(0.0)
    session.receive(frames.encode(Frame(Type.HELLO, frames.encode_hello(frames.Hello()))), 0.0)
    with pytest.raises(LimitExceeded):
        session.send(compressed(incompressible(3 * LARGE)), 0.0)


# In the library


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The threads in which bodies were packed and unpacked."""
    seen: dict[str, set[str]] = {"gzip": set(), "gunzip": set()}

    def watched(name: str) -> Callable[..., bytes]:
        real = getattr(extensions, name)

        def watch(data: bytes, *rest: int) -> bytes:
            if len(data) > LARGE_PACKED:
                seen[name].add(threading.current_thread().name)
            return bytes(real(data, *rest))

        return watch

    for name in seen:
        monkeypatch.setattr(extensions, name, watched(name))
    return seen


async def test_the_event_loop_packs_and_unpacks_nothing_large(threads: dict[str, set[str]]) -> None:
    async def echo(message: Message, peer: wireloom.Peer) -> object:
        return message

    settings = {"compress_above": 1000}
    async with wireloom.serve("emp://127.0.0.1:0", echo, settings=settings) as server:
        async with wireloom.connect(server.url, settings=settings) as peer:
            answers = await asyncio.gather(*(peer.request("a", NOISE * 9 + bytes([n])) for n in range(5)))
            assert answers == [NOISE * 9 + bytes([n]) for n in range(5)]
    loop = threading.current_thread().name
    assert threads["gzip"] and loop not in threads["gzip"]
    assert threads["gunzip"] and loop not in threads["gunzip"]


async def test_a_publisher_waits_while_its_body_is_packed() -> None:
    seen: list[int] = []
    async with wireloom.serve("emp://127.0.0.1:0", lambda message, peer: seen.append(len(message.body))) as server:
        async with wireloom.connect(server.url, settings={"compress_above": 1000}) as peer:
            for n in range(20):
                await peer.publish("a", BODY + bytes(n))
                session = peer.session
                assert isinstance(session, EmpSession)
                assert len(session._slow.behind) <= 1, "large bodies do not pile up"
    assert seen == [len(BODY) + n for n in range(20)]


async def test_a_request_that_is_too_large_when_packed_fails_in_the_library() -> None:
    settings = {"max_message": 2 * LARGE, "compress_above": 1000}
    async with wireloom.serve("emp://127.0.0.1:0", lambda message, peer: None) as server:
        async with wireloom.connect(server.url, settings=settings) as peer:
            with pytest.raises(RequestFailed, match=r"413: .*max_message"):
                await peer.request("a", incompressible(3 * LARGE))
            await peer.request("a", b"small")


def test_an_event_passes_what_is_being_packed() -> None:
    session = working(compress_above=10)
    session.send(Message(Kind.REQUEST, "question", body=BODY), 0.0)
    large = Message(Kind.EVENT, "a", BODY)
    pack = session.packing(large)
    assert pack is not None
    session.send_event(large, pack(), 0.0)
    assert session.packing(Message(Kind.EVENT, "b", b"small")) is None
    session.send_event(Message(Kind.EVENT, "b", b"small"), None, 0.0)
    first = session.outgoing()
    assert [(each.topic, each.body) for each in heard(first)] == [("a", BODY), ("b", b"small")]
    assert len(first) < len(BODY)
    do_work(session)
    assert [each.kind for each in heard(session.outgoing())] == [Kind.REQUEST]
    assert session.sent == 4


def test_an_event_is_not_packed_where_nobody_asked_for_that_or_nobody_is_there() -> None:
    assert working().packing(Message(Kind.EVENT, "a", BODY)) is None
    session = working(compress_above=10)
    session.close(0.0)
    with pytest.raises(PeerClosed):
        session.send_event(Message(Kind.EVENT, "a", BODY), None, 0.0)


@pytest.mark.parametrize("threaded", [False, True])
def test_what_was_unpacked_of_a_bomb_does_not_stay_with_the_error(threaded: bool) -> None:
    session = EMP.session(Role.SERVER, EMP.settings({}))
    if threaded:
        session.enable_work()
    session.connected(0.0)
    bomb = gzip.compress(bytes(17 * 1024 * 1024), 9)
    event = Message(Kind.EVENT, "a", b"0" * 100, attributes={"compression": "gzip"})
    frame = frames.decode(EMP.encode(event, EMP.settings({})), 0, 1 << 30, frames.SizeMode.INCLUSIVE)
    assert frame is not None
    data = frames.encode(frame[0]._replace(body=bomb), frames.SizeMode.INCLUSIVE)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        session.receive(frames.encode(frames.Frame(frames.Type.HELLO, frames.encode_hello(frames.Hello()))), 0.0)
        session.receive(data, 0.0)
        while (work := session.work()) is not None:
            list(session.worked(work(), 0.0))
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert session.violation is not None and session.violation.clause == "emp.compression.too-large"
    assert kept < 1024 * 1024
