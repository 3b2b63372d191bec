"""Merges small files of a warehouse into larger ones, and deletes files that no snapshot needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.merging import TARGET, merge, merge_files, small_files
from wireloom.pipeline.schemas import STATE, TABLES
from wireloom.pipeline.warehouse import Warehouse


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
    """Compact every table of a warehouse; pipelines may write it meanwhile, except one of plain folders.

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
            handle = tables.open_table(folder)
            before = tables.files(handle, table)
            for group in small_files(handle, table, target):
                merge(found, table, group, merge_files(folder, table, group))
            deleted = tables.tidy(folder, keep_hours)
            after = tables.files(tables.open_table(folder), table)
            done[name] = Compacted(len(before), len(after), deleted, sum(file.size for file in after))
        tables.tidy(found.folder(STATE), keep_hours)
    return done
