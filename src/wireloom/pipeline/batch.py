"""One batch on its way into the tables.

The order is what makes a kill at any moment harmless: first the tables, `_state` last. Whatever of a batch is
committed already is left alone when the batch is done again; whatever is not is made again from the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wireloom.model import WireloomError
from wireloom.pipeline import tables
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
from wireloom.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from wireloom.pipeline.decode_job import Report
    from wireloom.pipeline.join_job import Plan


class PipelineFailed(WireloomError):
    """A run ended early; the text says why. Started again, it goes on where it was."""


class Workers(Protocol):
    """Whoever does the work of a batch; the driver only plans and commits."""

    tasks: int
    """How many can work at a time."""

    def decode(self) -> Sequence[Report]:
        """The first job: decode the batch's bytes, write what they are; what was written."""

    def join(self, plan: Plan) -> Sequence[Report]:
        """The second job: join what the tasks of the first one left over; what was written."""


class BatchCommit:
    """One batch: decoded, joined, committed."""

    def __init__(self, warehouse: Warehouse, number: int, workers: Workers, lateness_us: int = 0) -> None:
        self.warehouse = warehouse
        self.workers = workers
        self.number = number
        self.lateness_us = lateness_us
        query = warehouse.query_id()
        if query is None:
            raise PipelineFailed(f"{warehouse.checkpoint} vanished while the pipeline ran: restore it and start again")
        self.query = query
        self.files = self.bytes = 0
        """How much input the batch was."""
        self._unused: list[Path] = []
        """Files that turned out not to be needed."""

    def commit(self) -> dict[str, int]:
        """Do the batch and commit its tables; the number of rows it added, by table."""
        from wireloom.pipeline.decode_job import INPUT
        from wireloom.pipeline.partials import FACTS

        state = tables.open_table(self.warehouse.folder(STATE))
        if tables.has_batch(state, self.query, self.number):
            return dict.fromkeys((*TABLES, LEFT_OUT), 0)
        decoded = self.workers.decode()
        for table in (MESSAGES, REJECTS):
            self._commit(tables.open_table(self.warehouse.folder(table)), table, decoded)
        carried = tables.files(state, STATE)
        before = watermark_of(self.warehouse, carried)
        messages = [report for report in decoded if report.table == MESSAGES.name]
        watermark = max([before, *(report.last_us for report in messages)])
        joined: Sequence[Report] = ()
        if any(report.table in FACTS for report in decoded) or len(carried) > 1:
            joined = self._join(decoded, carried, before, watermark)
        self._commit_state(state, [r.file for r in joined if r.table == STATE.name], carried, watermark)
        for path in self._unused:
            path.unlink(missing_ok=True)
        self.files = sum(r.file.rows for r in decoded if r.table == INPUT)
        self.bytes = sum(r.file.size for r in decoded if r.table == INPUT)
        return {name: sum(r.file.rows for r in decoded if r.table == name) for name in (*TABLES, LEFT_OUT)}

    def _join(
        self, decoded: Sequence[Report], carried: Sequence[tables.WrittenFile], before: int, watermark: int
    ) -> Sequence[Report]:
        """Join what tasks left over, and commit the tables that come from it."""
        from wireloom.pipeline.join_job import Plan, tasks_for
        from wireloom.pipeline.pair_kernel import Clock
        from wireloom.pipeline.partials import FACTS, FOLDER

        handles = {
            t: tables.open_table(self.warehouse.folder(t)) for t in (EXCHANGES, SESSIONS, FINDINGS, NODES, TRAFFIC)
        }
        counted = tables.has_batch(handles[TRAFFIC], self.query, self.number)
        changing = [] if counted else self._changing_traffic(handles[TRAFFIC], decoded, before)
        names = {kind: [r.file.path for r in decoded if r.table == kind] for kind in FACTS}
        plan = Plan(
            str(self.warehouse.store), self.number, self.query, Clock(watermark, self.lateness_us), names, carried,
            None if counted else changing, tasks_for(decoded, self.workers.tasks),
        )  # fmt: skip
        joined = self.workers.join(plan)
        reports = [*decoded, *joined]
        for table in (EXCHANGES, SESSIONS, FINDINGS):
            self._commit(handles[table], table, reports, tables.held_files(handles[table], table))
        self._commit(handles[TRAFFIC], TRAFFIC, reports, changing)
        self._commit(handles[NODES], NODES, reports, tables.files(handles[NODES], NODES))
        self._unused += [self.warehouse.store / FOLDER / name for each in names.values() for name in each]
        return joined

    def _commit(
        self,
        handle: DeltaTable,
        table: Table,
        reports: Sequence[Report],
        replaced: Sequence[tables.WrittenFile] = (),
    ) -> None:
        """Commit one table, unless it has this batch: then what was written for it is not needed."""
        own = [report.file for report in reports if report.table == table.name]
        if tables.has_batch(handle, self.query, self.number):
            self._unused += [self.warehouse.folder(table) / file.path for file in own]
        elif own or replaced:
            self.warehouse.commit(handle, table, self.query, self.number, own, replaced)

    def _changing_traffic(self, handle: DeltaTable, decoded: Sequence[Report], before: int) -> list[tables.WrittenFile]:
        """The files of `traffic` whose rows may grow.

        Late messages reopen the days they belong to; without any, closed rows are not even read.
        """
        from wireloom.pipeline.steps.traffic import over_before

        messages = [report for report in decoded if report.table == MESSAGES.name]
        if not messages:
            return []
        late = {m.file.partition["date"] for m in messages if m.first_us < over_before(before)}
        changing = tables.files(handle, TRAFFIC, open="true")
        for day in sorted(late):
            changing += tables.files(handle, TRAFFIC, open="false", date=day)
        return changing

    def _commit_state(
        self,
        handle: DeltaTable,
        written: Sequence[tables.WrittenFile],
        replaced: Sequence[tables.WrittenFile],
        watermark: int,
    ) -> None:
        import pyarrow as pa

        from wireloom.pipeline.schemas import arrow_schema

        row = [[self.number], [self.query], [watermark], [time.time_ns() // 1000], [None], [None]]
        schema = arrow_schema(STATE.columns)
        rows = pa.table([pa.array(v, f.type) for v, f in zip(row, schema, strict=True)], schema=schema)
        head = tables.write_rows(self.warehouse.folder(STATE), STATE, rows, {})
        self.warehouse.commit(handle, STATE, self.query, self.number, [head, *written], replaced)


def watermark_of(warehouse: Warehouse, files: Sequence[tables.WrittenFile]) -> int:
    """The latest time of any message up to the last finished batch, in microseconds."""
    import pyarrow.parquet as pq

    for file in files:
        rows = pq.read_table(warehouse.folder(STATE) / file.path, columns=["watermark"], partitioning=None)
        return int(rows["watermark"].cast("int64")[0].as_py())
    return 0
