"""`wireloom.mesh.Node` on real sockets: loopback ports, with faults put into the sending side."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from wireloom import mesh
from wireloom.model import Authenticity, ConfigError, Kind, LimitExceeded, Message, PeerClosed
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.transports.datagrams import DatagramSocket

HOME = "mesh://127.0.0.1:0"
QUICK: dict[str, object] = {"hello_interval": 0.1, "heartbeat_interval": 0.1, "lost_after": 0.6}


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def nodes(count: int, seeds: Callable[[int], list[int]], **more: object) -> AsyncIterator[list[mesh.Node]]:
    """Nodes that trust each other; `seeds` says which earlier nodes each of them greets."""
    identities = [mesh.Identity.generate(signature=n % 3 == 0, hmac=n % 3 != 0) for n in range(count)]
    trust = mesh.TrustStore(identity.trusted_key() for identity in identities)
    running: list[mesh.Node] = []
    async with AsyncExitStack() as stack:
        for number, identity in enumerate(identities):
            node = mesh.Node(
                HOME, key=identity, trust=trust, seeds=[running[each].url for each in seeds(number)],
                settings=dict(QUICK), **more,  # type: ignore[arg-type]
            )  # fmt: skip
            running.append(await stack.enter_async_context(node))
        yield running


async def test_publish_and_subscribe() -> None:
    async with nodes(2, lambda n: [0] if n else []) as (one, two):
        async with one.subscribe("sensors/+") as events, one.changes() as changes:
            change = await anext(changes)
            assert (change.what, change.peer.node_id) == (mesh.Change.JOINED, two.node_id)
            await eventually(lambda: any(b"sensors" in peer.capabilities for peer in two.peers))
            sent = await two.publish("sensors/kitchen", {"c": 21.5}, urgent=True)
            event = await anext(events)
            assert (event.id, event.value(), event.attributes["urgent"]) == (sent.id, {"c": 21.5}, "1")
            assert event.authenticity is Authenticity.VERIFIED


async def test_neighbours_come_and_go_as_a_stream() -> None:
    async with nodes(1, lambda n: []) as (one,):
        other = mesh.Identity.generate()
        one.trust.add(other.trusted_key())
        async with one.changes() as changes:
            for _ in range(2):
                async with mesh.Node(HOME, key=other, trust=one.trust, seeds=[one.url], settings=QUICK):
                    assert (await anext(changes)).what is mesh.Change.JOINED
                lost = await anext(changes)
                assert (lost.what, lost.peer.node_id) == (mesh.Change.LOST, other.node_id.hex())
        assert one.peers == ()


async def test_what_nobody_takes_is_dropped_and_counted_urgent_last() -> None:
    async with nodes(2, lambda n: [0] if n else [], queue=10) as (one, two):
        async with one.subscribe("#") as events:
            await eventually(lambda: any(b"#" in peer.capabilities for peer in two.peers))
            await two.publish("first", urgent=True)
            for number in range(30):
                await two.publish(f"n/{number}")
            await eventually(lambda: one.dropped == 21)
            assert events.dropped == one.counters["mesh.events.dropped"] == 21
            assert [(await anext(events)).topic for _ in range(10)] == ["first", *[f"n/{n}" for n in range(21, 30)]]


async def test_cancelling_a_receive_loses_nothing() -> None:
    async with nodes(2, lambda n: [0] if n else []) as (one, two):
        async with one.subscribe("#") as events:
            await eventually(lambda: any(b"#" in peer.capabilities for peer in two.peers))
            for _ in range(5):
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                waiting.cancel()
            await two.publish("a")
            assert (await anext(events)).topic == "a"


async def test_leaving_ends_iteration_and_publishing_fails() -> None:
    async with nodes(1, lambda n: []) as (one,):
        events, changes = one.subscribe("#"), one.changes()
        with pytest.raises(LimitExceeded):
            await one.publish("a", bytes(600))
    assert [event async for event in events] == [] and [change async for change in changes] == []
    with pytest.raises(PeerClosed):
        await one.publish("a")


async def test_keys_are_rotated_while_running(tmp_path: Path) -> None:
    identity, other = mesh.Identity.generate(), mesh.Identity.generate()
    key, trust = tmp_path / "key.json", tmp_path / "trust.json"
    identity.save(key)
    mesh.TrustStore([identity.trusted_key(), other.trusted_key()]).save(trust)
    async with (
        mesh.Node(HOME, key=other, trust=str(trust), settings=QUICK) as one,
        mesh.Node(HOME, key=str(key), trust=str(trust), settings=QUICK, seeds=[one.url]) as two,
    ):
        async with one.subscribe("#") as events:
            await eventually(lambda: any(b"#" in peer.capabilities for peer in two.peers))
            new = identity.rotate()
            mesh.TrustStore([new.trusted_key(), identity.trusted_key(), other.trusted_key()]).save(trust)
            await asyncio.sleep(1.1)
            new.save(key)
            await asyncio.sleep(1.1)
            mesh.TrustStore([new.trusted_key(), other.trusted_key()]).save(trust)
            await asyncio.sleep(1.1)
            await two.publish("after")
            event = await anext(events)
            assert event.attributes["auth_key_id"] == new.auth_key_id.hex()


def test_a_node_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="require='any'"):
        mesh.Node(HOME)
    with pytest.raises(ConfigError, match="mesh://"):
        mesh.Node("hsp://127.0.0.1:0", require="any")
    with pytest.raises(ConfigError, match="speaks mesh"):
        mesh.Node(HOME, require="any", seeds=["mesh+quic://127.0.0.1"])


async def test_strangers_get_no_link_and_are_counted() -> None:
    async with nodes(1, lambda n: []) as (one,):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            unsigned = Author(MeshSettings(), mesh.Identity(b"n" * 16)).hello(b"", time.time())[0]
            for data in (unsigned, b"garbage"):
                sock.sendto(data, ("127.0.0.1", int(one.url.rpartition(":")[2])))
            await eventually(lambda: one.counters.get("mesh.header.short") == 1)
        assert one.counters["mesh.policy.unsigned"] == 1
        assert (one.peers, one._links) == ((), {})


@pytest.fixture
def bad_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every socket loses a tenth of its datagrams, doubles some and sends some late."""
    draw = random.Random(11)
    send = DatagramSocket.send

    def faulty(self: DatagramSocket, data: bytes, to: object = None, *, urgent: bool = False) -> None:
        for _ in range(1 + (draw.random() < 0.1)):
            if draw.random() < 0.1:
                continue
            if draw.random() < 0.3:
                asyncio.get_running_loop().call_later(draw.random() * 0.1, send, self, data, to)
            else:
                send(self, data, to, urgent=urgent)  # type: ignore[arg-type]

    monkeypatch.setattr(DatagramSocket, "send", faulty)


async def test_twenty_nodes_on_loopback_with_loss_duplication_and_reordering(bad_network: None) -> None:
    draw = random.Random(5)

    def seeds(number: int) -> list[int]:
        return draw.sample(range(number), min(number, 3))

    async with nodes(20, seeds, relay=["#"], copies=4, max_neighbours=12) as mesh_nodes:
        streams = [node.subscribe("news/#") for node in mesh_nodes]
        await eventually(lambda: all(len(node.peers) >= 3 for node in mesh_nodes))
        sent = [(await node.publish(f"news/{n}", n)).id for n, node in enumerate(mesh_nodes)]
        for number, stream in enumerate(streams):
            async with asyncio.timeout(30):
                heard = [(await anext(stream)).id for _ in range(19)]
            assert sorted(map(str, heard)) == sorted(str(each) for n, each in enumerate(sent) if n != number)
        recorded = Author(MeshSettings(), mesh.Identity.generate()).write(Message(Kind.EVENT, "news/x"), time.time())[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for node in mesh_nodes:
                sock.sendto(recorded, ("127.0.0.1", int(node.url.rpartition(":")[2])))
        await asyncio.sleep(0.5)
        assert all(not stream._queue._normal for stream in streams)
        assert all(stream.dropped == 0 for stream in streams)
