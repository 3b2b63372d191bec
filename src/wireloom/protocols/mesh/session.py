"""One end of a mesh conversation: Hello, heartbeats, events, with one address. Datagrams in, messages out.

Implements section 3 of the Event Mesh Protocol and the hub profile (`capabilities.py`). Mesh knows no connections: a
session begins with the first packet and ends when the peer was not heard for `lost_after` seconds. A bad packet is
refused alone; nothing that a peer sends ends the session.

Who says Hello: a client does, until it is answered. A Hello that answers none of ours is answered, so both ends know
each other whoever begins. Both send heartbeats once they have been greeted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from wireloom.model import (
    Authenticity,
    ConfigError,
    Direction,
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
)
from wireloom.protocols.contract import (
    HUB_PREFIX,
    NOTHING,
    Batch,
    Rejected,
    Role,
    Session,
    SessionState,
)
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.capabilities import make_capabilities, parse_capabilities
from wireloom.protocols.mesh.frames import EventType, Type
from wireloom.protocols.mesh.gate import Accepted, Gate
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.settings import EVERYTHING, MeshSettings
from wireloom.topics import matches, validate_pattern

if TYPE_CHECKING:
    from wireloom.protocols.mesh.publishes import DatagramReader

SUBSCRIBE, UNSUBSCRIBE = HUB_PREFIX + "subscribe", HUB_PREFIX + "unsubscribe"
_ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR, Kind.PROGRESS, Kind.ACK))
GREETINGS_KEPT = 64
TOGETHER = 64
"""Datagrams that are taken by one step."""


class MeshSession(Session):
    """Client and server differ in who says Hello first. Gate and author may be shared with other sessions."""

    hears_itself: ClassVar[bool] = False
    authored: ClassVar[bool] = True

    def __init__(self, role: Role, settings: MeshSettings, gate: Gate, author: Author, *, greets: bool = False) -> None:
        super().__init__(role)
        self._greets = greets or role is Role.CLIENT
        self.settings = settings
        self.gate = gate
        self.author = author
        self._limits = settings.limits
        self._out: list[bytes] = []
        self._heard = 0.0
        self._said = 0.0
        """When we last said Hello or sent a heartbeat."""
        self._greeted = False
        """The peer has said Hello, or answered ours."""
        self._profile = False
        """The peer speaks the hub profile."""
        self._hello_due: float | None = None
        """When to say Hello again, while the last one is unanswered."""
        self._answered: dict[bytes, float] = {}
        """Nodes whose plain Hello we have answered, and when."""
        self._subscribed: tuple[str, ...] = ()
        """What the peer has asked for."""
        self._patterns: dict[str, None] = {} if role is Role.CLIENT else {EVERYTHING: None}
        """The patterns that we ask the peer for; a server asks for all events."""
        self._greetings: dict[int, int] = {}
        """Our Hellos by Message ID, numbered."""
        self._greeting = 0
        self._asked: list[tuple[int, Message]] = []
        """Requests that wait for a Hello of at least that number to be answered."""
        self._implied = 0
        self._reader: DatagramReader | None = None

    @property
    def inbound(self) -> Direction:
        """Mesh has no client and no server, only datagrams."""
        return Direction.DGRAM

    @property
    def outbound(self) -> Direction:
        """Mesh has no client and no server, only datagrams."""
        return Direction.DGRAM

    # The transport's side

    def connected(self, now: float) -> None:
        """A client says Hello and waits for the answer; a server waits to be greeted, unless it knows whom to greet."""
        self._heard = now
        if self._greets:
            self._hello(now)
        if self.role is Role.CLIENT and self.settings.handshake:
            return
        self.state = SessionState.OPEN

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take one datagram."""
        if self.state is SessionState.CLOSED:
            return NOTHING
        if self._reader is not None:
            return self._reader.read(data, (len(data),), now)
        try:
            accepted = self.gate.check(frames.decode(data, self._limits), self.peer, now + self.epoch)
        except ProtocolViolation as violation:
            return [Batch(refused=(self.refuse(violation, data),))]
        return self.accept(accepted, data, now)

    def receive_datagrams(self, data: bytes, ends: Sequence[int], now: float) -> Iterable[Batch]:
        """Take datagrams that arrived together, some at a time: the owner may let others have a turn in between."""
        if self._reader is None:
            yield from super().receive_datagrams(data, ends, now)
            return
        start = 0
        for first in range(0, len(ends), TOGETHER):
            if self.state is SessionState.CLOSED:
                return
            part = ends[first : first + TOGETHER]
            yield from self._reader.read(data[start : part[-1]], [end - start for end in part], now)
            start = part[-1]

    def enable_columns(self) -> bool:
        """Let events come as `MeshPublishes`: those that are only passed on are then never made into messages."""
        from wireloom.protocols.mesh.publishes import DatagramReader

        self._reader = DatagramReader(self)
        return True

    def refuse(self, violation: ProtocolViolation, data: bytes) -> Rejected:
        """A packet that is not accepted is counted, and forgotten."""
        self.count(violation.clause)
        return Rejected(violation.clause, violation.detail, 0, data)

    def heard(self, now: float) -> None:
        """The peer is alive."""
        self._heard = now

    def accept(self, accepted: Accepted, data: bytes, now: float) -> list[Batch]:
        """Act on a packet; returns what it says, and what it implies. `data` is the packet as it came."""
        packet = accepted.packet
        self._heard = now
        message = to_message(packet, Direction.DGRAM, accepted.authenticity, opened=accepted.opened)
        batches = [Batch(data, [message])]
        if packet.event_type != EventType.HELLO:
            return batches
        implied = self._greeted_by(message, packet.get(Type.NODE_ID) or b"", packet.message_id, now)
        # Each subscription is a control message, and so the end of a batch.
        return batches + [Batch(messages=[each], added=1) for each in implied]

    def _greeted_by(self, hello: Message, node_id: bytes, message_id: int, now: float) -> list[Message]:
        """The peer said Hello: answer it, unless it is an answer itself."""
        self._greeted = True
        self.state = SessionState.OPEN
        said = parse_capabilities(hello.body) if self.settings.profile else None
        self._profile = said is not None
        if said is None:
            # This may be an answer to ours. Two such nodes that answer each Hello would never stop.
            self._hello_due = None
            last = self._answered.get(node_id)
            if last is None or now - last >= self.settings.heartbeat_interval:
                if len(self._answered) >= GREETINGS_KEPT:
                    self._answered.clear()
                self._answered[node_id] = now
                self._hello(now, message_id, wait=False)
            return [*self._wishes(self.settings.unasked, hello), *self._settle(self._greeting, now)]
        if said.answers is None:
            self._hello(now, message_id, wait=False)
            return self._wishes(said.subscribe, hello)
        number = self._greetings.get(said.answers)
        if number is None:
            self.count("mesh.hello.unasked")
            return self._wishes(said.subscribe, hello)
        return [*self._wishes(said.subscribe, hello), *self._settle(number, now)]

    def _wishes(self, wanted: tuple[str, ...], hello: Message) -> list[Message]:
        """What the peer wants now and did not want before, and the other way round, as requests to the hub."""
        if wanted == self._subscribed or self.role is Role.CLIENT:
            return []
        before, self._subscribed = self._subscribed, wanted
        changes = [(SUBSCRIBE, pattern) for pattern in wanted if pattern not in before]
        changes += [(UNSUBSCRIBE, pattern) for pattern in before if pattern not in wanted]
        return [self._implied_request(topic, pattern, hello) for topic, pattern in changes]

    def _implied_request(self, topic: str, pattern: str, hello: Message) -> Message:
        self._implied += 1
        node = hello.attributes.get("node_id")
        return Message(
            Kind.REQUEST,
            topic,
            json.dumps({"topic": pattern}).encode(),
            f"hello-{self._implied}",
            content_type="application/json",
            attributes={} if node is None else {"node_id": node},
            protocol="mesh",
            direction=Direction.DGRAM,
            authenticity=hello.authenticity,
        )

    def written_by(self, message: Message) -> str:
        """The node that wrote a message, where its key is trusted."""
        if message.authenticity is not Authenticity.VERIFIED:
            return ""
        return f"mesh:{message.attributes.get('node_id', '')}"

    def _settle(self, number: int, now: float) -> list[Message]:
        """Our Hello of that number was answered, and so was everything asked up to it."""
        done = [request for first, request in self._asked if first <= number]
        self._asked = [waiting for waiting in self._asked if waiting[0] > number]
        self._hello_due = now + self.settings.hello_interval if self._asked else None
        return [
            Message(Kind.RESPONSE, request.topic, correlation_id=request.id, status="done", protocol="mesh")
            for request in done
        ]

    def end_of_input(self, now: float) -> None:
        """The transport is going away."""
        self.close(now)

    def outgoing(self) -> bytes:
        """Everything to send as one run of packets; see `outgoing_frames`."""
        return b"".join(self.outgoing_frames())

    def outgoing_frames(self) -> Sequence[bytes]:
        """The packets to send now."""
        out, self._out = self._out, []
        return out

    def frames_of(self, encoded: bytes) -> Sequence[bytes]:
        """A run of packets one by one."""
        found, start = [], 0
        for end in frames.packet_ends(encoded):
            found.append(encoded[start:end])
            start = end
        return found

    @property
    def event_style(self) -> object:
        """Packets of other nodes are forwarded unchanged, so they are identical for all nodes."""
        return MeshSession if self.state is not SessionState.CLOSED else None

    def relays(self, topic: str) -> bool:
        """Whether events of this name are passed on to other nodes."""
        return _among(topic, self.settings.relay)

    def is_urgent(self, frame: bytes) -> bool:
        """Whether the Urgent bit is set."""
        return frames.is_urgent(frame)

    def deadline(self) -> float | None:
        """When a Hello or a heartbeat is due, or the peer counts as lost."""
        if self.state is SessionState.CLOSED:
            return None
        due = [self._heard + self.settings.lost_after]
        if self._hello_due is not None:
            due.append(self._hello_due)
        if self._greeted:
            due.append(self._said + self.settings.heartbeat_interval)
        return min(due)

    def expire(self, now: float) -> Sequence[Batch]:
        """Say Hello again, send a heartbeat, or give the peer up."""
        if self.state is SessionState.CLOSED:
            return NOTHING
        if now >= self._heard + self.settings.lost_after:
            self.close_reason = "idle"
            self.state = SessionState.CLOSED
            return NOTHING
        if self._hello_due is not None and now >= self._hello_due:
            self._hello(now)
        if self._greeted and now >= self._said + self.settings.heartbeat_interval:
            self._heartbeat(now)
        return NOTHING

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue an event, or a wish to be sent events of a topic."""
        if self.state is SessionState.CLOSED:
            raise PeerClosed("the mesh conversation is over")
        if message.kind in _ANSWERS:
            if message.kind is Kind.ERROR:
                self.count("mesh.subscribe.refused")
            return message  # the answer to a request that a Hello implied: nobody waits for it
        if message.kind is Kind.REQUEST:
            return self._ask(message, now)
        if message.kind is Kind.PING:
            self._heartbeat(now)
            return message
        if message.kind is Kind.OPEN:
            raise NotSupported("a mesh session says Hello by itself")
        if self.role is Role.SERVER and not _among(message.topic, self.settings.publish):
            self.count("mesh.publish.withheld")
            return message
        packet, message_id = self.author.write(message, now + self.epoch)
        self._queue(packet)
        return message.with_(id=f"{message_id:08x}", protocol="mesh")

    def _ask(self, message: Message, now: float) -> Message:
        if message.topic not in (SUBSCRIBE, UNSUBSCRIBE) or not self.settings.profile:
            raise NotSupported(f"mesh has no requests: {message.topic!r} cannot be asked for, only published")
        if self._greeted and not self._profile:
            raise NotSupported("this mesh node does not say that it takes subscriptions")
        pattern = _pattern(message)
        before = dict(self._patterns)
        if message.topic == SUBSCRIBE:
            self._patterns[pattern] = None
        else:
            self._patterns.pop(pattern, None)
        try:
            message_id = self._hello(now)
        except BaseException:
            self._patterns = before
            raise
        asked = message.with_(id=f"{message_id:08x}", protocol="mesh")
        self._asked.append((self._greeting, asked))
        return asked

    def _hello(self, now: float, answers: int | None = None, *, wait: bool = True) -> int:
        """Say Hello; with `wait`, say it again until it is answered."""
        said = make_capabilities(self._patterns, answers) if self.settings.profile else b""
        packet, message_id = self.author.hello(said, now + self.epoch)
        self._queue(packet)
        self._said = now
        if wait:
            self._greeting += 1
            self._greetings[message_id] = self._greeting
            if len(self._greetings) > GREETINGS_KEPT:
                del self._greetings[next(iter(self._greetings))]
            self._hello_due = now + self.settings.hello_interval
        return message_id

    def _heartbeat(self, now: float) -> None:
        self._queue(self.author.heartbeat(now + self.epoch))
        self._said = now

    def _queue(self, packet: bytes) -> None:
        if frames.is_urgent(packet):
            place = next((i for i, waiting in enumerate(self._out) if not frames.is_urgent(waiting)), len(self._out))
            self._out.insert(place, packet)
        else:
            self._out.append(packet)
        self.sent += 1

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue packets that are encoded already."""
        if self.state is SessionState.CLOSED:
            raise PeerClosed("the mesh conversation is over")
        for packet in self.frames_of(encoded):
            self._queue(packet)

    def close(self, now: float, reason: str = "") -> None:
        """Close. Mesh has no closing message: the peer notices that heartbeats stop."""
        if self.state is not SessionState.CLOSED:
            self.close_reason = self.close_reason or reason or "close"
            self.state = SessionState.CLOSED


def _among(topic: str | None, patterns: Sequence[str]) -> bool:
    return EVERYTHING in patterns or any(matches(pattern, topic or "") for pattern in patterns)


def _pattern(message: Message) -> str:
    try:
        pattern = json.loads(message.body)["topic"]
        if isinstance(pattern, str):
            return validate_pattern(pattern)
    except (ValueError, KeyError, TypeError, ConfigError):
        pass
    raise NotSupported('the body must be JSON such as {"topic": "sensors/#"}')
