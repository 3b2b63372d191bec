"""The hub as a node of the mesh: it greets seeds, signs what other protocols publish, and passes packets on without loops."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import config, eventually, get, hub_on, journaled, records, url_of
from wireloom import mesh
from wireloom.hub import Hub
from wireloom.model import Authenticity, ConfigError, Message
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.frames import Type
from wireloom.protocols.mesh.settings import MeshSettings

REST = '[[listener]]\nurl = "hsp://127.0.0.1:0"\nprofile = true\n[http]\nurl = "http://127.0.0.1:0"\n'


def mesh_listener(url: str = "mesh://127.0.0.1:0", **settings: object) -> str:
    values = ", ".join(f"{name} = {_toml(value)}" for name, value in settings.items())
    return f'[[listener]]\nurl = "{url}"\nprofile = true\nsettings = {{ {values} }}\n'


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Keys:
    """Identities in files, and one trust file for all of them."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.identities = {name: mesh.Identity.generate(hmac=True) for name in names}
        for name, identity in self.identities.items():
            identity.save(folder / f"{name}.json")
        mesh.TrustStore(each.trusted_key() for each in self.identities.values()).save(folder / "trust.json")

    def __call__(self, name: str) -> dict[str, object]:
        return {"key": str(self.folder / f"{name}.json"), "trust": str(self.folder / "trust.json")}

    def node_id(self, name: str) -> str:
        return self.identities[name].node_id.hex()


def neighbours(hub: Hub) -> int:
    """Mesh peers that have asked the hub for something."""
    return sum(connection.name == "mesh" for connection in hub.router.subscriptions.subscribers())


async def test_two_hubs_that_know_each_other_share_events_of_other_protocols_signed_and_once(tmp_path: Path) -> None:
    keys = Keys(tmp_path, "a", "b")
    async with hub_on(tmp_path / "b", mesh_listener(**keys("b")) + REST) as b:
        seeds = [url_of(b, "mesh")]
        async with hub_on(tmp_path / "a", mesh_listener(**keys("a"), seeds=seeds) + REST) as a:
            await eventually(lambda: neighbours(a) == neighbours(b) == 1)
            async with (
                wireloom.connect(url_of(a)) as publisher,
                wireloom.connect(url_of(b)) as other,
                other.subscribe("alarm/#") as events,
            ):
                for number in range(20):
                    await publisher.publish("alarm/fire", number)
                found = [(await anext(events)).value() for _ in range(20)]
                assert found == list(range(20))
                await other.publish("from/b", 1)
            await eventually(lambda: any(e.message.topic == "from/b" for e in journaled(tmp_path / "a")))
            # Neither hub sends a packet back to where it came from.
            for hub in (a, b):
                assert hub.metrics.refused.value("mesh", "mesh.own") == 0
                assert hub.metrics.refused.value("mesh", "mesh.replay") == 0
    packets = [e.message for e in journaled(tmp_path / "b") if e.message.protocol == "mesh" and e.message.topic]
    assert [m.attributes["node_id"] for m in packets] == [keys.node_id("a")] * 20
    opened = [block.details for block in records(tmp_path / "a", "opened")]
    assert [details["role"] for details in opened if details["protocol"] == "mesh"] == ["client"]


async def begun_again(hub: Hub) -> None:
    """The hub has given up the conversations of now, and begun a new one."""
    before = set(hub.connections)
    await eventually(lambda: hub.connections and not before & hub.connections.keys())


async def test_a_seed_that_comes_late_and_comes_back_is_greeted(tmp_path: Path) -> None:
    url = f"mesh://127.0.0.1:{free_port()}"
    listener = mesh_listener(require="any", seeds=[url], hello_interval=0.05, heartbeat_interval=0.1, lost_after=0.6)
    async with hub_on(tmp_path, listener + REST) as hub:
        for _ in range(2):
            await begun_again(hub)
            async with mesh.Node(url, require="any") as node, node.subscribe("a") as events:
                await eventually(lambda: neighbours(hub) == 1)
                async with wireloom.connect(url_of(hub)) as other:
                    await other.publish("a", 1)
                    assert (await anext(events)).value() == 1


async def test_a_ring_of_hubs_passes_a_packet_on_unchanged_and_only_once(tmp_path: Path) -> None:
    """Also where each hub has a provider for the topic, which an event is none of the business of."""
    keys = Keys(tmp_path, "a", "b", "c", "sensor")
    ports = {name: free_port() for name in "abc"}
    hubs: dict[str, Hub] = {}
    async with AsyncExitStack() as running:
        for name, following in zip("abc", "bca", strict=True):
            listener = mesh_listener(
                f"mesh://127.0.0.1:{ports[name]}", **keys(name), seeds=[f"127.0.0.1:{ports[following]}"]
            )
            hubs[name] = await running.enter_async_context(hub_on(tmp_path / name, listener + REST))
        await eventually(lambda: all(neighbours(hub) == 2 for hub in hubs.values()))
        heard = []
        for hub in hubs.values():
            peer = await running.enter_async_context(wireloom.connect(url_of(hub), handler=not_asked))
            heard.append(await running.enter_async_context(peer.subscribe("alarm/#")))
            await peer.provide("alarm/fire")
        sensor = wireloom.connect(url_of(hubs["a"], "mesh"), settings=keys("sensor"))
        await running.enter_async_context(sensor)
        for number in range(10):
            await sensor.publish("alarm/fire", number)
        for events in heard:
            assert [(await anext(events)).value() for _ in range(10)] == list(range(10))
        await asyncio.sleep(0.2)
        assert [hub.metrics.delivered.value("hsp") for hub in hubs.values()] == [10, 10, 10]
    for name in hubs:
        packets = [e.message for e in journaled(tmp_path / name) if e.message.topic == "alarm/fire"]
        assert [m.attributes["node_id"] for m in packets] == [keys.node_id("sensor")] * 10


async def not_asked(request: Message) -> None:
    raise AssertionError("an event is no request")


async def test_only_topics_named_in_publish_go_into_the_mesh_signed_with_the_listeners_key(tmp_path: Path) -> None:
    keys = Keys(tmp_path, "hub", "node")
    async with hub_on(tmp_path, mesh_listener(**keys("hub"), publish=["alarm/#"]) + REST) as hub:
        node = wireloom.connect(url_of(hub, "mesh"), settings=keys("node"))
        async with node, wireloom.connect(url_of(hub)) as other, node.subscribe("#") as events:
            await other.publish("private/salary", 1)
            await other.publish("alarm/fire", 2)
            event = await anext(events)
    assert (event.topic, event.value()) == ("alarm/fire", 2)
    assert event.authenticity is Authenticity.VERIFIED
    assert event.attributes["node_id"] == keys.node_id("hub")
    assert {"hmac", "signature", "auth_key_id"} <= event.attributes.keys()


async def test_only_topics_named_in_relay_go_from_node_to_node(tmp_path: Path) -> None:
    async with hub_on(tmp_path, mesh_listener(require="any", relay=["alarm/#"]) + REST) as hub:
        url = url_of(hub, "mesh")
        async with wireloom.connect(url) as one, wireloom.connect(url) as two, wireloom.connect(url_of(hub)) as other:
            async with two.subscribe("#") as for_mesh, other.subscribe("#") as for_hsp:
                await one.publish("private/salary", 1)
                await one.publish("alarm/fire", 2)
                assert [(await anext(for_hsp)).value() for _ in range(2)] == [1, 2]
                assert (await anext(for_mesh)).value() == 2


async def test_nodes_that_cannot_say_what_they_want_get_what_is_named_in_unasked(tmp_path: Path) -> None:
    async with hub_on(tmp_path, mesh_listener(require="any", unasked=["alarm/#"]) + REST) as hub:
        author = Author(MeshSettings(), mesh.Identity(b"n" * 16))
        host, _, port = url_of(hub, "mesh").removeprefix("mesh://").rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            plain.settimeout(10)
            plain.sendto(author.hello(b"\x01\x02", time.time())[0], (host, int(port)))
            await eventually(lambda: neighbours(hub) == 1)
            async with wireloom.connect(url_of(hub)) as other:
                await other.publish("private/salary", 1)
                await other.publish("alarm/fire", 2)
            receive = asyncio.get_running_loop().run_in_executor
            packets = [frames.decode(await receive(None, plain.recv, 2000)) for _ in range(2)]
    assert [packet.event_type for packet in packets] == [frames.EventType.HELLO, frames.EventType.EVENT]
    assert packets[1].get(Type.STRING) == b"alarm/fire"


async def test_what_left_by_one_listener_and_comes_back_by_another_is_known(tmp_path: Path) -> None:
    listeners = mesh_listener(require="any") + mesh_listener("mesh://localhost:0", require="any")
    async with hub_on(tmp_path, listeners + REST) as hub:
        urls = [url for url in hub.urls.values() if url.startswith("mesh://")]
        assert len(urls) == 2
        async with (
            mesh.Node("mesh://127.0.0.1:0", require="any", seeds=urls, relay=["#"]) as relay,
            wireloom.connect(url_of(hub)) as other,
            other.subscribe("#") as events,
        ):
            await eventually(lambda: neighbours(hub) == 2 and len(relay.peers) == 2)
            await other.publish("a", 1)
            await eventually(lambda: relay.counters.get("mesh.relayed", 0) >= 1)
            await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.own") >= 1)
            await relay.publish("b", 2)
            # The relay sends it by both links: the second copy is a replay, whichever listener it comes to.
            await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.replay") >= 1)
            await other.publish("c", 3)
            assert [(await anext(events)).value() for _ in range(3)] == [1, 2, 3]


async def test_what_is_forgotten_too_early_and_what_is_dropped_shows_in_the_metrics(tmp_path: Path) -> None:
    async with hub_on(tmp_path, mesh_listener(require="any", replay_cap_per_node=2) + REST) as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node:
            for number in range(5):
                await node.publish("a", number)
            await eventually(lambda: hub.metrics.received.value("mesh") >= 6)
        _, page = await get(f"{hub.urls['http']}/metrics")
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("wireloom_listener_total"))
    assert lines['wireloom_listener_total{protocol="mesh",what="mesh.replay.evicted"}'] == "4"
    assert lines['wireloom_listener_total{protocol="mesh",what="udp.dropped"}'] == "0"
    assert 'wireloom_listener_total{protocol="mesh",what="udp.kernel_drops"}' in lines


async def test_the_hubs_key_is_rotated_while_it_runs(tmp_path: Path) -> None:
    keys = Keys(tmp_path, "hub", "node")
    async with hub_on(tmp_path, mesh_listener(**keys("hub")) + REST) as hub:
        node = wireloom.connect(url_of(hub, "mesh"), settings=keys("node"))
        async with node, wireloom.connect(url_of(hub)) as other, node.subscribe("a") as events:
            await other.publish("a", 0)
            old = (await anext(events)).attributes["auth_key_id"]
            new = keys.identities["hub"].rotate()
            trust = mesh.load_trust(tmp_path / "trust.json")
            trust.add(new.trusted_key())
            trust.save(tmp_path / "trust.json")
            new.save(tmp_path / "hub.json")

            async def publish() -> None:
                # What is signed with the new key before the node has read the trust file again does not arrive.
                while True:
                    await other.publish("a", 1)
                    await asyncio.sleep(0.1)

            publishing = asyncio.create_task(publish())
            try:
                async with asyncio.timeout(30):
                    async for event in events:
                        assert event.authenticity is Authenticity.VERIFIED
                        if event.attributes["auth_key_id"] != old:
                            break
            finally:
                publishing.cancel()
    assert event.attributes["auth_key_id"] == new.auth_key_id.hex()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"seeds": ["mesh+quic://127.0.0.1:1"]},
            "hub.toml:4: listener: URL 'mesh+quic://127.0.0.1:1': this listener speaks mesh",
        ),
        ({"seeds": ["nowhere:port"]}, "hub.toml:4: listener: "),
        ({"publish": ["a/#/b"]}, "hub.toml:4: listener: setting 'publish': pattern 'a/#/b'"),
        ({"unasked": [""]}, "hub.toml:4: listener: setting 'unasked': "),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said_with_its_line(
    tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, mesh_listener(require="any", **settings) + REST)
    assert str(caught.value).startswith(said)
