"""Handlers begin at once and get a task only if they wait; nobody must be able to tell the difference."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

import wireloom
from wireloom import Message, Peer, RequestFailed
from wireloom.testing import peer_pair

LANGUAGE: ContextVar[str] = ContextVar("LANGUAGE", default="none")


async def warm(client: Peer) -> None:
    """The first request of a peer has a task of its own; those after it begin at once."""
    await client.request("warm")
    await asyncio.sleep(0)


async def test_a_handler_that_does_not_wait_has_no_task_of_its_own() -> None:
    tasks = set()

    async def handler(message: Message, peer: Peer) -> str:
        tasks.add(asyncio.current_task())
        return "done"

    async with peer_pair("emp", handler) as (client, _):
        await warm(client)
        tasks.clear()
        for _ in range(5):
            assert await client.request("x") == "done"
        assert len(tasks) == 1
        assert None not in tasks


async def test_handlers_that_wait_run_beside_each_other() -> None:
    waiting: list[asyncio.Event] = []

    async def handler(message: Message, peer: Peer) -> bytes:
        if message.topic == "wait":
            event = asyncio.Event()
            waiting.append(event)
            await event.wait()
        return message.body

    async with peer_pair("emp", handler) as (client, _):
        await warm(client)
        slow = [asyncio.create_task(client.request("wait", str(number))) for number in range(3)]
        while len(waiting) < 3:
            await asyncio.sleep(0)
        assert await client.request("quick", "q") == b"q"
        for event in waiting:
            event.set()
        assert await asyncio.gather(*slow) == [b"0", b"1", b"2"]


async def test_a_timeout_works_in_a_handler_wherever_it_strikes() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(float(message.topic or 0)):
                await asyncio.sleep(60)
        except TimeoutError:
            assert not task.cancelling()
            await asyncio.sleep(0)
            return "late"
        return "in time"

    async with peer_pair("emp", handler) as (client, _):
        for delay in ("0", "0", "0.001", "0", "-1", "0.02"):
            assert await client.request(delay) == "late"


async def test_a_timeout_that_strikes_a_handler_that_only_yields() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        try:
            async with asyncio.timeout(0):
                while True:
                    await asyncio.sleep(0)
        except TimeoutError:
            return "late"

    async with peer_pair("emp", handler) as (client, _):
        for _ in range(3):
            assert await client.request("x") == "late"


async def test_what_a_handler_waits_for_may_be_done_before_its_task_takes_over() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, "soon")
        first = await future
        done = asyncio.get_running_loop().create_future()
        done.set_result("now")
        return str(first) + str(await done)

    async with peer_pair("emp", handler) as (client, _):
        for _ in range(3):
            assert await client.request("x") == "soonnow"


async def test_errors_before_and_after_waiting_are_answers() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        if message.topic == "after":
            await asyncio.sleep(0)
        raise RequestFailed("418", b"teapot")

    async with peer_pair("emp", handler) as (client, _):
        for topic in ("before", "before", "after", "before", "after"):
            with pytest.raises(RequestFailed, match="418: teapot"):
                await client.request(topic)


async def test_a_handler_that_is_cancelled_before_it_waits_is_answered_with_an_error() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        if message.topic == "x":
            raise asyncio.CancelledError
        return "done"

    async with peer_pair("emp", handler) as (client, _):
        await warm(client)
        with pytest.raises(RequestFailed):
            await client.request("x")
        assert await client.request("y") == "done"


async def test_context_variables_of_one_handler_are_not_seen_by_the_next() -> None:
    async def handler(message: Message, peer: Peer) -> str:
        before = LANGUAGE.get()
        LANGUAGE.set(str(message.topic))
        if message.topic == "waits":
            await asyncio.sleep(0)
            assert LANGUAGE.get() == "waits"
        return before

    LANGUAGE.set("outside")
    async with peer_pair("emp", handler) as (client, _):
        for topic in ("one", "two", "waits", "three", "waits", "four"):
            assert await client.request(topic) == "outside"
            assert await asyncio.gather(*(client.request("many") for _ in range(3))) == ["outside"] * 3


async def test_a_cancel_stops_a_handler_that_began_at_once() -> None:
    stopped = asyncio.Event()
    began = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> None:
        if message.topic == "long":
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

    async with peer_pair("yamp", handler) as (client, _):
        await warm(client)
        call = asyncio.create_task(client.request("long"))
        await began.wait()
        call.cancel()
        await stopped.wait()


async def test_a_cancel_in_the_same_read_as_its_request_stops_it() -> None:
    stopped: list[str] = []

    async def handler(message: Message, peer: Peer) -> None:
        if message.topic == "long":
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(message.topic)

    async with peer_pair("yamp", handler) as (client, _):
        await warm(client)
        sent = client.send(Message(wireloom.Kind.REQUEST, "long", content_type="application/json"))
        client.cancel(sent)
        while not stopped:
            await asyncio.sleep(0)


async def test_no_task_is_left_behind() -> None:
    async def handler(message: Message, peer: Peer) -> None:
        if message.topic == "waits":
            await asyncio.sleep(0)

    before = asyncio.all_tasks()
    async with wireloom.serve("emp://127.0.0.1:0", handler) as server, wireloom.connect(server.url) as client:
        for topic in ("a", "waits", "b", "c"):
            await client.request(topic)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
