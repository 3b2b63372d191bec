"""The hub as peers see it: publish, subscribe, acknowledgement, refusal, slow consumers, requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import (
    HSP,
    ack,
    data,
    data_ack,
    eventually,
    get,
    hub_on,
    journaled,
    port_of,
    records,
    stream_to,
    url_of,
)
from wireloom.hub import Hub
from wireloom.model import ConfigError, Kind, Message, RequestFailed
from wireloom.peers import Subscription


async def nothing_comes(events: Subscription) -> None:
    """Not now, and not a little later."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await anext(events)


async def test_an_event_reaches_every_subscriber_whose_pattern_matches_and_no_other(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as a, wireloom.connect(url_of(hub)) as b:
        async with a.subscribe("sensors/+") as near, b.subscribe("#") as everything, b.subscribe("other/#") as none:
            async with wireloom.connect(url_of(hub)) as source:
                await source.publish("sensors/kitchen", b"21")
                await source.publish("rooms/first/kitchen", {"c": 21.5})
            first = await anext(near)
            assert (first.topic, first.body) == ("sensors/kitchen", b"21")
            assert [(await anext(everything)).topic for _ in range(2)] == ["sensors/kitchen", "rooms/first/kitchen"]
            await nothing_comes(none)


async def test_topics_without_a_number_keep_their_content_type(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        async with peer.subscribe("rooms/#") as events:
            await peer.publish("rooms/1", {"c": 21.5})
            event = await anext(events)
        assert event.value() == {"c": 21.5}
        assert event.content_type == "application/json"


async def test_what_is_acknowledged_is_in_the_committed_part_of_the_journal_at_that_moment(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        for number in range(20):
            await peer.publish("sensors/kitchen", str(number).encode(), ack=True)
            kept = [e.message.body for e in journaled(tmp_path) if e.message.kind is Kind.REQUEST]
            assert kept == [str(n).encode() for n in range(number + 1)]


@pytest.mark.parametrize("count", [1, 3, 4000])
async def test_acknowledgements_come_for_every_message_of_a_read_whatever_its_size(tmp_path: Path, count: int) -> None:
    async with hub_on(tmp_path) as hub:
        reader, writer = await stream_to(hub)
        writer.write(b"".join(data_ack(n, b"payload %d" % n) for n in range(count)))
        answers = await reader.readexactly(5 * count)
        assert answers == b"".join(ack(n) for n in range(count))
        writer.close()
    entries = [e for e in journaled(tmp_path) if e.message.kind is Kind.REQUEST]
    assert [(e.message.id, e.message.body, e.sequence) for e in entries] == [
        (str(n), b"payload %d" % n, n) for n in range(count)
    ]
    assert {e.message.topic for e in entries} == {"sensors/kitchen"}


@pytest.mark.parametrize(("count", "peers"), [(1, 1), (60, 1), (1, 30), (60, 4)])
async def test_who_closes_its_half_gets_the_acknowledgements_it_waits_for(
    tmp_path: Path, count: int, peers: int
) -> None:
    async with hub_on(tmp_path) as hub:
        streams = [await stream_to(hub) for _ in range(peers)]
        for _, writer in streams:
            writer.write(b"".join(data_ack(n, b"x" * 64) for n in range(count)))
            writer.write_eof()
        async with asyncio.timeout(30):
            answers = [await reader.read() for reader, _ in streams]
        assert answers == [b"".join(ack(n) for n in range(count))] * peers
        for _, writer in streams:
            writer.close()


async def test_large_reads_are_forwarded_in_order_with_their_topics(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub), settings={"profile": True}) as other:
        reader, writer = await stream_to(hub)
        writer.write(data_ack(1, b'{"topics": {"7": "sensors/kitchen"}}', 0xFD05))
        writer.write(data_ack(2, b'{"topic": "sensors/kitchen"}', 0xFD01))
        assert await reader.readexactly(10) == ack(1) + ack(2)
        async with other.subscribe("sensors/#") as events:
            source_reader, source = await stream_to(hub)
            sent = [(7 + n % 2, b"%d" % n) for n in range(600)]
            source.write(b"".join(data(body, type_) if n % 3 else data_ack(n, body, type_)
                                  for n, (type_, body) in enumerate(sent)))  # fmt: skip
            same_numbers = b"".join(data(body) for type_, body in sent if type_ == 7)
            assert await reader.readexactly(len(same_numbers)) == same_numbers
            names = {7: "sensors/kitchen", 8: "sensors/cellar"}
            got = [await anext(events) for _ in sent]
            assert [(e.topic, e.body) for e in got] == [(names[type_], body) for type_, body in sent]
            assert await source_reader.readexactly(5 * 200) == b"".join(ack(n) for n in range(0, 600, 3))
            source.close()
        writer.close()


async def test_a_violation_is_answered_recorded_and_closes_only_that_connection(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as bystander:
        reader, writer = await stream_to(hub)
        writer.write(data(b"fine") + b"\x01\x00\x00\x00\x05\x00\x07\xff\xff\xff\xff")
        assert await reader.read() == b"\x06\x00\x00\x00\x05"
        writer.close()
        await bystander.publish("sensors/kitchen", b"still here", ack=True)
        assert hub.metrics.refused.value("hsp", "hsp.payload.too-large") == 1
    [refused] = records(tmp_path, "refused")
    assert refused.details["clause"] == "hsp.payload.too-large"
    assert refused.details["size"] == 11
    bodies = [e.message.body for e in journaled(tmp_path) if e.message.topic == "sensors/kitchen"]
    assert bodies == [b"fine", b"still here"]
    assert list((tmp_path / "journal" / "refused").glob("*.pcapng"))


async def test_opening_and_closing_are_recorded_with_the_peer_and_the_reason(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        reader, writer = await stream_to(hub)
        name = "%s:%d" % writer.get_extra_info("sockname")
        writer.write(b"\x03")
        assert await reader.readexactly(1) == b"\x04"
        writer.close()
        await eventually(lambda: not hub.connections)
    [opened], [closed] = records(tmp_path, "opened"), records(tmp_path, "closed")
    assert opened.details["peer"] == name
    assert opened.details["protocol"] == "hsp"
    assert closed.details["reason"] == "close"
    assert closed.connection == opened.connection
    kinds = [(str(e.message.kind), str(e.message.direction)) for e in journaled(tmp_path)]
    assert kinds == [("ping", "c2s"), ("pong", "s2c")]


async def slow_subscriber(hub: Hub) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Subscribes to `sensors/#`, and then does not read."""
    reader, writer = await stream_to(hub)
    writer.write(data_ack(1, b'{"topics": {"7": "sensors/kitchen"}}', 0xFD05))
    writer.write(data_ack(2, b'{"topic": "sensors/#"}', 0xFD01))
    await reader.readexactly(10)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def test_a_slow_consumer_loses_the_oldest_events_and_nobody_else_does(tmp_path: Path) -> None:
    text = HSP + "[limits]\nqueue_bytes = 200000\n"
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub)) as quick:
        reader, writer = await slow_subscriber(hub)
        async with quick.subscribe("sensors/#") as events, wireloom.connect(url_of(hub)) as source:
            count, body = 6000, b"x" * 4000
            seen = 0

            async def read() -> None:
                nonlocal seen
                async for _ in events:
                    seen += 1
                    if seen == count:
                        return

            task = asyncio.create_task(read())
            for number in range(count):
                await source.publish("sensors/kitchen", body)
                assert max(c.queued_bytes for c in hub.connections.values()) <= 200_000
                while number - seen > 20:
                    await asyncio.sleep(0)
            await asyncio.wait_for(task, 30)
        assert seen == count
        lost = hub.metrics.lost.value("hsp", "drop-oldest")
        assert 0 < lost < count
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 0
        while received < (count - lost) * 4007:
            received += len(await reader.read(1 << 20))
        assert received == (count - lost) * 4007
        writer.close()
    assert sum(int(str(block.details["count"])) for block in records(tmp_path, "lost")) == lost


async def test_a_slow_consumer_loses_the_newest_events_where_the_configuration_says_so(tmp_path: Path) -> None:
    text = HSP + '[limits]\nqueue_bytes = 20000\nslow_consumer = "drop-newest"\n'
    count = 3000
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub)) as source:
        reader, writer = await slow_subscriber(hub)
        for number in range(count):
            await source.publish("sensors/kitchen", b"%08d" % number + b"x" * 7992)
        await source.publish("end", b"", ack=True)
        lost = int(hub.metrics.lost.value("hsp", "drop-newest"))
        assert 0 < lost < count
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = [int((await asyncio.wait_for(reader.readexactly(8007), 30))[7:15]) for _ in range(count - lost)]
        # Nothing is missing up to the first that was dropped; what follows came when there was room again.
        assert got == sorted(got)
        first = next((at for at, number in enumerate(got) if at != number), len(got))
        assert first > 20_000 // 8000
        writer.close()


async def test_a_slow_consumer_is_disconnected_where_the_configuration_says_so(tmp_path: Path) -> None:
    text = HSP + '[limits]\nqueue_bytes = 1000\nslow_consumer = "disconnect"\n'
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub)) as source:
        _, writer = await slow_subscriber(hub)
        for _ in range(3000):
            await source.publish("sensors/kitchen", b"x" * 8000)
        await eventually(lambda: len(hub.connections) == 1)
        writer.close()


async def test_a_request_goes_to_its_provider_and_the_outcome_comes_back(tmp_path: Path) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> None:
        if message.body == b"no":
            raise RequestFailed("418", b"short and stout")

    async with hub_on(tmp_path) as hub:
        async with wireloom.connect(url_of(hub), handler=handler) as provider, wireloom.connect(url_of(hub)) as asking:
            await provider.request("$hub/provide", {"topic": "math/#"})
            await asking.request("math/add", b"yes")
            with pytest.raises(RequestFailed) as failed:
                await asking.request("math/add", b"no")
            assert failed.value.body == b"short and stout"


async def test_a_provider_that_goes_away_fails_its_requests_at_once(tmp_path: Path) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> None:
        await asyncio.sleep(60)

    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as asking:
        async with wireloom.connect(url_of(hub), handler=handler, reconnect=False) as provider:
            await provider.request("$hub/provide", {"topic": "slow"})
            call = asyncio.create_task(asking.request("slow", b"", timeout=30))
            await eventually(lambda: len(hub.router.exchanges) == 1)
            next(c for c in hub.connections.values() if hub.router.providers.patterns(c)).driver.abort()
            with pytest.raises(RequestFailed, match="503"):
                await call


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("$hub/subscribe", b"not json"),
        ("$hub/subscribe", b'{"pattern": "a"}'),
        ("$hub/subscribe", b'{"topic": 5}'),
        ("$hub/subscribe", b'{"topic": "a/#/b"}'),
        ("$hub/dance", b'{"topic": "a"}'),
        ("$hub/map", b'{"topics": {"70000": "a"}}'),
        ("$hub/map", b'{"topics": {"64769": "a"}}'),
        ("$hub/map", b'{"topics": []}'),
        ("$hub/map", b"[" * 5000),
    ],
)
async def test_a_wrong_operation_is_answered_with_an_error(tmp_path: Path, topic: str, body: bytes) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        with pytest.raises(RequestFailed, match="400"):
            await peer.request(topic, body)


async def test_numbers_agreed_by_the_profile_are_used_and_recorded(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        await peer.request("$hub/map", {"topics": {"300": "doors/front"}})
        async with peer.subscribe("doors/+") as events:
            await peer.publish("doors/front", b"open", ack=True)
            event = await anext(events)
        assert event.attributes["type"] == "300"
    [entry] = [e for e in journaled(tmp_path) if e.message.body == b"open"]
    assert entry.message.topic == "doors/front"


async def test_frames_before_a_map_in_the_same_read_keep_their_old_names(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        reader, writer = await stream_to(hub)
        renaming = data_ack(1, b'{"topics": {"7": "elsewhere"}}', 0xFD05)
        writer.write(data(b"before") + renaming + data_ack(2, b"after"))
        assert await reader.readexactly(10) in (ack(1) + ack(2), ack(2) + ack(1))
        writer.close()
    entries = [e for e in journaled(tmp_path) if e.message.body in (b"before", b"after")]
    assert [(e.message.body, e.message.topic, e.sequence) for e in entries] == [
        (b"before", "sensors/kitchen", 0),
        (b"after", "elsewhere", 2),
    ]


async def test_a_frame_that_is_cut_off_by_the_end_of_the_connection_is_kept_as_refused(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        _, writer = await stream_to(hub)
        writer.write(data(b"whole") + data(b"half")[:-2])
        await writer.drain()
        await eventually(lambda: hub.metrics.received.value("hsp") == 1)
        writer.close()
        await eventually(lambda: not hub.connections)
    [refused] = records(tmp_path, "refused")
    assert (refused.details["clause"], refused.details["size"]) == ("stream.cut", 9)


async def test_what_a_subscriber_cannot_take_is_counted_and_told(tmp_path: Path) -> None:
    text = HSP.replace("profile = true", "profile = true\nsettings = { max_payload = 100 }", 1)
    text += '[[listener]]\nurl = "hsp://127.0.0.1:0/large"\nprofile = true\n'
    async with hub_on(tmp_path, text) as hub:
        urls = [url for url in hub.urls.values() if url.startswith("hsp")]
        small, large = (url.removesuffix("/large") for url in urls)
        async with wireloom.connect(small) as limited, wireloom.connect(large) as source:
            async with limited.subscribe("big/#") as nothing, source.subscribe("$hub/undeliverable") as notices:
                await source.publish("big/one", b"x" * 500)
                notice = json.loads((await anext(notices)).body)
                assert (notice["topic"], notice["size"]) == ("big/one", 500)
                assert "max_payload" in notice["why"]
                await nothing_comes(nothing)


async def test_the_pages_tell_what_is_going_on(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        await peer.publish("sensors/kitchen", b"1", ack=True)
        status, text = await get(hub.urls["http"] + "/metrics")
        assert status == 200
        assert 'wireloom_publishes_acknowledged_total{protocol="hsp"} 1\n' in text
        assert "wireloom_connections 1\n" in text
        assert await get(hub.urls["http"] + "/healthz") == (200, "alive\n")
        assert await get(hub.urls["http"] + "/readyz") == (200, "ready\n")
        assert (await get(hub.urls["http"] + "/nothing"))[0] == 404


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    async with hub_on(tmp_path / "a") as hub:
        text = HSP.replace("hsp://127.0.0.1:0", f"hsp://127.0.0.1:{port_of(hub)}")
        with pytest.raises(ConfigError, match=r"cannot listen on hsp://127.0.0.1:\d+: .*in use; stop whoever"):
            async with hub_on(tmp_path / "b", text):
                pass


async def test_connections_over_the_limit_are_turned_away(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HSP + "[limits]\nmax_connections = 1\n") as hub:
        reader, writer = await stream_to(hub)
        writer.write(b"\x03")
        assert await reader.readexactly(1) == b"\x04"
        other, second = await stream_to(hub)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            second.write(b"\x03")
            await other.readexactly(1)
        assert hub.metrics.turned_away.value("connections") == 1
        writer.close()
        second.close()


async def test_stopping_acknowledges_what_was_accepted_and_closes_politely(tmp_path: Path) -> None:
    hub: Hub
    async with hub_on(tmp_path) as hub:
        reader, writer = await stream_to(hub)
        writer.write(b"".join(data_ack(n, b"x") for n in range(1000)))
        await eventually(lambda: hub.metrics.received.value("hsp") == 1000)
        stopping = asyncio.create_task(hub.stop())
        assert await reader.read() == b"".join(ack(n) for n in range(1000))
        writer.close()
        await stopping
    assert [b.details["reason"] for b in records(tmp_path, "closed")] == ["close"]
    assert records(tmp_path, "stopped")


async def test_a_peer_that_breaks_the_protocol_costs_nobody_else_an_acknowledgement(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        streams = [await stream_to(hub) for _ in range(8)]
        for number, (_, writer) in enumerate(streams):
            # All arrive before the hub reads any of them.
            writer.write(data_ack(number, b"x" * 100) + (b"\xff" if number % 2 == 0 else b""))
        async with asyncio.timeout(30):
            for number, (reader, writer) in enumerate(streams):
                if number % 2:
                    assert await reader.readexactly(5) == ack(number)
                writer.close()
