"""The second job of a batch: the final join of the partial aggregates.

Runs in Spark's workers. Each task takes some buckets. It reads the partial aggregates of all decoding tasks and the
state carried from the last batch. It writes rows into the tables' folders, and the new state into `_state`. The driver
gets one report row per file, and no data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from wireloom.pipeline import partials, tables
from wireloom.pipeline.decode_job import REPORT, Report, report, write_table
from wireloom.pipeline.merging import merge_files
from wireloom.pipeline.pair_kernel import Clock
from wireloom.pipeline.schemas import (
    EXCHANGES,
    FINDINGS,
    NODES,
    SESSIONS,
    STATE,
    TRAFFIC,
    Table,
    arrow_schema,
    spark_schema,
)
from wireloom.pipeline.spark_session import described, parallelism
from wireloom.pipeline.steps import audit, exchanges_join, exchanges_partial, nodes, sessions, traffic
from wireloom.pipeline.tables import WrittenFile
from wireloom.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    from wireloom.pipeline.decode_job import DecodeJob
    from wireloom.pipeline.warehouse import Warehouse

_ROWS_A_TASK = 50_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of the join tasks."""

    warehouse: Store
    batch: int
    query: str
    clock: Clock
    facts: Mapping[str, Sequence[str]]
    """Names of the files with partial aggregates, by kind."""
    carried: Sequence[WrittenFile]
    """Files of `_state` with the state carried from the last batch."""
    traffic: Sequence[WrittenFile] | None
    """Files of `traffic` whose rows may change; None if `traffic` is already committed for this batch."""
    tasks: int


class SparkWorkers:
    """The workers of a Spark session, on this machine or elsewhere; see `decode_job.py` for what they report."""

    def __init__(self, spark: SparkSession, job: DecodeJob, partitions: Sequence[InputPartition], batch: int) -> None:
        self.spark, self.job, self.partitions, self.batch = spark, job, partitions, batch
        self.tasks = parallelism(self.spark)

    def decode(self) -> list[Report]:
        """Run the decode job, with one task per partition."""
        job, partitions = self.job, self.partitions

        def decode_partition_of_task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from job.run(partitions[number])

        numbers = self.spark.range(0, len(partitions), 1, max(len(partitions), 1))
        with described(self.spark, f"wireloom batch {self.batch}: decode, write messages and rejects"):
            decoded = numbers.mapInArrow(decode_partition_of_task, spark_schema(REPORT))
            return [Report.of(row) for row in decoded.collect()]

    def join(self, plan: Plan) -> list[Report]:
        """Run the join job. Each task joins the partial aggregates of some buckets."""
        numbers = self.spark.range(0, plan.tasks, 1, plan.tasks)

        def join_facts_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from join_facts(plan, number)

        text = f"wireloom batch {self.batch}: join, write exchanges, sessions, traffic, findings and nodes"
        with described(self.spark, text):
            joined = numbers.mapInArrow(join_facts_of_task, spark_schema(REPORT))
            return [Report.of(row) for row in joined.collect()]


def merge_in_task(spark: SparkSession, warehouse: Warehouse) -> Callable[[Table, list[WrittenFile]], WrittenFile]:
    """Merges files in a task of Spark, for `Merger`."""

    def work(table: Table, group: list[WrittenFile]) -> WrittenFile:
        folder = warehouse.folder(table)

        def merge_group(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    yield report(table.name, merge_files(folder, table, group))

        with described(spark, f"wireloom: merge {len(group)} files of {table.name}"):
            merged = spark.range(0, 1, 1, 1).mapInArrow(merge_group, spark_schema(REPORT))
            (row,) = merged.collect()
        return Report.of(row).file

    return work


def tasks_for(reports: Sequence[Report], most: int) -> int:
    """The number of join tasks: one per 50,000 partial rows, at most `most`."""
    rows = sum(report.file.rows for report in reports if report.table in partials.FACTS)
    return max(1, min(most, rows // _ROWS_A_TASK, exchanges_partial.BUCKETS))


def join_facts(plan: Plan, task: int) -> Iterator[pa.RecordBatch]:
    """Run one join task; yields a report per file."""
    warehouse = plan.warehouse
    carried = _carried(warehouse, plan.carried)

    def gathered(kind: str) -> pa.Table:
        new = partials.read(warehouse, plan.facts.get(kind, ()), kind, task, plan.tasks)
        return pa.concat_tables([new, *(partials.of_task(rows, task, plan.tasks) for rows in carried.get(kind, ()))])

    known = sessions.join(gathered("visits"), plan.clock)
    yield from write_table(warehouse, SESSIONS, known.sessions)
    yield from write_table(warehouse, SESSIONS, known.open_sessions, held=True)
    spoken = exchanges_join.join(
        gathered("turns"), gathered("marks"), known.endings, plan.clock, known.without_past, gathered("received")
    )
    yield from write_table(warehouse, EXCHANGES, spoken.exchanges)
    yield from write_table(warehouse, EXCHANGES, spoken.open_exchanges, held=True)
    replays, seen = audit.join(gathered("packets"), gathered("seen"), plan.clock)
    yield from write_table(warehouse, FINDINGS, pa.concat_tables([spoken.findings, replays]))
    yield from write_table(warehouse, FINDINGS, spoken.open_findings, held=True)
    known_nodes, sightings = nodes.join(gathered("sightings"), plan.clock)
    yield from write_table(warehouse, NODES, known_nodes)
    if plan.traffic is not None:
        changing = traffic.as_counts(tables.read_arrow(warehouse.below(TRAFFIC.name), TRAFFIC, plan.traffic))
        counts = pa.concat_tables([gathered("minutes"), partials.of_task(changing, task, plan.tasks)])
        yield from write_table(warehouse, TRAFFIC, traffic.join(counts, traffic.over_before(plan.clock.watermark_us)))
    state = {
        "turns": spoken.turns,
        "received": spoken.received,
        "visits": known.visits,
        "sightings": sightings,
        "seen": seen,
    }
    yield from write_table(warehouse, STATE, _state_rows(plan, state))


def _carried(warehouse: Store, files: Sequence[WrittenFile]) -> dict[str, list[pa.Table]]:
    """The state carried from the last batch, by kind."""
    found: dict[str, list[pa.Table]] = {}
    for row in tables.read_arrow(warehouse.below(STATE.name), STATE, files, ["step", "rows"]).to_pylist():
        if row["step"] is not None:
            found.setdefault(row["step"], []).append(partials.unpack(row["rows"], row["step"]))
    return found


def _state_rows(plan: Plan, carried: Mapping[str, pa.Table]) -> pa.Table:
    now = time.time_ns() // 1000
    rows = [
        (plan.batch, plan.query, plan.clock.watermark_us, now, kind, partials.pack(table), None)
        for kind, table in carried.items()
        if table.num_rows
    ]
    schema = arrow_schema(STATE.columns)
    if not rows:
        return schema.empty_table()
    values = zip(*rows, strict=True)
    return pa.table([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)
