"""Rows of `rejects` from a segment: bytes that do not decode, damaged byte ranges, and bytes that the hub refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.journal import index as journal_index
from wireloom.journal.index import BlockIndex
from wireloom.pipeline import segment_runs
from wireloom.pipeline.message_table import reject_rows
from wireloom.pipeline.schemas import KEPT_BYTES
from wireloom.pipeline.segment_bytes import Damage
from wireloom.pipeline.segment_runs import Runs
from wireloom.pipeline.steps.message_arrays import DAY_US, DIRECTIONS


class Rejects:
    """Rows of `rejects`, collected one by one: there are few."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.hub: str | None = None
        """The id of the hub that wrote the segment."""
        self.rows: list[tuple[object, ...]] = []

    def add(
        self, runs: Runs, run: int, start: int, end: int, clause: str, detail: str, content: bytes | None = None
    ) -> None:
        """Bytes of a run, by their place in its data; `content` if they do not stand together there."""
        self._row(
            int(runs.time_us[run]),
            runs.protocol,
            f"{int(runs.connection[run]):016x}",
            str(DIRECTIONS[runs.direction[run]]),
            clause,
            detail,
            runs.data[start : min(end, start + KEPT_BYTES)].tobytes() if content is None else content,
            end - start,
            int(runs.file_offset(np.array([start]))[0]),
        )

    def add_damage(self, data: NDArray[np.uint8], damage: Damage, segment_us: int) -> None:
        """Reject a damaged byte range. Its own time is lost, so it gets the time of the segment's first block."""
        kept = data[damage.offset : damage.offset + min(damage.size, KEPT_BYTES)].tobytes()
        self._row(segment_us, None, None, None, segment_runs.DAMAGED, damage.reason, kept, damage.size, damage.offset)

    def add_refused(self, data: NDArray[np.uint8], index: BlockIndex) -> None:
        """What the hub refused: the bytes and, beside them, why."""
        for block in journal_index.records(data, index):
            if block.record == "refused":
                size, direction = block.details.get("size"), block.details.get("direction")
                self._row(
                    block.time_ns // 1000,
                    block.protocol,
                    None if block.connection is None else f"{block.connection:016x}",
                    direction,
                    block.details.get("clause"),
                    block.details.get("detail"),
                    block.payload[:KEPT_BYTES],
                    size if isinstance(size, int) else len(block.payload),
                    block.payload_offset,
                )

    def _row(
        self,
        time_us: int,
        protocol_name: str | None,
        connection: str | None,
        direction: object,
        clause: object,
        detail: object,
        kept: bytes,
        size: int,
        offset: int,
    ) -> None:
        texts = [None if v is None else str(v) for v in (protocol_name, connection, direction, clause, detail)]
        self.rows.append((time_us, time_us // DAY_US, self.hub, *texts, kept, size, self.file, offset))

    def table(self) -> pa.Table:
        """The rows so far."""
        return reject_rows(self.rows)
