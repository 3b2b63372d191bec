"""Partial aggregates: small tables that decoding tasks write for the final join.

A request in one task may have its answer in another. A connection may continue in the next range. So each decoding task
writes partial rows about such things, of the kinds in `FACTS`, as Arrow files in the folder `_facts` of the warehouse.
The join job (`join_job.py`) reads them. After the commit of the batch nobody needs these files, and they are deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.steps import audit, exchanges_partial, nodes, resends, sessions, traffic
from wireloom.pipeline.steps.message_arrays import View, in_order, typed
from wireloom.pipeline.tables import put_file
from wireloom.store import Store

FACTS = {
    "turns": exchanges_partial.TURNS,
    "marks": exchanges_partial.MARKS,
    "received": resends.RECEIVED,
    "visits": sessions.VISITS,
    "minutes": traffic.MINUTES,
    "sightings": nodes.SIGHTINGS,
    "packets": audit.PACKETS,
    "seen": audit.SEEN,
}
"""The kinds of partial aggregates and their columns. Each has a column `bucket`."""
FOLDER = "_facts"


@dataclass(frozen=True, slots=True)
class Observed:
    """The finished rows and the partial aggregates of one task."""

    exchanges: pa.Table | None
    findings: Sequence[pa.Table]
    facts: dict[str, pa.Table]


def observe(
    messages: pa.Table,
    *,
    visits: Sequence[pa.Table] = (),
    packets: Sequence[pa.Table] = (),
    midstream: Collection[str] = (),
) -> Observed:
    """The finished rows and partial aggregates that follow from some rows of `messages`.

    `visits` and `packets` are partial aggregates of their connections and packets, made by the decoder. `midstream` are
    connections whose beginning was not captured.
    """
    view = View(in_order(messages))
    found = exchanges_partial.observe(view, midstream=midstream)
    facts = {
        "turns": found.turns,
        "marks": found.marks,
        "visits": list(visits),
        "minutes": [traffic.observe(view)],
        "sightings": [nodes.observe(view)],
        "packets": list(packets),
    }
    joined = {name: together(parts) for name, parts in facts.items()}
    return Observed(
        together(found.exchanges),
        found.findings,
        {name: rows for name, rows in joined.items() if rows is not None and rows.num_rows},
    )


def together(parts: Sequence[pa.Table]) -> pa.Table | None:
    """Concatenate tables of one kind; None if there are no rows."""
    parts = [part for part in parts if part.num_rows]
    if len(parts) < 2:
        return parts[0] if parts else None
    return unified(pa.concat_tables(parts))


def write(warehouse: Store, rows: pa.Table) -> tuple[str, int]:
    """Write partial rows as a new file; returns its name and size."""
    name = f"{uuid.uuid4().hex}.arrow"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(unified(rows).combine_chunks())
    written = sink.getvalue()
    put_file(warehouse.below(FOLDER), name, written)
    return name, written.size


def read(warehouse: Store, names: Iterable[str], kind: str, task: int, tasks: int) -> pa.Table:
    """The partial rows of one kind that join task number `task` of `tasks` has to join."""
    schema = FACTS[kind]
    found = [schema.empty_table()]
    for name in names:
        rows = pa.ipc.open_file(pa.BufferReader(warehouse.get(f"{FOLDER}/{name}"))).read_all()
        found.append(typed_as(of_task(rows, task, tasks), schema))
    return pa.concat_tables(found)


def of_task(rows: pa.Table, task: int, tasks: int) -> pa.Table:
    """The rows whose buckets belong to join task number `task` of `tasks`."""
    if tasks == 1:
        return rows
    bucket = rows["bucket"].to_numpy()
    return rows.filter(pa.array((bucket % np.uint8(tasks) == task) | (bucket == sessions.EVERY_BUCKET)))


def pack(rows: pa.Table) -> bytes:
    """Serialize rows for the internal table `_state`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(unified(rows).combine_chunks())
    return bytes(sink.getvalue())


def unpack(packed: bytes, kind: str) -> pa.Table:
    """The inverse of `pack`. Columns that the writing version did not have are null."""
    return typed_as(pa.ipc.open_stream(packed).read_all(), FACTS[kind])


def typed_as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of this version. Columns that the writing version did not have are null."""
    if rows.schema.equals(schema):
        return rows
    known = {name: rows[name] for name in rows.column_names}
    missing = {name: pa.nulls(rows.num_rows, pa.string()) for name in schema.names if name not in known}
    return typed({**known, **missing}, schema)
