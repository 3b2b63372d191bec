"""How far a warehouse is: the table `_state`, whose commit ends a batch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.model import ConfigError
from wireloom.pipeline import plans, tables
from wireloom.pipeline.planning import Offsets
from wireloom.pipeline.schemas import STATE, TABLES, arrow_schema
from wireloom.pipeline.tables import WrittenFile
from wireloom.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class State:
    """What the last finished batch left."""

    batch: int
    """Its number; -1 before the first."""
    watermark_us: int
    """The latest time of any message so far, in microseconds."""
    offsets: Offsets
    """How far each journal and each capture was read."""
    carried: Sequence[WrittenFile]
    """The files of `_state`: what is carried to the next batch."""

    @classmethod
    def read(cls, warehouse: Warehouse) -> State:
        """The newest one."""
        return cls.of(warehouse, tables.open_table(warehouse.folder(STATE)))

    @classmethod
    def of(cls, warehouse: Warehouse, handle: DeltaTable) -> State:
        """The one that a handle sees."""
        files = tables.files(handle, STATE)
        names = ["batch", "watermark", "step", "offsets"]
        rows = tables.read_arrow(warehouse.folder(STATE), STATE, files, names)
        rows = rows.set_column(1, "watermark", rows["watermark"].cast("int64"))
        for row in rows.to_pylist():
            if row["step"] is None:
                number, said = int(row["batch"]), row["offsets"]
                offsets = json.loads(said) if said is not None else _offsets_before(warehouse, number)
                return cls(number, int(row["watermark"] or 0), offsets, files)
        return cls(-1, 0, {}, files)


def _offsets_before(warehouse: Warehouse, batch: int) -> Offsets:
    """Where a batch of an earlier version ended: its plan tells, see `checkpoint.py`."""
    plan = plans.read(warehouse, batch)
    return {} if plan is None else plan.end


def write_head(warehouse: Warehouse, batch: int, watermark_us: int, offsets: Offsets | None) -> WrittenFile:
    """Write the row that says how far the pipeline is, for a commit to come."""
    import pyarrow as pa

    now = time.time_ns() // 1000
    said = None if offsets is None else json.dumps(offsets, sort_keys=True)
    row = [batch, warehouse.application, watermark_us, now, None, None, said]
    schema = arrow_schema(STATE.columns)
    rows = pa.table([pa.array([v], f.type) for v, f in zip(row, schema, strict=True)], schema=schema)
    return tables.write_rows(warehouse.folder(STATE), STATE, rows, {})


def check(warehouse: Warehouse, state: State) -> None:
    """Raise an error if `_state` is behind the tables by more than one batch, the one that was begun.

    Otherwise new input would be read under batch numbers that the tables have already, and would be skipped.
    """
    for table in TABLES.values():
        known = tables.open_table(warehouse.folder(table)).transaction_version(warehouse.application)
        if known is not None and known > state.batch + 1:
            raise ConfigError(
                f"the tables of warehouse {warehouse.url} are at batch {known}, and its record of what was read "
                f"({STATE.name}) ends with {state.batch}: restore it from a backup, or begin a new warehouse"
            )
