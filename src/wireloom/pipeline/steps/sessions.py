"""Rows of `sessions`: the partial aggregate of each task (`observe`), and the final join (`join`).

A *visit* is the partial aggregate of a connection: what one task saw of it. Visits of one connection can be combined in
any order. A closed connection is carried for `LINGER_US`, because another range may still hold messages of it.
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
"""How long messages of a closed connection may still arrive, in microseconds."""
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
"""Visits. `from_c2s` and `from_s2c` are the smallest sequence numbers seen. `ended_c2s` and `ended_s2c` tell when a
side ended its stream, while the other may continue. `place` is the last position of the connection in the lane. A row
without a connection marks a start of the hub that wrote the lane: all its open connections ended there."""

_MIN = ("first", "opened", "closed", "farewell", "from_c2s", "from_s2c", "ended_c2s", "ended_s2c")
_SUM = ("messages_c2s", "messages_s2c", "bytes_c2s", "bytes_s2c", "rejects")
_ANY = ("midstream",)
_RANKS = ("close", "error", "redirect")
"""Kinds of goodbyes. Of several, the one that stands last here is reported."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a connection that is not a message. `what` is one of:

    - `opened`, `closed`;
    - `midstream`: the connection began before the capture did;
    - `refused`: bytes that were not a valid message;
    - `overhead`: bytes that the transport added;
    - `ended`: one side ended its stream, the other may continue;
    - `started`: the hub that wrote the lane was started; it concerns all connections of the lane.
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


def observe(view: View, rejects: View, events: pa.Table, lane: str, file: str) -> pa.Table:
    """The visits of one file of a lane: one row per connection."""
    parts = [_of_messages(view), _of_rejects(rejects), _of_events(events)]
    made = [_visits(part) for part in parts if len(part["connection"])]
    if not made:
        return VISITS.empty_table()
    found = _together(pa.concat_tables(made))
    # These texts are made last: once per connection, not once per part.
    place = pc.binary_join_element_wise(pa.scalar(file), pc.utf8_lpad(found["place"].cast(pa.string()), 20, "0"), ":")
    values = {"lane": pa.repeat(lane, found.num_rows), "place": place}
    return pa.table([values.get(name, found[name]) for name in VISITS.names], VISITS)


def midstream(events: Sequence[pa.Table]) -> frozenset[str]:
    """The connections whose beginning was not captured."""
    found = [each.filter(pc.equal(each["what"], "midstream"))["connection"].to_pylist() for each in events]
    return frozenset(name or "" for names in found for name in names)


_NUMBERED = VISITS.set(VISITS.get_field_index("place"), pa.field("place", pa.int64()))
"""`VISITS` of one file: there, `place` is an offset."""


def _visits(part: Mapping[str, pa.Array]) -> pa.Table:
    """Columns as rows of `_NUMBERED`; those that are not given are null."""
    connection = one_piece(part["connection"])
    count = len(connection)
    buckets = (name_hashes(connection) % np.uint64(BUCKETS)).astype(np.uint8)
    buckets[~valid(connection)] = EVERY_BUCKET
    given = {**part, "bucket": pa.array(buckets)}
    columns = [
        given[each.name].cast(each.type) if each.name in given else pa.nulls(count, each.type) for each in _NUMBERED
    ]
    return pa.table(columns, schema=_NUMBERED)


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
    """When the first goodbye of each connection came, and the highest index into `_RANKS` among its goodbyes."""
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
    """Combine visits to one row per connection. Rows without a connection stay as they are."""
    encoded = one_piece(visits["connection"]).dictionary_encode()
    count = len(encoded.dictionary)
    code = encoded.indices.fill_null(count).to_numpy()
    size = np.bincount(code, minlength=count + 1)
    size[count] = 1
    again = size[code] > 1
    if not again.any():
        return visits
    alone = visits.filter(pa.array(~again))
    rows = np.flatnonzero(again)
    rows = rows[np.argsort(code[rows], kind="stable")]
    return pa.concat_tables([alone, _merged(visits.take(pa.array(rows)), code[rows])]).combine_chunks()


def _merged(visits: pa.Table, group: NDArray[np.int32]) -> pa.Table:
    """Combine adjacent rows of one group, in pairs, until each group has one row."""
    while True:
        first = np.flatnonzero(np.diff(group, prepend=-1))
        place = np.arange(len(group)) - np.repeat(first, np.diff(first, append=len(group)))
        later = np.flatnonzero(place % 2 == 1)
        if not len(later):
            return visits
        one, other = visits.take(pa.array(later - 1)), visits.take(pa.array(later))
        both = pa.table([_either(each.name, one[each.name], other[each.name]) for each in visits.schema], visits.schema)
        order = np.arange(len(group))
        order[later - 1] = len(group) + np.arange(len(later))
        kept = np.flatnonzero(place % 2 == 0)
        visits = pa.concat_tables([visits, both]).take(pa.array(order[kept]))
        group = group[kept]


def _either(name: str, one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Combine one column of two rows of the same connection. A null counts as no value."""
    if name in _SUM or name in _ANY:
        add = pc.add if name in _SUM else pc.or_
        return pc.coalesce(add(one, other), one, other)
    return (pc.min_element_wise if name in _MIN else pc.max_element_wise)(one, other)


@dataclass(frozen=True, slots=True)
class Joined:
    """The result of `join`: final sessions, open ones, the visits to carry, and how connections ended."""

    sessions: pa.Table
    open_sessions: pa.Table
    visits: pa.Table
    endings: Endings
    without_past: frozenset[str]


@dataclass(frozen=True, slots=True)
class Endings:
    """The times after which nobody can answer any more, by connection."""

    closed: Mapping[str, int] = field(default_factory=dict)
    goodbye: Mapping[str, int] = field(default_factory=dict)
    """When the first goodbye came. Only an answer that was already on its way may still come."""
    silent: Mapping[Direction, Mapping[str, int]] = field(default_factory=dict)
    """By direction: when that side ended its stream."""


def join(visits: pa.Table, clock: Clock) -> Joined:
    """Combine the visits of all tasks and of earlier batches."""
    known = _together(visits)
    starts = known.filter(pc.is_null(known["connection"]))
    known = _end_at_starts(known.filter(pc.is_valid(known["connection"])), starts)
    closed = pc.fill_null(known["closed"], NEVER).to_numpy()
    over = (closed < NEVER) & (clock.watermark_us - LINGER_US > np.where(closed < NEVER, closed, 0))
    rows = _rows(known)
    names = known["connection"]
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
        frozenset(names.filter(pa.array(unseen)).to_pylist()),
    )


def _times(names: pa.ChunkedArray, column: pa.ChunkedArray) -> dict[str, int]:
    """The times in `column` by connection name. Nulls are left out."""
    happened = pc.is_valid(column)
    return dict(zip(names.filter(happened).to_pylist(), column.filter(happened).to_pylist(), strict=True))


def _end_at_starts(known: pa.Table, starts: pa.Table) -> pa.Table:
    """Close the connections that were open when the hub that wrote their lane was started again."""
    if not starts.num_rows:
        return known
    closed = pc.fill_null(known["closed"], NEVER).to_numpy().copy()
    reset = np.zeros(len(closed), np.bool_)
    moments = starts.select(["lane", "place", "first"]).sort_by([("lane", "ascending"), ("place", "ascending")])
    for start in moments.to_pylist():
        before = pc.and_(pc.equal(known["lane"], start["lane"]), pc.less(known["place"], start["place"]))
        ended = pc.fill_null(before, False).to_numpy() & (closed == NEVER)
        closed[ended] = start["first"]
        reset |= ended
    reason = pc.if_else(pa.array(reset), "reset", known["reason"])
    values = {"closed": pa.array(closed, mask=closed == NEVER), "reason": reason}
    return pa.table({name: values.get(name, known[name]) for name in VISITS.names}).cast(VISITS)


def _rows(known: pa.Table) -> pa.Table:
    """Rows of `sessions`."""
    opened = pc.coalesce(known["opened"], known["first"]).to_numpy()
    goodbye = coded(pc.fill_null(known["farewell_rank"], len(_RANKS)).to_numpy(), [*_RANKS, None]).cast(pa.string())
    # A goodbye is a better reason than the FIN after it. A reset or a time-out is a better reason than a goodbye.
    plain = pc.fill_null(pc.equal(known["reason"], "close"), True)
    telling = pc.fill_null(pc.greater(known["farewell_rank"], 0), False)
    said = pc.coalesce(pc.if_else(pc.or_(plain, telling), goodbye, None), known["reason"], pa.scalar("open"))
    # After a goodbye the other side may keep the connection open for long. Until it is closed, the reason is `open`.
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
