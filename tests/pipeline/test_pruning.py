"""Readers leave out files that cannot match: those files are emptied here, so that whoever opens one fails."""

from __future__ import annotations

import datetime
import struct
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.pipeline.batches import cut, ranges, run_batches
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.pipeline import file_stats, tables
from wireloom.pipeline.query import ask
from wireloom.pipeline.schemas import MESSAGES, TABLES
from wireloom.store import open_store

FILES = 8
LONG = "sensors/" + "x" * 60
START = datetime.datetime(2026, 11, 18, 12, tzinfo=datetime.UTC)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Files of `messages` that differ in their times and topics."""
    with Journal.open(tmp_path / "j") as journal:
        for number in range(FILES):
            connection = journal.new_connection_id()
            topics = {7: f"{LONG}/{number}" if number % 2 else f"t{number}"}
            for place in range(20):
                moment = START + datetime.timedelta(minutes=number, seconds=place)
                frame = struct.pack(">BHI", 0, 7, 4) + b"%04d" % place
                journal.append(
                    "hsp", connection, Direction.C2S, place, frame, topics=topics,
                    time_ns=int(moment.timestamp()) * 10**9,
                )  # fmt: skip
    pieces = cut(ranges(tmp_path / "j"), [each / FILES for each in range(1, FILES)])
    run_batches(tmp_path / "w", [[part] for part in pieces])
    return tmp_path / "w"


Asked = tuple[str, str, object]


def as_sql(asked: Asked) -> str:
    column, operator, value = asked
    return f"{column} {operator} '{value}'"


def by_duckdb(table: Path, asked: Asked) -> int:
    connection = duckdb.connect(":memory:")
    connection.execute("set timezone = 'UTC'")
    connection.register("messages", DeltaTable(str(table)).to_pyarrow_dataset())
    return int(connection.execute(f"select count(*) from messages where {as_sql(asked)}").fetchall()[0][0])


def by_polars(table: Path, asked: Asked) -> int:
    column, operator, value = asked
    own = polars.col(column)
    chosen = own == polars.lit(value) if operator == "=" else own >= polars.lit(value)
    return len(polars.scan_delta(str(table)).filter(chosen).collect())


def by_command(table: Path, asked: Asked) -> int:
    return int(str(ask(table.parent, f"select count(*) from messages where {as_sql(asked)}").rows[0][0]))


def by_deltalake(table: Path, asked: Asked) -> int:
    left = DeltaTable(str(table)).file_uris(file_pruning_predicate=as_sql(asked))
    rows = [pq.ParquetFile(each.removeprefix("file://")).read([asked[0]])[asked[0]].to_pylist() for each in left]
    return sum(each == asked[2] if asked[1] == "=" else each >= asked[2] for own in rows for each in own)


READERS = {"deltalake": by_deltalake, "duckdb": by_duckdb, "polars": by_polars, "wireloom sql": by_command}


def can_match(path: Path, asked: Asked) -> bool:
    column, operator, value = asked
    found = pq.ParquetFile(path).read([column])[column].to_pylist()
    least, most = min(found), max(found)
    if operator == ">=":
        return bool(most >= value)
    return least[: file_stats.LONGEST] <= value and (
        most >= value or most[: file_stats.LONGEST] == str(value)[: file_stats.LONGEST]
    )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "asked", [("topic", "=", "t4"), ("topic", "=", f"{LONG}/1"), ("time", ">=", START.replace(minute=6))]
)
def test_only_files_that_can_match_are_opened(
    warehouse: Path, reader: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MANY_FILES", 1)
    table = warehouse / "messages"
    files = [table / each.path for each in tables.files(tables.open_table(open_store(table)), MESSAGES)]
    expected = by_duckdb(table, asked)
    left = [path for path in files if can_match(path, asked)]
    for path in files:
        if path not in left:
            path.write_bytes(b"")
    assert 0 < len(left) < len(files)
    assert READERS[reader](table, asked) == expected > 0


def test_every_table_says_which_columns_have_statistics_and_keeps_its_changes(warehouse: Path) -> None:
    for name, table in TABLES.items():
        handle = DeltaTable(str(warehouse / name))
        known = handle.metadata().configuration
        assert known["delta.enableChangeDataFeed"] == "true"
        assert known.get("delta.dataSkippingStatsColumns", "") == ",".join(file_stats.columns_of(table))
    feed = pa.table(DeltaTable(str(warehouse / "messages")).load_cdf(starting_version=0).read_all())
    assert feed.num_rows == FILES * 20
    assert set(feed["_change_type"].to_pylist()) == {"insert"}


def test_rows_are_in_order_of_time_and_files_have_page_indexes(warehouse: Path) -> None:
    for file in tables.files(tables.open_table(open_store(warehouse / "messages")), MESSAGES):
        opened = pq.ParquetFile(warehouse / "messages" / file.path)
        times = opened.read(["time"])["time"].to_pylist()
        assert times == sorted(times)
        group = opened.metadata.row_group(0)
        columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
        assert columns["topic"].has_column_index
        assert columns["topic"].statistics.has_min_max
