"""Reads captures for the tests and holds the rows in a form that is easy to compare."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.captures import writing
from tests.captures.writing import Captured
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.reader import CaptureReader, read_captures
from wireloom.pipeline.decode import DecodedRange
from wireloom.pipeline.message_table import plain
from wireloom.pipeline.schemas import MESSAGES
from wireloom.pipeline.steps.sessions import Event

Row = dict[str, object]


@dataclass
class Found:
    """All rows of some captures."""

    messages: list[Row] = field(default_factory=list)
    rejects: list[Row] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, rows: DecodedRange) -> None:
        self.messages += plain(rows.messages, MESSAGES).to_pylist()
        self.rejects += rows.rejects.to_pylist()
        self.events += [Event(**row) for row in rows.events.to_pylist()]

    def said(self, direction: str = "c2s") -> list[tuple[object, object, object]]:
        rows = sorted((m for m in self.messages if m["direction"] == direction), key=lambda m: m["sequence"])  # type: ignore[arg-type,return-value]
        assert [m["sequence"] for m in rows] == list(range(len(rows)))
        return [(m["kind"], m["topic"], m["body"]) for m in rows]

    def bytes_by_stream(self) -> dict[tuple[object, object], int]:
        """Bytes of messages, rejects and the transport's own, by connection and direction."""
        total: dict[tuple[object, object], int] = defaultdict(int)
        for row in self.messages:
            total[row["connection"], row["direction"]] += row["wire_size"]  # type: ignore[operator]
        for row in self.rejects:
            if row["connection"] is not None:
                total[row["connection"], row["direction"]] += row["size"]  # type: ignore[operator]
        for event in self.events:
            if event.what == "overhead":
                total[event.connection, event.direction] += event.size
        return {stream: size for stream, size in total.items() if size}

    def clauses(self) -> list[str]:
        return [str(row["clause"]) for row in self.rejects]

    def whats(self) -> list[tuple[str, str | None]]:
        """What became of connections; that one of two sides was through is left out."""
        return [(e.what, e.reason) for e in self.events if e.what not in ("overhead", "ended")]


def read_files(paths: Sequence[Path | str], reader: CaptureReader | None = None, *, finish: bool = True) -> Found:
    reader = reader or CaptureReader(Choice.parse())
    found = Found()
    for rows in read_captures([str(path) for path in paths], reader):
        found.add(rows)
    if finish:
        found.add(reader.finish())
    return found


def read_packets(
    packets: Sequence[Captured],
    folder: Path,
    *,
    link: int = 1,
    choice: Choice | None = None,
    idle_s: float = 600,
    cuts: int = 0,
    seed: int = 0,
) -> Found:
    """Read packets from one capture, or from several that follow each other, each by a reader that goes on from the
    frozen state of the one before.
    """  # fmt: skip
    places = sorted(random.Random(seed).sample(range(1, len(packets)), min(cuts, len(packets) - 1)))
    found = Found()
    frozen = b""
    choice = choice or Choice.parse()
    reader = CaptureReader(choice, idle_s=idle_s)
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(packets)], strict=True)):
        path = folder / f"{number:04d}.pcap"
        path.write_bytes(writing.pcap(packets[start:end], link, nano=True))
        reader = CaptureReader(choice, idle_s=idle_s)
        if frozen:
            reader.thaw(frozen)
        for rows in read_captures([str(path)], reader):
            found.add(rows)
        frozen = reader.freeze()
    found.add(reader.finish())
    return found
