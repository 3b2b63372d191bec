"""A network in memory that loses, doubles and reorders packets, on a clock of its own."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from wireloom.model import Message
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.node import Change, Heard, MeshNode, Relay
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustStore

EPOCH = 1_700_000_000.0


@dataclass
class Faults:
    """Shares of packets, and seconds."""

    loss: float = 0.0
    duplicates: float = 0.0
    slowest: float = 0.02


@dataclass
class Network:
    """Nodes by address, packets on their way, and what was heard."""

    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    now: float = 0.0
    nodes: dict[str, MeshNode] = field(default_factory=dict)
    heard: dict[str, list[Message]] = field(default_factory=dict)
    changes: list[tuple[float, str, Change, str]] = field(default_factory=list)
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)
    _flying: list[tuple[float, int, str, str, bytes]] = field(default_factory=list)
    _serial: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def add(self, name: str, node: MeshNode) -> MeshNode:
        node.epoch = EPOCH
        self.nodes[name] = node
        self.heard.setdefault(name, [])
        node.start(self.now)
        self._collect(name)
        return node

    def remove(self, name: str) -> MeshNode:
        """A node falls silent, without a word."""
        return self.nodes.pop(name)

    def inject(self, source: str, target: str, data: bytes) -> None:
        """A packet by somebody who is no node."""
        heapq.heappush(self._flying, (self.now, next(self._serial), source, target, data))

    def publish(self, name: str, message: Message) -> Message:
        sent = self.nodes[name].publish(message, self.now)
        self._collect(name)
        return sent

    def subscribe(self, name: str, pattern: str) -> None:
        self.nodes[name].subscribe(pattern, self.now)
        self._collect(name)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            due = [(node.deadline(), name) for name, node in self.nodes.items()]
            next_timer = min(due) if due else (until, "")
            next_packet = self._flying[0][0] if self._flying else until
            if min(next_timer[0], next_packet) >= until:
                break
            if next_packet <= next_timer[0]:
                self.now, _, source, target, data = heapq.heappop(self._flying)
                if target in self.nodes:
                    self._note(target, self.nodes[target].receive(data, source, self.now))
                    self._collect(target)
            else:
                self.now = max(self.now, next_timer[0])
                self._note(next_timer[1], self.nodes[next_timer[1]].expire(self.now))
                self._collect(next_timer[1])
        self.now = until

    def _note(self, name: str, heard: Heard) -> None:
        self.heard[name] += heard.events
        self.changes += [(self.now, name, what, neighbour.link) for what, neighbour in heard.changes]

    def _collect(self, name: str) -> None:
        for target, data in self.nodes[name].outgoing():
            self.sent.append((name, target, data))
            copies = 1 + (self._draw.random() < self.faults.duplicates)
            for _ in range(copies):
                if self._draw.random() >= self.faults.loss:
                    delay = 0.001 + self._draw.random() * self.faults.slowest
                    heapq.heappush(self._flying, (self.now + delay, next(self._serial), name, target, data))


def address(number: int) -> str:
    return f"10.0.0.{number}:5041"


def identities(count_of: int, *, signature: bool = False) -> tuple[list[Identity], TrustStore]:
    """Nodes that trust each other; every third signs, the others share secrets."""
    made = [
        Identity.generate(
            signature=signature or number % 3 == 0,
            hmac=number % 3 != 0,
            node_id=bytes((number,)) * 16,
            random=random.Random(number).randbytes,
        )
        for number in range(count_of)
    ]
    return made, TrustStore(identity.trusted_key() for identity in made)


def topology(count_of: int, draw: random.Random, chords: int = 2) -> list[list[int]]:
    """A ring, and for each node some chords: whom each node has as seeds."""
    return [
        [(number + 1) % count_of, *draw.sample([n for n in range(count_of) if n != number], chords)]
        for number in range(count_of)
    ]


def build(
    network: Network,
    seeds: Sequence[Iterable[int]],
    *,
    copies: int = 1,
    relays: tuple[Relay, ...] = (Relay(),),
    **values: object,
) -> tuple[list[Identity], TrustStore]:
    """A mesh with these seeds; every node relays as told and takes everything."""
    made, trust = identities(len(seeds))
    for number, whom in enumerate(seeds):
        node = MeshNode(
            MeshSettings.parse({"require": "trusted", **values}),
            identity=made[number],
            trust=trust,
            relays=relays,
            seeds=[address(each) for each in whom],
            copies=copies,
            max_neighbours=12,
            random=random.Random(1000 + number).randbytes,
        )
        network.add(address(number), node)
    return made, trust


def events_sent(network: Network) -> list[tuple[str, str, bytes]]:
    return [each for each in network.sent if each[2][6] == frames.EventType.EVENT]
