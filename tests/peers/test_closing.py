"""Shutdown drains: what is in flight is finished, what was said is heard, and it never takes for ever."""

from __future__ import annotations

import asyncio

import pytest

import wireloom
from wireloom import Message, Peer, PeerClosed, RequestFailed
from wireloom.testing import peer_pair

from .test_talking import URLS, until


@pytest.fixture(params=list(URLS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return URLS[request.param].format(folder=tmp_path_factory.mktemp("sockets"))


async def test_server_finishes_requests_before_it_goes(url: str) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        started.set()
        await release.wait()
        return "done"

    server = await wireloom.serve(url, handler).start()
    async with wireloom.connect(server.url, reconnect=False) as peer:
        call = asyncio.create_task(peer.request("x"))
        await started.wait()
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        release.set()
        await call
        await closing


async def test_client_waits_for_its_answers_before_it_goes(url: str) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(message: Message, peer: Peer) -> object:
        started.set()
        await release.wait()
        return "done"

    async with wireloom.serve(url, handler) as server:
        peer = await wireloom.connect(server.url)
        call = asyncio.create_task(peer.request("x"))
        await started.wait()
        closing = asyncio.create_task(peer.close())
        await asyncio.sleep(0.01)
        release.set()
        await call
        await closing


async def test_everything_published_before_close_arrives(url: str) -> None:
    seen = 0

    async def handler(message: Message, peer: Peer) -> None:
        nonlocal seen
        seen += 1

    async with wireloom.serve(url, handler) as server:
        async with wireloom.connect(server.url) as peer:
            for _ in range(500):
                await peer.publish("n", "x" * 1000)
    assert seen == 500


@pytest.mark.parametrize("name", ["emp", "yamp"])
async def test_what_a_slow_reader_has_not_read_yet_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for the goodbye alone would be too short."""
    monkeypatch.setattr("wireloom.peers.peer.LINGER", 0.5)
    seen = 0

    async def slowly(message: Message, peer: Peer) -> None:
        nonlocal seen
        await asyncio.sleep(0.02)
        seen += 1

    limits = wireloom.Limits(queue=1)
    async with wireloom.serve(
        f"{name}://127.0.0.1:0", slowly, limits=limits, settings={"profile": "on"} if name == "emp" else {}
    ) as server:
        async with wireloom.connect(server.url) as peer:
            for _ in range(80):
                peer.send_event("a", bytes(200_000))
        await until(lambda: seen == 80)
    assert seen == 80


async def test_drain_is_bounded(url: str) -> None:
    async def never(message: Message, peer: Peer) -> None:
        await asyncio.get_running_loop().create_future()

    async with wireloom.serve(url, never, drain=0.05) as server:
        peer = await wireloom.connect(server.url, reconnect=False)
        call = asyncio.create_task(peer.request("x", timeout=60))
        await until(lambda: server.connections and server.connections[0]._is_busy)
        await server.close()
        with pytest.raises((PeerClosed, RequestFailed)):
            await call
        await peer.close()


async def test_nothing_can_be_sent_after_close(url: str) -> None:
    async with wireloom.serve(url) as server:
        peer = await wireloom.connect(server.url)
        await peer.close()
        await peer.close()
        for sending in (peer.publish("x"), peer.request("x")):
            with pytest.raises(PeerClosed, match="closed by this end"):
                await sending


async def test_peer_that_never_closes_its_half_is_left_behind() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await forever
        writer.close()

    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = await wireloom.connect(f"hsp://127.0.0.1:{port}")
    assert peer._driver is not None
    peer._driver._linger = 0.02
    await peer.close()
    assert not peer.connected
    forever.set_result(None)
    server.close()
    await asyncio.sleep(0.01)


async def test_half_closed_hsp_peer_still_gets_its_answers() -> None:
    release = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> None:
        await release.wait()

    async with wireloom.serve("hsp://127.0.0.1:0", handler) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(bytes.fromhex("01 00000007 0001 00000000"))
        writer.write_eof()
        await until(lambda: server.connections and server.connections[0]._is_busy)
        release.set()
        assert await reader.read() == bytes.fromhex("02 00000007")
        writer.close()


async def test_last_words_reach_a_peer_that_goes_on_sending() -> None:
    """A `DATA_ACK` that is too large is answered before the close, though more bytes are on their way."""
    async with wireloom.serve("hsp://127.0.0.1:0") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(bytes.fromhex("01 00000007 0001 00ffffff") + b"x" * 1_000_000)
        assert await reader.read() == bytes.fromhex("06 00000007")
        writer.close()


async def test_handlers_stop_when_the_one_who_asked_is_gone() -> None:
    cancelled = asyncio.Event()

    async def handler(message: Message, peer: Peer) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    async with peer_pair("hsp", handler) as (client, server):
        call = asyncio.create_task(client.request("x"))
        await until(lambda: server._is_busy)
        server.abort()
        await cancelled.wait()
        with pytest.raises(PeerClosed):
            await call


async def test_peer_may_be_closed_from_its_own_handler() -> None:
    async def handler(message: Message, peer: Peer) -> None:
        await peer.close("enough")

    async with peer_pair("hsp", handler) as (client, _):
        await client.publish("x")
        await until(lambda: not client.connected)


async def test_cancelled_close_still_closes() -> None:
    async def never(message: Message, peer: Peer) -> None:
        await asyncio.get_running_loop().create_future()

    async with wireloom.serve("hsp://127.0.0.1:0", never, drain=0) as server:
        peer = await wireloom.connect(server.url)
        call = asyncio.create_task(peer.request("x"))
        await until(lambda: server.connections and server.connections[0]._is_busy)
        closing = asyncio.create_task(peer.close(drain=60))
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(PeerClosed):
            await call
        await until(lambda: not server.connections)
