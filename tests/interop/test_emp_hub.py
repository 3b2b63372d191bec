"""A hub between an emp peer with exclusive sizes and no extensions, and peers that know the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import wireloom
from tests.hub.running import get, hub_on, journaled, port_of, records, url_of
from tests.interop.erlang_emp import BYE, DATA, PING, PONG, Heard, Line, erlang_client, frame, request
from tests.pipeline.batches import ranges
from wireloom.model import Kind, Message
from wireloom.peers import Peer
from wireloom.pipeline.decode import decode_range
from wireloom.protocols.emp import EMP, EmpSettings

HUB = """
[[listener]]
url = "emp://127.0.0.1:0"
subscribe = ["alerts/#"]
[[listener]]
url = "yamp://127.0.0.1:0"
[[route]]
listener = "emp://127.0.0.1:0"
kind = "event"
to = "from/erlang"
[[route]]
listener = "emp://127.0.0.1:0"
kind = "request"
to = "math/double"
[http]
url = "http://127.0.0.1:0"
"""
WITHOUT_ROUTES = """
[[listener]]
url = "emp://127.0.0.1:0"
subscribe = ["alerts/#"]
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "http://127.0.0.1:0"
"""
T = TypeVar("T")


async def beside(work: Callable[[], T]) -> T:
    """Run what blocks in a thread of its own: the hub is in this one."""
    return await asyncio.to_thread(work)


def reads(line: Line, type_: int = DATA) -> Heard:
    """The next message of a type."""
    while True:
        heard = line.read()
        assert heard is not None, f"the connection ended; it died of extension {line.died_of}"
        if heard.type == type_:
            return heard


async def double(message: Message, peer: Peer) -> object:
    if message.body == b"bad":
        raise wireloom.RequestFailed("400", b"bad number")
    return message.body * 2


async def test_events_cross_in_both_directions(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as other:
        async with other.subscribe("from/#") as events:
            line = await beside(lambda: erlang_client(port_of(hub, "emp")))
            line.say(frame(DATA, b"hello"))
            event = await anext(events)
            assert (event.topic, event.value()) == ("from/erlang", "hello")
            await other.publish("alerts/fire", {"run": True}, ack=True)
            heard = await beside(lambda: reads(line))
            assert (json.loads(heard.body), heard.blocks) == ({"run": True}, ())
            line.say(frame(PING))
            assert (await beside(lambda: reads(line, PONG))).type == PONG
            line.say(frame(BYE))
            assert await beside(line.read) is None
            line.close()


async def test_a_request_is_answered_and_a_failure_told_to_others(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, HUB) as hub,
        wireloom.connect(url_of(hub, "emp"), handler=double) as provider,
        provider.subscribe("$hub/undeliverable") as told,
    ):
        await provider.provide("math/double")
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        line.say(request(1, b"21"))
        answer = await beside(lambda: reads(line))
        assert answer.body == b"2121"
        assert [extension for extension, _ in answer.blocks] == [0]
        line.say(request(2, b"bad") + request(3, b"4"))
        answer = await beside(lambda: reads(line))
        assert (answer.body, answer.blocks[0][1][-1]) == (b"44", 3), "the one that failed is not answered"
        assert "profile" in json.loads((await anext(told)).body)["why"]
        line.close()


async def test_a_request_for_nothing_is_counted_and_told(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, WITHOUT_ROUTES) as hub,
        wireloom.connect(url_of(hub, "yamp")) as other,
        other.subscribe("$hub/undeliverable") as told,
    ):
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        line.say(request(1, b"?"))
        notice = (await anext(told)).value()
        assert "a request failed" in notice["why"]  # type: ignore[index]
        _, metrics = await get(hub.urls["http"] + "/metrics")
        assert 'wireloom_undeliverable_total{protocol="emp"} 1' in metrics
        line.say(frame(PING))
        assert (await beside(lambda: reads(line, PONG))).type == PONG, "the connection lives on"
        line.close()


async def test_a_peer_that_knows_the_hub_gets_topics_on_the_same_listener(tmp_path: Path) -> None:
    async with (
        hub_on(tmp_path, WITHOUT_ROUTES) as hub,
        wireloom.connect(url_of(hub, "emp")) as knows,
        knows.subscribe("alerts/#") as events,
    ):
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        await knows.publish("alerts/fire", "run", ack=True)
        event = await anext(events)
        assert (event.topic, event.value()) == ("alerts/fire", "run")
        heard = await beside(lambda: reads(line))
        assert (heard.body, heard.blocks) == (b"run", ())
        line.close()


async def test_thousands_of_events_in_columns_reach_both_kinds_of_peers(tmp_path: Path) -> None:
    count = 5000
    async with (
        hub_on(tmp_path, WITHOUT_ROUTES) as hub,
        wireloom.connect(url_of(hub, "emp")) as publisher,
        wireloom.connect(url_of(hub, "emp")) as knows,
        knows.subscribe("alerts/#") as events,
    ):
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        for number in range(count):
            publisher.send_event(f"alerts/{number % 7}", str(number))
        await publisher.drain()

        def all_of_them() -> list[Heard]:
            return [reads(line) for _ in range(count)]

        heard = await beside(all_of_them)
        assert [each.body for each in heard] == [b"%d" % number for number in range(count)]
        assert all(each.blocks == () for each in heard)
        for number in range(count):
            event = await anext(events)
            assert (event.topic, event.body) == (f"alerts/{number % 7}", b"%d" % number)
        line.close()


async def test_the_journal_says_how_sizes_are_meant_and_the_pipeline_reads_it(tmp_path: Path) -> None:
    async with hub_on(tmp_path, WITHOUT_ROUTES) as hub, wireloom.connect(url_of(hub, "emp")) as usual:
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        line.say(frame(DATA, b"exclusive"))
        line.say(frame(PING))
        await beside(lambda: reads(line, PONG))
        await usual.publish("a", b"inclusive", ack=True)
        line.say(frame(BYE))
        await beside(line.read)
        line.close()
    assert [block.details["settings"] for block in records(tmp_path, "context")] == [{"size_mode": "exclusive"}]
    bodies = {entry.message.body for entry in journaled(tmp_path) if entry.message.kind is Kind.EVENT}
    assert b"exclusive" in bodies
    rejects, found = 0, set[bytes]()
    for part in ranges(tmp_path / "journal"):
        decoded = decode_range(part)
        rejects += decoded.rejects.num_rows
        found |= set(decoded.messages["body"].to_pylist())
    assert rejects == 0
    assert {b"exclusive", b"inclusive"} <= found


async def test_a_listener_with_the_profile_on_sends_blocks_to_everybody(tmp_path: Path) -> None:
    text = WITHOUT_ROUTES.replace('subscribe = ["alerts/#"]', 'subscribe = ["alerts/#"]\nprofile = "on"')
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub, "yamp")) as other:
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        await other.publish("alerts/fire", "run", ack=True)
        assert await beside(line.read) is None
        assert line.died_of == 128
        line.close()


async def test_a_client_of_ours_with_exclusive_sizes_has_topics_once_it_has_named_one(tmp_path: Path) -> None:
    settings = {"size_mode": "exclusive", "profile": "on"}
    async with (
        hub_on(tmp_path, WITHOUT_ROUTES) as hub,
        wireloom.connect(url_of(hub, "emp"), settings=settings) as peer,
        peer.subscribe("a/#") as events,
    ):
        await peer.publish("a/b", "x", ack=True)
        assert (await anext(events)).topic == "a/b"
    assert EMP.encode(Message(Kind.EVENT, "a"), EmpSettings.parse(settings))[:4] == b"\0\0\0\x10"


async def test_many_requests_are_answered_by_a_provider_that_knows_the_hub(tmp_path: Path) -> None:
    count = 300
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "emp"), handler=double) as provider:
        await provider.provide("math/double")
        line = await beside(lambda: erlang_client(port_of(hub, "emp")))
        line.say(b"".join(request(number, b"%d" % number) for number in range(1, count + 1)))

        def all_of_them() -> list[Heard]:
            return [reads(line) for _ in range(count)]

        answers = {int.from_bytes(each.blocks[0][1][4:]): each for each in await beside(all_of_them)}
        assert {number: each.body for number, each in answers.items()} == {
            number: b"%d%d" % (number, number) for number in range(1, count + 1)
        }
        assert all(len(each.blocks) == 1 for each in answers.values())
        line.close()
