"""The replay cache: which packets have been seen, for as long as one of them could be taken for new.

Implements 5.4 and 7 of the Event Mesh Protocol. Keyed by NODE ID, the key that authenticated (or none) and Message ID.
An entry lives until max(arrival, the packet's time) + window, so that a packet dated ahead cannot be replayed later.
There is a cap for each node and one in all; the oldest go first, and each that goes too early is counted.
"""

from __future__ import annotations

from collections import OrderedDict

REPLAY_WINDOW = 300.0
CLOCK_SKEW_ALLOWANCE = 120.0

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
        self.evicted = 0
        """Entries that had to go while their packet could still be replayed."""
        self._until: OrderedDict[Key, float] = OrderedDict()
        self._nodes: dict[bytes | str, OrderedDict[Key, None]] = {}

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
        self._expire(now)
        own = self._nodes.get(key[0])
        if own is None:
            own = self._nodes[key[0]] = OrderedDict()
        elif len(own) >= self.cap_per_node:
            self._evict(next(iter(own)), now)
            own = self._nodes.setdefault(key[0], OrderedDict())
        if len(entries) >= self.cap:
            self._evict(next(iter(entries)), now)
            own = self._nodes.setdefault(key[0], OrderedDict())
        entries[key] = max(now, packet_time) + self.window
        own[key] = None
        return True

    def _expire(self, now: float) -> None:
        # Entries stand in the order they came; one dated ahead may keep a few behind it a little longer.
        for _ in range(2):
            oldest = next(iter(self._until), None)
            if oldest is None or self._until[oldest] > now:
                return
            self._forget(oldest)

    def _evict(self, key: Key, now: float) -> None:
        if self._until[key] > now:
            self.evicted += 1
        self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._until[key]
        own = self._nodes[key[0]]
        del own[key]
        if not own:
            del self._nodes[key[0]]
