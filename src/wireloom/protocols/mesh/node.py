"""A mesh node without sockets: neighbours that come and go, events that are published, delivered and passed on.

Implements section 1 (nodes, intermediaries), 3 (Hello, Heartbeat, Event) and the relay rules of the decisions. Packets
go in with the name of the link they came by, and come out with the names of the links they are for. The sockets of the
links are in `peers/mesh/node.py`. Time and randomness are passed in, so that hours of a mesh run in a second of test.

A node sends Hello to its seeds until they answer, and answers each Hello that it gets. A Hello says what events the
node wants. It also names a few neighbours, so that a new node can greet them as well. A node with enough neighbours
says so, and only names others.

An event goes to every neighbour that wants it. A node relays the events that its relay rules name, unchanged, and never
to where they came from. The gate drops packets that were seen before, which ends every loop.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

from wireloom.model import Direction, LimitExceeded, Message, ProtocolViolation
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.capabilities import Capabilities, make_capabilities, parse_capabilities
from wireloom.protocols.mesh.frames import EventType, Type
from wireloom.protocols.mesh.gate import Accepted, Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustStore
from wireloom.topics import matches, validate_pattern

EVERYTHING = "#"
FIRST_RESEND = 0.05
"""Seconds after which the second copy of a packet is sent; each further one waits twice as long."""
MAX_RESENDS = 10_000
SLOWEST_HELLO = 30.0
"""Seconds between two Hellos to a seed that does not answer, at most."""
INTRODUCED = 4
"""Neighbours that an answer to a Hello names."""


@dataclass(frozen=True, slots=True)
class Relay:
    """A rule: events whose name matches are passed on, to every neighbour or only to some (NODE IDs as hex)."""

    pattern: str = EVERYTHING
    to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate_pattern(self.pattern)


@dataclass(slots=True)
class Neighbour:
    """A node that we hear directly."""

    node_id: bytes
    link: str
    since: float
    heard: float
    capabilities: bytes = b""
    profile: Capabilities | None = None

    def wants(self, topic: str | None) -> bool:
        """Whether to send it events of this name; a node that states no wishes gets all."""
        if self.profile is None:
            return True
        if topic is None:
            return EVERYTHING in self.profile.subscribe
        return any(matches(pattern, topic) for pattern in self.profile.subscribe)


class Change(StrEnum):
    """What happened to a neighbour."""

    JOINED = "joined"
    LOST = "lost"


@dataclass(slots=True)
class Heard:
    """What came of some packets: events for the application, and neighbours that came or went."""

    events: list[Message] = field(default_factory=list)
    changes: list[tuple[Change, Neighbour]] = field(default_factory=list)
    refused: list[ProtocolViolation] = field(default_factory=list)


@dataclass(slots=True)
class _Seed:
    link: str
    due: float = 0.0
    wait: float = 0.0
    introduced: bool = False
    """Whether another node named it; it is dropped if it does not answer."""
    tries: int = 0


class MeshNode:
    """One node. `now` is any clock in seconds; `epoch` is what to add to it to get seconds since 1970."""

    def __init__(
        self,
        settings: MeshSettings,
        *,
        identity: Identity | None = None,
        trust: TrustStore | None = None,
        relays: Iterable[Relay] = (),
        seeds: Iterable[str] = (),
        copies: int = 1,
        max_neighbours: int = 32,
        epoch: float = 0.0,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.settings = settings
        self.gate = Gate(settings, trust)
        self.author = Author(settings, identity, settings.encryption(self.gate.trust), random)
        self.gate.own = self.author.node_ids
        self.relays = tuple(relays)
        self.copies = copies
        self.max_neighbours = max_neighbours
        self.epoch = epoch
        self.neighbours: dict[bytes, Neighbour] = {}
        self.counters: dict[str, int] = {}
        self._limits = settings.limits
        self._seeds = {link: _Seed(link) for link in seeds}
        self._patterns: dict[str, int] = {}
        self._out: list[tuple[str, bytes]] = []
        self._urgent: list[tuple[str, bytes]] = []
        self._resends: list[tuple[float, int, int, bytes, tuple[str, ...]]] = []
        self._serial = count()
        self._greeted: dict[str, float] = {}
        """Links that we greeted without being asked, or whose plain Hello we answered, and when."""
        self._unanswered: dict[str, tuple[int, float]] = {}
        """Our last Hello by link, until it is answered: its Message ID, and when to say it again."""
        self._beat_due = 0.0

    @property
    def node_id(self) -> bytes:
        """Our NODE ID."""
        return self.author.identity.node_id

    def count(self, what: str, times: int = 1) -> None:
        """Count something."""
        self.counters[what] = self.counters.get(what, 0) + times

    # What the owner calls

    def start(self, now: float) -> None:
        """Begin to greet the seeds."""
        self._beat_due = now + self.settings.heartbeat_interval
        for seed in self._seeds.values():
            self._greet(seed, now)

    def add_seed(self, link: str, now: float) -> None:
        """Greet one more address, and go on until it answers."""
        seed = self._seeds.setdefault(link, _Seed(link))
        seed.introduced = False
        self._greet(seed, now)

    def receive(self, data: bytes, link: str, now: float, heard: Heard | None = None) -> Heard:
        """Take one datagram that came by a link."""
        heard = Heard() if heard is None else heard
        try:
            accepted = self.gate.check(frames.decode(data, self._limits), link, now + self.epoch)
        except ProtocolViolation as violation:
            self.count(violation.clause)
            heard.refused.append(violation)
            return heard
        packet = accepted.packet
        if packet.event_type == EventType.HELLO:
            self._on_hello(accepted, link, now, heard)
        elif packet.event_type == EventType.HEARTBEAT:
            self._on_heartbeat(accepted, link, now)
        else:
            self._on_event(accepted, data, link, now, heard)
        return heard

    def look(self, data: bytes, link: str, now: float) -> ProtocolViolation | None:
        """Why a datagram of an unknown source would be refused, or None. Nothing is remembered."""
        try:
            self.gate.look(frames.decode(data, self._limits), link, now + self.epoch)
        except ProtocolViolation as violation:
            self.count(violation.clause)
            return violation
        return None

    def publish(self, message: Message, now: float) -> Message:
        """Send an event to every neighbour that wants it; returned with its id."""
        packet, message_id = self.author.write(message, now + self.epoch)
        links = tuple(n.link for n in self.neighbours.values() if n.wants(message.topic))
        if not links:
            self.count("mesh.publish.nobody")
        self._send(packet, links, now)
        return message.with_(id=f"{message_id:08x}", protocol="mesh")

    def subscribe(self, pattern: str, now: float) -> None:
        """Events of this pattern are wanted here: tell the neighbours."""
        validate_pattern(pattern)
        before = self._wanted()
        self._patterns[pattern] = self._patterns.get(pattern, 0) + 1
        self._wishes_changed(before, now)

    def unsubscribe(self, pattern: str, now: float) -> None:
        """They are not wanted any more, as far as this subscription goes."""
        before = self._wanted()
        self._patterns[pattern] -= 1
        if not self._patterns[pattern]:
            del self._patterns[pattern]
        self._wishes_changed(before, now)

    def rotate(self, identity: Identity) -> None:
        """Sign with other keys from now on; the NODE ID stays."""
        if identity.node_id != self.node_id:
            raise ValueError("keys are rotated for the same NODE ID")
        self.author.identity = identity

    def outgoing(self) -> Sequence[tuple[str, bytes]]:
        """Packets to send now and the links they are for, urgent ones first; handed out once."""
        out = self._urgent + self._out
        self._urgent, self._out = [], []
        return out

    def deadline(self) -> float:
        """When `expire` wants to be called."""
        due = [self._beat_due]
        due += [seed.due for seed in self._seeds.values() if not self._is_neighbour(seed.link)]
        due += [neighbour.heard + self.settings.lost_after for neighbour in self.neighbours.values()]
        if self._resends:
            due.append(self._resends[0][0])
        due += [again for _, again in self._unanswered.values()]
        return min(due)

    def expire(self, now: float) -> Heard:
        """Send copies, heartbeats and Hellos that are due; drop neighbours that were silent too long."""
        heard = Heard()
        while self._resends and self._resends[0][0] <= now:
            due, _, times, packet, links = heapq.heappop(self._resends)
            alive = {neighbour.link for neighbour in self.neighbours.values()}
            self._queue(packet, [link for link in links if link in alive])
            if times > 1:
                self._resend_at(due + FIRST_RESEND * 2 ** (self.copies - times), times - 1, packet, links)
        for neighbour in list(self.neighbours.values()):
            if neighbour.heard + self.settings.lost_after <= now:
                del self.neighbours[neighbour.node_id]
                heard.changes.append((Change.LOST, neighbour))
        for seed in list(self._seeds.values()):
            if self._is_neighbour(seed.link):
                if seed.introduced:
                    del self._seeds[seed.link]
                seed.wait, seed.tries = 0.0, 0
            elif seed.due <= now:
                if seed.introduced and seed.tries >= 5:
                    del self._seeds[seed.link]
                else:
                    self._greet(seed, now)
        for link, (_, again) in list(self._unanswered.items()):
            if again <= now:
                # Seeds that are no neighbours yet are greeted above; who does not know the profile answers nothing.
                del self._unanswered[link]
                if any(n.link == link and n.profile is not None for n in self.neighbours.values()):
                    self._say_hello(link, now)
        if self._beat_due <= now:
            self._beat_due = now + self.settings.heartbeat_interval
            if self.neighbours:
                beat = self.author.heartbeat(now + self.epoch)
                self._queue(beat, [neighbour.link for neighbour in self.neighbours.values()])
        return heard

    # Hello and heartbeats

    def _wanted(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._patterns, *(relay.pattern for relay in self.relays)]))

    def _wishes_changed(self, before: tuple[str, ...], now: float) -> None:
        if self._wanted() != before:
            links = [neighbour.link for neighbour in self.neighbours.values()]
            for link in dict.fromkeys((*links, *self._unanswered)):
                self._say_hello(link, now)

    def _say_hello(self, link: str, now: float, answers: int | None = None, *, full: bool = False) -> None:
        """Greet, or answer a greeting. Whom we greet is greeted again until it answers."""
        names = [n.link for n in self.neighbours.values() if n.link != link] if answers is not None else []
        packet, message_id = self._hello(names[-INTRODUCED:], answers, full, now + self.epoch)
        self._queue(packet, [link])
        if answers is None:
            self._unanswered[link] = (message_id, now + self.settings.hello_interval)

    def _hello(self, names: Sequence[str], answers: int | None, full: bool, time: float) -> tuple[bytes, int]:
        """A Hello with as much as fits: our wishes and neighbours, our wishes, or the wish for everything."""
        if not self.settings.profile:
            return self.author.hello(b"", time)
        for wishes, peers in ((self._wanted(), names), (self._wanted(), ())):
            try:
                return self.author.hello(make_capabilities(wishes, answers, peers, full=full), time)
            except LimitExceeded:
                continue
        return self.author.hello(make_capabilities([EVERYTHING], answers), time)

    def _greet(self, seed: _Seed, now: float) -> None:
        seed.wait = min(max(self.settings.hello_interval, seed.wait * 2), SLOWEST_HELLO)
        seed.due = now + seed.wait
        seed.tries += 1
        self._say_hello(seed.link, now)

    def _is_neighbour(self, link: str) -> bool:
        return any(neighbour.link == link for neighbour in self.neighbours.values())

    def _on_hello(self, accepted: Accepted, link: str, now: float, heard: Heard) -> None:
        packet = accepted.packet
        node_id = packet.get(Type.NODE_ID) or b""
        message = to_message(packet, Direction.DGRAM, accepted.authenticity, opened=accepted.opened)
        said = parse_capabilities(message.body) if self.settings.profile else None
        neighbour = self.neighbours.get(node_id)
        if neighbour is None:
            if said is not None and said.full:
                self._unanswered.pop(link, None)
                self._meet(said.peers, now)
                return
            if len(self.neighbours) >= self.max_neighbours and link not in self._seeds:
                self.count("mesh.neighbours.full")
                if said is not None and said.answers is None:
                    self._say_hello(link, now, packet.message_id, full=True)
                return
            neighbour = self.neighbours[node_id] = Neighbour(node_id, link, now, now)
            heard.changes.append((Change.JOINED, neighbour))
        neighbour.link, neighbour.heard = link, now
        neighbour.capabilities, neighbour.profile = message.body, said
        if said is None:
            # This may be an answer to ours. Two such nodes that answer each Hello would never stop.
            if self._may_greet(link, now, self.settings.heartbeat_interval):
                self._say_hello(link, now, packet.message_id)
        elif said.answers is None:
            self._say_hello(link, now, packet.message_id)
        else:
            if self._unanswered.get(link, (None, 0.0))[0] == said.answers:
                del self._unanswered[link]
            self._meet(said.peers, now)

    def _may_greet(self, link: str, now: float, interval: float) -> bool:
        """Whether it is long enough since we greeted this link of our own accord."""
        last = self._greeted.get(link)
        if last is not None and now - last < interval:
            return False
        if len(self._greeted) > 4 * self.max_neighbours:
            self._greeted.clear()
        self._greeted[link] = now
        return True

    def _meet(self, links: Sequence[str], now: float) -> None:
        """Greet nodes that another named, up to half of our limit; the other half is for nodes that greet us."""
        for link in links:
            if 2 * (len(self.neighbours) + sum(s.introduced for s in self._seeds.values())) >= self.max_neighbours:
                return
            if link not in self._seeds and not self._is_neighbour(link):
                seed = self._seeds[link] = _Seed(link, introduced=True)
                self._greet(seed, now)

    def _on_heartbeat(self, accepted: Accepted, link: str, now: float) -> None:
        neighbour = self.neighbours.get(accepted.packet.get(Type.NODE_ID) or b"")
        if neighbour is None:
            # It knows us and we do not know it (any more): greet it.
            if self._may_greet(link, now, self.settings.hello_interval):
                self._say_hello(link, now)
            return
        neighbour.link, neighbour.heard = link, now

    # Events

    def _on_event(self, accepted: Accepted, data: bytes, link: str, now: float, heard: Heard) -> None:
        packet = accepted.packet
        for neighbour in self.neighbours.values():
            if neighbour.link == link:
                neighbour.heard = now
        message = to_message(packet, Direction.DGRAM, accepted.authenticity, opened=accepted.opened)
        if packet.event_type == EventType.EVENT and not accepted.opened.locked:
            heard.events.append(message)
        author = packet.get(Type.NODE_ID)
        if author is not None:
            self._relay(data, message.topic, author, link, now)

    def _relay(self, data: bytes, topic: str | None, author: bytes, link: str, now: float) -> None:
        """Relay a packet by the rules, unchanged, but not to its link or its author."""
        links: dict[str, None] = {}
        for rule in self.relays:
            if topic is None and rule.pattern != EVERYTHING:
                continue
            if topic is not None and not matches(rule.pattern, topic):
                continue
            for neighbour in self.neighbours.values():
                if neighbour.link == link or neighbour.node_id == author or not neighbour.wants(topic):
                    continue
                if not rule.to or neighbour.node_id.hex() in rule.to:
                    links[neighbour.link] = None
        if links:
            self.count("mesh.relayed")
            self._send(data, tuple(links), now)

    def _send(self, packet: bytes, links: tuple[str, ...], now: float) -> None:
        self._queue(packet, links)
        if self.copies > 1 and links:
            self._resend_at(now + FIRST_RESEND, self.copies - 1, packet, links)

    def _resend_at(self, due: float, times: int, packet: bytes, links: tuple[str, ...]) -> None:
        if len(self._resends) >= MAX_RESENDS:
            self.count("mesh.copies.dropped")
            return
        heapq.heappush(self._resends, (due, next(self._serial), times, packet, links))

    def _queue(self, packet: bytes, links: Iterable[str]) -> None:
        queue = self._urgent if frames.is_urgent(packet) else self._out
        queue.extend((link, packet) for link in links)
