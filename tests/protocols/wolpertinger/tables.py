"""What the pipeline makes of a journal, read in ranges of any size."""

from __future__ import annotations

from pathlib import Path

from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.message_table import plain
from wireloom.pipeline.planning import Range, latest, plan
from wireloom.pipeline.schemas import MESSAGES, REJECTS


def tables_of(folder: Path, step: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The rows of `messages` and `rejects`, read in ranges of so many bytes."""
    inputs = [str(folder / "journal")]
    messages, rejects = [], []
    for whole in plan(inputs, {}, latest(inputs)):
        for start in range(whole.start, whole.end, step):
            found = decode_range(Range(whole.file, start, min(start + step, whole.end), whole.refused))
            messages += plain(found.messages, MESSAGES).to_pylist()
            rejects += plain(found.rejects, REJECTS).to_pylist()
    return messages, rejects
