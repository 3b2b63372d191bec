"""A hub without a port: the real router, access rules and journal, with faults and a clock to be moved."""

from __future__ import annotations

import asyncio
import errno
import time

import pytest

from wireloom import (
    Backoff,
    ConfigError,
    HandshakeFailed,
    Message,
    PeerClosed,
    RequestFailed,
    RequestTimeout,
    Service,
    WireloomError,
)
from wireloom.testing import MemoryHub, SimulatedDisk, hub
from wireloom.testing.memory_hub import PROTOCOLS

service = Service()


@service.request("math/add")
async def add(numbers: list[int]) -> int:
    return sum(numbers)


@service.request("never")
async def never(message: Message) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("name", ["emp", "yamp"])
@pytest.mark.parametrize("asking", ["emp", "yamp"])
async def test_a_service_is_asked_through_the_hub(name: str, asking: str) -> None:
    async with hub() as place, place.connect(name, handler=service) as worker, place.connect(asking) as client:
        await worker.provide(*service.topics)
        assert await client.request("math/add", [1, 2, 3]) == 6


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_is_acknowledged_is_in_the_journal(name: str) -> None:
    async with hub() as place, place.connect(name) as publisher, place.connect("yamp") as reader:
        async with reader.subscribe("readings/#") as events:
            await publisher.publish("readings/kitchen", {"c": 21.5}, ack=True)
            assert (await anext(events)).topic == "readings/kitchen"
        assert any(b"21.5" in each.body for each in place.messages())


async def test_rules_are_those_of_the_configuration() -> None:
    rules = """
    [access]
    [[access.rule]]
    who = "anyone"
    publish = ["open/#"]
    subscribe = ["open/#"]
    """
    async with hub(rules) as place, place.connect("emp") as client:
        await client.publish("open/a", b"1", ack=True)
        with pytest.raises(RequestFailed, match="403"):
            await client.publish("closed/a", b"1", ack=True)


async def test_time_is_moved_by_hand() -> None:
    began = time.monotonic()
    async with hub() as place, place.connect(handler=service) as worker, place.connect("emp") as client:
        await worker.provide("never")
        asking = asyncio.ensure_future(client.request("never", timeout=300))
        await asyncio.sleep(0)
        await place.clock.advance(20)
        assert not asking.done()
        await place.clock.advance(15)  # the hub waits for 30 s
        with pytest.raises(RequestFailed, match="504"):
            await asking
        silent = asyncio.ensure_future(client.request("never", timeout=10))
        await asyncio.sleep(0)
        await place.clock.advance(11)
        with pytest.raises(RequestTimeout):
            await silent
    assert time.monotonic() - began < 20


async def test_connections_live_through_hours() -> None:
    async with hub() as place, place.connect("emp") as one, place.connect("yamp") as two, place.connect("hsp") as three:
        await place.clock.advance(3600)
        for peer in (one, two, three):
            assert peer.connected
            await peer.publish("a", b"1", ack=True)
        # The journal's time moved along.
        times = [each.time for each in place.messages() if each.time]
        assert max(times) - time.time_ns() > 3_500 * 10**9


async def test_a_disk_that_fails_is_not_acknowledged() -> None:
    async with hub() as place, place.connect("emp") as client:
        await client.publish("a", b"before", ack=True)
        fault = place.disk.fail("pwritev", errno.EIO, times=None)
        with pytest.raises(RequestTimeout):
            await client.publish("a", b"lost?", ack=True, timeout=0.3)
        assert fault.hits
        place.disk.faults.clear()
        await client.publish("a", b"after", ack=True)
        assert b"after" in [each.body for each in place.messages()]


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_was_acknowledged_survives_a_power_cut(name: str) -> None:
    quick = Backoff(minimum=0.01, maximum=0.1, attempts=100)
    async with hub() as place, place.connect(name, reconnect=quick) as client:
        for number in range(5):
            await client.publish("a", f"number {number}", ack=True)
        await place.crash()
        await client.publish("a", "number 5", ack=True)
        bodies = b" ".join(each.body for each in place.messages())
        assert all(f"number {number}".encode() in bodies for number in range(6))
        assert client.reconnects == 1


async def test_a_cut_is_felt_and_survived() -> None:
    quick = Backoff(minimum=0.01, maximum=0.1, attempts=100)
    async with hub() as place, place.connect(handler=service, reconnect=quick) as worker, place.connect() as client:
        await worker.provide("math/add")
        place.cut()
        with pytest.raises(PeerClosed):
            await client.request("math/add", [1])
        while not worker.reconnects:
            await asyncio.sleep(0.01)
        async with place.connect() as again:
            assert await again.request("math/add", [1], timeout=5) == 1


async def test_a_stalled_hub() -> None:
    async with hub() as place, place.connect("emp") as client:
        place.stall()
        with pytest.raises(RequestTimeout):
            await client.publish("a", b"1", ack=True, timeout=0.2)
        place.resume()
        await client.publish("a", b"2", ack=True)


async def test_a_stopped_hub_is_not_reached() -> None:
    async with hub() as place:
        await place.stop()
        with pytest.raises((PeerClosed, HandshakeFailed)):
            await place.connect()
        with pytest.raises(ConfigError, match="stopped"):
            place.cut()
        await place.start()
        async with place.connect() as client:
            await client.publish("a", ack=True)


async def test_the_past_is_there_after_a_restart_and_for_another_hub() -> None:
    disk = SimulatedDisk()
    async with hub(disk=disk) as place:
        async with place.connect() as client:
            await client.publish("a", 1, ack=True)
        await place.restart()
        async with place.connect() as client, client.subscribe("a", since="start") as events:
            assert (await anext(events)).value() == 1
    async with hub(disk=disk) as place, place.connect("emp") as client, client.subscribe("a", retained=True) as events:
        assert (await anext(events)).value() == 1


async def test_the_past_is_asked_for_once_while_the_connection_is_made_again() -> None:
    quick = Backoff(minimum=0.01, maximum=0.1, attempts=100)
    async with hub() as place, place.connect("emp", reconnect=quick) as client:
        await client.publish("a", 1, ack=True)
        await place.restart()
        async with client.subscribe("a", since="start") as events:
            assert (await anext(events)).value() == 1


async def test_two_hubs_do_not_know_each_other() -> None:
    async with hub() as one, hub() as two, one.connect() as first, two.connect() as second:
        await first.publish("a", 1, ack=True)
        await second.publish("b", 1, ack=True)
        assert {each.topic for each in one.messages()}.isdisjoint({"b", "$hub/publish/b"})


async def test_what_a_hub_does_not_have_is_named() -> None:
    async with hub(protocols=("emp",)) as place:
        with pytest.raises(ConfigError, match="does not listen for yamp"):
            place.connect()
    with pytest.raises(ConfigError, match="unknown key"):
        async with hub("nonsense = 1"):
            pass


async def test_limits_are_those_of_the_configuration() -> None:
    async with hub("[limits]\nmessage_bytes = 65536\n") as place, place.connect("emp") as client:
        with pytest.raises(WireloomError):
            await client.publish("a", b"x" * 200_000, ack=True, timeout=2)


def test_the_kind_of_hub_is_public() -> None:
    assert MemoryHub.__doc__
