"""Events that take time to write: packed by another thread, in their turn, and held back like others for the slow."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, hub_on, journaled, records, url_of
from wireloom.hub import Hub
from wireloom.hub.connection import Connection
from wireloom.model import Direction, Kind

SETTINGS = {"wolpertinger": "gzip_from = 0", "emp": "compress_above = 1000"}
"""What makes a large event slow to write; compression is left out where it need not be."""
LARGE = random.Random(7).randbytes(150_000)
COUNT = 240
LIMIT = 1_000_000


def text_of(scheme: str, more: str = "") -> str:
    return (
        f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\nsettings = {{ {SETTINGS[scheme]} }}\n'
        f'[[listener]]\nurl = "yamp://127.0.0.1:0"\n[http]\nurl = "http://127.0.0.1:0"\n{more}\n'
    )


def body_of(number: int) -> bytes:
    """Every third is small: they must not overtake the others."""
    return b"%06d" % number + (b"" if number % 3 == 2 else LARGE)


def subscriber_of(hub: Hub, scheme: str) -> Connection:
    return next(each for each in hub.connections.values() if each.name == scheme)


@pytest.mark.parametrize("policy", ["drop-oldest", "drop-newest"])
@pytest.mark.parametrize("scheme", list(SETTINGS))
async def test_a_slow_subscriber_loses_large_events_whole_and_each_is_counted(
    tmp_path: Path, scheme: str, policy: str
) -> None:
    limits = f'[limits]\nqueue_bytes = {LIMIT}\nslow_consumer = "{policy}"'
    async with (
        hub_on(tmp_path, text_of(scheme, limits)) as hub,
        wireloom.connect(url_of(hub, scheme)) as reader,
        wireloom.connect(url_of(hub, "yamp")) as source,
        reader.subscribe("rooms/#") as events,
    ):
        slow = subscriber_of(hub, scheme)
        reader._hold("the test")
        for number in range(COUNT):
            await source.publish("rooms/kitchen", body_of(number), ack=True)
            assert slow.queued_bytes <= LIMIT
        await eventually(lambda: not hub.packing, 30)
        lost = int(hub.metrics.lost.value(scheme, policy))
        assert 0 < lost < COUNT
        assert slow.queued_bytes > 0
        reader._release("the test")
        got: list[int] = []
        while len(got) < COUNT - lost:
            event = await asyncio.wait_for(anext(events), 30)
            got.append(int(event.body[:6]))
            assert event.body == body_of(got[-1])
        assert got == sorted(set(got))
        assert (got[-1] == COUNT - 1) or policy == "drop-newest"
        await eventually(lambda: slow.queued_bytes == hub.queued_bytes == 0)
        assert (slow.delivered, slow.lost) == (COUNT - lost, lost)
    assert sum(int(str(block.details["count"])) for block in records(tmp_path, "lost")) == lost
    told = [each for each in journaled(tmp_path) if each.message.direction is Direction.S2C]
    assert not [each for each in told if each.message.kind is Kind.EVENT], "deliveries are not recorded"


@pytest.mark.parametrize("scheme", list(SETTINGS))
async def test_a_subscriber_too_slow_for_large_events_is_disconnected_where_that_is_the_policy(
    tmp_path: Path, scheme: str
) -> None:
    limits = f'[limits]\nqueue_bytes = {LIMIT}\nslow_consumer = "disconnect"'
    async with (
        hub_on(tmp_path, text_of(scheme, limits)) as hub,
        wireloom.connect(url_of(hub, scheme), reconnect=False) as reader,
        wireloom.connect(url_of(hub, "yamp")) as source,
        reader.subscribe("rooms/#"),
    ):
        slow = subscriber_of(hub, scheme)
        reader._hold("the test")
        for number in range(COUNT):
            await source.publish("rooms/kitchen", body_of(number), ack=True)
            if slow.id not in hub.connections:
                break
        assert slow.id not in hub.connections
        assert slow.lost > 1
        assert hub.queued_bytes == 0
        assert hub.metrics.cut_off.value(scheme, "slow-consumer") == 1


@pytest.mark.parametrize("scheme", list(SETTINGS))
async def test_a_large_event_on_its_way_is_sent_before_the_hub_stops(tmp_path: Path, scheme: str) -> None:
    body = random.Random(1).randbytes(5_000_000)
    async with hub_on(tmp_path, text_of(scheme)) as hub:
        async with (
            wireloom.connect(url_of(hub, scheme), reconnect=False) as reader,
            wireloom.connect(url_of(hub, "yamp"), reconnect=False) as source,
            reader.subscribe("rooms/#") as events,
        ):
            await source.publish("rooms/kitchen", body, ack=True)
            stopping = asyncio.create_task(hub.stop())
            assert (await asyncio.wait_for(anext(events), 30)).body == body
            await asyncio.wait_for(stopping, 30)


@pytest.mark.parametrize("scheme", list(SETTINGS))
async def test_large_events_of_the_past_come_in_order_and_none_is_lost(tmp_path: Path, scheme: str) -> None:
    limits = f"[limits]\nqueue_bytes = {LIMIT}"
    count = COUNT // 4
    async with hub_on(tmp_path, text_of(scheme, limits)) as hub, wireloom.connect(url_of(hub, "yamp")) as source:
        for number in range(count):
            await source.publish("rooms/kitchen", body_of(number), ack=True)
        async with (
            wireloom.connect(url_of(hub, scheme)) as reader,
            reader.subscribe("rooms/#", since="start") as events,
        ):
            reader._hold("the test")
            await source.publish("rooms/kitchen", body_of(count), ack=True)
            reader._release("the test")
            for number in range(count + 1):
                assert (await asyncio.wait_for(anext(events), 30)).body == body_of(number)
        assert hub.metrics.lost.value(scheme, "drop-oldest") == 0


async def test_a_large_event_that_cannot_be_written_is_told_as_undeliverable(tmp_path: Path) -> None:
    """Its body fits, the XML that it becomes does not; that is found out by the thread that writes it."""
    text = text_of("wolpertinger").replace("gzip_from = 0", "gzip_from = 0, max_message = 100000")
    async with (
        hub_on(tmp_path, text) as hub,
        wireloom.connect(url_of(hub, "wolpertinger")) as reader,
        wireloom.connect(url_of(hub, "yamp")) as source,
        reader.subscribe("rooms/#") as events,
        source.subscribe("$hub/undeliverable") as notices,
    ):
        await source.publish("rooms/kitchen", "&" * 90_000)
        await source.publish("rooms/kitchen", "small")
        notice = (await asyncio.wait_for(anext(notices), 30)).value()
        assert isinstance(notice, dict)
        assert (notice["topic"], notice["size"]) == ("rooms/kitchen", 90_002)
        assert "max_message" in str(notice["why"])
        assert (await asyncio.wait_for(anext(events), 30)).value() == "small"
        assert hub.metrics.undeliverable.value("wolpertinger") == 1
