"""mesh as a `Protocol`: its names, and the way to its packets, sessions and columns."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, cast

from wireloom.model import ConfigError, Direction, Message, NotSupported, ProtocolViolation
from wireloom.protocols.contract import (
    URGENT,
    Decoder,
    Format,
    Framing,
    Protocol,
    Role,
    Scheme,
    Session,
    Sessions,
    Settings,
)
from wireloom.protocols.mesh import frames, messages
from wireloom.protocols.mesh.encryption import WRAPPING_CLAUSES
from wireloom.protocols.mesh.frames import Packet, decode, packet_ends
from wireloom.protocols.mesh.gate import GATE_CLAUSES
from wireloom.protocols.mesh.messages import FIELDS, FIELDS_FORMAT, to_message, to_packet
from wireloom.protocols.mesh.pairing import CONVERSATION
from wireloom.protocols.mesh.security import SECURITY_CLAUSES, check, sign_packet
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.pairing import Conversation

if TYPE_CHECKING:
    from wireloom.protocols.cases import Case
    from wireloom.protocols.columns import ColumnDecoder
    from wireloom.protocols.mesh.author import Author
    from wireloom.protocols.mesh.gate import Gate
    from wireloom.protocols.mesh.session import MeshSession


class MeshDecoder(Decoder):
    """Packets of one direction, as messages. Each `feed` is one datagram, or a run of packets (a journal's block).

    With a trust file in the settings authenticity is checked; without one signed packets are `unchecked`.
    """

    def __init__(self, direction: Direction, settings: MeshSettings) -> None:
        super().__init__()
        self._direction = direction
        self._settings = settings
        self._limits = settings.limits
        self._trust = settings.trust_store() if settings.trust else None
        self._ends: deque[int] = deque()
        """Where in the stream the packets that were fed end."""
        self._fed = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add one datagram, or one run of packets."""
        super().feed(data)
        self._ends.extend(self._fed + end for end in frames.packet_ends(data))
        self._fed += len(data)

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The next packet, by `frames.decode`."""
        if not self._ends:
            return None
        end = start + self._ends[0] - self.offset
        packet = frames.decode(bytes(memoryview(buffer)[start:end]), self._limits)
        return packet, end

    def to_message(self, frame: object) -> Message:
        """What the packet means, and what is known about its sender."""
        packet = cast(Packet, frame)
        if self._trust is None:
            message = to_message(packet, self._direction, max_plain=self._settings.max_plain)
        else:
            message = to_message(
                packet,
                self._direction,
                check(packet, self._trust).authenticity,
                keys=self._trust.encryption_keys,
                max_plain=self._settings.max_plain,
            )
        self._ends.popleft()
        return message

    def _after_violation(self, violation: ProtocolViolation) -> None:
        """Skip the bad packet; the next stands alone."""
        size = self._ends.popleft() - self.offset
        self._taken += size
        self.offset += size


class MeshSessions(Sessions):
    """Sessions that speak as one node and share what they have seen."""

    def __init__(self, protocol: Protocol, settings: MeshSettings) -> None:
        super().__init__(protocol, settings)
        if settings.policy is Require.TRUSTED and not settings.trust:
            raise ConfigError(
                "mesh with require = 'trusted' and no trust file would accept nothing: name a trust file in `trust`, "
                "or say require = 'any'"
            )
        self.gate, self.author = make_node(settings)
        self._limits = settings.limits

    def new(self, role: Role, *, unique: int = 0, url: str = "") -> MeshSession:
        """A session with one more address."""
        from wireloom.protocols.mesh.session import MeshSession

        return MeshSession(role, cast(MeshSettings, self.settings), self.gate, self.author)

    def contact(self, *, unique: int = 0) -> MeshSession:
        """A session with a seed: it says Hello, and takes wishes like those of nodes that came by themselves."""
        from wireloom.protocols.mesh.session import MeshSession

        return MeshSession(Role.SERVER, cast(MeshSettings, self.settings), self.gate, self.author, greets=True)

    def join(self, others: Sequence[Sessions]) -> None:
        """What one listener has seen or said is known to all: otherwise events would come back by another one."""
        for other in others:
            if isinstance(other, MeshSessions):
                other.gate.own |= self.gate.own
                self.gate.own, self.gate.replay = other.gate.own, other.gate.replay
                self.gate.strangers = other.gate.strangers
                self.author.node_ids = other.gate.own
                if other.author.identity.node_id == self.author.identity.node_id:
                    self.author.ids = other.author.ids

    def renew(self, settings: Settings) -> None:
        """Other sizes from now on; also for packets of sources that have no session yet."""
        super().renew(settings)
        self.gate.settings = cast(MeshSettings, settings)
        self._limits = self.gate.settings.limits

    def admit(self, datagram: bytes, source: str, time: float) -> ProtocolViolation | None:
        """Strangers are heard once what they say is acceptable."""
        try:
            self.gate.look(frames.decode(datagram, self._limits), source, time)
        except ProtocolViolation as violation:
            return violation
        return None

    @property
    def recalls(self) -> float:
        """How long ago a packet may have come that can still be replayed: those dated ahead for longer than others."""
        settings = self.gate.settings
        return settings.replay_window + settings.clock_skew

    def begin_recall(self, now: float) -> None:
        """Until `recalled`, nothing is taken that may have been taken before."""
        self.gate.replay.since = math.floor(now)

    def recall(self, frames: bytes, source: str, arrived: float) -> None:
        """Remember packets."""
        start = 0
        for end in packet_ends(frames):
            with contextlib.suppress(ProtocolViolation):
                self.gate.recall(decode(frames[start:end], self._limits), source, arrived)
            start = end

    def recalled(self) -> None:
        """From now on everything that is fresh and was not seen is taken."""
        self.gate.replay.since = -math.inf

    @property
    def counters(self) -> Mapping[str, int]:
        """What the caches had to forget too early."""
        return {"mesh.replay.evicted": self.gate.replay.evicted + self.gate.strangers.evicted}


def make_node(settings: MeshSettings) -> tuple[Gate, Author]:
    """What one node needs to hear and to speak."""
    from wireloom.protocols.mesh.author import Author
    from wireloom.protocols.mesh.gate import Gate

    gate = Gate(settings)
    author = Author(settings, cipher=settings.encryption(gate.trust))
    gate.own = author.node_ids
    return gate, author


class Mesh(Protocol):
    """The protocol object of mesh.

    >>> from wireloom.model import Kind
    >>> hello = Message(Kind.EVENT, "a/b", id="0000002a", attributes={"timestamp": "1700000000"})
    >>> MESH.encode(hello, MESH.settings()).hex()
    '010000002a0003000000006553f10000050103612f62'
    """

    name: ClassVar[str] = "mesh"
    title: ClassVar[str] = "Event Mesh Protocol"
    schemes: ClassVar[tuple[Scheme, ...]] = (
        Scheme("mesh", "udp", 5041),
        Scheme("mesh+quic", "quic", 5041, secure=True),
    )
    framing: ClassVar[Framing] = Framing.DATAGRAM
    settings_type: ClassVar[type[Settings]] = MeshSettings
    message_size: ClassVar[str | None] = "max_payload"
    decompressed_size: ClassVar[str | None] = "max_plain"
    clauses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {**frames.CLAUSES, **WRAPPING_CLAUSES, **SECURITY_CLAUSES, **GATE_CLAUSES}
    )
    conversation: ClassVar[Conversation] = CONVERSATION
    hub_settings: ClassVar[Mapping[str, object]] = MappingProxyType({"require": Require.TRUSTED})
    loopback_settings: ClassVar[Mapping[str, object]] = MappingProxyType({"require": Require.ANY})
    takes_tokens: ClassVar[bool] = False
    trust_setting: ClassVar[str | None] = "trust"
    carried_attributes: ClassVar[tuple[str, ...]] = (
        *("event_type", "flags", "timestamp", "signed_at", URGENT),
        *(name for _, name in messages.HEX_ATTRIBUTES),
        f"{messages.UNKNOWN_FIELD}*",
    )
    identity_kinds: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"mesh": "the NODE ID, in hex, of a packet's author whose key the trust file verifies"}
    )
    decode_options: ClassVar[Mapping[str, str]] = MappingProxyType({"trust": "trust"})
    case_settings: ClassVar[Sequence[str]] = ("key", "trust")

    def lenient(self) -> Settings:
        """No limit but those of the length fields, and reserved flags as a listener may have been told to take them.

        `max_plain` stays: the 64 fields that a wrapping holds never become as much.
        """
        return MeshSettings(
            max_payload=frames.MAX_PAYLOAD_LIMIT,
            max_fields=frames.MAX_PAYLOAD_LIMIT,
            ignore_reserved_flags=True,
        )

    def observing(self) -> Settings:
        """The limits of the specification: a packet that breaks one is no valid packet, whoever sent it."""
        return self.settings()

    def decoder(self, direction: Direction, settings: Settings, topics: Mapping[int, str] | None = None) -> Decoder:
        """A decoder; every direction is `dgram` here, and topics have no numbers."""
        return MeshDecoder(direction, cast(MeshSettings, settings))

    def encode(self, message: Message, settings: Settings, topics: Mapping[int, str] | None = None) -> bytes:
        """One message as one packet: as it came if the message has all of it, else signed by a `key` in the settings.

        What the message does not say is made up: a random Message ID, the present time.
        """
        own = cast(MeshSettings, settings)
        now = message.time // 1_000_000_000 if message.time is not None else int(time.time())
        packet = to_packet(message, message_id=secrets.randbits(32), timestamp=now, keep_name=own.keep_name)
        if (own.key or own.node_id) and not ({"hmac", "signature", "node_id"} & message.attributes.keys()):
            packet = sign_packet(packet, own.identity())
        encoded = frames.encode(packet, own.limits)
        try:
            frames.decode(encoded, own.limits)
        except ProtocolViolation as violation:
            raise NotSupported(f"that would be no valid packet: {violation}") from None
        return encoded

    def session(
        self, role: Role, settings: Settings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> Session:
        """A session that shares nothing with others; Message IDs are random whatever `unique` is."""
        return self.sessions(settings).new(role)

    def sessions(self, settings: Settings, topics: Mapping[int, str] | None = None) -> MeshSessions:
        """Sessions that speak as one node."""
        return MeshSessions(self, cast(MeshSettings, settings))

    def cases(self) -> Sequence[Case]:
        """What any implementation must do."""
        from wireloom.protocols.mesh.cases import CASES

        return CASES

    def recognise(self, head: bytes, direction: Direction) -> bool:
        """Whether a datagram is a packet, as far as it can be told without its end.

        >>> MESH.recognise(bytes.fromhex("010000002a0003000000006553f10000050103612f62"), Direction.DGRAM)
        True
        """
        size = frames.packet_size(head, 0)
        if size is None or size > frames.MAX_PACKET_SIZE or size < len(head):
            return False
        if len(head) == size:
            try:
                frames.decode(head)
            except ProtocolViolation:
                return False
            return True
        return head[0] == frames.VERSION and not head[5] & frames.RESERVED_FLAGS

    def format_for(self, content_type: str | None) -> Format | None:
        """Bodies of several fields are lists of values."""
        return FIELDS_FORMAT if content_type == FIELDS else None

    def columns(self) -> ColumnDecoder:
        """The numba kernels."""
        from wireloom.protocols.mesh.columns import MeshColumns

        return MeshColumns()


MESH = Mesh()
