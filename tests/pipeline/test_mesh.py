"""What the tables say of mesh packets: authenticity, forgeries, replays, and the nodes they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from tests.pipeline.batches import LocalWorkers, contents, cut, new_warehouse, ranges, run_batches
from wireloom.journal import Entry, Journal, Record, read_all
from wireloom.model import ConfigError, Direction
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.query import ask
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.encryption import Cipher, compress, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type, arrange, split
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.security import sign_packet

START = 1_794_800_000
HERE, THERE = "10.0.0.9:5041", "10.0.0.8:5041"
ALICE, BOB, EVE = (Identity(bytes([n]) * 16, b"key1", ed25519_private=bytes([n]) * 32) for n in (1, 2, 3))


def event(number: int, at: int, name: str = "a/b") -> Packet:
    return Packet(number, EventType.EVENT, at, arrange([*split(Type.STRING, name.encode()), Field(Type.JSON, b"1")]))


def heartbeat(number: int, at: int) -> Packet:
    return Packet(number, EventType.HEARTBEAT, at, (Field(Type.TIMESTAMP, at.to_bytes(8)),))


def hello(number: int, at: int, capabilities: bytes) -> Packet:
    return Packet(number, EventType.HELLO, at, (Field(Type.BINARY, capabilities),))


def signed(packet: Packet, identity: Identity = ALICE) -> bytes:
    return frames.encode(sign_packet(packet, identity))


def write(folder: Path, packets: Sequence[tuple[float, bytes, str]]) -> None:
    """A journal of packets: when each came, its bytes, and who received it."""
    with Journal.open(folder, sync=False) as journal:
        connections = {receiver: journal.new_connection_id() for receiver in (HERE, THERE)}
        for number, (at, data, receiver) in enumerate(packets):
            journal.append(
                "mesh", connections[receiver], Direction.DGRAM, number, data,
                source="10.0.0.1:5041", destination=receiver, time_ns=int((START + at) * 1e9),
            )  # fmt: skip


def trust_file(folder: Path) -> str:
    entries = [
        {"node_id": i.node_id.hex(), "auth_key_id": b"key1".hex(), "ed25519_public": (i.public_key or b"").hex()}
        for i in (ALICE, BOB)
    ]
    (folder / "trust.json").write_text(json.dumps(entries))
    return str(folder / "trust.json")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    good = signed(event(1, START))
    forged = bytearray(signed(event(2, START)))
    forged[20] ^= 1
    write(
        tmp_path / "j",
        [
            (0, signed(hello(100, START, b'{"subscribe":["a/#"]}')), HERE),
            (1, good, HERE),
            (1.5, good, THERE),
            (2, bytes(forged), HERE),
            (3, signed(event(3, START), EVE), HERE),
            (4, frames.encode(event(4, START)), HERE),
            (5, signed(heartbeat(5, START + 5)), HERE),
            (15, signed(heartbeat(6, START + 15)), HERE),
            (100, good, HERE),
            (140, signed(heartbeat(7, START + 140)), HERE),
            (150, signed(heartbeat(8, START + 150), BOB), HERE),
            (1000, signed(event(9, START), BOB), HERE),
        ],
    )  # fmt: skip
    return tmp_path / "j"


def run(journal: Path, warehouse: Path, trust: str, positions: Sequence[float] = ()) -> None:
    made = new_warehouse(warehouse)
    for number, group in enumerate(cut(ranges(journal), positions)):
        BatchCommit(made, number, LocalWorkers(made.store, [group], trust=trust)).commit()


FOUND = [
    ("mesh.forged", "critical"),
    ("mesh.replay", "warning"),
    ("mesh.stale", "warning"),
    ("mesh.unknown-key", "warning"),
]


def test_with_a_trust_file_signatures_are_checked(journal: Path, tmp_path: Path) -> None:
    run(journal, tmp_path / "w", trust_file(tmp_path))
    kinds = ask(tmp_path / "w", "select authenticity, count(*) from messages group by all order by 1").rows
    assert kinds == [("failed", 1), ("none", 1), ("unchecked", 1), ("verified", 9)]
    found = ask(tmp_path / "w", "select rule, severity from findings order by 1").rows
    assert found == FOUND
    ((time, number),) = ask(tmp_path / "w", "select time, message_id from findings where rule = 'mesh.replay'").rows
    assert isinstance(time, datetime)
    assert (time.timestamp() - START, number) == (100, "00000001")


def test_without_a_trust_file_nothing_is_checked(journal: Path, tmp_path: Path) -> None:
    run(journal, tmp_path / "w", "")
    kinds = ask(tmp_path / "w", "select authenticity, count(*) from messages group by all order by 1").rows
    assert kinds == [("none", 1), ("unchecked", 11)]
    found = ask(tmp_path / "w", "select rule from findings order by 1").rows
    assert found == [("mesh.replay",), ("mesh.stale",)]


def test_replays_are_found_across_batches(journal: Path, tmp_path: Path) -> None:
    trust = trust_file(tmp_path)
    run(journal, tmp_path / "one", trust)
    run(journal, tmp_path / "many", trust, [0.2, 0.4, 0.6, 0.8])
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_nodes_are_what_their_packets_say(journal: Path, tmp_path: Path) -> None:
    run(journal, tmp_path / "w", trust_file(tmp_path), [0.5])
    rows = ask(tmp_path / "w", "select * from nodes order by node_id").rows
    (alice, first, last, beats, gap, events, capabilities), bob, eve = rows
    assert (alice, beats, gap, events, capabilities) == (ALICE.node_id.hex(), 3, 125.0, 3, '{"subscribe":["a/#"]}')
    assert isinstance(first, datetime) and isinstance(last, datetime)
    assert (first.timestamp() - START, last.timestamp() - START) == (0, 140)
    assert (bob[0], bob[3], bob[4], bob[5], bob[6]) == (BOB.node_id.hex(), 1, None, 1, None)
    assert eve[0] == EVE.node_id.hex()


def test_a_trust_file_that_cannot_be_read_is_named(journal: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        SourceOptions.parse({"path": str(journal), "trust": str(tmp_path / "nowhere.json")})


def test_what_the_hub_refused_although_it_was_well_formed_is_found(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        for clause in ("mesh.forged", "mesh.replay", "mesh.field.overrun"):
            journal.refuse("mesh", 1, Direction.DGRAM, b"packet", clause=clause, detail=f"why {clause}")
        journal.refuse("hsp", 2, Direction.C2S, b"\x09", clause="hsp.command.unknown", detail="command 9")
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]])
    found = ask(tmp_path / "w", "select rule, severity, detail, connection from findings order by rule").rows
    assert found == [
        ("mesh.forged", "critical", "why mesh.forged", f"{1:016x}"),
        ("mesh.replay", "warning", "why mesh.replay", f"{1:016x}"),
    ]
    assert ask(tmp_path / "w", "select count(*) from rejects").rows == [(4,)]


def roomy(number: int, identity: Identity = ALICE, flags: int = 0) -> bytes:
    """A packet that only a listener with other limits than usual takes."""
    fields = arrange([Field(Type.STRING, b"a/b"), *(Field(Type.BINARY, b"x" * 200) for _ in range(70))])
    packet = sign_packet(Packet(number, EventType.EVENT, START, fields, flags), identity)
    return frames.encode(packet, frames.PacketLimits(0xFFFF, 0xFFFF, ignore_reserved_flags=True))


def test_what_a_listener_with_higher_limits_accepted_is_read_back_and_checked(tmp_path: Path) -> None:
    largest = compress(event(3, START, "a/" + "b" * (62 * 255)), keep_name=False)
    packets = [roomy(1), roomy(2, flags=0x80), signed(largest)]
    write(tmp_path / "j", [(number, data, HERE) for number, data in enumerate(packets)])
    read = [entry for entry in read_all(tmp_path / "j") if not isinstance(entry, Record)]
    assert [type(entry) for entry in read] == [Entry] * 3, read
    run(tmp_path / "j", tmp_path / "w", trust_file(tmp_path))
    assert ask(tmp_path / "w", "select authenticity from messages").rows == [("verified",)] * 3
    assert ask(tmp_path / "w", "select * from rejects").rows == []


def test_encrypted_events_and_heartbeats_are_counted_for_their_node(tmp_path: Path) -> None:
    cipher = Cipher(b"k" * 32, b"i" * 16)
    said = [
        event(1, START),
        encrypt(event(2, START), cipher, b"n" * 12),
        encrypt(event(3, START), cipher, b"o" * 12, keep_name=True),
        encrypt(heartbeat(4, START), cipher, b"p" * 12),
    ]
    write(tmp_path / "j", [(number, signed(packet), HERE) for number, packet in enumerate(said)])
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]])
    assert ask(tmp_path / "w", "select events, heartbeats from nodes").rows == [(3, 1)]
    kinds = "select kind, count(*) from messages group by all order by all"
    assert ask(tmp_path / "w", kinds).rows == [("event", 1), ("other", 3)]
