"""Progress of a run on standard error: a bar on a terminal, one line for each batch otherwise."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from wireloom.escaping import visible

if TYPE_CHECKING:
    from wireloom.pipeline.driver import MicroBatch
    from wireloom.pipeline.run import Summary

_WIDTH = 24


class ProgressLine:
    """Says what happens while a pipeline runs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.began = time.monotonic()
        self.out = sys.stderr if out is None else out
        self.messages = self.rejects = self.files = self.bytes = 0
        self._first_batch = 0.0
        self._bar = self.out.isatty()
        self._drawn = False

    def note(self, text: str) -> None:
        """One line with the time since the start."""
        self._wipe()
        print(f"[{time.monotonic() - self.began:6.1f} s] {visible(text)}", file=self.out, flush=True)

    def batch(self, batch: MicroBatch) -> None:
        """What a batch brought, how fast it was, and how long the rest will take."""
        now = time.monotonic()
        self._first_batch = self._first_batch or now - batch.seconds
        self.messages += batch.messages
        self.rejects += batch.rejects
        self.files += batch.files
        self.bytes += batch.bytes
        text = self.text(batch, now - self._first_batch)
        if self._bar:
            self._wipe()
            print(text, end="", file=self.out, flush=True)
            self._drawn = True
        else:
            self.note(f"batch {batch.number}: {text}")

    def text(self, batch: MicroBatch, seconds: float) -> str:
        """The words, and the bar where there is one."""
        rate = self.messages / seconds if seconds else 0.0
        whole = self.bytes + batch.bytes_left
        words = (
            f"{_count(self.files, 'file')}, {size(self.bytes)} of {size(whole)}, {_count(self.messages, 'message')}, "
            f"{_count(self.rejects, 'reject')}, {rate:,.0f}/s"
        )
        if batch.bytes_left and self.bytes:
            words += f", {seconds / self.bytes * batch.bytes_left:.0f} s left"
        if not self._bar:
            return words
        done = round(_WIDTH * self.bytes / whole) if whole else _WIDTH
        return f"[{'#' * done}{'.' * (_WIDTH - done)}] {words}"

    def _wipe(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=self.out)
            self._drawn = False

    def end(self, summary: Summary, rows: dict[str, int], warehouse: str) -> None:
        """What the run brought in all."""
        self.note("the tables hold " + ", ".join(f"{count:,} {name}" for name, count in rows.items()))
        self.note(
            f"{_count(summary.messages, 'message')} and {_count(summary.rejects, 'reject')} in "
            f"{_count(summary.batches, 'batch')}, {summary.seconds:.1f} s; tables in {warehouse}"
        )


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def size(number: float) -> str:
    """Bytes for a person.

    >>> size(1536), size(7)
    ('1.5 kB', '7 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"
