"""The driver on its own: timers, writes, portions, and the order of things. Pipe and clock belong to the test."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wireloom
from wireloom.model import HandshakeFailed, Kind, Message, PeerClosed, WireloomError
from wireloom.peers import driver as driver_module
from wireloom.peers.driver import Driver
from wireloom.peers.peer import Peer
from wireloom.peers.send_queue import BURST, PIECE
from wireloom.protocols.contract import NOTHING, Batch, Role, Session, SessionState
from wireloom.protocols.emp import extensions
from wireloom.protocols.hsp import HspSettings
from wireloom.protocols.hsp.session import HspSession
from wireloom.protocols.registry import protocol
from wireloom.transports import Pipe, portions

HSP = protocol("hsp")
PING, PONG = b"\x03", b"\x04"


class StubPipe(Pipe):
    """Writes down what is done to it."""

    peername = "test:1"

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.done: list[str] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def finish(self) -> None:
        self.done.append("finish")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


class Bench:
    """A driver on a stub pipe, and what came out of it."""

    def __init__(self, *, role: Role = Role.SERVER, **settings: object) -> None:
        self.session: Session = HSP.session(role, HSP.settings(settings))
        self.batches: list[Batch] = []
        self.opened = 0
        self.errors: list[WireloomError] = []
        self.driver = Driver(self.session, on_batch=self.batches.append, on_open=self._open, on_end=self.errors.append)
        self.pipe = StubPipe()

    def _open(self) -> None:
        self.opened += 1

    def start(self) -> Bench:
        self.driver.opened(self.pipe)
        return self

    @property
    def messages(self) -> list[Message]:
        return [message for batch in self.batches for message in batch.messages]


async def test_answers_of_the_session_are_written_in_one_piece() -> None:
    bench = Bench().start()
    bench.driver.received(PING * 3)
    assert bench.pipe.written == [PONG * 3]
    assert [message.kind for message in bench.messages] == [Kind.PING] * 3


async def test_open_is_announced_once_and_before_the_first_batch() -> None:
    bench = Bench().start()
    assert bench.opened == 1
    bench.driver.received(PING)
    assert bench.opened == 1


async def test_first_message_goes_out_at_once_the_rest_of_the_turn_together() -> None:
    bench = Bench().start()
    for number in range(4):
        bench.driver.send(Message(Kind.EVENT, "hsp/1", bytes([number])))
    assert len(bench.pipe.written) == 1
    await asyncio.sleep(0)
    assert len(bench.pipe.written) == 2
    assert b"".join(bench.pipe.written) == b"".join(b"\0\0\1\0\0\0\1" + bytes([n]) for n in range(4))


async def test_answers_to_many_requests_go_out_while_the_rest_is_handled() -> None:
    written_before: list[int] = []

    def handler(message: Message, peer: Peer) -> bytes:
        written_before.append(b"".join(pipe.written).count(b"\2\7"))
        return b""

    peer, pipe = Peer(HSP, handler=handler), StubPipe()
    driver = Driver(HSP.session(Role.SERVER, HSP.settings()), on_batch=peer._take)
    peer._attach(driver)
    driver.opened(pipe)
    count = 3 * PIECE
    driver.received(b"".join(bytes((1, 7, 7, 7, number, 1, 1, 0, 0, 0, 0)) for number in range(count)))
    assert written_before == [number // PIECE * PIECE for number in range(count)]
    assert b"".join(pipe.written) == b"".join(bytes((2, 7, 7, 7, number)) for number in range(count))


async def test_many_requests_of_one_turn_go_out_in_pieces() -> None:
    bench = Bench(role=Role.CLIENT).start()
    request = Message(Kind.REQUEST, "hsp/257")
    for _ in range(2 * PIECE + 2):
        bench.driver.send(request, followed=True)
    assert len(bench.pipe.written) == 2
    await asyncio.sleep(0)
    assert len(bench.pipe.written) == 3
    assert len(b"".join(bench.pipe.written)) == (2 * PIECE + 2) * 11


async def test_a_pipe_of_messages_gets_one_frame_a_write() -> None:
    session = protocol("yamp").session(Role.CLIENT, protocol("yamp").settings())
    driver = Driver(session, on_batch=lambda batch: None)
    pipe = StubPipe()
    pipe.carries_messages = True
    driver.opened(pipe)
    driver.received(pipe.written[0])
    pipe.written.clear()
    for _ in range(5):
        driver.send(Message(Kind.EVENT, "a", b"1"))
    await asyncio.sleep(0)
    assert len(pipe.written) == 5


async def test_long_burst_is_written_on_the_way_and_makes_the_sender_wait_a_turn() -> None:
    bench = Bench().start()
    for _ in range(BURST):
        bench.driver.send(Message(Kind.EVENT, "hsp/1"))
    assert bench.driver.is_crowded
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await bench.driver.drain()
    assert turned.is_set()
    assert not bench.driver.is_crowded
    assert len(b"".join(bench.pipe.written)) == BURST * 7


async def test_idle_peer_is_pinged_and_given_up() -> None:
    bench = Bench(ping_interval=0.02, pong_timeout=0.02).start()
    while not bench.pipe.done:
        await asyncio.sleep(0.005)
    assert bench.pipe.written == [PING]
    assert bench.pipe.done == ["finish"]
    bench.driver.ended(None)
    assert "idle" in str(bench.errors[0])


async def test_traffic_moves_the_deadline() -> None:
    bench = Bench(ping_interval=0.5, pong_timeout=5).start()
    for _ in range(30):
        bench.driver.received(PONG)
        await asyncio.sleep(0.02)
    assert bench.pipe.written == []
    while not bench.pipe.written:
        await asyncio.sleep(0.005)
    assert bench.pipe.written == [PING]


async def test_violation_says_its_last_words_closes_its_half_and_reads_on_into_nothing() -> None:
    bench = Bench().start()
    bench.driver.received(PING + b"\xff" + PING)
    assert bench.pipe.written == [PONG]
    assert bench.pipe.done == ["finish"]
    bench.driver.received(PING * 100)
    assert bench.pipe.written == [PONG]
    bench.driver.input_ended()
    assert bench.pipe.done == ["finish", "close"]
    bench.driver.ended(None)
    assert isinstance(bench.errors[0], PeerClosed)
    assert bench.errors[0].__cause__ is bench.session.violation
    with pytest.raises(PeerClosed, match=r"hsp\.command\.unknown"):
        bench.driver.send(Message(Kind.EVENT, "hsp/1"))


async def test_peer_that_does_not_close_is_aborted() -> None:
    bench = Bench()
    bench.driver._linger = 0.01
    bench.start()
    bench.driver.close()
    assert bench.pipe.done == ["finish"]
    await asyncio.sleep(0.03)
    assert bench.pipe.done == ["finish", "abort"]


async def test_reasons_to_hold_add_up() -> None:
    bench = Bench().start()
    bench.driver.hold("one")
    bench.driver.hold("two")
    bench.driver.release("one")
    bench.driver.release("never held")
    assert bench.pipe.done == ["pause"]
    assert bench.driver.holds == {"two"}
    bench.driver.release("two")
    assert bench.pipe.done == ["pause", "resume"]


async def test_server_stops_reading_while_it_cannot_write_and_a_client_goes_on() -> None:
    server, client = Bench(role=Role.SERVER).start(), Bench(role=Role.CLIENT).start()
    for bench in (server, client):
        bench.driver.writing_paused()
        assert bench.driver.is_crowded
    assert (server.pipe.done, client.pipe.done) == (["pause"], [])
    waiting = asyncio.ensure_future(server.driver.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    server.driver.writing_resumed()
    await waiting
    assert server.pipe.done == ["pause", "resume"]


async def test_cancelled_drain_leaves_the_others_waiting() -> None:
    bench = Bench().start()
    bench.driver.writing_paused()
    first, second = (asyncio.ensure_future(bench.driver.drain()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert first.cancelled() and not second.done()
    bench.driver.writing_resumed()
    await second


async def test_lost_pipe_wakes_those_who_wait_for_room() -> None:
    bench = Bench().start()
    bench.driver.writing_paused()
    waiting = asyncio.ensure_future(bench.driver.drain())
    await asyncio.sleep(0)
    bench.driver.ended(ConnectionResetError("cable"))
    with pytest.raises(PeerClosed, match="cable"):
        await waiting


async def test_end_before_the_handshake_is_a_failed_handshake() -> None:
    session = protocol("yamp").session(Role.CLIENT, protocol("yamp").settings())
    errors: list[WireloomError] = []
    driver = Driver(session, on_batch=lambda batch: None, on_end=errors.append)
    driver.opened(StubPipe())
    driver.ended(None)
    assert isinstance(errors[0], HandshakeFailed)
    assert session.state is SessionState.CLOSED


FRAMES = [PING, PONG, b"\0\0\7\0\0\0\5hello", b"\0\0\7\0\0\0\0"]


@given(st.lists(st.sampled_from(FRAMES), max_size=300), st.integers(1, 4000), st.sampled_from([0.0, 0.0001, 10.0]))
def test_portions_bring_the_same_messages_in_the_same_order(frames: list[bytes], read: int, seconds: float) -> None:
    stream = b"".join(frames)

    async def run() -> list[Message]:
        bench = Bench().start()
        for start in range(0, len(stream), read):
            bench.driver.received(stream[start : start + read])
        bench.driver.input_ended()
        while "finish" not in bench.pipe.done and "close" not in bench.pipe.done:
            await asyncio.sleep(0)
        bench.driver.ended(None)
        return bench.messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "LONG", seconds)
        patch.setattr(driver_module, "LONG", seconds)
        found = asyncio.run(run())
    whole = HSP.session(Role.SERVER, HSP.settings({}))
    whole.connected(0.0)
    assert found == [message for batch in whole.receive(stream, 0.0) for message in batch.messages]


async def test_many_tiny_frames_leave_turns_to_others() -> None:
    bench = Bench().start()
    turns = 0
    bench.driver.received(PING * 100_000)
    while bench.driver.holds:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5
    assert len(bench.messages) == 100_000
    assert bench.pipe.done[0] == "pause" and bench.pipe.done[-1] == "resume"
    assert b"".join(bench.pipe.written) == PONG * 100_000
    assert len(bench.pipe.written) <= turns + 1, "one write for each portion"


async def test_those_with_long_reads_share_the_time_of_one() -> None:
    many = [Bench().start() for _ in range(50)]
    for bench in many:
        bench.driver.received(PING * 20_000)
    first = [len(bench.messages) for bench in many]
    assert first[0] and not any(first[1:]), "the others wait in a row"
    for _ in range(2000):
        await asyncio.sleep(0)
        if all(bench.messages for bench in many):
            break
    taken = [len(bench.messages) for bench in many]
    assert all(taken) and not all(each == 20_000 for each in taken), "everybody has had a portion"
    while any(bench.driver.holds for bench in many):
        await asyncio.sleep(0)
    assert {len(bench.messages) for bench in many} == {20_000}


async def test_a_full_queue_stops_the_rest_of_a_read() -> None:
    bench = Bench().start()
    bench.driver.on_batch = lambda batch: (bench.batches.append(batch), bench.driver.hold("queue"))[0]
    bench.driver.received(PING * 100_000)
    for _ in range(10):
        await asyncio.sleep(0)
    before = len(bench.messages)
    assert 0 < before <= 64, "a batch and no more"
    assert bench.driver.holds == {"queue", "portions"}
    bench.driver.release("queue")
    for _ in range(10):
        await asyncio.sleep(0)
    assert before < len(bench.messages) <= 128


async def test_what_arrived_before_the_end_is_taken_in_portions_even_if_the_pipe_is_gone() -> None:
    bench = Bench().start()
    bench.driver.received(PING * 100_000)
    bench.driver.ended(ConnectionResetError("gone"))
    written = len(bench.pipe.written)
    assert not bench.errors and len(bench.messages) < 100_000
    while not bench.errors:
        await asyncio.sleep(0)
    assert len(bench.messages) == 100_000
    assert "gone" in str(bench.errors[0])
    assert len(bench.pipe.written) == written, "nothing is written to a pipe that is gone"


async def test_who_drops_the_connection_takes_nothing_more_of_it() -> None:
    bench = Bench().start()
    bench.driver.received(PING * 100_000)
    bench.driver.ended(None)
    taken = len(bench.messages)
    bench.driver.abort()
    assert bench.errors and len(bench.messages) == taken
    await asyncio.sleep(0.01)
    assert len(bench.messages) == taken and len(bench.errors) == 1


async def test_a_portion_that_fails_drops_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench().start()
    bench.driver.received(PING * 100_000)

    def fail(batch: Batch) -> None:
        raise ZeroDivisionError("in a batch")

    bench.driver.on_batch = fail
    while "abort" not in bench.pipe.done:
        await asyncio.sleep(0)
    assert "in a batch" in caplog.text
    bench.driver.ended(None)
    assert isinstance(bench.errors[0].__cause__, ZeroDivisionError)


class Working(HspSession):
    """A session that has work for another thread after each read."""

    offloads = True

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(Role.SERVER, HspSettings())
        self._work: Callable[[], object] | None = None
        self._next = work

    def enable_work(self) -> None:
        pass

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        self._work = self._next
        return super().batches(data, now)

    def work(self) -> Callable[[], object] | None:
        work, self._work = self._work, None
        return work

    def worked(self, result: object, now: float) -> Sequence[Batch]:
        if isinstance(result, Exception):
            raise result
        return NOTHING


def fails() -> object:
    raise ZeroDivisionError("in the thread")


@pytest.mark.parametrize("work", [fails, lambda: ZeroDivisionError("in the session")])
async def test_work_that_fails_drops_the_connection_with_the_reason(
    work: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[WireloomError] = []
    aborted = asyncio.Event()

    class AbortedPipe(StubPipe):
        def abort(self) -> None:
            driver.ended(None)
            aborted.set()

    driver, pipe = Driver(Working(work), on_batch=lambda batch: None, on_end=errors.append), AbortedPipe()
    driver.opened(pipe)
    driver.received(PING)
    assert driver.holds == {"work"}
    waiting = asyncio.ensure_future(driver.drain())
    await asyncio.wait_for(aborted.wait(), 10)
    assert driver.aborted
    assert isinstance(errors[0], PeerClosed) and isinstance(errors[0].__cause__, ZeroDivisionError)
    assert "in the " in str(errors[0])
    with pytest.raises(PeerClosed, match="ZeroDivisionError"):
        await waiting
    assert [record.exc_info is not None for record in caplog.records if "work failed" in record.message] == [True]


async def test_work_that_fails_after_the_end_is_told_in_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    go, errors = threading.Event(), list[WireloomError]()

    def fails_late() -> object:
        go.wait(10)
        raise ZeroDivisionError("too late")

    driver, pipe = Driver(Working(fails_late), on_batch=lambda batch: None, on_end=errors.append), StubPipe()
    driver.opened(pipe)
    driver.received(PING)
    driver.ended(None)
    go.set()
    while "too late" not in caplog.text:
        await asyncio.sleep(0.001)
    assert "abort" not in pipe.done and len(errors) == 1
    assert "too late" not in str(errors[0])


async def test_a_server_drops_a_connection_whose_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise MemoryError("no room to unpack")

    async with wireloom.serve("emp://127.0.0.1:0", lambda message, peer: b"") as server:
        async with wireloom.connect(server.url) as peer:
            assert await peer.request("a", b"1", timeout=10) is not None
            monkeypatch.setattr(extensions, "gunzip", broken)
            # Random bytes stay many when they are packed, so that they are unpacked by another thread.
            body = random.Random(1).randbytes(100_000)
            with pytest.raises(PeerClosed):
                await peer.request("a", body, attributes={"compression": "gzip"}, timeout=10)
