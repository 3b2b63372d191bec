"""A user's program: `tests/test_typed_wheel.py` checks its types against the installed wheel, and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal, NamedTuple, TypedDict, assert_type

import wireloom
from wireloom import Message, Peer, Result, Service
from wireloom.testing import peer_pair


class Unit(StrEnum):
    CELSIUS = "C"


class Place(NamedTuple):
    room: str
    floor: int


class Query(TypedDict):
    room: str


@dataclass
class Reading:
    place: Place
    time: datetime
    value: Decimal
    unit: Unit = Unit.CELSIUS


@dataclass
class Failed:
    kind: Literal["failed"]


service = Service()


@service.request("readings/last")
async def last(query: Query) -> Reading:
    return Reading(Place(query["room"], 1), datetime(2026, 1, 31, tzinfo=UTC), Decimal("21.50"))


@service.request("readings/scan")
async def scan(count: int) -> AsyncIterator[int | Result]:
    for number in range(count):
        yield number
    yield Result("scanned")


@service.event("readings/+")
async def reading(body: Reading, message: Message, peer: Peer) -> None:
    assert_type(message.value(Reading), Reading)
    await peer.publish("seen/" + body.place.room, body)


async def main() -> None:
    async with peer_pair("yamp", service) as (client, _):
        found = await client.request("readings/last", Query(room="kitchen"), returns=Reading)
        assert_type(found, Reading)
        print(found.value, found.unit, found.place.room)
        assert_type(await client.request("readings/last", {"room": "hall"}), object)
        either: Reading | Failed = await client.request("readings/last", {"room": "a"}, returns=Reading | Failed)
        print(type(either).__name__)
        async for each in client.request_many("readings/last", [Query(room="a"), Query(room="b")], returns=Reading):
            assert_type(each, Reading)
            print(each.place.room)
        job = client.request_progress("readings/scan", 2, steps=int, returns=str)
        async for step in job:
            assert_type(step, int)
        assert_type(await job, str)
        async with client.subscribe("seen/#", local=True) as events:
            await client.publish("readings/kitchen", found)
            event = await anext(events)
            assert_type(event, Message)
            assert_type(event.value(Reading).time, datetime)
            assert_type(await client.value(event, Reading), Reading)
            print(event.topic, event.value(Reading) == found)
        try:
            await client.request("readings/last", {"room": 7})
        except wireloom.RequestFailed as error:
            print(error.body.decode())
        try:
            await client.request("readings/last", {"room": "a"}, returns=Failed)
        except wireloom.ValidationError as error:
            assert_type(error.path, str)
            print(error)


asyncio.run(main())
