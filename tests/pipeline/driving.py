"""The driver's loop without Spark: the same code as in its workers, in this process or in one that is killed.

python -m tests.pipeline.driving --warehouse URL --input URL [--input URL] [--max-bytes N] [--die-after N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.journal.archive_format import SegmentId
from wireloom.journal.archive_pack import pack
from wireloom.journal.segment import REFUSED, segments
from wireloom.pipeline import tables
from wireloom.pipeline.checkpoint import take_over
from wireloom.pipeline.decode_job import DecodeJob, Report
from wireloom.pipeline.driver import MicroBatch, PipelineDriver
from wireloom.pipeline.join_job import Plan, join_facts
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.run import FLOWS
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import Store

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition


class InProcess:
    """Does the work of a batch, one task after the other."""

    def __init__(self, job: DecodeJob, partitions: Sequence[InputPartition], tasks: int = 2) -> None:
        self.job, self.partitions, self.tasks = job, partitions, tasks

    def decode(self) -> list[Report]:
        return [Report.of(row) for part in self.partitions for batch in self.job.run(part) for row in batch.to_pylist()]

    def join(self, plan: Plan) -> list[Report]:
        return [
            Report.of(row)
            for task in range(plan.tasks)
            for batch in join_facts(plan, task)
            for row in batch.to_pylist()
        ]


def make_driver(inputs: Sequence[str | Path], warehouse: str | Path, max_bytes: int = 1 << 40) -> PipelineDriver:
    """A driver of a warehouse, which is made if need be."""
    made = take_over(Warehouse.prepared(warehouse))
    given = {"paths": json.dumps([str(each) for each in inputs]), "maxBytesPerTrigger": str(max_bytes)}
    options = SourceOptions.parse(
        {**given, "partitionBytes": "100k", "lateness": "0", "stateDir": made.store.below(FLOWS).url}
    )
    job = DecodeJob(options, made.store)
    return PipelineDriver(made, options, lambda cut, _: InProcess(job, cut))


def drive(inputs: Sequence[str | Path], warehouse: str | Path, max_bytes: int = 1 << 40) -> list[MicroBatch]:
    """Read all that is there, as `--once` does; the batches that this driver did."""
    driver = make_driver(inputs, warehouse, max_bytes)
    target, done = driver.latest(), []
    while (plan := driver.next_plan(target)) is not None:
        batch = driver.do(plan)
        if batch is not None:
            done.append(batch)
    return done


def archive(journal: Path, store: Store, *, but: int = 0) -> None:
    """Put the segments of a journal into an archive, all but the last ones."""
    hub = json.loads((journal / "journal.json").read_text())["hub"]
    for folder in (journal, journal / REFUSED):
        known = segments(folder) if folder.is_dir() else []
        for path in known[: len(known) - but]:
            segment = SegmentId.of_file(hub, path)
            assert segment is not None
            packed = pack(segment, path.read_bytes())
            store.put_new(segment.object_key, packed.stored)
            store.put_new(segment.index_key, packed.index.encode())


def die_after(commits: int) -> None:
    """Kill this process right after so many commits, or, for 0, never."""
    commit: Callable[..., None] = tables.commit
    lock, made = threading.Lock(), [0]

    def counting(*given: object) -> None:
        with lock:
            commit(*given)
            made[0] += 1
            if made[0] == commits:
                os.kill(os.getpid(), signal.SIGKILL)

    tables.commit = counting


def main() -> None:
    """A driver as a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--warehouse", required=True)
    parser.add_argument("--input", action="append", required=True)
    parser.add_argument("--max-bytes", type=int, default=1 << 40)
    parser.add_argument("--die-after", type=int, default=0)
    given = parser.parse_args()
    if given.die_after:
        die_after(given.die_after)
    for batch in drive(given.input, given.warehouse, given.max_bytes):
        print(batch.number, batch.messages, flush=True)


if __name__ == "__main__":
    main()
