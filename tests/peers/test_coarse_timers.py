"""Timers that share a round: called in the second after their deadline, unless they left it."""

from __future__ import annotations

import asyncio

from wireloom.peers.coarse_timers import Rounds, rounds_of


async def test_all_of_one_second_are_called_after_their_deadline_and_not_before() -> None:
    loop = asyncio.get_running_loop()
    rounds, called = Rounds(loop), asyncio.Event()
    deadline = loop.time() + 0.01
    at = rounds.join(deadline, called.set)
    assert deadline <= at < deadline + 1
    assert not called.is_set()
    await asyncio.wait_for(called.wait(), 10)
    assert loop.time() >= deadline


async def test_who_has_left_is_not_called() -> None:
    loop = asyncio.get_running_loop()
    rounds, called = Rounds(loop), []
    done = asyncio.Event()
    one, other = (lambda: called.append("one")), (lambda: called.append("other"))
    at = rounds.join(loop.time() + 0.01, one)
    assert rounds.join(at, other) == at
    assert rounds.join(at, done.set) == at
    rounds.leave(at, one)
    rounds.leave(at + 100, other)
    await asyncio.wait_for(done.wait(), 10)
    assert called == ["other"]


async def test_a_loop_has_one_set_of_rounds() -> None:
    loop = asyncio.get_running_loop()
    assert rounds_of(loop) is rounds_of(loop)
