"""The hub's pages and the endpoint for events, before anybody has proved anything: names, heads, bodies, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.certificates import Authority
from tests.hub.running import HSP, eventually, get, hub_on, open_to
from wireloom.hub import Hub
from wireloom.hub.cloudevents import BATCH, CloudEvent, NoCloudEvent, TooLarge, from_http
from wireloom.journal import read_messages
from wireloom.model import Kind

EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
CONTEXT = "".join(f"ce-{name}: {value}\r\n" for name, value in EVENT.items())
SHOP = '[[access.rule]]\nwho = ["anyone"]\npublish = ["shop/#"]\n'


def limits(**values: float) -> str:
    return HSP + "[limits]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())


@contextlib.asynccontextmanager
async def raw(hub: Hub) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await open_to(hub.urls["http"])
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.close()


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


# --- names


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("hub.example.org:5046", 200),
        ("example.org", 421),
        ("hub.example.org.example.net", 421),
        ("[::1].example.net", 421),
    ],
)
async def test_pages_are_for_the_names_of_the_hub(tmp_path: Path, host: str, status: int) -> None:
    async with hub_on(tmp_path, HSP + 'hosts = ["hub.example.org"]\n') as hub:
        for path in ("/status", "/metrics", "/healthz", "/nowhere"):
            async with raw(hub) as (reader, writer):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                said = (await reader.read()).decode()
            wanted = 404 if (path, status) == ("/nowhere", 200) else status
            assert said.split(" ")[1] == str(wanted), said
            assert status == 200 or "hosts under [http]" in said
        assert hub.metrics.denied.value("http", "host") == (0 if status == 200 else 4)


# --- rights, then bodies


async def test_nothing_is_read_of_a_body_whose_sender_may_not_publish(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HSP + SHOP) as hub:
        for path, said in (("/events/bank", "publishing to bank"), ("/events", "publishing to t ")):
            async with raw(hub) as (reader, writer):
                # The body is promised and does not come: whoever waits for it waits for ever.
                writer.write(request(f"POST {path}", "Content-Length: 1000000", *CONTEXT.split("\r\n")[:-1]))
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                assert " 403 " in head and said in (await reader.readuntil(b"\n")).decode()
                assert hub.posted_bytes == 0


async def test_a_body_is_asked_for_once_it_may_come(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HSP + SHOP) as hub:
        for path, told in (("shop/sold", b"HTTP/1.1 100 Continue"), ("bank", b"HTTP/1.1 403 Forbidden")):
            async with raw(hub) as (reader, writer):
                more = ("Content-Length: 2", "Expect: 100-continue", *CONTEXT.split("\r\n")[:-1])
                writer.write(request(f"POST /events/{path}", *more))
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(told)
                if path != "bank":
                    writer.write(b"{}")
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")


async def test_connections_stay_for_the_next_request_however_it_is_cut(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, raw(hub) as (reader, writer):
        post = request("POST /events/a", "Content-Length: 3", *CONTEXT.split("\r\n")[:-1]) + b"1\r\n"
        stream = post * 3 + request("GET /healthz") * 2
        for start in range(0, len(stream), 7):
            writer.write(stream[start : start + 7])
            await asyncio.sleep(0)
        for _ in range(3):
            assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
        for _ in range(2):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(6) == b"alive\n"
        # All at once.
        writer.write(stream)
        for _ in range(5):
            await reader.readuntil(b"\r\n\r\n")
        kept = [e for e in read_messages(tmp_path / "journal") if e.message.kind is Kind.REQUEST]
        assert len(kept) == 6


async def test_large_data_is_posted_in_binary_mode(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub, aiohttp.ClientSession() as session:
        headers = {f"ce-{name}": value for name, value in EVENT.items()}
        url = hub.urls["http"] + "/events/a"
        async with session.post(url, data=bytes(1_000_000), headers=headers) as answer:
            assert answer.status == 204
        structured = json.dumps(EVENT | {"data": "x" * 200_000}).encode()
        kind = {"Content-Type": "application/cloudevents+json"}
        async with session.post(url, data=structured, headers=kind) as answer:
            assert answer.status == 413 and "http_json_bytes" in await answer.text()
        assert hub.posted_bytes == 0


async def test_nothing_of_a_batch_is_published_if_one_event_may_not_be(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HSP + SHOP) as hub, aiohttp.ClientSession() as session:
        batch = [EVENT | {"subject": topic} for topic in (*["shop/a"] * 500, "bank")]
        async with session.post(
            hub.urls["http"] + "/events", data=json.dumps(batch), headers={"Content-Type": BATCH}
        ) as answer:
            assert answer.status == 403
    assert [e for e in read_messages(tmp_path / "journal") if e.message.kind is Kind.REQUEST] == []


# --- connections


@pytest.mark.parametrize("secure", [False, True])
async def test_whoever_says_nothing_is_counted_and_goes(tmp_path: Path, secure: bool) -> None:
    certificate, key = Authority(tmp_path).issue("localhost")
    url = "https" if secure else "http"
    text = limits(handshake_seconds=1, http_connections_per_address=5).replace("http://127", f"{url}://127")
    if secure:
        text = text.replace("[http]", f'[http]\ntls = {{ certificate = "{certificate}", key = "{key}" }}')
    async with hub_on(tmp_path / "data", text) as hub:
        waiting = [await open_to(hub.urls["http"]) for _ in range(8)]
        await eventually(lambda: hub.metrics.turned_away.value("http-address") == 3)
        assert len(hub._http) == 5  # type: ignore[arg-type]
        await eventually(lambda: len(hub._http) == 0)  # type: ignore[arg-type]
        told = 0
        for reader, writer in waiting:
            with contextlib.suppress(OSError):
                told += b"503 Service Unavailable" in await reader.read()
            writer.close()
        assert told == (0 if secure else 3)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(hub.urls["http"] + "/status") as found,
        ):
            assert found.status == 200


# --- batches


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=4), max_size=12),
    st.sampled_from([None, 1]),
    st.integers(80, 200),
    st.booleans(),
)
def test_a_batch_is_read_as_json_is(
    events: list[dict[str, object]], indent: int | None, most: int, plain: bool
) -> None:
    whole = [{**EVENT, "data": each} for each in events]
    body = json.dumps(whole, indent=indent, ensure_ascii=plain).encode(errors="surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    fits = all(len(json.dumps(each, indent=indent, ensure_ascii=plain)) <= most - 20 for each in whole)
    try:
        found = [json.loads(each.data) for each in from_http({"Content-Type": BATCH}, body, most)]
    except TooLarge:
        assert not fits
    else:
        assert found == events


@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_a_broken_batch_is_read_to_where_it_breaks(noise: bytes, at: int, cut: int) -> None:
    good = json.dumps([EVENT, EVENT]).encode()
    body = good[:at] + noise + good[at + cut :]
    try:
        wanted: object = json.loads(body)
    except ValueError:
        wanted = None
    try:
        found: list[CloudEvent] | None = list(from_http({"Content-Type": BATCH}, body))
    except NoCloudEvent:
        found = None
    if found is not None:
        assert isinstance(wanted, list) and len(wanted) == len(found)


# --- how long the loop was held


async def test_what_holds_the_loop_is_in_the_metrics(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        await asyncio.sleep(0.1)
        time.sleep(0.3)  # noqa: ASYNC251 - this is what it is about
        await asyncio.sleep(0.05)
        _, text = await get(hub.urls["http"] + "/metrics")
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(found["wireloom_loop_stall_worst_seconds"]) >= 0.28
        count, below = (float(found[f"wireloom_loop_stall_seconds_{what}"]) for what in ("count", 'bucket{le="0.25"}'))
        assert count >= 3 and below <= count - 1
        assert float(found["wireloom_loop_stall_seconds_sum"]) >= 0.28


# --- rates


async def test_a_rate_holds_over_many_connections_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    async with hub_on(tmp_path, limits(messages_per_second=10, http_body_seconds=4)) as hub:
        url = hub.urls["http"] + "/events"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=90)) as session:

            async def one() -> int:
                async with session.post(url + "/a", data=b"1", headers=headers) as answer:
                    return answer.status

            began = time.monotonic()
            assert await asyncio.gather(*(one() for _ in range(20))) == [204] * 20
            # Ten at once, then ten a second.
            assert time.monotonic() - began > 0.9
            batch = json.dumps([EVENT | {"subject": "a"}] * 100)
            async with session.post(url, data=batch, headers={"Content-Type": BATCH}) as answer:
                assert answer.status == 429 and "a batch of 100 events" in await answer.text()
            found = await asyncio.gather(*(one() for _ in range(90)))
            assert set(found) == {204, 429}, "what would wait for longer than a body may take is refused"
        assert hub.posted_bytes == 0
