"""The driver: plans batches, runs them, commits them. It is the same for a folder and a bucket, for `--once` and
`--continuous`, and for every kind of Spark cluster.

**The problem.** A driver may be killed at any time, and another one may be started elsewhere while the first still
runs. Every byte of the input must be processed exactly once.

**The idea.** Each iteration has four steps:

1. Read from `_state` the number N of the last committed batch.
2. Read `plan/N+1`. If there is none, look at the input and propose a plan. If several drivers propose one, the first
   wins, and all of them use it (see `plans.py`).
3. Run the batch: workers decode and join.
4. Commit the batch to the tables, and to `_state` at last (see `batch.py`).

**The invariant.** The warehouse holds everything that a driver needs. A driver keeps nothing on its own disk, and
nothing in memory that it could not read again. So any number of drivers may run at a time, and any may be killed.

**Example.** Driver A plans batch 8 and is killed after it has committed two of seven tables. Driver B reads from
`_state` that batch 7 was the last, and finds `plan/8`. It runs batch 8 again, over the same bytes. It skips the two
tables that have batch 8, commits the other five, and then `_state`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.pipeline import planning, plans
from wireloom.pipeline.batch import BatchCommit, Workers
from wireloom.pipeline.captures import planning as captures
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.planning import Offsets
from wireloom.pipeline.plans import BatchPlan
from wireloom.pipeline.schemas import LEFT_OUT, MESSAGES, REJECTS
from wireloom.pipeline.source import partitions
from wireloom.pipeline.state import State
from wireloom.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

log = logging.getLogger("wireloom.pipeline")

_TIDY_EVERY = 500
"""Unused files are deleted every so many batches, and at every start."""
WorkersFor = Callable[[Sequence["InputPartition"], int], Workers]
"""Makes the workers for a batch, from its partitions and its number."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The figures of one batch that was committed."""

    number: int
    messages: int
    rejects: int
    seconds: float
    files: int = 0
    """How many input files it began to read."""
    bytes: int = 0
    """How many bytes of input it read."""
    bytes_left: int = 0
    """How many bytes of input were still unread after it."""
    left_out: int = 0
    """Captured packets that belong to no connection with a known protocol."""
    commit_seconds: float = 0.0
    """How long its commits took."""


class PipelineDriver:
    """Plans and runs batches. Call `next_plan` and `do` in a loop."""

    def __init__(
        self, warehouse: Warehouse, options: SourceOptions, workers: WorkersFor, cores: int | None = None
    ) -> None:
        """`cores` is how many tasks can run at a time, if known: the cores of the cluster, not of the driver."""
        self.warehouse, self.options, self.workers, self.cores = warehouse, options, workers, cores
        self._state: State | None = None

    def latest(self) -> Offsets:
        """The offsets of the current end of all input."""
        return planning.latest(self.options.inputs)

    def next_plan(self, target: Offsets | None = None) -> BatchPlan | None:
        """The plan of the next batch; None if there is nothing to read. It reads up to `target`, or to the input's end.

        If a plan for the next batch exists already, that plan is returned, whatever its end.
        """
        if self._state is None:
            self._state = State.read(self.warehouse)
        state = self._state
        begun = plans.read(self.warehouse, state.batch + 1)
        if begun is not None:
            # The driver that made this plan may commit it, and further ones: read the state again next time.
            self._state = None
            return begun
        start, options = planning.renamed(state.offsets), self.options
        if target is None:
            target = captures.settled(start, self.latest(), options.lateness_s)
        end = planning.advance(options.inputs, start, target, options.max_bytes)
        if not planning.plan(options.inputs, start, end) and not captures.new_captures(start, end):
            return None
        self._state = None
        return plans.propose(self.warehouse, BatchPlan(state.batch + 1, start, end))

    def do(self, plan: BatchPlan) -> MicroBatch | None:
        """Run and commit a batch; None if another driver has committed it."""
        began = time.monotonic()
        try:
            cut = partitions(self.options, plan.start, plan.end, refused=True, cores=self.cores)
            workers = self.workers(cut, plan.number)
            work = BatchCommit(self.warehouse, plan.number, workers, int(self.options.lateness_s * 1e6), plan.end)
            done = work.commit()
        except Exception:
            # If another driver has committed this batch meanwhile, files that it needs may be deleted: no error then.
            if State.read(self.warehouse).batch < plan.number:
                raise
            log.info("batch %d was done by another driver", plan.number)
            return None
        if captures.of_captures(plan.end):
            captures.StateFolder(self.options.captures.state).tidy(plan.start, plan.end)
        plans.forget(self.warehouse, plan.number)
        if plan.number % _TIDY_EVERY == _TIDY_EVERY - 1:
            self.warehouse.tidy()
        return MicroBatch(
            plan.number, done[MESSAGES.name], done[REJECTS.name], time.monotonic() - began, work.files, work.bytes,
            left_out=done[LEFT_OUT], commit_seconds=work.commit_seconds,
        )  # fmt: skip

    def bytes_left(self, read: Offsets) -> int:
        """How many bytes of input follow these offsets."""
        latest = self.latest()
        known = sum(part.size for part in planning.plan(self.options.inputs, read, latest))
        return known + sum(size - before for _, before, size in captures.new_captures(read, latest))
