"""Every table as a function from DataFrames to a DataFrame, to be used alone.

    from wireloom.pipeline import dataframes

    messages = spark.read.format("wireloom").load("data/journal")
    dataframes.exchanges(messages).where("outcome <> 'done'").show()

They give the rows that the pipeline writes, for as much as `messages` holds. What only a journal's records or a
capture's packets tell, such as why a connection was closed, is not in `messages`: there the pipeline knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from wireloom.pipeline.message_table import plain
from wireloom.pipeline.schemas import (
    EXCHANGES,
    FINDINGS,
    MESSAGES,
    NODES,
    REJECTS,
    SESSIONS,
    TRAFFIC,
    Column,
    Table,
    arrow_schema,
    spark_schema,
)
from wireloom.protocols.registry import protocols

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from wireloom.pipeline.pair_kernel import Clock
    from wireloom.pipeline.steps.exchanges_partial import Observed
    from wireloom.pipeline.steps.message_arrays import View


def exchanges(messages: DataFrame) -> DataFrame:
    """Requests and their outcomes; see the table `exchanges`."""

    def work(rows: pa.Table, clock: Clock) -> pa.Table:
        from wireloom.pipeline.steps import exchanges_partial

        found = exchanges_partial.observe(_view(rows))
        joined = _joined(found, rows, clock)
        return pa.concat_tables([plain(part, EXCHANGES) for part in (*found.exchanges, *joined[:2])])

    return _by(messages, "connection", EXCHANGES, work)


def findings(messages: DataFrame) -> DataFrame:
    """Rules of conversations that were broken; see the table `findings`. Packets are audited by the pipeline alone."""

    def work(rows: pa.Table, clock: Clock) -> pa.Table:
        from wireloom.pipeline.steps import exchanges_partial

        found = exchanges_partial.observe(_view(rows))
        joined = _joined(found, rows, clock)
        return pa.concat_tables([plain(part, FINDINGS) for part in (*found.findings, *joined[2:])])

    return _by(messages, "connection", FINDINGS, work)


def sessions(messages: DataFrame, rejects: DataFrame | None = None) -> DataFrame:
    """Connections as far as their messages tell; see the table `sessions`."""
    from pyspark.sql import functions as f

    if rejects is not None:
        shown = messages.select(*MESSAGES.names, f.lit(None).cast("string").alias("clause"))
        refused = rejects.select(
            *(f.col(n) if n in REJECTS.names else f.lit(None).cast(c.type).alias(n) for n, c in _columns(MESSAGES)),
            "clause",
            "size",
        )
        messages = shown.withColumn("size", f.lit(None).cast("int")).unionByName(refused)

    def work(rows: pa.Table, clock: Clock) -> pa.Table:
        import pyarrow.compute as pc

        from wireloom.pipeline.steps import sessions as step
        from wireloom.pipeline.steps.message_arrays import View

        refused = arrow_schema(REJECTS.columns).empty_table()
        said = rows
        if "clause" in rows.column_names:
            bad = pc.is_valid(rows["clause"])
            said = rows.filter(pc.invert(bad))
            dropped = rows.filter(bad)
            dropped = dropped.append_column("detail", pa.nulls(dropped.num_rows, pa.string()))
            dropped = dropped.append_column("bytes", pa.nulls(dropped.num_rows, pa.binary()))
            refused = dropped.select(list(REJECTS.names))
        joined = step.join(step.observe(_view(said), View(refused), step.EVENTS.empty_table(), "", ""), clock)
        return pa.concat_tables([plain(part, SESSIONS) for part in (joined.sessions, joined.open_sessions)])

    return _by(messages, "connection", SESSIONS, work)


def traffic(messages: DataFrame) -> DataFrame:
    """Messages and bytes a minute, protocol, topic and kind; see the table `traffic`."""

    def work(rows: pa.Table, clock: Clock) -> pa.Table:
        from wireloom.pipeline.steps import traffic as step

        return step.join(step.observe(_view(rows)), step.over_before(clock.watermark_us))

    return _by(messages, "topic", TRAFFIC, work)


def nodes(messages: DataFrame) -> DataFrame:
    """Nodes and how regularly they are heard of; see the table `nodes`."""
    from pyspark.sql import functions as f

    def work(rows: pa.Table, clock: Clock) -> pa.Table:
        from wireloom.pipeline.steps import nodes as step

        return step.join(step.observe(_view(rows)), clock)[0]

    attributes = sorted({name for each in protocols().values() if (name := each.conversation.node_attribute)})
    node = f.coalesce(*(f.col("attributes")[name] for name in attributes))
    return _by(messages.where(node.isNotNull()), node, NODES, work)


def _by(
    messages: DataFrame, key: str | SparkColumn, table: Table, work: Callable[[pa.Table, Clock], pa.Table]
) -> DataFrame:
    """Run a step on each group of rows that belong together, in Spark's workers."""
    from pyspark.sql import functions as f

    from wireloom.pipeline.pair_kernel import Clock

    (latest,) = messages.agg(f.max(f.unix_micros("time"))).collect()[0]
    clock = Clock(latest or 0)

    def over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            yield from plain(work(pa.Table.from_batches(rows), clock), table).to_batches()

    return messages.repartition(key).mapInArrow(over, spark_schema(table.columns))


def _view(rows: pa.Table) -> View:
    from wireloom.pipeline.steps.message_arrays import View, in_order

    return View(in_order(rows.combine_chunks()))


def _joined(found: Observed, rows: pa.Table, clock: Clock) -> tuple[pa.Table, ...]:
    """The final join of the turns: exchanges and findings, the final ones first."""
    import pyarrow.compute as pc

    from wireloom.pipeline.steps import exchanges_join, exchanges_partial, sessions

    begins = rows.group_by("connection").aggregate([("sequence", "min")])
    unseen = begins.filter(pc.greater(begins["sequence_min"], 0))["connection"].to_pylist()
    left = pa.concat_tables([exchanges_partial.TURNS.empty_table(), *found.turns])
    marks = pa.concat_tables([exchanges_partial.MARKS.empty_table(), *found.marks])
    joined = exchanges_join.join(left, marks, sessions.Endings(), clock, unseen)
    return joined.exchanges, joined.open_exchanges, joined.findings, joined.open_findings


def _columns(table: Table) -> list[tuple[str, Column]]:
    return [(column.name, column) for column in table.columns]
