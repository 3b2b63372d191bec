"""Builds rows of `exchanges` from requests and their answers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.model import KINDS, Kind
from wireloom.pipeline.schemas import EXCHANGES
from wireloom.pipeline.steps.message_arrays import coded, codes, dates, timestamps

OUTCOMES: list[str | None] = ["done", "error", "cancelled", "killed", "timeout", "unanswered"]
_DONE, _ERROR, _CANCELLED, KILLED, _TIMEOUT, _UNANSWERED = range(6)
NEVER = np.iinfo(np.int64).max
"""The time of an event that did not happen."""


def outcomes_of(kind: NDArray[np.uint8], status: pa.Array, stopped: NDArray[np.bool_]) -> NDArray[np.int8]:
    """The outcomes that answers of these kinds and statuses stand for, as indexes into `OUTCOMES`."""
    said, words = codes(status)
    cancelled = np.array([word == "cancelled" for word in words] or [False])[said]
    failed = kind == KINDS.index(Kind.ERROR)
    outcome = np.where(failed, _ERROR, np.where(cancelled, _CANCELLED, _DONE))
    return np.where(stopped, KILLED, outcome).astype(np.int8)


def where(chosen: NDArray[np.bool_], column: pa.Array) -> pa.Array:
    """A dictionary column with null where `chosen` is false."""
    said, words = codes(column)
    return coded(np.where(chosen, said, len(words)), [*words, None])


def exchange_rows(
    *,
    protocol: pa.Array,
    connection: pa.Array,
    topic: pa.Array,
    verb: pa.Array,
    request_id: pa.Array,
    requested: NDArray[np.int64],
    last: NDArray[np.int64],
    answered: NDArray[np.int64],
    ended: NDArray[np.int64],
    outcome: NDArray[np.int8],
    status: pa.Array,
    steps: NDArray[np.int32],
    request_size: NDArray[np.int32],
    response_size: NDArray[np.int32],
    limit_us: NDArray[np.int64],
    open_: NDArray[np.bool_],
) -> pa.Table:
    """Rows of `exchanges` from columns.

    `answered` and `ended` are `NEVER` where that did not happen. `last` is the time of the request or of its latest
    progress. The outcome is `timeout` if the answer came later than the limit after `last`; `answered_at` is set then.
    It is also `timeout` without an answer, if the limit passed before the connection or the input ended.
    """
    has_answer = (answered < NEVER) & (outcome != KILLED)
    closed = answered < NEVER
    waited = np.where(closed, answered, ended) - last
    outcome = np.where(closed, outcome, _UNANSWERED)
    outcome = np.where((waited > limit_us) & (outcome != KILLED), _TIMEOUT, outcome)
    none = ~has_answer
    everything = not none.any()
    values = {
        "protocol": protocol,
        "connection": connection,
        "topic": topic,
        "verb": verb,
        "request_id": request_id,
        "requested_at": timestamps(requested),
        "answered_at": timestamps(answered, None if everything else none),
        "latency_us": pa.array(np.where(none, 0, answered - requested), mask=None if everything else none),
        "outcome": coded(outcome.astype(np.int8), OUTCOMES),
        "status": status if everything else where(has_answer, status),
        "progress_count": pa.array(steps),
        "request_size": pa.array(request_size),
        "response_size": pa.array(response_size, mask=None if everything else none),
        "date": dates(requested),
        "open": pa.array(open_),
    }
    return pa.table([values[name] for name in EXCHANGES.names], names=list(EXCHANGES.names))
