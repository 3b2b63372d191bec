"""Delivery: which message ids were received, and which of ours wait for their confirmation.

Implements "Message Id and Delivery Confirmation" and the timeouts of layer 1.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

FIRST_ID, LAST_ID = 1, 2**31 - 1
"""The ids we give. Received ids go up to 2³²−1, but peers are out there that read them as signed 32-bit numbers."""
_SLICE = 60.0
"""Seconds of ids that share one time of arrival; what a span is remembered longer than asked for, at most."""
_MOST_SPANS = 65_536


@dataclass(slots=True)
class _Span:
    """Ids that followed each other."""

    first: int
    last: int
    since: float


@dataclass(slots=True)
class Seen:
    """The ids a peer has used, remembered for a while.

    Ids mostly count up, so a run of them is one span, and a busy peer costs no more than an idle one. A peer that
    draws them at random costs one span each, up to a limit; then the oldest are forgotten first.

    >>> seen = Seen(600)
    >>> seen.add(1, 0.0), seen.add(2, 0.0), 2 in seen, 3 in seen
    (None, None, True, False)
    """

    remember: float
    _firsts: list[int] = field(default_factory=list)
    _spans: list[_Span] = field(default_factory=list)
    """In order of their first id, which `_firsts` repeats for the search."""
    _current: _Span | None = None
    _cleaned: float = 0.0

    def __contains__(self, message_id: int) -> bool:
        current = self._current
        if current is not None and current.first <= message_id <= current.last:
            return True
        at = bisect_right(self._firsts, message_id) - 1
        return at >= 0 and self._spans[at].last >= message_id

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, message_id: int, now: float) -> None:
        """The id was received."""
        current = self._current
        if current is not None and message_id == current.last + 1 and now - current.since < _SLICE:
            current.last = message_id
            return
        if message_id in self:
            return
        self._clean(now)
        span = self._current = _Span(message_id, message_id, now)
        at = bisect_right(self._firsts, message_id)
        self._firsts.insert(at, message_id)
        self._spans.insert(at, span)

    def _clean(self, now: float) -> None:
        """Forget what is old; a span is as young as the youngest id that can be in it."""
        full = len(self._spans) >= _MOST_SPANS
        if now - self._cleaned < _SLICE and not full:
            return
        self._cleaned = now
        kept = [span for span in self._spans if now - span.since <= self.remember + _SLICE]
        if len(kept) >= _MOST_SPANS:
            limit = sorted(span.since for span in kept)[len(kept) // 2]
            kept = [span for span in kept if span.since > limit] or kept[len(kept) // 2 :]
        self._spans = kept
        self._firsts = [span.first for span in kept]


@dataclass(slots=True)
class Sent:
    """A message of ours that the peer has not confirmed yet."""

    lines: list[bytes]
    first_at: float
    due: float
    call_id: str | None
    tries: int = 0
    size: int = 0


def _after(message_id: int) -> int:
    return FIRST_ID if message_id == LAST_ID else message_id + 1


@dataclass(slots=True)
class Unconfirmed:
    """What waits for its confirmation, in the order in which it becomes due."""

    timeout: float
    next_id: int = FIRST_ID
    waiting: dict[int, Sent] = field(default_factory=dict)
    size: int = 0
    """Bytes of all that waits."""

    def draw_id(self) -> int:
        """The next id: a counter that skips what is still waiting."""
        while self.next_id in self.waiting:
            self.next_id = _after(self.next_id)
        drawn = self.next_id
        self.next_id = _after(drawn)
        return drawn

    def add(self, message_id: int, lines: list[bytes], now: float, call_id: str | None) -> None:
        """A message was sent."""
        size = sum(map(len, lines))
        self.waiting[message_id] = Sent(lines, now, now + self.timeout, call_id, size=size)
        self.size += size

    def pop(self, message_id: int) -> Sent | None:
        """A confirmation came; None when nobody waits for it."""
        sent = self.waiting.pop(message_id, None)
        if sent is not None:
            self.size -= sent.size
        return sent

    @property
    def deadline(self) -> float | None:
        """When the first of them is due."""
        for sent in self.waiting.values():
            return sent.due
        return None

    def overdue(self, now: float) -> list[int]:
        """The ids whose confirmation did not come in time."""
        late: list[int] = []
        for message_id, sent in self.waiting.items():
            if sent.due > now:
                break
            late.append(message_id)
        return late

    def again(self, message_id: int, now: float) -> Sent:
        """A message is sent once more: it waits anew."""
        sent = self.waiting.pop(message_id)
        sent.tries += 1
        sent.due = now + self.timeout
        self.waiting[message_id] = sent
        return sent
