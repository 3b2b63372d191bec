"""The replay cache: it remembers packets for as long as a copy of them would be accepted.

Implements 5.4 and 7 of the Event Mesh Protocol.

Theory of operation
-------------------
Problem: a packet must be accepted once. A packet is identified by NODE ID, the key that authenticated it (or none), and
Message ID. Packets come from anybody, so memory and work must be bounded.

Lifetime: an entry expires at `max(arrival, packet time) + window`. The time of the packet counts too, because a packet
dated ahead would still be fresh after its arrival is forgotten.

Structure: each node has a dictionary from packet number to expiry, and a queue of its numbers, oldest first
(`Seen.order`). The cache has a queue of nodes, with one element for each entry, in order of arrival
(`ReplayCache._order`). The n-th element of a node in that queue stands for the n-th number in the node's own queue. So
the first element names the node with the oldest entry of all.

Lazy removal: an entry may also leave by the node's own queue (the cap of the node, or a number that is used again). Its
element in the shared queue would have to be searched for. Instead `Seen.gone` is incremented, and `_next` skips that
many elements of the node when they come up.

Invariant: `len(_order) == len(self) + sum of gone over all nodes`. Each operation takes amortised constant time. Only a
number that is used again after its expiry, but before its removal, is searched for in the node's queue.

Limits: there is a cap of entries for each node, and one for all nodes. The oldest entries are evicted first, and
`evicted` counts those that had not expired. A sender can invent NODE IDs, so the number of nodes is limited too.

Example: nodes A and B with a cap of 2 for each. Packets A1, B1, A2 give the shared queue A B A. A3 exceeds the cap of
A: A1 leaves the queue of A, and `A.gone` is 1. The shared queue is A B A A. The next eviction skips the first A, takes
B, and removes B1, which is now the oldest.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import repeat

REPLAY_WINDOW = 300.0
CLOCK_SKEW_ALLOWANCE = 120.0
EXPIRED_AT_ONCE = 1000
LOOK_EVERY = 1.0
ENTRIES_OF_NODE = 8
"""How many entries take as much memory as one node."""

Key = tuple[bytes | str, bytes, int]
"""NODE ID (the address of the source if there is none), key, Message ID."""


class Seen:
    """The packets seen of one node, oldest first.

    The number of a packet is its Message ID plus an offset for its key.
    """

    __slots__ = ("gone", "name", "offsets", "order", "until")

    def __init__(self, name: bytes | str) -> None:
        self.name = name
        self.until: dict[int, float] = {}
        self.order: deque[int] = deque()
        self.offsets: dict[bytes, int] = {}
        self.gone = 0
        """How many elements of this node in the shared queue are stale."""

    def offset(self, key: bytes) -> int:
        """The offset that gives packets of different keys different numbers."""
        return self.offsets.setdefault(key, len(self.offsets) << 32)


class ReplayCache:
    """Packets seen within the window.

    >>> cache = ReplayCache()
    >>> key = (bytes(16), b"key1", 7)
    >>> cache.add(key, packet_time=1000.0, now=1000.0), cache.add(key, packet_time=1000.0, now=1299.0)
    (True, False)
    >>> cache.add(key, packet_time=1300.0, now=1300.0)
    True
    """

    def __init__(self, window: float = REPLAY_WINDOW, cap: int = 500_000, cap_per_node: int = 200_000) -> None:
        self.window = window
        self.cap = cap
        self.cap_per_node = cap_per_node
        self.most_nodes = max(cap // ENTRIES_OF_NODE, 64)
        self.since = -math.inf
        """Packets dated up to this time may have been seen and forgotten; see `Gate.check_time`."""
        self.evicted = 0
        """Entries that were evicted before they expired; their packets could be replayed."""
        self._nodes: dict[bytes | str, Seen] = {}
        self._order: deque[Seen] = deque()
        """The shared queue: the node of each entry, in order of arrival. Some elements are stale: see `Seen.gone`."""
        self._count = 0
        self._empty: set[bytes | str] = set()
        self._look_again = 0.0

    def __len__(self) -> int:
        return self._count

    def seen(self, key: Key, now: float) -> bool:
        """Whether a packet is in the cache."""
        node = self._nodes.get(key[0])
        if node is None:
            return False
        return node.until.get(node.offset(key[1]) + key[2], now) > now

    def add(self, key: Key, packet_time: float, now: float) -> bool:
        """Remember a packet; False when it was seen before."""
        self.expire(now)
        node = self.node(key[0])
        until = max(now, packet_time) + self.window
        return self.add_number(node, node.offset(key[1]) + key[2], until, now)

    def node(self, name: bytes | str) -> Seen:
        """The packets seen of a node; the result is valid until the next `expire`."""
        self._empty.discard(name)
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = Seen(name)
        return found

    def add_number(self, node: Seen, number: int, until: float, now: float) -> bool:
        """Like `add`, for callers that have many packets of one node and have called `expire`."""
        entries = node.until
        count = len(entries)
        if not count:
            self._nodes[node.name] = node  # it may have been removed since `node` returned it
        # One access instead of two: the dictionary is too large for the cache of the processor.
        known = entries.setdefault(number, until)
        if len(entries) == count:
            if known > now:
                return False
            node.order.remove(number)
            node.gone += 1
            self._forget(node, number)
            entries[number] = until
        node.order.append(number)
        self._order.append(node)
        self._count += 1
        if len(entries) > self.cap_per_node:
            node.gone += 1
            self._evict(node, now)
        if self._count > self.cap:
            self._evict(self._next(), now)
        while len(self._nodes) > self.most_nodes and self._count > 1:
            self._evict(self._next(), now)
        return True

    def add_all(self, node: Seen, numbers: list[int], until: float, now: float) -> bool:
        """Remember packets of one node if all of them are new; else remember none and return False."""
        entries, fresh = node.until, dict.fromkeys(numbers, until)
        many = len(numbers)
        if len(fresh) < many or many > self.cap_per_node or not entries.keys().isdisjoint(fresh):
            return False
        self._nodes[node.name] = node
        entries.update(fresh)
        node.order.extend(numbers)
        self._order.extend(repeat(node, many))
        self._count += many
        for _ in range(len(entries) - self.cap_per_node):
            node.gone += 1
            self._evict(node, now)
        for _ in range(self._count - self.cap):
            self._evict(self._next(), now)
        return True

    def expire(self, now: float) -> None:
        """Remove expired entries, at most `EXPIRED_AT_ONCE` in a call."""
        if now < self._look_again:
            return
        for name in self._empty:
            node = self._nodes.get(name)
            if node is not None and not node.until:
                del self._nodes[name]
        self._empty.clear()
        for _ in range(EXPIRED_AT_ONCE):
            if not self._count:
                break
            node = self._next()
            oldest = node.order[0]
            if node.until[oldest] > now:
                # Nothing more to remove. A packet dated ahead may keep later entries a little longer.
                self._order.appendleft(node)
                break
            self._forget(node, node.order.popleft())
        else:
            return
        self._look_again = now + LOOK_EVERY

    def _next(self) -> Seen:
        """Remove the first element of the shared queue that is not stale: the node with the oldest entry of all."""
        while True:
            node = self._order.popleft()
            if not node.gone:
                return node
            node.gone -= 1

    def _evict(self, node: Seen, now: float) -> None:
        oldest = node.order.popleft()
        if node.until[oldest] > now:
            self.evicted += 1
        self._forget(node, oldest)
        if not node.until:
            self._empty.discard(node.name)
            self._nodes.pop(node.name, None)

    def _forget(self, node: Seen, number: int) -> None:
        del node.until[number]
        self._count -= 1
        if not node.until:
            self._empty.add(node.name)
