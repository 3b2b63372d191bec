"""The driver's loop: plans batches, has them done, commits them. The same for a folder and a bucket, `--once` and
`--continuous`, and every kind of Spark.

**The loop.** Read from `_state` which batch N was the last. Take `plan/N+1`; if there is none, look at the input and
propose one, and take the winner's (see `plans.py`). Do it, commit it (see `batch.py`). Begin anew.

**The invariant.** Everything that a driver needs stands in the warehouse. It keeps nothing on its own disk, and nothing
in memory that it could not read again. So any number of drivers may run at a time, be killed, or go on elsewhere.
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
"""After so many batches, files that nobody needs any more are deleted; also at every start."""
WorkersFor = Callable[[Sequence["InputPartition"], int], Workers]
"""Who does the work of a batch: its partitions and its number are given."""


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
    commit_seconds: float = 0.0
    """How long its commits took."""


class PipelineDriver:
    """Does batch after batch."""

    def __init__(
        self, warehouse: Warehouse, options: SourceOptions, workers: WorkersFor, cores: int | None = None
    ) -> None:
        """`cores` is how many tasks run at a time, where that is known: the cores of the cluster, not of the driver."""
        self.warehouse, self.options, self.workers, self.cores = warehouse, options, workers, cores
        self._state: State | None = None

    def latest(self) -> Offsets:
        """The end of all input now."""
        return planning.latest(self.options.inputs)

    def next_plan(self, target: Offsets | None = None) -> BatchPlan | None:
        """What to do next: up to `target`, or else as far as there is anything; None if there is nothing.

        A batch that somebody has begun comes first, whatever the target.
        """
        if self._state is None:
            self._state = State.read(self.warehouse)
        state = self._state
        begun = plans.read(self.warehouse, state.batch + 1)
        if begun is not None:
            # Its driver may have finished it, and more.
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
        """Do a batch; None if another driver has done it."""
        began = time.monotonic()
        try:
            cut = partitions(self.options, plan.start, plan.end, refused=True, cores=self.cores)
            workers = self.workers(cut, plan.number)
            work = BatchCommit(self.warehouse, plan.number, workers, int(self.options.lateness_s * 1e6), plan.end)
            done = work.commit()
        except Exception:
            # What it needed may be gone because another driver is further by now.
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
        """How much of the input lies after a position."""
        latest = self.latest()
        known = sum(part.size for part in planning.plan(self.options.inputs, read, latest))
        return known + sum(size - before for _, before, size in captures.new_captures(read, latest))
