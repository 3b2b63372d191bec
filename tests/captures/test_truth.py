"""Generated captures with a known truth: every row of every table is what it must be, however the capture is cut."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.captures.test_arriving import commit_captures
from tests.captures.truth import Row, Truth, captured
from tests.captures.writing import pcap
from wireloom.pipeline import planning
from wireloom.pipeline.query import ask

_CLIENT = "case direction when 'c2s' then source else destination end"
_TIME = "epoch_us({})"
QUERIES = {
    "messages": f"select {_CLIENT}, direction, sequence, epoch_us(time), kind, topic, verb, message_id, correlation_id, "
    "status, body, wire_size from messages",
    "exchanges": "select s.source, e.request_id, e.topic, e.verb, epoch_us(e.requested_at), epoch_us(e.answered_at), "
    "e.outcome, e.status, e.progress_count, e.request_size, e.response_size, e.open "
    "from exchanges e join sessions s on s.connection = e.connection",
    "sessions": "select source, protocol, epoch_us(opened_at), epoch_us(closed_at), close_reason, messages_c2s, "
    "messages_s2c, bytes_c2s, bytes_s2c, rejects, open from sessions",
    "rejects": "select s.source, r.direction, r.clause, r.size from rejects r "
    "join sessions s on s.connection = r.connection",
    "findings": "select s.source, f.rule, f.message_id from findings f join sessions s on s.connection = f.connection",
}


def compare(warehouse: Path, truth: Truth) -> None:
    """Row by row; the first that differs is named."""
    for name, query in QUERIES.items():
        found: list[Row] = sorted(ask(warehouse, query).rows, key=repr)
        expected: list[Row] = sorted(getattr(truth, name), key=repr)
        for place, (row, wanted) in enumerate(zip(found, expected, strict=False)):
            assert row == wanted, f"{name}, row {place}"
        assert len(found) == len(expected), name


def read(folder: Path, packets: list, cuts: int, seed: int) -> Path:  # type: ignore[type-arg]
    """Tables made of packets, in as many captures and batches."""
    (folder / "captures").mkdir(parents=True)
    places = sorted(random.Random(seed).sample(range(1, len(packets)), cuts - 1))
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(packets)], strict=True)):
        (folder / "captures" / f"{number:03d}.pcap").write_bytes(pcap(packets[start:end], nano=True))
    inputs = [str(folder / "captures")]
    position: planning.Offsets = {}
    for number in range(cuts):
        after = planning.advance(inputs, position, planning.latest(inputs), 1)
        commit_captures(folder / "warehouse", folder / "captures", position, after, number)
        position = after
    return folder / "warehouse"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cuts", [1, 4])
def test_every_row_is_what_it_must_be(seed: int, cuts: int, tmp_path: Path) -> None:
    packets, truth = captured(seed, talks=24)
    assert truth.rejects and truth.exchanges
    compare(read(tmp_path, packets, cuts, seed), truth)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_messages(tmp_path: Path) -> None:
    """`make truth`; MESSAGES says how many."""
    wanted = int(os.environ.get("MESSAGES", "1000000"))
    packets, truth = captured(99, talks=wanted // 1300 + 1, rounds=40, size=40)
    compare(read(tmp_path, packets, 3, 1), truth)
    print(f"{len(truth.messages):,} messages and {len(truth.exchanges):,} exchanges, each as it must be")
