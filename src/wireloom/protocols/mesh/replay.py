"""The replay cache: which packets have been seen, for as long as one of them could be taken for new.

Implements 5.4 and 7 of the Event Mesh Protocol. Keyed by NODE ID, the key that authenticated (or none) and Message ID.
An entry lives until max(arrival, the packet's time) + window, so that a packet dated ahead cannot be replayed later.
There is a cap for each node and one in all; the oldest go first, and each that goes too early is counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque

REPLAY_WINDOW = 300.0
CLOCK_SKEW_ALLOWANCE = 120.0

EXPIRED_AT_ONCE = 1000

Key = tuple[bytes | str, bytes, int]
"""NODE ID (or, where there is none, the source's address), key, Message ID."""


class ReplayCache:
    """Packets seen within the window.

    >>> cache = ReplayCache()
    >>> key = (bytes(16), b"key1", 7)
    >>> cache.add(key, packet_time=1000.0, now=1000.0), cache.add(key, packet_time=1000.0, now=1299.0)
    (True, False)
    >>> cache.add(key, packet_time=1300.0, now=1300.0)
    True
    """

    def __init__(self, window: float = REPLAY_WINDOW, cap: int = 200_000, cap_per_node: int = 50_000) -> None:
        self.window = window
        self.cap = cap
        self.cap_per_node = cap_per_node
        self._look_again = 0.0
        self.evicted = 0
        """Entries that had to go while their packet could still be replayed."""
        self._until: OrderedDict[Key, float] = OrderedDict()
        self._nodes: dict[bytes | str, deque[Key]] = {}
        """The same entries by node; both stand in the order they came."""

    def __len__(self) -> int:
        return len(self._until)

    def seen(self, key: Key, now: float) -> bool:
        """Whether a packet is in the cache."""
        until = self._until.get(key)
        return until is not None and until > now

    def add(self, key: Key, packet_time: float, now: float) -> bool:
        """Remember a packet; False when it was seen before."""
        entries = self._until
        until = entries.get(key)
        if until is not None:
            if until > now:
                return False
            self._forget(key)
        if entries and now >= self._look_again:
            self._expire(now)
        own = self._nodes.get(key[0])
        if own is not None and len(own) >= self.cap_per_node:
            self._evict(own[0], now)
        if len(entries) >= self.cap:
            self._evict(next(iter(entries)), now)
        entries[key] = (now if now > packet_time else packet_time) + self.window
        own = self._nodes.get(key[0])
        if own is None:
            self._nodes[key[0]] = deque((key,))
        else:
            own.append(key)
        return True

    def _expire(self, now: float) -> None:
        """Forget some that are over: enough for the cache to shrink, and not so many that it takes long."""
        for _ in range(EXPIRED_AT_ONCE):
            oldest = next(iter(self._until), None)
            if oldest is None or self._until[oldest] > now:
                # Not before that. One dated ahead may keep those behind it a little longer.
                self._look_again = now + 1.0
                return
            self._forget(oldest)

    def _evict(self, key: Key, now: float) -> None:
        if self._until[key] > now:
            self.evicted += 1
        self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._until[key]
        own = self._nodes[key[0]]
        if own[0] == key:
            own.popleft()
        else:
            own.remove(key)
        if not own:
            del self._nodes[key[0]]
