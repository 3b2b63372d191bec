"""Publish, request, subscribe: the same API over every protocol."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest

import wireloom
from wireloom import Kind, Message, NotSupported, Peer, RequestFailed, RequestTimeout, Result, Service
from wireloom.testing import peer_pair

URLS = {
    "hsp": "hsp://127.0.0.1:0",
    "emp": "emp://127.0.0.1:0",
    "yamp": "yamp://127.0.0.1:0",
    "yamp+ws": "yamp+ws://127.0.0.1:0",
    "hsp+unix": "hsp+unix://{folder}/talking.sock",
    "emp+unix": "emp+unix://{folder}/talking.sock",
    "yamp+unix": "yamp+unix://{folder}/talking.sock",
    "hsp in memory": "memory://hsp/talking",
    "yamp in memory": "memory://yamp/talking",
}
WITH_BODIES = [name for name in URLS if "hsp" not in name]
"""Protocols whose answers have a body; an hsp `ACK` has none."""


@pytest.fixture(params=list(URLS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return URLS[request.param].format(folder=tmp_path_factory.mktemp("sockets"))


async def until(condition: object) -> None:
    """Wait for something that is about to become true; the suite's timeout is the limit."""
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0)


async def test_event_reaches_the_handler(url: str) -> None:
    events: list[Message] = []

    async def handler(message: Message, peer: Peer) -> None:
        events.append(message)

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        await peer.publish("sensors/kitchen", {"c": 21.5})
        await until(lambda: events)
    assert (events[0].kind, events[0].topic, events[0].value()) == (Kind.EVENT, "sensors/kitchen", {"c": 21.5})


async def test_events_are_handled_in_order_one_after_another(url: str) -> None:
    seen: list[object] = []
    running = 0

    async def handler(message: Message, peer: Peer) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(peer.decode(message))
        running -= 1

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        for number in range(200):
            await peer.publish("n", {"n": number})
    assert seen == [{"n": number} for number in range(200)]


@pytest.mark.parametrize("url", WITH_BODIES, indirect=True)
async def test_request_returns_what_the_handler_returned(url: str) -> None:
    service = Service()

    @service.request("math/add")
    async def add(message: Message) -> object:
        numbers = message.value()
        assert isinstance(numbers, dict)
        return numbers["a"] + numbers["b"]  # type: ignore[operator]

    @service.request("now")
    def plain(message: Message, peer: Peer) -> object:
        return {"kind": str(message.kind)}

    async with wireloom.serve(url, service) as server, wireloom.connect(server.url) as peer:
        assert await peer.request("math/add", {"a": 1, "b": 2}) == 3
        assert await peer.request("now") == {"kind": "request"}


@pytest.mark.parametrize("value", [b"raw \xff", "text", {"a": [1, None, True]}, [1, 2], 5])
async def test_bodies_of_every_sort_come_back(value: object) -> None:
    async def echo(message: Message, peer: Peer) -> object:
        return message

    async with peer_pair("emp", echo) as (client, _):
        assert await client.request("echo", value) == value


async def test_hsp_request_is_answered_with_an_acknowledgement() -> None:
    async with peer_pair("hsp", lambda message, peer: b"an ACK carries no body") as (client, _):
        assert await client.request("x", "y") == b""


async def test_server_asks_the_client(url: str) -> None:
    asked: list[str | None] = []

    async def answer(message: Message, peer: Peer) -> object:
        asked.append(message.topic)
        return "fine"

    came: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
    # An emp peer that has not named a topic itself is sent none, unless it is said to know them.
    settings = {"profile": "on"} if url.startswith("emp") else {}
    async with (
        wireloom.serve(url, settings=settings, on_connect=came.set_result) as server,
        wireloom.connect(server.url, handler=answer),
    ):
        await (await came).request("how/are/you")
    assert asked == ["how/are/you"]


async def test_request_nobody_handles_fails(url: str) -> None:
    async with wireloom.serve(url, Service()) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestFailed, match="nobody handles requests for 'nope'"):
            await peer.request("nope")


async def test_server_without_a_handler_says_so(url: str) -> None:
    async with wireloom.serve(url) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestFailed):
            await peer.request("anything")


async def test_handler_fails_a_request_on_purpose(url: str) -> None:
    async def handler(message: Message, peer: Peer) -> object:
        raise RequestFailed("409", b"already there")

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestFailed, match="already there") as caught:
            await peer.request("x")
        assert (caught.value.code, caught.value.body) == ("409", b"already there")


async def test_handler_that_crashes_answers_with_an_error_and_goes_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: Message, peer: Peer) -> object:
        if message.topic == "crash":
            raise ZeroDivisionError("secret detail")
        return None

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestFailed) as caught:
            await peer.request("crash")
        assert b"secret" not in caught.value.body
        await peer.request("fine")
    assert "secret detail" in caplog.text


async def _waits_for_what_is_cancelled(message: Message) -> object:
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    return await task


def _cancelled_at_once(message: Message) -> object:
    raise asyncio.CancelledError


async def _cancelled_step(message: Message) -> AsyncIterator[object]:
    yield 1
    raise asyncio.CancelledError


async def _wrong_step(message: Message) -> AsyncIterator[object]:
    yield object()
    yield Result("done")


async def _half_a_character(message: Message) -> object:
    return "\ud800"


async def _odd_message(message: Message) -> object:
    return Message(Kind.ERROR, "\ud800", status="422")


async def _text_without_end(message: Message) -> object:
    raise RequestFailed("422", b"x" * (20 * 1024 * 1024))


async def _number_as_code(message: Message) -> object:
    raise RequestFailed(422, "no such thing")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handler",
    [
        _waits_for_what_is_cancelled,
        _cancelled_at_once,
        _cancelled_step,
        _wrong_step,
        _half_a_character,
        _odd_message,
        _text_without_end,
        _number_as_code,
    ],
)
async def test_whatever_a_handler_does_the_request_is_answered_and_the_connection_stays(
    url: str, handler: Callable[[Message], object]
) -> None:
    service = Service()
    service.request("odd")(handler)
    service.request("fine")(lambda message: None)
    async with wireloom.serve(url, service) as server:
        async with wireloom.connect(server.url, reconnect=False) as peer:
            for _ in range(2):  # the first has a task of its own, the next one begins without
                with pytest.raises(RequestFailed):
                    await peer.request("odd", timeout=20)
                await peer.request("fine")


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError("broken")], ids=repr)
async def test_event_handler_that_crashes_goes_on(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str | None] = []

    async def handler(message: Message, peer: Peer) -> None:
        seen.append(message.topic)
        if message.topic == "bad":
            raise error

    async with peer_pair("hsp", handler) as (client, _):
        await client.publish("bad")
        await client.publish("good")
    assert seen == ["bad", "good"]
    assert "broken" in caplog.text


async def test_timeout_of_a_request(url: str) -> None:
    release = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> None:
        await release.wait()

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestTimeout, match=r"no answer to the request for 'slow' within 0\.05 s"):
            await peer.request("slow", timeout=0.05)
        release.set()
        await peer.request("fast")


async def test_answer_after_the_timeout_disturbs_nobody() -> None:
    release = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        if message.topic == "slow":
            await release.wait()
        return message.topic

    async with peer_pair("emp", handler) as (client, _):
        with pytest.raises(RequestTimeout):
            await client.request("slow", timeout=0.01)
        waiting = asyncio.create_task(client.request("fast"))
        release.set()
        assert await waiting == "fast"
        await until(lambda: client.unhandled == 1)


@pytest.mark.parametrize("name", ["emp", "hsp", "yamp"])
async def test_a_stream_of_messages_that_begins_while_a_request_is_on_its_way_has_its_answer(name: str) -> None:
    release = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> None:
        await release.wait()

    async with peer_pair(name, handler) as (client, server):
        waiting = asyncio.create_task(client.request("slow"))
        await until(lambda: server._is_busy)
        async with client.messages() as everything:
            release.set()
            answer = await anext(everything)
            assert answer.kind is Kind.RESPONSE
            await waiting
        await client.request("again")
        assert client.unhandled == 0


@pytest.mark.parametrize("name", ["emp", "hsp", "yamp"])
async def test_requests_of_both_ends_and_events_in_between_find_their_way(name: str) -> None:
    """Plain messages are taken the shortest way, the others are not: none may overtake or be lost."""
    events: list[object] = []

    async def handler(message: Message, peer: Peer) -> object:
        if message.kind is Kind.EVENT:
            events.append(message.value())
        return message.body

    async with peer_pair(name, handler, client_handler=handler) as (client, server):
        for number in range(50):
            asked = [peer.request("echo", str(number).encode()) for peer in (client, server)]
            await asyncio.gather(*asked, client.publish("count", number))
        await until(lambda: len(events) == 50)
    assert events == list(range(50))


async def test_each_request_has_its_own_deadline() -> None:
    async def never(message: Message, peer: Peer) -> None:
        await asyncio.get_running_loop().create_future()

    async with peer_pair("hsp", never) as (client, server):
        late = asyncio.create_task(client.request("late", timeout=30))
        soon = asyncio.create_task(client.request("soon", timeout=0.02))
        with pytest.raises(RequestTimeout, match="soon"):
            await soon
        assert not late.done()
        server.abort()
        with pytest.raises(wireloom.PeerClosed):
            await late


async def test_requests_run_beside_each_other() -> None:
    barrier = asyncio.Barrier(20)

    async def handler(message: Message, peer: Peer) -> object:
        await barrier.wait()
        return message

    async with peer_pair("yamp", handler) as (client, _):
        answers = await asyncio.gather(*(client.request("n", {"n": number}) for number in range(20)))
    assert answers == [{"n": number} for number in range(20)]


async def test_progress_then_result() -> None:
    async def report(message: Message, peer: Peer) -> object:
        for percent in (10, 50, 90):
            yield percent
        yield Result({"pages": 3})

    async with peer_pair("yamp", report) as (client, _):
        building = client.request_progress("report/build", {})
        assert [step async for step in building] == [10, 50, 90]
        assert await building == {"pages": 3}
        assert await client.request_progress("report/build") == {"pages": 3}
        assert await client.request("report/build") == {"pages": 3}, "who does not ask for steps gets none"


async def test_progress_that_fails() -> None:
    async def report(message: Message, peer: Peer) -> object:
        yield 1
        raise RequestFailed("507", b"disk full")

    async with peer_pair("yamp", report) as (client, _):
        building = client.request_progress("x")
        assert await anext(building) == 1
        with pytest.raises(RequestFailed, match="disk full"):
            await anext(building)


async def test_steps_keep_a_request_alive() -> None:
    go_on = asyncio.Queue[int]()

    async def report(message: Message, peer: Peer) -> object:
        while step := await go_on.get():
            yield step

    async with peer_pair("yamp", report) as (client, _):
        building = client.request_progress("x", timeout=1.0)
        for step in range(1, 6):
            asyncio.get_running_loop().call_later(0.3, go_on.put_nowait, step)
            assert await anext(building) == step
        with pytest.raises(RequestTimeout):
            await anext(building)


@pytest.mark.parametrize("how", ["cancel the task", "time out", "drop the iterator", "cancel()"])
async def test_handler_is_cancelled_when_nobody_waits(how: str) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with peer_pair("yamp", handler) as (client, _):
        match how:
            case "cancel the task":
                task = asyncio.create_task(client.request("x"))
                await started.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            case "time out":
                with pytest.raises(RequestTimeout):
                    await client.request("x", timeout=0.05)
            case "drop the iterator":
                building = client.request_progress("x")
                waiting = asyncio.ensure_future(building.__anext__())
                await started.wait()
                waiting.cancel()
                del building, waiting
                await asyncio.sleep(0)
                gc.collect()
            case _:
                building = client.request_progress("x")
                waiting = asyncio.ensure_future(building.__anext__())
                await started.wait()
                building.cancel()
                with pytest.raises(RequestFailed, match="cancelled"):
                    await waiting
        await cancelled.wait()


async def test_kill_gets_no_answer() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    async with peer_pair("yamp", handler) as (client, _), client.messages() as everything:
        sent = client.send(Message(Kind.REQUEST, "x"))
        await started.wait()
        client.cancel(sent, kill=True)
        await cancelled.wait()
        client.send(Message(Kind.REQUEST, "$hub/subscribe", b'{"topic": "a"}', content_type="application/json"))
        assert (await anext(everything)).topic == "$hub/subscribe"


async def test_acknowledged_publish(url: str) -> None:
    events: list[Message] = []

    def handler(message: Message, peer: Peer) -> None:
        events.append(message)

    async with wireloom.serve(url, handler) as server, wireloom.connect(server.url) as peer:
        await peer.publish("orders/new", {"n": 1}, ack=True)
        assert [event.topic for event in events] == ["orders/new"]


async def test_messages_shows_everything_that_comes_in() -> None:
    async with peer_pair("hsp", lambda message, peer: None) as (client, server), client.messages() as stream:
        await server.publish("a/b", "x")
        await client.request("c")
        kinds = [(await anext(stream)).kind for _ in range(2)]
        assert sorted(kinds) == [Kind.EVENT, Kind.RESPONSE]


async def test_importing_and_naming() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0") as server, wireloom.connect(server.url) as peer:
        assert server.url == f"hsp://127.0.0.1:{server.port}"
        assert peer.url == server.url
        assert peer.connected
        assert peer.name == f"127.0.0.1:{server.port}"
        await until(lambda: server.connections)
        assert server.connections[0].name == peer.pipe.sockname
        assert peer.session.role == "client"
    assert not peer.connected


async def test_a_cancelled_progress_ends_the_iteration_with_what_happened() -> None:
    stopped = asyncio.Event()

    async def steps(message: Message, peer: Peer) -> AsyncIterator[object]:
        try:
            for number in count():
                yield number
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    async with peer_pair("yamp", steps) as (client, _):
        job = client.request_progress("x")
        taken = []
        with pytest.raises(RequestFailed) as ended:
            async for step in job:
                taken.append(step)
                if step == 2:
                    job.cancel()
        assert ended.value.code == "cancelled" and taken[:3] == [0, 1, 2]
        with pytest.raises(RequestFailed, match="cancelled"):
            await job
        await stopped.wait()
        unsent = client.request_progress("x")
        unsent.cancel()
        with pytest.raises(RequestFailed, match="cancelled"):
            await anext(unsent)


async def test_a_progress_that_cannot_be_cancelled_goes_on() -> None:
    async def steps(message: Message, peer: Peer) -> AsyncIterator[object]:
        yield "step"
        yield wireloom.Result("done")

    async with peer_pair("emp", steps) as (client, _), client.request_progress("x") as job:
        with pytest.raises(NotSupported):
            job.cancel()
        assert await job == "done"
