"""What connections speak, once their bytes can tell: see `choosing.py` for how it is told."""

from __future__ import annotations

from wireloom.pipeline.captures import tcp
from wireloom.pipeline.captures.choosing import ENOUGH, PLAIN, WEBSOCKET, looks_encrypted, recognise
from wireloom.pipeline.captures.connections import OTHER, READ, SEEK, WAIT
from wireloom.pipeline.captures.streams import Part
from wireloom.pipeline.captures.websocket import looks_like_request


def decide(parts: list[Part], *, auto: bool) -> None:
    """Settle what connections speak, and how each new stream is taken."""
    both: dict[int, list[Part]] = {}
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


def _recognise(parts: list[Part], auto: bool) -> None:
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


def _unwrap_heads(parts: list[Part]) -> None:
    for part in parts:
        part.unwrap()
        if part.is_faulty:
            part.connection.protocol = OTHER
