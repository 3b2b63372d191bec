"""Rows of the tables from what captures hold: messages from decoded columns, rejects and events one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.model import KINDS, Direction
from wireloom.pipeline.captures.connections import Connection, Half, Refused
from wireloom.pipeline.captures.trace import Trace
from wireloom.pipeline.decode import Audited, DecodedRange, coded, constant, empty
from wireloom.pipeline.dictionaries import unified
from wireloom.pipeline.schemas import KEPT_BYTES, MESSAGES, REJECTS, Table, arrow_schema
from wireloom.pipeline.steps.sessions import Event
from wireloom.pipeline.steps.view import words
from wireloom.protocols.columns import Columns

_DAY_US = 86_400_000_000
_DIRECTIONS = tuple(Direction)

DAMAGED = "capture.damaged"
"""The clause of a capture that cannot be read to its end."""
OPENED, MIDSTREAM, CLOSED, OVERHEAD = "opened", "midstream", "closed", "overhead"


class Speaker(NamedTuple):
    """Who sends: the half that numbers its messages, and the side of the connection it is on."""

    connection: Connection
    half: Half
    side: int


@dataclass(slots=True)
class Rows:
    """What came of a piece of a capture. `files` are the names behind the numbers of files."""

    files: Sequence[str]
    audited: Audited
    tables: list[pa.Table] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _rejects: list[tuple[object, ...]] = field(default_factory=list)

    def messages(
        self,
        protocol: str,
        columns: Columns,
        data: NDArray[np.uint8],
        speakers: Sequence[Speaker],
        of: NDArray[np.int64],
        trace: Trace,
    ) -> None:
        """Messages; `of` says whose each span is. Numbers them on from where each half is."""
        count = len(columns)
        if not count:
            return
        speaker = of[columns.span]
        last = trace.pieces(columns.offset + np.maximum(columns.size, 1) - 1)
        first = trace.pieces(columns.offset)
        time_us = trace.time_us[last]
        directions = np.array([_DIRECTIONS.index(s.half.direction) for s in speakers], np.int8)
        values = {
            "time": pa.array(time_us).cast(pa.timestamp("us", tz="UTC")),
            "date": pa.array((time_us // _DAY_US).astype(np.int32)).cast(pa.date32()),
            "protocol": constant(protocol, count),
            "connection": coded(speaker, [s.connection.id for s in speakers]),
            "direction": coded(directions[speaker], [str(d) for d in _DIRECTIONS]),
            "source": coded(speaker, [s.connection.end(s.side) for s in speakers]),
            "destination": coded(speaker, [s.connection.end(1 - s.side) for s in speakers]),
            "sequence": pa.array(_numbers(speakers, speaker)),
            "kind": coded(columns.kind.astype(np.int8), [str(kind) for kind in KINDS]),
            "topic": words(columns.topic),
            "message_id": columns.message_id,
            "correlation_id": columns.correlation_id,
            "status": words(columns.status),
            "content_type": words(columns.content_type),
            "body": columns.body,
            "body_size": pc.binary_length(columns.body),
            "wire_size": pa.array(columns.wire_size.astype(np.int32)),
            "attributes": columns.attributes,
            "authenticity": words(columns.authenticity),
            "file": coded(trace.file[first], list(self.files)),
            "offset": pa.array(trace.offset[first] + columns.offset - trace.at[first]),
        }
        rows = pa.table([values[name] for name in MESSAGES.names], names=list(MESSAGES.names))
        self.tables.append(self.audited.examine(protocol, columns, data, rows))

    def reject(self, connection: Connection | None, half: Half | None, refused: Refused) -> None:
        """One reject."""
        self._rejects.append(
            (
                refused.time_us,
                refused.time_us // _DAY_US,
                None if connection is None else connection.protocol,
                None if connection is None else connection.id,
                None if half is None else str(half.direction),
                refused.clause,
                refused.detail,
                refused.head[:KEPT_BYTES],
                refused.size,
                self.files[refused.file],
                refused.offset,
            )
        )

    def event(
        self,
        what: str,
        connection: Connection,
        time_us: int,
        *,
        reason: str | None = None,
        half: Half | None = None,
        size: int = 0,
    ) -> None:
        """Something that happened to a connection beside messages and rejects."""
        ends = connection.end(connection.client), connection.end(1 - connection.client)
        direction = None if half is None else str(half.direction)
        self.events.append(Event(what, time_us, connection.id, connection.protocol, *ends, reason, direction, size))

    def decoded(self) -> DecodedRange:
        """All rows so far, as tables."""
        tables = [table for table in self.tables if table.num_rows]
        if not tables:
            messages = empty(MESSAGES)
        else:
            messages = tables[0] if len(tables) == 1 else unified(pa.concat_tables(tables))
        return DecodedRange(
            messages, _table(REJECTS, self._rejects), self.events, self.audited.findings(), self.audited.packets()
        )


def _numbers(speakers: Sequence[Speaker], speaker: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sequence of each message; halves count them."""
    halves = {id(s.half): s.half for s in speakers}
    places = {identity: place for place, identity in enumerate(halves)}
    half = np.array([places[id(s.half)] for s in speakers])[speaker]
    order = np.argsort(half, kind="stable")
    counts = np.bincount(half, minlength=len(halves))
    begins = np.array([known.count for known in halves.values()]) - (np.cumsum(counts) - counts)
    numbers = np.empty(len(half), np.int64)
    numbers[order] = np.arange(len(half)) + begins[half[order]]
    for known, count in zip(halves.values(), counts.tolist(), strict=True):
        known.count += count
    return numbers


def _table(table: Table, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    schema = arrow_schema(table.columns)
    if not rows:
        return schema.empty_table()
    storage = {pa.timestamp("us", tz="UTC"): pa.int64(), pa.date32(): pa.int32()}
    arrays = [
        pa.array(values, storage.get(field.type, field.type)).cast(field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)
