"""A node among others, on simulated networks and simulated time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.mesh.network import EPOCH, Faults, Network, address, build, events_sent, identities, topology
from wireloom.model import Authenticity, ConfigError, Kind, LimitExceeded, Message
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.encryption import Cipher
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.node import Change, MeshNode, Relay
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.mesh.trust import TrustStore

A, B, C, D = (address(number) for number in range(4))


def chain(network: Network, length: int, **more: object) -> tuple[list[Identity], TrustStore]:
    """Nodes in a row that greet only the one before; nobody is introduced to others."""
    made = build(network, [[n - 1] if n else [] for n in range(length)], **more)  # type: ignore[arg-type]
    for node in network.nodes.values():
        node.max_neighbours = 2
    return made


def topics(network: Network, name: str) -> list[str | None]:
    return [message.topic for message in network.heard[name]]


# Neighbours


def test_a_node_finds_its_seed_and_is_found_by_it() -> None:
    network = Network()
    build(network, [[], [0]])
    network.run(1)
    assert [(name, what, link) for _, name, what, link in network.changes] == [(A, "joined", B), (B, "joined", A)]


def test_hello_is_said_until_it_is_answered_and_ever_more_rarely() -> None:
    network = Network()
    build(network, [[1]])
    network.run(100)
    times = [data for _, target, data in network.sent if target == B]
    assert {frames.decode(data).event_type for data in times} == {EventType.HELLO}
    assert 5 <= len(times) <= 12
    assert len({frames.decode(data).message_id for data in times}) == len(times)


def test_a_seed_that_comes_late_is_found() -> None:
    network = Network()
    made, trust = build(network, [[1]])
    network.run(200)
    both, trust_both = identities(2)
    network.nodes[A].gate.trust = trust_both
    network.add(B, MeshNode(MeshSettings(require=Require.TRUSTED), identity=both[1], trust=trust_both))
    network.run(40)
    assert {node.node_id for node in network.nodes.values()} == {made[0].node_id, both[1].node_id}
    assert len(network.nodes[A].neighbours) == len(network.nodes[B].neighbours) == 1
    assert len(trust) == 1


def test_nodes_are_introduced_to_each_other() -> None:
    network = Network()
    build(network, [[], [0], [0], [0]])
    network.run(40)
    assert {len(node.neighbours) for node in network.nodes.values()} == {3}
    assert not any(seed.introduced for node in network.nodes.values() for seed in node._seeds.values())


def test_heartbeats_keep_neighbours_and_silence_loses_them() -> None:
    network = Network()
    build(network, [[], [0]])
    network.run(200)
    assert len(network.changes) == 2
    gone = network.now
    network.remove(B)
    network.run(60)
    when, name, what, link = network.changes[-1]
    assert (name, what, link) == (A, Change.LOST, B)
    assert 25 <= when - gone <= 36


def test_a_node_that_comes_back_is_noticed() -> None:
    network = Network()
    build(network, [[], [0]])
    network.run(5)
    node = network.remove(B)
    network.run(60)
    network.add(B, node)
    network.run(40)
    seen = [(name, what) for _, name, what, _ in network.changes if name == A]
    assert seen == [(A, "joined"), (A, "lost"), (A, "joined")]


def test_the_number_of_neighbours_is_limited() -> None:
    network = Network()
    build(network, [[], *[[0]] * 16])
    network.run(60)
    assert all(len(node.neighbours) <= 12 for node in network.nodes.values())
    assert network.nodes[A].counters["mesh.neighbours.full"] > 0
    # Who found no place at the seed was sent on to others, and nobody is alone.
    assert all(len(node.neighbours) >= 2 for node in network.nodes.values())
    network.publish(address(16), Message(Kind.EVENT, "hello"))
    network.run(5)
    assert all(topics(network, name) == ["hello"] for name in list(network.nodes)[:16])


def test_hello_and_heartbeat_are_never_passed_on() -> None:
    network = Network()
    chain(network, 3)
    network.run(60)
    for source, target, data in network.sent:
        packet = frames.decode(data)
        if packet.event_type != EventType.EVENT:
            assert packet.get(Type.NODE_ID) == network.nodes[source].node_id, target


# Events


def test_an_event_goes_through_a_chain_of_relays_unchanged() -> None:
    network = Network()
    chain(network, 5)
    network.run(5)
    sent = network.publish(A, Message(Kind.EVENT, "a/b", b"1", content_type="application/json"))
    network.run(1)
    for name in list(network.nodes)[1:]:
        assert [(m.id, m.body, m.authenticity) for m in network.heard[name]] == [(sent.id, b"1", Authenticity.VERIFIED)]
    assert len({data for _, _, data in events_sent(network)}) == 1


def test_only_what_the_rules_name_is_passed_on() -> None:
    network = Network()
    chain(network, 3, relays=(Relay("public/#"),))
    for name in list(network.nodes):
        network.subscribe(name, "#")
    network.run(5)
    network.publish(A, Message(Kind.EVENT, "public/x"))
    network.publish(A, Message(Kind.EVENT, "private/x"))
    network.run(1)
    assert sorted(map(str, topics(network, B))) == ["private/x", "public/x"]
    assert topics(network, C) == ["public/x"]


def test_a_rule_may_name_who_gets_it() -> None:
    network = Network()
    made, _ = build(network, [[], [0], [0], [0]])
    for node in network.nodes.values():
        node.relays = ()
        node.settings = replace(node.settings, profile=False)
    network.nodes[A].relays = (Relay("#", (made[2].node_id.hex(),)),)
    network.run(5)
    network.publish(B, Message(Kind.EVENT, "x"))
    network.run(1)
    assert (topics(network, C), topics(network, D)) == (["x"], [])


def test_neighbours_get_only_what_they_asked_for() -> None:
    network = Network()
    build(network, [[], [0]], relays=())
    network.run(2)
    network.publish(A, Message(Kind.EVENT, "a/1"))
    network.subscribe(B, "a/#")
    network.run(1)
    network.publish(A, Message(Kind.EVENT, "a/2"))
    network.publish(A, Message(Kind.EVENT, "b/1"))
    network.run(1)
    assert topics(network, B) == ["a/2"]
    network.nodes[B].unsubscribe("a/#", network.now)
    network._collect(B)
    network.run(1)
    network.publish(A, Message(Kind.EVENT, "a/3"))
    network.run(1)
    assert topics(network, B) == ["a/2"]
    assert network.nodes[A].counters["mesh.publish.nobody"] == 3


@pytest.mark.parametrize("loss", [0.2, 0.4])
def test_a_wish_that_is_lost_is_said_again(loss: float) -> None:
    network = Network(Faults(loss=loss), seed=3)
    build(network, [[], [0]], relays=())
    network.subscribe(B, "early")
    network.run(30)
    network.subscribe(B, "late")
    network.run(30)
    profile = next(iter(network.nodes[A].neighbours.values())).profile
    assert profile is not None
    assert profile.subscribe == ("early", "late")


def test_more_wishes_than_fit_a_packet_become_the_wish_for_everything() -> None:
    network = Network()
    build(network, [[], [0]], relays=())
    for number in range(60):
        network.subscribe(B, f"some/long/topic/{number}")
    network.run(5)
    profile = next(iter(network.nodes[A].neighbours.values())).profile
    assert profile is not None
    assert profile.subscribe == ("#",)


def test_urgent_packets_leave_first() -> None:
    network = Network()
    build(network, [[], [0]])
    network.run(2)
    node = network.nodes[A]
    for topic, urgent in (("slow", "0"), ("fast", "1")):
        node.publish(Message(Kind.EVENT, topic, attributes={"urgent": urgent}), network.now)
    assert [frames.decode(data).get(Type.STRING) for _, data in node.outgoing()] == [b"fast", b"slow"]


def test_unknown_event_types_are_passed_on_and_not_delivered() -> None:
    network = Network()
    made, _ = chain(network, 3)
    network.run(5)
    packet = sign_packet(Packet(99, 77, int(EPOCH + network.now), (Field(Type.BINARY, b"?"),)), made[0])
    network.inject(A, B, frames.encode(packet))
    network.run(1)
    assert (network.heard[B], network.heard[C]) == ([], [])
    assert [(source, target) for source, target, data in network.sent if data[6] == 77] == [(B, C)]


def test_a_packet_without_node_id_is_delivered_by_policy_any_and_never_passed_on() -> None:
    network = Network()
    chain(network, 3, require="any")
    network.run(5)
    network.inject(A, B, frames.encode(Packet(5, 3, int(EPOCH + network.now), (Field(Type.STRING, b"x"),))))
    network.run(1)
    assert (topics(network, B), topics(network, C)) == (["x"], [])
    assert not events_sent(network)


def test_an_encrypted_event_passes_relays_that_cannot_read_it() -> None:
    network = Network()
    made, trust = chain(network, 3)
    network.run(5)
    cipher = Cipher(bytes(32), b"k" * 16)
    network.nodes[A].author.cipher = cipher
    network.nodes[C].gate.trust = TrustStore(trust, {b"k" * 16: bytes(32)})
    network.publish(A, Message(Kind.EVENT, "a", b"secret"))
    network.run(1)
    assert (network.heard[B], [m.body for m in network.heard[C]]) == ([], [b"secret"])
    assert len(made) == 3


def test_a_body_that_does_not_fit_is_refused_at_the_source() -> None:
    network = Network()
    build(network, [[]])
    with pytest.raises(LimitExceeded):
        network.publish(A, Message(Kind.EVENT, "a", bytes(600)))


def test_a_wrong_relay_rule_is_refused() -> None:
    with pytest.raises(ConfigError):
        Relay("a/#/b")


# Keys


def test_keys_are_rotated_while_the_mesh_runs() -> None:
    network = Network()
    made, trust = chain(network, 3)
    network.run(5)
    new = made[0].rotate()
    with pytest.raises(ValueError):
        network.nodes[A].rotate(made[1])
    network.nodes[A].rotate(new)
    network.publish(A, Message(Kind.EVENT, "too/early"))
    network.run(1)
    trust.add(new.trusted_key())
    network.publish(A, Message(Kind.EVENT, "after"))
    network.run(60)
    trust.remove(made[0].node_id, made[0].auth_key_id)
    network.publish(A, Message(Kind.EVENT, "later"))
    network.run(60)
    assert (topics(network, C), network.nodes[B].counters["mesh.unknown-key"] >= 1) == (["after", "later"], True)
    assert not [change for change in network.changes if change[2] is Change.LOST]


# Twenty nodes


@pytest.mark.parametrize("seed", range(2))
def test_twenty_nodes_with_loss_duplication_and_reordering(seed: int) -> None:
    """Every event reaches every node exactly once; nobody accepts what an attacker sends."""
    draw = random.Random(seed)
    network = Network(Faults(loss=0.1, duplicates=0.1, slowest=0.3), seed=seed)
    made, _ = build(network, topology(20, draw), copies=3)
    network.run(40)
    assert all(len(node.neighbours) >= 3 for node in network.nodes.values())
    sent: list[str | None] = []
    for number in range(20):
        sent.append(network.publish(address(number), Message(Kind.EVENT, f"from/{number}")).id)
        network.run(draw.random())
    network.run(10)
    for number, name in enumerate(network.nodes):
        expected = sorted(str(each) for index, each in enumerate(sent) if index != number)
        assert sorted(str(message.id) for message in network.heard[name]) == expected
    # No loop: a node passes a packet on at most once to each neighbour, three copies of it.
    neighbours = sum(len(node.neighbours) for node in network.nodes.values())
    assert len(events_sent(network)) <= 3 * 20 * (neighbours + 20)
    heard_before = {name: len(messages) for name, messages in network.heard.items()}
    _attack(network, made, draw)
    network.run(30)
    assert {name: len(messages) for name, messages in network.heard.items()} == heard_before


def _attack(network: Network, made: list[Identity], draw: random.Random) -> None:
    """Replays from other addresses, forgeries, impostors, packets from the past and from the future."""
    recorded = [data for _, _, data in events_sent(network)]
    now = EPOCH + network.now
    names = list(network.nodes)
    stranger = Identity.generate(random=draw.randbytes)
    for _ in range(60):
        target = draw.choice(names)
        replayed = draw.choice(recorded)
        network.inject("10.9.9.9:1", target, replayed)
        changed = bytearray(replayed)
        changed[draw.randrange(1, len(changed))] ^= 1 << draw.randrange(8)
        network.inject("10.9.9.9:1", target, bytes(changed))
        victim = draw.choice(made)
        impostor = replace(victim, hmac_secret=b"guess" * 6, ed25519_private=None)
        for identity in (stranger, impostor, replace(stranger, node_id=victim.node_id), Identity(victim.node_id)):
            for settings in (MeshSettings(), MeshSettings.parse({"show_key": "always"})):
                for moment in (now, now - 400, now + 400):
                    author = Author(settings, identity, random=draw.randbytes)
                    network.inject("10.9.9.9:1", target, author.write(Message(Kind.EVENT, "evil"), moment)[0])
        own = Author(MeshSettings(), victim, random=draw.randbytes)
        for moment in (now - 400, now + 400):
            network.inject("10.9.9.9:1", target, own.write(Message(Kind.EVENT, "old"), moment)[0])


def test_twenty_nodes_notice_who_leaves_and_who_comes_back() -> None:
    draw = random.Random(7)
    network = Network(Faults(loss=0.05, duplicates=0.05, slowest=0.2), seed=7)
    build(network, topology(20, draw), copies=3)
    network.run(40)
    leaving = [address(number) for number in (3, 8, 15)]
    friends = {
        name: {n for n in network.nodes if n not in leaving and network.nodes[n]._is_neighbour(name)}
        for name in leaving
    }
    gone = {name: network.remove(name) for name in leaving}
    network.run(60)
    for name in leaving:
        assert {who for _, who, what, link in network.changes if what is Change.LOST and link == name} >= friends[name]
    network.publish(address(0), Message(Kind.EVENT, "while/away"))
    network.run(5)
    rest = [name for name in network.nodes if name != address(0)]
    assert all(topics(network, name) == ["while/away"] for name in rest)
    for name, node in gone.items():
        network.add(name, node)
    network.run(60)
    for name in leaving:
        back = [who for _, who, what, link in network.changes if what is Change.JOINED and link == name]
        assert len(back) > len(friends[name])
    network.publish(address(3), Message(Kind.EVENT, "back/again"))
    network.run(5)
    assert all("back/again" in topics(network, name) for name in network.nodes if name != address(3))
