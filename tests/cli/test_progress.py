"""How far a run is: a bar for those who watch, lines for a file, and a summary at the end."""

from __future__ import annotations

import io
import re

from wireloom.cli.progress import ProgressLine
from wireloom.pipeline.run import MicroBatch, Summary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def batches() -> list[MicroBatch]:
    return [
        MicroBatch(0, 900, 1, 2.0, files=3, bytes=1 << 20, bytes_left=3 << 20),
        MicroBatch(1, 1100, 2, 2.0, files=1, bytes=1 << 20, bytes_left=2 << 20),
        MicroBatch(2, 2000, 0, 2.0, files=2, bytes=2 << 20, bytes_left=0),
    ]


def test_each_batch_says_files_bytes_messages_rejects_rate_and_time_left() -> None:
    out = io.StringIO()
    progress = ProgressLine(out)
    for batch in batches():
        progress.batch(batch)
    lines = out.getvalue().splitlines()
    assert re.search(r"batch 0: 3 files, 1\.0 MB of 4\.0 MB, 900 messages, 1 reject, [\d,]+/s, \d+ s left$", lines[0])
    assert re.search(
        r"batch 1: 4 files, 2\.0 MB of 4\.0 MB, 2,000 messages, 3 rejects, [\d,]+/s, \d+ s left$", lines[1]
    )
    assert re.search(r"batch 2: 6 files, 4\.0 MB of 4\.0 MB, 4,000 messages, 3 rejects, [\d,]+/s$", lines[2])


def test_a_terminal_shows_a_bar_that_fills() -> None:
    out = Terminal()
    progress = ProgressLine(out)
    shown = []
    for batch in batches():
        progress.batch(batch)
        shown.append(out.getvalue().rpartition("[")[2].partition("]")[0].count("#"))
    assert shown == sorted(shown) and 0 < shown[0] < shown[2] == 24
    assert "\n" not in out.getvalue()


def test_the_end_is_a_summary_that_a_person_reads() -> None:
    out = io.StringIO()
    summary = Summary()
    for batch in batches():
        summary.add(batch)
    summary.seconds = 6.5
    ProgressLine(out).end(summary, {"messages": 4000, "rejects": 3, "exchanges": 7}, "data/warehouse")
    text = out.getvalue()
    assert "4,000 messages and 3 rejects in 3 batches, 6.5 s; tables in data/warehouse" in text
    assert "7 exchanges" in text


def test_the_time_left_is_what_the_rest_takes_at_this_pace() -> None:
    progress = ProgressLine(io.StringIO())
    first, *_ = batches()
    progress.batch(first)
    assert progress.text(first, 2.0).endswith("900 messages, 1 reject, 450/s, 6 s left")
