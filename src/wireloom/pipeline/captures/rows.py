"""Rows of the tables from what captures hold: messages from decoded columns, rejects and events one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.model import Direction
from wireloom.pipeline.captures.connections import CapturedConnection, Half, RejectedBytes
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.decode import Audited, DecodedRange
from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.message_table import empty, message_rows, reject_rows
from wireloom.pipeline.schemas import KEPT_BYTES, MESSAGES
from wireloom.pipeline.steps.message_arrays import DAY_US, DIRECTIONS, coded
from wireloom.pipeline.steps.sessions import Event, event_rows
from wireloom.protocols.columns import Columns
from wireloom.protocols.registry import protocol

DAMAGED = "capture.damaged"
"""The clause of a capture that cannot be read to its end."""
OPENED, MIDSTREAM, CLOSED, ENDED, OVERHEAD = "opened", "midstream", "closed", "ended", "overhead"


class Speaker(NamedTuple):
    """Who sends: the half that numbers its messages, and the side of the connection it is on."""

    connection: CapturedConnection
    half: Half
    side: int


@dataclass(slots=True)
class Rows:
    """What came of a piece of a capture.

    `files` are the names behind the numbers of files, `topics` those behind numbers that stand for topics. `keys` is a
    key file, or empty.
    """

    files: Sequence[str]
    audited: Audited
    choice: Choice = field(default_factory=Choice)
    topics: Mapping[int, str] = field(default_factory=dict)
    keys: str = ""
    tables: list[pa.Table] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _rejects: list[tuple[object, ...]] = field(default_factory=list)

    def messages(
        self,
        name: str,
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
        directions = np.array([DIRECTIONS.index(s.half.direction) for s in speakers], np.int8)
        rows = message_rows(
            name,
            columns,
            time_us=trace.time_us[last],
            connection=coded(speaker, [s.connection.id for s in speakers]),
            direction=directions[speaker],
            source=coded(speaker, [s.connection.end(s.side) for s in speakers]),
            destination=coded(speaker, [s.connection.end(1 - s.side) for s in speakers]),
            sequence=_numbers(speakers, speaker),
            file=coded(trace.file[first], self.files),
            offset=trace.offset[first] + columns.offset - trace.at[first],
            acknowledges=directions[speaker] == DIRECTIONS.index(Direction.C2S) if self._has_publishes(name) else None,
        )
        self.tables.append(self.audited.examine(name, columns, data, rows))

    def _has_publishes(self, name: str) -> bool:
        """Whether requests of clients are acknowledged publishes: a capture does not say what providers took."""
        own = protocol(name)
        return own.request_is_publish and own.has_profile(self.choice.settings(name))

    def reject(self, connection: CapturedConnection | None, half: Half | None, refused: RejectedBytes) -> None:
        """One reject."""
        self._rejects.append(
            (
                refused.time_us,
                refused.time_us // DAY_US,
                None,
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
        connection: CapturedConnection,
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
            messages,
            reject_rows(self._rejects),
            event_rows(self.events),
            self.audited.findings(),
            self.audited.packets(),
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
