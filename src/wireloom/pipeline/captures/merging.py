"""Merges the packets of several captures into order of time.

**The problem.** Captures of a rotation follow each other. Captures of different interfaces or directions overlap, and
their packets must be interleaved. There may be thousands of captures, so not all can be open at a time.

**The idea.** A merge of sorted sequences, in pieces. Each capture is a `Lane`. A lane becomes active, and is opened,
only when the merge reaches the time of its first packet. The *horizon* is the smallest of the last times of the pieces
that the active lanes have in memory. No lane can bring an earlier packet any more, so all packets up to the horizon are
taken and sorted. A single active lane gives its whole piece, without a copy.

**Example.** Lane A has packets of the times 1 to 10 in memory, lane B of 4 to 7. The horizon is 7. The packets of A up
to 7 and all of B are sorted and returned. Then B reads its next piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.pcap import UPPER_PDU
from wireloom.pipeline.captures.storage import Capture
from wireloom.protocols.columns import gather

_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class Lane:
    """One capture, and its packets in memory that were not taken yet."""

    first_us: int
    capture: Capture
    source: Iterator[Segments]
    ready: Segments | None = None

    def fill(self) -> bool:
        """Read the next piece if no packets are in memory; False at the end of the capture."""
        while self.ready is None or not len(self.ready):
            self.ready = next(self.source, None)
            if self.ready is None:
                return False
        return True

    @property
    def last_us(self) -> int:
        """The latest time among the packets in memory."""
        assert self.ready is not None
        return int(self.ready.time_us.max())

    def take(self, until_us: int) -> Segments:
        """Remove and return the packets before the first one that is later than `until_us`."""
        assert self.ready is not None
        later = np.flatnonzero(self.ready.time_us > until_us)
        count = int(later[0]) if len(later) else len(self.ready)
        taken, self.ready = _rows(self.ready, slice(0, count)), _rows(self.ready, slice(count, None))
        return taken


def in_order(lanes: Sequence[Lane]) -> Iterator[Segments]:
    """The packets of all captures in order of time, in pieces."""
    waiting = sorted(lanes, key=lambda lane: (lane.first_us, lane.capture.path))
    active: list[Lane] = []
    while waiting or active:
        active = [lane for lane in active if lane.fill()]
        horizon = min((lane.last_us for lane in active), default=-1)
        while waiting and (not active or waiting[0].first_us <= horizon):
            lane = waiting.pop(0)
            if lane.fill():
                active.append(lane)
                horizon = min(each.last_us for each in active)
        if len(active) == 1:
            yield active[0].take(_NEVER)
        elif active:
            taken = [lane.take(horizon) for lane in active]
            yield together([part for part in taken if len(part)] or [active[0].take(_NEVER)])


def together(parts: Sequence[Segments]) -> Segments:
    """Merge packets of several captures in order of time. Only payloads are copied, not whole packets."""
    if len(parts) == 1:
        return parts[0]
    moved = [_compact(part) for part in parts]
    begins = np.cumsum([0, *(len(part.data) for part in moved[:-1])]).tolist()
    for begin, part in zip(begins, moved, strict=True):
        part.start = part.start + begin
        part.seq = np.where(part.protocol == UPPER_PDU, part.seq + begin, part.seq)
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in moved], axis=-1) for field in fields(Segments)
    }
    joined["data"].flags.writeable = False
    whole = Segments(**joined)
    return _rows(whole, np.argsort(whole.time_us, kind="stable"))


def _compact(part: Segments) -> Segments:
    """The same packets with a new buffer that holds only their payloads, and the names in exported (tagged) PDUs."""
    tagged = np.flatnonzero(part.protocol == UPPER_PDU)
    begin = np.concatenate([part.start, part.seq[tagged]])
    size = np.concatenate([part.kept, part.ack[tagged]])
    data = np.frombuffer(gather(part.data, begin, size).buffers()[2], np.uint8)[: int(size.sum())]
    at = np.cumsum(size) - size
    seq = part.seq.copy()
    seq[tagged] = at[len(part) :]
    return replace(part, data=data, start=at[: len(part)], seq=seq)


def _rows(part: Segments, chosen: slice | NDArray[np.int64]) -> Segments:
    """Some of the packets."""
    values = {field.name: getattr(part, field.name)[..., chosen] for field in fields(Segments) if field.name != "data"}
    return Segments(data=part.data, **values)
