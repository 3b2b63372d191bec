"""The console's server: what it tells, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import hub_on, open_to, stream_to, url_of
from wireloom.console import Console, ConsoleSettings
from wireloom.console.server import HEADERS
from wireloom.hub import Hub
from wireloom.model import ConfigError
from wireloom.transports.http import HttpLimits

HUB = """
[[listener]]
url = "yamp://127.0.0.1:0"
profile = true
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""


@asynccontextmanager
async def console_on(hub: Hub, **settings: object) -> AsyncIterator[Console]:
    chosen: dict[str, object] = {"url": "http://127.0.0.1:0", "hub": hub.urls["http"], **settings}
    async with Console(ConsoleSettings(**chosen)) as console:  # type: ignore[arg-type]
        yield console


async def snapshots(console: Console) -> AsyncIterator[dict[str, object]]:
    async with aiohttp.ClientSession() as session, session.get(f"{console.url}/api/stream") as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def seen(console: Console, name: str, matches: object) -> dict[str, object]:
    """The first line of that name for which `matches` is true."""
    async with asyncio.timeout(30):
        async for snapshot in snapshots(console):
            for line in snapshot[name]:  # type: ignore[attr-defined]
                if matches(line):  # type: ignore[operator]
                    return line
    raise AssertionError


async def test_what_the_hub_takes_is_in_the_stream(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            await peer.publish("sensors/kitchen", {"celsius": 21.5}, ack=True)
            line = await seen(console, "messages", lambda m: m["topic"] == "sensors/kitchen")
            assert json.loads(line["text"]) == {"celsius": 21.5} and line["protocol"] == "yamp"
            assert bytes.fromhex(str(line["hex"])).decode() == line["text"]
            async with asyncio.timeout(30):
                async for snapshot in snapshots(console):
                    if snapshot["hub"]["protocols"]["yamp"]["received"] >= 2:  # type: ignore[index]
                        break
            assert snapshot["hub"]["connections"][0]["protocol"] == "yamp"  # type: ignore[index]


async def test_exchanges_have_their_outcome_and_latency(tmp_path: Path) -> None:
    async def slow(message: wireloom.Message, peer: wireloom.Peer) -> object:
        if message.value() == "no":
            raise wireloom.RequestFailed("418", b"teapot")
        return "yes"

    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console:
        url = url_of(hub, "yamp")
        async with wireloom.connect(url, handler=slow) as provider, wireloom.connect(url) as peer:
            await provider.provide("ask/me")
            assert await peer.request("ask/me", "really?") == "yes"
            with pytest.raises(wireloom.RequestFailed):
                await peer.request("ask/me", "no")
        done = await seen(console, "exchanges", lambda e: e["topic"] == "ask/me" and e["outcome"] == "done")
        failed = await seen(console, "exchanges", lambda e: e["topic"] == "ask/me" and e["outcome"] == "error")
        assert done["latency_us"] > 0 and failed["status"] is not None  # type: ignore[operator]


async def test_refused_bytes_are_shown_with_their_clause(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console:
        reader, writer = await stream_to(hub)
        writer.write(b"\x09oops")
        await reader.read()
        writer.close()
        line = await seen(console, "rejects", lambda r: True)
        assert line["clause"] == "hsp.command.unknown" and line["hex"] == b"\x09oops".hex() and line["size"] == 5


async def test_publishing_and_asking_from_the_page(tmp_path: Path) -> None:
    async def twice(message: wireloom.Message, peer: wireloom.Peer) -> object:
        return {"twice": message.value()["n"] * 2}  # type: ignore[index]

    async with (
        hub_on(tmp_path, HUB) as hub,
        console_on(hub) as console,
        wireloom.connect(url_of(hub, "yamp"), handler=twice) as peer,
        aiohttp.ClientSession() as session,
    ):
        await peer.provide("math/twice")
        got = await anext_of(peer, "notes/#", session, console)
        assert got == "hello"
        body = {"topic": "math/twice", "body": '{"n": 21}', "content_type": "application/json"}
        async with session.post(f"{console.url}/api/request", json=body) as answer:
            assert json.loads((await answer.json())["text"]) == {"twice": 42}
        async with session.post(f"{console.url}/api/request", json={"topic": "nobody/here"}) as answer:
            assert answer.status == 502 and "nobody/here" in (await answer.json())["error"]


async def anext_of(peer: wireloom.Peer, topic: str, session: aiohttp.ClientSession, console: Console) -> object:
    async with peer.subscribe(topic) as events:
        body = {"topic": "notes/today", "body": '"hello"', "content_type": "application/json"}
        async with session.post(f"{console.url}/api/publish", json=body) as answer:
            assert answer.status == 200, await answer.text()
        return (await asyncio.wait_for(anext(events), 10)).value()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ('{"topic": "a"}', {"Content-Type": "text/plain"}, 415),
        ("no json", {"Content-Type": "application/json"}, 400),
        ('{"topic": ""}', {"Content-Type": "application/json"}, 400),
        ('{"topic": "a"}', {"Content-Type": "application/json", "Origin": "https://example.org"}, 403),
        ('{"topic": "a"}', {"Content-Type": "application/json", "Host": "example.org"}, 403),
    ],
)
async def test_what_did_not_come_from_the_page_changes_nothing(
    tmp_path: Path, body: str, headers: dict[str, str], status: int
) -> None:
    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console, aiohttp.ClientSession() as session:
        async with session.post(f"{console.url}/api/publish", data=body, headers=headers) as answer:
            assert answer.status == status and (await answer.json())["error"]
        assert hub.metrics.received.value("yamp") == 0


async def test_every_answer_has_the_protecting_headers(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console, aiohttp.ClientSession() as session:
        for path in ("/", "/console.js", "/api/stream", "/nothing"):
            async with session.get(console.url + path) as answer:
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
        async with session.get(console.url, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403


async def test_whoever_takes_too_long_or_too_many_connections_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wireloom.console.server.HttpLimits", lambda: HttpLimits(per_address=10, seconds=1.0))
    monkeypatch.setattr("wireloom.console.server.BODY_TIMEOUT", 1.0)
    async with hub_on(tmp_path, HUB) as hub, console_on(hub) as console:
        slow = [await open_to(console.url) for _ in range(12)]
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(20):
            for reader, writer in slow:
                with contextlib.suppress(OSError):
                    assert b"200" not in await reader.read()
                writer.close()
            reader, writer = await open_to(console.url)
            writer.write(b"POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: 100\r\n\r\n{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            writer.close()
        async with aiohttp.ClientSession() as session, session.get(console.url) as answer:
            assert answer.status == 200


async def test_from_elsewhere_only_with_token_and_tls(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    tls = wireloom.TLS(certificate, key)
    for given in ({}, {"token": "x" * 20}, {"tls": tls}):
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            Console(ConsoleSettings(url="http://0.0.0.0:0", **given))  # type: ignore[arg-type]
    Console(ConsoleSettings(url="http://0.0.0.0:0", token="x" * 20, tls=tls))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"url": "127.0.0.1:5080"}, "--url 127.0.0.1:5080: write it as http://HOST:PORT"),
        ({"hub": "hub:5046"}, "--hub hub:5046: write it as http://HOST:PORT"),
        ({"url": "https://127.0.0.1:0"}, "needs a certificate for https"),
    ],
)
def test_an_address_that_is_none_is_refused_in_words(settings: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        ConsoleSettings(**settings).check()  # type: ignore[arg-type]


async def test_with_a_token_nobody_gets_in_without_it(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    tls = wireloom.TLS(certificate, key)
    token = "correct horse battery"
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        hub_on(tmp_path / "data", HUB) as hub,
        console_on(hub, token=token, tls=tls) as console,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False), cookie_jar=jar) as session,
    ):
        assert console.url.startswith("https://")
        for path in ("/", "/console.js", "/api/stream", "/?token=wrong"):
            async with session.get(console.url + path) as answer:
                assert answer.status == 401, path
        async with session.get(console.url) as answer:
            assert 'name="token"' in await answer.text()
        async with session.post(f"{console.url}/sign-in", data={"token": "wrong"}) as answer:
            assert answer.status == 401 and not len(jar)
        async with session.get(console.url, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 200
        async with session.get(console.url, params={"token": token}) as answer:
            assert answer.status == 200 and "token" not in str(answer.url)
        async with session.get(console.url) as answer:
            assert answer.status == 200
        (cookie,) = jar
        assert cookie["httponly"] and cookie["secure"] and cookie["samesite"] == "Strict"
        jar.clear()
        elsewhere = {"Origin": "https://evil.example"}
        async with session.post(f"{console.url}/sign-in", data={"token": token}, headers=elsewhere) as answer:
            assert answer.status == 403 and not len(jar)
        async with session.post(f"{console.url}/sign-in", data={"token": token}) as answer:
            assert answer.status == 200 and 'id="panels"' in await answer.text()


async def test_without_a_hub_it_says_so_and_comes_back(tmp_path: Path) -> None:
    async with Console(ConsoleSettings(url="http://127.0.0.1:0", hub="http://127.0.0.1:9")) as console:
        async for snapshot in snapshots(console):
            assert snapshot["hub"]["up"] is False and "wireloom hub" in snapshot["hub"]["why"]  # type: ignore[index]
            break
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{console.url}/api/publish", json={"topic": "notes"}) as answer:
                assert answer.status == 502
                assert "nobody answers at http://127.0.0.1:9 (Connection refused)" in (await answer.json())["error"]
