"""Which protocol a connection speaks: by its port, else by its first bytes.

What stands here of transports is what a capture shows of them: plain TCP, WebSocket over TCP, UDP. What is
encrypted (TLS, QUIC) shows nothing, and counts as other traffic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from wireloom.model import ConfigError, Direction
from wireloom.pipeline.captures import tcp
from wireloom.pipeline.captures.connections import OTHER, PLAIN, READ, SEEK, WAIT, WEBSOCKET
from wireloom.pipeline.captures.pcap import TCP, UDP
from wireloom.pipeline.captures.websocket import looks_like_request
from wireloom.protocols.contract import Settings
from wireloom.protocols.registry import protocol, protocols
from wireloom.protocols.settings import Written

if TYPE_CHECKING:
    from wireloom.pipeline.captures.streams import StreamPart

_SEEN = {"tcp": (TCP, PLAIN), "ws": (TCP, WEBSOCKET), "udp": (UDP, PLAIN)}
"""Transports whose bytes can be read in a capture, and how they are wrapped."""
MOST_CONNECTIONS = 1 << 16
"""So many connections are followed at a time, in each group of flows."""
IDLE_S = 600
"""A connection that is silent for so many seconds is over."""
ENOUGH = 512
"""A stream whose protocol is not recognised by so many bytes is none of ours."""
MOST_DATAGRAMS = 8
"""So many datagrams of a flow are looked at."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A protocol (None: not recognised yet) and what its bytes are wrapped in."""

    protocol: str | None
    wrapping: str = PLAIN


Given = tuple[tuple[str, str, str], ...]
"""Settings that were given for captures: protocol, name and value of each."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How protocols are told apart, and the settings with which each is read.

    >>> Choice.parse("hsp=7000").by_port(TCP, 7000)
    Chosen(protocol='hsp', wrapping='plain')
    >>> Choice.parse("http=80")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: option 'ports' names 'http'; known: emp, hsp, mesh, wolpertinger, yamp, yamp+ws
    """

    ports: Mapping[tuple[int, int], Chosen] = field(default_factory=dict)
    auto: bool = True
    given: Given = ()

    @classmethod
    def parse(cls, ports: str = "", auto: bool = True, given: Given = ()) -> Choice:
        """The default ports, and those in a text such as `hsp=7000,yamp+ws=8080`."""
        known = {
            scheme.name: (_SEEN[scheme.transport], own.name, scheme.port)
            for own in protocols().values()
            for scheme in own.schemes
            if scheme.transport in _SEEN
        }
        table = {(seen[0], port): Chosen(name, seen[1]) for seen, name, port in known.values()}
        for item in filter(None, (part.strip() for part in ports.split(","))):
            scheme, separator, number = item.partition("=")
            if scheme not in known:
                raise ConfigError(f"option 'ports' names {scheme!r}; known: {', '.join(sorted(known))}")
            if not separator or not number.isdecimal() or not 0 < int(number) < 1 << 16:
                raise ConfigError(f"option 'ports' has {item!r}; write a scheme and a port, such as hsp=7000")
            (transport, wrapping), name, _ = known[scheme]
            table[transport, int(number)] = Chosen(name, wrapping)
        return cls(table, auto, given)

    def settings(self, name: str) -> Settings:
        """The settings with which a protocol is read."""
        return _settings(name, self.given)

    def by_port(self, transport: int, *ports: int) -> Chosen | None:
        """What the first known one of some ports stands for."""
        return next((self.ports[transport, port] for port in ports if (transport, port) in self.ports), None)

    def client_side(self, transport: int, ports: tuple[int, int]) -> int:
        """Which of two ends is the client, where nobody saw the connection begin."""
        known = [(transport, port) in self.ports for port in ports]
        if known[0] != known[1]:
            return int(known[0])
        return int(ports[0] < ports[1])


_NEXT = re.compile(r",(?=\s*[\w+-]+\.\w+\s*=|\s*$)")
"""The comma between two settings; others are part of a value."""


def parse_given(text: str) -> Given:
    """Settings from a text such as `hsp.profile=true,emp.max_message=1000`; values are in the syntax of TOML.

    >>> parse_given("hsp.profile=true")
    (('hsp', 'profile', 'true'),)
    >>> parse_given("profile=true")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: option 'set' has 'profile=true'; write protocol, setting and value: hsp.profile=true
    """
    given = []
    for item in filter(None, (part.strip() for part in _NEXT.split(text))):
        place, equals, value = item.partition("=")
        name, dot, setting = place.partition(".")
        if not equals or not dot:
            raise ConfigError(f"option 'set' has {item!r}; write protocol, setting and value: hsp.profile=true")
        if name not in protocols():
            raise ConfigError(f"option 'set' names the protocol {name!r}; known: {', '.join(sorted(protocols()))}")
        given.append((name, setting.strip(), value.strip()))
    found = tuple(given)
    for name in {name for name, _, _ in found}:
        _settings(name, found)
    return found


@cache
def _settings(name: str, given: Given) -> Settings:
    known = protocol(name)
    values = {setting: Written(value) for own, setting, value in given if own == name}
    parsed = known.settings(values)
    return replace(known.observing(), **{setting: getattr(parsed, setting) for setting in values})


def recognise(head: bytes, direction: Direction, transport: str) -> str | None:
    """The protocol that a stream, or a datagram, begins with, among those that use a transport."""
    for name, own in protocols().items():
        if any(scheme.transport == transport for scheme in own.schemes) and own.recognise(head, direction):
            return name
    return None


def looks_encrypted(head: bytes) -> bool:
    """Whether a stream begins with a record of TLS.

    >>> looks_encrypted(bytes.fromhex("160301"))
    True
    """
    return len(head) >= 3 and 0x14 <= head[0] <= 0x17 and head[1] == 3 and head[2] <= 4


def decide(parts: list[StreamPart], *, auto: bool) -> None:
    """Settle what connections speak, and how each new stream is taken."""
    both: dict[int, list[StreamPart]] = {}
    for part in parts:
        if part.connection.protocol is None:
            both.setdefault(id(part.connection), []).append(part)
    for own in both.values():
        _recognise(own, auto)
    for part in parts:
        connection, half = part.connection, part.half
        if connection.protocol in (None, OTHER) or half.mode != WAIT:
            continue
        head = part.head(3)
        if auto and looks_encrypted(head):
            connection.protocol = OTHER
            continue
        if head or part.gaps or part.final:
            side = connection.halves.index(half)
            half.mode = SEEK if connection.sides[side, tcp.KNOWN] == tcp.MIDSTREAM else READ
            if half.mode == SEEK:
                part.raw_from = -1


def _recognise(parts: list[StreamPart], auto: bool) -> None:
    """Look at both beginnings as they grew, packet by packet, until one of them tells."""
    connection = parts[0].connection
    if not auto or connection.is_midstream:
        connection.protocol = OTHER
        return
    if connection.wrapping == WEBSOCKET:
        _unwrap_heads(parts)
    grown = []
    for part in parts:
        at = part.trace.at[part.trace.at < part.stop].tolist()
        times = part.trace.time_us[: len(at)].tolist()
        ends = [*at[1:], part.stop] if at else []
        grown += [(time, end - part.start, part) for time, end in zip(times, ends, strict=True)]
    for _, size, part in sorted(grown, key=lambda entry: entry[:2]):
        half = part.half
        if size <= half.tried or half.tried >= ENOUGH:
            continue
        half.tried = size
        head = part.head(min(size, ENOUGH))
        if connection.wrapping == PLAIN and looks_like_request(head):
            connection.choose(None, WEBSOCKET)
            for other in parts:
                other.half.tried = 0
                other.raw_from = other.start
            _recognise(parts, auto)
            return
        found = recognise(head, half.direction, "ws" if connection.wrapping == WEBSOCKET else "tcp")
        if found is not None:
            connection.choose(found, connection.wrapping)
            return
    closed = connection.numbers[tcp.CLOSED] or all(part.final for part in parts)
    if closed or any(part.half.tried >= ENOUGH or part.gaps for part in parts):
        connection.protocol = OTHER


def _unwrap_heads(parts: list[StreamPart]) -> None:
    for part in parts:
        part.unwrap()
        if part.is_faulty:
            part.connection.protocol = OTHER
