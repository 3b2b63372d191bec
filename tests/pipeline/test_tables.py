"""Tables on disk: commits that happen once, and readers that agree."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.query import ask, ask_spark, describe
from wireloom.pipeline.schemas import STATE, TABLES, TRAFFIC, arrow_schema
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse.prepared(tmp_path / "warehouse")


def write(folder: Store, minutes: list[int], *, opened: bool) -> tables.WrittenFile:
    stored = arrow_schema(TRAFFIC.stored)
    rows = pa.Table.from_pylist(
        [
            {"minute": NOON + timedelta(minutes=m), "protocol": "hsp", "topic": "a", "kind": "event", "messages": 1, "bytes": 7}
            for m in minutes
        ],
        schema=stored,
    )  # fmt: skip
    return tables.write_rows(folder, TRAFFIC, rows, {"open": str(opened).lower(), "date": "2026-11-16"})


def test_what_is_not_committed_is_not_there(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    write(folder, [1, 2], opened=True)
    assert tables.summary(folder, TRAFFIC).rows == 0
    assert ask(warehouse.root, "select count(*) from traffic").rows == [(0,)]


def test_a_commit_adds_and_replaces_in_one_step(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    handle = tables.open_table(folder)
    tables.commit(handle, TRAFFIC, "q", 0, [write(folder, [1, 2], opened=True)])
    handle = tables.open_table(folder)
    assert tables.has_batch(handle, "q", 0)
    assert not tables.has_batch(handle, "q", 1)
    assert not tables.has_batch(handle, "another", 0)
    added = [write(folder, [1, 2], opened=False), write(folder, [3], opened=True)]
    tables.commit(handle, TRAFFIC, "q", 1, added, tables.files(handle, TRAFFIC, open="true"))
    assert ask(warehouse.root, "select open, count(*) from traffic group by 1 order by 1").rows == [
        (False, 2),
        (True, 1),
    ]


def test_a_second_writer_with_an_old_handle_fails_instead_of_doubling(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    first, second = tables.open_table(folder), tables.open_table(folder)
    tables.commit(first, TRAFFIC, "q", 0, [write(folder, [1], opened=False)])
    with pytest.raises(CommitFailedError):
        tables.commit(second, TRAFFIC, "q", 0, [write(folder, [1], opened=False)])
    assert tables.summary(folder, TRAFFIC).rows == 1


def test_every_reader_sees_the_same(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    handle = tables.open_table(folder)
    files = [write(folder, [1, 2], opened=False), write(folder, [3], opened=True)]
    tables.commit(handle, TRAFFIC, "q", 0, files)
    write(folder, [9], opened=True)
    handle = tables.open_table(folder)
    assert describe(warehouse.root)["traffic"].rows == 3
    assert ask(warehouse.root, "select sum(messages) from traffic").rows == [(3,)]
    rows = polars.read_delta(folder.url)
    assert rows["messages"].sum() == 3
    assert rows.columns == list(TRAFFIC.names)
    assert handle.to_pyarrow_table().num_rows == 3


ODD_NAMES = ["my warehouse", "it's #1?", "a[1] {b}*", "50% off"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_warehouse_may_have_any_name(name: str, tmp_path: Path) -> None:
    made = Warehouse.prepared(tmp_path / name)
    folder = made.folder(TRAFFIC)
    tables.commit(tables.open_table(folder), TRAFFIC, "q", 0, [write(folder, [1, 2], opened=False)])
    assert ask(made.root, "select sum(messages), max(date) from traffic").rows == [(2, date(2026, 11, 16))]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_a_warehouse_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        made = Warehouse.prepared(tmp_path / name)
        folder = made.folder(TRAFFIC)
        tables.commit(tables.open_table(folder), TRAFFIC, "q", 0, [write(folder, [1, 2], opened=False)])
        assert ask_spark(made.root, "select sum(messages), max(date) from traffic", spark).rows == [
            (2, date(2026, 11, 16))
        ]


def test_the_log_holds_schema_comments_and_partitions(warehouse: Warehouse) -> None:
    for name, table in TABLES.items():
        handle = DeltaTable(warehouse.folder(table).url)
        fields = handle.schema().fields
        assert [field.name for field in fields] == list(table.names)
        assert [field.metadata["comment"] for field in fields] == [column.comment for column in table.columns]
        assert handle.metadata().partition_columns == list(table.partition_by)
        assert handle.metadata().name == name


def test_empty_tables_have_their_columns_in_sql(warehouse: Warehouse) -> None:
    for name, table in TABLES.items():
        assert ask(warehouse.root, f"select * from {name}").columns == table.names


def test_sql_gives_times_in_utc_and_columns_in_order(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    tables.commit(tables.open_table(folder), TRAFFIC, "q", 0, [write(folder, [1], opened=True)])
    answer = ask(warehouse.root, "select * from traffic")
    assert answer.columns == TRAFFIC.names
    ((minute, *rest),) = answer.rows
    assert isinstance(minute, datetime)
    assert minute == NOON + timedelta(minutes=1)
    assert minute.utcoffset() == timedelta(0)
    assert rest == ["hsp", "a", "event", 1, 7, date(2026, 11, 16), True]


def test_a_wrong_query_is_one_line(warehouse: Warehouse) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(warehouse.root, "select nothing from messages")
    assert "nothing" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tables_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no table"):
        tables.open_table(open_store(tmp_path))


def test_state_is_a_table_of_its_own(warehouse: Warehouse) -> None:
    assert tables.summary(warehouse.folder(STATE), STATE).rows == 0
    assert STATE.name not in TABLES


def test_files_are_packed_by_zstd_and_have_dictionaries_where_values_repeat(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=61, steps=100)
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]])
    (path,) = (tmp_path / "w" / "messages").glob("date=*/*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema.partition(".")[0]: group.column(i) for i in range(group.num_columns)}
    assert {each.compression for each in columns.values()} == {"ZSTD"}
    for name in ("body", "message_id", "correlation_id", "sequence", "offset"):
        assert not columns[name].has_dictionary_page, name
    for name in ("connection", "topic", "kind", "protocol", "source"):
        assert columns[name].has_dictionary_page, name


def test_old_files_that_nobody_needs_are_deleted(warehouse: Warehouse) -> None:
    folder = warehouse.folder(TRAFFIC)
    kept, orphan, fresh = (write(folder, [minute], opened=False) for minute in range(3))
    tables.commit(tables.open_table(folder), TRAFFIC, "q", 0, [kept])
    for file in (kept, orphan):
        os.utime(Path(folder.url) / file.path, (0, 0))
    assert tables.tidy(folder) == 1
    assert {p.name for p in Path(folder.url).rglob("*.parquet")} == {Path(kept.path).name, Path(fresh.path).name}
    version = tables.open_table(folder).version()
    assert tables.tidy(folder) == 0
    assert tables.open_table(folder).version() == version
