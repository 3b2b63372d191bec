"""A `Service` behind a hub takes the events that it has handlers for, without anybody subscribing for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import hub_on, url_of

SCHEMES = ("hsp", "emp", "yamp", "wolpertinger")
TEXT = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\n' for scheme in SCHEMES) + '[http]\nurl = "off"\n'


def collecting() -> tuple[wireloom.Service, asyncio.Queue[str | None]]:
    service, taken = wireloom.Service(), asyncio.Queue[str | None]()

    @service.event("alerts/#")
    async def alert(message: wireloom.Message) -> None:
        taken.put_nowait(message.topic)

    @service.event("doors/front")
    async def door(message: wireloom.Message) -> None:
        taken.put_nowait(message.topic)

    return service, taken


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_events_of_a_service_are_subscribed_to(tmp_path: Path, scheme: str) -> None:
    service, taken = collecting()
    async with hub_on(tmp_path, TEXT) as hub, wireloom.connect(url_of(hub, "yamp")) as other, asyncio.timeout(20):
        async with wireloom.connect(url_of(hub, scheme), handler=service) as peer:
            # Who also iterates over them, and stops, does not take them from the service.
            async with peer.subscribe("alerts/#"):
                pass
            for topic in ("alerts/fire", "elsewhere", "doors/back", "doors/front", "alerts/water"):
                await other.publish(topic, b"1", ack=True)
            assert [await taken.get() for _ in range(3)] == ["alerts/fire", "doors/front", "alerts/water"]


async def test_they_are_subscribed_to_again_after_a_reconnect(tmp_path: Path) -> None:
    service, taken = collecting()
    async with hub_on(tmp_path, TEXT) as hub, wireloom.connect(url_of(hub, "yamp")) as other, asyncio.timeout(20):
        quickly = wireloom.Backoff(minimum=0.01)
        async with wireloom.connect(url_of(hub, "yamp"), handler=service, reconnect=quickly) as peer:
            peer.abort()
            while not peer.reconnects:
                await asyncio.sleep(0.01)
            await other.publish("alerts/fire", b"1", ack=True)
            assert await taken.get() == "alerts/fire"


async def test_a_server_that_never_answers_delays_the_connection_only_a_little() -> None:
    service, _ = collecting()
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        async with wireloom.connect(f"hsp://127.0.0.1:{port}", handler=service, reconnect=False) as peer:
            assert peer.connected
            peer.abort()
