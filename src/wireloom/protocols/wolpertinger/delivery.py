"""Delivery: which message ids were received, and which messages of ours are unconfirmed.

Implements "Message Id and Delivery Confirmation" and the timeouts of layer 1.

Theory of operation
-------------------
A peer sends a message again, with the same id, until it is confirmed. So delivery is at-least-once: a message may
arrive twice. Two structures turn this into one execution of each message.

`Seen`, for the receiver: an interval set of the ids that were received. Ids mostly count up, so a range of them is one
span. Spans are sorted by their first id, and a lookup is a binary search. An id extends the current span only within
`_SLICE` seconds of the span's start. So all ids of a span have nearly the same age, and a span can be forgotten as a
whole, at most `_SLICE` seconds late. Example: ids 1, 2, 3, 7 give the spans 1-3 and 7-7.

`Unconfirmed`, for the sender: a dictionary of messages in order of their deadlines. All messages have the same timeout,
so order of insertion is order of deadlines. A message that is sent again moves to the end. Only the front has to be
looked at to find what is overdue.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

FIRST_ID, LAST_ID = 1, 2**31 - 1
"""The ids we send. Received ids go up to 2³²−1, but some peers read ids as signed 32-bit numbers."""
_SLICE = 60.0
"""Seconds after its start in which a span can grow. A span is remembered at most this much longer than required."""
_MOST_SPANS = 65_536


@dataclass(slots=True)
class _Span:
    """A range of consecutive ids."""

    first: int
    last: int
    since: float


@dataclass(slots=True)
class Seen:
    """The ids that a peer has used in the last `remember` seconds, as an interval set.

    Ids mostly count up, so a busy peer takes no more memory than an idle one. A peer with random ids takes one span for
    each, up to a limit. Beyond the limit the oldest spans are forgotten.

    >>> seen = Seen(600)
    >>> seen.add(1, 0.0), seen.add(2, 0.0), 2 in seen, 3 in seen
    (None, None, True, False)
    """

    remember: float
    _firsts: list[int] = field(default_factory=list)
    _spans: list[_Span] = field(default_factory=list)
    """Sorted by first id. `_firsts` repeats those ids for the binary search."""
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
        """Remember an id that was received."""
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
        """Forget old spans. The youngest id of a span is at most `_SLICE` seconds younger than its start."""
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
    """Messages of ours that are not confirmed, in order of their deadlines."""

    timeout: float
    next_id: int = FIRST_ID
    waiting: dict[int, Sent] = field(default_factory=dict)
    size: int = 0
    """Bytes of all unconfirmed messages."""

    def draw_id(self) -> int:
        """Take the next id: a counter that skips ids of unconfirmed messages."""
        while self.next_id in self.waiting:
            self.next_id = _after(self.next_id)
        drawn = self.next_id
        self.next_id = _after(drawn)
        return drawn

    def add(self, message_id: int, lines: list[bytes], now: float, call_id: str | None) -> None:
        """Remember a message that was sent."""
        size = sum(map(len, lines))
        self.waiting[message_id] = Sent(lines, now, now + self.timeout, call_id, size=size)
        self.size += size

    def pop(self, message_id: int) -> Sent | None:
        """Remove a message that was confirmed; None if the id is unknown."""
        sent = self.waiting.pop(message_id, None)
        if sent is not None:
            self.size -= sent.size
        return sent

    @property
    def deadline(self) -> float | None:
        """The earliest deadline."""
        for sent in self.waiting.values():
            return sent.due
        return None

    def overdue(self, now: float) -> list[int]:
        """The ids whose deadline has passed."""
        late: list[int] = []
        for message_id, sent in self.waiting.items():
            if sent.due > now:
                break
            late.append(message_id)
        return late

    def again(self, message_id: int, now: float) -> Sent:
        """A message is sent again: it gets a new deadline."""
        sent = self.waiting.pop(message_id)
        sent.tries += 1
        sent.due = now + self.timeout
        self.waiting[message_id] = sent
        return sent
