"""Runs the pipeline: a streaming query whose batches are decoded by the workers and committed by `batch.py`."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.journal.disk import LOCAL, Disk, make_folders
from wireloom.journal.retention import CURSORS
from wireloom.journal.state import save_state
from wireloom.model import ConfigError, WireloomError
from wireloom.pipeline import planning
from wireloom.pipeline.batch import BatchCommit, PipelineFailed
from wireloom.pipeline.captures import planning as captures
from wireloom.pipeline.options import Options
from wireloom.pipeline.schemas import LEFT_OUT, MESSAGES, REJECTS
from wireloom.pipeline.spark_session import is_remote
from wireloom.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from wireloom.pipeline.merging import Merger

_STARTS = 5
_TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a planner ten seconds to start, which a busy machine may not have. A query can be started again at any
time: it goes on where it was."""
_TIDY_EVERY = 500
"""After so many batches, files that nobody needs any more are deleted; also at every start."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one batch brought."""

    number: int
    messages: int
    rejects: int
    seconds: float
    files: int = 0
    """How many files of the input it began."""
    bytes: int = 0
    """How many bytes of the input it read."""
    bytes_left: int = 0
    """How many bytes of the input were not read yet when it was done."""
    left_out: int = 0
    """Packets in captures that belong to no connection of ours."""


@dataclass(slots=True)
class Summary:
    """What a run brought."""

    batches: int = 0
    messages: int = 0
    rejects: int = 0
    seconds: float = 0.0
    left_out: int = 0

    def add(self, batch: MicroBatch) -> None:
        """Count a batch in."""
        self.batches += 1
        self.messages += batch.messages
        self.rejects += batch.rejects
        self.left_out += batch.left_out


class Pipeline:
    """Journals in, tables out.

        Pipeline(["data/journal"], "data/warehouse").run(once=True)

    `spark` is a session to use, also one of Spark Connect; by default one is started on `master`, or through `remote`
    (see `session.py`), and stopped at the end. `report` is called after every batch, `note` with a line for the user
    now and then. `options` are those of the data source. With `only_messages` the tables beside `messages` and
    `rejects` are left as they are. `table_format` is `delta` (the default) or `parquet`: how the tables of a new
    warehouse are stored.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        warehouse: str | Path,
        *,
        master: str | None = None,
        remote: str | None = None,
        conf: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        report: Callable[[MicroBatch], None] | None = None,
        note: Callable[[str], None] | None = None,
        only_messages: bool = False,
        table_format: str | None = None,
    ) -> None:
        given = {"paths": json.dumps([str(path) for path in inputs]), **(options or {})}
        parsed = Options.parse(given)
        self.inputs = parsed.inputs
        self._lateness_us = int(parsed.lateness_s * 1_000_000)
        self.warehouse = Warehouse.prepared(warehouse, table_format)
        self.summary = Summary()
        if master and remote:
            raise ConfigError(
                "the pipeline runs either on a master or through Spark Connect: give 'master' or 'remote'"
            )
        self._master, self._remote = master, remote
        self._conf, self._options = dict(conf or {}), dict(options or {})
        self._note = note
        self._only_messages = only_messages
        self._spark = spark
        self._report = report
        self._between_batches = threading.Lock()
        self._stopping = False
        self._merger: Merger | None = None

    def run(self, *, once: bool = True, interval: float = 1.0, query: bool | None = None) -> Summary:
        """Read everything that is there (`once`), or go on until `stop`; `interval` is in seconds.

        `query` says whether that is done by a streaming query of Spark. With `once` it need not be, and without one it
        begins seconds sooner; by default it is where a session was given, whose owner may follow its queries.
        """
        if not 0 <= interval < math.inf:
            raise ConfigError(f"an interval of {interval} seconds: it must be a number from 0 on, such as 1")
        from wireloom.pipeline.join_job import merge_in_task
        from wireloom.pipeline.merging import Merger

        began = time.monotonic()
        with self.warehouse.locked():
            self.warehouse.check_checkpoint()
            self.warehouse.tidy()
            own = self._spark is None
            spark = self._spark or self._start_session()
            self._merger = None if is_remote(spark) else Merger(self.warehouse, merge_in_task(spark, self.warehouse))
            try:
                by_query = not own if query is None else query
                if once and not by_query:
                    self._run_once(spark)
                else:
                    self._run(spark, once, interval)
            finally:
                if self._merger is not None:
                    self._merger.close()
                if own:
                    with contextlib.suppress(Exception):
                        spark.stop()
        self.summary.seconds = time.monotonic() - began
        return self.summary

    def _run_once(self, spark: SparkSession) -> None:
        """Without a streaming query, where that can be done."""
        from wireloom.pipeline import once
        from wireloom.pipeline.checkpoint import Checkpoint
        from wireloom.pipeline.decode_job import DecodedFiles

        if not once.can_plan(spark):
            self._run(spark, True, 0)
            return
        source = DecodedFiles(self._source_options())
        reader = source.streamReader(source.schema())
        try:
            for batch in once.batches(spark, reader, Checkpoint(self.warehouse.checkpoint)):
                self._batch(batch.found, batch.number)
        except Exception as error:
            if self._stopping:
                return
            raise error if isinstance(error, WireloomError) else explain(error) from error

    def stop(self) -> None:
        """End a run after its current batch. May be called from any thread and from a signal handler."""
        self._stopping = True

    def _start_session(self) -> SparkSession:
        from wireloom.pipeline.spark_session import start_session, warm_up

        if self._note is not None:
            place = f"on {self._master or 'all cores of this machine'}"
            self._note(f"connecting to {self._remote}" if self._remote else f"starting Spark {place}")
        spark = start_session(self._master, self._conf, "wireloom pipeline", quick=True, remote=self._remote)
        threading.Thread(target=warm_up, args=(spark,), daemon=True).start()
        return spark

    def _run(self, spark: SparkSession, once: bool, interval: float) -> None:
        for left in reversed(range(_STARTS)):
            try:
                query = self._start_query(spark, once, interval)
                follow = Follower(query) if is_remote(spark) else None
                while not query.awaitTermination(1):
                    self._tell(follow)
                    if self._stopping:
                        # No batch can begin while the lock is held, and none is under way.
                        with self._between_batches:
                            query.stop()
                self._tell(follow)
            except Exception as error:
                if self._stopping:
                    return
                if not left or _TOO_SLOW not in str(error):
                    raise explain(error) from error
            else:
                return

    def _start_query(self, spark: SparkSession, once: bool, interval: float) -> StreamingQuery:
        from wireloom.pipeline.decode_job import FORMAT, OBSERVED, counters
        from wireloom.pipeline.spark_session import register

        register(spark)
        reader = spark.readStream.format(FORMAT).options(**self._source_options())
        found = reader.load().observe(OBSERVED, *counters())
        # Through Spark Connect batches are done by the server, which has nothing of this process.
        work: Callable[[DataFrame, int], object] = self._batch
        if is_remote(spark):
            work = partial(do_batch, self.warehouse, self._lateness_us)
        writer = (
            found.writeStream.queryName("wireloom")
            .option("checkpointLocation", str(self.warehouse.checkpoint))
            .foreachBatch(work)  # type: ignore[arg-type] # what it returns is not looked at
        )
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{interval} seconds")
        return writer.start()

    def _source_options(self) -> dict[str, str]:
        """What the format behind the pipeline is told, by a streaming query or without one."""
        return {
            **self._options,
            "paths": json.dumps(self.inputs),
            "warehouse": str(self.warehouse.store),
            "onlyMessages": str(self._only_messages).lower(),
        }

    def _batch(self, found: DataFrame, number: int) -> None:
        with self._between_batches:
            if self._stopping:
                raise PipelineFailed("stopped")
            batch = do_batch(self.warehouse, self._lateness_us, found, number)
            if self._merger is not None:
                self._merger.after_batch()
        self._done(batch, self.warehouse.offsets(number))

    def _tell(self, follow: Follower | None) -> None:
        for batch, offsets in follow.new_batches() if follow is not None else ():
            self._done(batch, offsets)

    def _done(self, batch: MicroBatch, offsets: planning.Offsets) -> None:
        self.summary.add(batch)
        if self._report is not None:
            self._report(replace(batch, bytes_left=bytes_left(self.inputs, offsets)))


def do_batch(warehouse: Warehouse, lateness_us: int, found: DataFrame, number: int) -> MicroBatch:
    """What there is to do with each batch of the query."""
    from wireloom.pipeline.join_job import SparkWorkers

    began = time.monotonic()
    work = BatchCommit(warehouse, number, SparkWorkers(found, number), lateness_us)
    done = work.commit()
    leave_cursors(warehouse, number)
    if number % _TIDY_EVERY == _TIDY_EVERY - 1:
        warehouse.tidy()
    return MicroBatch(
        number, done[MESSAGES.name], done[REJECTS.name], time.monotonic() - began, work.files, work.bytes,
        left_out=done[LEFT_OUT],
    )  # fmt: skip


class Follower:
    """Learns from a query's progress what its batches brought, where they are done by another process."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self._last = -1

    def new_batches(self) -> Iterator[tuple[MicroBatch, planning.Offsets]]:
        """The batches that were done since the last call, and the position at the end of each."""
        from wireloom.pipeline.decode_job import COUNTERS, OBSERVED

        for progress in self.query.recentProgress:
            counted = progress.observedMetrics.get(OBSERVED)
            if progress.batchId > self._last and counted is not None and progress.numInputRows:
                self._last = progress.batchId
                seconds = progress.durationMs.get("triggerExecution", 0) / 1000
                told = counted.asDict()
                # A server hands rows over as their values, in the order in which they were asked for.
                values = told["values"] if "values" in told else told.values()
                counts = dict(zip(COUNTERS, values, strict=True))
                offsets = json.loads(progress.sources[0].endOffset)
                yield MicroBatch(progress.batchId, seconds=seconds, **counts), offsets


def bytes_left(inputs: Sequence[str], read: planning.Offsets) -> int:
    """How much of the input lies after a position."""
    latest = planning.latest(inputs)
    known = sum(part.size for part in planning.plan(inputs, read, latest))
    return known + sum(size - before for _, before, size in captures.new_captures(read, latest))


def leave_cursors(warehouse: Warehouse, batch: int, disk: Disk = LOCAL) -> None:
    """Tell each journal how far this pipeline is, so that retention spares what it has not read.

    The tables are synced first: retention removes what a cursor is past. A journal on a medium that cannot be written
    to has no retention either.
    """
    name = f"{warehouse.query_id()}.json"
    disk.sync_all(warehouse.root)
    for lane, position in warehouse.offsets(batch).items():
        folder = Path(lane) / CURSORS
        with contextlib.suppress(OSError):
            if Path(lane).is_dir():
                make_folders(disk, folder)
                save_state(folder / name, position, disk)


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
