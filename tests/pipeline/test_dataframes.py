"""The tables as functions of DataFrames give what the pipeline writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.journals import make_journal
from wireloom.pipeline import dataframes
from wireloom.pipeline.query import ask
from wireloom.pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rows(frame: DataFrame, name: str) -> list[str]:
    """Rows in a form that does not depend on who read them."""
    assert frame.columns == list(TABLES[name].names)
    times = [c.name for c in TABLES[name].columns if c.type == "timestamp"]
    picked = frame.selectExpr(*(f"unix_micros(`{c}`)" if c in times else f"`{c}`" for c in frame.columns))
    return sorted(repr(tuple(row)) for row in picked.collect())


def written(warehouse: Path, name: str) -> list[str]:
    times = [c.name for c in TABLES[name].columns if c.type == "timestamp"]
    names = TABLES[name].names
    picked = ", ".join(f'epoch_us("{c}")' if c in times else f'"{c}"' for c in names)
    return sorted(repr(row) for row in ask(warehouse, f"select {picked} from {name}").rows)


def test_each_table_alone_is_what_the_pipeline_writes(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path / "j", runs=40, long_runs=False, refusals=0)
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]])
    messages = spark.read.format("wireloom").load(str(tmp_path / "j"))
    rejects = spark.read.format("wireloom").option("table", "rejects").load(str(tmp_path / "j"))
    made = {
        "exchanges": dataframes.exchanges(messages),
        "findings": dataframes.findings(messages),
        "traffic": dataframes.traffic(messages),
        "nodes": dataframes.nodes(messages),
    }
    for name, frame in made.items():
        assert rows(frame, name) == written(tmp_path / "w", name)
    counted = dataframes.sessions(messages, rejects).select("connection", "messages_c2s", "bytes_s2c", "rejects")
    found = ask(tmp_path / "w", "select connection, messages_c2s, bytes_s2c, rejects from sessions").rows
    assert sorted(tuple(row) for row in counted.collect()) == sorted(found)
