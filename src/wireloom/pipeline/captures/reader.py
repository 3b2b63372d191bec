"""Captures in, rows out: packets to flows, flows to streams, streams to messages. Bounded memory, any size of input.

    reader = CaptureReader(Choice.parse())
    for segments in packets_of(files): rows = reader.feed(segments)
    rest = reader.finish()

What is not finished is kept from one piece to the next; `freeze` hands it out as bytes, so that another reader can go
on. However the packets are cut into pieces, the rows are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wireloom.pipeline.captures import headers, state, tcp
from wireloom.pipeline.captures.choosing import IDLE_S, MOST_CONNECTIONS, Choice
from wireloom.pipeline.captures.connections import OTHER, Connection, Refused
from wireloom.pipeline.captures.counts import Counts
from wireloom.pipeline.captures.deciding import decide
from wireloom.pipeline.captures.decoding import decode_datagrams, decode_parts
from wireloom.pipeline.captures.flow_pass import Walk
from wireloom.pipeline.captures.flows import FlowKey, group_flows
from wireloom.pipeline.captures.fragments import Fragments
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.reassemble import assemble, tell_late
from wireloom.pipeline.captures.rows import CLOSED, ENDED, MIDSTREAM, OPENED, OVERHEAD, Rows
from wireloom.pipeline.decode import Audited, DecodedRange

LIMIT, CROWDED = "limit", "capture.crowded"
"""How connections end that are too many, and the clause of the reject that says so."""
_TOO_MANY = (
    f"more than {MOST_CONNECTIONS:,} connections at a time: what this one says from here on is read as a new one"
)


class CaptureReader:
    """Reads one group of flows. `files` are the names of captures by the numbers that `Segments.file` has."""

    def __init__(
        self,
        choice: Choice,
        *,
        idle_s: float = IDLE_S,
        group: int = 0,
        groups: int = 1,
        trust: str = "",
        keys: str = "",
        topics: Mapping[int, str] | None = None,
    ) -> None:
        self.choice = choice
        self.idle_us = int(idle_s * 1_000_000)
        self.group, self.groups = group, groups
        self.files: list[str] = []
        self.connections: dict[FlowKey, Connection] = {}
        self.fragments = Fragments()
        """Of all captures: a datagram may begin in one and end in the next."""
        self.latest_us = 0
        self.counts = Counts()
        self.trust, self.keys = trust, keys
        self.topics = topics or {}

    def file_number(self, name: str) -> int:
        """The number by which `Segments.file` names a capture."""
        if name not in self.files:
            self.files.append(name)
        return self.files.index(name)

    def feed(self, segments: Segments) -> DecodedRange:
        """Take packets in the order of capture."""
        self.counts.packets += len(segments)
        if not self.group:
            self.counts.other_packets += int((segments.protocol == headers.OTHER).sum())
        if len(segments):
            self.latest_us = max(self.latest_us, int(segments.time_us.max()))
        walk = self._walk(segments)
        walk.walk()
        for connection in list(self.connections.values()):
            silence = self.latest_us - int(connection.numbers[tcp.LAST])
            if silence > self.idle_us:
                walk.end(connection, "idle")
                del self.connections[connection.key]
            elif silence > tcp.LONGEST_WAIT_US and connection.sides[:, tcp.WAITING].any():
                walk.give_up(connection, self.latest_us)
        for connection in self._beyond_limit():
            walk.end(connection, LIMIT)
            del self.connections[connection.key]
        return self._rows(walk)

    def _beyond_limit(self) -> list[Connection]:
        """The connections that are too many: those that are closed, then those that were silent for longest."""
        many = len(self.connections) - MOST_CONNECTIONS
        if many <= 0:
            return []
        known = list(self.connections.values())
        known.sort(key=lambda each: (not each.closed_told, int(each.numbers[tcp.LAST])))
        return known[:many]

    def freeze(self) -> bytes:
        """What is not finished, for a reader that goes on with the next captures."""
        return state.freeze(self.connections.values(), self.files, self.latest_us, self.fragments)

    def thaw(self, frozen: bytes) -> None:
        """Go on where another reader was; before anything else is read."""
        known, files, self.latest_us = state.thaw(frozen, self.fragments)
        self.files[:] = files
        self.connections = {connection.key: connection for connection in known}

    def finish(self) -> DecodedRange:
        """The input is over: what is not finished never will be."""
        walk = self._walk(_no_segments())
        for connection in self.connections.values():
            walk.end(connection, None)
        self.connections.clear()
        return self._rows(walk)

    def _walk(self, segments: Segments) -> Walk:
        flows = group_flows(segments, self.group, self.groups)
        return Walk(self.connections, self.choice, self.idle_us, self.counts, segments, flows)

    def _rows(self, walk: Walk) -> DecodedRange:
        """Everything that can be told now."""
        rows = Rows(self.files, Audited(self.trust), self.choice, self.topics, self.keys)
        parts = assemble(walk, rows.reject)
        decide(parts, auto=self.choice.auto)
        tell_late(walk, rows.reject)
        decode_parts(parts, rows)
        for name in walk.datagrams:
            decode_datagrams(walk, name, rows)
        _tell(walk, rows)
        return rows.decoded()


def _tell(walk: Walk, rows: Rows) -> None:
    """What happened to connections."""
    touched = {id(c): c for c, _ in walk.halves}
    touched.update({id(c): c for found in walk.datagrams.values() for c, _ in found})
    for connection in touched.values():
        if connection.protocol == OTHER:
            walk.counts.add_other(connection)
        if connection.protocol in (None, OTHER) or not connection.id:
            continue
        if not connection.opened_told:
            connection.opened_told = True
            what = MIDSTREAM if connection.is_midstream else OPENED
            rows.event(what, connection, int(connection.numbers[tcp.FIRST]))
        for half in connection.halves:
            if half.overhead:
                rows.event(OVERHEAD, connection, int(connection.numbers[tcp.LAST]), half=half, size=half.overhead)
                half.overhead = 0
            if (ended := int(connection.numbers[tcp.ENDED + connection.halves.index(half)])) >= 0 and not half.end_told:
                half.end_told = True
                rows.event(ENDED, connection, ended, half=half)
    for connection, reason in walk.ended:
        if connection.protocol in (None, OTHER):
            continue
        if reason is not None:
            closed_at = int(connection.numbers[tcp.CLOSED_AT])
            at = closed_at if closed_at >= 0 else int(connection.numbers[tcp.LAST])
            rows.event(CLOSED, connection, at, reason=reason)
            if reason == LIMIT:
                # Those that are closed already are dropped without a word: all has been said about them.
                last = walk.segments
                rows.reject(connection, None, Refused(CROWDED, _TOO_MANY, at, int(last.file[-1]), int(last.offset[-1])))
        connection.forget()


def _no_segments() -> Segments:
    small, wide = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    return Segments(
        small, small, small, np.zeros((4, 0), np.uint64), np.zeros((2, 0), np.int32), wide, wide, wide, wide, wide,
        wide, np.zeros(0, np.int32), wide,
    )  # fmt: skip
