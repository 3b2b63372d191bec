"""Many acknowledged publishes: in order, a number in flight, with progress, and errors at their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from wireloom import ConfigError, Message, Peer, PeerClosed, RequestFailed
from wireloom.testing import hub, peer_pair

PROTOCOLS = ("emp", "hsp", "yamp", "wolpertinger")


@dataclass
class Reading:
    room: str
    celsius: float


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_hub_acknowledges_each_and_keeps_their_order(name: str) -> None:
    async with hub() as place, place.connect(name) as publisher, place.connect("yamp") as reader:
        async with reader.subscribe("numbers") as events:
            assert await publisher.publish_many("numbers", range(200), in_flight=32) == 200
            assert [(await anext(events)).value() for _ in range(200)] == list(range(200))


async def test_progress_is_how_many_are_acknowledged() -> None:
    async with peer_pair("emp", lambda message, peer: None) as (client, _):
        publishing = client.publish_many("a", [b"x"] * 5, in_flight=2)
        assert [count async for count in publishing] == [1, 2, 3, 4, 5]
        assert (publishing.acknowledged, publishing.failed) == (5, 0)


async def test_topics_by_body_and_typed_bodies() -> None:
    seen: list[tuple[str | None, Reading]] = []
    handler = lambda message, peer: seen.append((message.topic, message.value(Reading)))  # noqa: E731
    readings = [Reading("kitchen", 21.5), Reading("hall", 18.0)]

    async def coming() -> AsyncIterator[Reading]:
        for each in readings:
            yield each

    async with peer_pair("emp", handler) as (client, _):
        assert await client.publish_many(lambda reading: f"readings/{reading.room}", coming()) == 2
    assert seen == [(f"readings/{each.room}", each) for each in readings]


async def test_no_more_than_in_flight_wait_for_their_acknowledgement() -> None:
    waiting = 0
    most = 0

    async def slowly(message: Message, peer: Peer) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.001)
        waiting -= 1

    async with peer_pair("emp", slowly) as (client, _):
        assert await client.publish_many("a", range(40), in_flight=7) == 40
    assert most == 7


def refuse_odd(message: Message, peer: Peer) -> None:
    if message.value(int) % 2:
        raise RequestFailed("422", b"odd")


async def test_the_first_failure_ends_it_at_its_place() -> None:
    async with peer_pair("emp", refuse_odd) as (client, _):
        publishing = client.publish_many("a", [0, 2, 3, 4, 5])
        with pytest.raises(RequestFailed, match="odd") as refused:
            await publishing
        assert publishing.acknowledged == 2 and "request 3" in refused.value.__notes__[0]


async def test_with_return_errors_it_goes_on() -> None:
    async with peer_pair("emp", refuse_odd) as (client, _):
        publishing = client.publish_many("a", range(6), return_errors=True)
        assert await publishing == 3 and publishing.failed == 3
        found = [each async for each in client.publish_many("a", [0, 1, 2], return_errors=True)]
        assert found[0] == 1 and isinstance(found[1], RequestFailed) and found[2] == 2


async def test_a_lost_connection_ends_it() -> None:
    async with hub() as place, place.connect("emp") as client:
        publishing = client.publish_many("a", range(100_000))
        async for count in publishing:
            if count == 10:
                place.cut()
                break
        with pytest.raises(PeerClosed):
            await publishing


async def test_a_topic_must_not_be_empty() -> None:
    async with peer_pair("emp", refuse_odd) as (client, _):
        with pytest.raises(ConfigError, match="empty"):
            client.publish_many("", [1])
        with pytest.raises(ConfigError, match="empty"):
            await client.publish_many(lambda body: "", [1])
