"""One direction of a connection: turns reassembled bytes into spans for the column decoder.

A part holds the bytes that one piece of a capture brought: first those kept from earlier parts, then the new ones.
Where packets were not captured it has gaps. `StreamPart.advance` goes from gap to gap, and gives the bytes between them
as spans to decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Direction
from wireloom.pipeline.captures.connections import (
    BROKEN,
    PLAIN,
    READ,
    RESUME,
    SEEK,
    CapturedConnection,
    Half,
    RejectedBytes,
)
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.captures.websocket import Unwrapped, Unwrapping
from wireloom.pipeline.schemas import KEPT_BYTES
from wireloom.protocols.columns import Reject
from wireloom.protocols.contract import CUT, Framing
from wireloom.protocols.registry import protocol

GAP, MIDSTREAM, LATE, TRUNCATED = "capture.gap", "capture.midstream", "capture.after-close", "capture.truncated"
MOST_SOUGHT = 1 << 18
"""A possible start of frames is given up if this many bytes after it neither prove nor disprove it."""
LARGEST_ROW = 1 << 30
_BEFORE = "the connection began before the capture; frames in a row hold only later"

Report = Callable[[CapturedConnection, Half, RejectedBytes], None]


class Gap(NamedTuple):
    """A place between bytes, how many are missing there, and time, file and offset of what follows in the capture."""

    place: int
    missing: int
    origin: tuple[int, int, int]


@dataclass(slots=True)
class StreamPart:
    """New bytes of one direction: data[start:end], of which the first `kept` are those from before."""

    connection: CapturedConnection
    half: Half
    data: NDArray[np.uint8]
    start: int
    end: int
    kept: int
    trace: Trace
    report: Report
    choice: Choice
    gaps: list[Gap] = field(default_factory=list)
    final: bool = False
    """Whether the stream has ended."""
    raw_from: int = -1
    """The start of bytes that are not unwrapped yet (see `websocket.py`); -1: all are unwrapped."""
    is_faulty: bool = False
    """Whether the wrapping is broken; `Half.refused` holds what follows."""
    _span: tuple[int, int] = (0, 0)
    """Start and end of the unread bytes before the next gap."""
    _after: int = -1
    """Where the bytes after the next gap begin, if not at the gap."""

    @property
    def stop(self) -> int:
        """The end of the bytes before the next gap."""
        return self.gaps[0].place if self.gaps else self.end

    @property
    def is_last(self) -> bool:
        """Whether no gap is left."""
        return not self.gaps

    def head(self, most: int) -> bytes:
        """The first bytes."""
        return self.data[self.start : min(self.stop, self.start + most)].tobytes()

    def unwrap(self) -> None:
        """Unwrap the bytes before the next gap, for example from WebSocket frames; done once for them."""
        half = self.half
        if half.unwrapping is None or self.raw_from < 0:
            return
        begin, stop = self.raw_from, self.stop
        found = half.unwrapping.unwrap(self.data, begin, stop)
        # Negative if messages were compressed: more bytes were unpacked than came.
        half.overhead += found.position - found.end - len(found.unpacked)
        half.unwrapping.raw = self.data[found.position : stop].tobytes()
        half.raw_trace = self.trace.cut(found.position, stop)
        kept = self.trace.cut(self.start, begin).moved(self.start)
        new = self.trace.through(found.runs)
        if found.clause is not None:
            # What is rejected begins where the frame's header stood.
            self.is_faulty, half.unwrapping = True, None
            half.refused = self._absorb(RejectedBytes(found.clause, found.detail), found.position, stop)
        elif self.gaps:
            # An incomplete frame at a gap: its rest is lost, and the start of the next frame is unknown.
            half.overhead += stop - found.position
            half.unwrapping = None
        later = Trace.empty() if self.is_last else self.trace.cut(stop, self.end).moved(stop)
        traces = [kept, new, self._origins(found)]
        over = found.end + len(found.unpacked)
        self._after = stop if self.gaps else -1
        if found.unpacked:
            # Unpacked messages need more room than the shared buffer has: give this part a buffer of its own.
            parts = (
                self.data[self.start : found.end],
                np.frombuffer(found.unpacked, np.uint8),
                self.data[stop : self.end],
            )
            by, later_by = -self.start, over - stop - self.start
            self.data, self.start, self.end = np.concatenate(parts), 0, self.end + later_by
            self.gaps = [gap._replace(place=gap.place + later_by) for gap in self.gaps]
            traces, later = [trace.moved(by) for trace in traces], later.moved(later_by)
            over += by
            self._after = -1
        self.trace = Trace.joined([*traces, later])
        self.raw_from = -1
        if self.gaps:
            self.gaps[0] = self.gaps[0]._replace(place=over)
        else:
            self.end = over

    def _origins(self, found: Unwrapped) -> Trace:
        """Where unpacked messages came from; all bytes of one came with its last."""
        at, first, last = found.origins.T
        begin, end = self.trace.pieces(first), self.trace.pieces(last)
        offset = self.trace.offset[begin] + first - self.trace.at[begin]
        return Trace(found.end + at, self.trace.time_us[end], self.trace.file[begin], offset)

    def advance(self) -> tuple[int, int] | None:
        """The bytes before the next gap as a span to decode; None when there is nothing to decode in them."""
        half = self.half
        if half.mode == BROKEN:
            before, half.refused = half.refused, None
            assert before is not None
            self.unwrap()
            before, faulty = self._absorb(before, self.start, self.stop), self.half.refused
            half.refused = before if faulty is None else before.followed_by(faulty)
            self._span = self.stop, self.stop
            return None
        if half.mode == SEEK and not self._seek():
            return None
        if half.mode == RESUME and not self._resume():
            return None
        self.unwrap()
        self._span = self.start, self.stop
        return self._span if self.start < self.stop else None

    def decoded(self, consumed: int, reject: Reject | None) -> None:
        """Take the decoder's result for the span: how far it read, and the violation that ends the stream, if any."""
        stop = self.stop
        if reject is not None:
            self._break(RejectedBytes(reject.clause, reject.detail), reject.offset, stop)
            consumed = stop
        self._span = consumed, stop

    def remember(self, state: bytes, begun: int) -> None:
        """What the decoder has in mind after the span; `begun` is where its first piece stands, -1: not in the span."""
        half = self.half
        half.state = state
        if not state:
            half.begun = Trace.empty()
        elif begun >= 0 and not len(half.begun.at):
            half.begun = self.trace.cut(begun, begun + 1)

    def close_stretch(self) -> bool:
        """Handle the unread bytes before the next gap, or at the end. Returns whether bytes follow after a gap."""
        half = self.half
        start, stop = self._span
        if self.is_faulty and half.mode != BROKEN:
            assert half.refused is not None
            self._break(RejectedBytes(half.refused.clause, half.refused.detail), start, stop)
            start = stop
        if self.is_last:
            self._keep(start, stop)
            if self.final:
                self._finish()
            return False
        self._lose(start, stop, self.gaps.pop(0))
        self.start = self._after if self._after >= 0 else stop
        self._after = -1
        return True

    def _break(self, refused: RejectedBytes, start: int, stop: int) -> None:
        """Stop decoding this direction: these bytes and all that follow become one reject."""
        half = self.half
        refused = self._absorb(refused, start, stop)
        if self.is_faulty and half.refused is not None:
            refused = refused.followed_by(half.refused)
        half.refused, half.mode = refused, BROKEN

    def keep(self) -> None:
        """Keep these bytes for the next part: they cannot be decoded yet."""
        self._keep(self.start, self.stop)

    def _keep(self, start: int, stop: int) -> None:
        half = self.half
        half.carry = self.data[start:stop].tobytes()
        half.trace = self.trace.cut(start, stop)

    def _finish(self) -> None:
        """The stream has ended: reject the incomplete frame or message at its end."""
        half = self.half
        if half.state:
            self._give_up_pieces()
        if half.unwrapping is not None and half.unwrapping.is_inside_message:
            half.carry, half.trace = half.kept()
            half.unwrapping = None
        if half.carry:
            refused = half.refused or RejectedBytes(CUT, "the stream ends inside a frame")
            time_us, file, offset = half.trace.where(0)
            if not refused.size:
                refused.time_us, refused.file, refused.offset = time_us, file, offset
            refused.head = (refused.head + half.carry)[:KEPT_BYTES]
            refused.size += len(half.carry)
            half.refused = refused
        if half.refused is not None:
            self.report(self.connection, half, half.refused)
        if half.unwrapping is not None:
            half.overhead += len(half.unwrapping.raw)
            half.unwrapping.raw = b""
        half.carry, half.trace, half.refused, half.over = b"", Trace.empty(), None, True

    def _give_up_pieces(self) -> None:
        half = self.half
        found = protocol(self.connection.protocol or "")
        for each in found.columns().unfinished(half.state, found.lenient()):
            place = half.begun.where(0) if len(half.begun.at) else (0, 0, 0)
            self.report(
                self.connection, half,
                RejectedBytes(each.clause, each.detail, *place, each.data[:KEPT_BYTES], len(each.data)),
            )  # fmt: skip
        half.state, half.begun = b"", Trace.empty()

    def _lose(self, start: int, stop: int, gap: Gap) -> None:
        """Handle a gap: reject the incomplete frame before it."""
        half = self.half
        named = f"{gap.missing} bytes were not captured"
        if half.mode == SEEK:
            if start < stop:
                half.refused = self._absorb(half.refused or RejectedBytes(MIDSTREAM, _BEFORE), start, stop)
            return
        if half.mode == RESUME:
            assert half.refused is not None
            half.refused.detail += f"; {named}"
            half.refused = self._absorb(half.refused, start, stop)
            return
        if half.mode == BROKEN:
            return
        refused = RejectedBytes(GAP, named)
        if start >= stop:
            # There are no bytes before the gap: the reject gets the position of the gap.
            refused.time_us, refused.file, refused.offset = gap.origin
        half.refused = self._absorb(refused, start, stop)
        plain = self.connection.wrapping == PLAIN
        resumes = plain and protocol(self.connection.protocol or "").framing is Framing.LINES
        half.mode = RESUME if resumes else BROKEN
        if not resumes:
            half.refused.detail += "; this protocol has no mark from which to read on"

    def _seek(self) -> bool:
        """Find the first piece from which on several frames in a row are valid; reject the bytes before it."""
        half, stop = self.half, self.stop
        at = self.trace.at
        places = [self.start, *at[(at > self.start) & (at < stop)].tolist()]
        for place in places:
            if place >= stop:
                break
            ahead = self.data[place : min(stop, place + MOST_SOUGHT)].tobytes()
            verdict = self._holds(ahead, self.final and self.is_last)
            if verdict is None and len(ahead) < MOST_SOUGHT:
                half.refused = self._absorb(half.refused or RejectedBytes(MIDSTREAM, _BEFORE), self.start, place)
                self._span = place, stop
                return False
            if verdict:
                refused = self._absorb(half.refused or RejectedBytes(MIDSTREAM, _BEFORE), self.start, place)
                if not refused.size:
                    refused.time_us, refused.file, refused.offset = self.trace.where(place)
                self.report(self.connection, half, refused)
                half.refused, half.mode = None, READ
                if half.unwrapping is not None:
                    half.unwrapping.start_inside()
                    self.raw_from = place
                self.start = place
                return True
        half.refused = self._absorb(half.refused or RejectedBytes(MIDSTREAM, _BEFORE), self.start, stop)
        self._span = stop, stop
        return False

    def _holds(self, ahead: bytes, final: bool) -> bool | None:
        found = protocol(self.connection.protocol or "")
        if self.half.unwrapping is not None:
            inside = Unwrapping(self.half.direction is Direction.C2S)
            inside.start_inside()
            copied = np.frombuffer(ahead, np.uint8).copy()
            unwrapped = inside.unwrap(copied, 0, len(copied))
            if unwrapped.clause is not None:
                return False
            ahead = copied[: unwrapped.end].tobytes()
        return found.holds(ahead, self.half.direction, self.choice.settings(found.name), final=final)

    def _resume(self) -> bool:
        """Find the mark after a gap; reject the bytes before it together with the gap."""
        half, stop = self.half, self.stop
        assert half.refused is not None
        found = protocol(self.connection.protocol or "").resynchronise(self.data[self.start : stop].tobytes())
        if found is None:
            half.refused = self._absorb(half.refused, self.start, stop)
            self._span = stop, stop
            return False
        self.report(self.connection, half, self._absorb(half.refused, self.start, self.start + found))
        half.refused, half.mode = None, READ
        self.start += found
        return True

    def _absorb(self, refused: RejectedBytes, start: int, stop: int) -> RejectedBytes:
        """Add bytes to a reject."""
        if start >= stop:
            return refused
        if refused.size > LARGEST_ROW:
            self.report(self.connection, self.half, refused)
            refused = RejectedBytes(refused.clause, refused.detail)
        if not refused.size:
            refused.time_us, refused.file, refused.offset = self.trace.where(start)
        if len(refused.head) < KEPT_BYTES:
            refused.head += self.data[start : min(stop, start + KEPT_BYTES - len(refused.head))].tobytes()
        refused.size += stop - start
        return refused
