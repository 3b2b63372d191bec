"""What the harness promises to see, it sees."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.attack.harness import Attack, Report, Target, run
from wireloom.model import Kind, Message
from wireloom.protocols.registry import protocol


async def publish(target: Target) -> None:
    """An event of another peer is watched."""
    found = await target.watch("load/#")
    peer = await target.connect("hsp")
    await peer.publish("load/a", b"1", ack=True)
    assert await target.settle(lambda: found == [("load/a", b"1")])
    assert (await target.metrics())['wireloom_publishes_acknowledged_total{protocol="hsp"}'] == 1
    assert target.memory() > 1_000_000


async def stop_for_a_while(target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    await asyncio.sleep(0.5)
    os.kill(target.pid, signal.SIGCONT)


async def test_a_stall_is_felt(tmp_path: Path) -> None:
    report = await run(Attack("a stop", stop_for_a_while, small=True), tmp_path)
    assert max(report.own) > 0.4
    # Every publish that would have been due meanwhile was delayed.
    assert sum(wait > 0.1 for wait in report.felt) >= 7
    with pytest.raises(AssertionError, match="a stop: p50"):
        report.check()


async def test_what_others_publish_is_compared_with_the_journal(tmp_path: Path) -> None:
    report = await run(Attack("a publish", publish), tmp_path)
    report.check()
    assert report.felt
    assert report.differences == []


async def test_an_event_that_the_journal_does_not_have_is_a_difference(tmp_path: Path) -> None:
    async def lie(target: Target) -> None:
        (await target.watch("load/#")).append(("load/a", b"1"))

    report = await run(Attack("a lie", lie), tmp_path)
    assert report.differences == ["load/#: 1 not kept, such as 'load/a' b'1'"]


async def test_memory_is_measured_at_its_peak(tmp_path: Path) -> None:
    async def unfinished(target: Target) -> None:
        """Ten messages of 15 MB without their ends, held and let go."""
        own = protocol("emp")
        frame = own.encode(Message(Kind.EVENT, "a", bytes(15_000_000)), own.lenient())
        for _ in range(10):
            _, writer = await target.open("emp")
            writer.write(own.encode(Message(Kind.OPEN), own.settings()) + frame[:-1])
            await writer.drain()

    report = await run(Attack("memory", unfinished), tmp_path)
    assert report.grown > 100_000_000
    with pytest.raises(AssertionError, match="MB"):
        Report(report.attack, [0.0], [0.0], 200_000_000, 1.0, 0, "").check()


async def test_a_limit_that_was_not_reached_is_told(tmp_path: Path) -> None:
    shown = {"a": "wireloom_publishes_acknowledged_total", "b": "wireloom_replays"}
    report = await run(Attack("a publish", publish, limits=shown), tmp_path)
    with pytest.raises(AssertionError, match="these have not grown"):
        report.check()
