"""Mesh peers of the hub: admitted by what they say, journaled as datagrams, bridged and passed on unchanged."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wireloom
from tests.certificates import Authority
from tests.hub.running import eventually, hub_on, journaled, records, url_of
from wireloom import mesh
from wireloom.hub import Hub, session_restore
from wireloom.hub.config import default_config
from wireloom.model import Authenticity, ConfigError, Direction, Kind, Message
from wireloom.protocols.mesh import MESH, frames
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.frames import Type
from wireloom.protocols.mesh.settings import MeshSettings

OPEN = """
[[listener]]
url = "mesh://127.0.0.1:0"
profile = true
settings = { require = "any" }
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""


def closed(folder: Path, *trusted: mesh.Identity) -> str:
    """A hub that accepts what its trust file verifies."""
    mesh.TrustStore(identity.trusted_key() for identity in trusted).save(folder / "trust.json")
    return OPEN.replace('require = "any"', f'trust = "{folder}/trust.json"')


def speak(hub: Hub, *packets: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.settimeout(5)
    host, _, port = url_of(hub, "mesh").removeprefix("mesh://").rpartition(":")
    for packet in packets:
        sock.sendto(packet, (host, int(port)))
    return sock


async def test_mesh_and_hsp_talk_to_each_other(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node, wireloom.connect(url_of(hub)) as other:
            async with node.subscribe("to/mesh/#") as for_mesh, other.subscribe("to/hsp/#") as for_hsp:
                await node.publish("to/hsp/1", {"c": 21.5})
                await other.publish("to/mesh/1", {"d": 1}, ack=True)
                event = await anext(for_hsp)
                assert (event.topic, event.value()) == ("to/hsp/1", {"c": 21.5})
                event = await anext(for_mesh)
                assert (event.topic, event.value()) == ("to/mesh/1", {"d": 1})
    entries = [e for e in journaled(tmp_path) if e.message.protocol == "mesh"]
    assert {e.message.direction for e in entries} == {Direction.DGRAM}
    assert [e.message.topic for e in entries if e.message.kind is Kind.EVENT] == ["to/hsp/1"]
    assert [block.details["protocol"] for block in records(tmp_path, "opened")].count("mesh") == 1


async def test_mesh_nodes_get_each_others_packets_unchanged(tmp_path: Path) -> None:
    sender = mesh.Identity.generate(hmac=True, signature=False)
    receiver = mesh.Identity.generate(hmac=True, signature=False)
    receiver.save(tmp_path / "receiver.json")
    sender.save(tmp_path / "sender.json")
    config = closed(tmp_path, sender, receiver)
    hub_key = mesh.Identity.generate(hmac=True, signature=False)
    hub_key.save(tmp_path / "hub.json")
    trust = mesh.TrustStore([sender.trusted_key(), receiver.trusted_key(), hub_key.trusted_key()])
    trust.save(tmp_path / "all.json")
    config = config.replace("settings = { ", f'settings = {{ key = "{tmp_path}/hub.json", ')
    shared: dict[str, object] = {"trust": str(tmp_path / "all.json")}
    async with hub_on(tmp_path, config) as hub:
        url = url_of(hub, "mesh")
        async with (
            wireloom.connect(url, settings={**shared, "key": str(tmp_path / "sender.json")}) as one,
            wireloom.connect(url, settings={**shared, "key": str(tmp_path / "receiver.json")}) as two,
        ):
            async with two.subscribe("a/#") as events:
                await one.publish("a/b", "hello")
                event = await anext(events)
    assert (event.attributes["node_id"], event.authenticity) == (sender.node_id.hex(), Authenticity.VERIFIED)


async def test_strangers_without_a_trusted_key_are_refused_recorded_and_have_no_connection(tmp_path: Path) -> None:
    known = mesh.Identity.generate()
    async with hub_on(tmp_path, closed(tmp_path, known)) as hub:
        unsigned = Author(MeshSettings(), mesh.Identity(b"n" * 16)).hello(b"", time.time())[0]
        forged = bytearray(Author(MeshSettings(), known).hello(b"", time.time())[0])
        forged[-1] ^= 1
        speak(hub, unsigned, bytes(forged), b"garbage").close()
        await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.header.short") == 1)
        assert hub.metrics.refused.value("mesh", "mesh.policy.unsigned") == 1
        assert hub.metrics.refused.value("mesh", "mesh.forged") == 1
        assert not hub.connections
        speak(hub, Author(MeshSettings(), known).hello(b"", time.time())[0]).close()
        await eventually(lambda: len(hub.connections) == 1)
    clauses = {block.details["clause"] for block in records(tmp_path, "refused")}
    assert clauses == {"mesh.policy.unsigned", "mesh.forged", "mesh.header.short"}
    assert not [block for block in records(tmp_path, "opened") if block.details["protocol"] != "mesh"]


async def test_a_replay_from_another_address_is_refused(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        packet = Author(MeshSettings(), mesh.Identity(b"n" * 16)).write(Message(Kind.EVENT, "a"), time.time())[0]
        speak(hub, packet).close()
        await eventually(lambda: hub.metrics.received.value("mesh") == 1)
        speak(hub, packet).close()
        await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.replay") == 1)
        assert hub.metrics.received.value("mesh") == 1


async def test_many_packets_of_one_read_are_one_run_in_the_journal(tmp_path: Path) -> None:
    author = Author(MeshSettings(), mesh.Identity(b"n" * 16))
    packets = [author.write(Message(Kind.EVENT, f"a/{n % 5}", b"%d" % n), time.time())[0] for n in range(300)]
    async with hub_on(tmp_path, OPEN) as hub:
        async with wireloom.connect(url_of(hub)) as other, other.subscribe("a/3") as events:
            speak(hub, *packets).close()
            found = [await anext(events) for _ in range(60)]
            await eventually(lambda: hub.metrics.received.value("mesh") == 300)
        assert [event.body for event in found] == [b"%d" % n for n in range(300) if n % 5 == 3]
    entries = [e.message for e in journaled(tmp_path) if e.message.protocol == "mesh"]
    assert [m.body for m in entries] == [b"%d" % n for n in range(300)]
    assert {m.attributes["node_id"] for m in entries} == {(b"n" * 16).hex()}


async def test_the_number_of_refusals_on_disk_is_bounded(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        speak(hub, *[b"garbage"] * 400).close()
        await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.header.short") == 400)
    assert len(records(tmp_path, "refused")) < 300


async def test_an_event_too_large_for_a_packet_is_undeliverable(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node, wireloom.connect(url_of(hub)) as other:
            async with node.subscribe("big"), other.subscribe("$hub/undeliverable") as notices:
                await other.publish("big", bytes(600))
                notice = (await anext(notices)).value()
                assert isinstance(notice, dict)
                assert (notice["topic"], "531" in str(notice["why"])) == ("big", True)


async def test_a_node_that_falls_silent_is_forgotten_with_its_subscriptions(tmp_path: Path) -> None:
    config = OPEN.replace('require = "any"', 'require = "any", lost_after = 0.3, heartbeat_interval = 0.1')
    async with hub_on(tmp_path, config) as hub:
        capabilities = b'{"wireloom":1,"subscribe":["x"]}'
        hello = Author(MeshSettings(), mesh.Identity(b"n" * 16)).hello(capabilities, time.time())[0]
        with speak(hub, hello) as sock:
            loop = asyncio.get_running_loop()
            answer = frames.decode(await loop.run_in_executor(None, sock.recv, 2000))
            assert (
                answer.get(Type.BINARY)
                == b'{"wireloom":1,"subscribe":["#"],"re":"%08x"}' % frames.decode(hello).message_id
            )
            await eventually(lambda: len(hub.router.subscriptions) == 1)
            await eventually(lambda: not hub.connections)
            assert len(hub.router.subscriptions) == 0
    assert [block.details["reason"] for block in records(tmp_path, "closed")] == ["idle"]


async def test_a_mesh_node_and_the_hub_are_neighbours(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        async with mesh.Node("mesh://127.0.0.1:0", require="any", seeds=[url_of(hub, "mesh")]) as node:
            async with node.changes() as changes, node.subscribe("to/node") as events:
                assert (await anext(changes)).what is mesh.Change.JOINED
                async with wireloom.connect(url_of(hub)) as other, other.subscribe("to/hsp") as for_hsp:
                    await eventually(lambda: len(hub.router.subscriptions) == 2)
                    await node.publish("to/hsp", 1)
                    assert (await anext(for_hsp)).value() == 1
                    await other.publish("to/node", 2)
                    assert (await anext(events)).value() == 2


async def test_trusted_without_a_trust_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trust file"):
        async with hub_on(tmp_path, '[[listener]]\nurl = "mesh://127.0.0.1:0"\n[http]\nurl = "off"\n'):
            pass


def test_a_hub_without_configuration_listens_for_mesh_on_loopback_and_accepts_any(tmp_path: Path) -> None:
    listeners = [each for each in default_config(tmp_path).listeners if each.protocol is MESH]
    assert [(each.url, each.settings.policy) for each in listeners] == [  # type: ignore[attr-defined]
        ("mesh://127.0.0.1:5041", mesh.Require.ANY)
    ]


async def test_urgent_events_go_ahead_of_others_in_the_hubs_queue(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN) as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node, node.subscribe("#") as events:
            connection = next(iter(hub.connections.values()))
            connection.writing_paused()
            for topic, urgent in (("slow/1", "0"), ("fast/1", "1"), ("slow/2", "0"), ("fast/2", "1")):
                connection.deliver(Message(Kind.EVENT, topic, attributes={"urgent": urgent}))
            author = Author(MeshSettings(), mesh.Identity(b"n" * 16))
            passed = [author.write(Message(Kind.EVENT, t, attributes={"urgent": u}), time.time())[0]
                      for t, u in (("slow/3", "0"), ("fast/3", "1"))]  # fmt: skip
            connection.deliver_frames(b"".join(passed), 2)
            connection.writing_resumed()
            topics = [(await anext(events)).topic for _ in range(6)]
    assert topics == ["fast/1", "fast/2", "fast/3", "slow/1", "slow/2", "slow/3"]


async def test_urgent_events_are_bounded_like_others_and_dropped_after_them(tmp_path: Path) -> None:
    async with hub_on(tmp_path, OPEN + "[limits]\nqueue_bytes = 2000\n") as hub:
        async with wireloom.connect(url_of(hub, "mesh")) as node, node.subscribe("#") as events:
            connection = next(iter(hub.connections.values()))
            connection.writing_paused()
            for number in range(100):
                for urgent in ("0", "1"):
                    connection.deliver(Message(Kind.EVENT, f"{number}/{urgent}", attributes={"urgent": urgent}))
                assert connection.queued_bytes <= 2000 + 200, "with the last that is not urgent"
            lost = connection.lost
            connection.writing_resumed()
            topics = [(await anext(events)).topic or "" for _ in range(200 - lost)]
    assert topics == [f"{number}/1" for number in range(lost - 100, 100)]


async def test_the_hub_listens_over_quic(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub")
    listener = (
        '[[listener]]\nurl = "mesh+quic://127.0.0.1:0"\nprofile = true\nsettings = { require = "any" }\n'
        f'tls = {{ certificate = "{certificate}", key = "{key}" }}\n'
    )
    async with hub_on(tmp_path, listener + OPEN) as hub:
        async with wireloom.connect(url_of(hub, "mesh+quic"), tls=wireloom.TLS(ca=authority.path)) as secret:
            async with wireloom.connect(url_of(hub)) as other, other.subscribe("a") as events:
                await secret.publish("a", 1)
                assert (await anext(events)).value() == 1
    opened = [block.details for block in records(tmp_path, "opened") if block.details["protocol"] == "mesh"]
    assert [details["tls"] for details in opened] == ["TLSv1.3"]


@pytest.mark.parametrize("name", ["", "$hub/subscribe", "$hub/undeliverable", "a//b", "x" * 400, "#", "a/+", "\n"])
async def test_any_event_name_is_journaled_or_refused_and_harms_nobody(tmp_path: Path, name: str) -> None:
    is_topic = name not in ("#", "a/+", "\n")
    author = Author(MeshSettings(), mesh.Identity(b"n" * 16))
    async with hub_on(tmp_path, OPEN) as hub:
        async with wireloom.connect(url_of(hub)) as other, other.subscribe("after") as events:
            for count in (1, 20):
                speak(hub, *(author.write(Message(Kind.EVENT, name), time.time())[0] for _ in range(count))).close()
            speak(hub, author.write(Message(Kind.EVENT, "after", b"1"), time.time())[0]).close()
            assert (await anext(events)).body == b"1"
            await eventually(lambda: hub.metrics.received.value("mesh") == (22 if is_topic else 1))
        assert len(hub.router.subscriptions) <= 1
        assert hub.metrics.refused.value("mesh", "hub.topic") == (0 if is_topic else 21)
    found = [e.message.topic for e in journaled(tmp_path) if e.message.protocol == "mesh"]
    assert found.count(name) == (21 if is_topic else 0)


async def test_access_is_judged_by_the_author_of_each_packet(tmp_path: Path) -> None:
    """Two authors behind one address, many packets in one read: each has the rights of its own key."""
    meter, door = mesh.Identity.generate(hmac=True), mesh.Identity.generate(hmac=True)
    rules = f"""
    [[access.rule]]
    who = ["mesh:{meter.node_id.hex()}"]
    publish = ["sensors/#"]
    subscribe = ["sensors/#"]
    [[access.rule]]
    who = ["mesh:{door.node_id.hex()}"]
    publish = ["doors/#"]
    """
    topics = ["sensors/a", "doors/a"] * 10
    async with hub_on(tmp_path, closed(tmp_path, meter, door) + rules) as hub:
        now = time.time()
        packets = [
            Author(MeshSettings(), who).write(Message(Kind.EVENT, topic, b"1"), now)[0]
            for topic in topics
            for who in (meter, door)
        ]
        speak(hub, *packets).close()
        await eventually(lambda: hub.metrics.received.value("mesh") + hub.metrics.denied.value("mesh", "publish") == 40)
        assert hub.metrics.denied.value("mesh", "publish") == 20
        await eventually(lambda: hub.commit.healthy and hub.journal.pending_bytes == 0)
    kept = [each.message for each in journaled(tmp_path) if each.message.kind is Kind.EVENT]
    assert {(each.topic, each.attributes["node_id"]) for each in kept} == {
        ("sensors/a", meter.node_id.hex()),
        ("doors/a", door.node_id.hex()),
    }
    assert len(kept) == 20


async def test_packets_stay_as_they_are_where_others_of_the_read_are_refused_or_copied(tmp_path: Path) -> None:
    meter, reader, hub_key = (mesh.Identity.generate(hmac=True) for _ in range(3))
    text = closed(tmp_path, meter, reader)
    for name, identity in (("reader", reader), ("hub", hub_key)):
        identity.save(tmp_path / f"{name}.json")
    mesh.TrustStore([hub_key.trusted_key(), meter.trusted_key()]).save(tmp_path / "mine.json")
    settings = {"key": str(tmp_path / "reader.json"), "trust": str(tmp_path / "mine.json")}
    text = text.replace("settings = { ", f'settings = {{ key = "{tmp_path}/hub.json", ')
    text += f"""
    [[access.rule]]
    who = ["mesh:{meter.node_id.hex()}"]
    publish = ["sensors/#"]
    [[access.rule]]
    who = ["mesh:{reader.node_id.hex()}"]
    subscribe = ["#"]
    [[route]]
    topic = "sensors/b"
    to = "copies/b"
    """
    topics = ["sensors/a", "doors/a", "sensors/b"] * 10
    author = Author(MeshSettings(), meter)
    async with hub_on(tmp_path, text) as hub, wireloom.connect(url_of(hub, "mesh"), settings=settings) as node:
        async with node.subscribe("#") as events, asyncio.timeout(20):
            packets = [author.write(Message(Kind.EVENT, topic, b"1"), time.time())[0] for topic in topics]
            speak(hub, *packets).close()
            found = [await anext(events) for _ in range(30)]
        assert hub.metrics.denied.value("mesh", "publish") == 10
    came = Counter((event.topic, event.attributes["node_id"]) for event in found)
    assert came == {
        ("sensors/a", meter.node_id.hex()): 10,
        ("sensors/b", meter.node_id.hex()): 10,
        ("copies/b", hub_key.node_id.hex()): 10,
    }
    assert {event.authenticity for event in found} == {Authenticity.VERIFIED}


async def test_a_mesh_subscription_that_no_rule_allows_is_counted(tmp_path: Path) -> None:
    meter = mesh.Identity.generate(hmac=True)
    meter.save(tmp_path / "meter.json")
    rules = f'[[access.rule]]\nwho = ["mesh:{meter.node_id.hex()}"]\nsubscribe = ["sensors/#"]\n'
    hub_key = mesh.Identity.generate(hmac=True)
    hub_key.save(tmp_path / "hub.json")
    text = closed(tmp_path, meter).replace("settings = { ", f'settings = {{ key = "{tmp_path}/hub.json", ') + rules
    mesh.TrustStore([hub_key.trusted_key()]).save(tmp_path / "mine.json")
    settings = {"key": str(tmp_path / "meter.json"), "trust": str(tmp_path / "mine.json")}
    async with hub_on(tmp_path, text) as hub:
        async with wireloom.connect(url_of(hub, "mesh"), settings=settings) as node:
            async with node.subscribe("sensors/+"), node.subscribe("doors/#"):
                await eventually(lambda: hub.metrics.denied.value("mesh", "subscribe") == 1)
                assert len(hub.router.subscriptions) == 1


@pytest.mark.parametrize("kind", ["hmac", "signature", "unsigned"])
async def test_a_packet_cannot_be_replayed_after_a_restart(tmp_path: Path, kind: str) -> None:
    identity = mesh.Identity.generate(hmac=kind == "hmac", signature=kind == "signature")
    config = closed(tmp_path, identity) if kind != "unsigned" else OPEN
    author = Author(MeshSettings(), identity if kind != "unsigned" else mesh.Identity(b"n" * 16))
    packets = [author.write(Message(Kind.EVENT, f"t/{number}", b"x"), time.time())[0] for number in range(20)]
    async with hub_on(tmp_path, config) as hub:
        speak(hub, *packets).close()
        await eventually(lambda: hub.metrics.received.value("mesh") == 20)
    async with hub_on(tmp_path, config) as hub:
        await hub._recalling
        new = author.write(Message(Kind.EVENT, "t/new", b"x"), time.time())[0]
        speak(hub, new, *packets).close()
        await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.replay") == 20)
        assert hub.metrics.received.value("mesh") == 1


async def test_until_the_journal_is_read_packets_from_before_the_start_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    read = session_restore._runs

    def waits(*what: Any) -> Iterator[session_restore.Run]:
        go_on.wait(30)
        yield from read(*what)

    identity = mesh.Identity.generate(hmac=True, signature=False)
    author = Author(MeshSettings(), identity)
    old = author.write(Message(Kind.EVENT, "t/old", b"x"), time.time() - 5)[0]
    monkeypatch.setattr(session_restore, "_runs", waits)
    monkeypatch.setattr("wireloom.hub.hub._SHORTLY", 0.01)
    async with hub_on(tmp_path, closed(tmp_path, identity)) as hub:
        try:
            speak(hub, old).close()
            await eventually(lambda: hub.metrics.refused.value("mesh", "mesh.unknown-past") == 1)
            await asyncio.sleep(1.1)  # what is dated behind the start is new for sure
            speak(hub, author.write(Message(Kind.EVENT, "t/new", b"x"), time.time())[0]).close()
            await eventually(lambda: hub.metrics.received.value("mesh") == 1)
        finally:
            go_on.set()
        await hub._recalling
        speak(hub, old).close()
        await eventually(lambda: hub.metrics.received.value("mesh") == 2)
