"""Takes over a warehouse of an earlier version, which kept Spark's record of what was read beside its tables.

checkpoint/metadata     the id of the streaming query, under which tables were committed
checkpoint/offsets/N    how far batch N goes; written before it begins

This happens once. Afterwards the warehouse has an id of its own, the positions of its last batch stand in a plan, and
nothing reads the checkpoint any more.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa

from wireloom.model import ConfigError
from wireloom.pipeline import partials, planning, plans, tables
from wireloom.pipeline.extents import folder_extents
from wireloom.pipeline.planning import Offsets
from wireloom.pipeline.plans import BatchPlan
from wireloom.pipeline.schemas import STATE, TABLES
from wireloom.pipeline.state import State
from wireloom.pipeline.warehouse import CHECKPOINT, Warehouse
from wireloom.store import ObjectMissing


def take_over(warehouse: Warehouse) -> Warehouse:
    """The same warehouse, with an id; one that has an id is left as it is. Killed amid this, it is done again."""
    if warehouse.application:
        return warehouse
    query = _query(warehouse)
    handles = [tables.open_table(warehouse.folder(table)) for table in (*TABLES.values(), STATE)]
    if query is None:
        # Tables that were only created, or widened, hold nothing.
        if any(handle.get_add_actions().num_rows for handle in handles):
            raise _lost(warehouse)
        return warehouse.describe(str(uuid.uuid4()))
    done = State.read(warehouse).batch
    begun = _offsets(warehouse, done + 1)
    before: Offsets = {}
    if done >= 0:
        said = _offsets(warehouse, done)
        if said is None:
            raise _lost(warehouse)
        before = planning.renamed(said)
        plans.propose(warehouse, BatchPlan(done, {}, before))
        _rename_lanes(warehouse, said)
    for handle in handles:
        known = handle.transaction_version(query)
        if known is not None and known > done + (begun is not None):
            raise _lost(warehouse)
    if begun is not None:
        plans.propose(warehouse, BatchPlan(done + 1, before, planning.renamed(begun)))
    return warehouse.describe(query)


def _lost(warehouse: Warehouse) -> ConfigError:
    return ConfigError(
        f"the checkpoint of warehouse {warehouse.url} is lost or of another run ({warehouse.url}/{CHECKPOINT}), so "
        "what its tables hold is unknown: restore it from a backup, or begin a new warehouse"
    )


def _query(warehouse: Warehouse) -> str | None:
    try:
        return str(json.loads(warehouse.base.get(f"{CHECKPOINT}/metadata"))["id"])
    except ObjectMissing:
        return None


def _offsets(warehouse: Warehouse, batch: int) -> Offsets | None:
    """How far a batch goes; None if it was never begun."""
    try:
        lines = warehouse.base.get(f"{CHECKPOINT}/offsets/{batch}").decode().splitlines()
    except ObjectMissing:
        return None
    return dict(json.loads(lines[2])) if len(lines) > 2 else {}


def _rename_lanes(warehouse: Warehouse, offsets: Offsets) -> None:
    """Connections that are open were known by the folder of their journal; from now on they are by the hub."""
    from wireloom.pipeline.upgrade import replace_rows

    names = {}
    for lane in offsets:
        if Path(lane).is_dir():
            for extent in folder_extents(lane):
                if extent.epoch:
                    names[lane] = extent.journal
    replace_rows(warehouse, STATE, lambda rows: _renamed(rows, names))


def _renamed(rows: pa.Table, names: dict[str, str]) -> pa.Table | None:
    packed, is_changed = [], False
    for step, carried in zip(rows["step"].to_pylist(), rows["rows"].to_pylist(), strict=True):
        if step == "visits":
            visits = partials.unpack(carried, step)
            lanes = [names.get(lane, lane) for lane in visits["lane"].to_pylist()]
            if lanes != visits["lane"].to_pylist():
                at = visits.schema.get_field_index("lane")
                visits = visits.set_column(at, visits.schema.field(at), pa.array(lanes, pa.string()))
                carried, is_changed = partials.pack(visits), True  # noqa: PLW2901
        packed.append(carried)
    at = rows.schema.get_field_index("rows")
    return rows.set_column(at, rows.schema.field(at), pa.array(packed, pa.binary())) if is_changed else None
