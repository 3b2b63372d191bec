"""The conversation: Hello, heartbeats, events, subscriptions through capabilities. Time is passed in."""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, WITH_HMAC
from wireloom.model import Authenticity, Direction, Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import Batch, Publishes, Role, SessionState, is_control
from wireloom.protocols.decoding import Rejected
from wireloom.protocols.hsp import HSP
from wireloom.protocols.mesh import MESH, MeshSettings, crypto, frames, publishes
from wireloom.protocols.mesh.author import Author, MessageIds
from wireloom.protocols.mesh.capabilities import make_capabilities, parse_capabilities
from wireloom.protocols.mesh.encryption import Cipher, open_packet
from wireloom.protocols.mesh.frames import EventType, Field, Flag, Packet, Type
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.protocol import MeshSessions
from wireloom.protocols.mesh.security import check, sign_packet
from wireloom.protocols.mesh.session import MeshSession
from wireloom.protocols.mesh.trust import TrustStore

EPOCH = 1_700_000_000.0


def session(role: Role, *, columns: bool = False, **values: object) -> MeshSession:
    made = MESH.sessions(MeshSettings.parse(values)).new(role)
    made.epoch, made.peer = EPOCH, "10.0.0.1:5041"
    if columns:
        assert made.enable_columns()
    return made


@dataclass
class Read:
    """All batches of a read together."""

    batches: Sequence[Batch]
    data: bytes = field(init=False)
    count: int = field(init=False)
    refused: list[Rejected] = field(init=False)

    def __post_init__(self) -> None:
        self.data = b"".join(bytes(batch.data) for batch in self.batches)
        self.count = sum(batch.count for batch in self.batches)
        self.refused = [each for batch in self.batches for each in batch.refused]
        for batch in self.batches:
            assert not any(map(is_control, batch.messages[:-1]))

    @property
    def messages(self) -> list[Message]:
        plain = [
            each
            for batch in self.batches
            for each in (batch.as_messages() if isinstance(batch, Publishes) else [batch])
        ]
        return [message for batch in plain for message in batch.messages]

    @property
    def publishes(self) -> Publishes:
        """The only batch in columns."""
        (found,) = (batch for batch in self.batches if isinstance(batch, Publishes))
        return found


def receive(session: MeshSession, packet: bytes, now: float) -> Read:
    return Read(session.receive(packet, now))


def exchange(one: MeshSession, two: MeshSession, now: float, rounds: int = 6) -> tuple[list[Message], list[Message]]:
    """Carry everything both ways until both are silent; returns what each of them heard."""
    heard: tuple[list[Message], list[Message]] = ([], [])
    for _ in range(rounds):
        for packet in one.outgoing_frames():
            heard[1].extend(receive(two, packet, now).messages)
        for packet in two.outgoing_frames():
            heard[0].extend(receive(one, packet, now).messages)
    assert not one.outgoing_frames()
    assert not two.outgoing_frames()
    return heard


def pair(**values: object) -> tuple[MeshSession, MeshSession]:
    client, server = session(Role.CLIENT, **values), session(Role.SERVER, **values)
    client.connected(0.0)
    server.connected(0.0)
    exchange(client, server, 0.0)
    return client, server


def subscribe(topic: str, operation: str = "subscribe") -> Message:
    body = json.dumps({"topic": topic}).encode()
    return Message(Kind.REQUEST, f"$hub/{operation}", body, content_type="application/json")


# Hello


def test_a_client_says_hello_and_is_open_when_it_is_answered() -> None:
    client, server = session(Role.CLIENT), session(Role.SERVER)
    client.connected(0.0)
    server.connected(0.0)
    assert (client.state, server.state) == (SessionState.OPENING, SessionState.OPEN)
    to_client, to_server = exchange(client, server, 0.1)
    assert client.state is SessionState.OPEN
    assert [message.kind for message in to_server] == [message.kind for message in to_client] == [Kind.OPEN]
    assert to_server[0].attributes["node_id"] == client.author.identity.node_id.hex()


def test_an_unanswered_hello_is_said_again_with_a_new_id() -> None:
    client = session(Role.CLIENT)
    client.connected(0.0)
    first = frames.decode(client.outgoing_frames()[0])
    assert client.deadline() == 1.0
    client.expire(1.0)
    second = frames.decode(client.outgoing_frames()[0])
    assert (first.event_type, second.event_type) == (EventType.HELLO, EventType.HELLO)
    assert first.message_id != second.message_id


def test_a_client_that_needs_no_handshake_is_open_at_once() -> None:
    client = session(Role.CLIENT, handshake=False)
    client.connected(0.0)
    assert client.state is SessionState.OPEN


def hello(identity: Identity, message_id: int, capabilities: bytes = b"plain", at: float = 0.0) -> bytes:
    packet = Packet(message_id, EventType.HELLO, int(EPOCH + at), (Field(Type.BINARY, capabilities),))
    return frames.encode(sign_packet(packet, identity))


def test_a_plain_hello_is_answered_once_and_not_for_ever() -> None:
    server = session(Role.SERVER)
    server.connected(0.0)
    for number in range(5):
        receive(server, hello(Identity(NODE), number), 0.1)
    assert len(server.outgoing_frames()) == 1
    receive(server, hello(Identity(NODE), 9, at=11), 11.0)
    assert len(server.outgoing_frames()) == 1


def test_an_answer_to_a_hello_is_not_answered() -> None:
    server = session(Role.SERVER)
    server.connected(0.0)
    receive(server, hello(Identity(NODE), 1, make_capabilities(answers=99)), 0.1)
    assert not server.outgoing_frames()
    assert server.counters == {"mesh.hello.unasked": 1}


# Heartbeats


def test_both_ends_send_heartbeats_and_notice_when_the_other_is_lost() -> None:
    client, server = pair()
    assert client.deadline() == server.deadline() == 10.0
    client.expire(10.0)
    beat = client.outgoing_frames()[0]
    packet = frames.decode(beat)
    assert (packet.event_type, packet.get(Type.TIMESTAMP)) == (EventType.HEARTBEAT, int(EPOCH + 10).to_bytes(8))
    assert [message.kind for message in receive(server, beat, 10.0).messages] == [Kind.PING]
    for now in (20.0, 30.0, 40.0):
        server.expire(now)
        assert server.outgoing_frames()
    assert server.deadline() == 45.0
    server.expire(45.0)
    assert (server.state, server.close_reason) == (SessionState.CLOSED, "idle")


def test_a_peer_that_never_said_hello_gets_no_heartbeats() -> None:
    server = session(Role.SERVER)
    server.connected(0.0)
    assert server.deadline() == 35.0
    server.expire(20.0)
    assert not server.outgoing_frames()


def test_a_refused_packet_is_no_sign_of_life() -> None:
    server = session(Role.SERVER)
    server.connected(0.0)
    receive(server, b"garbage", 30.0)
    assert server.deadline() == 35.0


# Events


def test_events_are_delivered_with_what_is_known_about_their_sender() -> None:
    client, server = pair()
    sent = client.send(Message(Kind.EVENT, "a/b", b"1", content_type="application/json"), 1.0)
    heard = exchange(client, server, 1.0)[1]
    assert [(m.kind, m.topic, m.body, m.id) for m in heard] == [(Kind.EVENT, "a/b", b"1", sent.id)]
    assert (heard[0].direction, heard[0].authenticity) == (Direction.DGRAM, Authenticity.NONE)
    assert client.inbound is client.outbound is Direction.DGRAM


def test_a_bad_packet_is_refused_alone() -> None:
    client, server = pair()
    client.send(Message(Kind.EVENT, "a"), 1.0)
    packet = client.outgoing_frames()[0]
    run = receive(server, b"\x02" + packet[1:], 1.0)
    assert [(each.clause, len(each.data)) for each in run.refused] == [("mesh.header.version", len(packet))]
    assert (run.data, run.count, server.state, server.violation) == (b"", 0, SessionState.OPEN, None)
    assert receive(server, packet, 1.0).count == 1
    assert [each.clause for each in receive(server, packet, 1.0).refused] == ["mesh.replay"]
    assert server.counters == {"mesh.header.version": 1, "mesh.replay": 1}


def test_a_datagram_with_two_packets_is_refused() -> None:
    client, server = pair()
    client.send(Message(Kind.EVENT, "a"), 1.0)
    client.send(Message(Kind.EVENT, "a"), 1.0)
    run = receive(server, client.outgoing(), 1.0)
    assert [each.clause for each in run.refused] == ["mesh.payload.length"]


def test_urgent_packets_go_ahead_of_others() -> None:
    client, _ = pair()
    for topic, urgent in (("slow/1", "0"), ("fast/1", "1"), ("slow/2", "0"), ("fast/2", "1")):
        client.send(Message(Kind.EVENT, topic, attributes={"urgent": urgent}), 1.0)
    topics = [frames.decode(packet).get(Type.STRING) for packet in client.outgoing_frames()]
    assert topics == [b"fast/1", b"fast/2", b"slow/1", b"slow/2"]


@pytest.mark.parametrize(
    "message", [Message(Kind.REQUEST, "a"), Message(Kind.OPEN), Message(Kind.CANCEL), Message(Kind.EVENT)]
)
def test_what_mesh_cannot_say_is_refused(message: Message) -> None:
    client, _ = pair()
    with pytest.raises(NotSupported):
        client.send(message, 1.0)


def test_an_event_that_is_too_large_names_the_limit_and_is_not_sent() -> None:
    client, _ = pair()
    with pytest.raises(LimitExceeded, match="531"):
        client.send(Message(Kind.EVENT, "a", bytes(531)), 1.0)
    assert not client.outgoing_frames()


def test_after_closing_nothing_is_sent_or_heard() -> None:
    client, server = pair()
    client.send(Message(Kind.EVENT, "a"), 1.0)
    packet = client.outgoing_frames()[0]
    server.close(1.0)
    assert receive(server, packet, 1.0).count == 0
    assert server.deadline() is None
    with pytest.raises(PeerClosed):
        server.send(Message(Kind.EVENT, "a"), 1.0)


# Subscriptions


def test_subscribing_is_a_hello_that_the_other_end_answers() -> None:
    client, server = pair()
    asked = client.send(subscribe("sensors/#"), 1.0)
    to_client, to_server = exchange(client, server, 1.0)
    assert [(m.kind, m.topic) for m in to_server] == [(Kind.OPEN, None), (Kind.REQUEST, "$hub/subscribe")]
    assert json.loads(to_server[1].body) == {"topic": "sensors/#"}
    assert [(m.kind, m.correlation_id) for m in to_client if m.kind is Kind.RESPONSE] == [(Kind.RESPONSE, asked.id)]
    assert not client._asked


def test_implied_requests_do_not_count_as_messages_of_the_wire() -> None:
    client, server = pair()
    client.send(subscribe("a/+"), 1.0)
    run = receive(server, client.outgoing_frames()[0], 1.0)
    assert (len(run.messages), run.count) == (2, 1)


def test_a_lost_subscription_is_asked_for_again_until_it_is_answered() -> None:
    client, server = pair()
    asked = client.send(subscribe("a"), 1.0)
    client.outgoing_frames()
    assert client.deadline() == 2.0
    client.expire(2.0)
    receive(server, client.outgoing_frames()[0], 2.0)
    server.outgoing_frames()
    client.expire(3.0)
    to_client, to_server = exchange(client, server, 3.0)
    assert [m.topic for m in to_server if m.kind is Kind.REQUEST] == []
    assert [m.correlation_id for m in to_client if m.kind is Kind.RESPONSE] == [asked.id]


def test_unsubscribing_takes_the_pattern_out() -> None:
    client, server = pair()
    client.send(subscribe("a"), 1.0)
    client.send(subscribe("b"), 1.0)
    exchange(client, server, 1.0)
    client.send(subscribe("a", "unsubscribe"), 2.0)
    to_server = exchange(client, server, 2.0)[1]
    assert [(m.topic, json.loads(m.body)) for m in to_server[1:]] == [("$hub/unsubscribe", {"topic": "a"})]


def test_a_hub_that_comes_back_learns_the_subscriptions_from_the_next_hello() -> None:
    client, server = pair()
    client.send(subscribe("a"), 1.0)
    exchange(client, server, 1.0)
    again = session(Role.SERVER)
    again.connected(2.0)
    client._hello(2.0)
    assert [m.topic for m in exchange(client, again, 2.0)[1]] == [None, "$hub/subscribe"]


def test_answers_to_implied_requests_go_nowhere() -> None:
    client, server = pair()
    client.send(subscribe("a"), 1.0)
    request = exchange(client, server, 1.0)[1][1]
    server.send(Message(Kind.RESPONSE, correlation_id=request.id, status="done"), 1.0)
    server.send(Message(Kind.ERROR, correlation_id=request.id, status="400"), 1.0)
    assert not server.outgoing_frames()
    assert server.counters == {"mesh.subscribe.refused": 1}


def test_a_peer_that_does_not_know_the_profile_cannot_be_asked() -> None:
    client = session(Role.CLIENT)
    client.connected(0.0)
    receive(client, hello(Identity(NODE), 1), 0.1)
    assert client.state is SessionState.OPEN
    with pytest.raises(NotSupported):
        client.send(subscribe("a"), 1.0)


def test_without_the_profile_capabilities_are_empty_and_not_read() -> None:
    client, server = pair(profile=False)
    with pytest.raises(NotSupported):
        client.send(subscribe("a"), 1.0)
    run = receive(server, hello(Identity(NODE), 5, make_capabilities(["a"]), 1), 1.0)
    assert [m.kind for m in run.messages] == [Kind.OPEN]


def test_too_many_subscriptions_for_one_packet_are_refused_and_forgotten() -> None:
    client, server = pair()
    with pytest.raises(LimitExceeded):
        client.send(subscribe("x" * 520), 1.0)
    client.send(subscribe("a"), 1.0)
    assert [m.topic for m in exchange(client, server, 1.0)[1]] == [None, "$hub/subscribe"]


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"{}",
        b"[]",
        b'{"wireloom":2}',
        b'{"wireloom":1,"subscribe":1}',
        b'{"wireloom":1,"re":"x"}',
        b'{"wireloom":1,"subscribe":[""]}',
        b"[" * 100_000,
    ],
)
def test_any_other_capabilities_mean_nothing(blob: bytes) -> None:
    assert parse_capabilities(blob) is None


# Security


def files(tmp_path: Path, identity: Identity = WITH_HMAC, trust: TrustStore = TRUST) -> dict[str, object]:
    identity.save(tmp_path / "key.json")
    trust.save(tmp_path / "trust.json")
    return {"key": str(tmp_path / "key.json"), "trust": str(tmp_path / "trust.json")}


def test_a_session_with_keys_signs_everything_and_accepts_what_is_trusted(tmp_path: Path) -> None:
    server = session(Role.SERVER, **files(tmp_path, replace(WITH_HMAC, node_id=b"n" * 16)))
    server.connected(0.0)
    author = Author(MeshSettings(), WITH_HMAC)
    run = receive(server, author.hello(b"", EPOCH)[0], 0.1)
    assert [m.authenticity for m in run.messages] == [Authenticity.VERIFIED]
    unsigned = Author(MeshSettings(), Identity(NODE)).hello(b"", EPOCH)[0]
    assert [each.clause for each in receive(server, unsigned, 0.1).refused] == ["mesh.policy.unsigned"]
    answer = frames.decode(server.outgoing_frames()[0])
    known = TrustStore([replace(WITH_HMAC, node_id=b"n" * 16).trusted_key()])
    assert check(answer, known).authenticity is Authenticity.VERIFIED


def test_sessions_of_one_listener_share_what_they_have_seen() -> None:
    listener = MeshSessions(MESH, MeshSettings())
    one, two = listener.new(Role.SERVER), listener.new(Role.SERVER)
    for each, address in ((one, "10.0.0.1:1"), (two, "10.0.0.2:1")):
        each.epoch, each.peer = EPOCH, address
        each.connected(0.0)
    packet = Author(MeshSettings(), Identity(NODE)).write(Message(Kind.EVENT, "a"), EPOCH)[0]
    assert receive(one, packet, 0.0).count == 1
    assert [each.clause for each in receive(two, packet, 0.0).refused] == ["mesh.replay"]


def test_strangers_are_admitted_by_what_they_say_and_nothing_is_remembered_of_it(tmp_path: Path) -> None:
    listener = MeshSessions(MESH, MeshSettings.parse(files(tmp_path, Identity(b"n" * 16))))
    good = Author(MeshSettings(), WITH_HMAC).hello(b"", EPOCH)[0]
    bad = Author(MeshSettings(), Identity(NODE)).hello(b"", EPOCH)[0]
    assert listener.admit(good, "10.0.0.1:1", EPOCH) is None
    assert listener.admit(good, "10.0.0.1:1", EPOCH) is None
    refusal = listener.admit(bad, "10.0.0.1:1", EPOCH)
    assert refusal is not None and refusal.clause == "mesh.policy.unsigned"
    garbage = listener.admit(b"x", "10.0.0.1:1", EPOCH)
    assert garbage is not None and garbage.clause == "mesh.header.short"
    assert listener.counters == {"mesh.replay.evicted": 0}


def test_a_new_key_file_is_used_without_a_restart(tmp_path: Path) -> None:
    values = files(tmp_path)
    author = Author(MeshSettings.parse(values))
    author.heartbeat(EPOCH)
    new = WITH_HMAC.rotate()
    new.save(str(values["key"]))
    packet = frames.decode(author.heartbeat(EPOCH + 2))
    assert check(packet, TrustStore([new.trusted_key()])).authenticity is Authenticity.VERIFIED


def test_a_key_file_with_another_node_id_makes_both_ids_our_own(tmp_path: Path) -> None:
    values = files(tmp_path)
    one, other = (MESH.sessions(MESH.settings(each)) for each in (values, {"require": "any"}))
    other.join([one])
    before = one.author.heartbeat(EPOCH)
    moved = replace(WITH_HMAC, node_id=b"another node id!")
    moved.save(str(values["key"]))
    after = one.author.heartbeat(EPOCH + 2)
    assert frames.decode(after).get(Type.NODE_ID) == b"another node id!"
    for sessions in (one, other):
        for packet in (before, after):
            refusal = sessions.admit(packet, "10.0.0.1:1", EPOCH + 2)
            assert refusal is not None and refusal.clause == "mesh.own"


def test_a_listener_that_joined_others_tells_them_its_new_node_id(tmp_path: Path) -> None:
    values = files(tmp_path)
    one, other = (MESH.sessions(MESH.settings(each)) for each in (values, {"require": "any"}))
    one.join([other])
    one.author.heartbeat(EPOCH)
    replace(WITH_HMAC, node_id=b"another node id!").save(str(values["key"]))
    after = one.author.heartbeat(EPOCH + 2)
    refusal = other.admit(after, "10.0.0.1:1", EPOCH + 2)
    assert refusal is not None and refusal.clause == "mesh.own"


# The author


def test_what_is_sent_is_compressed_first_and_then_encrypted() -> None:
    cipher = Cipher(b"k" * 32, b"the key's name!!")
    author = Author(MeshSettings(compress=True), Identity(NODE), cipher)
    packet = frames.decode(author.write(Message(Kind.EVENT, "a/b", b"x" * 2000), EPOCH)[0])
    assert packet.flags & Flag.COMPRESSED and packet.flags & Flag.ENCRYPTED
    opened = open_packet(packet, {cipher.key_identifier: cipher.key})
    assert b"".join(field.value for field in opened.data if field.type == Type.BINARY) == b"x" * 2000


def test_a_message_id_is_not_drawn_twice_within_the_window() -> None:
    ids = MessageIds()
    assert len({next(ids) for _ in range(20_000)}) == 20_000


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(min_size=36, max_size=36))
def test_message_ids_are_a_permutation_so_none_comes_twice(one: int, two: int, seed: bytes) -> None:
    ids = MessageIds(lambda size: seed[:size])
    assert (ids.permute(one) == ids.permute(two)) is (one == two)
    assert 0 <= ids.permute(one) < 2**32


def test_message_ids_come_from_the_systems_random_numbers() -> None:
    assert inspect.signature(Author).parameters["random"].default is secrets.token_bytes
    assert inspect.signature(MessageIds).parameters["random"].default is secrets.token_bytes
    one, two = MessageIds(), MessageIds()
    drawn = [next(one) for _ in range(2000)]
    assert drawn != [next(two) for _ in range(2000)]
    assert all(any(number >> bit & 1 for number in drawn) for bit in range(32))


@pytest.mark.parametrize("flags", ["248", "255"])
def test_what_we_send_has_no_reserved_bits(flags: str) -> None:
    author = Author(MeshSettings(), Identity(NODE))
    packet = author.write(Message(Kind.EVENT, "a", attributes={"flags": flags}), EPOCH)[0]
    assert not packet[5] & frames.RESERVED_FLAGS
    with pytest.raises(NotSupported):
        MESH.encode(Message(Kind.EVENT, "a", attributes={"flags": flags}), MESH.settings())


def test_an_event_created_earlier_carries_the_time_of_signing() -> None:
    author = Author(MeshSettings(), WITH_HMAC)
    packet = frames.decode(author.write(Message(Kind.EVENT, "a", attributes={"timestamp": "100"}), 900.0)[0])
    assert (packet.timestamp, packet.get(Type.TIMESTAMP)) == (100, (900).to_bytes(8))
    same = frames.decode(author.write(Message(Kind.EVENT, "a"), 900.0)[0])
    assert (same.timestamp, same.get(Type.TIMESTAMP)) == (900, None)


def test_the_public_key_is_shown_in_hello_only_unless_told_otherwise() -> None:
    identity = Identity.generate()
    for show, expected in (("hello", (True, False)), ("always", (True, True)), ("never", (False, False))):
        author = Author(MeshSettings.parse({"show_key": show}), identity)
        packets = (author.hello(b"", EPOCH)[0], author.heartbeat(EPOCH))
        assert tuple(frames.decode(each).get(Type.PUBLIC_KEY) is not None for each in packets) == expected


def test_an_event_with_the_required_fields_fits_the_minimum_interop_profile() -> None:
    author = Author(MeshSettings(), WITH_HMAC)
    packet = frames.decode(author.write(Message(Kind.EVENT, "a/b"), EPOCH)[0])
    assert [field.type for field in packet.fields] == [0x01, 0x14, 0x18, 0x10]


def test_compression_is_used_only_where_it_helps() -> None:
    author = Author(MeshSettings(compress=True), Identity(NODE))
    small = frames.decode(author.write(Message(Kind.EVENT, "a", b"x"), EPOCH)[0])
    large = frames.decode(author.write(Message(Kind.EVENT, "a", b"x" * 900), EPOCH)[0])
    assert (small.flags, large.flags) == (0, 4)


def test_events_are_encrypted_with_the_key_the_settings_name(tmp_path: Path) -> None:
    trust = TrustStore(TRUST, {b"k" * 16: bytes(32)})
    values = {**files(tmp_path, trust=trust), "encrypt": (b"k" * 16).hex(), "require": "any"}
    for cipher in ("aes-256-gcm", "chacha20-poly1305"):
        client, server = pair_with(values | {"cipher": cipher})
        client.send(Message(Kind.EVENT, "a", b"secret"), 1.0)
        packet = client.outgoing_frames()[0]
        assert b"secret" not in packet
        assert [m.body for m in receive(server, packet, 1.0).messages] == [b"secret"]


def pair_with(values: dict[str, object]) -> tuple[MeshSession, MeshSession]:
    client = session(Role.CLIENT, **values)
    server = session(Role.SERVER, **{**values, "key": "", "node_id": "ab" * 16})
    client.connected(0.0)
    server.connected(0.0)
    exchange(client, server, 0.0)
    return client, server


# Reads of many datagrams


def read_all(server: MeshSession, packets: list[bytes], now: float = 1.0) -> Read:
    ends, total = [], 0
    for packet in packets:
        total += len(packet)
        ends.append(total)
    return Read(list(server.receive_datagrams(b"".join(packets), ends, now)))


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("identity", [Identity(NODE), WITH_HMAC])
def test_many_datagrams_say_the_same_in_the_same_order_as_single_ones(
    tmp_path: Path, count: int, identity: Identity
) -> None:
    trust = files(tmp_path)["trust"]
    author = Author(MeshSettings(), identity)
    packets = []
    for number in range(count):
        name = "$hub/undeliverable" if number == 33 else f"t/{number % 3}"
        event = Message(Kind.EVENT, name, b"%d" % number, attributes={"urgent": str(number % 2)})
        packets.append(author.write(event, EPOCH)[0])
        if number % 16 == 1:
            packets += [author.heartbeat(EPOCH), author.hello(make_capabilities([f"x/{number}", "y"]), EPOCH)[0]]
        if number % 16 == 2:
            packets += [b"garbage", packets[0], packets[0][:-1] + bytes((packets[0][-1] ^ 1,))]
    values: dict[str, object] = {"trust": trust, "require": "any"}
    single, many = session(Role.SERVER, **values), session(Role.SERVER, columns=True, **values)
    for each in (single, many):
        each.connected(0.0)
    plain, columns = read_all(single, packets), read_all(many, packets)
    assert [(r.clause, r.data) for r in plain.refused] == [(r.clause, r.data) for r in columns.refused]
    assert (plain.data, plain.count) == (columns.data, columns.count)
    assert plain.messages == columns.messages
    found = [batch for batch in columns.batches if isinstance(batch, Publishes)]
    assert [topic for batch in found for topic in batch.events().topics if topic.startswith("$hub/")] == []
    for batch in found:
        own = [m for each in batch.as_messages() for m in each.messages]
        sent = frames_in(bytes(batch.data))
        assert (len(own), list(batch.topics())) == (len(sent), list(dict.fromkeys(written(many, m) for m in own)))
        events = batch.events()
        assert (len(events), events.messages()) == (len(own), own)
        relayed = frames_in(events.frames(many, 1.0) or b"")
        assert relayed == sorted(sent, key=lambda packet: not frames.is_urgent(packet))
        for chosen in ([0], list(range(1, len(events.topics)))):
            some = events.of(chosen)
            names = {events.topics[code] for code in chosen}
            assert some.messages() == [m for m in own if m.topic in names]
            assert set(some.topics) == names


def frames_in(data: bytes) -> list[bytes]:
    ends = frames.packet_ends(data)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def written(session: MeshSession, message: Message) -> tuple[str, str]:
    return message.topic or "", session.written_by(message)


def test_what_is_not_allowed_is_cut_out_packet_by_packet_and_the_rest_is_passed_on_as_it_came() -> None:
    server = trusting(require="any")
    packets = [
        frames.encode(sign_packet(Packet(number, 3, int(EPOCH), (Field(1, name),)), identity))
        for number, (name, identity) in enumerate(
            [(name, identity) for identity in (WITH_HMAC, Identity(NODE)) for name in (b"a", b"b")] * 5
        )
    ]
    batch = read_all(server, packets).publishes
    author = f"mesh:{NODE.hex()}"
    assert list(batch.topics()) == [("a", author), ("b", author), ("a", ""), ("b", "")]
    parted = batch.split(lambda topic, author: topic == "a" and bool(author))
    assert parted is not None
    rest, refused = parted
    assert isinstance(rest, Publishes)
    assert (rest.count, rest.data) == (5, b"".join(packets[::4]))
    assert rest.events().frames(server, 1.0) == rest.data
    assert [topic for topic, _ in refused] == ["b", "a", "b"] * 5
    assert [packet for _, packet in refused] == [packet for number, packet in enumerate(packets) if number % 4]
    parted = batch.split(lambda *_: False)
    assert parted is not None
    assert (parted[0].data, parted[0].count, len(parted[1])) == (b"", 0, 20)


def test_sessions_of_other_protocols_write_the_events_of_a_read_themselves() -> None:
    server = trusting(require="any")
    packets = [
        frames.encode(Packet(n, 3, int(EPOCH), (Field(Type.STRING, b"a"), Field(Type.BINARY, b"%d" % n))))
        for n in range(10)
    ]
    events = read_all(server, packets).publishes.events()
    other = HSP.session(Role.SERVER, HSP.settings())
    other.connected(0.0)
    assert events.frames(other, 1.0) == other.write_events(events.messages(), 1.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 119.5, 120.0, 179.0, 299.5, 300.0, 420.0]),
            st.one_of(
                st.lists(st.integers(0, 23), min_size=8, max_size=16),
                st.lists(st.integers(24, 55), min_size=8, max_size=12, unique=True),
            ),
        ),
        max_size=6,
    )
)
@settings(max_examples=100, deadline=None)
def test_reads_of_many_remember_and_forget_as_single_packets_do(reads: list[tuple[float, list[int]]]) -> None:
    """Packets of every age, signed and not, of one sender or of several, heard again and again while time goes on."""
    ages = (0, 0, 120, 121, -1, -119, -300, -301)
    pool = []
    for number in range(24):
        packet = Packet(number % 5, EventType.EVENT, int(EPOCH) + ages[number % 8], (Field(Type.STRING, b"a"),))
        identity = (BOTH, WITH_HMAC, Identity(NODE))[number // 8]
        pool.append(frames.encode(sign_packet(packet, identity)))
    for number in range(32):
        packet = Packet(100 + number, EventType.EVENT, int(EPOCH) + 5 * (number > 28), (Field(Type.STRING, b"a"),))
        signed = frames.encode(sign_packet(packet, WITH_HMAC))
        pool.append(signed if number else signed[:-1] + bytes((signed[-1] ^ 1,)))
    made = []
    for columns in (False, True):
        values = MeshSettings.parse({"require": "any", "verifications": 1e9, "lost_after": 1e9})
        each = MeshSession(Role.SERVER, values, Gate(values, TRUST), Author(values))
        each.epoch, each.peer = EPOCH, "10.0.0.1:5041"
        if columns:
            each.enable_columns()
        each.connected(0.0)
        made.append(each)
    now = 0.0
    for step, picked in reads:
        now += step
        with patch.object(publishes, "ALIKE_FROM", 8):
            one, many = (read_all(each, [pool[number] for number in picked], now) for each in made)
        assert [(r.clause, r.data) for r in one.refused] == [(r.clause, r.data) for r in many.refused]
        assert one.data == many.data


def trusting(**values: object) -> MeshSession:
    """A session for reads of many packets that trusts the usual keys."""
    own = MeshSettings.parse({"require": "trusted", **values})
    made = MeshSession(Role.SERVER, own, Gate(own, TRUST), Author(own))
    made.epoch, made.peer = EPOCH, "10.0.0.1:5041"
    made.enable_columns()
    made.connected(0.0)
    return made


def with_both(number: int, *, hmac: bool = True, signature: bool = True) -> bytes:
    """A packet with HMAC and Signature, of which one may be wrong."""
    packet = sign_packet(Packet(number, EventType.EVENT, int(EPOCH), (Field(Type.STRING, b"a"),)), BOTH)
    wrong = {Type.HMAC: b"x" * 32} if not hmac else {}
    wrong |= {Type.SIGNATURE: b"x" * 64} if not signature else {}
    fields = tuple(Field(type_, wrong.get(Type(type_), value)) for type_, value in packet.fields)
    return frames.encode(replace(packet, fields=fields))


@pytest.mark.parametrize("identity", [BOTH, WITH_HMAC, Identity(NODE)])
@pytest.mark.parametrize("ahead", [0, 100])
def test_reads_of_many_remember_a_packet_dated_ahead_from_its_own_time_on(identity: Identity, ahead: int) -> None:
    server = trusting(require="any")
    packets = [
        frames.encode(sign_packet(Packet(number, 3, int(EPOCH) + ahead, (Field(1, b"a"),)), identity))
        for number in range(70)
    ]
    assert read_all(server, packets, 0.0).count == 70
    for later in (1.0, ahead + 200.0, ahead + 299.0):
        assert [each.clause for each in read_all(server, packets, later).refused] == ["mesh.replay"] * 70
    assert {each.clause for each in read_all(server, packets, ahead + 301.0).refused} == {"mesh.stale"}


def test_a_node_cannot_speak_for_another_amid_a_large_read_of_its_own() -> None:
    other = replace(WITH_HMAC, node_id=b"o" * 16)
    renamed = replace(WITH_HMAC, auth_key_id=b"key1")
    packets = [
        frames.encode(sign_packet(Packet(number, 3, int(EPOCH), (Field(1, b"a"),)), identity))
        for number, identity in enumerate([*[WITH_HMAC] * 70, other, renamed])
    ]
    run = read_all(trusting(), packets)
    assert [each.clause for each in run.refused] == ["mesh.unknown-key", "mesh.forged"]


def test_a_large_read_of_one_sender_is_checked_at_once_and_evicts_as_ever() -> None:
    own = MeshSettings.parse({"require": "trusted", "replay_cap_per_node": 150, "replay_cap": 180})
    gate = Gate(own, TRUST)
    made = MeshSession(Role.SERVER, own, gate, Author(own))
    made.epoch, made.peer = EPOCH, "10.0.0.1:5041"
    made.enable_columns()
    made.connected(0.0)
    author = Author(own, WITH_HMAC)
    packets = [author.write(Message(Kind.EVENT, f"t/{n % 3}", b"%d" % n), EPOCH)[0] for n in range(200)]
    first, second = read_all(made, packets[:100]), read_all(made, packets[100:])
    assert (first.count, second.count, len(gate.replay), gate.replay.evicted) == (100, 100, 150, 50)
    runs = [batch.events() for batch in first.batches if isinstance(batch, Publishes)]
    assert [sorted(events.topics) for events in runs] == [["t/0", "t/1", "t/2"]] * len(runs)
    chosen = [events.of([events.topics.index("t/1")]).frames(made, 1.0) for events in runs]
    assert b"".join(each or b"" for each in chosen) == b"".join(packets[1:100:3])
    again = read_all(made, packets[60:160])
    assert (again.count, {each.clause for each in again.refused}) == (0, {"mesh.replay"})
    assert read_all(made, packets[:50]).count == 50  # forgotten too early, and counted


def test_reads_of_many_check_the_hmac_before_the_signature_and_both_must_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, detail in (({"hmac": False}, "HMAC"), ({"signature": False}, "Signature")):
        run = read_all(trusting(), [with_both(number, **wrong) for number in range(10)])
        assert [(each.clause, detail in each.detail) for each in run.refused] == [("mesh.forged", True)] * 10
    monkeypatch.setattr(crypto, "verify_signature", lambda *_: pytest.fail("the signature was looked at first"))
    assert len(read_all(trusting(), [with_both(number, hmac=False) for number in range(10)]).refused) == 10


def test_publishes_verify_no_more_signatures_than_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(crypto, "verify_signature", lambda *_: done.append(1))
    run = read_all(trusting(verifications=10), [with_both(number, signature=False) for number in range(50)])
    assert [each.clause for each in run.refused] == ["mesh.forged"] * 10 + ["mesh.limit.verifications"] * 40
    assert len(done) == 10


def test_packets_without_node_id_are_delivered_but_not_passed_on() -> None:
    server = session(Role.SERVER, columns=True)
    server.connected(0.0)
    packets = [frames.encode(Packet(n, 3, int(EPOCH), (Field(1, b"a"),))) for n in range(10)]
    run = read_all(server, packets)
    events = run.publishes.events()
    assert (len(events.messages()), events.frames(server, 1.0)) == (10, b"")


def test_an_encrypted_event_with_a_readable_name_is_passed_on_but_not_delivered(tmp_path: Path) -> None:
    keys = TrustStore(encryption_keys={b"k" * 16: bytes(32)})
    keys.save(tmp_path / "keys.json")
    settings = MeshSettings(trust=str(tmp_path / "keys.json"), encrypt=(b"k" * 16).hex())
    author = Author(settings, Identity(NODE), settings.encryption(keys))
    packet = author.write(Message(Kind.EVENT, "a", b"x"), EPOCH)[0]
    server = session(Role.SERVER, columns=True)
    server.connected(0.0)
    run = read_all(server, [packet])
    events = run.publishes.events()
    assert (events.topics, events.messages(), events.frames(server, 1.0)) == (["a"], [], packet)
    other = HSP.session(Role.SERVER, HSP.settings())
    other.connected(0.0)
    assert events.frames(other, 1.0) is None


def test_a_public_key_in_sorted_place_takes_precedence_in_publishes_too(tmp_path: Path) -> None:
    """Public Key before NODE ID is the canonical order, which reads of many packets take a short way with."""
    trusted = Identity(NODE, b"key1", ed25519_private=b"t" * 32)
    thief = replace(trusted, ed25519_private=b"x" * 32)
    values = files(tmp_path, Identity(b"n" * 16), TrustStore([trusted.trusted_key()]))
    packets = []
    for number in range(20):
        packet = Packet(number, EventType.EVENT, int(EPOCH), (Field(Type.STRING, b"a"),))
        signed = sign_packet(packet, thief if number % 2 else trusted, with_public_key=True)
        ordered = sorted(signed.fields[:-1], key=lambda field: field.type)
        packets.append(frames.encode(replace(signed, fields=(*ordered, signed.fields[-1]))))
    server = session(Role.SERVER, columns=True, **values)
    server.connected(0.0)
    run = read_all(server, packets)
    assert run.count == 10
    assert {each.clause for each in run.refused} == {"mesh.key-mismatch"}
