"""A hub inside the test's own event loop, and plain sockets to talk to it."""

from __future__ import annotations

import asyncio
import struct
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from wireloom.hub import Hub
from wireloom.hub.config import DEFAULT_HTTP, HubConfig, parse_config
from wireloom.journal.blocks import Block
from wireloom.journal.reader import Entry, Record, read_all
from wireloom.protocols.registry import protocols
from wireloom.transports.address import parse_url

HSP = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
topics = { 7 = "sensors/kitchen", 8 = "sensors/cellar" }
[http]
url = "http://127.0.0.1:0"
"""
ALL = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
topics = { 7 = "sensors/kitchen", 8 = "doors/front" }
[[listener]]
url = "emp://127.0.0.1:0"
[[listener]]
url = "yamp://127.0.0.1:0"
[[listener]]
url = "yamp+ws://127.0.0.1:0"
[[listener]]
url = "wolpertinger://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""
"""A listener of every protocol that has connections."""


def config(folder: Path, text: str = HSP) -> HubConfig:
    return parse_config(tomllib.loads(text), text, "hub.toml", folder)


@asynccontextmanager
async def hub_on(folder: Path, text: str = HSP) -> AsyncIterator[Hub]:
    made = config(folder, text)
    ports = {parse_url(DEFAULT_HTTP).port, *(each.port for known in protocols().values() for each in known.schemes)} - {
        0
    }
    opened = {each.address.port for each in made.listeners} | {made.http.address.port if made.http else 0}
    assert not opened & ports, "a hub of the user may listen on the default ports: take free ones, also for [http]"
    async with Hub(made) as hub:
        yield hub


def url_of(hub: Hub, scheme: str = "hsp") -> str:
    return next(url for url in hub.urls.values() if url.startswith(f"{scheme}://"))


def port_of(hub: Hub, scheme: str = "hsp") -> int:
    return int(url_of(hub, scheme).rpartition(":")[2])


async def open_to(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.rpartition("://")[2].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def stream_to(hub: Hub) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await open_to(url_of(hub))


def data_ack(message_id: int, payload: bytes, type_: int = 7) -> bytes:
    return struct.pack(">BIHI", 1, message_id, type_, len(payload)) + payload


def data(payload: bytes, type_: int = 7) -> bytes:
    return struct.pack(">BHI", 0, type_, len(payload)) + payload


def ack(message_id: int) -> bytes:
    return struct.pack(">BI", 2, message_id)


async def get(url: str) -> tuple[int, str]:
    """Status and body of a page."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = "/" + url.removeprefix("http://").partition("/")[2]
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


def journaled(folder: Path) -> Iterator[Entry]:
    """Every message that the committed part of the journal holds."""
    return (each for each in read_all(folder / "journal") if isinstance(each, Entry))


def records(folder: Path, name: str) -> list[Block]:
    """The records of one name."""
    found = (each.block for each in read_all(folder / "journal") if isinstance(each, Record))
    return [block for block in found if block.record == name]


async def eventually(condition: object, seconds: float = 10.0) -> None:
    """Wait until a condition holds; fail if it never does."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
