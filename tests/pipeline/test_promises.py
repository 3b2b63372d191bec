"""Promises of the tables that need no Spark to be checked: nothing is lost, and an older warehouse goes on."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import polars
import pytest

from tests.pipeline.batches import contents, cut, new_warehouse, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from tests.pipeline.journals import make_journal
from wireloom.journal import Journal, blocks, segments
from wireloom.model import Direction
from wireloom.pipeline import schemas, tables
from wireloom.pipeline.query import ask
from wireloom.protocols.hsp import frames


def payload(journal: Path) -> Counter[tuple[str, str]]:
    """The bytes of frames a journal holds, by connection and direction."""
    found: Counter[tuple[str, str]] = Counter()
    for path in segments(journal):
        data = path.read_bytes()
        for block in blocks.blocks(data, 0, len(data)):
            if block.record is None:
                found[f"{block.connection:016x}", str(block.direction)] += len(block.payload)
    return found


def add_broken_runs(journal: Path) -> None:
    with Journal.open(journal, sync=False) as writer:
        connection = writer.new_connection_id()
        for number, data in enumerate((b"\x03\x09rest", b"\x04", frames.encode(frames.Data(1, b"x"))[:-1], b"\x03")):
            writer.append("hsp", connection, Direction.C2S, number, data, time_ns=10**18 + number)
        writer.append("carrier-pigeon", connection, Direction.S2C, 0, b"coo", time_ns=10**18)


@pytest.mark.parametrize("positions", [[], [0.1, 0.35, 0.7]])
def test_every_byte_of_a_connection_is_in_messages_or_in_rejects(tmp_path: Path, positions: list[float]) -> None:
    make_journal(tmp_path / "j", runs=40, refusals=0)
    make_conversations(tmp_path / "j", seed=2, steps=150)
    add_broken_runs(tmp_path / "j")
    run_batches(tmp_path / "w", [[part] for part in cut(ranges(tmp_path / "j"), positions)])
    rows = ask(
        tmp_path / "w",
        "select connection, direction, sum(size)::bigint from (select connection, direction, wire_size as size from messages "
        "union all select connection, direction, size from rejects where file not like '%refused%') group by all",
    ).rows
    assert {(c, d): size for c, d, size in rows} == dict(payload(tmp_path / "j"))
    ((told,),) = ask(tmp_path / "w", "select sum(bytes_c2s + bytes_s2c)::bigint from sessions").rows
    ((refused,),) = ask(
        tmp_path / "w", "select coalesce(sum(size), 0)::bigint from rejects where file like '%refused%'"
    ).rows
    assert told == sum(payload(tmp_path / "j").values()) + refused  # type: ignore[operator]


def test_a_column_added_later_does_not_break_an_older_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_conversations(tmp_path / "j", seed=4, steps=120)
    first, second = cut(ranges(tmp_path / "j"), [0.5])
    run_batches(tmp_path / "w", [[first]])
    before = contents(tmp_path / "w")["findings"]
    newer = dataclasses.replace(
        schemas.FINDINGS,
        columns=(*schemas.FINDINGS.columns, schemas.Column("advice", "string", "what to do about it")),
    )
    monkeypatch.setitem(schemas.TABLES, "findings", newer)
    warehouse = new_warehouse(tmp_path / "w")
    assert ask(tmp_path / "w", "select * from findings").columns == newer.names
    assert sorted(ask(tmp_path / "w", "select * exclude (advice) from findings").rows, key=repr) == before
    assert ask(tmp_path / "w", "select count(advice) from findings").rows == [(0,)]
    handle = tables.open_table(warehouse.folder(newer))
    assert [field.name for field in handle.schema().fields] == list(newer.names)
    assert polars.read_delta(warehouse.folder(newer).url)["advice"].null_count() == len(before)
    run_batches(tmp_path / "w", [[second]], first=1)
    run_batches(tmp_path / "one", [[ranges(tmp_path / "j")]])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
