"""The first job of a batch: workers decode the input and write Parquet files into the tables' folders.

A worker returns one report row per file to Spark. The driver commits the files that successful tasks report; see
`batch.py`. The driver imports this module before Spark runs, so slow imports are made where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from wireloom.pipeline import tables
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.schemas import (
    EXCHANGES,
    FINDINGS,
    LEFT_OUT,
    MESSAGES,
    REJECTS,
    Column,
    Table,
    arrow_schema,
)
from wireloom.pipeline.source import FlowGroup, decoded_parts, input_of
from wireloom.pipeline.tables import WrittenFile, write_rows
from wireloom.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Row

    from wireloom.pipeline.decode import DecodedRange
    from wireloom.pipeline.planning import Range

INPUT = "_input"
"""The name of the report that tells how many input files and bytes a task read."""
PORTION = 1 << 28
"""Rows of so many bytes are written together."""

REPORT = (
    Column("table", "string", "the table the file is for, or the kind of facts in it"),
    Column("path", "string", "where it is in the table's folder"),
    Column("rows", "bigint", "how many rows it holds"),
    Column("size", "bigint", "its bytes"),
    Column("partition", "string", "its partition, as JSON"),
    Column("first_us", "bigint", "the earliest time in it, microseconds since 1970"),
    Column("last_us", "bigint", "the latest time in it"),
    Column("stats", "string", "its statistics, as JSON"),
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
    def of(cls, row: Row | Mapping[str, Any]) -> Report:
        """A report from the row it was brought in."""
        file = WrittenFile(row["path"], row["rows"], row["size"], json.loads(row["partition"]), row["stats"])
        return cls(row["table"], file, row["first_us"], row["last_us"])


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """The first job of a batch. It is pickled and sent to the workers."""

    options: SourceOptions
    warehouse: Store
    only_messages: bool = False

    def run(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the rows of one partition; yield what was written."""
        for found in in_portions(decoded_parts(self.options, partition)):
            yield from write_decoded(self.warehouse, found, only_messages=self.only_messages)
        files, size = input_of(partition)
        yield report(INPUT, WrittenFile("", files, size, {}))
        if isinstance(partition, FlowGroup) and partition.counts.other_packets:
            counts = partition.counts
            yield report(LEFT_OUT, WrittenFile("", counts.other_packets, counts.other_bytes, {}))


def in_portions(parts: Iterable[tuple[Range, DecodedRange]]) -> Iterator[list[tuple[Range, DecodedRange]]]:
    """Collect parts until they are large enough for a file. Memory is bounded, however large a partition is."""
    portion: list[tuple[Range, DecodedRange]] = []
    size = 0
    for part in parts:
        portion.append(part)
        size += part[1].messages.nbytes
        if size > PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def write_decoded(
    warehouse: Store, decoded: Sequence[tuple[Range, DecodedRange]], *, only_messages: bool = False
) -> Iterator[pa.RecordBatch]:
    """Write the rows of some ranges, and their partial aggregates; yield a report per file."""
    from wireloom.pipeline import partials
    from wireloom.pipeline.steps import sessions
    from wireloom.pipeline.steps.message_arrays import View, in_order

    messages = partials.together([found.messages for _, found in decoded])
    # Sort by time: readers can then skip files and row groups by their time statistics.
    messages = None if messages is None else in_order(messages)
    rejects = partials.together([found.rejects for _, found in decoded])
    if messages is not None:
        yield from write_table(warehouse, MESSAGES, messages)
    if rejects is not None:
        yield from write_table(warehouse, REJECTS, rejects)
    if only_messages:
        return
    observed = partials.observe(
        arrow_schema(MESSAGES.columns).empty_table() if messages is None else messages,
        visits=[
            sessions.observe(
                View(found.messages), View(found.rejects), found.events, part.journal, part.name or part.file
            )
            for part, found in decoded
            if not part.refused
        ],
        packets=[found.packets for _, found in decoded if found.packets is not None],
        midstream=sessions.midstream([found.events for _, found in decoded]),
    )
    if observed.exchanges is not None:
        yield from write_table(warehouse, EXCHANGES, observed.exchanges)
    of_packets = [found.findings for _, found in decoded if found.findings is not None]
    findings = partials.together([*of_packets, *observed.findings])
    if findings is not None:
        yield from write_table(warehouse, FINDINGS, findings)
    for kind, rows in observed.facts.items():
        name, size = partials.write(warehouse, rows)
        yield report(kind, WrittenFile(name, rows.num_rows, size, {}))


def write_table(warehouse: Store, table: Table, rows: pa.Table, *, held: bool = False) -> Iterator[pa.RecordBatch]:
    """Write rows of a table, each partition into a file of its own; yield a report a file."""
    import pyarrow.compute as pc

    if not rows.num_rows:
        return
    stored = rows.select([column.name for column in table.stored])
    for partition, chosen in _partitions(rows, table.partition_by):
        own = stored if chosen is None else stored.filter(chosen)
        file = write_rows(warehouse.below(table.name), table, own, partition, held=held)
        first_us = last_us = 0
        if "time" in own.column_names:
            times = pc.min_max(own["time"].cast(pa.int64())).as_py()
            first_us, last_us = times["min"], times["max"]
        yield report(table.name, file, first_us, last_us)


def _partitions(rows: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[dict[str, str], pa.Array | None]]:
    """The partitions that some rows fall into, and which rows: None for all of them."""
    import pyarrow.compute as pc

    bounds = [pc.min_max(rows[name]).as_py() for name in names]
    if all(bound["min"] == bound["max"] for bound in bounds):
        yield {n: tables.partition_text(b["min"]) for n, b in zip(names, bounds, strict=True)}, None
        return
    for values in rows.select(list(names)).group_by(list(names)).aggregate([]).to_pylist():
        chosen = reduce(pc.and_, [pc.equal(rows[name], value) for name, value in values.items()])
        yield {name: tables.partition_text(value) for name, value in values.items()}, chosen


def report(name: str, file: WrittenFile, first_us: int = 0, last_us: int = 0) -> pa.RecordBatch:
    """What is reported of a file."""
    values = [name, file.path, file.rows, file.size, json.dumps(file.partition), first_us, last_us, file.stats]
    schema = arrow_schema(REPORT)
    arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
