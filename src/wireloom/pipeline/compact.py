"""Merges small files of a warehouse into larger ones, and deletes files that no snapshot needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.schemas import STATE, TABLES, Table
from wireloom.pipeline.warehouse import Warehouse

TARGET = 64 << 20
"""Files are merged until they have about so many bytes."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a table: its files before and after, how many files were deleted, and its bytes now."""

    before: int
    after: int
    deleted: int
    bytes: int


def compact(
    warehouse: Path | str, *, keep_hours: float = tables.KEPT_HOURS, target: int = TARGET
) -> dict[str, Compacted]:
    """Compact every table of a warehouse; no pipeline may write it meanwhile.

    Rows and their values stay as they are. Files of the last `keep_hours` stay for those who still read an older
    snapshot.
    """
    if not 0 <= keep_hours < math.inf:
        raise ConfigError(f"files cannot be kept for {keep_hours} hours: it must be a number from 0 on, such as 24")
    found = Warehouse.existing(warehouse)
    done = {}
    with found.locked():
        found.match_folders()
        for name, table in TABLES.items():
            folder = found.folder(table)
            before = tables.files(tables.open_table(folder), table)
            for group in small_files(before, target):
                _merge(found, table, group)
            deleted = tables.tidy(folder, keep_hours)
            after = tables.files(tables.open_table(folder), table)
            done[name] = Compacted(len(before), len(after), deleted, sum(file.size for file in after))
        tables.tidy(found.folder(STATE), keep_hours)
    return done


def small_files(files: Sequence[tables.WrittenFile], target: int) -> list[list[tables.WrittenFile]]:
    """Files of one partition each that are worth merging; those that the next batch replaces are left alone."""
    groups: dict[tuple[tuple[str, str], ...], list[list[tables.WrittenFile]]] = {}
    for file in sorted(files, key=lambda each: each.path):
        if tables.is_held(file) or file.size >= target:
            continue
        known = groups.setdefault(tuple(sorted(file.partition.items())), [[]])
        if known[-1] and sum(each.size for each in known[-1]) + file.size > target:
            known.append([])
        known[-1].append(file)
    return [group for known in groups.values() for group in known if len(group) > 1]


def _merge(warehouse: Warehouse, table: Table, group: Sequence[tables.WrittenFile]) -> None:
    folder = warehouse.folder(table)
    handle = tables.open_table(folder)
    rows = tables.read_arrow(folder, table, group).select([column.name for column in table.stored])
    merged = tables.write_rows(folder, table, rows.combine_chunks(), group[0].partition)
    warehouse.replace(handle, table, [merged], group)
