"""Many events of one read reach subscribers of every protocol: all of them, in order, as they were."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import ALL, data, eventually, hub_on, stream_to, url_of

HUB = "\n".join(
    f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n' + ('topics = { 7 = "many" }' * (scheme == "hsp"))
    for scheme in ("hsp", "emp", "yamp", "yamp+ws")
) + '\n[http]\nurl = "off"\n'  # fmt: skip
COUNT = 500


@pytest.mark.parametrize("source", ["hsp", "emp", "yamp"])
async def test_a_burst_reaches_subscribers_of_every_protocol_in_order(tmp_path: Path, source: str) -> None:
    bodies = [str(number).encode() for number in range(COUNT)]
    async with hub_on(tmp_path, HUB) as hub, contextlib.AsyncExitStack() as stack:
        sender = await stack.enter_async_context(wireloom.connect(url_of(hub, source)))
        subscriptions = []
        for scheme in ("hsp", "emp", "emp", "yamp", "yamp", "yamp+ws"):
            peer = await stack.enter_async_context(wireloom.connect(url_of(hub, scheme)))
            subscriptions.append(await stack.enter_async_context(peer.subscribe("many")))
        for body in bodies:
            sender.send_event("many", body)
        async with asyncio.timeout(60):
            for events in subscriptions:
                assert [(await anext(events)).body for _ in bodies] == bodies
        assert sum(hub.metrics.delivered.value(name) for name in ("hsp", "emp", "yamp")) == COUNT * len(subscriptions)


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_burst_waits_for_a_subscriber_that_has_to_confirm_what_it_got(tmp_path: Path, size: int) -> None:
    few = ALL.replace('wolpertinger://127.0.0.1:0"', 'wolpertinger://127.0.0.1:0"\nsettings = { max_unconfirmed = 8 }')
    async with (
        hub_on(tmp_path, few) as hub,
        wireloom.connect(url_of(hub, "wolpertinger")) as reader,
        wireloom.connect(url_of(hub, "yamp")) as source,
        reader.subscribe("sensors/#") as events,
    ):
        for number in range(100):
            source.send_event("sensors/kitchen", b"%-*d" % (size, number))
        async with asyncio.timeout(30):
            assert [int((await anext(events)).body) for _ in range(100)] == list(range(100))
        assert not hub.metrics.undeliverable.value("wolpertinger")
        await eventually(lambda: hub.queued_bytes == 0)


async def test_what_one_subscriber_cannot_be_told_reaches_the_others(tmp_path: Path) -> None:
    """An event of a burst that is too large for one listener is reported; those around it arrive."""
    small = HUB.replace('url = "emp://127.0.0.1:0"', 'url = "emp://127.0.0.1:0"\nsettings = { max_message = 1024 }')
    async with hub_on(tmp_path, small) as hub, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(wireloom.connect(url_of(hub, name))) for name in ("emp", "yamp")]
        narrow, wide = [await stack.enter_async_context(peer.subscribe("many")) for peer in peers]
        told = await stack.enter_async_context(peers[1].subscribe("$hub/undeliverable"))
        _, writer = await stream_to(hub)
        writer.write(data(b'"a"') * 50 + data(b'"' + b"x" * 2000 + b'"') + data(b'"b"'))
        async with asyncio.timeout(60):
            assert [(await anext(narrow)).body for _ in range(51)] == [b'"a"'] * 50 + [b'"b"']
            assert [len((await anext(wide)).body) for _ in range(52)] == [3] * 50 + [2002, 3]
            assert (await anext(told)).value()["size"] == 2002  # type: ignore[index, call-overload]
        writer.close()
        await eventually(lambda: hub.metrics.undeliverable.value("emp") == 1)
