"""The bounded queue: order, water marks, and cancellation at every moment."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.model import PeerClosed
from wireloom.peers.inbox import Inbox


async def test_marks_are_crossed_once_each_way() -> None:
    marks: list[str] = []
    inbox: Inbox[int] = Inbox(4, lambda: marks.append("full"), lambda: marks.append("room"))
    for number in range(6):
        inbox.put(number)
    assert marks == ["full"]
    assert [await inbox.get() for _ in range(3)] == [0, 1, 2]
    assert marks == ["full"]
    assert await inbox.get() == 3
    assert marks == ["full", "room"]


async def test_closing_lets_what_is_there_be_taken_first() -> None:
    inbox: Inbox[int] = Inbox(4)
    inbox.put(1)
    inbox.close(PeerClosed("gone"))
    inbox.put(2)
    assert await inbox.get() == 1
    with pytest.raises(PeerClosed):
        await inbox.get()
    quiet: Inbox[int] = Inbox(4)
    quiet.close()
    with pytest.raises(StopAsyncIteration):
        await quiet.get()


async def test_close_wakes_everybody() -> None:
    inbox: Inbox[int] = Inbox(4)
    waiting = [asyncio.ensure_future(inbox.get()) for _ in range(3)]
    await asyncio.sleep(0)
    inbox.close(PeerClosed("gone"))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, PeerClosed) for result in results)


async def test_discard_makes_room() -> None:
    marks: list[str] = []
    inbox: Inbox[int] = Inbox(2, lambda: marks.append("full"), lambda: marks.append("room"))
    inbox.put(1)
    inbox.put(2)
    inbox.discard()
    assert marks == ["full", "room"]
    assert len(inbox) == 0


@given(st.lists(st.sampled_from(["put", "get", "cancel", "turn"]), max_size=60))
def test_nothing_is_lost_whatever_is_cancelled(steps: list[str]) -> None:
    async def run() -> None:
        inbox: Inbox[int] = Inbox(1000)
        getters: list[asyncio.Future[int]] = []
        put = 0
        for step in steps:
            if step == "put":
                inbox.put(put)
                put += 1
            elif step == "get":
                getters.append(asyncio.ensure_future(inbox.get()))
            elif step == "cancel" and getters:
                getters[len(getters) // 2].cancel()
            else:
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        taken = [g.result() for g in getters if g.done() and not g.cancelled()]
        for getter in getters:
            getter.cancel()
        await asyncio.gather(*getters, return_exceptions=True)
        while len(inbox):
            taken.append(await inbox.get())
        assert sorted(taken) == list(range(put))

    asyncio.run(run())
