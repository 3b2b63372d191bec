"""Wireloom without asyncio: the same names and errors, in threads, and a clean end with the interpreter."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

import wireloom
from wireloom import PeerClosed, RequestFailed, RequestTimeout, Result, Service, ValidationError, sync
from wireloom.sync.portal import portal


@dataclass
class Sum:
    sum: int


service = Service()
seen: list[object] = []


@service.request("math/add")
def add(numbers: list[int]) -> Sum:
    return Sum(sum(numbers))


@service.request("slow")
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return threading.current_thread().name


@service.request("scan")
def scan(upto: int) -> Iterator[int]:
    yield from range(upto)
    return Sum(upto)  # type: ignore[return-value]


@service.request("forever")
def forever(message: wireloom.Message) -> Iterator[object]:
    while True:
        yield "step"
        time.sleep(0.01)


@service.request("back")
def back(text: str, peer: sync.Peer) -> object:
    return peer.request("mine", text)


@service.request("async")
async def asynchronous(text: str) -> str:
    return text.upper()


@service.event("events/#")
def event(message: wireloom.Message) -> None:
    seen.append(message.value())


@pytest.fixture(params=["emp", "yamp"])
def server(request: pytest.FixtureRequest) -> Iterator[sync.Server]:
    seen.clear()
    with sync.serve(f"{request.param}://127.0.0.1:0", service, drain=1) as server:
        yield server


@pytest.fixture
def peer(server: sync.Server) -> Iterator[sync.Client]:
    with sync.connect(server.url) as peer:
        yield peer


def test_requests(peer: sync.Client) -> None:
    assert peer.request("math/add", [1, 2, 3], returns=Sum) == Sum(6)
    assert peer.request("math/add", [1]) == {"sum": 1}
    assert [each.sum for each in peer.request_many("math/add", [[1], [2], [3]], returns=Sum)] == [1, 2, 3]
    assert peer.request("async", "a") == "A"


def test_the_same_errors(peer: sync.Client) -> None:
    with pytest.raises(RequestFailed, match="404"):
        peer.request("nothing")
    with pytest.raises(RequestFailed, match=r"\$\[0\]: expected int"):
        peer.request("math/add", ["x"])
    with pytest.raises(ValidationError):
        peer.request("math/add", [1], returns=list[int])
    with pytest.raises(RequestTimeout):
        peer.request("slow", 0.5, timeout=0.05)


def test_handlers_run_in_threads_and_may_call_back(server: sync.Server) -> None:
    mine = Service()

    @mine.request("mine")
    def answer(text: str) -> str:
        return text * 2

    with sync.connect(server.url, handler=mine) as peer:
        assert str(peer.request("slow", 0.0)).startswith("wireloom-handler")
        assert peer.request("back", "ab") == "abab"


def test_events_in_order_and_publish_many(peer: sync.Client) -> None:
    for number in range(20):
        peer.publish("events/a", number)
    assert peer.publish_many("events/b", range(20, 50)).wait() == 30
    until = time.monotonic() + 5
    while len(seen) < 50 and time.monotonic() < until:
        time.sleep(0.01)
    assert [each for each in seen if each < 20] == list(range(20))  # type: ignore[operator]
    assert [each for each in seen if each >= 20] == list(range(20, 50))  # type: ignore[operator]


def test_subscriptions_are_iterated(server: sync.Server, peer: sync.Client) -> None:
    with peer.subscribe("alerts/#") as alerts:
        assert server.publish("alerts/fire", {"floor": 3}) == 1
        for alert in alerts:
            assert alert.value() == {"floor": 3}
            break
        with pytest.raises(RequestTimeout, match="nothing came"):
            alerts.get(timeout=0.05)
        server.publish("alerts/flood", 1)
        assert next(alerts).topic == "alerts/flood"


def test_progress() -> None:
    with sync.serve("yamp://127.0.0.1:0", service) as server, sync.connect(server.url) as peer:
        job = peer.request_progress("scan", 3, steps=int, returns=Sum)
        assert list(job) == [0, 1, 2]
        assert job.result() == Sum(3)
        job = peer.request_progress("forever")
        assert next(job) == "step"
        job.cancel()
        with pytest.raises(RequestFailed, match="cancelled"):
            job.result()


def test_several_threads_use_one_peer(peer: sync.Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: peer.request("math/add", [n, 1], returns=Sum).sum, range(400)))
    assert found == [n + 1 for n in range(400)]


def test_one_that_waits_does_not_hold_up_others(peer: sync.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.submit(peer.request, "slow", 0.5)
        began = time.monotonic()
        assert peer.request("math/add", [1], returns=Sum).sum == 1
        assert time.monotonic() - began < 0.4
        assert waiting.result()


def test_a_closed_peer_says_so(server: sync.Server) -> None:
    peer = sync.connect(server.url)
    events = peer.subscribe("a")
    peer.close()
    peer.close()
    assert list(events) == []
    with pytest.raises(PeerClosed):
        peer.request("math/add", [1])


def test_nobody_there() -> None:
    with pytest.raises(PeerClosed, match="nothing listens there"):
        sync.connect("emp://127.0.0.1:1")


def test_dropped_subscriptions_end(peer: sync.Client, server: sync.Server) -> None:
    for _ in range(50):
        peer.subscribe("x/#")
    gc.collect()
    until = time.monotonic() + 5
    while server.publish("x/y") and time.monotonic() < until:
        time.sleep(0.01)
    assert server.publish("x/y") == 0


def test_a_call_inside_the_loop_is_refused(peer: sync.Client) -> None:
    async def inside() -> object:
        return peer.request("math/add", [1])

    with pytest.raises(RuntimeError, match="wait for itself"):
        portal().run(inside())


def test_connections_of_a_server(server: sync.Server, peer: sync.Client) -> None:
    (other,) = server.connections
    assert other is server.connections[0] and other.connected
    events = peer.subscribe("direct", local=True)
    other.publish("direct", 7)
    assert next(events).value(int) == 7


@pytest.mark.parametrize(("kind", "other"), [(wireloom.Peer, sync.Peer), (wireloom.Server, sync.Server)])
def test_names_and_parameters_are_those_of_the_async_api(kind: type, other: type) -> None:
    for name in DOCUMENTED[kind]:
        assert hasattr(other, name), name
        if callable(getattr(kind, name)):
            mine, theirs = (list(inspect.signature(getattr(each, name)).parameters) for each in (other, kind))
            assert mine == theirs, name


DOCUMENTED: dict[type, list[str]] = {
    wireloom.Peer: [
        "publish",
        "publish_many",
        "request",
        "request_many",
        "request_progress",
        "call",
        "subscribe",
        "provide",
        "stop_providing",
        "messages",
        "ask",
        "ask_many",
        "send",
        "send_event",
        "cancel",
        "encode",
        "decode",
        "value",
        "drain",
        "close",
        "abort",
        "connected",
        "is_slow",
        "name",
        "pipe",
        "session",
        "unhandled",
    ],
    wireloom.Server: ["url", "port", "connections", "publish", "close", "serve_forever"],
}

SCRIPT = """
import sys
from wireloom import sync

peer = sync.connect(sys.argv[1])
events = peer.subscribe("alerts/#")
for number in range(2000):
    peer.publish("events/a", number)
print("done")
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise ValueError('a mistake')"])
def test_the_end_of_the_program_loses_nothing(server: sync.Server, ending: str) -> None:
    command = [sys.executable, "-c", SCRIPT + ending, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n"
    assert "Traceback" not in done.stderr or "a mistake" in done.stderr, done.stderr
    until = time.monotonic() + 10
    while len(seen) < 2000 and time.monotonic() < until:
        time.sleep(0.01)
    assert seen == list(range(2000))


def test_a_service_with_an_async_generator() -> None:
    steps = Service()

    @steps.request("x")
    async def handler(message: wireloom.Message) -> object:
        yield 1
        yield Result(2)

    with sync.serve("yamp://127.0.0.1:0", steps) as server, sync.connect(server.url) as peer:
        job = peer.request_progress("x")
        assert list(job) == [1] and job.result() == 2
