"""From messages to exchanges and to findings about conversations, in two parts.

`observe` looks at what one task has decoded and settles all that is settled there. What is left over, requests that
wait and answers to something earlier, goes to `join`, with what earlier batches left over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.model import KINDS, Kind
from wireloom.pipeline import ledger
from wireloom.pipeline.dictionaries import unified
from wireloom.pipeline.ledger import CLOSE, MARK, NONE, OPEN, STEP, STOP, Clock, Settled
from wireloom.pipeline.steps import findings
from wireloom.pipeline.steps.exchanges import NEVER, OUTCOMES, exchange_rows, outcomes_of
from wireloom.pipeline.steps.view import (
    DIRECTIONS,
    WORDS,
    View,
    coded,
    codes,
    files_in_order,
    one_piece,
    text_buffers,
    typed,
    valid,
)
from wireloom.protocols.conversation import Conversation, Key, Pairing, Rule
from wireloom.protocols.registry import protocols

BUCKETS = 64
"""Facts are told apart by so many numbers, so that several tasks can join them."""

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
        ("message_id", pa.string()),
        ("correlation_id", pa.string()),
        ("outcome", WORDS),
        ("status", WORDS),
        ("size", pa.int32()),
        ("file", WORDS),
        ("offset", pa.int64()),
        ("late", pa.bool_()),
    ]
)
"""A message that opens or closes something, as it is carried until both ends are known."""

_OF_A_MARK = ("bucket", "key", "protocol", "pairing", "time", "connection", "message_id", "file", "offset")
MARKS = pa.schema([TURNS.field(name) for name in _OF_A_MARK])
"""Something that was opened and closed inside one task, under a key that may be open elsewhere."""


@dataclass(slots=True)
class Observed:
    """What one task found: finished rows, and what is left over for `join`."""

    exchanges: list[pa.Table] = field(default_factory=list)
    findings: list[pa.Table] = field(default_factory=list)
    turns: list[pa.Table] = field(default_factory=list)
    marks: list[pa.Table] = field(default_factory=list)


def observe(view: View, *, midstream: Collection[str] = (), late: bool = False) -> Observed:
    """Settle the conversations in some rows of `messages` as far as these rows tell.

    `midstream` are connections whose beginning nobody saw. `late` says that messages of the same connections may still
    come that are earlier than these.
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
            _observe_pairing(view, rows, number, pairing, conversation, found, late)
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The turns of one pairing: their rows in the view, what each does, and under which key."""

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
    act = _acts(pairing)[view.kind[rows]]
    chosen = act != NONE
    rows, act = (rows, act) if chosen.all() else (rows[chosen], act[chosen])
    if pairing.stopped_by is not None and (act == STOP).any():
        stops = np.flatnonzero(act == STOP)
        keep = np.ones(len(rows), np.bool_)
        keep[stops] = view.is_true(pairing.stopped_by, rows[stops])
        rows, act = rows[keep], act[keep]
    connection, names = view.connection
    # A question and its answers have one key: that of the direction that asks.
    direction = view.direction[rows]
    opposite = np.array([DIRECTIONS.index(way.opposite) for way in DIRECTIONS], np.uint8)
    asks = np.where((act == OPEN) | (act == STOP), direction, opposite[direction])
    key = ledger.seeds([name or "" for name in names], len(DIRECTIONS), number)[
        connection[rows] * len(DIRECTIONS) + asks
    ]
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
    """Make ids part of keys; what has no id takes part in nothing."""
    if len(rows):
        ledger.mix_in(key, *text_buffers(texts), rows, places)
        keep[places] = valid(texts)[rows]


def _observe_pairing(
    view: View,
    rows: NDArray[np.int64],
    number: int,
    pairing: Pairing,
    conversation: Conversation,
    found: Observed,
    late: bool,
) -> None:
    chosen = _choose(view, rows, number, pairing)
    if not len(chosen.rows):
        return
    act = chosen.act
    settled = ledger.settle(chosen.key, act, np.full(len(act), pairing.counted), view.time_us[chosen.rows])
    ended = _ended(settled, view.time_us[chosen.rows])
    done = (act == OPEN) & ((settled.mate >= 0) | (ended < NEVER))
    if pairing.exchange and done.any():
        found.exchanges.append(_finished(view, chosen, settled, ended, np.flatnonzero(done), conversation))
    for rule, broken in _broken(pairing, act, settled, chosen.asked):
        found.findings.append(findings.of_rows(view, chosen.rows[broken], rule))
    left = np.flatnonzero(((act == OPEN) & ~done) | settled.unclaimed)
    if len(left):
        found.turns.append(_left_over(view, chosen, settled, left, number, late))
    if pairing.again is not None and not pairing.counted:
        marks = np.flatnonzero(settled.first & done)
        if len(marks):
            found.marks.append(_marks(view, chosen, marks, number))


def _ended(settled: Settled, time_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """When each opening was pushed aside by another one with its key."""
    ended = np.full(len(time_us), NEVER)
    aside = settled.superseded >= 0
    ended[settled.superseded[aside]] = time_us[aside]
    return ended


def _broken(
    pairing: Pairing, act: NDArray[np.uint8], settled: Settled, asked: NDArray[np.bool_]
) -> Iterator[tuple[Rule, NDArray[np.bool_]]]:
    """The rules of a pairing that turns break, and which turns."""
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
    """Rows of `exchanges` for openings that are settled here."""
    asks = chosen.rows[opens]
    mate = settled.mate[opens]
    answered = mate >= 0
    # Where nothing answers, some row stands in; its values are masked.
    answers = chosen.rows[np.maximum(mate, 0)]
    status = view.column("status").take(pa.array(answers))
    outcome = outcomes_of(view.kind[answers], status, chosen.act[np.maximum(mate, 0)] == STOP)
    connection, names = view.connection
    return exchange_rows(
        protocol=view.column("protocol").take(pa.array(asks)),
        connection=coded(connection[asks], names),
        topic=view.column("topic").take(pa.array(asks)),
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
    codes, names = view.connection
    return np.array([ledger.name_hash(name or "") % BUCKETS for name in names], np.uint8)[codes[rows]]


def _marks(view: View, chosen: _Chosen, places: NDArray[np.int64], number: int) -> pa.Table:
    rows = chosen.rows[places]
    taken = pa.array(rows)
    values = {
        "bucket": _buckets(view, rows),
        "key": chosen.key[places],
        "pairing": np.full(len(rows), number, np.uint8),
        "time": view.time_us[rows],
        **{name: view.column(name).take(taken) for name in ("protocol", "connection", "message_id", "file", "offset")},
    }
    return typed(values, MARKS)


def _left_over(
    view: View, chosen: _Chosen, settled: Settled, places: NDArray[np.int64], number: int, late: bool
) -> pa.Table:
    rows = chosen.rows[places]
    taken = pa.array(rows)
    status = view.column("status").take(taken)
    texts = ("protocol", "connection", "topic", "message_id", "correlation_id", "file", "offset")
    stops = chosen.act[places] == STOP
    values = {
        "bucket": _buckets(view, rows),
        "key": chosen.key[places],
        "pairing": np.full(len(rows), number, np.uint8),
        "act": chosen.act[places],
        "time": view.time_us[rows],
        "last": settled.last[places],
        "steps": settled.steps[places],
        "asked": chosen.asked[places],
        "outcome": coded(outcomes_of(view.kind[rows], status, stops), OUTCOMES),
        "status": status,
        "size": view.column("body_size").to_numpy()[rows],
        "late": np.full(len(rows), late),
        **{name: view.column(name).take(taken) for name in texts},
    }
    return typed(values, TURNS)


@dataclass(slots=True)
class Joined:
    """What `join` makes of everything that was left over.

    `exchanges` and `findings` are final. `open_exchanges` and `open_findings` are right for what has been read so far
    and are replaced next time. `turns` are carried.
    """

    exchanges: pa.Table
    open_exchanges: pa.Table
    findings: pa.Table
    open_findings: pa.Table
    turns: pa.Table


def join(
    turns: pa.Table, marks: pa.Table, ended: Mapping[str, int], clock: Clock, without_past: Collection[str] = ()
) -> Joined:
    """Settle what tasks, and earlier batches, left over.

    `ended` says when connections were closed: after that nobody waits for anything. `without_past` are connections
    whose beginning was not seen: what answers nothing there may well answer something earlier.
    """
    turns = _with_marks(turns, marks)
    return _Join(turns, clock).result(ended, without_past)


def _with_marks(turns: pa.Table, marks: pa.Table) -> pa.Table:
    """Turns in order, with those marks among them whose key is open somewhere."""
    waiting = turns["key"].filter(pc.equal(turns["act"], OPEN))
    if marks.num_rows and len(waiting):
        met = marks.filter(pc.is_in(marks["key"], value_set=waiting.combine_chunks()))
        missing = {name: pa.nulls(met.num_rows, pa.string()) for name in TURNS.names}
        zeros = pa.array(np.zeros(met.num_rows, np.int32))
        values = {
            **missing,
            **{name: met[name] for name in MARKS.names},
            "act": pa.array(np.full(met.num_rows, MARK, np.uint8)),
            "last": met["time"],
            "steps": zeros,
            "size": zeros,
            "asked": zeros.cast(pa.bool_()),
            "late": zeros.cast(pa.bool_()),
        }
        turns = pa.concat_tables([turns, typed(values, TURNS)])
    turns = unified(turns).combine_chunks()
    places = files_in_order(one_piece(turns["file"]))
    order = np.lexsort((turns["offset"].to_numpy(), places, turns["time"].to_numpy()))
    return turns if (order[1:] > order[:-1]).all() else turns.take(pa.array(order)).combine_chunks()


class _Join:
    """The arrays of one `join`."""

    def __init__(self, turns: pa.Table, clock: Clock) -> None:
        self.turns, self.clock = turns, clock
        self.act: NDArray[np.uint8] = turns["act"].to_numpy()
        self.time: NDArray[np.int64] = turns["time"].to_numpy()
        self.late: NDArray[np.bool_] = turns["late"].to_numpy()
        protocol, names = codes(one_piece(turns["protocol"]))
        conversations = [protocols()[str(name)].conversation for name in names]
        self.pairings = [(pairing, each) for each in conversations for pairing in each.pairings]
        before = np.cumsum([0, *(len(each.pairings) for each in conversations)])
        self.pairing: NDArray[np.int64] = before[protocol] + turns["pairing"].to_numpy()
        """Of each turn, which of `pairings` it belongs to."""
        self.settled = ledger.settle(
            turns["key"].to_numpy(),
            self.act,
            self._of_pairing([pairing.counted for pairing, _ in self.pairings], np.bool_),
            self.time,
            steps=turns["steps"].to_numpy(),
            last=turns["last"].to_numpy(),
        )

    def _of_pairing(self, values: Sequence[object], kind: type[np.generic]) -> NDArray[Any]:
        return np.array(list(values) or [0], kind)[self.pairing]

    def result(self, ended: Mapping[str, int], without_past: Collection[str]) -> Joined:
        """Everything, sorted into what is final and what is not."""
        settled, act, time_us = self.settled, self.act, self.time
        watermark = self.clock.watermark_us
        safe_before = watermark - self.clock.lateness_us
        connection, names = codes(one_piece(self.turns["connection"]))
        closed = np.array([ended.get(name or "", NEVER) for name in names] or [NEVER])[connection]
        end = np.minimum(closed, _ended(settled, time_us))
        opens, mated = act == OPEN, settled.mate >= 0
        unsafe = self.late & (time_us > safe_before)
        patience = np.where(self.late, self.clock.lateness_us, 0)
        waiting = opens & ~mated & (end == NEVER) & (watermark - patience - settled.last <= ledger.FORGET_US)
        keep = waiting | (~opens & ~mated & (act != MARK) & unsafe)
        answers = np.flatnonzero(mated & ~opens)
        both = np.flatnonzero(opens & mated)
        keep[both] = unsafe[settled.mate[both]]
        keep[answers] = keep[settled.mate[answers]] & (self.late[answers] | (act[answers] != STEP))
        exchange = opens & self._of_pairing([pairing.exchange for pairing, _ in self.pairings], np.bool_)
        rows = np.flatnonzero(exchange)
        all_exchanges = self._exchanges(rows, np.minimum(end, watermark), waiting)
        kept = keep[rows]
        past = np.array([name in without_past for name in names] or [False])[connection]
        final, open_findings = self._findings(keep, past)
        return Joined(
            all_exchanges.filter(pa.array(~kept)),
            all_exchanges.filter(pa.array(kept)),
            final,
            open_findings,
            self._carried(keep),
        )

    def _exchanges(self, rows: NDArray[np.int64], end: NDArray[np.int64], waiting: NDArray[np.bool_]) -> pa.Table:
        mate = self.settled.mate[rows]
        closing = np.maximum(mate, 0)
        asking, answering = pa.array(rows), pa.array(closing)
        taken = self.turns.select(["protocol", "connection", "topic", "message_id", "size"])
        taken = taken if len(rows) == len(self.time) else taken.take(asking)
        answers = self.turns.select(["outcome", "status", "size"]).take(answering)
        said, words = codes(one_piece(answers["outcome"]))
        outcome = np.array([OUTCOMES.index(word or "done") for word in words] or [0], np.int8)[said]
        limits = [int(conversation.answer_limit * 1e6) for _, conversation in self.pairings]
        return exchange_rows(
            protocol=taken["protocol"],
            connection=taken["connection"],
            topic=taken["topic"],
            request_id=taken["message_id"],
            requested=self.time[rows],
            last=self.settled.last[rows],
            answered=np.where(mate >= 0, self.time[closing], NEVER),
            ended=end[rows],
            outcome=outcome,
            status=one_piece(answers["status"]),
            steps=self.settled.steps[rows],
            request_size=taken["size"].to_numpy(),
            response_size=answers["size"].to_numpy(),
            limit_us=self._of_pairing(limits, np.int64)[rows],
            open_=waiting[rows],
        )

    def _findings(self, keep: NDArray[np.bool_], past: NDArray[np.bool_]) -> tuple[pa.Table, pa.Table]:
        final: list[pa.Table] = []
        provisional: list[pa.Table] = []
        # Nothing comes before all of this that is not in it.
        certain = dataclasses.replace(self.settled, unclaimed=self.settled.unclaimed & past)
        asked = self.turns["asked"].to_numpy()
        # An opening that pushed another one aside has done so once and for all.
        held = keep & (self.settled.superseded < 0)
        for place, (pairing, _) in enumerate(self.pairings):
            own = self.pairing == place
            for rule, broken in _broken(pairing, self.act, certain, asked):
                for found, rows in (
                    (final, np.flatnonzero(own & broken & ~held)),
                    (provisional, np.flatnonzero(own & broken & held)),
                ):
                    if len(rows):
                        found.append(findings.of_table(self.turns.take(pa.array(rows)), rule))
        return findings.together(final), findings.together(provisional)

    def _carried(self, keep: NDArray[np.bool_]) -> pa.Table:
        """What goes on to the next batch; steps that nothing earlier can change are counted in."""
        rows = np.flatnonzero(keep)
        carried = self.turns.take(pa.array(rows))
        counted_in = (self.act[rows] == OPEN) & ~self.late[rows]
        for name, new in (("steps", self.settled.steps), ("last", self.settled.last)):
            old = carried[name].to_numpy()
            field = TURNS.field(name)
            index = TURNS.get_field_index(name)
            carried = carried.set_column(index, field, pa.array(np.where(counted_in, new[rows], old), field.type))
        return carried.combine_chunks()
