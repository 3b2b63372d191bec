"""Plain folders of Parquet: whoever reads one, with whatever tool, reads the table."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pytest

from tests.pipeline.batches import contents, cut, new_warehouse, plain_contents, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from tests.pipeline.journals import make_journal
from wireloom.cli.main import main
from wireloom.model import ConfigError
from wireloom.pipeline import Warehouse, parquet_folders, schemas, tables
from wireloom.pipeline.compact import compact
from wireloom.pipeline.query import describe
from wireloom.pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shown(warehouse: Path) -> set[str]:
    """All that a person sees in the plain folders."""
    return {str(p.relative_to(warehouse)) for name in TABLES for p in (warehouse / name).rglob("*") if p.is_file()}


def test_plain_folders_are_the_tables_after_every_batch(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=31, steps=80)
    parts = cut(ranges(tmp_path / "j"), [0.3, 0.6])
    for number, part in enumerate(parts):
        run_batches(tmp_path / "w", [[part]], first=number, tasks=2, table_format="parquet")
        run_batches(tmp_path / "delta", [[part]], first=number, tasks=2)
        assert plain_contents(tmp_path / "w") == contents(tmp_path / "w") == contents(tmp_path / "delta")
    assert all(name.endswith(".parquet") for name in shown(tmp_path / "w"))
    known = describe(tmp_path / "w")
    assert len(shown(tmp_path / "w")) == sum(each.files for each in known.values())
    assert polars.read_parquet(tmp_path / "w" / "messages").height == known["messages"].rows > 0


def table_files(warehouse: Path, name: str) -> list[str]:
    """The names of the files that are part of a table."""
    table = TABLES[name]
    handle = tables.open_table(Warehouse.existing(warehouse).folder(table))
    return [Path(file.path).name for file in tables.files(handle, table)]


class Crash(Exception):
    """What a test throws in place of a kill."""


def test_a_folder_that_a_crash_left_behind_is_made_right_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_conversations(tmp_path / "j", seed=32, steps=80)
    first, second = cut(ranges(tmp_path / "j"), [0.5])
    run_batches(tmp_path / "undisturbed", [[first], [second]])
    run_batches(tmp_path / "w", [[first]], table_format="parquet")
    link = os.link
    crashed: set[str] = set()

    def crashing(source: Path, target: Path) -> None:
        table = target.relative_to(tmp_path / "w").parts[0]
        if table in TABLES and table not in crashed:
            crashed.add(table)
            raise Crash
        link(source, target)

    monkeypatch.setattr(os, "link", crashing)
    # Begun again and again, each time it gets one table further: its log is then ahead of its folder.
    for _ in range(20):
        try:
            run_batches(tmp_path / "w", [[second]], first=1)
            break
        except Crash:
            committed = {file for name in TABLES for file in table_files(tmp_path / "w", name)}
            assert {Path(name).name for name in shown(tmp_path / "w")} <= committed
    assert {"messages", "exchanges", "sessions", "traffic"} <= crashed
    monkeypatch.undo()
    run_batches(tmp_path / "w", [[second]], first=1)
    assert plain_contents(tmp_path / "w") == contents(tmp_path / "w") == contents(tmp_path / "undisturbed")


def test_compacting_keeps_the_folders_and_the_tables_the_same(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=33, steps=80)
    *early, last = cut(ranges(tmp_path / "j"), [0.25, 0.5, 0.75])
    run_batches(tmp_path / "w", [[part] for part in early], table_format="parquet")
    before = contents(tmp_path / "w")
    (tmp_path / "w" / "messages" / "stray.parquet").write_bytes(b"left by somebody")
    assert compact(tmp_path / "w", keep_hours=0)["messages"].after == 1
    assert plain_contents(tmp_path / "w") == contents(tmp_path / "w") == before
    assert len([name for name in shown(tmp_path / "w") if name.startswith("messages/")]) == 1
    run_batches(tmp_path / "w", [[last]], first=len(early))
    run_batches(tmp_path / "one", [[ranges(tmp_path / "j")]])
    assert plain_contents(tmp_path / "w") == contents(tmp_path / "w") == contents(tmp_path / "one")


def test_a_column_added_later_does_not_break_older_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_conversations(tmp_path / "j", seed=34, steps=120)
    first, second = cut(ranges(tmp_path / "j"), [0.5])
    run_batches(tmp_path / "w", [[first]], table_format="parquet")
    columns = (*schemas.NODES.columns, schemas.Column("advice", "string", "what to do about it"))
    monkeypatch.setitem(schemas.TABLES, "nodes", dataclasses.replace(schemas.NODES, columns=columns))
    run_batches(tmp_path / "w", [[second]], first=1)
    run_batches(tmp_path / "one", [[ranges(tmp_path / "j")]])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    monkeypatch.undo()
    assert plain_contents(tmp_path / "w") == contents(tmp_path / "one")


def test_the_format_of_a_warehouse_stays(tmp_path: Path) -> None:
    assert Warehouse.prepared(tmp_path / "p", "parquet").table_format == "parquet"
    assert Warehouse.prepared(tmp_path / "p") == Warehouse.existing(tmp_path / "p")
    with pytest.raises(ConfigError, match="has tables of the format 'parquet', which stays"):
        Warehouse.prepared(tmp_path / "p", "delta")
    with pytest.raises(ConfigError, match="'orc' is unknown; it must be delta or parquet"):
        Warehouse.prepared(tmp_path / "new", "orc")
    (tmp_path / "p" / "warehouse.json").write_text('{"format": 2, "tables": "orc"}')
    with pytest.raises(ConfigError, match="has tables of the format 'orc'; known: delta, parquet"):
        Warehouse.existing(tmp_path / "p")


def test_a_disk_without_hard_links_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(parquet_folders.os, "link", refuse)
    with pytest.raises(ConfigError, match=r"without hard links \(Operation not permitted\).*use 'delta'"):
        Warehouse.prepared(tmp_path / "w", "parquet")
    Warehouse.prepared(tmp_path / "other", "delta")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_a_plain_folder(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline import Pipeline

    make_journal(tmp_path / "j", runs=30, long_runs=False)
    options = {"maxBytesPerTrigger": "8k"}
    summary = Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark, options=options, table_format="parquet").run()
    assert summary.batches > 1
    messages = spark.read.parquet(str(tmp_path / "w" / "messages"))
    assert set(messages.columns) == set(TABLES["messages"].names)
    assert messages.count() == messages.dropDuplicates(["file", "offset"]).count() == summary.messages
    assert spark.read.parquet(str(tmp_path / "w" / "rejects")).count() == summary.rejects > 0
    assert plain_contents(tmp_path / "w") == contents(tmp_path / "w")
    assert new_warehouse(tmp_path / "w").table_format == "parquet"


def test_the_commands_know_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_conversations(tmp_path / "j", seed=35, steps=60)
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]], table_format="parquet")
    assert main(["sql", "select count(*) as n from messages", "--warehouse", str(tmp_path / "w"), "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == str(describe(tmp_path / "w")["messages"].rows)
    assert main(["tables", "--warehouse", str(tmp_path / "w")]) == 0
    assert main(["pipeline", "compact", "--warehouse", str(tmp_path / "w")]) == 0
    assert main(["report", "--warehouse", str(tmp_path / "w"), "--out", str(tmp_path / "report.html")]) == 0
    assert "messages" in (tmp_path / "report.html").read_text()
