"""Rows of `traffic`: each task counts its messages (`observe`), and the final join adds the counts (`join`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.pipeline.name_hash import name_hashes
from wireloom.pipeline.schemas import TRAFFIC, arrow_schema
from wireloom.pipeline.steps.exchanges_partial import BUCKETS
from wireloom.pipeline.steps.message_arrays import View, coded, dates, one_piece, timestamps

DELAY_US = 60_000_000
"""A minute counts as over when a message this much later than its end was seen."""
MINUTE_US = 60_000_000

KEYS = ("minute", "protocol", "topic", "kind")
MINUTES = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("minute", pa.int64()),
        ("protocol", pa.string()),
        ("topic", pa.string()),
        ("kind", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""The partial aggregate of one task: counts to be added to `traffic`."""


def observe(view: View) -> pa.Table:
    """Rows of `MINUTES`: how many messages, and how many bytes, of each minute, protocol, topic and kind."""
    if not len(view):
        return MINUTES.empty_table()
    minute = view.time_us // MINUTE_US
    base = int(minute.min())
    words = {name: view.codes(name) for name in KEYS[1:]}
    key = minute - base
    for numbers, names in words.values():
        key = key * len(names) + numbers
    size = view.column("wire_size").to_numpy()
    room = (int(minute.max()) - base + 1) * int(np.prod([len(names) for _, names in words.values()]))
    if room <= 1 << 22:
        counts = np.bincount(key, minlength=1)
        keys = np.flatnonzero(counts)
        counts, sums = counts[keys], np.bincount(key, weights=size, minlength=1)[keys].astype(np.int64)
    else:
        keys, places, counts = np.unique(key, return_inverse=True, return_counts=True)
        sums = np.bincount(places, weights=size).astype(np.int64)
    columns: dict[str, pa.Array] = {"messages": pa.array(counts), "bytes": pa.array(sums)}
    rest = keys
    for name in reversed(KEYS[1:]):
        names = words[name][1]
        columns[name] = coded(rest % len(names), names).cast(pa.string())
        rest = rest // len(names)
    columns["minute"] = pa.array((rest + base) * MINUTE_US)
    columns["bucket"] = pa.array(buckets_of(columns["topic"]))
    return pa.table({name: columns[name] for name in MINUTES.names}).cast(MINUTES)


def buckets_of(topics: pa.Array) -> NDArray[np.uint8]:
    """The bucket of each topic."""
    return (name_hashes(one_piece(topics)) % np.uint64(BUCKETS)).astype(np.uint8)


def as_counts(rows: pa.Table) -> pa.Table:
    """Rows of `traffic` as counts to be added to."""
    minute = rows["minute"].cast(pa.int64())
    values = {name: rows[name] for name in MINUTES.names if name in rows.column_names}
    values |= {"minute": minute, "bucket": pa.array(buckets_of(rows["topic"]))}
    return pa.table({name: values[name] for name in MINUTES.names}).cast(MINUTES)


def join(counts: pa.Table, over_before_us: int) -> pa.Table:
    """Rows of `traffic`: all counts added up; minutes that begin before `over_before_us` are over."""
    summed = counts.group_by(list(KEYS)).aggregate([("messages", "sum"), ("bytes", "sum")])
    minute = summed["minute"].to_numpy()
    values = {
        "minute": timestamps(minute),
        **{name: summed[name] for name in KEYS[1:]},
        "messages": summed["messages_sum"],
        "bytes": summed["bytes_sum"],
        "date": dates(minute),
        "open": pa.array(minute >= over_before_us),
    }
    return pa.table({name: values[name] for name in TRAFFIC.names}).cast(arrow_schema(TRAFFIC.columns))


def over_before(watermark_us: int) -> int:
    """The beginning of the first minute that is not over, when `watermark_us` is the latest time seen.

    >>> over_before(185_000_000)
    120000000
    """
    return max(watermark_us - DELAY_US, 0) // MINUTE_US * MINUTE_US
