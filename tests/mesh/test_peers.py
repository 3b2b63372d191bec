"""`connect` and `serve` with mesh: what works as for the others, and what mesh has no word for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import wireloom
from wireloom import mesh
from wireloom.model import Authenticity, HandshakeFailed, LimitExceeded, Message, NotSupported
from wireloom.protocols.mesh.messages import FIELDS

HOME = "mesh://127.0.0.1:0"
QUICK = {"hello_interval": 0.1, "heartbeat_interval": 0.1, "lost_after": 0.5}


async def test_events_cross_in_both_directions() -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def handler(message: Message, peer: wireloom.Peer) -> None:
        await heard.put(message)

    async with wireloom.serve(HOME, handler) as server, wireloom.connect(server.url) as peer:
        async with peer.subscribe("down/+") as events:
            await peer.publish("up/1", {"c": 21.5})
            assert (await heard.get()).value() == {"c": 21.5}
            assert await server.publish("down/1", "text") == 1
            assert (await anext(events)).value() == "text"
        await asyncio.sleep(0.1)
        assert await server.publish("down/2", "nobody") == 0


async def test_several_fields_are_a_list_of_values() -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()

    async def handler(message: Message, peer: wireloom.Peer) -> None:
        await heard.put(peer.decode(message))

    async with wireloom.serve(HOME, handler) as server, wireloom.connect(server.url) as peer:
        form = peer.protocol.format_for(FIELDS)
        assert form is not None
        peer.send(Message(wireloom.Kind.EVENT, "a", form.dumps([1, 1.5, "x", b"y"]), content_type=FIELDS))
        assert await heard.get() == ["x", 1, 1.5, b"y"]
        peer.send(Message(wireloom.Kind.EVENT, "a", form.dumps([1, 1.5, b"y"]), content_type=FIELDS))
        assert await heard.get() == [1, 1.5, b"y"]


async def test_what_mesh_has_no_word_for_is_said_at_once() -> None:
    async with wireloom.serve(HOME) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(NotSupported, match="no requests"):
            await peer.request("a", 1)
        with pytest.raises(NotSupported, match="no requests"):
            await peer.publish("a", 1, ack=True)
        with pytest.raises(LimitExceeded, match="531"):
            await peer.publish("a", bytes(600))


async def test_nobody_there_is_a_failed_handshake() -> None:
    with pytest.raises(HandshakeFailed, match="did not answer"):
        await wireloom.connect("mesh://127.0.0.1:9", timeout=0.3, reconnect=False)


async def test_a_client_that_expects_no_answer_just_sends() -> None:
    async with wireloom.connect("mesh://127.0.0.1:9", settings={"handshake": False}, reconnect=False) as peer:
        await peer.publish("a", 1)


async def test_a_server_that_comes_back_is_found_again_with_the_subscriptions() -> None:
    fast = wireloom.Backoff(minimum=0.05, maximum=0.1)
    async with wireloom.serve(HOME, settings=QUICK) as server:
        url = server.url
        client = await wireloom.connect(url, settings=QUICK, reconnect=fast, timeout=1.0)
        events = client.subscribe("a")
        await events.start()
    async with wireloom.serve(url, settings=QUICK) as server, asyncio.timeout(30):
        while not await server.publish("a", 2):
            await asyncio.sleep(0.05)
        assert (await anext(events)).value() == 2
        assert client.reconnects >= 1
        events.close()
        await client.close()


async def test_keys_and_trust_are_settings(tmp_path: Path) -> None:
    one, two = mesh.Identity.generate(), mesh.Identity.generate(hmac=True, signature=False)
    one.save(tmp_path / "one.json")
    two.save(tmp_path / "two.json")
    mesh.TrustStore([one.trusted_key(), two.trusted_key()]).save(tmp_path / "trust.json")
    trust = str(tmp_path / "trust.json")
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def handler(message: Message, peer: wireloom.Peer) -> None:
        await heard.put(message)

    server_settings = {"key": str(tmp_path / "one.json"), "trust": trust}
    async with wireloom.serve(HOME, handler, settings=server_settings) as server:
        settings = {"key": str(tmp_path / "two.json"), "trust": trust}
        async with wireloom.connect(server.url, settings=settings) as peer:
            await peer.publish("a")
            message = await heard.get()
            assert (message.authenticity, message.attributes["node_id"]) == (Authenticity.VERIFIED, two.node_id.hex())
        with pytest.raises(HandshakeFailed):
            await wireloom.connect(server.url, timeout=0.3, reconnect=False)
