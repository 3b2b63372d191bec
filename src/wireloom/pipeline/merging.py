"""Merges small files of a table into one, a part at a time, in order of time.

A table that gets a file a second has 86,400 of them after a day, and each commit and each query looks at all. Merging
reads one file after the other and writes row groups of a size that readers like; memory is bounded by one row group and
the compressed file, however large the table is. Rows and values stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from wireloom.pipeline import file_stats, tables
from wireloom.pipeline.schemas import Table, arrow_schema
from wireloom.pipeline.tables import WrittenFile

if TYPE_CHECKING:
    from deltalake import DeltaTable

TARGET = 64 << 20
"""Files are merged until they have about so many bytes."""
MOST_ROWS = 8_000_000
"""A merged file has at most about so many rows."""
_ROW_GROUP_BYTES = 32 << 20
"""Rows of so many bytes become a row group, even if they are few."""


def small_files(handle: DeltaTable, table: Table, target: int = TARGET) -> list[list[WrittenFile]]:
    """Files of one partition each that are worth merging, in order of time; held ones are left alone.

    Rows that a later batch may replace are in held files only. So no batch ever looks for a file that was merged.
    """
    first = tables.first_times(handle)
    groups: dict[tuple[tuple[str, str], ...], list[list[WrittenFile]]] = {}
    for file in sorted(tables.files(handle, table), key=lambda each: (first.get(each.path, 0), each.path)):
        if tables.is_held(file) or file.size >= target // 2:
            continue
        known = groups.setdefault(tuple(sorted(file.partition.items())), [[]])
        size, rows = sum(each.size for each in known[-1]), sum(each.rows for each in known[-1])
        if known[-1] and (size + file.size > target or rows + file.rows > MOST_ROWS):
            known.append([])
        known[-1].append(file)
    return [group for known in groups.values() for group in known if len(group) > 1]


def merge_files(folder: Path, table: Table, group: Sequence[WrittenFile]) -> WrittenFile:
    """Write the rows of some files of one partition, in this order, as a new file that no commit knows yet."""
    import pyarrow.parquet as pq

    path = tables.new_path(table, group[0].partition)
    target = folder / path
    schema = arrow_schema(table.stored)
    stats: list[str] = []
    with pq.ParquetWriter(target, schema, **tables.parquet_options(table)) as writer:
        for rows in _row_groups(folder, table, schema, group):
            writer.write_table(rows, row_group_size=rows.num_rows)
            stats.append(file_stats.stats_of(rows, table))
    found = file_stats.combined(stats)
    return WrittenFile(path, json.loads(found)["numRecords"], target.stat().st_size, dict(group[0].partition), found)


def _row_groups(folder: Path, table: Table, schema: pa.Schema, group: Sequence[WrittenFile]) -> Iterator[pa.Table]:
    """The rows of files, in portions of a row group each."""
    parts: list[pa.Table] = []
    rows = size = 0
    for file in group:
        for part in _parts(folder, file, schema):
            parts.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows >= tables.ROW_GROUP or size >= _ROW_GROUP_BYTES:
                yield pa.concat_tables(parts)
                parts, rows, size = [], 0, 0
    if rows or not group:
        yield pa.concat_tables(parts)


def _parts(folder: Path, file: WrittenFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time; columns that an older file lacks are null."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(folder / file.path) as opened:
        for number in range(opened.num_row_groups):
            rows = opened.read_row_group(number)
            known = {name: rows[name] for name in rows.column_names}
            yield pa.table(
                [
                    known[field.name].cast(field.type) if field.name in known else pa.nulls(rows.num_rows, field.type)
                    for field in schema
                ],
                schema=schema,
            )
