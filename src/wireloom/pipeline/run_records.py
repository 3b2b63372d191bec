"""What the records of a segment say of its runs: who sent them, and which of their requests a provider took.

A record `principal` holds for the runs of its connection from there on, a record `taken` for the next one alone. Both
may stand before the range that is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wireloom.journal import blocks as journal_blocks
from wireloom.journal import index as journal_index
from wireloom.journal.blocks import Block
from wireloom.journal.exclusions import TAKEN, Excluded
from wireloom.model import Direction
from wireloom.pipeline.planning import Range
from wireloom.pipeline.segment_runs import Found, Runs, Skimmed
from wireloom.pipeline.steps.message_arrays import DIRECTIONS

_PLACE_BITS = 40
"""Bits of a place in a segment; the rest of 63 count connections, so that one integer orders both."""
_FROM_CLIENT = DIRECTIONS.index(Direction.C2S)
_BEFORE = -1
"""The place of a record that stands before the range."""


@dataclass(slots=True)
class Said:
    """Records that concern runs, each with the connection and its place in the segment."""

    principals: list[tuple[int, int, str]] = field(default_factory=list)
    taken: list[tuple[int, int, Block]] = field(default_factory=list)

    @classmethod
    def read(
        cls, data: NDArray[np.uint8], part: Range, skimmed: Skimmed, found: Found, records: Sequence[Block]
    ) -> Said:
        """What is said before the range and in it; `records` are those in it."""
        said = cls()
        for piece in _pieces_before(data, part, skimmed, found):
            for block in journal_index.principals_before(piece, len(piece)):
                said._add(block, _BEFORE)
        for block in _adjacent(data, part, skimmed, found):
            if block.record == TAKEN:
                said._add(block, _BEFORE)
        for block in records:
            said._add(block, block.offset)
        return said

    def _add(self, block: Block, place: int) -> None:
        if block.connection is None:
            return
        if block.record == "principal" and isinstance(name := block.details.get("principal"), str):
            self.principals.append((block.connection, place, name))
        elif block.record == TAKEN:
            self.taken.append((block.connection, place, block))

    def principal_of(self, runs: Runs) -> tuple[NDArray[np.int64], list[str | None]]:
        """Codes and names: who the peer of each run was proved to be."""
        names: list[str | None] = list(dict.fromkeys(name for _, _, name in self.principals))
        nobody = len(names)
        if not names:
            return np.zeros(len(runs.start), np.int64), [None]
        # Those before the range stand in order and have one place: the last of each connection counts.
        latest = {(connection, place): name for connection, place, name in self.principals}
        known = np.unique(np.array([connection for connection, _ in latest], np.uint64))
        keys = np.array([_key(known, connection, place) for connection, place in latest], np.int64)
        code = np.array([names.index(name) for name in latest.values()], np.int64)
        order = np.argsort(keys)
        keys, code = keys[order], code[order]
        rank = np.searchsorted(known, runs.connection)
        is_known = known[np.minimum(rank, len(known) - 1)] == runs.connection
        at = np.searchsorted(keys, (rank << _PLACE_BITS) | runs.tags_start, "right") - 1
        stated = is_known & (at >= 0) & (keys[at] >> _PLACE_BITS == rank)
        return np.where(stated, code[at], nobody), [*names, None]

    def calls_in(self, runs: Runs) -> dict[int, Excluded]:
        """By run: the requests that a provider took, in protocols whose other requests are publishes."""
        found: dict[int, Excluded] = {}
        if not self.taken:
            return found
        rows = np.flatnonzero(runs.direction == _FROM_CLIENT)
        known, rank = np.unique(runs.connection[rows], return_inverse=True)
        keys = (rank.astype(np.int64) << _PLACE_BITS) | runs.tags_start[rows]
        order = np.argsort(keys)
        for connection, place, block in self.taken:
            at = int(np.searchsorted(known, np.uint64(connection)))
            if at == len(known) or known[at] != connection:
                continue
            following = int(np.searchsorted(keys, _key(known, connection, place), sorter=order))
            if following < len(order) and keys[order[following]] >> _PLACE_BITS == at:
                found.setdefault(int(rows[order[following]]), Excluded()).add(block.details)
        return found


def _key(known: NDArray[np.uint64], connection: int, place: int) -> int:
    return int(np.searchsorted(known, np.uint64(connection))) << _PLACE_BITS | max(place, 0)


def _pieces_before(data: NDArray[np.uint8], part: Range, skimmed: Skimmed, found: Found) -> Iterator[NDArray[np.uint8]]:
    """The blocks before the range in which something may be stated."""
    yield skimmed.stated
    if skimmed.before < part.start:
        yield data[skimmed.before : part.start]
    if found.resumed is not None and found.resumed < part.start:
        yield data[found.resumed : part.start]


def _adjacent(data: NDArray[np.uint8], part: Range, skimmed: Skimmed, found: Found) -> list[Block]:
    """The records that stand right before the first block of the range."""
    if len(skimmed.adjacent):
        return journal_index.records(
            skimmed.adjacent, journal_index.index_blocks(skimmed.adjacent, 0, len(skimmed.adjacent), check_hash=False)
        )
    records: list[Block] = []
    at = int(found.index.offset[0]) if skimmed.before == 0 and len(found.index) else 0
    # Nothing was passed over: all blocks are at hand, and each ends with its own size.
    while at > 0:
        size = int(data[at - 4 : at].view("<u4")[0])
        try:
            kind, _ = journal_blocks.block_at(data.data, at - size, at)
            block = journal_blocks.parse_packet(data.data, at - size, size, check_hash=False) if kind == 6 else None
        except (journal_blocks.BlockFault, ValueError, IndexError):
            break
        if block is None or block.record is None:
            break
        records.insert(0, block)
        at -= size
    return records
