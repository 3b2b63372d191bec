"""Runs the pipeline: a streaming query whose batches are decoded by the workers and committed here.

The order within a batch is what makes a kill at any moment harmless: first the tables, `_state` last.
Whatever of a batch is committed already is left alone when the batch is done again; whatever is not is
made again from the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.model import ConfigError, WireloomError
from wireloom.pipeline import tables
from wireloom.pipeline.options import Options
from wireloom.pipeline.schemas import MESSAGES, MINUTES, REJECTS, STATE, TABLES, TRAFFIC
from wireloom.pipeline.steps.traffic import DELAY_S, MINUTE_US
from wireloom.pipeline.warehouse import Warehouse, write_json

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from wireloom.pipeline.files import Report

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIDY_EVERY = 500
"""After so many batches, files that nobody needs any more are deleted; also at every start."""


class PipelineFailed(WireloomError):
    """A run ended early; the text says why. Started again, it goes on where it was."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch brought."""

    number: int
    messages: int
    rejects: int
    seconds: float


@dataclass(slots=True)
class Summary:
    """What a run brought."""

    batches: int = 0
    messages: int = 0
    rejects: int = 0
    seconds: float = 0.0

    def add(self, batch: Batch) -> None:
        """Count a batch in."""
        self.batches += 1
        self.messages += batch.messages
        self.rejects += batch.rejects


class Pipeline:
    """Journals in, tables out.

        Pipeline(["data/journal"], "data/warehouse").run(once=True)

    `spark` is a session to use; by default one is started (see `session.py`) and stopped at the end.
    `report` is called after every batch, `note` with a line for the user now and then. `options` are those of
    the data source.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        warehouse: str | Path,
        *,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        report: Callable[[Batch], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        given = {"paths": json.dumps([str(path) for path in inputs]), **(options or {})}
        self.inputs = Options.parse(given).inputs
        self.warehouse = Warehouse.prepared(warehouse)
        self.summary = Summary()
        self._master, self._conf, self._options = master, dict(conf or {}), dict(options or {})
        self._note = note
        self._spark = spark
        self._report = report
        self._between_batches = threading.Lock()
        self._stopping = False

    def run(self, *, once: bool = True, interval: float = 1.0) -> Summary:
        """Read everything that is there (`once`), or go on until `stop`; `interval` is in seconds."""
        began = time.monotonic()
        with self.warehouse.locked():
            self.warehouse.check_checkpoint()
            self.warehouse.tidy()
            own = self._spark is None
            spark = self._spark or self._start_session()
            try:
                self._run(spark, once, interval)
            finally:
                if own:
                    with contextlib.suppress(Exception):
                        spark.stop()
        self.summary.seconds = time.monotonic() - began
        return self.summary

    def stop(self) -> None:
        """End a run after its current batch. May be called from any thread and from a signal handler."""
        self._stopping = True

    def _start_session(self) -> SparkSession:
        from wireloom.pipeline.session import start_session, warm_up

        if self._note is not None:
            self._note(f"starting Spark on {self._master or 'all cores of this machine'}")
        spark = start_session(self._master, self._conf, "wireloom pipeline", quick=True)
        threading.Thread(target=warm_up, args=(spark,), daemon=True).start()
        return spark

    def _run(self, spark: SparkSession, once: bool, interval: float) -> None:
        try:
            query = self._start_query(spark, once, interval)
            while not query.awaitTermination(1):
                if self._stopping:
                    # No batch can begin while the lock is held, and none is under way.
                    with self._between_batches:
                        query.stop()
        except Exception as error:
            if not self._stopping:
                raise explain(error) from error

    def _start_query(self, spark: SparkSession, once: bool, interval: float) -> StreamingQuery:
        from wireloom.pipeline.files import FORMAT
        from wireloom.pipeline.session import register

        register(spark)
        reader = spark.readStream.format(FORMAT).option("warehouse", str(self.warehouse.root))
        for name, value in self._options.items():
            reader = reader.option(name, value)
        found = reader.option("paths", json.dumps(self.inputs)).load()
        writer = (
            found.writeStream.queryName("wireloom")
            .option("checkpointLocation", str(self.warehouse.checkpoint))
            .foreachBatch(self._batch)
        )
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{interval} seconds")
        return writer.start()

    def _batch(self, found: DataFrame, number: int) -> None:
        with self._between_batches:
            if self._stopping:
                raise PipelineFailed("stopped")
            began = time.monotonic()
            done = BatchCommit(found.sparkSession, self.warehouse, number).commit(found)
            leave_cursors(self.warehouse, number)
            if number % _TIDY_EVERY == _TIDY_EVERY - 1:
                self.warehouse.tidy()
            batch = Batch(number, done[MESSAGES.name], done[REJECTS.name], time.monotonic() - began)
            self.summary.add(batch)
        if self._report is not None:
            self._report(batch)


class BatchCommit:
    """One batch on its way into the tables."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, number: int) -> None:
        self.spark = spark
        self.warehouse = warehouse
        self.number = number
        query = warehouse.query_id()
        if query is None:
            raise PipelineFailed(f"{warehouse.checkpoint} vanished while the pipeline ran: restore it and start again")
        self.query = query

    def commit(self, found: DataFrame) -> dict[str, int]:
        """Decode the batch, commit its tables; the number of rows by table."""
        from wireloom.pipeline.files import Report

        state = tables.open_table(self.warehouse.folder(STATE))
        if tables.has_batch(state, self.query, self.number):
            return dict.fromkeys(TABLES, 0)
        reports = [Report.of(row) for row in found.collect()]
        counts = [report.file for report in reports if report.table == MINUTES.name]
        unused = [self.warehouse.folder(MINUTES) / file.path for file in counts]
        for table in (MESSAGES, REJECTS):
            own = [report.file for report in reports if report.table == table.name]
            handle = tables.open_table(self.warehouse.folder(table))
            if tables.has_batch(handle, self.query, self.number):
                unused += [self.warehouse.folder(table) / file.path for file in own]
            else:
                tables.commit(handle, table, self.query, self.number, own)
        before = _watermark(self.warehouse, state)
        messages = [report for report in reports if report.table == MESSAGES.name]
        watermark = max([before, *(report.last_us for report in messages)])
        self._commit_traffic(messages, counts, before, watermark)
        self._commit_state(state, watermark)
        for path in unused:
            path.unlink(missing_ok=True)
        return {t: sum(r.file.rows for r in reports if r.table == t) for t in TABLES}

    def _commit_traffic(
        self, messages: Sequence[Report], counts: Sequence[tables.WrittenFile], before: int, watermark: int
    ) -> None:
        """Add the new counts to the rows that may still change, and put the result in their place."""
        from wireloom.pipeline.files import write_frame
        from wireloom.pipeline.steps.traffic import traffic

        folder = self.warehouse.folder(TRAFFIC)
        handle = tables.open_table(folder)
        if not messages or tables.has_batch(handle, self.query, self.number):
            return
        replaced = tables.files(handle, TRAFFIC, open="true")
        # Late messages reopen the days they belong to; without any, closed rows are not even read.
        late = {m.file.partition["date"] for m in messages if m.first_us < over_before(before)}
        for day in sorted(late):
            replaced += tables.files(handle, TRAFFIC, open="false", date=day)
        new = tables.read_spark(self.spark, self.warehouse.folder(MINUTES), MINUTES, counts)
        carried = tables.read_spark(self.spark, folder, TRAFFIC, replaced)
        rows = traffic(new, carried, _EPOCH + timedelta(microseconds=over_before(watermark)))
        added = write_frame(rows.coalesce(1), str(self.warehouse.root), TRAFFIC)
        tables.commit(handle, TRAFFIC, self.query, self.number, added, replaced)

    def _commit_state(self, handle: DeltaTable, watermark: int) -> None:
        import pyarrow as pa

        from wireloom.pipeline.schemas import arrow_schema

        now = time.time_ns() // 1000
        row = [[self.number], [self.query], [watermark], [now]]
        schema = arrow_schema(STATE.columns)
        rows = pa.table([pa.array(v, f.type) for v, f in zip(row, schema, strict=True)], schema=schema)
        written = tables.write_rows(self.warehouse.folder(STATE), STATE, rows, {})
        tables.commit(handle, STATE, self.query, self.number, [written], tables.files(handle, STATE))


def over_before(watermark_us: int) -> int:
    """The beginning of the first minute that is not over, when `watermark_us` is the latest time seen.

    >>> over_before(185_000_000)
    120000000
    """
    return max(watermark_us - DELAY_S * 1_000_000, 0) // MINUTE_US * MINUTE_US


def _watermark(warehouse: Warehouse, handle: DeltaTable) -> int:
    """The latest time of any message up to the last finished batch, in microseconds."""
    import pyarrow.parquet as pq

    for file in tables.files(handle, STATE):
        rows = pq.read_table(warehouse.folder(STATE) / file.path, columns=["watermark"], partitioning=None)
        return int(rows["watermark"].cast("int64")[0].as_py())
    return 0


def leave_cursors(warehouse: Warehouse, batch: int) -> None:
    """Tell each journal how far this pipeline is, so that retention spares what it has not read.

    A journal on a medium that cannot be written to has no retention either.
    """
    name = f"{warehouse.query_id()}.json"
    for lane, position in warehouse.offsets(batch).items():
        folder = Path(lane) / "cursors"
        with contextlib.suppress(OSError):
            if Path(lane).is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                write_json(folder / name, position)


def explain(error: Exception) -> WireloomError:
    """What went wrong in Spark, in one line: our own error if there is one inside, else its first line."""
    text = str(error)
    own = [line for line in text.splitlines() if line.strip().startswith("wireloom.")]
    if own:
        name, _, line = own[-1].strip().partition(": ")
        kind = ConfigError if name.endswith("ConfigError") else PipelineFailed
        return kind(line)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return PipelineFailed(f"Spark gave up: {first.strip()}; run the same command again to go on where it was")
