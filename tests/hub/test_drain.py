"""SIGTERM: what was accepted is acknowledged, and every peer hears goodbye in its own protocol."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import ALL, ack, config, data_ack, eventually, get, hub_on, journaled, open_to, url_of
from wireloom.hub import Hub
from wireloom.model import Kind
from wireloom.protocols.registry import protocol

MESH = """
[[listener]]
url = "mesh://127.0.0.1:0"
settings = { require = "any" }
"""


async def last_words(scheme: str, hub: Hub, hello: bytes) -> bytes:
    """What a peer that has said hello reads until the end of the stream, when the hub stops."""
    reader, writer = await open_to(url_of(hub, scheme))
    writer.write(hello)
    if hello:
        await eventually(lambda: hub.metrics.received.value(scheme) >= 1)
    else:
        await eventually(lambda: len(hub.connections) == 1)
    stopping = asyncio.create_task(hub.stop())
    said = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await asyncio.wait_for(stopping, 20)
    return said


async def test_emp_hears_bye(tmp_path: Path) -> None:
    emp = protocol("emp")
    hello, bye = (emp.encode(wireloom.Message(kind), emp.settings()) for kind in (Kind.OPEN, Kind.CLOSE))
    async with hub_on(tmp_path, ALL) as hub:
        assert await last_words("emp", hub, hello) == hello + bye


async def test_yamp_hears_system_close(tmp_path: Path) -> None:
    handshake = b"\x00\x00\x01\x04json"
    async with hub_on(tmp_path, ALL) as hub:
        said = await last_words("yamp", hub, handshake)
        assert said == handshake + b"\x03" + struct.pack(">H", 5) + b"close"


async def test_hsp_gets_its_answers_and_the_end_of_the_stream(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL) as hub:
        assert await last_words("hsp", hub, b"".join(data_ack(number, b"x") for number in range(50))) == b"".join(
            map(ack, range(50))
        )
    assert len([each for each in journaled(tmp_path) if each.message.kind is Kind.REQUEST]) == 50


@pytest.mark.parametrize("scheme", ["hsp", "emp", "yamp", "yamp+ws", "wolpertinger"])
async def test_what_comes_while_the_hub_drains_is_acknowledged_or_not_taken(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, ALL) as hub:
        peer = await wireloom.connect(url_of(hub, scheme), reconnect=False)
        commit, publishes = hub.commit, list[asyncio.Task[None]]()
        durable, begin = commit.wait, commit._begin

        def publish(numbers: range) -> None:
            for number in numbers:
                publishes.append(asyncio.create_task(peer.publish("sensors/kitchen", b"%d" % number, ack=True)))

        def go_on() -> None:
            commit._begin = begin  # type: ignore[method-assign]
            begin()

        async def wait(ticket: int) -> None:
            """More comes at the last moment, to a disk that takes its time."""
            await durable(ticket)
            commit._begin = lambda: None  # type: ignore[method-assign]
            publish(range(20, 40))
            await asyncio.sleep(0.1)
            commit.wait = durable  # type: ignore[method-assign]
            asyncio.get_running_loop().call_later(0.2, go_on)

        publish(range(20))
        await eventually(lambda: hub.metrics.received.value(scheme.partition("+")[0]) >= 20)
        commit.wait = wait  # type: ignore[method-assign]
        await asyncio.wait_for(hub.stop(), 20)
        await asyncio.wait(publishes)
        acknowledged = {number for number, each in enumerate(publishes) if each.exception() is None}
        await peer.close(drain=0)
    kept = {int(each.message.body) for each in journaled(tmp_path) if each.message.body.isdigit()}
    assert kept == acknowledged >= set(range(20))


async def test_wolpertinger_hears_the_end_of_the_stream(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL) as hub:
        assert await last_words("wolpertinger", hub, b"") == b""


async def test_a_web_socket_hears_system_close_and_a_closing_frame(tmp_path: Path) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosedOK

    async with hub_on(tmp_path, ALL) as hub:
        async with connect(url_of(hub, "yamp+ws").removeprefix("yamp+")) as socket:
            await socket.send(b"\x00\x00\x01\x04json")
            assert await socket.recv() == b"\x00\x00\x01\x04json"
            stopping = asyncio.create_task(hub.stop())
            assert await socket.recv() == b"\x03\x00\x05close"
            with pytest.raises(ConnectionClosedOK):
                await socket.recv()
            await asyncio.wait_for(stopping, 20)


async def test_mesh_has_no_goodbye_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL + MESH) as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node:
            await node.publish("a", b"1")
            await eventually(lambda: hub.metrics.received.value("mesh") >= 2)
            await asyncio.wait_for(hub.stop(), 20)


async def test_a_request_that_waits_for_a_provider_is_answered_before_the_end(tmp_path: Path) -> None:
    """The requester learns that there will be no answer; it is not left waiting."""
    async with hub_on(tmp_path, ALL) as hub:
        started = asyncio.Event()

        async def slow(message: wireloom.Message, peer: wireloom.Peer) -> bytes:
            started.set()
            await asyncio.sleep(3600)
            return b""

        provider = await wireloom.connect(url_of(hub, "yamp"), handler=slow, reconnect=False)
        asker = await wireloom.connect(url_of(hub, "emp"), reconnect=False)
        await provider.provide("slow")
        waiting = asyncio.create_task(asker.request("slow"))
        await asyncio.wait_for(started.wait(), 10)
        await asyncio.wait_for(hub.stop(), 40)
        with pytest.raises(wireloom.WireloomError):
            await waiting
        await asker.close()
        await provider.close(drain=0)


async def test_nobody_is_taken_in_while_the_hub_drains_and_it_says_that_it_is_not_ready(tmp_path: Path) -> None:
    async with Hub(config(tmp_path, ALL + "[limits]\ndrain_seconds = 2\n")) as hub:
        url, page = url_of(hub, "hsp"), hub.urls["http"] + "/readyz"
        assert await get(page) == (200, "ready\n")
        # A WebSocket that does not answer the closing frame keeps the hub waiting.
        reader, writer = await open_to(url_of(hub, "yamp+ws"))
        writer.write(
            b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: len(hub.connections) == 1)
        stopping = asyncio.create_task(hub.stop())
        async with asyncio.timeout(10):
            while (await get(page)) != (503, "draining\n"):
                await asyncio.sleep(0.01)
        with pytest.raises(OSError, match=r".+"):
            await open_to(url)
        await asyncio.wait_for(stopping, 20)
        writer.close()
