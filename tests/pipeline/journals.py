"""Journals for the tests, made with the journal's own writer, and what its plain reader finds in them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import cast

from wireloom.journal import Block, Entry, Journal, Record, read_all
from wireloom.journal.blocks import record_comment
from wireloom.journal.context import Principal
from wireloom.journal.exclusions import TAKEN, excluding
from wireloom.journal.segment import REFUSED
from wireloom.model import Direction
from wireloom.protocols.hsp import HSP, frames

START_NS = 1_794_800_000_000_000_000
MAPS = ({1: "sensors/kitchen", 2: "sensors/hall"}, {1: "orders", 3: "räume/küche"}, None)

Row = tuple[object, ...]


def make_journal(
    folder: Path,
    *,
    runs: int = 60,
    seed: int = 1,
    start_ns: int = START_NS,
    step_ns: int = 7_000_000_000,
    segment_bytes: int = 1 << 16,
    refusals: int = 3,
    long_runs: bool = True,
) -> None:
    """A journal of several segments with all that hsp can say, both directions, maps, long runs, refusals."""
    rng = random.Random(seed)
    with Journal.open(folder, segment_bytes=segment_bytes, sync=False) as journal:
        connections = [journal.new_connection_id() for _ in range(4)]
        people = [Principal(connections[0], name) for name in ("token:ann", "cert:bob", "token:ann")]
        counts: dict[tuple[int, Direction], int] = {}
        now = start_ns
        for number in range(runs):
            connection = rng.choice(connections)
            direction = rng.choice((Direction.C2S, Direction.S2C))
            size = rng.choice((1, 3, 40))
            run = [_frame(rng) for _ in range(size)]
            if long_runs and number % 20 == 10:
                run.append(frames.Data(2, rng.randbytes(300_000)))
            if long_runs and number % 20 == 15:
                run += [frames.Data(1, rng.randbytes(2000)) for _ in range(150)]
            key = connection, direction
            asked = [str(frame.message_id) for frame in run if isinstance(frame, frames.DataAck)]
            taken = rng.sample(asked, len(asked) // 2) if direction is Direction.C2S else []
            person = people[number * len(people) // runs] if connection == connections[0] and number % 7 else None
            ends = ("10.0.0.1:4000", "10.0.0.2:5042")
            journal.append(
                "hsp", connection, direction, counts.get(key, 0), b"".join(map(frames.encode, run)),
                source=ends[direction is Direction.S2C], destination=ends[direction is Direction.C2S],
                topics=MAPS[connections.index(connection) % 3], time_ns=now, principal=person,
                said=[record_comment(TAKEN, each, connection) for each in excluding(taken)],
            )  # fmt: skip
            counts[key] = counts.get(key, 0) + len(run)
            if number % 9 == 0:
                journal.record("opened", {"protocol": "hsp", "peer": ends[0]}, connection, time_ns=now)
            if number % 5 == 0:
                journal.commit()
            now += rng.randrange(1, step_ns)
        for number in range(refusals):
            journal.refuse(
                "hsp", connections[0], Direction.C2S, b"\x09" * (10**number * 500),
                clause="hsp.command.unknown", detail="command 9", time_ns=now + number,
            )  # fmt: skip


def _frame(rng: random.Random) -> frames.Frame:
    number, type_ = rng.randrange(2**32), rng.choice((1, 2, 3, 700))
    body = rng.randbytes(rng.randrange(60))
    return rng.choice(
        (
            frames.Data(type_, body),
            frames.DataAck(number, type_, body),
            frames.Ack(number),
            frames.PING,
            frames.PONG,
            frames.Error(number, type_, body),
            frames.ErrorUndef(number),
        )
    )


COMPARED = (
    "time_us", "hub", "connection", "direction", "sequence", "kind", "topic", "verb", "principal", "message_id", "correlation_id",
    "status", "content_type", "body", "wire_size", "attributes", "file", "offset",
)  # fmt: skip


def expected_messages(folder: Path) -> list[Row]:
    """Every message of a journal as its plain reader sees it, as rows of `COMPARED`.

    A request of a client is an acknowledged publish, unless the records right before its run say that a provider took
    it. A principal is in force for the rest of the segment.
    """
    rows: list[Row] = []
    hub = json.loads((folder / "journal.json").read_text())["hub"]
    taken: list[Block] = []
    people: dict[tuple[str, str], object] = {}
    run = None
    for entry in read_all(folder, {"hsp": HSP.lenient()}):
        if not isinstance(entry, Entry):
            assert isinstance(entry, Record)
            if run is not None:
                taken, run = [], None
            if entry.block.record == TAKEN:
                taken.append(entry.block)
            elif entry.block.record == "principal":
                people[entry.segment, f"{entry.block.connection:016x}"] = entry.block.details["principal"]
            continue
        if entry.place.packet_id != run:
            taken, run = (taken if run is None else []), entry.place.packet_id
        m = entry.message
        assert m.time is not None
        verb: str | None = None
        kind = str(m.kind)
        if kind == "request":
            called = any(_names(block, str(m.id)) for block in taken) or m.direction is Direction.S2C
            kind, verb = ("request", "request") if called else ("event", "publish")
        rows.append(
            (
                m.time // 1000, hub, m.connection, str(m.direction), entry.sequence, kind, m.topic, verb,
                people.get((entry.segment, str(m.connection))), m.id,
                m.correlation_id, m.status, m.content_type, m.body, entry.size, tuple(sorted(m.attributes.items())),
                entry.segment, entry.offset,
            )
        )  # fmt: skip
    return sorted(rows, key=repr)


def _names(block: Block, request: str) -> bool:
    ranges = cast("list[list[int]]", block.details.get("ranges", []))
    ids = cast("list[str]", block.details.get("ids", []))
    return request in ids or any(first <= int(request) <= last for first, last in ranges)


def expected_rejects(folder: Path) -> list[Row]:
    """Clause, size and first bytes of everything the journal's writer refused."""
    records = [found.block for found in read_all(folder / REFUSED) if isinstance(found, Record)]
    refused = [block for block in records if block.record == "refused"]
    return sorted(((b.details["clause"], b.details["size"], b.payload) for b in refused), key=repr)


def compared(rows: list[dict[str, object]]) -> list[Row]:
    """Rows of the `messages` table in the form of `expected_messages`."""
    made: list[Row] = []
    for row in rows:
        attributes = row["attributes"]
        pairs = attributes.items() if isinstance(attributes, dict) else attributes
        values = {**row, "time_us": _micros(row["time"]), "attributes": tuple(sorted(tuple(p) for p in pairs))}  # type: ignore[union-attr]
        values["body"] = bytes(row["body"])  # type: ignore[arg-type]
        made.append(tuple(values[name] for name in COMPARED))
    return sorted(made, key=repr)


def _micros(time: object) -> int:
    from datetime import UTC, datetime, timedelta

    assert isinstance(time, datetime)
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
