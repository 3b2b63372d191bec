"""hsp with the codec for Netty: direct both ways, by command, through the hub."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

import wireloom
from tests.cli.running import wireloom as command
from tests.hub.running import hub_on, port_of, url_of
from tests.interop.netty_hsp import ACK, DATA, DATA_ACK, PING, PONG, Heard, Line, netty_client, netty_server
from wireloom.conformance.run import CaseVerdict, check_server

HUB = """
[[listener]]
url = "hsp://127.0.0.1:0"
topics = { 7 = "sensors/kitchen" }
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
"""
TOPICS = {7: "sensors/kitchen", 65535: "fails", 65534: "fails/undefined"}


async def test_our_client_talks_to_its_server() -> None:
    with netty_server() as server:
        async with wireloom.connect(server.url, topics=TOPICS) as peer:
            async with peer.subscribe("sensors/kitchen", local=True) as events:
                await peer.publish("sensors/kitchen", b"hello")
                assert (await anext(events)).body == b"hello"
                await peer.ask(wireloom.Message(wireloom.Kind.REQUEST, "sensors/kitchen", b"please ack"))
                assert (await anext(events)).body == b"please ack"
            for topic, why in (("fails", "please fail"), ("fails/undefined", "request failed")):
                with pytest.raises(wireloom.RequestFailed, match=why):
                    await peer.request(topic, b"please fail")


@pytest.mark.parametrize("words", [("pub",), ("pub", "--ack"), ("req",)], ids=" ".join)
def test_commands_talk_to_its_server(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text('7 = "sensors/kitchen"\n')
    with netty_server() as server:
        url = (server.url, "sensors/kitchen", "hello")
        done = command(words[0], *url, *words[1:], "--topics", tmp_path / "topics.toml")
    told = "done; answers of hsp carry no value\n" if words == ("req",) else ""
    assert (done.code, done.errors) == (0, told)


async def test_it_passes_every_case_of_conformance_that_a_peer_must() -> None:
    with netty_server() as server:
        outcome = await check_server(server.url, patience=20.0)
    assert [each.case.name for each in outcome.results if each.verdict is not CaseVerdict.PASSED] == []


async def said_by(line: Line) -> Heard | None:
    return await asyncio.to_thread(line.read)


async def test_its_client_talks_to_the_hub(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "yamp")) as reader:
        async with reader.subscribe("sensors/#") as events:
            with closing(await asyncio.to_thread(netty_client, port_of(hub))) as client:
                client.say(PING)
                assert await said_by(client) == Heard(PONG)
                client.say(DATA, type_=7, payload=b'{"c": 21.5}')
                client.say(DATA_ACK, number=2**32 - 1, type_=7, payload=b"plain text")
                assert await said_by(client) == Heard(ACK, 2**32 - 1)
                found = [await anext(events) for _ in range(2)]
                assert [(each.topic, each.value()) for each in found] == [
                    ("sensors/kitchen", {"c": 21.5}),
                    ("sensors/kitchen", "plain text"),
                ]
