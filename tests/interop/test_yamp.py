"""yamp with the JavaScript and Go implementations: direct both ways, by command, through the hub."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

import wireloom
from tests.cli.running import started
from tests.cli.running import wireloom as command
from tests.hub.running import data, eventually, hub_on, port_of, url_of
from tests.interop.netty_hsp import netty_client
from tests.interop.yamp_peers import (
    DONE,
    EVENT,
    GO,
    JAVASCRIPT,
    JAVASCRIPT_MSGPACK,
    REQUEST,
    Client,
    Flavour,
    yamp_server,
)
from wireloom.conformance.run import CaseVerdict, check_server
from wireloom.protocols.cases import Level

FLAVOURS = pytest.mark.parametrize("flavour", [JAVASCRIPT, JAVASCRIPT_MSGPACK, GO], ids=["js", "js-msgpack", "go"])
HUB = """
[[listener]]
url = "hsp://127.0.0.1:0"
topics = { 7 = "sensors/kitchen" }
[[listener]]
url = "yamp://127.0.0.1:0"
settings = { ping_interval = 0.1, pong_timeout = 0.1 }
[http]
url = "off"
"""


def settings(flavour: Flavour) -> dict[str, object]:
    return {"serializer": flavour.named.decode() or "json"}


async def ask(client: Client, uri: str, value: object) -> object:
    """A request of theirs is answered with done; the value of the answer."""
    answer = await asyncio.to_thread(client.ask, uri, value)
    assert answer.flag == DONE
    return answer.value


# Our client, their server


@FLAVOURS
async def test_our_client_talks_to_their_server(flavour: Flavour) -> None:
    with yamp_server(flavour) as server:
        async with wireloom.connect(server.url, settings=settings(flavour)) as peer:
            assert await peer.request("echo", {"n": [1, None]}) == {"n": [1, None]}
            assert await peer.request("echo") is None
            assert await peer.request("echo", b"") is None
            with pytest.raises(wireloom.RequestFailed, match="boom"):
                await peer.request("fail", "boom")
            steps = peer.request_progress("count", 3)
            assert [step async for step in steps] == [1, 2, 3]
            async with peer.subscribe("echo", local=True) as events:
                for value in ({"a": 1}, None, "text"):
                    await peer.publish("echo", value)
                    event = await anext(events)
                    assert event.value() == value
        assert server.died_of == []


async def test_a_server_that_never_closes_costs_half_a_second() -> None:
    with yamp_server() as server:
        peer = await wireloom.connect(server.url)
        begun = time.monotonic()
        await peer.close()
        assert time.monotonic() - begun < 4  # five seconds, if somebody waited as long as for others
        assert server.lines[0].closes == [b""]


@pytest.mark.parametrize("words", [("pub", "echo", "hello"), ("req", "echo", "[1]"), ("req", "echo", "")])
def test_commands_are_over_soon(words: tuple[str, ...]) -> None:
    with yamp_server() as server:
        begun = time.monotonic()
        done = command(words[0], server.url, *words[1:])
        assert time.monotonic() - begun < 4
        assert (done.code, done.errors) == (0, "")
        assert done.out == {"pub": b"", "req": b"[1]\n" if words[2] else b"null\n"}[words[0]]
        assert server.died_of == []


@pytest.mark.parametrize("early", [False, True], ids=["amid the conversation", "instead of the handshake"])
def test_a_request_follows_a_redirect(early: bool) -> None:
    with yamp_server() as target, yamp_server(redirect=f"tcp://127.0.0.1:{target.port}") as old:
        if early:
            there = f'redirect="tcp://127.0.0.1:{target.port}"'
            with started("echo", "yamp://127.0.0.1:0", "--set", there) as ours:
                assert ours.stdout is not None
                done = command("req", ours.stdout.readline().split()[-1], "echo", "[1]")
        else:
            done = command("req", old.url, "echo", "[1]")
    assert (done.code, done.out, done.errors) == (0, b"[1]\n", "")


async def test_the_conformance_cases_are_fair_to_their_server() -> None:
    with yamp_server() as server:
        outcome = await check_server(server.url, patience=1.0)
    verdicts = {each.case.name: each.verdict for each in outcome.results}
    assert outcome.conforms
    failed = [each for each in outcome.results if each.verdict is CaseVerdict.FAILED]
    assert {each.case.level for each in failed} == {Level.SHOULD}
    assert {each.case.name for each in failed} == {
        "a ping's payload comes back",
        "close closes",
    }
    assert verdicts["the handshake is echoed"] is CaseVerdict.PASSED
    assert verdicts["an event is not answered"] is CaseVerdict.PASSED
    assert verdicts["a request that nobody handles is answered"] is CaseVerdict.DIFFERS
    skipped = {each.case.name: each.detail for each in outcome.results if each.verdict is CaseVerdict.SKIPPED}
    assert skipped == dict.fromkeys(
        (
            "the answer is of type error",
            "a response repeats the uri of its request",
            "several requests in one write are all answered",
        ),
        "it needs 'a request that nobody handles is answered'",
    )


# Their client, our server


@FLAVOURS
async def test_their_client_talks_to_our_server(flavour: Flavour) -> None:
    async def handle(message: wireloom.Message, peer: wireloom.Peer) -> object:
        if message.topic == "fail":
            raise wireloom.RequestFailed("error", b"boom")
        return message.value()

    async with wireloom.serve("yamp://127.0.0.1:0", handle) as server:
        with closing(await asyncio.to_thread(Client, server.port, flavour)) as client:
            for value in ({"n": [1, None]}, None, "text"):
                assert await ask(client, "echo", value) == value
            failed = await asyncio.to_thread(client.ask, "fail", "x")
            assert failed.flag == 1
            peer = server.connections[0]
            asking = asyncio.create_task(peer.request("client-echo", {"q": 1}))
            asked = await asyncio.to_thread(client.next)
            assert (asked.type, asked.uri, asked.value) == (REQUEST, "client-echo", {"q": 1})
            client.say(client.response(asked, DONE, asked.value))
            assert await asking == {"q": 1}


# Through the hub


@FLAVOURS
async def test_what_the_hub_answers_can_be_read(flavour: Flavour, tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        with closing(await asyncio.to_thread(Client, port_of(hub, "yamp"), flavour)) as client:
            for operation in ("subscribe", "provide"):
                assert await ask(client, f"$hub/{operation}", {"topic": "rooms/#"}) is None
            assert await ask(client, "$hub/publish/other", {"a": 1}) is None
            failed = await asyncio.to_thread(client.ask, "nobody/here", 1)
            assert isinstance(failed.value, dict)
            assert failed.value["code"] == "404"


@FLAVOURS
async def test_many_publishes_in_one_write_get_answers_that_can_be_read(flavour: Flavour, tmp_path: Path) -> None:
    """So many that they are decoded and answered in columns."""
    async with hub_on(tmp_path, HUB) as hub:
        with closing(await asyncio.to_thread(Client, port_of(hub, "yamp"), flavour)) as client:
            requests = [client.request("$hub/publish/rooms/1", number) for number in range(500)]
            client.say(b"".join(requests))
            answers = [await asyncio.to_thread(client.next) for _ in requests]
            assert [each.request_uid for each in answers] == [each[1:17] for each in requests]
            assert {(each.flag, each.value) for each in answers} == {(DONE, None)}


VALUES = {
    b'{"c": 21.5}': {"c": 21.5}, b"21.5": 21.5, b"plain text": "plain text", b"\xff\x00": "/wA=", b"null": None,
    b"{broken": "{broken",
}  # fmt: skip
"""Bodies without a content type, and what a peer of plain values makes of them."""


@FLAVOURS
@pytest.mark.parametrize("values", [VALUES, {**VALUES, b"": None}], ids=["with bodies", "one without"])
async def test_events_of_any_kind_reach_their_client_as_values(
    values: dict[bytes, object], flavour: Flavour, tmp_path: Path
) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        with (
            closing(await asyncio.to_thread(Client, port_of(hub, "yamp"), flavour)) as client,
            closing(await asyncio.to_thread(netty_client, port_of(hub))) as sensor,
        ):
            await ask(client, "$hub/subscribe", {"topic": "#"})
            for repeat in (1, 200):  # few, and so many that they are decoded in columns
                sensor.socket.sendall(b"".join(data(body) for body in values) * repeat)
                for value in [*values.values()] * repeat:
                    event = await asyncio.to_thread(client.next)
                    assert (event.type, event.uri, event.value) == (EVENT, "sensors/kitchen", value)


@pytest.mark.parametrize("count", [1, 400])
async def test_events_without_a_body_are_null_for_others_of_the_same_serializer(count: int, tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        with (
            closing(await asyncio.to_thread(Client, port_of(hub, "yamp"))) as reader,
            closing(await asyncio.to_thread(Client, port_of(hub, "yamp"))) as writer,
        ):
            await ask(reader, "$hub/subscribe", {"topic": "rooms/#"})
            bare = writer.user(EVENT, "rooms/1", b"", b"")
            writer.say((bare + writer.event("rooms/1", 1)) * count)
            for expected in [None, 1] * count:
                assert (await asyncio.to_thread(reader.next)).value == expected


@FLAVOURS
async def test_a_client_that_never_answers_a_ping_stays(flavour: Flavour, tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub)) as sensor:
        with closing(await asyncio.to_thread(Client, port_of(hub, "yamp"), flavour)) as client:
            await ask(client, "$hub/subscribe", {"topic": "rooms/#"})
            await eventually(lambda: client.pings >= 5, 30)
            await sensor.publish("rooms/1", [1])
            event = await asyncio.to_thread(client.next)
            assert event.value == [1]


async def test_a_provider_of_theirs_is_asked_by_others(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as caller:
        with closing(await asyncio.to_thread(Client, port_of(hub, "yamp"), GO)) as client:
            await ask(client, "$hub/provide", {"topic": "rooms/count"})
            asking = asyncio.create_task(caller.request("rooms/count"))
            asked = await asyncio.to_thread(client.next)
            assert (asked.type, asked.value) == (REQUEST, None)
            client.say(client.response(asked, DONE, 3))
            assert await asking == 3
