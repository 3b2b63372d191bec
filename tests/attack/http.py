"""Attacks over HTTP, most of them by strangers: before anybody has asked for rights, the hub has little to give."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time

from tests.attack.harness import MB, Target, attack
from wireloom.hub.cloudevents import BATCH, STRUCTURED

STRANGERS = """
[[access.rule]]
who = ["anyone"]
publish = ["well-behaved"]
subscribe = ["well-behaved"]
"""
MESSAGE = 16 * 1024 * 1024


def reached(*settings: str) -> dict[str, str]:
    """The metric that shows each limit."""
    return {name: f'wireloom_limits_reached_total{{setting="{name}"}}' for name in settings}


EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
CONTEXT = "".join(f"ce-{name}: {value}\r\n" for name, value in EVENT.items())


async def connect(target: Target, here: str = "127.0.0.2") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the pages; from an address that is not the one which `Target.metrics` uses."""
    host, port = target.address("http")
    return await asyncio.open_connection(host, port, local_addr=(here, 0))


def head(path: str, size: int, kind: str = "text/plain") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {size}\r\n{CONTEXT if kind == 'text/plain' else ''}\r\n"
    ).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of the answer; 0 where the hub closed without one."""
    try:
        said = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, size = int(said.split(" ")[1]), re.search(r"\r\ncontent-length: (\d+)", said.lower())
        return status, (await reader.readexactly(int(size[1]))).decode() if size else ""
    except (OSError, asyncio.IncompleteReadError):
        return 0, ""


async def post(target: Target, path: str, body: bytes, kind: str) -> tuple[int, str]:
    reader, writer = await connect(target)
    with contextlib.suppress(OSError):
        writer.write(head(path, len(body), kind) + body)
        await writer.drain()
    found = await answer(reader)
    writer.close()
    return found


async def unfinished(target: Target, path: str, kind: str, count: int = 60) -> list[tuple[int, str]]:
    """Bodies without their last byte, all at once: what each is told."""

    async def one() -> tuple[int, str]:
        reader, writer = await connect(target)
        try:
            writer.write(head(path, MESSAGE, kind))
            for _ in range(MESSAGE // 65536 - 1):
                writer.write(bytes(65536))
                await writer.drain()
        except OSError:
            pass
        async with asyncio.timeout(60):
            found = await answer(reader)
        writer.close()
        return found

    return await asyncio.gather(*(one() for _ in range(count)))


@attack("http: unfinished posts of strangers", config=STRANGERS)
async def strangers(target: Target) -> None:
    told = await unfinished(target, "/events/secret", "text/plain")
    # Whoever sends on after the answer may have it overtaken by the end of the connection.
    assert {status for status, _ in told} <= {403, 0}, told
    assert (await target.metrics())['wireloom_access_denied_total{protocol="http",right="publish"}'] == 60


@attack(
    "http: unfinished posts of those who may",
    limits=reached("http_body_bytes", "http_body_seconds"),
    config=STRANGERS + "[limits]\nhttp_body_seconds = 5\n",
    budget=64 * MB,
)
async def guests(target: Target) -> None:
    told = await unfinished(target, "/events", BATCH)
    assert {status for status, _ in told} <= {503, 408, 0}, told
    found = await target.metrics()
    assert found['wireloom_connections_limited_total{protocol="http",limit="bodies"}'] > 0
    assert found['wireloom_limit_used{setting="http_body_bytes"}'] == 0


@attack(
    "http: heads that do not end",
    limits=reached("http_connections", "http_connections_per_address", "handshake_seconds"),
    config="[limits]\nhandshake_seconds = 2\nhttp_connections = 300\nhttp_connections_per_address = 100\n",
)
async def half_open(target: Target) -> None:
    """From ten addresses, 300 connections each: 200 of all of them find room, and none keeps it."""
    found = []
    for number in range(10):
        for _ in range(300):
            with contextlib.suppress(OSError):
                reader, writer = await connect(target, f"127.0.0.{2 + number}")
                writer.write(b"GET /status HTTP/1.1\r\nX-Slow: ")
                found.append((reader, writer))
    async with asyncio.timeout(30):
        for reader, _ in found:
            with contextlib.suppress(OSError):
                await reader.read()
    numbers = await target.metrics()
    assert numbers['wireloom_connections_refused_total{reason="http-address"}'] > 0
    assert numbers['wireloom_connections_refused_total{reason="http-connections"}'] > 0
    assert numbers['wireloom_connections_limited_total{protocol="http",limit="head"}'] >= 100
    assert numbers['wireloom_limit_used{setting="http_connections"}'] == 1
    for _, writer in found:
        writer.close()


@attack("http: headers without end", config="[limits]\nhandshake_seconds = 5\n")
async def headers(target: Target) -> None:
    async def one() -> int:
        sent = 0
        _, writer = await connect(target)
        with contextlib.suppress(OSError):
            writer.write(b"GET /status HTTP/1.1\r\nHost: a\r\n")
            while True:
                writer.write(b"X-More: " + b"x" * 4000 + b"\r\n")
                await writer.drain()
                sent += 4010
        writer.close()
        return sent

    async with asyncio.timeout(30):
        sent = await asyncio.gather(*(one() for _ in range(80)))
    assert max(sent) < 8 * MB, sent


@attack(
    "http: answers that nobody reads", limits=reached("handshake_seconds"), config="[limits]\nhandshake_seconds = 2\n"
)
async def unread(target: Target) -> None:
    """Pipelined requests for the largest pages, and their answers stay where they are."""

    async def one() -> None:
        _, writer = await connect(target)
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
                await writer.drain()
        writer.close()

    async with asyncio.timeout(60):
        await asyncio.gather(*(one() for _ in range(50)))
    assert (await target.metrics())['wireloom_connections_limited_total{protocol="http",limit="unread"}'] == 50


@attack("http: a batch of tiny events", budget=64 * MB)
async def batch(target: Target) -> None:
    """4 MB of the smallest events there are: each of them is published."""
    found = await target.watch("tiny")
    one = json.dumps(EVENT | {"subject": "tiny"}, separators=(",", ":")).encode()
    count = 4 * MB // len(one)
    async with asyncio.timeout(150):
        assert await post(target, "/events", b"[" + b",".join([one] * count) + b"]", BATCH) == (204, "")
    assert await target.settle(lambda: len(found) == count, 60), len(found)


@attack(
    "http: large batches with a fault at the end", limits=reached("http_json_bytes", "message_bytes"), budget=64 * MB
)
async def faults(target: Target) -> None:
    """Nothing of a batch is published that is wrong somewhere; reading 16 MB of it takes long, and nobody waits."""
    one = json.dumps(EVENT | {"subject": "tiny"}, separators=(",", ":")).encode()
    many = b",".join([one] * ((MESSAGE - 1000) // (len(one) + 1)))
    for body, status in (
        (b"[" + many + b"x]", 400),
        (b"[" + many, 400),
        (b"[" + b'"x",' * (MESSAGE // 5) + b"1]", 400),
        (b"[" + b"[" * (MESSAGE - 100), 413),
        (b" " * (MESSAGE - 2) + b"[]", 413),
        (b"[" + b" " * (MESSAGE - 2) + b"]", 413),
        (b" " * 10_000 + b"[ ]", 204),
        (b" " * MESSAGE + b"[]", 413),
        (b"[" + b"1" * (MESSAGE - 2) + b"]", 413),
        (b'[{"a":' + b"[1],".join([b""] * (MESSAGE // 5)) + b"}]", 413),
        (b'["' + "\U0001f600".encode() * (MESSAGE // 5) + b'"]', 413),
    ):
        async with asyncio.timeout(60):
            got, said = await post(target, "/events", body, BATCH)
        assert got == status, (got, said, body[:30])
    async with asyncio.timeout(60):
        assert (await post(target, "/events", b"[" * MESSAGE, STRUCTURED))[0] == 413
    assert 'wireloom_publishes_acknowledged_total{protocol="emp"}' not in await target.metrics()


@attack(
    "http: a body in drops", limits=reached("http_body_seconds"), small=True, config="[limits]\nhttp_body_seconds = 2\n"
)
async def drops(target: Target) -> None:
    async def one() -> tuple[int, str]:
        reader, writer = await connect(target)
        writer.write(head("/events/a", 1000))
        told = asyncio.create_task(answer(reader))
        began = time.monotonic()
        while not told.done() and time.monotonic() - began < 20:
            with contextlib.suppress(OSError):
                writer.write(b"x")
            await asyncio.wait([told], timeout=0.1)
        writer.close()
        return await told

    told = await asyncio.gather(*(one() for _ in range(50)))
    assert {status for status, _ in told} == {408}, told
    assert "http_body_seconds" in told[0][1]


@attack("http: names that point here", small=True)
async def names(target: Target) -> None:
    """A page of another site that made its name point to this machine reads nothing."""
    for path in ("/status", "/metrics", "/listeners", "/healthz", "/readyz"):
        for name in ("page.example.net", "localhost.example.net", "127.0.0.1.example.net:80", "[::1].example.net", ""):
            reader, writer = await connect(target)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            status, said = await answer(reader)
            writer.close()
            assert status in (400, 421), (path, name, status, said)
