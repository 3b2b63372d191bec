"""A lost connection: calls fail at once, then it is made again; cut by a real proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

import wireloom
from wireloom import Backoff, HandshakeFailed, Kind, Message, Peer, PeerClosed, RequestFailed, RequestTimeout
from wireloom.protocols.contract import LOGIN
from wireloom.protocols.yamp import frames
from wireloom.testing import FaultProxy

from .test_talking import until

FAST = Backoff(minimum=0.001, maximum=0.01)


class Service:
    """Answers when it is allowed to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, message: Message, peer: Peer) -> object:
        self.asked.append(message.body)
        await self.open.wait()
        return message


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture(params=["hsp", "emp", "yamp", "yamp+ws"])
async def proxy(request: pytest.FixtureRequest, service: Service) -> AsyncIterator[FaultProxy]:
    async with (
        wireloom.serve(f"{request.param}://127.0.0.1:0", service, drain=0.05) as server,
        FaultProxy(server.url) as proxy,
    ):
        yield proxy


async def test_lost_connection_fails_every_waiting_call_at_once(proxy: FaultProxy, service: Service) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST) as peer:
        service.open.clear()
        calls = [asyncio.create_task(peer.request("x", str(n), timeout=60)) for n in range(20)]
        await until(lambda: len(service.asked) == 20)
        proxy.cut()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, PeerClosed) for result in results), results
        assert all("127.0.0.1" in str(result) for result in results)
        assert len({id(result) for result in results}) == 20, "each call has an error of its own"
        service.open.set()
        await peer.request("x", "again")
        assert peer.reconnects == 1


async def test_calls_made_meanwhile_wait_for_the_new_connection(proxy: FaultProxy) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST) as peer:
        await proxy.down()
        await until(lambda: not peer.connected)
        asking = asyncio.create_task(peer.request("x", "y"))
        publishing = asyncio.create_task(peer.publish("a", "b"))
        await asyncio.sleep(0.03)
        assert not asking.done() and not publishing.done()
        await proxy.up()
        await asyncio.gather(asking, publishing)


async def test_waiting_for_a_connection_is_bounded_by_the_timeout(proxy: FaultProxy) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST) as peer:
        await proxy.down()
        await until(lambda: not peer.connected)
        with pytest.raises(RequestTimeout, match=r"not connected to .* within 0\.05 s"):
            await peer.request("x", timeout=0.05)


async def test_resend_sends_what_was_not_answered_again_and_in_order(proxy: FaultProxy, service: Service) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST, resend=True) as peer:
        service.open.clear()
        calls = [asyncio.create_task(peer.request("x", str(n).encode())) for n in range(10)]
        await until(lambda: len(service.asked) == 10)
        service.asked.clear()
        proxy.cut()
        await until(lambda: len(service.asked) == 10)
        assert service.asked == [str(n).encode() for n in range(10)]
        service.open.set()
        await asyncio.gather(*calls)


async def test_resend_through_many_cuts_answers_everything(proxy: FaultProxy, service: Service) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST, resend=True) as peer:

        async def cut() -> None:
            for size in (10, 100, 1000, 30, 300):
                proxy.to_client.cut_after = size
                await until(lambda: proxy.to_client.cut_after is None)
                await until(lambda: peer.connected)

        cutting = asyncio.create_task(cut())
        number = 0
        while not cutting.done():
            await asyncio.gather(*(peer.request("x", f"{number + n:05}") for n in range(10)))
            number += 10
        await cutting
        asked = {body.decode().strip('"') for body in service.asked}
        assert asked == {f"{n:05}" for n in range(number)}


async def test_resent_request_still_times_out(proxy: FaultProxy, service: Service) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST, resend=True) as peer:
        service.open.clear()
        call = asyncio.create_task(peer.request("x", timeout=0.1))
        await until(lambda: service.asked)
        await proxy.down()
        with pytest.raises(RequestTimeout):
            await call
        service.open.set()


async def test_subscription_goes_on_over_a_new_connection() -> None:
    async with (
        wireloom.serve("hsp://127.0.0.1:0") as server,
        FaultProxy(server.url) as proxy,
        wireloom.connect(proxy.url, reconnect=FAST) as peer,
        peer.subscribe("a/#") as events,
    ):
        await server.publish("a/1")
        assert (await anext(events)).topic == "a/1"
        proxy.cut()
        while not (peer.reconnects and await server.publish("a/2")):
            await asyncio.sleep(0)
        assert (await anext(events)).topic == "a/2"


async def test_without_reconnect_everything_ends(proxy: FaultProxy) -> None:
    async with wireloom.connect(proxy.url, reconnect=False) as peer:
        proxy.cut()
        await until(lambda: not peer.connected)
        for _ in range(2):
            with pytest.raises(PeerClosed, match=r"127\.0\.0\.1"):
                await peer.request("x")
            with pytest.raises(PeerClosed):
                await peer.publish("x")
        assert proxy.accepted == 1


async def test_reconnecting_can_be_stopped(proxy: FaultProxy) -> None:
    async with wireloom.connect(proxy.url, reconnect=FAST) as peer:
        await proxy.down()
        await until(lambda: not peer.connected)
        asking = asyncio.create_task(peer.request("x"))
        await asyncio.sleep(0.02)
        peer.stop_reconnecting()
        with pytest.raises((PeerClosed, HandshakeFailed)):
            await asking
        accepted = proxy.accepted
        await proxy.up()
        await asyncio.sleep(0.05)
        assert proxy.accepted == accepted


async def test_close_while_reconnecting_is_quick_and_final(proxy: FaultProxy) -> None:
    peer = await wireloom.connect(proxy.url, reconnect=Backoff(minimum=60, maximum=60))
    proxy.cut()
    await until(lambda: not peer.connected)
    async with asyncio.timeout(5):
        await peer.close()
    with pytest.raises(PeerClosed):
        await peer.request("x")


async def test_attempts_are_limited_and_delays_come_from_the_backoff() -> None:
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)

    backoff = Backoff(minimum=1, maximum=3, factor=2, jitter=0.5, random=lambda: 1.0, attempts=4, sleep=sleep)
    async with wireloom.serve("hsp://127.0.0.1:0") as server, FaultProxy(server.url) as proxy:
        peer = await wireloom.connect(proxy.url, reconnect=backoff)
        await proxy.down()
        await until(lambda: not peer.connected)
        with pytest.raises(PeerClosed, match="cannot reach"):
            await peer.request("x")
        assert slept == [0.5, 1.0, 1.5, 1.5]
        await peer.close()


async def test_first_connection_fails_at_once_unless_asked_otherwise() -> None:
    with pytest.raises(PeerClosed, match=r"cannot reach hsp://127\.0\.0\.1:1: "):
        async with wireloom.connect("hsp://127.0.0.1:1"):
            pass
    async with (
        wireloom.serve("hsp://127.0.0.1:0", lambda message, peer: None) as server,
        FaultProxy(server.url) as proxy,
    ):
        await proxy.down()
        connecting = asyncio.ensure_future(
            wireloom.connect(proxy.url, reconnect=Backoff(minimum=0.001, maximum=0.01, from_start=True)).open()
        )
        await asyncio.sleep(0.02)
        assert not connecting.done()
        await proxy.up()
        async with await connecting as peer:
            await peer.request("x")


async def test_server_that_resets_every_connection_is_tried_again(service: Service) -> None:
    async with wireloom.serve("yamp://127.0.0.1:0", service) as server, FaultProxy(server.url) as proxy:
        async with wireloom.connect(proxy.url, reconnect=FAST) as peer:
            proxy.refusing = True
            proxy.cut()
            await asyncio.sleep(0.03)
            proxy.refusing = False
            assert await peer.request("x", "y") == "y"


async def test_garbage_from_the_server_ends_the_connection_with_its_clause() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff\xff\xff")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with wireloom.connect(f"hsp://127.0.0.1:{port}", reconnect=False) as peer:
        with pytest.raises(PeerClosed, match=r"hsp\.command\.unknown") as caught:
            await peer.request("x")
        assert isinstance(caught.value.__cause__, wireloom.ProtocolViolation)
    server.close()


async def test_no_handshake_in_time() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(HandshakeFailed, match=r"did not answer within 0\.05 s"):
        await wireloom.connect(f"yamp://127.0.0.1:{port}", reconnect=False, timeout=0.05)
    server.close()


async def test_server_that_hangs_up_during_the_handshake() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(HandshakeFailed):
        await wireloom.connect(f"yamp://127.0.0.1:{port}", reconnect=False)
    server.close()


async def test_redirect_is_followed() -> None:
    async with (
        wireloom.serve("yamp://127.0.0.1:0", lambda message, peer: "here") as target,
        wireloom.serve("yamp://127.0.0.1:0", settings={"redirect": f"tcp://127.0.0.1:{target.port}"}) as old,
        wireloom.connect(old.url) as peer,
    ):
        assert await peer.request("where") == "here"
        assert peer.url == target.url


async def test_endless_redirects_end() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with wireloom.serve(f"yamp://127.0.0.1:{port}", settings={"redirect": f"tcp://127.0.0.1:{port}"}) as server:
        with pytest.raises(HandshakeFailed, match="more than 5 times"):
            await wireloom.connect(server.url, reconnect=False)


def redirect(peer: Peer, url: str) -> None:
    """Send a peer elsewhere although it was welcome at first."""
    peer.send(Message(Kind.REDIRECT, attributes={"url": url}))


async def test_a_redirect_amid_the_conversation_is_followed_and_subscriptions_move_along() -> None:
    async with (
        wireloom.serve("yamp://127.0.0.1:0") as target,
        wireloom.serve("yamp://127.0.0.1:0") as old,
        wireloom.connect(old.url, reconnect=FAST) as peer,
        peer.subscribe("news/#") as news,
    ):
        redirect(old.connections[0], f"tcp://127.0.0.1:{target.port}")
        await until(lambda: peer.url == target.url and peer.connected)
        await until(lambda: bool(target._wanted.lookup("news/today")))
        await target.publish("news/today", "moved")
        assert (await anext(news)).value() == "moved"


async def test_a_redirect_amid_the_conversation_that_is_not_followed_leads_home() -> None:
    async with (
        wireloom.serve("yamp://127.0.0.1:0", lambda message, peer: "home") as home,
        wireloom.connect(home.url, reconnect=FAST) as peer,
    ):
        redirect(home.connections[0], "gopher://127.0.0.1:70")
        await until(lambda: peer.reconnects == 1)
        assert await peer.request("where") == "home"
        assert "gopher://127.0.0.1:70, which is not followed" in str(peer._last_error)


async def test_who_is_redirected_amid_the_conversation_5_times_in_a_row_goes_home() -> None:
    came: list[str] = []

    def welcome(name: str, to: list[str], peer: Peer) -> None:
        came.append(name)
        asyncio.get_running_loop().call_later(0.01, redirect, peer, to[0])

    there: list[str] = []
    async with (
        wireloom.serve("yamp://127.0.0.1:0", on_connect=lambda peer: welcome("away", there, peer)) as away,
        wireloom.serve("yamp://127.0.0.1:0", on_connect=lambda peer: welcome("home", there, peer)) as home,
    ):
        there.append(f"tcp://127.0.0.1:{away.port}")
        async with wireloom.connect(home.url, reconnect=FAST):
            await until(lambda: len(came) >= 8)
    assert came[:8] == ["home", "away", "away", "away", "away", "away", "home", "away"]


async def test_who_does_not_reconnect_follows_a_redirect_all_the_same() -> None:
    async with (
        wireloom.serve("yamp://127.0.0.1:0", lambda message, peer: "there") as target,
        wireloom.serve("yamp://127.0.0.1:0") as server,
        wireloom.connect(server.url, reconnect=False) as peer,
    ):
        redirect(server.connections[0], f"tcp://127.0.0.1:{target.port}")
        await until(lambda: peer.url == target.url and peer.connected)
        assert await peer.request("where") == "there"


async def test_a_request_that_was_redirected_is_asked_again_where_that_is_wanted() -> None:
    async def elsewhere(message: Message, peer: Peer) -> object:
        redirect(peer, f"tcp://127.0.0.1:{target.port}")
        await asyncio.Event().wait()
        return None

    async with (
        wireloom.serve("yamp://127.0.0.1:0", lambda message, peer: "there") as target,
        wireloom.serve("yamp://127.0.0.1:0", elsewhere, drain=0.01) as server,
    ):
        async with wireloom.connect(server.url, reconnect=False, resend=True) as peer:
            assert await peer.request("where") == "there"
        async with wireloom.connect(server.url, reconnect=False) as peer:
            with pytest.raises(PeerClosed, match="it redirects to"):
                await peer.request("where")


@pytest.mark.parametrize(
    ("url", "why"), [("tcp://127.0.0.1:1", "cannot reach"), ("gopher://127.0.0.1:70", "which is not followed")]
)
async def test_who_does_not_reconnect_is_told_of_a_redirect_that_leads_nowhere(url: str, why: str) -> None:
    async with (
        wireloom.serve("yamp://127.0.0.1:0") as server,
        wireloom.connect(server.url, reconnect=False) as peer,
    ):
        redirect(server.connections[0], url)
        await until(lambda: peer._over is not None)
        with pytest.raises((PeerClosed, HandshakeFailed), match=why):
            await peer.request("where")


async def test_who_does_not_reconnect_is_redirected_5_times_at_most() -> None:
    came: list[Peer] = []

    def away(peer: Peer) -> None:
        came.append(peer)
        asyncio.get_running_loop().call_later(0.01, redirect, peer, server.url.replace("yamp", "tcp"))

    async with wireloom.serve("yamp://127.0.0.1:0", on_connect=away) as server:
        async with wireloom.connect(server.url, reconnect=False) as peer:
            await until(lambda: peer._over is not None)
            with pytest.raises(HandshakeFailed, match="more than 5 times"):
                await peer.request("where")
    assert len(came) == 6


async def test_a_server_that_welcomes_nobody_any_more_is_tried_once_at_a_time() -> None:
    """It takes connections and does not answer the handshake: each attempt times out, and only then comes the next."""
    came: list[asyncio.StreamWriter] = []
    most = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most
        came.append(writer)
        if len(came) == 1:
            writer.write(await reader.readexactly(8))
            writer.close()
            return
        most = max(most, sum(not each.is_closing() for each in came))
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"yamp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with wireloom.connect(url, reconnect=Backoff(minimum=0.02, maximum=0.02), timeout=0.05) as peer:
            await until(lambda: len(came) > 8)
            assert most == 1
            assert not peer.connected


async def test_who_asks_while_the_connection_is_closing_waits_no_longer_than_told() -> None:
    """A goodbye may stand for seconds before the other end closes."""

    async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(8))
        await reader.readexactly(1)
        writer.write(frames.encode(frames.Close("soon")))
        await reader.read(-1)
        await over.wait()
        writer.close()

    over = asyncio.Event()
    async with await asyncio.start_server(linger, "127.0.0.1", 0) as server:
        url = f"yamp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with wireloom.connect(url) as peer:
            await peer.publish("a")
            await until(lambda: not peer.connected)
            began, worked = time.monotonic(), time.process_time()
            with pytest.raises(RequestTimeout, match="not connected"):
                await peer.request("a", timeout=0.5)
            assert time.monotonic() - began < 2
            assert time.process_time() - worked < 0.25, "it kept the processor busy"
            over.set()


async def test_what_was_asked_before_a_token_is_refused_fails_at_once() -> None:
    logins = 0

    def handler(message: Message, peer: Peer) -> object:
        nonlocal logins
        if message.topic == LOGIN:
            logins += 1
            if logins > 1:
                raise RequestFailed("401", b"not any more")
        return None if message.topic == LOGIN else asyncio.sleep(60)

    async with wireloom.serve("yamp://127.0.0.1:0", handler, drain=0) as server:
        async with wireloom.connect(server.url, token="secret", reconnect=FAST) as peer:
            server.connections[0].abort()
            await until(lambda: not peer.connected)
            with pytest.raises(HandshakeFailed, match="refused the token"):
                await peer.request("where", timeout=30)
