"""Batches without Spark: the same code as in its workers, in this process, cut in any way a test likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from wireloom.pipeline import planning
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.decode_job import Report, write_decoded
from wireloom.pipeline.join_job import Plan, join_facts
from wireloom.pipeline.planning import Range
from wireloom.pipeline.query import ask
from wireloom.pipeline.schemas import TABLES
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import Store

Contents = dict[str, list[tuple[object, ...]]]


class LocalWorkers:
    """Does what Spark's workers do, one task after the other."""

    def __init__(self, warehouse: Store, groups: Sequence[Sequence[Range]], tasks: int = 1, trust: str = "") -> None:
        self.warehouse, self.groups, self.tasks, self.trust = warehouse, groups, tasks, trust

    def decode(self) -> list[Report]:
        return [
            Report.of(row)
            for group in self.groups
            for batch in write_decoded(self.warehouse, [(part, decode_range(part, self.trust)) for part in group])
            for row in batch.to_pylist()
        ]

    def join(self, plan: Plan) -> list[Report]:
        return [
            Report.of(row)
            for task in range(plan.tasks)
            for batch in join_facts(plan, task)
            for row in batch.to_pylist()
        ]


def new_warehouse(root: Path, table_format: str | None = None) -> Warehouse:
    """A warehouse as a driver finds it."""
    warehouse = Warehouse.prepared(root, table_format)
    warehouse.tidy()
    return warehouse


def run_batches(
    root: Path,
    batches: Sequence[Sequence[Sequence[Range]]],
    *,
    first: int = 0,
    tasks: int = 1,
    table_format: str | None = None,
) -> None:
    """Commit batches, each a list of tasks, each a list of ranges."""
    warehouse = new_warehouse(root, table_format)
    for number, groups in enumerate(batches, first):
        BatchCommit(warehouse, number, LocalWorkers(warehouse.store, groups, tasks)).commit()


def ranges(journal: Path) -> list[Range]:
    """Everything a journal holds."""
    inputs = [str(journal)]
    return planning.plan(inputs, {}, planning.latest(inputs))


def cut(parts: Sequence[Range], positions: Sequence[float]) -> list[list[Range]]:
    """Ranges cut at some places, each a fraction of the whole, into consecutive pieces."""
    total = sum(part.size for part in parts)
    marks = sorted({int(total * position) for position in positions} | {total})
    pieces: list[list[Range]] = [[]]
    done = 0
    for part in parts:
        start = part.start
        while start < part.end:
            room = marks[0] - done
            stop = min(part.end, start + room)
            if stop > start:
                pieces[-1].append(replace(part, start=start, end=stop))
            done += stop - start
            start = stop
            if done == marks[0] and done < total:
                marks.pop(0)
                pieces.append([])
    return [piece for piece in pieces if piece]


def contents(warehouse: Path | str) -> Contents:
    """Everything in the tables, in an order that does not depend on files."""
    return {name: sorted(ask(warehouse, f"select * from {name}").rows, key=repr) for name in TABLES}


def plain_contents(warehouse: Path) -> Contents:
    """The same from plain folders of Parquet, read by somebody who knows nothing of a warehouse."""
    found: Contents = {}
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in TABLES.items():
            if not list((warehouse / name).rglob("*.parquet")):
                found[name] = []
                continue
            types = ", ".join(f"'{c.name}': {c.type}" for c in table.columns if c.name in table.partition_by)
            folders = f"hive_partitioning=true, hive_types={{{types}}}" if types else "hive_partitioning=false"
            names = ", ".join(f'"{column}"' for column in table.names)
            query = (
                f"select {names} from read_parquet('{warehouse / name}/**/*.parquet', union_by_name=true, {folders})"
            )
            found[name] = sorted(connection.execute(query).fetchall(), key=repr)
    return found
