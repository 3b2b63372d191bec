"""Exchanges, first step: the partial aggregate of one decoding task.

A task pairs the requests and answers among its own rows (see `pair_kernel.py`) and writes finished rows of `exchanges`
and `findings`. Rows that it cannot pair, requests without an answer and answers without a request, become *turns*. The
final join (`exchanges_join.py`) pairs the turns of all tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.model import KINDS, Kind
from wireloom.pipeline import pair_kernel
from wireloom.pipeline.pair_kernel import CLOSE, NONE, OPEN, STEP, STOP, Settled
from wireloom.pipeline.steps import findings
from wireloom.pipeline.steps.exchanges import NEVER, OUTCOMES, exchange_rows, outcomes_of
from wireloom.pipeline.steps.message_arrays import (
    DIRECTIONS,
    WORDS,
    View,
    coded,
    text_buffers,
    typed,
    valid,
)
from wireloom.pipeline.steps.resends import whole_numbers
from wireloom.protocols.pairing import Conversation, Key, Pairing, PairingRule
from wireloom.protocols.registry import protocols

BUCKETS = 64
"""Partial rows are distributed over this many buckets by connection. Several tasks then join different buckets."""

TURNS = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("key", pa.uint64()),
        ("protocol", WORDS),
        ("pairing", pa.uint8()),
        ("act", pa.uint8()),
        ("time", pa.int64()),
        ("last", pa.int64()),
        ("steps", pa.int32()),
        ("asked", pa.bool_()),
        ("connection", WORDS),
        ("topic", WORDS),
        ("verb", WORDS),
        ("message_id", pa.string()),
        ("correlation_id", pa.string()),
        ("outcome", WORDS),
        ("status", WORDS),
        ("size", pa.int32()),
        ("file", WORDS),
        ("offset", pa.int64()),
        ("lane", pa.uint64()),
        ("sequence", pa.int64()),
        ("number", pa.int64()),
    ]
)
"""Turns: one row for each message that opens or closes an exchange and has no partner yet.

`lane` is a hash of the connection and the direction, `sequence` the message's place in it. `number` identifies a
message that may be sent again, if the protocol has such a number: see `resends.py`.
"""

_OF_A_MARK = (
    "bucket", "key", "protocol", "pairing", "time", "connection", "message_id", "file", "offset", "lane", "sequence",
)  # fmt: skip
MARKS = pa.schema([TURNS.field(name) for name in _OF_A_MARK])
"""Marks: one row for the first exchange under a key that one task has completed. Another task may have a request open
under the same key."""


@dataclass(slots=True)
class Observed:
    """The result of one task: finished rows, and the turns and marks for the final join."""

    exchanges: list[pa.Table] = field(default_factory=list)
    findings: list[pa.Table] = field(default_factory=list)
    turns: list[pa.Table] = field(default_factory=list)
    marks: list[pa.Table] = field(default_factory=list)


def observe(view: View, *, midstream: Collection[str] = ()) -> Observed:
    """Pair the requests and answers among some rows of `messages`.

    `midstream` are connections whose beginning was not captured.
    """
    found = Observed()
    codes, names = view.protocol
    known = protocols()
    for code, name in enumerate(names):
        if name is None or name not in known:
            continue
        rows = np.arange(len(view)) if len(names) == 1 else np.flatnonzero(codes == code)
        if not len(rows):
            continue
        conversation = known[name].conversation
        found.findings += findings.of_single_messages(view, rows, conversation, midstream)
        for number, pairing in enumerate(conversation.pairings):
            _observe_pairing(view, rows, number, pairing, conversation, found)
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The turns of one pairing: their rows in the view, their acts and their keys."""

    rows: NDArray[np.int64]
    act: NDArray[np.uint8]
    key: NDArray[np.uint64]
    asked: NDArray[np.bool_]


def _acts(pairing: Pairing) -> NDArray[np.uint8]:
    table = np.full(len(KINDS), NONE, np.uint8)
    for kinds, act in ((pairing.opens, OPEN), (pairing.closes, CLOSE), (pairing.steps, STEP)):
        for kind in kinds:
            table[KINDS.index(kind)] = act
    if pairing.stopped_by is not None:
        table[KINDS.index(Kind.CANCEL)] = STOP
    return table


def _choose(view: View, rows: NDArray[np.int64], number: int, pairing: Pairing) -> _Chosen:
    act = _acts(pairing)[view.carried_by[rows]]
    chosen = act != NONE
    rows, act = (rows, act) if chosen.all() else (rows[chosen], act[chosen])
    if pairing.stopped_by is not None and (act == STOP).any():
        stops = np.flatnonzero(act == STOP)
        keep = np.ones(len(rows), np.bool_)
        keep[stops] = view.is_true(pairing.stopped_by, rows[stops])
        rows, act = rows[keep], act[keep]
    connection, _ = view.connection
    # A request and its answers share a key. It contains the direction of the request.
    direction = view.direction[rows]
    opposite = np.array([DIRECTIONS.index(way.opposite) for way in DIRECTIONS], np.uint8)
    asks = np.where((act == OPEN) | (act == STOP), direction, opposite[direction])
    seeds = pair_kernel.seeds(view.connection_hash, len(DIRECTIONS), number)
    key = seeds[connection[rows] * len(DIRECTIONS) + asks]
    keep = np.ones(len(rows), np.bool_)
    if pairing.key is Key.ID:
        own = act == OPEN
        if pairing.id_attribute is not None:
            texts = view.attribute(pairing.id_attribute, rows[own])
            _mix(key, texts, np.arange(len(texts)), np.flatnonzero(own), keep)
        else:
            _mix(key, view.column("message_id"), rows[own], np.flatnonzero(own), keep)
        _mix(key, view.column("correlation_id"), rows[~own], np.flatnonzero(~own), keep)
    elif pairing.key is Key.BODY:
        _mix(key, view.column("body"), rows, np.arange(len(rows)), keep)
    if not keep.all():
        rows, act, key = rows[keep], act[keep], key[keep]
    asked = np.zeros(len(rows), np.bool_)
    if pairing.asked_by is not None:
        opens = np.flatnonzero(act == OPEN)
        asked[opens] = view.is_true(pairing.asked_by, rows[opens])
    return _Chosen(rows, act, key, asked)


def _mix(
    key: NDArray[np.uint64],
    texts: pa.Array,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    keep: NDArray[np.bool_],
) -> None:
    """Hash ids into the keys. Rows without an id are left out of the pairing."""
    if len(rows):
        pair_kernel.mix_in(key, *text_buffers(texts), rows, places)
        keep[places] = valid(texts)[rows]


def _observe_pairing(
    view: View,
    rows: NDArray[np.int64],
    number: int,
    pairing: Pairing,
    conversation: Conversation,
    found: Observed,
) -> None:
    chosen = _choose(view, rows, number, pairing)
    if not len(chosen.rows):
        return
    act = chosen.act
    if pairing.resent_by is not None:
        # Only the final join sees all messages, so only it can tell which were sent again. Leave all rows to it.
        everything, steps = np.arange(len(act)), np.zeros(len(act), np.int32)
        found.turns.append(
            _left_over(view, chosen, everything, number, view.time_us[chosen.rows], steps, pairing.resent_by)
        )
        return
    settled = pair_kernel.settle(chosen.key, act, np.full(len(act), pairing.counted), view.time_us[chosen.rows])
    ended = ended_at(settled, view.time_us[chosen.rows])
    done = (act == OPEN) & ((settled.mate >= 0) | (ended < NEVER))
    if pairing.exchange and done.any():
        found.exchanges.append(_finished(view, chosen, settled, ended, np.flatnonzero(done), conversation))
    for rule, broken in broken_rules(pairing, act, settled, chosen.asked):
        found.findings.append(findings.of_rows(view, chosen.rows[broken], rule))
    left = np.flatnonzero(((act == OPEN) & ~done) | settled.unclaimed)
    if len(left):
        found.turns.append(_left_over(view, chosen, left, number, settled.last[left], settled.steps[left]))
    if pairing.again is not None and not pairing.counted:
        marks = np.flatnonzero(settled.first & done)
        if len(marks):
            found.marks.append(_marks(view, chosen, marks, number))


def ended_at(settled: Settled, time_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each opening was superseded by another one under its key; else `NEVER`."""
    ended = np.full(len(time_us), NEVER)
    aside = settled.superseded >= 0
    ended[settled.superseded[aside]] = time_us[aside]
    return ended


def broken_rules(
    pairing: Pairing, act: NDArray[np.uint8], settled: Settled, asked: NDArray[np.bool_]
) -> Iterator[tuple[PairingRule, NDArray[np.bool_]]]:
    """The rules of a pairing that are broken, each with a mask of the turns that break it."""
    alone = settled.mate < 0
    rules = (
        (pairing.unknown, ((act == CLOSE) | (act == STEP)) & alone & ~settled.unclaimed),
        (pairing.again, settled.superseded >= 0),
        (pairing.unasked, (act == STEP) & ~alone & ~asked[np.maximum(settled.mate, 0)]),
    )
    yield from ((rule, broken) for rule, broken in rules if rule is not None and broken.any())


def _finished(
    view: View,
    chosen: _Chosen,
    settled: Settled,
    ended: NDArray[np.int64],
    opens: NDArray[np.int64],
    conversation: Conversation,
) -> pa.Table:
    """Rows of `exchanges` for the openings that this task has completed."""
    asks = chosen.rows[opens]
    mate = settled.mate[opens]
    answered = mate >= 0
    # Where there is no answer, row 0 is a placeholder; its values are masked.
    answers = chosen.rows[np.maximum(mate, 0)]
    status = view.column("status").take(pa.array(answers))
    outcome = outcomes_of(view.kind[answers], status, chosen.act[np.maximum(mate, 0)] == STOP)
    return exchange_rows(
        protocol=view.column("protocol").take(pa.array(asks)),
        connection=view.column("connection").take(pa.array(asks)),
        topic=view.column("topic").take(pa.array(asks)),
        verb=view.column("verb").take(pa.array(asks)),
        request_id=view.column("message_id").take(pa.array(asks)),
        requested=view.time_us[asks],
        last=settled.last[opens],
        answered=np.where(answered, view.time_us[answers], NEVER),
        ended=ended[opens],
        outcome=outcome,
        status=status,
        steps=settled.steps[opens],
        request_size=view.column("body_size").to_numpy()[asks],
        response_size=view.column("body_size").to_numpy()[answers],
        limit_us=np.full(len(opens), int(conversation.answer_limit * 1e6)),
        open_=np.zeros(len(opens), np.bool_),
    )


def _buckets(view: View, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    codes, _ = view.connection
    return (view.connection_hash % np.uint64(BUCKETS)).astype(np.uint8)[codes[rows]]


def _marks(view: View, chosen: _Chosen, places: NDArray[np.int64], number: int) -> pa.Table:
    rows = chosen.rows[places]
    taken = pa.array(rows)
    values = {
        "bucket": _buckets(view, rows),
        "key": chosen.key[places],
        "pairing": np.full(len(rows), number, np.uint8),
        "time": view.time_us[rows],
        "lane": _lanes(view, rows, number),
        **{
            name: view.column(name).take(taken)
            for name in ("protocol", "connection", "message_id", "file", "offset", "sequence")
        },
    }
    return typed(values, MARKS)


def _lanes(view: View, rows: NDArray[np.int64], number: int) -> NDArray[np.uint64]:
    """A hash of the connection and the direction of each message."""
    connection, _ = view.connection
    seeds = pair_kernel.seeds(view.connection_hash, len(DIRECTIONS), number)
    lanes: NDArray[np.uint64] = seeds[connection[rows] * len(DIRECTIONS) + view.direction[rows]]
    return lanes


def _left_over(
    view: View,
    chosen: _Chosen,
    places: NDArray[np.int64],
    number: int,
    last: NDArray[np.int64],
    steps: NDArray[np.int32],
    resent_by: str | None = None,
) -> pa.Table:
    rows = chosen.rows[places]
    taken = pa.array(rows)
    status = view.column("status").take(taken)
    texts = ("protocol", "connection", "topic", "verb", "message_id", "correlation_id", "file", "offset", "sequence")
    stops = chosen.act[places] == STOP
    values = {
        "bucket": _buckets(view, rows),
        "key": chosen.key[places],
        "pairing": np.full(len(rows), number, np.uint8),
        "act": chosen.act[places],
        "time": view.time_us[rows],
        "last": last,
        "steps": steps,
        "asked": chosen.asked[places],
        "outcome": coded(outcomes_of(view.kind[rows], status, stops), OUTCOMES),
        "status": status,
        "size": view.column("body_size").to_numpy()[rows],
        **{name: view.column(name).take(taken) for name in texts},
        "lane": _lanes(view, rows, number),
        "number": pa.nulls(len(rows), pa.int64())
        if resent_by is None
        else whole_numbers(view.attribute(resent_by, rows)),
    }
    return typed(values, TURNS)
