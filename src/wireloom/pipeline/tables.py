"""Tables in a store. Only this module knows that they are Delta Lake tables.

Workers write Parquet files into a table's folder (`write_rows`). Readers do not see them until the driver commits them
(`commit`). A commit stores the number of its batch. So a batch that is run again, after a crash or by a second driver,
changes nothing. Files that were never committed stay invisible, and are deleted later.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wireloom.model import ConfigError
from wireloom.pipeline import file_stats
from wireloom.pipeline.schemas import TABLES, Table, arrow_schema, spark_schema
from wireloom.store import Store
from wireloom.store.folder import FolderStore

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession

DIFFERING = frozenset({"body", "message_id", "correlation_id", "request_id", "bytes", "rows"})
"""Columns whose values hardly repeat: they are written without a dictionary, which would only cost time."""
ASCENDING = frozenset({"sequence", "offset", "time", "requested_at", "opened_at"})
"""Columns of numbers and times that mostly grow by a little: they are delta-encoded."""

HELD = "held-"
"""The names of files that the next batch replaces begin with this."""
MANY_FILES = 200
"""A table with more files is asked by way of the log."""
ROW_GROUP = 1 << 18
"""Rows of a file that have statistics of their own: so many are read where one is wanted."""
_TRIES = 6
"""How often a table is opened while its store fails."""
KEPT_HOURS = 24
"""So long the files of an earlier version of a table are kept, for those who read it."""

_DUCKDB = {
    "timestamp": "timestamptz",
    "string": "varchar",
    "binary": "blob",
    "map<string,string>": "map(varchar, varchar)",
}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file of a table, committed or about to be. `path` is relative to the table's folder."""

    path: str
    rows: int
    size: int
    partition: Mapping[str, str]
    stats: str = ""
    """What the log says of its columns, see `file_stats.py`; nothing in files of earlier versions."""

    def logged(self) -> str:
        """Its statistics as they stand in the log."""
        return self.stats or f'{{"numRecords":{self.rows}}}'


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a table holds right now."""

    rows: int
    files: int
    bytes: int
    version: int
    committed_ns: int


def write_rows(
    folder: Store, table: Table, rows: pa.Table, partition: Mapping[str, str], *, held: bool = False
) -> WrittenFile:
    """Write rows of one partition as a new file that no commit knows yet.

    `rows` has the stored columns of the table; dictionary arrays are welcome where values repeat. `held` rows are
    right for what has been read so far, and their file is replaced by the next batch.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = new_path(table, partition, held=held)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=ROW_GROUP, **parquet_options(table))
    written = sink.getvalue()
    put_file(folder, path, written)
    return WrittenFile(path, rows.num_rows, written.size, dict(partition), file_stats.stats_of(rows, table))


def new_path(table: Table, partition: Mapping[str, str], *, held: bool = False) -> str:
    """A name for a new file of a partition, in the table's folder."""
    place = "".join(f"{name}={partition[name]}/" for name in table.partition_by)
    return f"{place}{HELD if held else ''}{uuid.uuid4().hex}.parquet"


def parquet_options(table: Table) -> dict[str, Any]:
    """How the files of a table are written."""
    names = [column.name for column in table.stored]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [name for name in names if name not in DIFFERING | ASCENDING],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in names if name in ASCENDING},
        "write_statistics": file_stats.columns_of(table),
        "write_page_index": True,
        "store_schema": False,
        "coerce_timestamps": "us",
    }


def put_file(folder: Store, path: str, content: pa.Buffer) -> None:
    """Write a file that is not committed yet. On disk it is not synced: the commit syncs all files at once."""
    if not isinstance(folder, FolderStore):
        folder.put(path, content.to_pybytes())
        return
    target = folder.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(content)


def create(folder: Store, table: Table) -> None:
    """Create an empty table, unless it is there; one of an older version gets the columns it lacks."""
    from deltalake import DeltaTable, Schema

    made = DeltaTable.create(
        folder.delta_url(),
        arrow_schema(table.columns),
        mode="ignore",
        partition_by=list(table.partition_by),
        name=table.name,
        description=table.comment,
        configuration=_properties(table),
        storage_options=folder.delta_options(),
    )
    _set_properties(made, table)
    known = {field.name for field in made.schema().fields}
    if lacking := tuple(column for column in table.columns if column.name not in known):
        made.alter.add_columns(list(Schema.from_arrow(arrow_schema(lacking)).fields))


def _properties(table: Table) -> dict[str, str]:
    feed = {"delta.enableChangeDataFeed": "true"} if table.name in TABLES else {}
    return {"delta.checkpointInterval": "10", **feed, **file_stats.properties(table)}


def _set_properties(handle: DeltaTable, table: Table) -> None:
    """Give a table of an older version the properties it lacks."""
    known = handle.metadata().configuration
    if lacking := {name: value for name, value in _properties(table).items() if known.get(name) != value}:
        handle.alter.set_table_properties(lacking)


def open_table(folder: Store) -> DeltaTable:
    """A handle on the newest version of a table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    for left in reversed(range(_TRIES)):
        try:
            return DeltaTable(folder.delta_url(), storage_options=folder.delta_options())
        except TableNotFoundError:
            raise ConfigError(f"{folder.url} is no table: run `wireloom pipeline run` on its warehouse first") from None
        except OSError:
            # The package does not ask again for an answer that was cut off.
            if not left:
                raise
            time.sleep(0.2)
    raise AssertionError("unreachable")


def commit(
    handle: DeltaTable,
    table: Table,
    application: str,
    batch: int,
    added: Sequence[WrittenFile],
    removed: Iterable[WrittenFile] = (),
) -> None:
    """Make files part of the table, and others no longer, in one step that carries the batch's number.

    `handle` must be the one that said the batch is not there yet (see `has_batch`): if another process
    committed in between, this fails instead of doubling rows.
    """
    from deltalake import CommitProperties, Transaction

    done = [Transaction(application, batch)]
    _write(handle, table, added, removed, CommitProperties(app_transactions=done), changes=True)


def replace(
    handle: DeltaTable,
    table: Table,
    application: str,
    added: Sequence[WrittenFile],
    removed: Sequence[WrittenFile],
    *,
    changes: bool = False,
) -> None:
    """Put files in the place of others that hold the same rows, or, if it `changes`, those rows told anew.

    It carries the number of the last batch. So of this and of a batch that is committed meanwhile one fails: a batch
    never replaces files that are gone already, whose rows would stay.
    """
    from deltalake import CommitProperties, Transaction

    batch = handle.transaction_version(application) if application else None
    fence = None if batch is None else CommitProperties(app_transactions=[Transaction(application, batch)])
    _write(handle, table, added, removed, fence, changes=changes)


def _write(
    handle: DeltaTable,
    table: Table,
    added: Sequence[WrittenFile],
    removed: Iterable[WrittenFile],
    properties: CommitProperties | None,
    *,
    changes: bool,
) -> None:
    from deltalake.transaction import AddAction, RemoveAction

    now = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, dict(file.partition), now, changes, file.logged()) for file in added
    ]
    actions += [RemoveAction(f.path, changes, now, f.size, dict(f.partition)) for f in removed]
    if actions:
        handle.create_write_transaction(
            actions,
            mode="append",
            schema=handle.schema(),
            partition_by=list(table.partition_by),
            commit_properties=properties,
        )


def tidy(folder: Store, keep_hours: float = KEPT_HOURS) -> int:
    """Delete files that no version of the last day needs, and those that were never committed; how many.

    A day is far longer than a batch: files that a running batch has written are not touched.
    """
    handle = open_table(folder)
    for dry_run in (True, False):
        found = handle.vacuum(math.ceil(keep_hours), dry_run=dry_run, enforce_retention_duration=False, full=True)
        if not found:
            return 0
    return len(found)


def has_batch(handle: DeltaTable, application: str, batch: int) -> bool:
    """Whether the table has this batch, or a later one, already."""
    version = handle.transaction_version(application)
    return version is not None and version >= batch


def files(handle: DeltaTable, table: Table, **partition: str) -> list[WrittenFile]:
    """The files of the table's version that `handle` sees, all or those of some partitions."""
    actions = handle.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")}
    values = {name: actions.column(f"partition.{name}").to_pylist() for name in table.partition_by}
    found = []
    for row, path in enumerate(columns["path"]):
        own = {name: partition_text(values[name][row]) for name in table.partition_by}
        if all(own[name] == wanted for name, wanted in partition.items()):
            found.append(WrittenFile(path, columns["num_records"][row], columns["size_bytes"][row], own))
    return found


def first_times(handle: DeltaTable) -> dict[str, int]:
    """The earliest time in each file, microseconds since 1970; files of earlier versions do not say."""
    import pyarrow as pa

    actions = pa.table(handle.get_add_actions(flatten=True))
    names = [f"min.{name}" for name in file_stats.TIMES if f"min.{name}" in actions.column_names]
    if not names:
        return {}
    times = actions[names[0]].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return {path: time for path, time in zip(actions["path"].to_pylist(), times, strict=True) if time is not None}


def held_files(handle: DeltaTable, table: Table) -> list[WrittenFile]:
    """The files of rows that the next batch replaces."""
    return [file for file in files(handle, table) if is_held(file)]


def is_held(file: WrittenFile) -> bool:
    """Whether the next batch replaces the file."""
    return file.path.rpartition("/")[2].startswith(HELD)


def partition_text(value: object) -> str:
    """A partition's value as it stands in the log and in the folder's name."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def summary(folder: Store, table: Table) -> TableSummary:
    """How large a table is, from its log alone."""
    handle = open_table(folder)
    own = files(handle, table)
    committed = handle.history(1)[0]["timestamp"]
    return TableSummary(
        sum(f.rows for f in own), len(own), sum(f.size for f in own), handle.version(), committed * 1_000_000
    )


def read_spark(spark: SparkSession, folder: Store, table: Table, chosen: Sequence[WrittenFile]) -> DataFrame:
    """Files of a table as a DataFrame with the table's columns in order.

    Spark reads files on disk itself. Those in a bucket are read by its Python workers: the Spark of the package has no
    client of object stores.
    """
    schema = spark_schema(table.columns)
    if not chosen:
        return spark.createDataFrame([], schema)
    if not isinstance(folder, FolderStore):
        return _read_in_tasks(spark, folder, table, chosen)
    # Spark takes paths for patterns.
    paths = [re.sub(r"([\\\[\]{}*?])", r"\\\1", str(folder.folder / file.path)) for file in chosen]
    rows = spark.read.schema(schema).option("basePath", str(folder.folder)).parquet(*paths)
    return rows.select(*table.names)


def _read_in_tasks(spark: SparkSession, folder: Store, table: Table, chosen: Sequence[WrittenFile]) -> DataFrame:
    """Files of a table, each read by a task of its own."""

    def read_files_of_task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_arrow(folder, table, [chosen[number]]).to_batches(max_chunksize=1 << 16)

    numbers = spark.range(0, len(chosen), 1, len(chosen))
    return numbers.mapInArrow(read_files_of_task, spark_schema(table.columns))


def source_of(folder: Store, path: str) -> str | pa.BufferReader:
    """A file of a table as a source for Parquet readers: its path, or its bytes if it is in a bucket."""
    import pyarrow as pa

    return str(folder.folder / path) if isinstance(folder, FolderStore) else pa.BufferReader(folder.get(path))


def read_arrow(
    folder: Store, table: Table, chosen: Sequence[WrittenFile], columns: Sequence[str] | None = None
) -> pa.Table:
    """Files of a table as an Arrow table with the table's columns in order, or some of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(tuple(each for each in table.columns if columns is None or each.name in columns))
    found = [schema.empty_table()]
    for file in chosen:
        with pq.ParquetFile(source_of(folder, file.path)) as opened:
            rows = opened.read([name for name in schema.names if name in opened.schema_arrow.names])
        partition = {name: pa.array([file.partition[name]] * rows.num_rows) for name in table.partition_by}
        known = {**{name: rows[name] for name in rows.column_names}, **partition}
        values = [
            known[field.name].cast(field.type) if field.name in known else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        found.append(pa.table(values, schema=schema))
    return pa.concat_tables(found)


def attach_duckdb(connection: duckdb.DuckDBPyConnection, folder: Store, table: Table) -> None:
    """Make the newest version of a table a view of that name in DuckDB.

    DuckDB reads Parquet files ten times as fast by itself, but opens all of them. As a dataset, files that the log
    rules out are not opened: with many files, or in a bucket, that is what counts.
    """
    handle = open_table(folder)
    known = files(handle, table)
    if len(known) > MANY_FILES or not isinstance(folder, FolderStore):
        connection.register(table.name, handle.to_pyarrow_dataset())
        return
    # Not the addresses that the handle gives: in these a blank in the folder's name is no blank.
    paths = [str(folder.folder / file.path) for file in known]
    columns = [f'cast(null as {_DUCKDB.get(c.type, c.type)}) as "{c.name}"' for c in table.columns]
    empty = f"select {', '.join(columns)} where false"
    names = ", ".join(f'"{name}"' for name in table.names)
    if not paths:
        connection.execute(f'create view "{table.name}" as {empty}')
        return
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    types = ", ".join(f"'{c.name}': {c.type}" for c in table.columns if c.name in table.partition_by)
    folders = f"hive_partitioning=true, hive_types={{{types}}}" if types else "hive_partitioning=false"
    # By name: files of an older version may lack a column.
    connection.execute(
        f'create view "{table.name}" as select {names} from ({empty} union all by name select * from '  # noqa: S608
        f"read_parquet([{listed}], union_by_name=true, {folders}))"
    )
