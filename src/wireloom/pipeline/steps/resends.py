"""Finds messages that were sent again, so that each message takes part in a pairing only once.

**The problem.** A peer that got no confirmation sends a message again, under the same number. The receiver confirms it
again, and does nothing else. To find such repetitions, every number of every connection must be remembered.

**The idea.** An interval set. Numbers mostly count up. So the numbers that a lane (a direction of a connection)
received in one minute are stored as intervals `first` to `last`. A busy connection costs no more memory than an idle
one. Numbers are forgotten after ten minutes. The time is that of the messages, in whole minutes. So the result does not
depend on how the input was cut into batches.

**Example.** In minute 5 a lane received the numbers 1 to 1000, stored as one interval. Number 7 comes in minute 8: it
was sent again. Number 7 comes in minute 40: it was forgotten, so it is a new message. The interval is split into 1 to 6
and 8 to 1000, and 7 is stored for minute 40.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.pipeline.pair_kernel import FORGET_US, Clock
from wireloom.pipeline.steps.message_arrays import one_piece, valid

RECEIVED = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("lane", pa.uint64()),
        ("minute", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
"""The interval set: a lane received the numbers `first` to `last` in one minute."""

_MINUTE_US = 60_000_000
_REMEMBERED = FORGET_US // _MINUTE_US
_NEVER = np.iinfo(np.int64).min // 2
_BITS = 40
"""Bits of a number. The other bits of an integer hold the index of the lane, so that one integer stands for both."""


def whole_numbers(texts: pa.Array) -> pa.Array:
    """Texts as numbers; null where a text is no number, or has more than `_BITS` bits."""
    digits = pc.match_substring_regex(texts, "^[0-9]{1,12}$")
    number = pc.if_else(digits, texts, None).cast(pa.int64())
    return pc.if_else(pc.less(number, (1 << _BITS) - 1), number, None)


@dataclass(frozen=True, slots=True)
class _Spans:
    """An interval set in order: places (lane and number in one integer), and the minute in which they came."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    minute: NDArray[np.int64]
    bucket: NDArray[np.uint8]


def find(turns: pa.Table, received: pa.Table, clock: Clock) -> tuple[NDArray[np.bool_], pa.Table]:
    """Which turns were sent again, and the new interval set. The turns must be in order of time."""
    number, again = one_piece(turns["number"]), np.zeros(turns.num_rows, np.bool_)
    rows = np.flatnonzero(valid(number))
    lane = one_piece(turns["lane"]).fill_null(0).to_numpy()[rows]
    known = received["lane"].to_numpy()
    lanes = np.unique(np.concatenate([lane, known]))
    place = (np.searchsorted(lanes, lane) << _BITS) | number.fill_null(0).to_numpy()[rows]
    minute = turns["time"].to_numpy()[rows] // _MINUTE_US
    base = np.searchsorted(lanes, known) << _BITS
    first, last = base | received["first"].to_numpy(), base | received["last"].to_numpy()
    spans = _in_order(_Spans(first, last, received["minute"].to_numpy(), received["bucket"].to_numpy()))
    since = _since(spans, place)
    repeats = _repeats(place, minute, since)
    again[rows] = repeats
    new = np.flatnonzero(~repeats)
    spans = _without(spans, place[new][since[new] > _NEVER])
    spans = _with(spans, place[new], minute[new], turns["bucket"].to_numpy()[rows][new])
    oldest = (clock.watermark_us - clock.lateness_us) // _MINUTE_US - _REMEMBERED
    return again, _table(spans, lanes, spans.minute >= oldest)


def _in_order(spans: _Spans) -> _Spans:
    order = np.argsort(spans.first, kind="stable")
    return _Spans(spans.first[order], spans.last[order], spans.minute[order], spans.bucket[order])


def _since(spans: _Spans, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """The minute in which an earlier batch received each place, or `_NEVER`."""
    if not len(spans.first):
        return np.full(len(place), _NEVER)
    at = np.searchsorted(spans.first, place, "right") - 1
    covered = (at >= 0) & (place <= spans.last[at])
    return np.where(covered, spans.minute[at], _NEVER)


def _repeats(place: NDArray[np.int64], minute: NDArray[np.int64], since: NDArray[np.int64]) -> NDArray[np.bool_]:
    again = since >= minute - _REMEMBERED
    order = np.argsort(place, kind="stable")
    same = np.zeros(len(place) + 1, np.bool_)
    same[1:-1] = place[order][1:] == place[order][:-1]
    # Places that occur more than once in this batch are few: check them one by one, in order.
    latest: dict[int, int] = {}
    for row in order[same[1:] | same[:-1]].tolist():
        before = latest.get(int(place[row]), int(since[row]))
        again[row] = before >= minute[row] - _REMEMBERED
        latest[int(place[row])] = before if again[row] else int(minute[row])
    return again


def _without(spans: _Spans, places: NDArray[np.int64]) -> _Spans:
    """Remove places from the interval set: their numbers were forgotten, and have come again as new messages."""
    if not len(places):
        return spans
    rows = list(
        zip(spans.first.tolist(), spans.last.tolist(), spans.minute.tolist(), spans.bucket.tolist(), strict=True)
    )
    for place in np.unique(places).tolist():
        at = bisect_right(rows, place, key=lambda row: row[0]) - 1
        first, last, minute, bucket = rows[at]
        parts = ((first, place - 1, minute, bucket), (place + 1, last, minute, bucket))
        rows[at : at + 1] = [part for part in parts if part[0] <= part[1]]
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return _Spans(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3].astype(np.uint8))


def _with(spans: _Spans, place: NDArray[np.int64], minute: NDArray[np.int64], bucket: NDArray[np.uint8]) -> _Spans:
    """Add places to the interval set. Consecutive places of one minute become one interval."""
    order = np.argsort(place, kind="stable")
    latest = order[np.append(place[order][1:] != place[order][:-1], True)] if len(order) else order
    place, minute, bucket = place[latest], minute[latest], bucket[latest]
    joined = _in_order(
        _Spans(
            np.concatenate([spans.first, place]),
            np.concatenate([spans.last, place]),
            np.concatenate([spans.minute, minute]),
            np.concatenate([spans.bucket, bucket]),
        )
    )
    if not len(joined.first):
        return joined
    begins = np.ones(len(joined.first), np.bool_)
    begins[1:] = (joined.first[1:] != joined.last[:-1] + 1) | (joined.minute[1:] != joined.minute[:-1])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(begins)) - 1
    return _Spans(joined.first[starts], joined.last[ends], joined.minute[starts], joined.bucket[starts])


def _table(spans: _Spans, lanes: NDArray[np.uint64], kept: NDArray[np.bool_]) -> pa.Table:
    mask = (1 << _BITS) - 1
    first, last = spans.first[kept], spans.last[kept]
    return pa.table(
        {
            "bucket": spans.bucket[kept],
            "lane": lanes[first >> _BITS],
            "minute": spans.minute[kept],
            "first": first & mask,
            "last": last & mask,
        },
        schema=RECEIVED,
    )
