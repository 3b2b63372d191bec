"""Compaction: merges small files of a table into larger ones, in order of time.

**The problem.** A table that gets a file per second has 86,400 files after a day. Each commit and each query reads the
list of all of them.

**The idea.** Read several files one after the other, and write their rows to a new file with large row groups. Then one
commit replaces the old files with the new one. Memory is bounded by one row group and the new file, however large the
table is.

**Which files** (`due`). Size-tiered compaction. The files of a partition are sorted into tiers: up to 64 KiB, up to
1 MiB, up to 16 MiB, and so on. When a tier has 16 files, they become one file of the next tier. So a row is rewritten
at most four times until its file has 64 MiB, and a partition has at most 15 files per tier. In partitions of earlier
days all small files are merged, whatever their tier.

**When** (`Merger`). A running pipeline merges in the background: a thread starts one Spark task for it. The thread that
commits batches also commits the merge, between two batches. So no batch waits for a merge, and no batch finds that a
file it has listed is gone. If a merge is not committed, its file is in no version of the table; `tidy` deletes it.

**The invariant.** A merge changes no row and no value. Files with open rows, which a later batch replaces, are not
merged.

**Example.** A batch per second writes files of 20 KiB. 16 of them become one file of about 320 KiB. 16 of those become
one of 5 MiB. When there are 16 of those, the first twelve become one of 60 MiB, which is not merged any more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from wireloom.pipeline import file_stats, tables
from wireloom.pipeline.schemas import TABLES, Table, arrow_schema
from wireloom.pipeline.tables import WrittenFile
from wireloom.store import Store, StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from wireloom.pipeline.warehouse import Warehouse

log = logging.getLogger("wireloom.pipeline")

TARGET = 64 << 20
"""The approximate size in bytes of a merged file."""
MOST_ROWS = 8_000_000
"""The approximate limit of rows in a merged file."""
_LOOK_EVERY = 8
"""Without a merge under way, look for files to merge every so many batches."""
_ROW_GROUP_BYTES = 32 << 20
"""A row group is complete with this many bytes, however few rows it has."""


def small_files(handle: DeltaTable, table: Table, target: int = TARGET) -> list[list[WrittenFile]]:
    """Groups of small files, each of one partition and in order of time, that can be merged.

    Held files are not merged. They contain the rows that a later batch may replace. So no batch looks for a file that
    was merged.
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


FAN_IN = 16
"""So many files of one tier are merged into one."""
_SMALLEST = 64 << 10
_MOST_AT_ONCE = 4 * FAN_IN
"""Limit of files in one merge. It keeps a merge short, so that few new files arrive meanwhile."""


def due(handle: DeltaTable, table: Table) -> list[WrittenFile]:
    """The files to be merged next, in order of time; empty if no merge is due."""
    first = tables.first_times(handle)
    own = [file for file in tables.files(handle, table) if not tables.is_held(file) and file.size < TARGET // 2]
    newest = max((file.partition.get("date", "") for file in own), default="")
    groups: dict[tuple[tuple[tuple[str, str], ...], int], list[WrittenFile]] = {}
    for file in sorted(own, key=lambda each: (first.get(each.path, 0), each.path)):
        is_past = file.partition.get("date", "") < newest
        size = -1 if is_past else _tier(file.size)
        groups.setdefault((tuple(sorted(file.partition.items())), size), []).append(file)
    for (_, size), files in groups.items():
        if len(files) >= (2 if size == -1 else FAN_IN):
            return _up_to_target(files[:_MOST_AT_ONCE])
    return []


def _tier(size: int) -> int:
    """The tier of a file of this size.

    >>> [_tier(size) for size in (1, 65536, 65537, 2**20, 2**24 + 1)]
    [0, 0, 1, 1, 3]
    """
    tier, limit = 0, _SMALLEST
    while size > limit:
        tier, limit = tier + 1, limit * FAN_IN
    return tier


def _up_to_target(files: Sequence[WrittenFile]) -> list[WrittenFile]:
    chosen = list(files[:2])
    for file in files[2:]:
        if sum(each.size for each in chosen) + file.size > TARGET or sum(each.rows for each in chosen) > MOST_ROWS:
            break
        chosen.append(file)
    return chosen


class Merger:
    """Merges the small files of a warehouse in the background of its batches.

    `work` merges files, which may take long. It is called in a separate thread, for one merge at a time. The thread
    that commits batches calls `after_batch` between two of them.
    """

    def __init__(self, warehouse: Warehouse, work: Callable[[Table, list[WrittenFile]], WrittenFile]) -> None:
        self.warehouse, self.work = warehouse, work
        self.merged = 0
        """How many files were merged so far."""
        self._pool = ThreadPoolExecutor(1, "wireloom-merge")
        self._under_way: tuple[Table, list[WrittenFile], Future[WrittenFile]] | None = None
        self._batches = 0

    def after_batch(self) -> None:
        """Commit the merge that has ended, and begin the next one if one is due."""
        if self._under_way is not None:
            table, group, future = self._under_way
            if not future.done():
                return
            self._under_way = None
            self._commit(table, group, future)
        self._batches += 1
        if self._batches % _LOOK_EVERY:
            return
        for table in TABLES.values():
            group = due(tables.open_table(self.warehouse.folder(table)), table)
            if group:
                self._under_way = table, group, self._pool.submit(self.work, table, group)
                self._batches -= 1  # look again after the next batch
                return

    def _commit(self, table: Table, group: list[WrittenFile], future: Future[WrittenFile]) -> None:
        try:
            if merge(self.warehouse, table, group, future.result()):
                self.merged += len(group)
        except (OSError, pa.ArrowException, StoreError) as error:
            # The table is unchanged: a later merge takes the same files.
            log.warning("files of %s were not merged: %s", table.name, error)

    def close(self) -> None:
        """Wait for the merge that is under way, without committing it."""
        self._pool.shutdown(cancel_futures=True)


def merge(warehouse: Warehouse, table: Table, group: Sequence[WrittenFile], merged: WrittenFile) -> bool:
    """Replace files with the one they were merged into; False if another commit came first."""
    from deltalake.exceptions import CommitFailedError

    handle = tables.open_table(warehouse.folder(table))
    present = {file.path for file in tables.files(handle, table)}
    if not present.issuperset(file.path for file in group):
        return False
    try:
        warehouse.replace(handle, table, [merged], group)
    except CommitFailedError as error:
        log.info("files of %s were not merged: %s", table.name, error)
        return False
    return True


def merge_files(folder: Store, table: Table, group: Sequence[WrittenFile]) -> WrittenFile:
    """Write the rows of some files of one partition to a new file, in this order. The new file is not committed yet."""
    import pyarrow.parquet as pq

    path = tables.new_path(table, group[0].partition)
    sink = pa.BufferOutputStream()
    schema = arrow_schema(table.stored)
    stats: list[str] = []
    with pq.ParquetWriter(sink, schema, **tables.parquet_options(table)) as writer:
        for rows in _row_groups(folder, table, schema, group):
            writer.write_table(rows, row_group_size=rows.num_rows)
            stats.append(file_stats.stats_of(rows, table))
    found = file_stats.combined(stats)
    written = sink.getvalue()
    tables.put_file(folder, path, written)
    return WrittenFile(path, json.loads(found)["numRecords"], written.size, dict(group[0].partition), found)


def _row_groups(folder: Store, table: Table, schema: pa.Schema, group: Sequence[WrittenFile]) -> Iterator[pa.Table]:
    """The rows of the files, as tables of one row group each."""
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


def _parts(folder: Store, file: WrittenFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, one table per row group. Columns that an older file does not have are null."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(tables.source_of(folder, file.path)) as opened:
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
