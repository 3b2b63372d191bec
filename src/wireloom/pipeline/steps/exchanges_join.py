"""From messages to exchanges and to findings about conversations, the second part: what tasks left over.

Requests that wait and answers to something earlier, of all tasks and of earlier batches, see `exchanges_partial.py`.
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
    """What `join` makes of everything that was left over.

    `exchanges` and `findings` are final. `open_exchanges` and `open_findings` are right for what has been read so far
    and are replaced next time. `turns` and `received` are carried.
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
    """Settle what tasks, and earlier batches, left over.

    `endings` say when nobody could answer any more: after that nobody waits for anything. `without_past` are
    connections whose beginning was not seen: what answers nothing there may well answer something earlier. `received`
    is what earlier batches know of messages that may be sent again.
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
    """What is to be said about messages that were sent again."""
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
        }
        turns = pa.concat_tables([turns, typed(values, TURNS)])
    turns = unified(turns).combine_chunks()
    # What an earlier version carried has neither lane nor sequence, and is earlier than all else.
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
        """Of each turn, which of `pairings` it belongs to."""
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
        """Everything, sorted into what is final and what is not."""
        settled, act, time_us = self.settled, self.act, self.time
        watermark = self.clock.watermark_us
        connection, names = codes(one_piece(self.turns["connection"]))
        closed = self._when(endings.closed, connection, names)
        end = np.minimum(np.minimum(closed, self._silent(endings)), ended_at(settled, time_us))
        opens, mated = act == OPEN, settled.mate >= 0
        waiting = opens & ~mated & (end == NEVER) & (watermark - settled.last <= pair_kernel.FORGET_US)
        exchange = opens & self._of_pairing([pairing.exchange for pairing, _ in self.pairings], np.bool_)
        rows = np.flatnonzero(exchange)
        # A goodbye does not end the waiting, but if nothing comes after it, it is why.
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
        """When something happened to the connection of each turn."""
        found: NDArray[np.int64] = np.array([times.get(name or "", NEVER) for name in names] or [NEVER])[connection]
        return found

    def _silent(self, endings: Endings) -> NDArray[np.int64]:
        """When the side that was to answer each turn was through with its stream."""
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
        # Nothing comes before all of this that is not in it.
        certain = dataclasses.replace(self.settled, unclaimed=self.settled.unclaimed & past)
        asked = self.turns["asked"].to_numpy()
        # An opening that pushed another one aside has done so once and for all.
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
        """What goes on to the next batch; the steps it had are counted in, and its number is known already."""
        rows = np.flatnonzero(waiting)
        carried = self.turns.take(pa.array(rows))
        for name, new in (("steps", self.settled.steps), ("last", self.settled.last)):
            carried = carried.set_column(TURNS.get_field_index(name), TURNS.field(name), pa.array(new[rows]))
        nothing = pa.nulls(len(rows), pa.int64())
        carried = carried.set_column(TURNS.get_field_index("number"), TURNS.field("number"), nothing)
        return carried.combine_chunks()
