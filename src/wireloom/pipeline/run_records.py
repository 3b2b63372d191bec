"""What the records of a segment say of its runs: who sent them, and which of their requests a provider took.

A record `principal` holds for the runs of its connection from there on, a record `taken` for the next one alone. Both
may stand before the range that is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.journal import blocks as journal_blocks
from wireloom.journal.blocks import Block
from wireloom.journal.exclusions import TAKEN, Excluded
from wireloom.journal.index import index_blocks
from wireloom.model import Direction
from wireloom.pipeline.record_columns import RecordColumns, details, find_records, parsed
from wireloom.pipeline.segment_runs import Found, Indexed, Runs, Skimmed
from wireloom.pipeline.steps.message_arrays import DIRECTIONS

_PLACE_BITS = 40
"""Bits of a place in a segment; the rest of 63 count connections, so that one integer orders both."""
_FROM_CLIENT = DIRECTIONS.index(Direction.C2S)
_BEFORE = -1
"""The place of a record that stands before the range."""
PRINCIPAL = "principal"
_PRINCIPALS = pa.schema([(PRINCIPAL, pa.string())])


@dataclass(slots=True)
class Said:
    """Records that concern runs, each with the connection and its place in the segment."""

    connection: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    place: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    principal: list[str] = field(default_factory=list)
    """Who the peer of a connection was proved to be; the two above say which, and where."""
    taken: list[tuple[int, int, Block]] = field(default_factory=list)

    @classmethod
    def read(
        cls, part: Indexed, records: RecordColumns, before: Sequence[Indexed], skimmed: Skimmed, found: Found
    ) -> Said:
        """What is said in the range, whose blocks and records are given, and before it."""
        connections, places, names = [], [], list[str]()
        for piece in (*before, part):
            own = (records if piece is part else find_records(piece.data, piece.index)).of(PRINCIPAL)
            rows, principals = _principals(piece, own)
            connections.append(piece.index.connection[rows])
            places.append(piece.index.offset[rows] if piece is part else np.full(len(rows), _BEFORE))
            names += principals
        said = cls(np.concatenate(connections), np.concatenate(places), names)
        for block in _adjacent(part.data, skimmed, found):
            said._add_taken(block, _BEFORE)
        for block in parsed(part.data, part.index, records.of(TAKEN)):
            said._add_taken(block, block.offset)
        return said

    def _add_taken(self, block: Block, place: int) -> None:
        if block.record == TAKEN and block.connection is not None:
            self.taken.append((block.connection, place, block))

    def principal_of(self, runs: Runs) -> tuple[NDArray[np.int64], list[str | None]]:
        """Codes and names: who the peer of each run was proved to be."""
        if not self.principal:
            return np.zeros(len(runs.start), np.int64), [None]
        code_of = {name: code for code, name in enumerate(dict.fromkeys(self.principal))}
        code = np.array([code_of[name] for name in self.principal], np.int64)
        known, rank = np.unique(self.connection, return_inverse=True)
        keys = rank.astype(np.int64) << _PLACE_BITS | np.maximum(self.place, 0)
        # Those before the range stand in order and have one place: the last of each connection counts.
        order = np.argsort(keys, kind="stable")
        keys, code = keys[order], code[order]
        of_run = np.searchsorted(known, runs.connection)
        is_known = known[np.minimum(of_run, len(known) - 1)] == runs.connection
        at = np.searchsorted(keys, (of_run << _PLACE_BITS) | runs.tags_start, "right") - 1
        stated = is_known & (at >= 0) & (keys[at] >> _PLACE_BITS == of_run)
        return np.where(stated, code[at], len(code_of)), [*code_of, None]

    def calls_in(self, runs: Runs) -> dict[int, Excluded]:
        """By run: the requests that a provider took, in protocols whose other requests are publishes."""
        found: dict[int, Excluded] = {}
        if not self.taken:
            return found
        rows = np.flatnonzero(runs.direction == _FROM_CLIENT)
        known, rank = np.unique(runs.connection[rows], return_inverse=True)
        keys = (rank.astype(np.int64) << _PLACE_BITS) | runs.tags_start[rows]
        order = np.argsort(keys)
        ordered = keys[order]
        own = np.array([connection for connection, _, _ in self.taken], np.uint64)
        of_connection = np.searchsorted(known, own)
        place = np.maximum([place for _, place, _ in self.taken], 0)
        following = np.searchsorted(ordered, of_connection << _PLACE_BITS | place)
        is_there = (following < len(ordered)) & (of_connection < len(known))
        run = order[np.minimum(following, max(len(ordered) - 1, 0))] if len(ordered) else following
        for each in np.flatnonzero(is_there).tolist():
            if known[of_connection[each]] == own[each] and keys[run[each]] >> _PLACE_BITS == of_connection[each]:
                found.setdefault(int(rows[run[each]]), Excluded()).add(self.taken[each][2].details)
        return found


def _principals(piece: Indexed, records: RecordColumns) -> tuple[NDArray[np.int64], list[str]]:
    """The rows in the index that state a principal of a connection, and the principals."""
    columns = details(piece.data, records, _PRINCIPALS)
    if columns is not None:
        names = columns[PRINCIPAL].to_pylist()
        told = [place for place, name in enumerate(names) if name is not None]
        return records.row[told], [names[place] for place in told]
    found = {
        block.offset: name
        for block in parsed(piece.data, piece.index, records)
        if isinstance(name := block.details.get(PRINCIPAL), str)
    }
    rows = records.row[np.isin(piece.index.offset[records.row], list(found))]
    return rows, list(found.values())


def _adjacent(data: NDArray[np.uint8], skimmed: Skimmed, found: Found) -> list[Block]:
    """The records that stand right before the first block of the range."""
    if len(skimmed.adjacent):
        index = index_blocks(skimmed.adjacent, 0, len(skimmed.adjacent), check_hash=False)
        return parsed(skimmed.adjacent, index, find_records(skimmed.adjacent, index))
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
