"""A slow subscriber beside a fast publisher: memory stays flat, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import psutil
import pytest

import wireloom
from tests.hub.running import data_ack
from tests.hub.test_crash import HubProcess
from wireloom.journal.verify import verify

MIB = 1024 * 1024


async def beside_a_fast_publisher(folder: Path, seconds: float) -> None:
    hub = HubProcess(
        folder, "[journal]\nsegment_bytes = 4000000\nkeep_bytes = 40000000\n[limits]\nqueue_bytes = 2000000\n"
    )
    process = psutil.Process(hub.process.pid)
    url = hub.urls["hsp"]
    try:
        async with wireloom.connect(url) as quick, quick.subscribe("load") as events:
            slow = socket.create_connection(("127.0.0.1", hub.port))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = b'{"topic":"load"}'
            slow.sendall(b"\x01" + (1).to_bytes(4, "big") + b"\xfd\x01" + len(body).to_bytes(4, "big") + body)
            assert len(await asyncio.to_thread(slow.recv, 5)) == 5
            reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
            sent, sizes = 0, []
            ends = time.monotonic() + seconds
            half = time.monotonic() + seconds / 2
            while time.monotonic() < ends:
                writer.write(
                    b"".join(data_ack(sent + n & 0xFFFFFFFF, b"%d" % (sent + n) + b"x" * 500) for n in range(200))
                )
                await reader.readexactly(1000)
                for n in range(200):
                    event = await asyncio.wait_for(anext(events), 30)
                    assert event.body.startswith(b"%dx" % (sent + n)), "the quick one gets everything in order"
                sent += 200
                if time.monotonic() > half:
                    sizes.append(process.memory_info().rss)
            assert max(sizes) - sizes[0] < 20 * MIB, (sizes[0], max(sizes), sent)
            assert sent * 500 > 5 * 2_000_000, "more than the queue holds many times over"
            slow.close()
            writer.close()
    finally:
        code, output = hub.stop()
    assert code == 0, output
    assert "reads too slowly" in output
    assert list(verify(folder / "journal")) == []


async def test_memory_is_flat_beside_a_subscriber_that_does_not_read(tmp_path: Path) -> None:
    await beside_a_fast_publisher(tmp_path, 6)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_memory_is_flat_for_two_minutes(tmp_path: Path) -> None:
    await beside_a_fast_publisher(tmp_path, float(os.environ.get("SECONDS_SLOW", "120")))
