"""A warehouse says what it is, lets one pipeline in, and refuses what it cannot trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import wireloom
from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.schemas import TABLES, arrow_schema
from wireloom.pipeline.state import State, check
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


@pytest.mark.parametrize("url", ["hdfs://host:8020/x", "ftp://host/x", "s3a://bucket/x", "s3:/bucket"])
def test_a_url_of_no_store_is_refused_and_no_folder_is_made(
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
        ("replay", "--warehouse", url, "--to", "hsp://127.0.0.1:1"),
    ):
        done = wireloom(*words)
        assert done.code == 2 and ("is no store" in done.errors or "names no bucket" in done.errors), (words, done)
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


def test_the_second_pipeline_on_plain_folders_is_told_who_has_them(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path, "parquet")
    with made.locked(), pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"), made.locked():
        pass
    with made.locked():
        pass


def test_tables_that_are_further_than_the_record_of_what_was_read_are_refused(tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path)
    folder = made.folder(TABLES["rejects"])
    check(made, State.read(made))
    for batch in range(2):
        rows = arrow_schema(TABLES["rejects"].stored).empty_table()
        written = tables.write_rows(folder, TABLES["rejects"], rows, {"date": "2026-01-01"})
        tables.commit(tables.open_table(folder), TABLES["rejects"], made.application, batch, [written])
        if batch == 0:
            check(made, State.read(made))
    with pytest.raises(ConfigError, match=r"are at batch 1, and its record of what was read \(_state\) ends with -1"):
        check(made, State.read(made))


def test_who_writes_is_told_without_disturbing_anybody(tmp_path: Path) -> None:
    warehouse = Warehouse.prepared(tmp_path / "w")
    assert warehouse.writer is None
    with warehouse.locked():
        assert warehouse.writer == os.getpid()
    assert warehouse.writer is None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (warehouse.root / "lock").write_text(str(ended.pid))
    assert warehouse.writer is None
