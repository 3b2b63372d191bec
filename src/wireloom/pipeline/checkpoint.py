"""Spark's record of what a streaming query has read, written in Spark's own form.

checkpoint/metadata     the id of the query
checkpoint/offsets/N    how far batch N goes; written before it begins
checkpoint/commits/N    batch N is done

So a run without a streaming query (see `once.py`) and a streaming query can take turns on one warehouse.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal.disk import replace_file
from wireloom.pipeline.planning import Offsets

KEPT = 100
"""So many batches are remembered, as by Spark."""
_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path

    def prepare(self) -> None:
        """Make it one of a new query, unless it is there."""
        for part in ("offsets", "commits"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if not (self.folder / "metadata").exists():
            _write(self.folder / "metadata", json.dumps({"id": str(uuid.uuid4())}))

    @property
    def planned(self) -> int:
        """The last batch that was begun, or -1."""
        return self._last("offsets")

    @property
    def done(self) -> int:
        """The last batch that is done, or -1."""
        return self._last("commits")

    def offsets(self, batch: int) -> Offsets:
        """The position at the end of a batch; before the first one there is nothing."""
        if batch < 0:
            return {}
        lines = (self.folder / "offsets" / str(batch)).read_text().splitlines()
        return dict(json.loads(lines[2]))

    def plan(self, batch: int, offsets: Offsets) -> None:
        """Say how far a batch goes, before it begins."""
        known = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
        _write(self.folder / "offsets" / str(batch), "\n".join([_VERSION, json.dumps(known), json.dumps(offsets)]))

    def commit(self, batch: int) -> None:
        """Say that a batch is done, and forget what nobody needs any more."""
        _write(self.folder / "commits" / str(batch), "\n".join([_VERSION, json.dumps({"nextBatchWatermarkMs": 0})]))
        for part in ("offsets", "commits"):
            for name in self._numbers(part):
                if name <= batch - KEPT:
                    for path in (str(name), f".{name}.crc"):
                        (self.folder / part / path).unlink(missing_ok=True)

    def _last(self, part: str) -> int:
        return max(self._numbers(part), default=-1)

    def _numbers(self, part: str) -> list[int]:
        return [int(path.name) for path in (self.folder / part).iterdir() if path.name.isdigit()]


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode())
