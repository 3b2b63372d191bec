"""A full disk: the hub stops acknowledging, says so, and goes on by itself when there is room. Nothing is corrupted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.hub.running import HSP, ack, data_ack, eventually, get, hub_on, journaled, stream_to
from wireloom.model import Kind


async def test_a_full_disk_stops_acknowledging_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 600_000)
    async with hub_on(small_disk, HSP) as hub:
        reader, writer = await stream_to(hub)
        sent = 0
        while hub.commit.healthy:
            writer.write(b"".join(data_ack(sent + n, b"x" * 1000) for n in range(20)))
            sent += 20
            await asyncio.sleep(0.005)
        status, text = await get(hub.urls["http"] + "/readyz")
        assert status == 503
        assert "No space left on device" in text
        assert "wireloom_journal_healthy 0\n" in (await get(hub.urls["http"] + "/metrics"))[1]
        acknowledged = await read_what_is_there(reader)
        assert len(acknowledged) < 5 * sent

        ballast.unlink()
        await eventually(lambda: hub.commit.healthy)
        acknowledged += await reader.readexactly(5 * sent - len(acknowledged))
        assert acknowledged == b"".join(ack(n) for n in range(sent))
        assert (await get(hub.urls["http"] + "/readyz"))[0] == 200
        writer.close()
    kept = [int(e.message.id or -1) for e in journaled(small_disk) if e.message.kind is Kind.REQUEST]
    assert kept == list(range(sent))


async def read_what_is_there(reader: asyncio.StreamReader) -> bytes:
    got = b""
    try:
        while True:
            got += await asyncio.wait_for(reader.read(65536), 0.3)
    except TimeoutError:
        return got
