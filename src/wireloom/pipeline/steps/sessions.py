"""Rows of `sessions`, in two parts: what one task saw of each connection, and what that comes to in all.

What tasks saw can be put together in any order. A connection that is closed is kept in mind for a while, because
the last that is heard of it need not be the last that was said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.kernels import allocating, given
from wireloom.model import KINDS, Direction
from wireloom.pipeline.name_hash import name_hashes
from wireloom.pipeline.pair_kernel import Clock
from wireloom.pipeline.schemas import SESSIONS, arrow_schema
from wireloom.pipeline.steps.exchanges import NEVER
from wireloom.pipeline.steps.exchanges_partial import BUCKETS
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, View, coded, dates, one_piece, timestamps, valid
from wireloom.protocols.registry import protocols

LINGER_US = 60_000_000
"""So long a closed connection may still be heard of."""
EVERY_BUCKET = 255

VISITS = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("connection", pa.string()),
        ("protocol", pa.string()),
        ("source", pa.string()),
        ("destination", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("opened", pa.int64()),
        ("closed", pa.int64()),
        ("reason", pa.string()),
        ("farewell", pa.int64()),
        ("farewell_rank", pa.int8()),
        ("messages_c2s", pa.int64()),
        ("messages_s2c", pa.int64()),
        ("bytes_c2s", pa.int64()),
        ("bytes_s2c", pa.int64()),
        ("rejects", pa.int64()),
        ("from_c2s", pa.int64()),
        ("from_s2c", pa.int64()),
        ("lane", pa.string()),
        ("place", pa.string()),
        ("midstream", pa.bool_()),
        ("ended_c2s", pa.int64()),
        ("ended_s2c", pa.int64()),
    ]
)
"""What is known of a connection. `from_c2s` and `from_s2c` are the smallest sequence numbers seen, `ended_c2s` and
`ended_s2c` when a side was through while the other may go on, `place` is where in the lane it was last heard of. A row
without a connection says that whoever wrote the lane was started there: no connection outlives that."""

_MIN = ("first", "opened", "closed", "farewell", "from_c2s", "from_s2c", "ended_c2s", "ended_s2c")
_SUM = ("messages_c2s", "messages_s2c", "bytes_c2s", "bytes_s2c", "rejects")
_ANY = ("midstream",)
_MAX = tuple(name for name in VISITS.names if name not in (*_MIN, *_SUM, "bucket", "connection", *_ANY))
_RANKS = ("close", "error", "redirect")
"""Goodbyes, the most telling last."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a connection beside messages.

    `opened`, `closed`; `midstream`: it began before anybody looked; `refused`: bytes that were no message;
    `overhead`: bytes of the transport's own; `ended`: a side was through, the other may go on; `started`, of a whole
    lane: whoever wrote it was started then.
    """

    what: str
    time_us: int
    connection: str | None = None
    protocol: str | None = None
    source: str | None = None
    destination: str | None = None
    reason: str | None = None
    direction: str | None = None
    size: int = 0
    offset: int = 0


EVENTS = pa.schema(
    [
        ("what", pa.string()),
        ("time_us", pa.int64()),
        *((name, pa.string()) for name in ("connection", "protocol", "source", "destination", "reason", "direction")),
        ("size", pa.int64()),
        ("offset", pa.int64()),
    ]
)
"""Events as columns."""


def event_rows(events: Sequence[Event]) -> pa.Table:
    """Events as rows of `EVENTS`."""
    return pa.table({each.name: pa.array([getattr(e, each.name) for e in events], each.type) for each in EVENTS})


def observe(view: View, rejects: View, events: pa.Table, file: str) -> pa.Table:
    """Rows of `VISITS`, one a connection, for what one file holds."""
    lane, _, file = file.rpartition("/")
    parts = [_of_messages(view), _of_rejects(rejects), _of_events(events)]
    made = [_visits(part, lane, file) for part in parts if len(part["connection"])]
    return _together(pa.concat_tables(made)) if made else VISITS.empty_table()


def midstream(events: Sequence[pa.Table]) -> frozenset[str]:
    """The connections whose beginning nobody saw."""
    found = [each.filter(pc.equal(each["what"], "midstream"))["connection"].to_pylist() for each in events]
    return frozenset(name or "" for names in found for name in names)


def _visits(part: Mapping[str, pa.Array], lane: str, file: str) -> pa.Table:
    """Columns as rows of `VISITS`, with what is the same for all; columns that are not given are null."""
    connection = one_piece(part["connection"])
    count = len(connection)
    buckets = (name_hashes(connection) % np.uint64(BUCKETS)).astype(np.uint8)
    buckets[~valid(connection)] = EVERY_BUCKET
    place = pc.utf8_lpad(part["place"].cast(pa.string()), 20, "0")
    given = {
        **part,
        "bucket": pa.array(buckets),
        "lane": pa.repeat(lane, count),
        "place": pc.binary_join_element_wise(pa.scalar(file), place, ":"),
    }
    columns = [
        given[each.name].cast(each.type) if each.name in given else pa.nulls(count, each.type) for each in VISITS
    ]
    return pa.table(columns, schema=VISITS)


@allocating
def _tally(connection, direction, time, size, sequence, count):  # type: ignore[no-untyped-def]
    """Per connection: first and last time, then per direction messages, bytes and the smallest sequence number."""
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    totals = np.zeros((2, 2, count), np.int64)
    begins = np.full((2, count), np.iinfo(np.int64).max)
    for row in range(connection.shape[0]):
        of = connection[row]
        way = 1 if direction[row] == 1 else 0
        first[of] = min(first[of], time[row])
        last[of] = max(last[of], time[row])
        totals[0, way, of] += 1
        totals[1, way, of] += size[row]
        begins[way, of] = min(begins[way, of], sequence[row])
    return first, last, totals, begins


def _of_messages(view: View) -> dict[str, pa.Array]:
    connection, names = view.connection
    if not len(view):
        return {"connection": pa.array([], pa.string())}
    count = len(names)
    size = view.column("wire_size").to_numpy()
    sequence = view.column("sequence").to_numpy()
    direction = view.direction
    columns = (connection, direction, view.time_us, size, sequence)
    first, last, totals, begins = _tally(*map(given, columns), count)
    some = np.zeros(count, np.int64)
    some[connection] = np.arange(len(view))
    farewell, rank = _farewells(view, count)
    seen = np.flatnonzero(first <= last)
    rows = some[seen]
    back = pa.array(direction[rows] == DIRECTIONS.index(Direction.S2C))
    protocol, source, destination = (
        view.column(name).take(pa.array(rows)).cast(pa.string()) for name in ("protocol", "source", "destination")
    )
    return {
        "connection": view.connections.take(pa.array(seen)),
        "protocol": protocol,
        "source": pc.if_else(back, destination, source),
        "destination": pc.if_else(back, source, destination),
        "first": pa.array(first[seen]),
        "last": pa.array(last[seen]),
        "place": view.column("offset").take(pa.array(rows)),
        "messages_c2s": pa.array(totals[0, 0, seen]),
        "messages_s2c": pa.array(totals[0, 1, seen]),
        "bytes_c2s": pa.array(totals[1, 0, seen]),
        "bytes_s2c": pa.array(totals[1, 1, seen]),
        "from_c2s": _unless_never(begins[0, seen]),
        "from_s2c": _unless_never(begins[1, seen]),
        "farewell": _unless_never(farewell[seen]),
        "farewell_rank": pa.array(rank[seen], mask=rank[seen] < 0),
    }


def _unless_never(numbers: NDArray[np.int64]) -> pa.Array:
    return pa.array(numbers, mask=numbers == NEVER)


def _farewells(view: View, count: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """When each connection said goodbye first, and the most telling goodbye."""
    at, rank = np.full(count, NEVER), np.full(count, -1, np.int8)
    codes_, names = view.protocol
    connection, _ = view.connection
    for code, name in enumerate(names):
        if name is None or name not in protocols():
            continue
        for kind, reason in protocols()[name].conversation.farewells.items():
            said = view.kind == KINDS.index(kind)
            if said.any():
                rows = np.flatnonzero(said & (codes_ == code))
                rows = rows[~view.column("correlation_id").take(pa.array(rows)).is_valid().to_numpy(False)]
                np.minimum.at(at, connection[rows], view.time_us[rows])
                np.maximum.at(rank, connection[rows], np.int8(_RANKS.index(reason)))
    return at, rank


def _of_rejects(rejects: View) -> dict[str, pa.Array]:
    rows = rejects.rows.filter(pc.is_valid(rejects.rows["connection"])).combine_chunks()
    time = rows["time"].cast(pa.int64())
    back = pc.fill_null(pc.equal(rows["direction"], str(Direction.S2C)), False)
    return {
        "connection": rows["connection"],
        "protocol": rows["protocol"],
        "first": time,
        "last": time,
        "place": rows["offset"],
        "bytes_c2s": pc.if_else(back, 0, rows["size"]),
        "bytes_s2c": pc.if_else(back, rows["size"], 0),
        "rejects": pa.repeat(1, rows.num_rows),
    }


def _of_events(events: pa.Table) -> dict[str, pa.Array]:
    back = pc.fill_null(pc.equal(events["direction"], str(Direction.S2C)), False)
    time = events["time_us"]

    def only(what: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.if_else(pc.equal(events["what"], what), values, None)

    ended = only("ended", time)
    return {
        "connection": events["connection"],
        "protocol": events["protocol"],
        "source": only("opened", events["source"]),
        "destination": only("opened", events["destination"]),
        "first": time,
        "last": time,
        "place": events["offset"],
        "opened": only("opened", time),
        "closed": only("closed", time),
        "reason": events["reason"],
        "bytes_c2s": pc.if_else(back, 0, events["size"]),
        "bytes_s2c": pc.if_else(back, events["size"], 0),
        "rejects": pc.equal(events["what"], "refused").cast(pa.int64()),
        "midstream": pc.equal(events["what"], "midstream"),
        **{
            f"ended_{way}": pc.if_else(pc.fill_null(pc.equal(events["direction"], way), False), ended, None)
            for way in ("c2s", "s2c")
        },
    }


def _together(visits: pa.Table) -> pa.Table:
    """One row a connection; rows without one stay as they are."""
    starts = visits.filter(pc.is_null(visits["connection"]))
    named = visits.filter(pc.is_valid(visits["connection"]))
    if named.num_rows == 0:
        return starts
    how = {"min": _MIN, "max": _MAX, "sum": _SUM, "any": _ANY}
    rules = [(name, rule) for rule, names in how.items() for name in names]
    summed = named.group_by(["bucket", "connection"]).aggregate(rules)
    by_name = {name.rpartition("_")[0]: summed[name] for name in summed.column_names if name not in VISITS.names}
    values = {"bucket": summed["bucket"], "connection": summed["connection"], **by_name}
    merged = pa.table({name: values[name] for name in VISITS.names}).cast(VISITS)
    return pa.concat_tables([merged, starts]) if starts.num_rows else merged


@dataclass(frozen=True, slots=True)
class Joined:
    """Sessions that are over, those that may still change, what is carried, and how connections ended."""

    sessions: pa.Table
    open_sessions: pa.Table
    visits: pa.Table
    endings: Endings
    without_past: frozenset[str]


@dataclass(frozen=True, slots=True)
class Endings:
    """When nobody could answer any more, by connection."""

    closed: Mapping[str, int] = field(default_factory=dict)
    goodbye: Mapping[str, int] = field(default_factory=dict)
    """When somebody said goodbye: an answer that is on its way may still come, others not."""
    silent: Mapping[Direction, Mapping[str, int]] = field(default_factory=dict)
    """By direction: when that side was through with its stream."""


def join(visits: pa.Table, clock: Clock) -> Joined:
    """Put together what tasks, and earlier batches, saw."""
    known = _together(visits)
    starts = known.filter(pc.is_null(known["connection"]))
    known = _end_at_starts(known.filter(pc.is_valid(known["connection"])), starts)
    closed = pc.fill_null(known["closed"], NEVER).to_numpy()
    over = (closed < NEVER) & (clock.watermark_us - LINGER_US > np.where(closed < NEVER, closed, 0))
    rows = _rows(known)
    names = known["connection"].to_pylist()
    begins = np.maximum(*(pc.fill_null(known[name], 0).to_numpy() for name in ("from_c2s", "from_s2c")))
    unseen = (begins > 0) | pc.fill_null(known["midstream"], False).to_numpy()
    return Joined(
        rows.filter(pa.array(over)),
        rows.filter(pa.array(~over)),
        known.filter(pa.array(~over)).combine_chunks(),
        Endings(
            _times(names, known["closed"]),
            _times(names, known["farewell"]),
            {way: _times(names, known[f"ended_{way}"]) for way in (Direction.C2S, Direction.S2C)},
        ),
        frozenset(name for name, each in zip(names, unseen.tolist(), strict=True) if each),
    )


def _times(names: Sequence[str], column: pa.ChunkedArray) -> dict[str, int]:
    """What happened to connections, and when; those it did not happen to are left out."""
    return {name: at for name, at in zip(names, column.to_pylist(), strict=True) if at is not None}


def _end_at_starts(known: pa.Table, starts: pa.Table) -> pa.Table:
    """Connections that were open when the writer of their lane was started again did not survive that."""
    if not starts.num_rows:
        return known
    closed = pc.fill_null(known["closed"], NEVER).to_numpy().copy()
    lane, place, reason = (known[name].to_pylist() for name in ("lane", "place", "reason"))
    moments = starts.select(["lane", "place", "first"]).sort_by([("lane", "ascending"), ("place", "ascending")])
    for start in moments.to_pylist():
        for row in np.flatnonzero(closed == NEVER).tolist():
            if lane[row] == start["lane"] and place[row] < start["place"]:
                closed[row], reason[row] = start["first"], "reset"
    values = {"closed": pa.array(closed, mask=closed == NEVER), "reason": pa.array(reason, pa.string())}
    return pa.table({name: values.get(name, known[name]) for name in VISITS.names}).cast(VISITS)


def _rows(known: pa.Table) -> pa.Table:
    """Rows of `sessions`."""
    opened = pc.coalesce(known["opened"], known["first"]).to_numpy()
    goodbye = coded(pc.fill_null(known["farewell_rank"], len(_RANKS)).to_numpy(), [*_RANKS, None]).cast(pa.string())
    # A goodbye says more than the FIN after it; a reset or a silence says more than a goodbye that was one.
    plain = pc.fill_null(pc.equal(known["reason"], "close"), True)
    telling = pc.fill_null(pc.greater(known["farewell_rank"], 0), False)
    said = pc.coalesce(pc.if_else(pc.or_(plain, telling), goodbye, None), known["reason"], pa.scalar("open"))
    # After a goodbye the other end may stay for long: as long as it does, the connection is open.
    reason = pc.if_else(pc.is_valid(known["closed"]), said, "open")
    values = {
        **{name: known[name] for name in SESSIONS.names if name in VISITS.names},
        "opened_at": timestamps(opened),
        "closed_at": known["closed"].cast(pa.timestamp("us", tz="UTC")),
        "close_reason": reason,
        **{name: pc.fill_null(known[name], 0) for name in _SUM},
        "date": dates(opened),
        "open": pc.is_null(known["closed"]),
    }
    return pa.table({name: values[name] for name in SESSIONS.names}).cast(arrow_schema(SESSIONS.columns))


def warm() -> None:
    """Compile or load the kernel."""
    time, number = given(np.zeros(1, np.int64)), given(np.zeros(1, np.int32))
    _tally(number, given(np.zeros(1, np.uint8)), time, number, time, 1)
