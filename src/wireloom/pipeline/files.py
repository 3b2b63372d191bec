"""Decodes and writes where the bytes are: a worker puts Parquet files into the tables' folders and hands
Spark one row a file. The driver commits what successful tasks report; see `run.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from wireloom.pipeline import tables
from wireloom.pipeline.options import Options
from wireloom.pipeline.schemas import MESSAGES, MINUTES, REJECTS, Column, Table, arrow_schema, spark_schema
from wireloom.pipeline.source import JournalStreamReader, partitions, ranges_of
from wireloom.pipeline.steps.traffic import count_minutes
from wireloom.pipeline.tables import WrittenFile, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

FORMAT = "wireloom_files"

REPORT = (
    Column("table", "string", "the table the file is for"),
    Column("path", "string", "where it is in the table's folder"),
    Column("rows", "bigint", "how many rows it holds"),
    Column("size", "bigint", "its bytes"),
    Column("partition", "string", "its partition, as JSON"),
    Column("first_us", "bigint", "the earliest time in it, microseconds since 1970"),
    Column("last_us", "bigint", "the latest time in it"),
)
"""What a worker reports of a file it wrote."""


@dataclass(frozen=True, slots=True)
class Report:
    """A file that a worker wrote, and the times of its rows."""

    table: str
    file: WrittenFile
    first_us: int
    last_us: int

    @classmethod
    def of(cls, row: Row) -> Report:
        """A report from the row Spark brought."""
        file = WrittenFile(row["path"], row["rows"], row["size"], json.loads(row["partition"]))
        return cls(row["table"], file, row["first_us"], row["last_us"])


class DecodedFiles(DataSource):
    """The format behind the pipeline: like `wireloom`, but its rows are the files it wrote."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self.warehouse = given.pop("warehouse")
        self.chosen = Options.parse(given)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """A row a file."""
        return spark_schema(REPORT)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader that writes."""
        return DecodingReader(self.chosen, self.warehouse)


class DecodingReader(JournalStreamReader):
    """Plans as the plain source does; reading a partition writes its tables."""

    def __init__(self, options: Options, warehouse: str) -> None:
        super().__init__(options)
        self.warehouse = warehouse

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """The new bytes of all lanes, refused ones too."""
        return partitions(self.options, start, end, refused=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the rows of one partition; yield what was written."""
        from wireloom.pipeline.decode import decode_range

        decoded = [decode_range(part) for part in ranges_of(partition)]
        yield from write_days(self.warehouse, MESSAGES, [d.messages for d in decoded])
        yield from write_days(self.warehouse, REJECTS, [d.rejects for d in decoded])
        counts = [count_minutes(d.messages) for d in decoded if d.messages.num_rows]
        if counts:
            file = write_rows(Path(self.warehouse) / MINUTES.name, MINUTES, pa.concat_tables(counts), {})
            yield _report(MINUTES, file, 0, 0)


def write_days(warehouse: str, table: Table, parts: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Write rows of a table that is sorted into days, a file a day; yield a report a file."""
    parts = [part for part in parts if part.num_rows]
    if not parts:
        return
    rows = parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries()
    days = rows["date"]
    bounds = pc.min_max(days).as_py()
    single = bounds["min"] == bounds["max"]
    for day in [bounds["min"]] if single else sorted(pc.unique(days).to_pylist()):
        own = rows if single else rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))
        times = pc.min_max(own["time"].cast(pa.int64())).as_py()
        file = write_rows(Path(warehouse) / table.name, table, own.drop_columns(["date"]), {"date": str(day)})
        yield _report(table, file, times["min"], times["max"])


def _report(table: Table, file: WrittenFile, first_us: int, last_us: int) -> pa.RecordBatch:
    values = [table.name, file.path, file.rows, file.size, json.dumps(file.partition), first_us, last_us]
    schema = arrow_schema(REPORT)
    arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_frame(rows: DataFrame, warehouse: str, table: Table) -> list[WrittenFile]:
    """Write a DataFrame as files of a table, each partition into its own; nothing is committed.

    The rows stay with the workers; the driver gets one line a file.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        whole = pa.Table.from_batches(kept)
        names = list(table.partition_by)
        for values in whole.select(names).group_by(names).aggregate([]).to_pylist():
            own = whole.filter(reduce(pc.and_, [pc.equal(whole[n], v) for n, v in values.items()]))
            partition = {name: tables.partition_text(value) for name, value in values.items()}
            stored = own.select([column.name for column in table.stored])
            file = write_rows(Path(warehouse) / table.name, table, stored, partition)
            yield _report(table, file, 0, 0)

    reported = rows.mapInArrow(write, spark_schema(REPORT)).collect()
    return [Report.of(row).file for row in reported]
