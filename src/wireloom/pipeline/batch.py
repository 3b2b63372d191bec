"""Runs and commits one batch.

**The problem.** A driver may be killed between any two commits, and two drivers may do the same batch at the same time.
Each table must have the rows of each batch exactly once.

**The idea.** All drivers use the same plan (see `plans.py`), so their rows are the same. Each commit of a table stores
the number of its batch, under the id of the warehouse. A driver opens a version of a table, checks whether it has the
batch, and commits on top of that version. If another commit came in between, this one fails (optimistic concurrency).
The driver then opens the table again and repeats the check. The files that a batch replaces are read from the same
version, because files may have been merged since the batch began.

`_state` is committed last. Until then the batch counts as not done. A driver that runs it again skips the tables that
have it already.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

from wireloom.model import WireloomError
from wireloom.pipeline import tables
from wireloom.pipeline.planning import Offsets
from wireloom.pipeline.schemas import (
    EXCHANGES,
    FINDINGS,
    LEFT_OUT,
    MESSAGES,
    NODES,
    REJECTS,
    SESSIONS,
    STATE,
    TABLES,
    TRAFFIC,
    Table,
)
from wireloom.pipeline.state import State, write_head
from wireloom.pipeline.tables import WrittenFile
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import Store

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from wireloom.pipeline.decode_job import Report
    from wireloom.pipeline.join_job import Plan

_TRIES = 20
"""How often a commit is tried when other commits to the same table come first."""
Replaced = Callable[["DeltaTable"], Sequence[WrittenFile]]
"""Tells which files of a version of a table the batch replaces."""


class PipelineFailed(WireloomError):
    """A run ended early; the text says why. A new run continues where this one stopped."""


class Workers(Protocol):
    """Runs the jobs of a batch. The driver itself only plans and commits."""

    tasks: int
    """How many tasks can run at a time."""

    def decode(self) -> Sequence[Report]:
        """The first job: decode the batch's input and write rows and partial aggregates. Returns a report per file."""

    def join(self, plan: Plan) -> Sequence[Report]:
        """The second job: the final join of the partial aggregates. Returns a report per file."""


def _nothing(_: DeltaTable) -> Sequence[WrittenFile]:
    return ()


class BatchCommit:
    """Decodes, joins and commits one batch. `end` holds the offsets of the end of its input."""

    def __init__(
        self, warehouse: Warehouse, number: int, workers: Workers, lateness_us: int = 0, end: Offsets | None = None
    ) -> None:
        self.warehouse = warehouse
        self.workers = workers
        self.number = number
        self.lateness_us = lateness_us
        self.end = end
        self.files = self.bytes = 0
        """How many files and bytes of input the batch read."""
        self.commit_seconds = 0.0
        """How long the commits took."""
        self._unused: list[tuple[Store, str]] = []
        """Files that are not needed after the commit, and are deleted then."""

    def commit(self) -> dict[str, int]:
        """Run the batch and commit its tables. Returns the number of rows it added, by table."""
        from wireloom.pipeline.decode_job import INPUT
        from wireloom.pipeline.partials import FACTS

        state = State.read(self.warehouse)
        if state.batch >= self.number:
            return dict.fromkeys((*TABLES, LEFT_OUT), 0)
        decoded = self.workers.decode()
        messages = [report for report in decoded if report.table == MESSAGES.name]
        watermark = max([state.watermark_us, *(report.last_us for report in messages)])
        replaced: dict[Table, Replaced] = {MESSAGES: _nothing, REJECTS: _nothing}
        joined: Sequence[Report] = ()
        if any(report.table in FACTS for report in decoded) or len(state.carried) > 1:
            changing = self._changing_traffic(messages, state.watermark_us)
            joined = self._join(decoded, state, watermark, changing)
            replaced |= {table: partial(tables.held_files, table=table) for table in (EXCHANGES, SESSIONS, FINDINGS)}
            replaced |= {TRAFFIC: changing, NODES: partial(tables.files, table=NODES)}
        began = time.monotonic()
        reports = [*decoded, *joined]
        with ThreadPoolExecutor(len(replaced)) as pool:
            list(pool.map(lambda each: self._commit(each[0], reports, each[1]), replaced.items()))
        self._commit_state([r.file for r in joined if r.table == STATE.name], watermark)
        self.commit_seconds = time.monotonic() - began
        for store, path in self._unused:
            store.delete(path)
        self.files = sum(r.file.rows for r in decoded if r.table == INPUT)
        self.bytes = sum(r.file.size for r in decoded if r.table == INPUT)
        return {name: sum(r.file.rows for r in decoded if r.table == name) for name in (*TABLES, LEFT_OUT)}

    def _join(self, decoded: Sequence[Report], state: State, watermark: int, changing: Replaced) -> Sequence[Report]:
        """Run the join job."""
        from wireloom.pipeline.join_job import Plan, tasks_for
        from wireloom.pipeline.pair_kernel import Clock
        from wireloom.pipeline.partials import FACTS, FOLDER

        handle = tables.open_table(self.warehouse.folder(TRAFFIC))
        counted = tables.has_batch(handle, self.warehouse.application, self.number)
        names = {kind: [r.file.path for r in decoded if r.table == kind] for kind in FACTS}
        facts = self.warehouse.store.below(FOLDER)
        self._unused += [(facts, name) for each in names.values() for name in each]
        return self.workers.join(
            Plan(
                self.warehouse.store,
                self.number,
                self.warehouse.application,
                Clock(watermark, self.lateness_us),
                names,
                state.carried,
                None if counted else changing(handle),
                tasks_for(decoded, self.workers.tasks),
            )
        )

    def _commit(self, table: Table, reports: Sequence[Report], replaced: Replaced) -> None:
        """Commit one table. If it has this batch already, the files written for it are not needed."""
        own = [report.file for report in reports if report.table == table.name]
        self._try_to_commit(table, own, replaced)

    def _try_to_commit(self, table: Table, own: Sequence[WrittenFile], replaced: Replaced) -> None:
        from deltalake.exceptions import CommitFailedError

        folder, application = self.warehouse.folder(table), self.warehouse.application
        for tried in range(_TRIES):
            handle = tables.open_table(folder)
            if tables.has_batch(handle, application, self.number):
                # After a failed try, the batch in the table may be our own: the commit succeeded, but its reply was
                # lost. Then the table uses these files, and they must not be deleted.
                self._unused += [] if tried else [(folder, file.path) for file in own]
                return
            old = replaced(handle)
            if not own and not old:
                return
            try:
                self.warehouse.commit(handle, table, application, self.number, own, old)
            except (CommitFailedError, OSError):
                if tried == _TRIES - 1:
                    raise
                time.sleep(random.random() * 0.2)
            else:
                return

    def _changing_traffic(self, messages: Sequence[Report], before: int) -> Replaced:
        """The files of `traffic` whose rows may grow.

        Late messages reopen the days they belong to. Without late messages, closed rows are not read.
        """
        from wireloom.pipeline.steps.traffic import over_before

        if not messages:
            return _nothing
        late = sorted({m.file.partition["date"] for m in messages if m.first_us < over_before(before)})

        def changing(handle: DeltaTable) -> Sequence[WrittenFile]:
            closed = [file for day in late for file in tables.files(handle, TRAFFIC, open="false", date=day)]
            return tables.files(handle, TRAFFIC, open="true") + closed

        return changing

    def _commit_state(self, written: Sequence[WrittenFile], watermark: int) -> None:
        head = write_head(self.warehouse, self.number, watermark, self.end)
        self._try_to_commit(STATE, [head, *written], lambda handle: tables.files(handle, STATE))
