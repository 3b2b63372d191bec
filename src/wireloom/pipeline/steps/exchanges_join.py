"""Exchanges, second step: the final join of what the decoding tasks could not pair.

Theory of operation
===================

**The problem.** A request and its answer may be decoded by different tasks, or in different batches. A decoding task
(`exchanges_partial.py`) therefore keeps its unpaired rows, the *turns*. Now all of them must be paired. Some requests
are still waiting, and the next batch may bring their answers.

**The idea.** Concatenate the turns of all tasks and those carried from the last batch. Sort them by time and position.
Run the same kernel as the tasks (`pair_kernel.settle`). All turns of a connection are in one bucket, so several tasks
can join different buckets independently.

Then sort the results into two kinds:

- *Final*: the exchange is answered or superseded, or nobody can answer it any more: the connection was closed, or the
  answering side ended its stream, or nothing came for `FORGET_US`. Final rows are appended to the tables.
- *Open*: the request is still waiting. Its row is written too, with `open` set, and the next batch replaces it. Its
  turn is carried to the next batch.

**Marks.** An exchange that one task has completed leaves no turn. But a request that waits in another task may have the
same id, which breaks a rule. A *mark* shows the kernel that the id was used. Only marks whose key is open somewhere are
joined, and these are few.

**The invariant.** The final tables do not depend on how the input was cut into tasks and batches.

**Example.** Task 1 decodes request A. Task 2 decodes A's answer and request B. The join gets three turns. It pairs A,
which is final. B is open: it gets an open row, and its turn is carried. The next batch brings B's answer. Its join
pairs B, and replaces the open row with the final one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.pipeline import pair_kernel
from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.name_hash import name_hashes
from wireloom.pipeline.pair_kernel import MARK, OPEN, Clock
from wireloom.pipeline.steps import findings, resends
from wireloom.pipeline.steps.exchanges import NEVER, OUTCOMES, exchange_rows
from wireloom.pipeline.steps.exchanges_partial import MARKS, TURNS, broken_rules, ended_at
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, codes, files_in_order, one_piece, order_of, typed
from wireloom.pipeline.steps.sessions import Endings
from wireloom.protocols.registry import protocols


@dataclass(slots=True)
class Joined:
    """The result of `join`.

    `exchanges` and `findings` are final. `open_exchanges` and `open_findings` are correct for the input so far, and the
    next batch replaces them. `turns` and `received` are carried to the next batch.
    """

    exchanges: pa.Table
    open_exchanges: pa.Table
    findings: pa.Table
    open_findings: pa.Table
    turns: pa.Table
    received: pa.Table


def join(
    turns: pa.Table,
    marks: pa.Table,
    endings: Endings,
    clock: Clock,
    without_past: Collection[str] = (),
    received: pa.Table | None = None,
) -> Joined:
    """Pair the turns of all tasks and of earlier batches.

    `endings` holds the times after which nobody on a connection can answer any more. `without_past` are connections
    whose beginning was not captured: an answer without a request is no finding there, because the request may have
    come earlier. `received` is what earlier batches know of messages that may be sent again.
    """
    turns = _with_marks(turns, marks)
    again, known = resends.find(turns, received if received is not None else resends.RECEIVED.empty_table(), clock)
    resent = turns.filter(pa.array(again)) if again.any() else None
    if resent is not None:
        turns = turns.filter(pa.array(~again)).combine_chunks()
    joined = _Join(turns, clock).result(endings, without_past)
    joined.received = known
    if resent is not None:
        joined.findings = pa.concat_tables([joined.findings, _resent_findings(resent)])
    return joined


def _resent_findings(resent: pa.Table) -> pa.Table:
    """Findings for messages that were sent again."""
    found = []
    protocol, names = codes(one_piece(resent["protocol"]))
    pairing = resent["pairing"].to_numpy()
    for code, name in enumerate(names):
        for number, each in enumerate(protocols()[str(name)].conversation.pairings):
            rows = np.flatnonzero((protocol == code) & (pairing == number))
            if each.resent is not None and len(rows):
                found.append(findings.of_table(resent.take(pa.array(rows)), each.resent))
    return findings.together(found)


def _with_marks(turns: pa.Table, marks: pa.Table) -> pa.Table:
    """The turns, and the marks whose key is open somewhere, sorted by time and position."""
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
        }
        turns = pa.concat_tables([turns, typed(values, TURNS)])
    turns = unified(turns).combine_chunks()
    # Turns that an earlier version carried have neither lane nor sequence. They sort first.
    order = order_of(
        turns["time"].to_numpy(),
        files_in_order(one_piece(turns["file"])),
        turns["offset"].to_numpy(),
        one_piece(turns["lane"]).fill_null(0).to_numpy(),
        one_piece(turns["sequence"]).fill_null(0).to_numpy(),
    )
    return turns if (order[1:] > order[:-1]).all() else turns.take(pa.array(order)).combine_chunks()


class _Join:
    """The arrays of one `join`."""

    def __init__(self, turns: pa.Table, clock: Clock) -> None:
        self.turns, self.clock = turns, clock
        self.act: NDArray[np.uint8] = turns["act"].to_numpy()
        self.time: NDArray[np.int64] = turns["time"].to_numpy()
        protocol, names = codes(one_piece(turns["protocol"]))
        conversations = [protocols()[str(name)].conversation for name in names]
        self.pairings = [(pairing, each) for each in conversations for pairing in each.pairings]
        before = np.cumsum([0, *(len(each.pairings) for each in conversations)])
        self.pairing: NDArray[np.int64] = before[protocol] + turns["pairing"].to_numpy()
        """The index into `pairings` of each turn."""
        self.settled = pair_kernel.settle(
            turns["key"].to_numpy(),
            self.act,
            self._of_pairing([pairing.counted for pairing, _ in self.pairings], np.bool_),
            self.time,
            steps=turns["steps"].to_numpy(),
            last=turns["last"].to_numpy(),
        )

    def _of_pairing(self, values: Sequence[object], kind: type[np.generic]) -> NDArray[Any]:
        return np.array(list(values) or [0], kind)[self.pairing]

    def result(self, endings: Endings, without_past: Collection[str]) -> Joined:
        """The rows of all tables, separated into final and open ones."""
        settled, act, time_us = self.settled, self.act, self.time
        watermark = self.clock.watermark_us
        connection, names = codes(one_piece(self.turns["connection"]))
        closed = self._when(endings.closed, connection, names)
        end = np.minimum(np.minimum(closed, self._silent(endings)), ended_at(settled, time_us))
        opens, mated = act == OPEN, settled.mate >= 0
        waiting = opens & ~mated & (end == NEVER) & (watermark - settled.last <= pair_kernel.FORGET_US)
        exchange = opens & self._of_pairing([pairing.exchange for pairing, _ in self.pairings], np.bool_)
        rows = np.flatnonzero(exchange)
        # An answer may still come after a goodbye. But if none comes, the request counts as ended by the goodbye.
        goodbye = self._when(endings.goodbye, connection, names)
        over = np.minimum(end, goodbye)
        # A connection may be closed after its last message, and so after the watermark: its end counts all the same.
        all_exchanges = self._exchanges(rows, np.where(over < NEVER, over, watermark), waiting)
        kept = waiting[rows]
        past = np.array([name in without_past for name in names] or [False])[connection]
        final, open_findings = self._findings(waiting, past)
        return Joined(
            all_exchanges.filter(pa.array(~kept)),
            all_exchanges.filter(pa.array(kept)),
            final,
            open_findings,
            self._carried(waiting),
            resends.RECEIVED.empty_table(),
        )

    def _when(
        self, times: Mapping[str, int], connection: NDArray[np.int64], names: Sequence[str | None]
    ) -> NDArray[np.int64]:
        """For each turn, the time that `times` has for its connection, or `NEVER`."""
        found: NDArray[np.int64] = np.array([times.get(name or "", NEVER) for name in names] or [NEVER])[connection]
        return found

    def _silent(self, endings: Endings) -> NDArray[np.int64]:
        """For each turn, when the side that should answer it ended its stream, or `NEVER`."""
        lanes: dict[int, int] = {}
        for way, times in endings.silent.items():
            asks = DIRECTIONS.index(way.opposite)
            most = max((len(each.pairings) for _, each in self.pairings), default=0)
            hashes = name_hashes(pa.array(list(times), pa.string()))
            for number in range(most if times else 0):
                seeds = pair_kernel.seeds(hashes, len(DIRECTIONS), number)[asks :: len(DIRECTIONS)]
                lanes.update(zip(seeds.tolist(), times.values(), strict=True))
        if not lanes:
            return np.full(len(self.time), NEVER)
        own = one_piece(self.turns["lane"]).fill_null(0).to_pylist()
        return np.array([lanes.get(lane, NEVER) for lane in own], np.int64)

    def _exchanges(self, rows: NDArray[np.int64], end: NDArray[np.int64], waiting: NDArray[np.bool_]) -> pa.Table:
        mate = self.settled.mate[rows]
        closing = np.maximum(mate, 0)
        asking, answering = pa.array(rows), pa.array(closing)
        taken = self.turns.select(["protocol", "connection", "topic", "verb", "message_id", "size"])
        taken = taken if len(rows) == len(self.time) else taken.take(asking)
        answers = self.turns.select(["outcome", "status", "size"]).take(answering)
        said, words = codes(one_piece(answers["outcome"]))
        outcome = np.array([OUTCOMES.index(word or "done") for word in words] or [0], np.int8)[said]
        limits = [int(conversation.answer_limit * 1e6) for _, conversation in self.pairings]
        return exchange_rows(
            protocol=taken["protocol"],
            connection=taken["connection"],
            topic=taken["topic"],
            verb=taken["verb"],
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

    def _findings(self, waiting: NDArray[np.bool_], past: NDArray[np.bool_]) -> tuple[pa.Table, pa.Table]:
        final: list[pa.Table] = []
        provisional: list[pa.Table] = []
        # All earlier turns of a connection are in this join. So an unclaimed turn has no request at all, except on a
        # connection whose beginning was not captured.
        certain = dataclasses.replace(self.settled, unclaimed=self.settled.unclaimed & past)
        asked = self.turns["asked"].to_numpy()
        # That one opening superseded another is final, even while it is waiting itself.
        held = waiting & (self.settled.superseded < 0)
        for place, (pairing, _) in enumerate(self.pairings):
            own = self.pairing == place
            for rule, broken in broken_rules(pairing, self.act, certain, asked):
                for found, rows in (
                    (final, np.flatnonzero(own & broken & ~held)),
                    (provisional, np.flatnonzero(own & broken & held)),
                ):
                    if len(rows):
                        found.append(findings.of_table(self.turns.take(pa.array(rows)), rule))
        return findings.together(final), findings.together(provisional)

    def _carried(self, waiting: NDArray[np.bool_]) -> pa.Table:
        """The waiting turns, for the next batch, with their steps so far.

        `number` is null: this join has already checked whether they were sent again.
        """
        rows = np.flatnonzero(waiting)
        carried = self.turns.take(pa.array(rows))
        for name, new in (("steps", self.settled.steps), ("last", self.settled.last)):
            carried = carried.set_column(TURNS.get_field_index(name), TURNS.field(name), pa.array(new[rows]))
        nothing = pa.nulls(len(rows), pa.int64())
        carried = carried.set_column(TURNS.get_field_index("number"), TURNS.field("number"), nothing)
        return carried.combine_chunks()
