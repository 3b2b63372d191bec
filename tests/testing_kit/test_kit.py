"""The kit does what it says: pairs are connected, faults happen when switched on and stop when switched off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import wireloom
from wireloom import Message, Peer
from wireloom.testing import FaultProxy, Faults, peer_pair


@pytest.mark.parametrize("protocol", ["hsp", "emp", "yamp"])
async def test_pair_is_connected_both_ways(protocol: str) -> None:
    async with peer_pair(protocol, lambda m, p: None, client_handler=lambda m, p: None) as (client, server):
        await client.request("to/server")
        await server.request("to/client")
        assert client.connected and server.connected


async def test_pairs_do_not_disturb_each_other() -> None:
    async with peer_pair("hsp", lambda m, p: None) as one, peer_pair("hsp", lambda m, p: None) as two:
        await one.client.request("x")
        await two.client.request("x")


async def test_settings_and_topics_reach_both_ends() -> None:
    seen: list[Message] = []
    async with peer_pair("hsp", lambda m, p: seen.append(m), settings={"max_payload": 10}, topics={7: "seven"}) as (
        client,
        _,
    ):
        await client.request("seven", b"1234567890")
        with pytest.raises(wireloom.LimitExceeded):
            await client.request("seven", b"12345678901")
    assert seen[0].attributes["type"] == "7"


class Echo:
    """A plain TCP server that sends everything back."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    server = await asyncio.start_server(Echo(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with FaultProxy(f"hsp://127.0.0.1:{port}") as proxy:
        yield proxy
    server.close()


async def dial(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))


async def test_without_faults_bytes_pass_unchanged(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    data = bytes(range(256)) * 1000
    writer.write(data)
    writer.write_eof()
    assert await reader.read() == data
    writer.close()
    assert proxy.to_server.passed == proxy.to_client.passed == len(data)


async def test_split_sends_small_pieces(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    proxy.to_client.split = 1
    writer.write(b"hello")
    sizes = []
    while sum(sizes) < 5:
        sizes.append(len(await reader.read(100)))
    assert len(sizes) > 1
    proxy.to_client.split = None
    writer.close()


async def test_corrupt_changes_bytes_and_keeps_their_number(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    proxy.to_client.corrupt = 1.0
    writer.write(b"a" * 100)
    spoilt = await reader.readexactly(100)
    assert b"a" not in spoilt
    proxy.to_client.corrupt = 0.0
    writer.write(b"b" * 100)
    assert await reader.readexactly(100) == b"b" * 100
    writer.close()


async def test_delay_makes_bytes_wait(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    waited: list[float] = []
    over = asyncio.Event()

    async def sleep(delay: float) -> None:
        waited.append(delay)
        await over.wait()

    proxy.to_server.delay, proxy.to_server.sleep = 3600.0, sleep
    writer.write(b"x")
    reading = asyncio.ensure_future(reader.readexactly(1))
    while not waited:
        await asyncio.sleep(0.001)
    assert waited == [3600.0] and proxy.to_server.passed == 0 and not reading.done()
    over.set()
    assert await reading == b"x"
    writer.close()


async def test_stalled_lets_nothing_pass_until_it_does(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    proxy.to_client.stalled = True
    writer.write(b"x")
    reading = asyncio.ensure_future(reader.readexactly(1))
    await asyncio.sleep(0.05)
    assert not reading.done()
    proxy.to_client.stalled = False
    assert await reading == b"x"
    writer.close()


async def test_cut_resets_every_connection(proxy: FaultProxy) -> None:
    ends = [await dial(proxy) for _ in range(3)]
    for reader, writer in ends:
        writer.write(b"x")
        await reader.readexactly(1)
    assert proxy.connections == 3
    proxy.cut()
    for reader, writer in ends:
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()


async def test_cut_after_some_bytes(proxy: FaultProxy) -> None:
    reader, writer = await dial(proxy)
    proxy.to_server.cut_after = 3
    writer.write(b"hello")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(5)
    assert proxy.to_server.passed == 3
    writer.close()


async def test_down_refuses_and_up_takes_again_at_the_same_place(proxy: FaultProxy) -> None:
    url = proxy.url
    await proxy.down()
    with pytest.raises(ConnectionRefusedError):
        await dial(proxy)
    await proxy.up()
    assert proxy.url == url
    reader, writer = await dial(proxy)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    writer.close()


@pytest.mark.parametrize("split", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("protocol", ["hsp", "emp", "yamp", "yamp+ws"])
async def test_any_split_of_the_stream_gives_the_same_conversation(protocol: str, split: int) -> None:
    bodies: list[object] = []

    async def handler(message: Message, peer: Peer) -> None:
        bodies.append(peer.decode(message))

    async with wireloom.serve(f"{protocol}://127.0.0.1:0", handler) as server, FaultProxy(server.url) as proxy:
        proxy.to_server.split = proxy.to_client.split = split
        async with wireloom.connect(proxy.url) as peer:
            for number in range(5):
                await peer.request("n", {"number": number})
    assert bodies == [{"number": number} for number in range(5)]


def test_faults_are_repeatable() -> None:
    one, two = Faults(corrupt=0.5), Faults(corrupt=0.5)
    assert one.spoil(b"x" * 50) == two.spoil(b"x" * 50) != b"x" * 50


@pytest.mark.parametrize("url", ["memory://emp/x", "mesh://127.0.0.1:1", "emp+unix:///run/x.sock"])
def test_a_proxy_before_what_it_cannot_reach_is_an_error(url: str) -> None:
    with pytest.raises(wireloom.ConfigError, match="TCP, TLS and WebSocket"):
        FaultProxy(url)
