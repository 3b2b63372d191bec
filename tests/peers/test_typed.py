"""Typed requests, answers, events and handlers, over every protocol that carries values."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import pytest

from wireloom import ConfigError, Kind, Message, Peer, RequestFailed, Result, Service, ValidationError
from wireloom.testing import peer_pair


@dataclass
class Numbers:
    numbers: list[int]
    scale: Decimal = Decimal(1)


@dataclass
class Sum:
    sum: Decimal
    count: int


class Fast(msgspec.Struct):
    numbers: list[int]


service = Service()


@service.request("math/add")
async def add(body: Numbers) -> Sum:
    return Sum(sum(body.numbers) * body.scale, len(body.numbers))


@service.request("math/fast")
def fast(body: Fast) -> Fast:
    return Fast([sum(body.numbers)])


@service.request("math/divide")
def divide(a: float, b: float = 2.0) -> float:
    return a / b


@service.request("who")
def who(body: list[str], message: Message, peer: Peer) -> list[str]:
    return [*body, message.topic or "", peer.protocol.name]


@service.request("count")
async def count(upto: int) -> AsyncIterator[Numbers | Result]:
    for number in range(upto):
        yield Numbers([number])
    yield Result(Sum(Decimal(upto), upto))


@service.request("optional")
def optional(name: str = "nobody") -> str:
    return name


@service.request("plain")
def untyped(message, peer):  # type: ignore[no-untyped-def]
    return [message.topic, peer.protocol.name]


@pytest.mark.parametrize("name", ["emp", "yamp"])
async def test_typed_requests(name: str) -> None:
    async with peer_pair(name, service) as (client, _):
        assert await client.request("math/add", Numbers([1, 2]), returns=Sum) == Sum(Decimal(3), 2)
        assert await client.request("math/fast", Fast([1, 2]), returns=Fast) == Fast([3])
        assert await client.request("math/divide", {"a": 3}, returns=float) == 1.5
        assert await client.request("who", ["x"], returns=list[str]) == ["x", "who", name]
        assert await client.request("optional", returns=str) == "nobody"
        assert await client.request("plain") == ["plain", name]
        bodies = [Numbers([n]) for n in range(5)]
        assert [each.sum async for each in client.request_many("math/add", bodies, returns=Sum)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor", "bson"])
async def test_typed_requests_in_every_format(serializer: str) -> None:
    async with peer_pair("yamp", service, settings={"serializer": serializer}) as (client, _):
        answer = await client.request("math/add", Numbers([1, 2], Decimal("0.10")), returns=Sum)
        assert answer == Sum(Decimal("0.30"), 2)


@pytest.mark.parametrize("name", ["emp", "yamp"])
@pytest.mark.parametrize(
    ("topic", "body", "words"),
    [
        ("math/add", {"numbers": [1, "x"]}, "$.numbers[1]: expected int, got str 'x'"),
        ("math/add", {}, "$.numbers: is missing"),
        ("math/divide", {"b": 1}, "$.a: is missing"),
        ("math/divide", [1], "$: expected the arguments as a map, got list"),
        ("math/fast", {"numbers": [1, "x"]}, "$.numbers[1]: expected `int`, got `str`"),
        ("who", None, "$: expected an array, got null"),
    ],
)
async def test_input_that_does_not_fit_is_refused_with_its_place(
    name: str, topic: str, body: object, words: str
) -> None:
    async with peer_pair(name, service) as (client, _):
        with pytest.raises(RequestFailed) as refused:
            await client.request(topic, body)
        assert words in str(refused.value) and refused.value.code == "400"


async def test_a_body_that_is_not_json_is_refused() -> None:
    async with peer_pair("emp", service) as (client, _):
        with pytest.raises(RequestFailed, match="400"):
            await client.request("math/add", b"{nonsense")


async def test_an_answer_that_does_not_fit_is_named() -> None:
    async with peer_pair("emp", service) as (client, _):
        with pytest.raises(ValidationError, match=r"\$\.count: expected an array"):
            await client.request("math/add", Numbers([1]), returns=Missing)


@dataclass
class Missing:
    sum: str
    count: list[int]


async def test_typed_progress() -> None:
    async with peer_pair("yamp", service) as (client, _):
        job = client.request_progress("count", 3, steps=Numbers, returns=Sum)
        assert [step.numbers async for step in job] == [[0], [1], [2]]
        assert await job == Sum(Decimal(3), 3)


async def test_large_typed_bodies_are_read_beside_the_loop() -> None:
    async with peer_pair("emp", service) as (client, _):
        assert (await client.request("math/add", Numbers([1] * 50_000), returns=Sum)).sum == 50_000
        with pytest.raises(RequestFailed, match=r"\$\.numbers\[50000\]"):
            await client.request("math/add", {"numbers": [*[1] * 50_000, "x"]})


async def test_typed_events(caplog: pytest.LogCaptureFixture) -> None:
    seen: asyncio.Queue[Numbers] = asyncio.Queue()
    events = Service()

    @events.event("numbers/#")
    async def take(numbers: Numbers) -> None:
        await seen.put(numbers)

    async with peer_pair("emp", events) as (client, _):
        with caplog.at_level(logging.WARNING):
            await client.publish("numbers/a", {"numbers": 1})
            with pytest.raises(RequestFailed, match=r"\$\.numbers: expected an array"):
                await client.publish("numbers/a", {"numbers": 1}, ack=True)
        await client.publish("numbers/a", Numbers([1]))
        assert await seen.get() == Numbers([1])
    assert "refused" in caplog.text and "Traceback" not in caplog.text


async def test_events_and_answers_give_values_alike() -> None:
    async with peer_pair("yamp", service) as (client, server), client.subscribe("n", local=True) as events:
        await server.publish("n", Numbers([1]))
        event = await anext(events)
        assert event.value(Numbers) == await client.value(event, Numbers) == Numbers([1])
        assert event.value() == await client.value(event)
        answer = await client.ask(
            Message(Kind.REQUEST, "math/add", b'{"numbers": [2]}', content_type="application/json")
        )
        assert answer.value(Sum) == await client.value(answer, Sum) == Sum(Decimal(2), 1)


def test_a_handler_with_a_type_that_no_body_has_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="complex"):

        @Service().request("x")
        def handler(body: complex) -> None: ...

    with pytest.raises(ConfigError, match="Nowhere"):

        @Service().request("x")
        def other(body: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
