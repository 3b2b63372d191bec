"""Subscriptions: asked for at the other end, filtered here, bounded, and gone when nobody wants them."""

from __future__ import annotations

import asyncio
import gc

import pytest

import wireloom
from wireloom import ConfigError, Message, Peer, RequestFailed
from wireloom.testing import peer_pair

from .test_talking import URLS, until


@pytest.fixture(params=list(URLS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return URLS[request.param].format(folder=tmp_path_factory.mktemp("sockets"))


async def test_events_of_a_pattern(url: str) -> None:
    async with wireloom.serve(url) as server, wireloom.connect(server.url) as peer:
        async with peer.subscribe("alerts/#") as alerts:
            assert await server.publish("alerts/fire", {"n": 1}) == 1
            assert await server.publish("weather", {"n": 2}) == 0
            assert await server.publish("alerts/flood/east", {"n": 3}) == 1
            first, second = await anext(alerts), await anext(alerts)
        assert (first.topic, second.topic) == ("alerts/fire", "alerts/flood/east")
        assert peer.decode(first) == {"n": 1}


async def test_iterating_without_entering_subscribes_too(url: str) -> None:
    async with wireloom.serve(url) as server, wireloom.connect(server.url) as peer:

        async def read() -> list[str | None]:
            topics = []
            async for event in peer.subscribe("a/+"):
                topics.append(event.topic)
                if len(topics) == 2:
                    break
            return topics

        reading = asyncio.create_task(read())
        while not await server.publish("a/1"):
            await asyncio.sleep(0)
        await server.publish("a/2")
        assert await reading == ["a/1", "a/2"]


async def test_leaving_tells_the_other_end() -> None:
    async with wireloom.serve("memory://hsp/leaving") as server, wireloom.connect(server.url) as peer:
        async with peer.subscribe("a") as one, peer.subscribe("a") as two:
            assert await server.publish("a", "x") == 1
            assert (await anext(one)).body == (await anext(two)).body == b"x"
            one.close()
            await peer.publish("tick", ack=False)
            assert await server.publish("a", "y") == 1, "the second one still wants it"
            assert (await anext(two)).body == b"y"
        while await server.publish("a", "z"):
            await asyncio.sleep(0)


async def test_dropped_iterator_unsubscribes() -> None:
    async with wireloom.serve("memory://hsp/dropped") as server, wireloom.connect(server.url) as peer:
        subscription = peer.subscribe("a")
        await subscription.start()
        assert await server.publish("a") == 1
        del subscription
        gc.collect()
        while await server.publish("a"):
            await asyncio.sleep(0)


async def test_local_subscription_asks_nobody() -> None:
    asked: list[str | None] = []

    async def handler(message: Message, peer: Peer) -> None:
        asked.append(message.topic)

    async with peer_pair("hsp", handler) as (client, server):
        async with client.subscribe("unasked/#", local=True) as events:
            await server.publish("unasked/1")
            assert (await anext(events)).topic == "unasked/1"
    assert asked == []


@pytest.mark.parametrize("pattern", ["a/#/b", "", "a+"])
async def test_wrong_pattern_is_refused_at_once(pattern: str) -> None:
    async with peer_pair("hsp") as (client, _):
        with pytest.raises(ConfigError, match="pattern"):
            client.subscribe(pattern)


@pytest.mark.parametrize("body", [b"", b"junk", b"[]", b'{"topic": 5}', b'{"topic": "a/#/b"}'])
async def test_wrong_operation_is_refused_by_the_server(body: bytes) -> None:
    async with peer_pair("hsp") as (client, _):
        with pytest.raises(RequestFailed, match="400"):
            await client.request("$hub/subscribe", body)


async def test_subscription_that_is_refused_leaves_nothing_behind() -> None:
    def refuse(message: Message, peer: Peer) -> object:
        raise RequestFailed("403", b"not for you")

    async with peer_pair("hsp", client_handler=refuse) as (client, server):
        with pytest.raises(RequestFailed, match="not for you"):
            async with server.subscribe("a"):
                pass
        client.send(Message(wireloom.Kind.EVENT, "a"))
        await until(lambda: server.unhandled == 1)


async def test_iteration_ends_when_we_close_and_raises_when_the_connection_is_lost() -> None:
    async with peer_pair("hsp") as (client, server):
        async with client.subscribe("a") as events:
            await server.publish("a", "last")
            closing = asyncio.create_task(client.close())
            assert [event.body async for event in events] == [b"last"]
            await closing
    async with peer_pair("hsp") as (client, server):
        async with client.subscribe("a") as events:
            await server.publish("a", "last")
            assert (await anext(events)).body == b"last"
            server.abort()
            with pytest.raises(wireloom.PeerClosed, match=r"lost|closed"):
                await anext(events)


async def test_cancelling_a_receive_loses_nothing() -> None:
    async with peer_pair("hsp") as (client, server), client.subscribe("n") as events:
        taken: list[bytes] = []

        async def publish() -> None:
            for number in range(300):
                await server.publish("n", str(number))
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        turns = 0
        while len(taken) < 300:
            receiving = asyncio.ensure_future(events.__anext__())
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            turns += 1
            receiving.cancel()
            try:
                taken.append((await receiving).body)
            except asyncio.CancelledError:
                continue
        await publishing
        assert taken == [str(number).encode() for number in range(300)]


async def test_two_readers_of_one_subscription_share_it() -> None:
    async with peer_pair("hsp") as (client, server), client.subscribe("n") as events:
        first, second = asyncio.ensure_future(anext(events)), asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await server.publish("n", "1")
        await server.publish("n", "2")
        assert {(await first).body, (await second).body} == {b"1", b"2"}
