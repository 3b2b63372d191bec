"""Rows of `messages` and `rejects` as Arrow tables, whatever the bytes came in: a journal or captures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.model import KINDS
from wireloom.pipeline.normalize import meanings
from wireloom.pipeline.schemas import MESSAGES, REJECTS, Table, arrow_schema
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, coded, constant, dates, timestamps, words
from wireloom.protocols.columns import Columns

KIND_NAMES = [str(kind) for kind in KINDS]
DIRECTION_NAMES = [str(direction) for direction in DIRECTIONS]


def message_rows(
    protocol: str,
    columns: Columns,
    *,
    time_us: NDArray[np.int64],
    connection: pa.Array,
    direction: NDArray[np.int8],
    source: pa.Array,
    destination: pa.Array,
    sequence: NDArray[np.int64],
    file: pa.Array,
    offset: NDArray[np.int64],
    acknowledges: NDArray[np.bool_] | None = None,
    hub: str | None = None,
    principal: pa.Array | None = None,
) -> pa.Table:
    """Decoded messages, with what only those know who put the bytes together. Few different words are dictionaries.

    `acknowledges` marks messages that are acknowledged publishes if they are requests, see `normalize.py`.
    """
    meant = meanings(columns.kind, columns.topic, columns.attributes, acknowledges)
    count = len(columns)
    values = {
        "time": timestamps(time_us),
        "date": dates(time_us),
        "hub": constant(hub, count),
        "protocol": constant(protocol, count),
        "connection": connection,
        "direction": coded(direction, DIRECTION_NAMES),
        "source": source,
        "destination": destination,
        "sequence": pa.array(sequence),
        "kind": coded(meant.kind, KIND_NAMES),
        "topic": meant.topic,
        "verb": meant.verb,
        "message_id": columns.message_id,
        "correlation_id": columns.correlation_id,
        "status": words(columns.status),
        "content_type": words(columns.content_type),
        "body": columns.body,
        "body_size": pc.binary_length(columns.body),
        "wire_size": pa.array(columns.wire_size.astype(np.int32)),
        "attributes": meant.attributes,
        "authenticity": words(columns.authenticity),
        "principal": constant(None, count) if principal is None else principal,
        "file": file,
        "offset": pa.array(offset),
    }
    return pa.table([values[name] for name in MESSAGES.names], names=list(MESSAGES.names))


def reject_rows(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Rejects, each with its values in the order of the columns; times are microseconds, dates days since 1970."""
    schema = arrow_schema(REJECTS.columns)
    if not rows:
        return schema.empty_table()
    storage = {pa.timestamp("us", tz="UTC"): pa.int64(), pa.date32(): pa.int32()}
    arrays = [
        pa.array(values, storage.get(field.type, field.type)).cast(field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def empty(table: Table) -> pa.Table:
    """No rows."""
    return arrow_schema(table.columns).empty_table()


def plain(rows: pa.Table, table: Table) -> pa.Table:
    """The same rows with exactly the types of the table: for Spark, which knows no dictionary arrays."""
    return rows.cast(arrow_schema(table.columns))
