"""Attacks by peers that begin the transport's handshake, and do not end it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

from tests.attack.harness import Target, attack
from tests.certificates import Authority

LISTENER = """
[[listener]]
url = "hsps://127.0.0.1:0"
profile = true
tls = { certificate = "{data}/hub.pem", key = "{data}/hub.key" }
[limits]
handshake_seconds = 3
handshakes = 500
handshakes_per_address = 200
"""
REFUSED = 'wireloom_listener_total{{protocol="{}",what="handshakes.refused"}}'
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)
"""The beginning of a ClientHello."""


def certificates(folder: Path) -> None:
    Authority(folder).issue("hub")


async def half_open(target: Target, scheme: str, beginning: bytes) -> None:
    """500 connections from each of four addresses; all of them end, and the next peer is served."""
    host, port = target.address(scheme)

    async def one(here: str) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(here, 0))
            writer.write(beginning)
            await reader.read()
            writer.close()

    async with asyncio.timeout(60):
        await asyncio.gather(*(one(f"127.0.0.{2 + number % 4}") for number in range(2000)))


@attack(
    "TLS handshakes that do not end",
    limits={"handshakes": REFUSED.format("hsp"), "handshakes_per_address": REFUSED.format("hsp")},
    config=LISTENER,
    prepare=certificates,
)
async def tls(target: Target) -> None:
    await half_open(target, "hsps", HELLO)
    _, writer = await target.open("hsps")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    await writer.start_tls(context)
    assert not writer.is_closing()


@attack(
    "WebSocket upgrades that do not end",
    limits={"handshakes": REFUSED.format("yamp"), "handshakes_per_address": REFUSED.format("yamp")},
    config=LISTENER,
    prepare=certificates,
)
async def upgrades(target: Target) -> None:
    await half_open(target, "yamp+ws", b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n" + b"X: " + b"x" * 4000)
    peer = await target.connect("yamp+ws")
    await peer.publish("a", "b", ack=True)
