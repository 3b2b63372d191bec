"""Peers of different protocols talk to each other through the hub."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, hub_on, journaled, url_of
from wireloom.model import Kind, Message, RequestFailed

SCHEMES = ("hsp", "emp", "yamp", "yamp+ws")
ANSWERING = ("emp", "yamp", "yamp+ws")
"""Schemes whose answers have a body."""

LISTENERS = "\n".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true' for scheme in SCHEMES)
HUB = f'{LISTENERS}\n[http]\nurl = "http://127.0.0.1:0"\n'


@pytest.mark.parametrize(("source", "target"), list(itertools.product(SCHEMES, SCHEMES)))
async def test_an_event_crosses_from_any_protocol_to_any_other(tmp_path: Path, source: str, target: str) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, source)) as sender, wireloom.connect(url_of(hub, target)) as receiver:
            async with receiver.subscribe("rooms/+/temperature") as events:
                await sender.publish("rooms/kitchen/temperature", {"c": 21.5})
                await sender.publish("rooms/cellar/temperature", {"c": 12}, ack=True)
                first, second = await anext(events), await anext(events)
            assert (first.topic, first.value()) == ("rooms/kitchen/temperature", {"c": 21.5})
            assert (second.topic, second.value()) == ("rooms/cellar/temperature", {"c": 12})
    bodies = [e.message.body for e in journaled(tmp_path) if e.message.body.startswith(b'{"c"')]
    assert len(bodies) == 2


@pytest.mark.parametrize("source", ["emp", "yamp"])
async def test_nobody_speaks_in_the_name_of_the_hub(tmp_path: Path, source: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, source)) as peer:
        async with peer.subscribe("#") as events, peer.subscribe("$hub/undeliverable"):
            for _ in range(10):
                peer.send_event("$hub/undeliverable", {"why": "a lie"})
            await peer.publish("done", {}, ack=True)
            assert (await anext(events)).topic == "done"
        assert hub.metrics.unmatched.value(source) == 10


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("source", ["emp", "yamp"])
async def test_nobody_is_acknowledged_in_the_name_of_the_hub(tmp_path: Path, source: str, count: int) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, source)) as peer:
        async with peer.subscribe("done") as events, peer.subscribe("$hub/undeliverable") as notices:
            lies = [peer.publish("$hub/undeliverable", {"why": "a lie"}, ack=True) for _ in range(count)]
            for outcome in await asyncio.gather(*lies, return_exceptions=True):
                assert isinstance(outcome, RequestFailed)
                assert outcome.code == "400"
            await peer.publish("done", {}, ack=True)
            await anext(events)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(notices), 0.05)
        assert set(hub.last_values.tickets) == {"done"}


@pytest.mark.parametrize(("asking", "providing"), list(itertools.product(ANSWERING, ANSWERING)))
async def test_a_request_finds_its_provider_in_any_protocol(tmp_path: Path, asking: str, providing: str) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> object:
        value = message.value()
        if value == "no":
            raise RequestFailed("418", b"short and stout")
        return {"got": value}

    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, providing), handler=handler) as provider:
            await provider.provide("tea/#")
            async with wireloom.connect(url_of(hub, asking)) as client:
                assert await client.request("tea/green", [1, 2]) == {"got": [1, 2]}
                with pytest.raises(RequestFailed) as failed:
                    await client.request("tea/green", "no")
                assert (failed.value.code, failed.value.body) == ("418", b"short and stout")
                with pytest.raises(RequestFailed, match="nobody provides 'coffee'"):
                    await client.request("coffee", None)


async def test_progress_and_cancel_cross_the_hub(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def handler(message: Message, peer: wireloom.Peer):  # type: ignore[no-untyped-def]
        try:
            for step in range(3):
                yield step
            if message.value() == "wait":
                await asyncio.sleep(60)
            yield wireloom.Result("done")
        except (asyncio.CancelledError, GeneratorExit):
            cancelled.set()
            raise

    async with hub_on(tmp_path, HUB) as hub:
        async with wireloom.connect(url_of(hub, "yamp"), handler=handler) as provider:
            await provider.provide("report")
            async with wireloom.connect(url_of(hub, "yamp+ws")) as client:
                async with client.request_progress("report", "go") as progress:
                    assert [step async for step in progress] == [0, 1, 2]
                    assert await progress == "done"
                call = asyncio.create_task(client.request("report", "wait", timeout=30))
                await eventually(lambda: len(hub.router.exchanges) == 1)
                call.cancel()
                await asyncio.wait_for(cancelled.wait(), 10)
                await eventually(lambda: len(hub.router.exchanges) == 0)


async def test_providers_share_the_load(tmp_path: Path) -> None:
    seen = [0, 0]

    def handler(number: int):  # type: ignore[no-untyped-def]
        async def handle(message: Message, peer: wireloom.Peer) -> int:
            seen[number] += 1
            return number

        return handle

    async with hub_on(tmp_path, HUB) as hub:
        async with (
            wireloom.connect(url_of(hub, "emp"), handler=handler(0)) as one,
            wireloom.connect(url_of(hub, "yamp"), handler=handler(1)) as other,
            wireloom.connect(url_of(hub, "yamp")) as client,
        ):
            await one.provide("work")
            await other.provide("work")
            for _ in range(10):
                await client.request("work", None)
            assert seen == [5, 5]
            await one.stop_providing("work")
            for _ in range(4):
                await client.request("work", None)
            assert seen == [5, 9]


async def test_every_protocol_leaves_its_conversation_in_the_journal(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        for scheme in SCHEMES:
            async with wireloom.connect(url_of(hub, scheme)) as peer:
                await peer.publish("x", b"1", ack=True)
    kept = {(e.message.protocol, e.message.kind, str(e.message.direction)) for e in journaled(tmp_path)}
    for name in ("hsp", "emp", "yamp"):
        assert (name, Kind.REQUEST, "c2s") in kept
        assert (name, Kind.RESPONSE, "s2c") in kept


async def test_the_serializer_of_a_yamp_connection_is_known_in_every_segment(tmp_path: Path) -> None:
    text = HUB + "[journal]\nsegment_bytes = 2000\n"
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "yamp"), settings={"serializer": "msgpack"}) as peer:
            for number in range(30):
                await peer.publish("x", {"n": number}, ack=True)
    events = [e for e in journaled(tmp_path) if e.message.topic == "$hub/publish/x" and e.message.kind is Kind.REQUEST]
    assert len({e.segment for e in events}) > 2
    assert {e.message.content_type for e in events} == {"application/msgpack"}


async def test_a_provider_that_reconnects_provides_again(tmp_path: Path) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> str:
        return "here"

    async with hub_on(tmp_path, HUB) as hub:
        async with (
            wireloom.connect(url_of(hub, "yamp"), handler=handler) as provider,
            wireloom.connect(url_of(hub, "yamp")) as client,
        ):
            await provider.provide("work")
            assert await client.request("work") == "here"
            next(c for c in hub.connections.values() if hub.router.providers.patterns(c)).driver.abort()
            await eventually(lambda: provider.reconnects == 1)
            await eventually(lambda: bool(hub.router.providers.lookup("work")))
            assert await client.request("work") == "here"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_message_that_goes_out_is_counted_once(tmp_path: Path, scheme: str) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> object:
        return 1

    async with hub_on(tmp_path, HUB + "[journal]\ndeliveries = true\n") as hub:
        url = url_of(hub, scheme)
        async with wireloom.connect(url, handler=handler) as provider, wireloom.connect(url) as peer:
            await provider.provide("tea")
            async with provider.subscribe("#") as events:
                for count in (1, 300):
                    await asyncio.gather(*(peer.publish("note", b"x", ack=True) for _ in range(count)))
                    await asyncio.gather(*(peer.request("tea", b"x") for _ in range(count)))
                    for _ in range(count):
                        await anext(events)
        name = scheme.partition("+")[0]
    sent = [entry.message for entry in journaled(tmp_path) if not entry.inbound]
    assert sum(message.kind is Kind.EVENT for message in sent) == hub.metrics.delivered.value(name) == 301
    assert len(sent) == hub.metrics.sent.value(name)
