"""Rows of `nodes`: the partial aggregate of each task (`observe`), and the final join (`join`)."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.model import KINDS, Kind
from wireloom.pipeline.name_hash import name_hash
from wireloom.pipeline.pair_kernel import Clock
from wireloom.pipeline.schemas import NODES, arrow_schema
from wireloom.pipeline.steps.exchanges_partial import BUCKETS
from wireloom.pipeline.steps.message_arrays import View, codes
from wireloom.protocols.pairing import Conversation
from wireloom.protocols.registry import protocols

SIGHTINGS = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("node_id", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("heartbeats", pa.int64()),
        ("events", pa.int64()),
        ("gap", pa.int64()),
        ("beats", pa.list_(pa.int64())),
        ("hello", pa.int64()),
        ("capabilities", pa.string()),
    ]
)
"""Sightings: the partial aggregate of a node. `beats` are the times of Heartbeats whose predecessor or successor is not
known yet. `gap` is the longest time between the others, in microseconds."""

_PING, _EVENT, _OPEN = (KINDS.index(kind) for kind in (Kind.PING, Kind.EVENT, Kind.OPEN))


def observe(view: View) -> pa.Table:
    """The sightings of some messages, one row per node. Forged messages are ignored."""
    found = [SIGHTINGS.empty_table()]
    numbers, names = view.protocol
    for code, name in enumerate(names):
        attribute = protocols()[name].conversation.node_attribute if name in protocols() else None
        if attribute is None:
            continue
        rows = np.flatnonzero(numbers == code)
        rows = rows[pc.not_equal(view.column("authenticity").take(pa.array(rows)), "failed").to_numpy(False)]
        node = view.attribute(attribute, rows)
        known = node.is_valid().to_numpy(False)
        if known.any():
            kind = _kinds(view, rows[known], protocols()[str(name)].conversation)
            found.append(_observe(view, rows[known], kind, node.filter(pa.array(known))))
    return pa.concat_tables(found)


def _kinds(view: View, rows: NDArray[np.int64], conversation: Conversation) -> NDArray[np.uint8]:
    """The kinds of messages. An encrypted message has the kind that its unencrypted header names."""
    kind = view.kind[rows].copy()
    locked = np.flatnonzero(kind == KINDS.index(Kind.OTHER)) if conversation.locked_kinds else ()
    if len(locked):
        said = view.attribute(conversation.locked_attribute, rows[locked]).to_pylist()
        kind[locked] = [KINDS.index(conversation.locked_kinds.get(each, Kind.OTHER)) for each in said]
    return kind


def _observe(view: View, rows: NDArray[np.int64], kind: NDArray[np.uint8], node: pa.Array) -> pa.Table:
    of, names = codes(node)
    count, time_us = len(names), view.time_us[rows]
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, of, time_us)
    np.maximum.at(last, of, time_us)
    beats = [np.sort(time_us[(of == place) & (kind == _PING)]) for place in range(count)] if count < 64 else None
    if beats is None:
        order = np.lexsort((time_us, of))
        order = order[kind[order] == _PING]
        beats = np.split(time_us[order], np.searchsorted(of[order], np.arange(1, count)))
    hello, capabilities = _latest_hello(view, rows[kind == _OPEN], of[kind == _OPEN], count)
    return pa.table(
        {
            "bucket": np.array([name_hash(name or "") % BUCKETS for name in names], np.uint8),
            "node_id": pa.array(names, pa.string()),
            "first": first,
            "last": last,
            "heartbeats": np.bincount(of[kind == _PING], minlength=count),
            "events": np.bincount(of[kind == _EVENT], minlength=count),
            "gap": pa.nulls(count, pa.int64()),
            "beats": pa.array([each.tolist() for each in beats], pa.list_(pa.int64())),
            "hello": pa.array(hello, pa.int64()),
            "capabilities": pa.array(capabilities, pa.string()),
        }
    ).cast(SIGHTINGS)


def _latest_hello(
    view: View, rows: NDArray[np.int64], of: NDArray[np.int64], count: int
) -> tuple[list[int | None], list[str | None]]:
    hello: list[int | None] = [None] * count
    capabilities: list[str | None] = [None] * count
    bodies = view.column("body").take(pa.array(rows)).to_pylist()
    for place, time_us, body in zip(of.tolist(), view.time_us[rows].tolist(), bodies, strict=True):
        if (time_us, _text(body)) >= (hello[place] or -1, capabilities[place] or ""):
            hello[place], capabilities[place] = time_us, _text(body)
    return hello, capabilities


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body.hex()
    return text if text.isprintable() else body.hex()


def join(sightings: pa.Table, clock: Clock) -> tuple[pa.Table, pa.Table]:
    """Rows of `nodes`, and the sightings to carry."""
    merged = sightings.sort_by([("node_id", "ascending"), ("hello", "ascending"), ("capabilities", "ascending")])
    names, starts = np.unique(np.array(merged["node_id"].to_pylist(), object), return_index=True)
    if not len(names):
        return arrow_schema(NODES.columns).empty_table(), SIGHTINGS.empty_table()
    ends = np.append(starts[1:], merged.num_rows)
    rows, carried = [], []
    for name, start, end in zip(names.tolist(), starts.tolist(), ends.tolist(), strict=True):
        own = merged.slice(start, end - start).to_pylist()
        beats = sorted({beat for each in own for beat in each["beats"]})
        gaps = [b - a for a, b in itertools.pairwise(beats)]
        settled = [each["gap"] for each in own if each["gap"] is not None]
        said = max(own, key=lambda each: (each["hello"] or -1, each["capabilities"] or ""))
        # A node may be heard in several places, and one of them may be read later.
        safe = clock.watermark_us - clock.lateness_us
        done = [place for place, beat in enumerate(beats[:-1]) if beats[place + 1] <= safe]
        kept = len(done)
        state = {
            "bucket": own[0]["bucket"],
            "node_id": name,
            "first": min(each["first"] for each in own),
            "last": max(each["last"] for each in own),
            "heartbeats": sum(each["heartbeats"] for each in own),
            "events": sum(each["events"] for each in own),
            "gap": max([*settled, *gaps[:kept]], default=None),
            "beats": beats[kept:],
            "hello": said["hello"],
            "capabilities": said["capabilities"],
        }
        carried.append(state)
        longest = max([*settled, *gaps], default=None)
        rows.append({**state, "longest_gap_s": None if longest is None else longest / 1e6})
    state_table = pa.Table.from_pylist(carried, SIGHTINGS)
    seconds = pa.array([row["longest_gap_s"] for row in rows], pa.float64())
    values = {
        "first_seen": state_table["first"].cast(pa.timestamp("us", tz="UTC")),
        "last_seen": state_table["last"].cast(pa.timestamp("us", tz="UTC")),
        "longest_gap_s": seconds,
    }
    made = {name: values.get(name, state_table[name] if name in SIGHTINGS.names else None) for name in NODES.names}
    return pa.table(made).cast(arrow_schema(NODES.columns)), state_table
