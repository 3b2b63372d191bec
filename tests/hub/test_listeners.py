"""Listeners: every scheme of the library at the same time, several of each, and what each of them is told stays its own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import wireloom
from tests.certificates import Authority
from tests.hub.running import config, hub_on, stream_to
from wireloom.hub import Hub
from wireloom.hub.config import default_config
from wireloom.protocols.registry import protocols

SCHEMES = [scheme for protocol in protocols().values() for scheme in protocol.all_schemes]


def two_of_each(folder: Path) -> str:
    """A configuration with two listeners for each scheme; XMPP, which needs a server, is tried in tests/xmpp."""
    certificate, key = Authority(folder).issue("localhost")
    tables = []
    for scheme in SCHEMES:
        for number in range(2):
            if scheme.transport == "xmpp":
                continue
            place = f"{folder}/{scheme.name}-{number}" if scheme.local else f"127.0.0.{number + 1}:0"
            tables.append(f'[[listener]]\nurl = "{scheme.name}://{place}"\nprofile = true')
            if scheme.secure:
                tables.append(f'tls = {{ certificate = "{certificate}", key = "{key}" }}')
            if scheme.name.startswith("mesh"):
                tables.append('settings = { require = "any" }')
    return "\n".join([*tables, '[http]\nurl = "off"'])


def urls(hub: Hub) -> list[str]:
    return list(hub.urls.values())


async def test_every_scheme_twice_at_once_and_everybody_hears_everybody(tmp_path: Path) -> None:
    tls = wireloom.TLS(verify=False)
    async with hub_on(tmp_path, two_of_each(tmp_path)) as hub, contextlib.AsyncExitStack() as stack:
        assert len(urls(hub)) == 2 * sum(scheme.transport != "xmpp" for scheme in SCHEMES)
        inboxes = {}
        secure = {scheme.name for scheme in SCHEMES if scheme.secure}
        peers = {}
        for url in urls(hub):
            peer = wireloom.connect(url, tls=tls if url.partition(":")[0] in secure else None, timeout=60)
            peers[url] = await stack.enter_async_context(peer)
            inboxes[url] = await stack.enter_async_context(peers[url].subscribe("all/#"))
        for number, peer in enumerate(peers.values()):
            await peer.publish(f"all/{number}", {"from": number})
        wanted = {f"all/{number}" for number in range(len(peers))}
        async with asyncio.timeout(60):
            for number, (url, inbox) in enumerate(inboxes.items()):
                # A mesh node does not get back what it said itself.
                left = wanted - ({f"all/{number}"} if url.startswith("mesh") else set())
                while left:
                    left.discard((await anext(inbox)).topic or "")


async def test_numbers_of_one_listener_mean_nothing_on_another(tmp_path: Path) -> None:
    text = "".join(
        f'[[listener]]\nurl = "hsp://127.0.0.{number}:0"\nprofile = true\ntopics = {{ 7 = "place/{number}" }}\n'
        for number in (1, 2)
    )
    async with hub_on(tmp_path, text + '[http]\nurl = "off"\n') as hub:
        first, second = urls(hub)
        async with wireloom.connect(first) as one, wireloom.connect(second) as two, one.subscribe("place/#") as events:
            await one.publish("place/1", b"a", ack=True)
            await two.publish("place/2", b"b", ack=True)
            async with asyncio.timeout(20):
                assert [((await anext(events)).topic) for _ in range(2)] == ["place/1", "place/2"]
            _, writer = await stream_to(hub)
            writer.close()


def test_without_a_configuration_every_protocol_listens_on_loopback_on_its_default_port(tmp_path: Path) -> None:
    found = {listener.scheme.name: listener.address for listener in default_config(tmp_path).listeners}
    plain = [scheme for scheme in SCHEMES if scheme.transport in ("tcp", "udp", "ws")]
    assert {name: (address.host, address.port) for name, address in found.items()} == {
        scheme.name: ("127.0.0.1", scheme.port) for scheme in plain
    }
    assert config(tmp_path, "").listeners == default_config(tmp_path).listeners
