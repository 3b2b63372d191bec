"""A warehouse says what it is, lets one pipeline in, and refuses what it cannot trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.running import wireloom
from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.schemas import STATE, TABLES, arrow_schema
from wireloom.pipeline.warehouse import Warehouse


def test_a_new_warehouse_has_empty_tables(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path / "w")
    assert Warehouse.existing(tmp_path / "w") == made
    assert Warehouse.prepared(tmp_path / "w") == made
    assert {p.name for p in made.root.iterdir()} == {"warehouse.json", "_state", *TABLES}


def test_a_warehouse_of_another_version_is_refused(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path)
    (made.root / "warehouse.json").write_text(json.dumps({"format": 3}))
    for opening in (Warehouse.existing, Warehouse.prepared):
        with pytest.raises(ConfigError, match="has format 3, this Wireloom reads and writes format 2"):
            opening(tmp_path)


@pytest.mark.parametrize("url", ["s3://bucket/tables", "gs://bucket", "hdfs://host:8020/x", "file:///tmp/x"])
def test_a_url_is_refused_and_no_folder_is_made(
    url: str, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ("pipeline", "run", "--input", str(journal), "--warehouse", url, "--once"),
        ("pipeline", "compact", "--warehouse", url),
        ("pipeline", "upgrade", "--warehouse", url),
        ("sql", "select 1", "--warehouse", url),
        ("tables", "--warehouse", url),
        ("report", "--warehouse", url),
        ("hub", "--data", url),
    ):
        done = wireloom(*words)
        assert done.code == 2 and "is a URL, and a" in done.errors, words
    assert not list(tmp_path.iterdir())


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    (tmp_path / "warehouse.json").write_text("{")
    with pytest.raises(ConfigError, match=r"warehouse\.json is damaged"):
        Warehouse.existing(tmp_path)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"not empty \(it holds thesis\.tex\)"):
        Warehouse.prepared(tmp_path)


def test_a_folder_that_tables_cannot_be_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x%20y: choose a folder without %"):
        Warehouse.prepared(tmp_path / "x%20y")
    assert not list(tmp_path.iterdir())


def test_reading_needs_a_warehouse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no warehouse: make one with `wireloom pipeline run"):
        Warehouse.existing(tmp_path / "nowhere")


def test_the_second_pipeline_is_told_who_has_it(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path)
    with made.locked(), pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"), made.locked():
        pass
    with made.locked():
        pass


def commit_state(warehouse: Warehouse, query: str, batch: int) -> None:
    folder = warehouse.folder(STATE)
    rows = arrow_schema(STATE.columns).empty_table()
    rows = pa.Table.from_pylist([{"batch": batch, "query": query}], schema=rows.schema)
    tables.commit(tables.open_table(folder), STATE, query, batch, [tables.write_rows(folder, STATE, rows, {})])


def write_checkpoint(warehouse: Warehouse, query: str, batches: int) -> None:
    (warehouse.checkpoint / "offsets").mkdir(parents=True)
    (warehouse.checkpoint / "metadata").write_text(json.dumps({"id": query}))
    for batch in range(batches):
        (warehouse.checkpoint / "offsets" / str(batch)).write_text('v1\n{}\n{"/j":{"segment":"s","position":9}}')


def test_a_checkpoint_that_fits_is_trusted(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path)
    made.check_checkpoint()
    write_checkpoint(made, "q", 3)
    made.check_checkpoint()
    commit_state(made, "q", 2)
    made.check_checkpoint()
    assert made.offsets(2) == {"/j": {"segment": "s", "position": 9}}


@pytest.mark.parametrize(("query", "batches"), [(None, 0), ("another", 5), ("q", 2)])
def test_a_lost_or_foreign_checkpoint_is_refused(tmp_path: Path, query: str | None, batches: int) -> None:
    made = Warehouse.prepared(tmp_path)
    commit_state(made, "q", 2)
    if query is not None:
        write_checkpoint(made, query, batches)
    with pytest.raises(ConfigError, match=r"checkpoint of warehouse .* is lost or of another run"):
        made.check_checkpoint()


def test_who_writes_is_told_without_disturbing_anybody(tmp_path: Path) -> None:
    warehouse = Warehouse.prepared(tmp_path / "w")
    assert warehouse.writer is None
    with warehouse.locked():
        assert warehouse.writer == os.getpid()
        with pytest.raises(ConfigError, match="in use by process"), warehouse.locked():
            pass
    assert warehouse.writer is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (warehouse.root / "lock").write_text(str(ended.pid))
    assert warehouse.writer is None
