"""Makes a warehouse of format 1 one of today: acknowledged publishes become events under their own topics.

Each table is replaced in one commit. The version in `warehouse.json` is raised last. Rows that are upgraded already are
not changed again, so an upgrade that was killed can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.journal.segment import is_segment
from wireloom.model import KINDS, Direction, Kind
from wireloom.pipeline import partials, tables
from wireloom.pipeline.decode_job import Report, write_table
from wireloom.pipeline.normalize import meanings
from wireloom.pipeline.schemas import EXCHANGES, MESSAGES, STATE, TRAFFIC, Table
from wireloom.pipeline.state import State
from wireloom.pipeline.steps import traffic
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, View, micros, one_piece
from wireloom.pipeline.warehouse import VERSION, Warehouse
from wireloom.protocols.contract import HUB_PREFIX
from wireloom.protocols.publish_rules import Verb, requests_are_publishes

if TYPE_CHECKING:
    import duckdb

Renewal = Callable[[pa.Table], pa.Table | None]
"""Upgrades rows; returns None if they need no change."""


def upgrade(root: Path | str) -> dict[str, int]:
    """Upgrade a warehouse in place; returns how many rows of each table were rewritten. Nobody else may write to it."""
    old = Warehouse.existing(root, old=True)
    if old.version == VERSION:
        return {}
    with old.locked():
        old.create_tables()
        done = {MESSAGES.name: replace_rows(old, MESSAGES, _new_messages)}
        with _messages(old) as asked:
            done[EXCHANGES.name] = replace_rows(old, EXCHANGES, lambda rows: _new_exchanges(rows, asked))
            done[TRAFFIC.name] = _count_again(old, asked)
            replace_rows(old, STATE, lambda rows: _new_state(rows, asked))
        old.describe()
        Warehouse.existing(root).match_folders()
    return done


def replace_rows(warehouse: Warehouse, table: Table, renew: Renewal) -> int:
    """Write the files of a table anew where `renew` changes something; how many rows they have."""
    folder = warehouse.folder(table)
    handle = tables.open_table(folder)
    added, removed = [], []
    for file in tables.files(handle, table):
        rows = tables.read_arrow(folder, table, [file])
        new = renew(rows)
        if new is not None:
            stored = new.select([column.name for column in table.stored])
            added.append(tables.write_rows(folder, table, stored, file.partition, held=tables.is_held(file)))
            removed.append(file)
    if added:
        warehouse.replace(handle, table, added, removed, changes=True)
    return sum(file.rows for file in added)


def _new_messages(rows: pa.Table) -> pa.Table | None:
    """Messages as they are told today. Whether a provider took a request of hsp nobody noted: they are publishes."""
    view = View(rows.combine_chunks())
    if not _is_old(view):
        return None
    meant = meanings(view.kind, view.column("topic"), view.column("attributes"), _acknowledges(view))
    return _with(rows, kind=_names(meant.kind), topic=meant.topic, verb=meant.verb, attributes=meant.attributes)


def _is_old(view: View) -> bool:
    """Whether there is a request, or an operation of the hub, that is told as it was."""
    asks = view.kind == KINDS.index(Kind.REQUEST)
    _, topics = view.codes("topic")
    told = view.column("verb").is_valid().to_numpy(zero_copy_only=False)
    return bool((asks & ~told).any()) or any((topic or "").startswith(HUB_PREFIX) for topic in topics)


def _acknowledges(view: View) -> NDArray[np.bool_]:
    """Messages of clients, from journals, in protocols whose requests are publishes."""
    protocol, names = view.protocol
    file, files = view.codes("file")
    publishes = np.array([requests_are_publishes(name or "") for name in names] or [False])[protocol]
    journaled = np.array([is_segment(Path(name or "")) for name in files] or [False])[file]
    found: NDArray[np.bool_] = publishes & journaled & (view.direction == DIRECTIONS.index(Direction.C2S))
    return found


def _names(kind: NDArray[np.uint8]) -> pa.Array:
    return pa.array([str(each) for each in KINDS]).take(pa.array(kind))


def _with(table: pa.Table, **columns: pa.Array) -> pa.Table:
    """Rows with some columns replaced."""
    for name, column in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), column.cast(table.schema.field(at).type))
    return table


@contextmanager
def _messages(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """The upgraded messages, to be asked."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        tables.attach_duckdb(connection, warehouse.folder(MESSAGES), MESSAGES)
        yield connection


def _asked(
    rows: pa.Table, identifier: str, time_us: NDArray[np.int64], messages: duckdb.DuckDBPyConnection
) -> tuple[pa.Array, pa.Array]:
    """Topic and verb of requests; `identifier` is the column with their ids.

    Where the topic does not tell, as in hsp, the message does: it has the connection, the id and the time of its row.
    """
    own = pa.table({"row": np.arange(rows.num_rows), "connection": rows["connection"].cast(pa.string()),
                    "id": rows[identifier], "at": time_us})  # fmt: skip
    messages.register("asked", own)
    found = messages.execute(
        "select distinct a.row from asked a join messages m on m.connection = a.connection and m.message_id = a.id "
        "and epoch_us(m.time) = a.at where m.verb = ?",
        [str(Verb.PUBLISH)],
    ).fetchall()
    messages.unregister("asked")
    acknowledges = np.zeros(rows.num_rows, np.bool_)
    acknowledges[[row for (row,) in found]] = True
    asking = np.full(rows.num_rows, KINDS.index(Kind.REQUEST), np.uint8)
    nothing = pa.nulls(rows.num_rows, pa.map_(pa.string(), pa.string()))
    meant = meanings(asking, one_piece(rows["topic"]), nothing, acknowledges)
    return meant.topic, meant.verb


def _new_exchanges(rows: pa.Table, messages: duckdb.DuckDBPyConnection) -> pa.Table | None:
    if not rows["verb"].null_count:
        return None
    topic, verb = _asked(rows, "request_id", micros(one_piece(rows["requested_at"])), messages)
    return _with(rows, topic=topic, verb=verb)


def _new_state(rows: pa.Table, messages: duckdb.DuckDBPyConnection) -> pa.Table | None:
    """What is carried to the next batch: requests that wait for their answers."""
    packed, is_changed = [], False
    for step, carried in zip(rows["step"].to_pylist(), rows["rows"].to_pylist(), strict=True):
        if step == "turns":
            turns = partials.unpack(carried, step)
            if turns["verb"].null_count:
                topic, verb = _asked(turns, "message_id", turns["time"].to_numpy(), messages)
                carried, is_changed = partials.pack(_with(turns, topic=topic, verb=verb)), True  # noqa: PLW2901
        packed.append(carried)
    return _with(rows, rows=pa.array(packed, pa.binary())) if is_changed else None


def _count_again(warehouse: Warehouse, messages: duckdb.DuckDBPyConnection) -> int:
    """Make `traffic` from the upgraded messages, unless it was left out altogether; how many rows it has."""
    folder = warehouse.folder(TRAFFIC)
    handle = tables.open_table(folder)
    old = tables.files(handle, TRAFFIC)
    if not old:
        return 0
    counts = messages.sql(
        "select 0 as bucket, epoch_us(date_trunc('minute', time)) as minute, protocol, topic, kind, "
        "count(*) as messages, sum(wire_size)::bigint as bytes from messages group by all"
    )
    over = traffic.over_before(State.read(warehouse).watermark_us)
    rows = traffic.join(counts.to_arrow_table().cast(traffic.MINUTES), over)
    reports = [Report.of(row) for batch in write_table(warehouse.store, TRAFFIC, rows) for row in batch.to_pylist()]
    warehouse.replace(handle, TRAFFIC, [report.file for report in reports], old, changes=True)
    return int(rows.num_rows)
