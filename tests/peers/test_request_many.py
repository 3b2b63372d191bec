"""`request_many`: a number of requests in flight, answers in order, nothing lost and nothing unbounded."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

import wireloom
from wireloom import ConfigError, Kind, Message, NotSupported, Peer, PeerClosed, RequestFailed, RequestTimeout
from wireloom.testing import FaultProxy, peer_pair

PROTOCOLS = ["emp", "yamp", "hsp", "wolpertinger"]


async def echo(message: Message, peer: Peer) -> object:
    return peer.decode(message)


async def counted(amount: int) -> AsyncIterator[str]:
    for number in range(amount):
        if number % 7 == 0:
            await asyncio.sleep(0)
        yield str(number)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("in_flight", [1, 2, 64, 1000])
async def test_every_body_is_answered_in_order(protocol: str, in_flight: int) -> None:
    asked: list[object] = []

    def handler(message: Message, peer: Peer) -> object:
        asked.append(peer.decode(message))
        return asked[-1]

    bodies = [str(number) for number in range(150)]
    async with peer_pair(protocol, handler) as (client, _):
        answers = [answer async for answer in client.request_many("echo", bodies, in_flight=in_flight)]
    assert asked == bodies
    assert answers == ([b""] * 150 if protocol == "hsp" else bodies)


@pytest.mark.parametrize("url", ["emp://127.0.0.1:0", "yamp+ws://127.0.0.1:0"])
async def test_bodies_may_come_from_an_async_iterable(url: str) -> None:
    async with wireloom.serve(url, echo) as server, wireloom.connect(server.url) as peer:
        answers = [answer async for answer in peer.request_many("echo", counted(200), in_flight=9)]
    assert answers == [str(number) for number in range(200)]


async def test_answers_are_in_order_when_the_other_end_is_not() -> None:
    async def handler(message: Message, peer: Peer) -> object:
        number = int(message.body)
        await asyncio.sleep(0.02 if number % 3 == 0 else 0)
        return number

    async with peer_pair("emp", handler) as (client, _):
        bodies = [str(number) for number in range(30)]
        assert [answer async for answer in client.request_many("x", bodies, in_flight=8)] == list(range(30))


async def test_no_more_than_in_flight_are_on_their_way() -> None:
    running = most = 0

    async def handler(message: Message, peer: Peer) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with peer_pair("emp", handler) as (client, _):
        async for _ in client.request_many("x", [b""] * 100, in_flight=5):
            pass
    assert 1 < most <= 5


async def test_whoever_takes_answers_slowly_slows_down_the_sender() -> None:
    taken = 0

    def bodies() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b""

    async with peer_pair("emp", echo) as (client, _), client.request_many("x", bodies(), in_flight=10) as answers:
        await anext(answers)
        for _ in range(20):
            await client.request("other")
        assert taken <= 11
        for _ in range(25):
            await anext(answers)
        assert taken <= 36


async def test_an_endless_async_source_is_not_run_ahead_of_the_answers() -> None:
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield b""

    async with peer_pair("emp", echo) as (client, _), client.request_many("x", endless(), in_flight=10) as answers:
        await anext(answers)
        for _ in range(20):
            await client.request("other")
        assert given <= 12


async def test_answers_do_not_wait_for_the_next_body() -> None:
    more = asyncio.Event()

    async def bodies() -> AsyncIterator[str]:
        yield "first"
        await more.wait()
        yield "second"

    async with peer_pair("emp", echo) as (client, _):
        answers = client.request_many("x", bodies())
        assert await anext(answers) == "first"
        more.set()
        assert [answer async for answer in answers] == ["second"]


def picky(message: Message, peer: Peer) -> object:
    if message.body == b"3":
        raise RequestFailed("422", b"not three")
    return message.body


async def test_an_error_in_the_middle_ends_the_iteration_at_its_place() -> None:
    async with peer_pair("emp", picky) as (client, _):
        answers = client.request_many("x", [b"%d" % number for number in range(10)], in_flight=4)
        seen = [await anext(answers) for _ in range(3)]
        with pytest.raises(RequestFailed, match="422: not three") as caught:
            await anext(answers)
        assert seen == [b"0", b"1", b"2"]
        assert caught.value.__notes__ == ["in the answer to request 4 of many"]
        with pytest.raises(StopAsyncIteration):
            await anext(answers)
        assert await client.request("x", b"still works") == b"still works"


async def test_with_return_errors_the_others_go_on() -> None:
    async with peer_pair("emp", picky) as (client, _):
        bodies: list[object] = [b"2", b"3", object(), b"x" * 20_000_000, b"4"]
        found = [answer async for answer in client.request_many("x", bodies, in_flight=3, return_errors=True)]
    assert found[0] == b"2"
    assert isinstance(found[1], RequestFailed)
    assert isinstance(found[2], NotSupported)
    assert isinstance(found[3], wireloom.LimitExceeded)
    assert found[4] == b"4"


async def test_a_request_that_is_not_answered_times_out_alone() -> None:
    async def handler(message: Message, peer: Peer) -> object:
        if message.body == b"never":
            await asyncio.sleep(3600)
        return message.body

    async with peer_pair("yamp", handler, settings={"serializer": "raw"}) as (client, _):
        bodies = [b"a", b"never", b"b"]
        found = [a async for a in client.request_many("x", bodies, timeout=0.3, return_errors=True)]
    assert found[0] == b"a"
    assert isinstance(found[1], RequestTimeout)
    assert found[2] == b"b"


async def test_an_error_of_the_source_comes_after_the_answers_before_it() -> None:
    def bodies() -> Iterator[str]:
        yield "a"
        yield "b"
        raise OSError("the disk is gone")

    async def coming() -> AsyncIterator[str]:
        for body in bodies():
            yield body

    async with peer_pair("emp", echo) as (client, _):
        for source in (bodies(), coming()):
            seen: list[object] = []
            with pytest.raises(OSError, match="the disk is gone"):
                async for answer in client.request_many("x", source, in_flight=8):
                    seen.append(answer)  # noqa: PERF401
            assert seen == ["a", "b"]


async def test_a_lost_connection_fails_clearly() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", echo) as server, FaultProxy(server.url) as proxy:
        async with wireloom.connect(proxy.url, reconnect=False) as peer:
            answers = peer.request_many("x", (str(number) for number in range(10**9)), in_flight=16)
            for number in range(40):
                assert await anext(answers) == str(number)
            proxy.cut()
            with pytest.raises(PeerClosed, match=r"was (lost|closed)"):
                while True:
                    await anext(answers)


async def test_a_lost_connection_is_said_of_each_and_then_of_all() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", echo) as server, FaultProxy(server.url) as proxy:
        async with wireloom.connect(proxy.url, reconnect=False) as peer:
            answers = peer.request_many("x", (str(n) for n in range(10**9)), in_flight=16, return_errors=True)
            await anext(answers)
            proxy.cut()
            errors = 0
            with pytest.raises(PeerClosed):
                while True:
                    errors += isinstance(await anext(answers), PeerClosed)
            assert errors <= 16


async def test_it_goes_on_over_the_next_connection() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", echo) as server, FaultProxy(server.url) as proxy:
        backoff = wireloom.Backoff(minimum=0.01, maximum=0.05)
        async with wireloom.connect(proxy.url, reconnect=backoff) as peer:
            answers = peer.request_many("x", [str(n) for n in range(300)], in_flight=16, return_errors=True)
            found = [await anext(answers) for _ in range(20)]
            proxy.cut()
            found += [answer async for answer in answers]
    lost = [answer for answer in found if isinstance(answer, PeerClosed)]
    assert len(found) == 300
    assert len(lost) <= 16
    assert [answer for answer in found if not isinstance(answer, PeerClosed)] == [
        str(number) for number, answer in enumerate(found) if not isinstance(answer, PeerClosed)
    ]


async def test_with_resend_nothing_is_lost_at_all() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", echo) as server, FaultProxy(server.url) as proxy:
        backoff = wireloom.Backoff(minimum=0.01, maximum=0.05)
        async with wireloom.connect(proxy.url, reconnect=backoff, resend=True) as peer:
            answers = peer.request_many("x", [str(n) for n in range(200)], in_flight=16)
            found = [await anext(answers) for _ in range(20)]
            proxy.cut()
            found += [answer async for answer in answers]
    assert found == [str(number) for number in range(200)]


async def test_cancelling_the_wait_for_an_answer_loses_none() -> None:
    gate = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        await gate.wait()
        return message.body

    async with peer_pair("emp", handler) as (client, _):
        answers = client.request_many("x", [b"1", b"2", b"3"], in_flight=2)
        waiting = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.set()
        assert [answer async for answer in answers] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("leave", ["close", "drop"])
async def test_leaving_gives_up_what_is_in_flight(leave: str) -> None:
    began = 0
    stopped = 0

    async def handler(message: Message, peer: Peer) -> object:
        nonlocal began, stopped
        if message.body == b"0":
            return b"0"
        began += 1
        try:
            await asyncio.sleep(3600)
        finally:
            stopped += 1
        return None

    async with peer_pair("yamp", handler, settings={"serializer": "raw"}) as (client, _):
        answers = client.request_many("x", [b"0", b"1", b"2", b"3"])
        assert await anext(answers) == b"0"
        while began < 3:
            await asyncio.sleep(0)
        if leave == "close":
            answers.close()
        else:
            del answers
            gc.collect()
        while stopped < 3:
            await asyncio.sleep(0)


async def test_leaving_stops_the_async_source() -> None:
    closed = asyncio.Event()

    async def bodies() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b""
                await asyncio.sleep(0)
        finally:
            closed.set()

    async with peer_pair("emp", echo) as (client, _):
        async with client.request_many("x", bodies(), in_flight=3) as answers:
            await anext(answers)
        await closed.wait()


async def test_messages_as_they_are() -> None:
    def handler(message: Message, peer: Peer) -> Message:
        return message.with_(kind=Kind.RESPONSE)

    async with peer_pair("emp", handler) as (client, _):
        asked = [Message(Kind.REQUEST, f"t/{number}", b"x", content_type="text/plain") for number in range(5)]
        answers = [answer async for answer in client.ask_many(asked, in_flight=2)]
    assert [(answer.kind, answer.topic, answer.content_type) for answer in answers] == [
        (Kind.RESPONSE, f"t/{number}", "text/plain") for number in range(5)
    ]


async def test_no_bodies_no_answers() -> None:
    async with peer_pair("emp", echo) as (client, _):
        assert [answer async for answer in client.request_many("x", [])] == []


async def test_two_tasks_cannot_take_from_one_row() -> None:
    async def handler(message: Message, peer: Peer) -> None:
        await asyncio.sleep(3600)

    async with wireloom.serve("memory://emp/two", handler, drain=0) as server, wireloom.connect(server.url) as client:
        async with client.request_many("x", [b""]) as answers:
            first = asyncio.ensure_future(anext(answers))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one task at a time"):
                await anext(answers)
            first.cancel()
            await asyncio.wait([first])


async def test_mistakes_are_told_at_once() -> None:
    async with peer_pair("emp", echo) as (client, _):
        with pytest.raises(ConfigError, match="in_flight is 0"):
            client.request_many("x", [], in_flight=0)
        with pytest.raises(ConfigError, match="bodies is one bytes"):
            client.request_many("x", b"body")
        with pytest.raises(ConfigError, match="topic must not be empty"):
            client.request_many("", [b"body"])
