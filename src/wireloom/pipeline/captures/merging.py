"""Packets of several captures in order of time.

Captures of a rotation follow each other and are read one after the other. Captures that were taken at the same time
(one a direction, one an interface) are merged, as far as their times overlap.
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
    """One capture that is being read: the packets that were not taken yet."""

    first_us: int
    capture: Capture
    source: Iterator[Segments]
    ready: Segments | None = None

    def fill(self) -> bool:
        """Make sure that there are packets; False at the end."""
        while self.ready is None or not len(self.ready):
            self.ready = next(self.source, None)
            if self.ready is None:
                return False
        return True

    @property
    def last_us(self) -> int:
        """The latest time among the packets at hand."""
        assert self.ready is not None
        return int(self.ready.time_us.max())

    def take(self, until_us: int) -> Segments:
        """Packets up to a time."""
        assert self.ready is not None
        later = np.flatnonzero(self.ready.time_us > until_us)
        count = int(later[0]) if len(later) else len(self.ready)
        taken, self.ready = _rows(self.ready, slice(0, count)), _rows(self.ready, slice(count, None))
        return taken


def in_order(lanes: Sequence[Lane]) -> Iterator[Segments]:
    """The packets of all captures, in pieces."""
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
    """Packets of several captures as one, in order of time; only the bytes that count are copied."""
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
    """The same packets with their payloads, and the names that tagged ones carry, in a buffer of their own."""
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
