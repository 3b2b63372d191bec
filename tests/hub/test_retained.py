"""The last value of each topic, for whoever asks: before anything newer, after a restart, and in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import data, eventually, hub_on, stream_to, url_of
from tests.hub.test_replay import HUB, SCHEMES, SMALL
from wireloom.hub.last_value_index import FILE, memory_of
from wireloom.journal import segments
from wireloom.model import Message


async def take(events: AsyncIterator[Message], count: int) -> dict[str | None, bytes]:
    async with asyncio.timeout(60):
        found = [await anext(events) for _ in range(count)]
    assert len({event.topic for event in found}) == count
    return {event.topic: event.body for event in found}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_last_value_of_each_topic_comes_first_whatever_published_it(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, SMALL) as hub:
        expected = {}
        for source in SCHEMES:
            async with wireloom.connect(url_of(hub, source)) as peer:
                for number in range(5):
                    await peer.publish(f"news/{source}", b"%d" % number)
                await peer.publish(f"news/{source}", f"last of {source}".encode(), ack=True)
                expected[f"news/{source}"] = f"last of {source}".encode()
        # A yamp peer that agreed on nothing but bytes gets bodies as they were published.
        raw = {"serializer": "raw"} if scheme == "yamp" else {}
        async with wireloom.connect(url_of(hub, scheme), settings=raw) as peer:
            async with peer.subscribe("news/+", retained=True) as events:
                assert await take(events, 4) == expected
                await publish_one(hub, b"new")
                assert await take(events, 1) == {"news/x": b"new"}
            async with peer.subscribe("news/emp", retained=True) as events:
                assert await take(events, 1) == {"news/emp": b"last of emp"}


async def publish_one(hub: object, body: bytes) -> None:
    async with wireloom.connect(url_of(hub, "yamp")) as peer:  # type: ignore[arg-type]
        await peer.publish("news/x", body, ack=True)


async def test_last_values_survive_a_restart_with_and_without_their_file(tmp_path: Path) -> None:
    expected = {}
    async with hub_on(tmp_path, SMALL) as hub:
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            for number in range(300):
                await peer.publish(f"t/{number % 50}", b"%d" % number, ack=number % 10 == 0)
                expected[f"t/{number % 50}"] = b"%d" % number
            await peer.publish("t/large", b"x" * 300_000, ack=True)
            expected["t/large"] = b"x" * 300_000
    file = tmp_path / "journal" / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    for spoil in (lambda: None, file.unlink, lambda: file.write_text("{")):
        spoil()
        async with (
            hub_on(tmp_path, SMALL) as hub,
            wireloom.connect(url_of(hub, "hsp"), settings={"max_payload": 10**6}) as peer,
        ):
            async with peer.subscribe("t/#", retained=True) as events:
                assert {**(await take(events, 50)), "t/large": expected["t/large"]} == expected
        # hsp's listener takes 8 KiB, so the large one was left out; emp takes it.
        async with hub_on(tmp_path, SMALL) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
            async with peer.subscribe("t/large", retained=True) as events:
                assert await take(events, 1) == {"t/large": expected["t/large"]}


async def test_events_published_meanwhile_come_after_the_last_values(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        _, writer = await stream_to(hub)
        seen: list[int] = []
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            for number in range(40):
                writer.write(b"".join(data(b"%d" % (number * 10 + n)) for n in range(10)))
                await writer.drain()
                await eventually(lambda n=number: hub.metrics.received.value("hsp") >= n * 10)  # type: ignore[misc]
                async with peer.subscribe("hsp/7", retained=True) as events, asyncio.timeout(30):
                    found = [int((await anext(events)).body) for _ in range(1)]
                    writer.write(data(b"%d" % (number * 10 + 9)))
                    while found[-1] != number * 10 + 9:
                        found.append(int((await anext(events)).body))
                assert found == sorted(found)
                seen += found
        assert seen
        writer.close()


async def test_topics_beyond_the_limit_are_forgotten_the_silent_ones_first(tmp_path: Path) -> None:
    limited = f"{HUB}[limits]\nlast_values_bytes = {100 * memory_of('t/999')}\n"
    async with hub_on(tmp_path, limited) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        for number in range(150):
            await peer.publish(f"t/{number}", b"%d" % number, ack=True)
        assert len(hub.last_values.tickets) == 100
        await eventually(lambda: hub.metrics.limits_reached.value("last_values_bytes") == 50)
        async with peer.subscribe("t/+", retained=True) as events:
            kept = len(hub.last_values.tickets)
            assert set((await take(events, kept)).values()) == {b"%d" % number for number in range(150 - kept, 150)}


async def test_a_value_that_retention_took_is_gone(tmp_path: Path) -> None:
    async with hub_on(tmp_path, SMALL) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        await peer.publish("old", b"1", ack=True)
        for number in range(400):
            await peer.publish("new", b"%d" % number + b"x" * 100, ack=number % 50 == 0)
        await peer.publish("new", b"last", ack=True)
        segments(tmp_path / "journal")[0].unlink()
        async with peer.subscribe("+", retained=True) as events:
            assert await take(events, 1) == {"new": b"last"}
