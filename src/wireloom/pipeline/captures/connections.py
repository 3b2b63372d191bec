"""The state of a captured connection, kept between packets and between batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Direction
from wireloom.pipeline.captures import pcap, tcp
from wireloom.pipeline.captures.flows import FlowKey
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.captures.websocket import Unwrapping
from wireloom.pipeline.schemas import KEPT_BYTES

PLAIN, WEBSOCKET = "plain", "websocket"
"""What the bytes of a connection are wrapped in."""
WAIT, SEEK, READ, RESUME, BROKEN = "wait", "seek", "read", "resume", "broken"
"""Modes of a direction. `WAIT`: keep the bytes until the protocol is known. `SEEK`: search for a start of frames.
`READ`: decode. `RESUME`: search for the mark after a gap. `BROKEN`: reject all bytes."""
OTHER = "other"
"""The protocol of a connection that speaks no known protocol."""


@dataclass(slots=True)
class RejectedBytes:
    """Bytes of one direction that are on their way to one row of `rejects`."""

    clause: str
    detail: str
    time_us: int = 0
    file: int = 0
    offset: int = 0
    head: bytes = b""
    size: int = 0

    def followed_by(self, later: RejectedBytes) -> RejectedBytes:
        """Bytes that stand one after the other, as one row."""
        if not self.size:
            return later
        self.head = (self.head + later.head)[:KEPT_BYTES]
        self.size += later.size
        return self


@dataclass(slots=True)
class Held:
    """Bytes that arrived too early, and wait for missing ones before them: see `tcp.py`. None: not captured."""

    begin: int
    end: int
    content: bytes | None
    file: int
    offset: int


@dataclass(slots=True)
class Half:
    """One direction of a connection."""

    direction: Direction
    mode: str = WAIT
    carry: bytes = b""
    """The beginning of a frame, or everything while the protocol is not known."""
    trace: Trace = field(default_factory=Trace.empty)
    unwrapping: Unwrapping | None = None
    raw_trace: Trace = field(default_factory=Trace.empty)
    """Where the bytes that `unwrapping` keeps came from."""
    overhead: int = 0
    """Bytes of the wrapping that were not reported yet."""
    state: bytes = b""
    """What the protocol's decoder wants to be given next time."""
    begun: Trace = field(default_factory=Trace.empty)
    """Where the first piece stood that `state` holds, or one before it."""
    count: int = 0
    """Messages so far."""
    refused: RejectedBytes | None = None
    held: list[Held] = field(default_factory=list)
    holes: list[list[int]] = field(default_factory=list)
    """Begin and end of what was given up as not captured: see `tcp.py`."""
    tried: int = 0
    """How many of the first bytes were examined to recognise the protocol."""
    seen: int = 0
    """Bytes so far."""
    over: bool = False
    """Whether further bytes are ignored."""
    end_told: bool = False
    """Whether the event `ended` of this direction was reported."""

    def kept(self) -> tuple[bytes, Trace]:
        """The kept bytes, those that are not unwrapped yet last, and their origins."""
        raw = self.unwrapping.raw if self.unwrapping is not None else b""
        if not raw:
            return self.carry, self.trace
        trace = self.raw_trace.moved(len(self.carry))
        return self.carry + raw, Trace.joined([self.trace, trace]) if self.carry else trace


@dataclass(slots=True)
class CapturedConnection:
    """One connection of one flow. `halves` go by side of the flow, as everything in `tcp.py` does."""

    key: FlowKey
    numbers: NDArray[np.int64]
    sides: NDArray[np.int64]
    id: str = ""
    protocol: str | None = None
    """None: not known yet."""
    wrapping: str = PLAIN
    client: int = 0
    halves: list[Half] = field(default_factory=list)
    opened_told: bool = False
    closed_told: bool = False
    tries: int = 0
    """Datagrams that were looked at."""
    packets: int = 0
    """Packets that were not counted yet as other traffic, should they turn out to be that."""

    @classmethod
    def new(cls, key: FlowKey) -> CapturedConnection:
        """A connection before its first packet."""
        halves = [Half(Direction.C2S), Half(Direction.S2C)]
        return cls(key, tcp.new_connection(), tcp.new_sides(), halves=halves)

    def identify(self, client: int) -> None:
        """Settle who is the client, and the id: made of what no other connection has in common with this one."""
        self.client = client
        protocol, one, port, other, other_port = self.key
        made = hashlib.blake2b(digest_size=8)
        for part in (protocol, port, other_port, int(self.numbers[tcp.FIRST]), int(self.sides[client][tcp.ISN])):
            made.update(part.to_bytes(9, "big", signed=True))
        made.update(one + other)
        self.id = made.hexdigest()
        self.halves[client].direction, self.halves[1 - client].direction = Direction.C2S, Direction.S2C

    def choose(self, protocol: str | None, wrapping: str) -> None:
        """Settle what it speaks, or at least what that is wrapped in."""
        self.protocol = protocol
        if wrapping == WEBSOCKET and self.wrapping != WEBSOCKET:
            for half in self.halves:
                half.unwrapping = Unwrapping(half.direction is Direction.C2S)
        self.wrapping = wrapping

    def end(self, side: int) -> str:
        """One end as host:port."""
        _, one, port, other, other_port = self.key
        return _end(other, other_port) if side else _end(one, port)

    @property
    def is_midstream(self) -> bool:
        """Whether it began before the capture."""
        return bool((self.sides[:, tcp.KNOWN] == tcp.MIDSTREAM).any())

    def forget(self) -> None:
        """Keep nothing but what late packets are told by."""
        for half in self.halves:
            half.carry, half.trace, half.refused, half.held = b"", Trace.empty(), None, []
            half.over = True


@lru_cache(maxsize=1 << 16)
def _end(address: bytes, port: int) -> str:
    host = pcap.address(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
