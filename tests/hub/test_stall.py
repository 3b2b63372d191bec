"""A disk that takes long: memory stays bounded, the event loop goes on, and the hub stops when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.hub.running import HSP, ack, data_ack, eventually, hub_on, stream_to
from tests.hub.slow_disk import SlowDisk

MIB = 1024 * 1024
PENDING = f"[limits]\npending_bytes = {MIB}\n"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_connections_accepted_while_the_disk_stalls_do_not_fill_the_memory(
    tmp_path: Path, disk: SlowDisk, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    many, each = 24, 300
    frames = b"".join(data_ack(number, b"x" * 4096) for number in range(each))
    answers = b"".join(map(ack, range(each)))

    async def publish_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(frames)
        return await reader.readexactly(len(answers))

    async def main() -> None:
        async with hub_on(tmp_path, HSP + PENDING) as hub:
            first = await stream_to(hub)
            await eventually(lambda: len(hub.connections) == 1)
            disk.stall()
            publishing = [asyncio.create_task(publish_much(*first))]
            await asyncio.to_thread(disk.entered.wait, 30)
            await eventually(lambda: hub._paused)
            others = [await stream_to(hub) for _ in range(many)]
            publishing += [asyncio.create_task(publish_much(*other)) for other in others]
            await eventually(lambda: len(hub.connections) == 1 + many)
            # All of them have sent what the system takes; nobody reads it.
            before = -1
            while before != hub.journal.pending_bytes:
                before = hub.journal.pending_bytes
                await asyncio.sleep(0.2)
            try:
                assert MIB <= before < 2 * MIB
            finally:
                disk.go_on()
            assert await asyncio.wait_for(asyncio.gather(*publishing), 60) == [answers] * (1 + many)
            for _, writer in (first, *others):
                writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
