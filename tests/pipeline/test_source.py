"""`spark.read.format("wireloom")` and `spark.readStream.format("wireloom")`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import GreaterThan

from tests.pipeline.journals import compared, expected_messages, expected_rejects, make_journal
from wireloom.model import ConfigError, JournalError
from wireloom.pipeline import planning
from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.filters import Wanted
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.schemas import MESSAGES, REJECTS, spark_schema
from wireloom.pipeline.source import partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_batch_reads_every_message(spark: SparkSession, journal: Path) -> None:
    frame = spark.read.format("wireloom").option("partitionBytes", "100k").load(str(journal))
    assert frame.schema == spark_schema(MESSAGES.columns)
    assert [field.metadata["comment"] for field in frame.schema] == [c.comment for c in MESSAGES.columns]
    assert frame.rdd.getNumPartitions() > 3
    assert compared([row.asDict() for row in frame.collect()]) == expected_messages(journal)


def test_batch_reads_rejects(spark: SparkSession, journal: Path) -> None:
    frame = spark.read.format("wireloom").option("table", "rejects").load(str(journal))
    assert frame.schema == spark_schema(REJECTS.columns)
    found = sorted(((r["clause"], r["size"], bytes(r["bytes"])) for r in frame.collect()), key=repr)
    assert found == expected_rejects(journal)


def test_stream_gives_what_batch_gives(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("wireloom").option("maxBytesPerTrigger", "500k").load(str(journal))
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(300)
    assert len(query.recentProgress) > 2
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert compared(rows) == expected_messages(journal)


def test_an_empty_journal_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path, runs=0, refusals=0)
    assert spark.read.format("wireloom").load(str(tmp_path)).count() == 0


def test_several_journals_are_one_table(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    make_journal(tmp_path / "other", runs=5, seed=9, long_runs=False)
    frame = spark.read.format("wireloom").load([str(journal), str(tmp_path / "other")])
    expected = len(expected_messages(journal)) + len(expected_messages(tmp_path / "other"))
    assert frame.count() == expected


def test_the_users_error_is_in_what_spark_raises(spark: SparkSession, journal: Path) -> None:
    with pytest.raises(
        Exception,
        match="unknown option 'tabel' of the format wireloom; known: auto, flowGroups, idle, keys, lateness, max",
    ):
        spark.read.format("wireloom").option("tabel", "rejects").load(str(journal))


@pytest.mark.parametrize("wrong", [{"tabel": "rejects"}, {"path": "/nowhere/journal"}])
def test_a_users_mistake_is_told_in_one_line_without_a_traceback(
    spark: SparkSession, journal: Path, wrong: dict[str, str]
) -> None:
    with pytest.raises(Exception, match=r"Error: ") as raised:
        spark.read.format("wireloom").options(**{"path": str(journal), **wrong}).load()
    assert "Traceback" not in str(raised.value)
    told, _, _ = str(raised.value).partition("SQLSTATE")
    assert len(told.strip().splitlines()) == 1


FILTERS = [
    "protocol = 'hsp'",
    "kind = 'request' and protocol in ('hsp', 'emp')",
    "topic like 'sensors/%'",
    "topic = 'no such topic'",
    "time >= timestamp '2100-01-01'",
    "date = date '1970-01-01'",
    "kind is null or protocol = 'hsp'",
    "not (protocol = 'hsp')",
    "sequence > 3 and direction = 's2c'",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_the_rows_that_it_gives_on_all_rows(spark: SparkSession, journal: Path, condition: str) -> None:
    every = spark.createDataFrame(
        spark.read.format("wireloom").load(str(journal)).toArrow()  # no filter reaches the source
    )
    filtered = spark.read.format("wireloom").load(str(journal)).where(condition)
    assert sorted(map(str, filtered.collect())) == sorted(map(str, every.where(condition).collect()))


def test_filters_of_time_and_connection_choose_blocks(spark: SparkSession, journal: Path) -> None:
    rows = sorted(spark.read.format("wireloom").load(str(journal)).select("time", "connection").collect())
    middle, connection = rows[len(rows) // 2]
    frame = spark.read.format("wireloom").load(str(journal))
    assert frame.where(frame.time > middle).count() == sum(row.time > middle for row in rows)
    assert frame.where(frame.time == middle).count() == sum(row.time == middle for row in rows)
    assert frame.where(frame.connection == connection).count() == sum(row.connection == connection for row in rows)


def test_blocks_that_cannot_match_are_not_decoded(journal: Path) -> None:
    parts = planning.plan([str(journal)], {}, planning.latest([str(journal)]))
    whole = [decode_range(part).messages for part in parts if not part.refused]
    connection = whole[0]["connection"][0].as_py()
    times = sorted(time for table in whole for time in table["time"].to_pylist())
    for wanted, matches in (
        (Wanted(words={"connection": frozenset({connection})}), lambda row: row["connection"] == connection),
        (Wanted.of([GreaterThan(("time",), times[-3])]), lambda row: row["time"] >= times[-3]),
    ):
        found = [decode_range(part, wanted=wanted).messages for part in parts if not part.refused]
        rows = [row for table in found for row in table.to_pylist()]
        expected = [row for table in whole for row in table.to_pylist() if matches(row)]
        assert [row for row in rows if matches(row)] == expected
        # Connections with calls to providers are decoded as a whole.
        assert 0 < len(expected) <= len(rows) < len(times)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "sessions"}, "option 'table' is 'sessions'; it must be messages or rejects"),
        ({"partitionBytes": "0"}, "option 'partitionBytes' is '0'; it must be a number of bytes such as 16m"),
        ({"maxBytesPerTrigger": "a lot"}, "option 'maxBytesPerTrigger' is 'a lot'"),
        ({"max_bytes": "1"}, "unknown option 'max_bytes'"),
    ],
)
def test_wrong_options_are_named(journal: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SourceOptions.parse({"path": str(journal), **options})


def test_there_are_as_many_tasks_for_each_core_of_the_cluster(tmp_path: Path) -> None:
    make_journal(tmp_path / "j", runs=40, seed=9, long_runs=True)
    chosen = SourceOptions.parse({"path": str(tmp_path / "j"), "partitionBytes": "300k"})
    end = planning.latest(chosen.inputs)
    size = sum(part.size for part in planning.plan(chosen.inputs, {}, end))
    for cores in (1, 2, 3):
        tasks = len(partitions(chosen, {}, end, refused=True, cores=cores))
        assert tasks * 300_000 >= size
        assert size < cores << 20 or tasks % cores == 0


def test_options_know_no_case(journal: Path) -> None:
    chosen = SourceOptions.parse({"path": str(journal), "PARTITIONBYTES": "2k", "Table": "rejects"})
    assert (chosen.partition_bytes, chosen.table) == (2048, REJECTS)


def test_a_path_that_is_no_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="does not exist"):
        SourceOptions.parse({"path": str(tmp_path / "nowhere")})
