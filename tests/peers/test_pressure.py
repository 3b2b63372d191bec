"""Nothing grows without a bound: whoever is too slow is felt by whoever is too fast, down to the socket."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest

import wireloom
from wireloom import Kind, Limits, Message, Peer, PeerClosed, RequestFailed, RequestTimeout
from wireloom.testing import FaultProxy, peer_pair

from .test_talking import until

BODY = b"x" * 4000


@pytest.mark.parametrize("url", ["hsp://127.0.0.1:0", "memory://hsp/pressure", "yamp+ws://127.0.0.1:0"])
async def test_slow_subscriber_stops_the_publisher(url: str) -> None:
    async with (
        wireloom.serve(url, limits=Limits(slow=60)) as server,
        wireloom.connect(server.url, queue=10) as peer,
        peer.subscribe("n") as events,
    ):
        published = 0

        async def publish() -> None:
            nonlocal published
            while True:
                await server.publish("n", BODY)
                published += 1

        publishing = asyncio.create_task(publish())
        before = -1
        while published != before or published == 0:
            before = published
            await asyncio.sleep(0.05)
        assert published * len(BODY) < 32 * 1024 * 1024, "nothing held the publisher back"
        assert len(events._inbox) < 10 + 256 * 1024 / len(BODY), "the queue holds its limit and one more read"
        stopped_at = published
        for _ in range(stopped_at):
            await anext(events)
        await until(lambda: published > stopped_at)
        publishing.cancel()


async def test_slow_event_handler_stops_the_publisher() -> None:
    release = asyncio.Event()
    handled = 0

    async def handler(message: Message, peer: Peer) -> None:
        nonlocal handled
        await release.wait()
        handled += 1

    async with wireloom.serve("hsp://127.0.0.1:0", handler, limits=Limits(queue=10)) as server:
        async with wireloom.connect(server.url) as peer:
            published = 0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    while True:
                        await peer.publish("n", BODY)
                        published += 1
            assert published * len(BODY) < 32 * 1024 * 1024
            release.set()
            await peer.publish("n", BODY)
            await until(lambda: handled >= published + 1)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one read"])
async def test_requests_beyond_the_limit_wait(together: bool) -> None:
    release = asyncio.Event()
    running = most = 0

    async def handler(message: Message, peer: Peer) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    async with wireloom.serve("hsp://127.0.0.1:0", handler, limits=Limits(concurrency=4)) as server:
        async with wireloom.connect(server.url) as peer:
            calls = []
            for _ in range(12):
                calls.append(asyncio.create_task(peer.request("x")))
                if not together:
                    await asyncio.sleep(0.01)
            await until(lambda: most == 4)
            await asyncio.sleep(0.05)
            release.set()
            await asyncio.gather(*calls)
    assert most == 4


async def test_requests_that_wait_begin_in_their_order_and_see_nothing_of_those_before() -> None:
    seen: ContextVar[str] = ContextVar("seen", default="nothing")
    order: list[tuple[object, str]] = []

    async def handler(message: Message, peer: Peer) -> None:
        order.append((message.value(), seen.get()))
        seen.set("something")
        await asyncio.sleep(0)

    async with wireloom.serve("emp://127.0.0.1:0", handler, limits=Limits(concurrency=1)) as server:
        async with wireloom.connect(server.url) as peer:
            await asyncio.gather(*(peer.request("x", number) for number in range(50)))
    assert order == [(number, "nothing") for number in range(50)]


async def test_request_that_waits_can_be_cancelled() -> None:
    release = asyncio.Event()
    began: list[object] = []

    async def handler(message: Message, peer: Peer) -> None:
        began.append(message.value())
        await release.wait()

    async with wireloom.serve("yamp://127.0.0.1:0", handler, limits=Limits(concurrency=1)) as server:
        async with wireloom.connect(server.url) as peer:
            # All of it in one read: what is not read yet cannot be cancelled.
            session, now = peer.session, asyncio.get_running_loop().time()
            sent = [session.send(Message(Kind.REQUEST, "x", str(number).encode()), now) for number in range(3)]
            session.send(Message(Kind.CANCEL, "x", correlation_id=sent[1].id), now)
            peer.pipe.write(session.outgoing())
            async with peer.messages() as stream:
                answers = (each async for each in stream if each.kind is Kind.RESPONSE)
                cancelled = await anext(answers)
                assert (cancelled.correlation_id, cancelled.status) == (sent[1].id, "cancelled")
                release.set()
                assert [(await anext(answers)).correlation_id for _ in range(2)] == [sent[0].id, sent[2].id]
    assert began == [0, 2]


async def test_requests_that_wait_are_answered_before_the_server_goes() -> None:
    async def handler(message: Message, peer: Peer) -> object:
        await asyncio.sleep(0.01)
        return message.value()

    async with wireloom.serve("emp://127.0.0.1:0", handler, limits=Limits(concurrency=2)) as server:
        async with wireloom.connect(server.url, reconnect=False) as peer:
            calls = [asyncio.create_task(peer.request("x", number)) for number in range(10)]
            await until(lambda: server.connections and server.connections[0]._is_busy)
            await server.close()
            assert await asyncio.gather(*calls) == list(range(10))


async def test_requests_that_wait_are_refused_when_the_time_to_leave_is_over() -> None:
    async def handler(message: Message, peer: Peer) -> None:
        await asyncio.Event().wait()

    async with wireloom.serve("emp://127.0.0.1:0", handler, limits=Limits(concurrency=2), drain=0.1) as server:
        async with wireloom.connect(server.url, reconnect=False) as peer:
            calls = [asyncio.create_task(peer.request("x")) for _ in range(5)]
            await until(lambda: server.connections and server.connections[0]._is_busy)
            await server.close()
            answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [each.code for each in answers if isinstance(each, RequestFailed)] == ["503"] * 5


async def test_peer_that_reads_no_answers_is_not_read_from() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", lambda message, peer: None) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    writer.write(b"\x03" * 500_000)
                    await writer.drain()
                    sent += 500_000
        assert sent < 256 * 1024 * 1024
        writer.transport.abort()
        await asyncio.sleep(0)
        del reader


async def test_subscriber_that_never_reads_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        wireloom.serve("hsp://127.0.0.1:0", limits=Limits(slow=0.1)) as server,
        wireloom.connect(server.url, queue=1, reconnect=False) as sleeper,
        wireloom.connect(server.url, reconnect=False) as reader,
        sleeper.subscribe("n"),
        reader.subscribe("n") as events,
    ):

        async def read() -> None:
            async for _ in events:
                pass

        reading = asyncio.create_task(read())
        with caplog.at_level(logging.WARNING):
            while len(server.connections) == 2:
                await server.publish("n", BODY)
        assert "was dropped" in caplog.text
        assert await server.publish("n", BODY) == 1
        reading.cancel()


async def test_too_many_connections_are_turned_away() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", lambda m, p: None, limits=Limits(connections=2)) as server:
        async with wireloom.connect(server.url) as one, wireloom.connect(server.url) as two:
            with pytest.raises(PeerClosed):
                async with wireloom.connect(server.url, reconnect=False) as three:
                    await three.request("x")
            await one.request("x")
            await two.request("x")
        await until(lambda: not server._drivers)
        async with wireloom.connect(server.url) as four:
            await four.request("x")


async def test_publish_waits_for_room_and_fails_when_the_connection_is_lost() -> None:
    async with peer_pair("hsp") as (client, server):
        server._hold("test")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                while True:
                    await client.publish("n", BODY)
        waiting = asyncio.create_task(client.publish("n", BODY))
        await asyncio.sleep(0)
        assert not waiting.done()
        server.abort()
        with pytest.raises(PeerClosed):
            await waiting


async def test_timeout_while_our_own_queue_is_full_says_why() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", lambda message, peer: None) as server:
        async with wireloom.connect(server.url, queue=2) as peer, peer.subscribe("n"):
            for _ in range(5):
                await server.publish("n", b"x")
            await until(lambda: peer._driver is not None and peer._driver.holds)
            with pytest.raises(wireloom.RequestTimeout, match="not read because a queue of this end is full"):
                await peer.request("x", timeout=0.05)


@pytest.mark.parametrize("scheme", ["emp", "hsp", "yamp", "yamp+ws"])
async def test_a_request_waits_for_room_no_longer_than_for_its_answer(scheme: str) -> None:
    async with (
        wireloom.serve(f"{scheme}://127.0.0.1:0", lambda message, peer: message.body) as server,
        FaultProxy(server.url) as proxy,
        wireloom.connect(proxy.url) as peer,
    ):
        proxy.to_server.stalled = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    await peer.publish("hsp/7", BODY)
        with pytest.raises(RequestTimeout, match=r"no room for a request within 0\.1 s"):
            await peer.request("hsp/7", b"a", timeout=0.1)
        with pytest.raises(RequestTimeout, match="no room"):
            await anext(peer.request_many("hsp/7", [b"a"], timeout=0.1))
        with pytest.raises(RequestTimeout, match="no room"):
            await peer.publish("hsp/7", b"a", ack=True, timeout=0.1)
        proxy.to_server.stalled = False
        await peer.request("hsp/7", b"1")
