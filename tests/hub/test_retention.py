"""The hub keeps its journal small, and says what it removed and what it could not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path

import pytest

from tests.hub.running import HSP, ack, data, data_ack, eventually, get, hub_on, journaled, stream_to, url_of
from wireloom import connect
from wireloom.hub import retention
from wireloom.hub.config import JournalSettings
from wireloom.hub.metrics import Metrics
from wireloom.hub.retention import Retention
from wireloom.journal import Journal, segments
from wireloom.journal.verify import verify
from wireloom.model import Direction, Kind

SMALL = HSP + "[journal]\nsegment_bytes = 2000\nkeep_bytes = 8000\n"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention.Retention.__init__, "__defaults__", (0.1,))


def size_of(journal: Path) -> int:
    """Bytes of all segments; one that goes away meanwhile has none."""
    size = 0
    for path in segments(journal):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def publish(hub: object, numbers: range) -> None:
    reader, writer = await stream_to(hub)  # type: ignore[arg-type]
    for number in numbers:
        writer.write(data_ack(number, b"%d " % number + b"x" * 500))
        assert await reader.readexactly(5) == ack(number)
    writer.close()


async def test_old_segments_go_while_the_hub_runs_and_are_counted(
    tmp_path: Path, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with hub_on(tmp_path, SMALL) as hub:
        await publish(hub, range(100))
        await eventually(lambda: size_of(tmp_path / "journal") <= 10_000)
        await eventually(lambda: hub.metrics.removed_segments.value() > 10)
        assert "wireloom_journal_bytes_removed_total" in (await get(hub.urls["http"] + "/metrics"))[1]
    assert "retention: removed 0000" in caplog.text
    bodies = [entry.message.body for entry in journaled(tmp_path) if entry.message.kind is Kind.REQUEST]
    assert bodies[-1].startswith(b"99 ")
    assert list(verify(tmp_path / "journal")) == []


async def test_what_a_pipeline_has_not_read_stays_and_is_told(
    tmp_path: Path, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    cursors = tmp_path / "journal" / "cursors"
    cursors.mkdir(parents=True)
    (cursors / "reports.json").write_text(json.dumps({"segment": "0", "position": 0}))
    async with hub_on(tmp_path, SMALL) as hub:
        await publish(hub, range(50))
        await eventually(lambda: hub.retention.held > 5)
        assert hub.metrics.removed_segments.value() == 0
        assert "pipeline reports has not read them" in caplog.text
        (cursors / "reports.json").unlink()
        await eventually(lambda: hub.metrics.removed_segments.value() > 5)
        await eventually(lambda: hub.retention.held == 0)


async def test_deliveries_are_in_the_journal_where_the_configuration_says_so(tmp_path: Path) -> None:
    for folder, extra in ((tmp_path / "no", ""), (tmp_path / "yes", "[journal]\ndeliveries = true\n")):
        async with hub_on(folder, HSP + extra) as hub:
            async with connect(url_of(hub)) as peer, peer.subscribe("sensors/#") as events:
                _, writer = await stream_to(hub)
                writer.write(data(b"21") + data(b"22"))
                assert [(await anext(events)).body for _ in range(2)] == [b"21", b"22"]
                writer.close()
        sent = [e.message.body for e in journaled(folder) if e.message.direction is Direction.S2C and e.message.body]
        assert sent == ([b"21", b"22"] if extra else [])


async def test_a_full_disk_is_in_the_log_and_its_end_too(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    ballast = small_disk / "ballast"
    async with hub_on(small_disk) as hub:
        _, writer = await stream_to(hub)
        ballast.write_bytes(b"\0" * 900_000)
        number = 0
        while "No space left on device" not in caplog.text:
            writer.write(data(b"x" * 8_000))
            number += 1
            await writer.drain()
            await eventually(lambda n=number: hub.metrics.received.value("hsp") == n)  # type: ignore[misc]
            if number > 30:
                await eventually(lambda: "No space left on device" in caplog.text)
        assert "not acknowledged until then" in caplog.text
        ballast.unlink()
        await eventually(lambda: "the journal is written again" in caplog.text)
        writer.close()


async def test_a_clock_that_is_days_ahead_takes_a_quarter_of_the_journal_at_most(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Journal.open(folder, segment_bytes=1) as journal:
        for number in range(40):
            journal.append("hsp", 1, Direction.C2S, number, b"\x03")
            journal.commit()
    count = len(segments(folder))
    ahead = time.time_ns() + 8 * 24 * 3600 * 10**9
    looking = Retention(JournalSettings(keep_days=7), folder, Metrics(), interval=0.0, now_ns=lambda: ahead)
    loop = asyncio.get_running_loop()
    for _ in range(20):
        looking.tick(loop)
        while looking._running is not None:
            await asyncio.sleep(0.001)
    assert len(segments(folder)) == count - count // 4
