"""A disk that takes long: memory stays bounded, the event loop goes on, and the hub stops when it is told to."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.disks import SlowDisk
from tests.hub.running import ALL, HSP, ack, data_ack, eventually, hub_on, journaled, open_to, stream_to, url_of
from wireloom.hub import hub as hub_module
from wireloom.journal.verify import verify
from wireloom.model import Kind

MIB = 1024 * 1024
PENDING = f"[limits]\npending_bytes = {MIB}\n"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


async def commit_on_the_thread(disk: SlowDisk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Make one slow commit: then the next ones are made on the thread."""
    disk.seconds = 0.3
    writer.write(data_ack(0, b"x"))
    assert await reader.readexactly(5) == ack(0)


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
            await commit_on_the_thread(disk, *first)
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


async def journal_closed() -> None:
    """The thread closes the journal as soon as the disk lets it."""
    await eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("journal")])


class Ticker:
    """Measures for how long the event loop served nobody else."""

    def __init__(self, gap: float) -> None:
        self.unserved = 0.0
        self._gap = gap

    async def __aenter__(self) -> Ticker:
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0.005)
            gap, last = loop.time() - last, loop.time()
            self.unserved += gap if gap > self._gap else 0

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        self._task.cancel()


async def test_a_slow_disk_keeps_the_loop_waiting_for_one_sync_at_most(tmp_path: Path, disk: SlowDisk) -> None:
    async with hub_on(tmp_path) as hub:
        reader, writer = await stream_to(hub)
        await eventually(lambda: len(hub.connections) == 1)
        async with Ticker(0.15) as ticker:
            disk.seconds = 0.3
            for number in range(6):
                writer.write(data_ack(number, b"x"))
                assert await reader.readexactly(5) == ack(number)
            writer.close()
            await eventually(lambda: not hub.connections)
            stopping = asyncio.get_running_loop().time()
            await hub.stop()
            assert asyncio.get_running_loop().time() - stopping < 10
        assert ticker.unserved < 0.6
        disk.seconds = 0
    assert list(verify(tmp_path / "journal")) == []


async def test_a_stop_takes_no_longer_than_it_may_and_a_sync(tmp_path: Path, disk: SlowDisk) -> None:
    """Somebody does not say goodbye, and the disk is slow."""
    async with hub_on(tmp_path, ALL + "[limits]\ndrain_seconds = 1.5\n") as hub:
        reader, writer = await open_to(url_of(hub, "yamp+ws"))
        writer.write(
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        publisher = await stream_to(hub)
        await eventually(lambda: len(hub.connections) == 2)
        disk.seconds = 0.5
        publisher[1].write(b"".join(data_ack(number, b"x" * 1000) for number in range(200)))
        await eventually(lambda: hub.metrics.received.value("hsp") >= 200)
        loop = asyncio.get_running_loop()
        async with Ticker(0.25) as ticker:
            stopping = loop.time()
            await hub.stop()
            assert loop.time() - stopping < 3.5
        assert ticker.unserved < 1
        assert await publisher[0].readexactly(1000) == b"".join(map(ack, range(200)))
        disk.seconds = 0
        writer.close()
        publisher[1].close()
        await journal_closed()
    async with hub_on(tmp_path) as hub:
        pass
    assert len([each for each in journaled(tmp_path) if each.message.kind is Kind.REQUEST]) == 200


async def test_a_disk_that_hangs_is_given_up_in_time(
    tmp_path: Path, disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub_on(tmp_path, HSP + "[limits]\ndrain_seconds = 1\n") as hub:
        reader, writer = await stream_to(hub)
        await eventually(lambda: len(hub.connections) == 1)
        await commit_on_the_thread(disk, reader, writer)
        disk.stall()
        writer.write(b"".join(data_ack(number, b"x" * 4000) for number in range(100)))
        await asyncio.to_thread(disk.entered.wait, 30)
        loop = asyncio.get_running_loop()
        async with Ticker(0.25) as ticker:
            stopping = loop.time()
            await hub.stop()
            assert loop.time() - stopping < 3
        assert ticker.unserved < 1
        assert "the disk does not answer" in caplog.text
        writer.close()
        disk.go_on()
        await journal_closed()
    async with hub_on(tmp_path) as hub:
        assert hub.commit.healthy


async def test_nobody_looks_at_the_segment_while_the_thread_has_it(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid a change of segments it would seem to be gone."""
    monkeypatch.setattr(hub_module, "_TICK", 0.01)
    async with hub_on(tmp_path, HSP) as hub:
        looks: list[bool] = []
        check = hub.journal.check

        def noted() -> None:
            looks.append(disk.entered.is_set())
            check()

        monkeypatch.setattr(hub.journal, "check", noted)
        await eventually(lambda: bool(looks))
        reader, writer = await stream_to(hub)
        await eventually(lambda: len(hub.connections) == 1)
        await commit_on_the_thread(disk, reader, writer)
        disk.stall()
        writer.write(b"".join(data_ack(number, b"x" * 4000) for number in range(100)))
        await asyncio.to_thread(disk.entered.wait, 30)
        seen = len(looks)
        await asyncio.sleep(0.2)
        assert len(looks) == seen
        disk.go_on()
        await reader.readexactly(500)
        await eventually(lambda: len(looks) > seen)
        writer.close()


HANGING = """
import os, sys, threading, time
from wireloom.cli.main import main

def hang(*_):
    print("hanging", flush=True)
    time.sleep(3600)

def watch():
    for line in sys.stdin:
        os.fdatasync = os.fsync = os.pwritev = hang

threading.Thread(target=watch, daemon=True).start()
sys.exit(main(["hub", "--config", sys.argv[1]]))
"""


async def test_the_process_ends_although_the_disk_hangs(tmp_path: Path) -> None:
    settings = tmp_path / "hub.toml"
    settings.write_text(HSP + f'[limits]\ndrain_seconds = 1\n[journal]\nfolder = "{tmp_path / "journal"}"\n')
    command = [sys.executable, "-c", HANGING, str(settings)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            url = ""
            while (line := (await process.stdout.readline()).decode()) != "ready\n":
                assert line
                url = line.split()[2] if line.startswith("listening on hsp") else url
            process.stdin.write(b"go\n")
            _, writer = await open_to(url)
            assert await process.stdout.readline() == b"hanging\n"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(15):
            assert await process.wait() == 0
        writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
