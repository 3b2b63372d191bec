"""Runs the pipeline: a Spark session does the work of the batches that `driver.py` plans and commits."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.journal.disk import LOCAL, Disk, make_folders
from wireloom.journal.retention import CURSORS
from wireloom.journal.state import save_state
from wireloom.model import ConfigError, WireloomError
from wireloom.pipeline import planning, state
from wireloom.pipeline.batch import PipelineFailed
from wireloom.pipeline.checkpoint import take_over
from wireloom.pipeline.driver import MicroBatch, PipelineDriver
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store.folder import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition

    from wireloom.pipeline.join_job import SparkWorkers
    from wireloom.pipeline.merging import Merger

FLOWS = "_flows"
"""The folder of a warehouse in which connections of captures wait for the next batch."""


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

    Inputs and warehouse are folders or URLs of object stores.

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
        # Wrong options are told before anything is made.
        self.inputs = SourceOptions.parse(given).inputs
        self.warehouse = Warehouse.prepared(warehouse, table_format)
        flows = self.warehouse.store.below(FLOWS).url
        self._options = SourceOptions.parse({**given, "stateDir": flows})
        self.summary = Summary()
        if master and remote:
            raise ConfigError(
                "the pipeline runs either on a master or through Spark Connect: give 'master' or 'remote'"
            )
        self._master, self._remote = master, remote
        self._conf = dict(conf or {})
        self._note = note
        self._only_messages = only_messages
        self._spark = spark
        self._report = report
        self._stopping = threading.Event()
        self._merger: Merger | None = None

    def run(self, *, once: bool = True, interval: float = 1.0) -> Summary:
        """Read everything that is there (`once`), or go on until `stop`; `interval` is in seconds."""
        if not 0 <= interval < math.inf:
            raise ConfigError(f"an interval of {interval} seconds: it must be a number from 0 on, such as 1")
        began = time.monotonic()
        with self.warehouse.locked():
            self.warehouse = take_over(self.warehouse)
            state.check(self.warehouse, state.State.read(self.warehouse))
            self.warehouse.tidy()
            own = self._spark is None
            spark = self._spark or self._start_session()
            try:
                self._run(spark, once, interval)
            except WireloomError:
                raise
            except Exception as error:
                if not self._stopping.is_set():
                    raise explain(error) from error
            finally:
                if own:
                    with contextlib.suppress(Exception):
                        spark.stop()
        self.summary.seconds = time.monotonic() - began
        return self.summary

    def stop(self) -> None:
        """End a run after its current batch. May be called from any thread and from a signal handler."""
        self._stopping.set()

    def _start_session(self) -> SparkSession:
        from wireloom.pipeline.spark_session import start_session, warm_up

        if self._note is not None:
            place = f"on {self._master or 'all cores of this machine'}"
            self._note(f"connecting to {self._remote}" if self._remote else f"starting Spark {place}")
        spark = start_session(self._master, self._conf, "wireloom pipeline", quick=True, remote=self._remote)
        threading.Thread(target=warm_up, args=(spark,), daemon=True).start()
        return spark

    def _run(self, spark: SparkSession, once: bool, interval: float) -> None:
        from wireloom.pipeline.decode_job import DecodeJob
        from wireloom.pipeline.join_job import SparkWorkers, merge_in_task
        from wireloom.pipeline.merging import Merger
        from wireloom.pipeline.spark_session import parallelism

        job = DecodeJob(self._options, self.warehouse.store, self._only_messages)

        def workers(cut: Sequence[InputPartition], number: int) -> SparkWorkers:
            return SparkWorkers(spark, job, cut, number)

        driver = PipelineDriver(self.warehouse, self._options, workers, parallelism(spark))
        self._merger = merger = Merger(self.warehouse, merge_in_task(spark, self.warehouse))
        try:
            self._batches(driver, merger, once, interval)
        finally:
            merger.close()

    def _batches(self, driver: PipelineDriver, merger: Merger, once: bool, interval: float) -> None:
        target = driver.latest() if once else None
        while not self._stopping.is_set():
            began = time.monotonic()
            plan = driver.next_plan(target)
            if plan is not None:
                done = driver.do(plan)
                leave_cursors(self.warehouse, self.inputs, plan.end)
                merger.after_batch()
                if done is not None:
                    self._done(replace(done, bytes_left=driver.bytes_left(plan.end)) if self._report else done)
            elif once:
                return
            if not once:
                self._stopping.wait(max(0.0, began + interval - time.monotonic()))

    def _done(self, batch: MicroBatch) -> None:
        self.summary.add(batch)
        if self._report is not None:
            self._report(batch)


def leave_cursors(warehouse: Warehouse, inputs: Sequence[str], read: planning.Offsets, disk: Disk = LOCAL) -> None:
    """Tell each journal on this machine how far this pipeline is, so that retention spares what it has not read.

    The tables are synced first: retention removes what a cursor is past. A journal on a medium that cannot be written
    to has no retention either.
    """
    if isinstance(warehouse.base, FolderStore):
        disk.sync_all(warehouse.root)
    for lane, position in planning.cursors(inputs, read).items():
        folder = lane / CURSORS
        with contextlib.suppress(OSError):
            make_folders(disk, folder)
            save_state(folder / f"{warehouse.application}.json", position, disk)


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
