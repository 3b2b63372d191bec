"""The replay cache: which packets have been seen, for as long as one of them could be taken for new.

Implements 5.4 and 7 of the Event Mesh Protocol. Keyed by NODE ID, the key that authenticated (or none) and Message ID.
An entry lives until max(arrival, the packet's time) + window, so that a packet dated ahead cannot be replayed later.
There is a cap for each node and one in all; the oldest go first, and each that goes too early is counted. Nodes take
memory, too, and a NODE ID costs its inventor nothing: there are at most as many as take the memory of all entries.
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
"""Entries that take as much memory as a node."""

Key = tuple[bytes | str, bytes, int]
"""NODE ID (or, where there is none, the source's address), key, Message ID."""


class Seen:
    """What was seen of one node, oldest first.

    Packets are numbered: the Message ID, plus an offset for each key that the node has used.
    """

    __slots__ = ("gone", "name", "offsets", "order", "until")

    def __init__(self, name: bytes | str) -> None:
        self.name = name
        self.until: dict[int, float] = {}
        self.order: deque[int] = deque()
        self.offsets: dict[bytes, int] = {}
        self.gone = 0
        """How many of this node's places in the order of all nodes stand for nothing any more."""

    def offset(self, key: bytes) -> int:
        """What to add to a Message ID, so that packets of different keys have different numbers."""
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
        """Packets dated up to then may have been seen, and nobody remembers; see `Gate.check_time`."""
        self.evicted = 0
        """Entries that had to go while their packet could still be replayed."""
        self._nodes: dict[bytes | str, Seen] = {}
        self._order: deque[Seen] = deque()
        """Whose turn it is to lose its oldest entry: a place for each entry, in the order they came."""
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
        """What was seen of a node; in force until the next `expire`."""
        self._empty.discard(name)
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = Seen(name)
        return found

    def add_number(self, node: Seen, number: int, until: float, now: float) -> bool:
        """The same as `add`, for those who have many packets of one node and called `expire` before."""
        entries = node.until
        count = len(entries)
        if not count:
            self._nodes[node.name] = node  # it may have been forgotten since somebody asked for it
        # One look into the dictionary, which is too large for the processor's cache, instead of two.
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
        """Remember packets of one node at once if all of them are new; else none, and False."""
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
        """Forget what is over: enough for the cache to shrink, and not so much that it takes long."""
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
                # Not before that. One dated ahead may keep those behind it a little longer.
                self._order.appendleft(node)
                break
            self._forget(node, node.order.popleft())
        else:
            return
        self._look_again = now + LOOK_EVERY

    def _next(self) -> Seen:
        """The node whose oldest entry is the oldest of all; its place in the order is taken out."""
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
