"""Whole runs: whatever happens on the way, the tables end up the same."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import psutil
import pytest

from tests.pipeline.journals import START_NS, compared, expected_messages, expected_rejects, make_journal
from wireloom.journal import segments
from wireloom.journal.state import load_state
from wireloom.model import ConfigError
from wireloom.pipeline import Pipeline, PipelineFailed, merging, tables
from wireloom.pipeline.query import ask, ask_spark, describe
from wireloom.pipeline.schemas import MESSAGES, REJECTS, TABLES, TRAFFIC
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SKIPPING = "delta.dataSkippingStatsColumns"
SMALL = {"maxBytesPerTrigger": "400k", "partitionBytes": "100k"}


def contents(warehouse: Path) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the tables, in an order that does not depend on files."""
    return {name: sorted(ask(warehouse, f"select * from {name}").rows, key=repr) for name in TABLES}


def check_against_journal(warehouse: Path, journal: Path) -> None:
    columns = ask(warehouse, "select * from messages limit 0").columns
    rows = [dict(zip(columns, row, strict=True)) for row in ask(warehouse, "select * from messages").rows]
    assert compared(rows) == expected_messages(journal)
    found = ask(warehouse, "select clause, size, bytes from rejects").rows
    assert sorted(found, key=repr) == expected_rejects(journal)
    check_traffic(warehouse)


def check_traffic(warehouse: Path) -> None:
    """`traffic` is what counting `messages` gives; what may still change is the end of it."""
    counted = ask(
        warehouse,
        "select date_trunc('minute', time) m, protocol, topic, kind, count(*), sum(wire_size)::bigint, m::date, "
        "m >= (select date_trunc('minute', max(time) - interval 60 second) from messages) "
        "from messages group by all",
    ).rows
    assert sorted(ask(warehouse, "select * from traffic").rows, key=repr) == sorted(counted, key=repr)


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, journal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse made in one batch."""
    warehouse = tmp_path_factory.mktemp("undisturbed") / "warehouse"
    summary = Pipeline([journal], warehouse, spark=spark).run()
    assert (summary.batches, summary.messages, summary.rejects) == (1, len(expected_messages(journal)), 3)
    return warehouse


def test_one_batch_gives_what_the_journal_holds(undisturbed: Path, journal: Path) -> None:
    check_against_journal(undisturbed, journal)


def test_files_are_merged_beside_the_batches(
    spark: SparkSession, journal: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "FAN_IN", 2)
    monkeypatch.setattr(merging, "_LOOK_EVERY", 1)
    pipeline = Pipeline([journal], tmp_path / "w", spark=spark, options=SMALL)
    pipeline.run()
    assert pipeline._merger is not None
    assert pipeline._merger.merged > 0
    assert contents(tmp_path / "w") == contents(undisturbed)


def test_many_batches_give_what_one_gives(
    spark: SparkSession, journal: Path, undisturbed: Path, tmp_path: Path
) -> None:
    seen: list[int] = []
    pipeline = Pipeline([journal], tmp_path / "w", spark=spark, options=SMALL, report=lambda b: seen.append(b.number))
    summary = pipeline.run()
    assert summary.batches > 2
    assert seen == list(range(summary.batches))
    assert contents(tmp_path / "w") == contents(undisturbed)
    again = Pipeline([journal], tmp_path / "w", spark=spark).run()
    assert again.batches == 0
    assert contents(tmp_path / "w") == contents(undisturbed)


def test_every_reader_counts_the_same(spark: SparkSession, undisturbed: Path) -> None:
    warehouse = Warehouse.existing(undisturbed)
    for name, table in TABLES.items():
        folder = warehouse.folder(table)
        handle = tables.open_table(folder)
        frame = tables.read_spark(spark, folder, table, tables.files(handle, table))
        ((counted,),) = ask(undisturbed, f"select count(*) from {name}").rows
        assert frame.count() == counted == describe(undisturbed)[name].rows
        assert counted > 0 or name == "nodes"
        assert frame.columns == list(table.names)
        assert polars.read_delta(folder.url).height == counted


def test_sql_by_spark_answers_as_duckdb_does(spark: SparkSession, undisturbed: Path) -> None:
    query = (
        "select kind, topic, count(*) as n, max(time) as latest, min(body_size) as least from messages group by 1, 2"
    )
    by_spark, by_duckdb = ask_spark(undisturbed, query, spark), ask(undisturbed, query)
    assert by_spark.columns == by_duckdb.columns
    assert {row[:2]: row for row in by_spark.rows} == {row[:2]: row for row in by_duckdb.rows}
    assert len(by_spark.rows) == len(by_duckdb.rows) > 1
    query = "select body, attributes from messages where sequence = 0"
    answers = [ask_spark(undisturbed, query, spark).rows, ask(undisturbed, query).rows]
    one, other = ([(body or b"", sorted((more or {}).items())) for body, more in rows] for rows in answers)  # type: ignore[attr-defined]
    assert sorted(one) == sorted(other)
    with pytest.raises(ConfigError, match=r"the query does not work: .*the tables are messages, rejects"):
        ask_spark(undisturbed, "select nothing from messages", spark)
    with pytest.raises(ConfigError, match="there is no table 'message'; the tables are messages"):
        Warehouse.existing(undisturbed).read(spark, "message")


def test_a_killed_worker_is_replaced(spark: SparkSession, journal: Path, undisturbed: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    finished = threading.Event()

    def kill_one() -> None:
        while not killed and not finished.is_set():
            for process in psutil.Process().children(recursive=True):
                try:
                    parent = process.parent()
                    if parent and "wireloom.pipeline.daemon" in parent.cmdline() and process.cpu_times().user > 0:
                        process.kill()
                        killed.append(process.pid)
                        return
                except psutil.Error:
                    continue
            time.sleep(0.01)

    def reported(_: object) -> None:
        if not killed:
            threading.Thread(target=kill_one).start()

    try:
        Pipeline([journal], tmp_path / "w", spark=spark, options=SMALL, report=reported).run()
    finally:
        finished.set()
    assert killed
    assert contents(tmp_path / "w") == contents(undisturbed)


def test_a_growing_journal_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    source, warehouse = tmp_path / "journal", tmp_path / "w"
    make_journal(source, runs=10, long_runs=False, refusals=1)
    batches: list[int] = []
    pipeline = Pipeline([source], warehouse, spark=spark, report=lambda b: batches.append(b.messages))
    runner = threading.Thread(target=lambda: pipeline.run(once=False, interval=0.2))
    runner.start()
    try:
        wait_for(lambda: sum(batches) == len(expected_messages(source)))
        make_journal(source, runs=10, seed=2, long_runs=False, refusals=0, start_ns=START_NS + 10**12)
        wait_for(lambda: sum(batches) == len(expected_messages(source)))
    finally:
        pipeline.stop()
        runner.join(60)
    assert not runner.is_alive()
    check_against_journal(warehouse, source)
    cursor = load_state(next((source / "cursors").iterdir()))
    last = segments(source)[-1]
    assert cursor == {"segment": last.name, "position": last.stat().st_size}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_late_messages_are_counted_in_their_minute(spark: SparkSession, tmp_path: Path) -> None:
    first, second, warehouse = tmp_path / "a", tmp_path / "b", tmp_path / "w"
    make_journal(first, runs=30, long_runs=False, start_ns=START_NS + 10**11)
    Pipeline([first], warehouse, spark=spark).run()
    check_traffic(warehouse)
    make_journal(second, runs=60, seed=2, long_runs=False)
    Pipeline([first, second], warehouse, spark=spark).run()
    check_traffic(warehouse)
    total = len(expected_messages(first)) + len(expected_messages(second))
    assert describe(warehouse)["messages"].rows == total


def test_days_are_partitions(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path / "j", runs=40, long_runs=False, step_ns=6 * 3600 * 10**9)
    Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark).run()
    check_against_journal(tmp_path / "w", tmp_path / "j")
    days = ask(tmp_path / "w", "select distinct date::varchar from messages").rows
    found = {file.partition["date"] for file in _files(tmp_path / "w", MESSAGES)}
    assert len(found) > 3
    assert found == {day for (day,) in days}


def _files(warehouse: Path, table: tables.Table) -> list[tables.WrittenFile]:
    return tables.files(tables.open_table(open_store(warehouse / table.name)), table)


def test_a_lost_record_of_what_was_read_is_refused(
    spark: SparkSession, journal: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "w")
    make_journal(tmp_path / "j", runs=5, long_runs=False)
    Pipeline([journal, tmp_path / "j"], tmp_path / "w", spark=spark).run()
    shutil.rmtree(tmp_path / "w" / "_state")
    with pytest.raises(ConfigError, match=r"its record of what was read \(_state\) ends with -1"):
        Pipeline([journal, tmp_path / "j"], tmp_path / "w", spark=spark).run()


def test_an_error_in_a_worker_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path / "j", runs=1, refusals=0, long_runs=False)
    segments(tmp_path / "j")[0].write_bytes(b"no segment at all, but long enough to look at")
    with pytest.raises(PipelineFailed) as caught:
        Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark).run()
    assert "no journal segment: no pcapng section header" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_statistics_are_of_exactly_the_columns_that_the_table_names(undisturbed: Path) -> None:
    for table in (MESSAGES, REJECTS, TRAFFIC):
        logs = sorted((undisturbed / table.name / "_delta_log").glob("*.json"))
        adds = [json.loads(line)["add"] for log in logs for line in log.read_text().splitlines() if '"add"' in line]
        assert adds
        named = set(
            tables.open_table(open_store(str(undisturbed / table.name))).metadata().configuration[SKIPPING].split(",")
        )
        assert all(set(json.loads(add["stats"])["nullCount"]) == named for add in adds)
