"""What a WebSocket carries, taken out of one direction of its TCP stream: RFC 6455.

The upgrade and control frames go, binary messages are unmasked in place and stand one after the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel

UPGRADE = "websocket.upgrade"
FRAME = "websocket.frame"
"""Clauses of what breaks the transport's own rules."""
COMPRESSED = "websocket.compressed"
"""The clause of messages that permessage-deflate packed, which nobody has unpacked here."""
MOST_HEAD = 1 << 16
_REQUEST = b"GET "

# What is kept between two pieces of a stream.
_HEAD_OVER, _LEFT, _MASK, _PHASE, _OPCODE, _OPEN = range(6)
"""Whether the upgrade is over; payload bytes still to come of the frame, its mask (-1: none), how far into the
mask; the frame's kind; whether a message in several frames is under way."""

_FAULTS = (
    "",
    "reserved bits are set, and no extension uses them",
    "an unknown kind of frame",
    "a text message; this protocol uses binary ones",
    "a control frame that is too long or in parts",
    "a frame to the server without a mask",
    "a frame to the client with a mask",
    "a message begins inside another one, or goes on without having begun",
    "a frame of an impossible length",
    "a message packed by permessage-deflate, which is not unpacked here: capture with compression off",
)
_PACKED = len(_FAULTS) - 1


@dataclass(slots=True)
class Unwrapping:
    """One direction of one WebSocket."""

    to_server: bool
    raw: bytes = b""
    """The beginning of a head or of a frame's header, kept for the next piece."""
    numbers: list[int] = field(default_factory=lambda: [0, 0, -1, 0, 0, 0])

    def unwrap(self, data: NDArray[np.uint8], start: int, end: int) -> Unwrapped:
        """Take the stream's bytes data[start:end]; what they carry stands from `start` on afterwards."""
        at = start
        if not self.numbers[_HEAD_OVER]:
            found = _head_end(data, start, end)
            if found < 0:
                if end - start > MOST_HEAD:
                    return Unwrapped(start, start, _no_runs(), UPGRADE, "no upgrade to WebSocket here")
                return Unwrapped(end if not end - start else start, start, _no_runs())
            problem = self._check_head(data[start:found].tobytes())
            if problem:
                return Unwrapped(start, start, _no_runs(), UPGRADE, problem)
            self.numbers[_HEAD_OVER] = 1
            at = found
        state = np.array(self.numbers, np.int64)
        runs = np.empty(((end - at) // 2 + 2, 3), np.int64)
        position, out, made, fault = _unwrap(data, at, end, start, self.to_server, state, runs)
        self.numbers = state.tolist()
        clause = (COMPRESSED if fault == _PACKED else FRAME) if fault else None
        return Unwrapped(int(position), int(out), runs[:made], clause, _FAULTS[fault])

    def start_inside(self) -> None:
        """The upgrade was before the capture: a frame begins here."""
        self.numbers = [1, 0, -1, 0, 0, 0]

    def _check_head(self, head: bytes) -> str:
        """What is wrong with an upgrade; nothing: empty."""
        first, _, rest = head.partition(b"\r\n")
        if self.to_server:
            if not first.startswith(_REQUEST) or not re.search(rb"(?im)^upgrade:[ \t]*websocket[ \t]*\r?$", rest):
                return f"{first[:80].decode(errors='replace')!r} is no request to upgrade to WebSocket"
        elif not first.startswith(b"HTTP/1.1 101"):
            return f"{first[:80].decode(errors='replace')!r} does not agree to WebSocket"
        return ""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """How far the stream was understood, where what it carries ends now, and from where each run of it came.

    A row of `runs` is a place now, the place before, and a size.
    """

    position: int
    end: int
    runs: NDArray[np.int64]
    clause: str | None = None
    detail: str = ""


def looks_like_request(head: bytes) -> bool:
    """Whether a stream may begin with a request for an upgrade."""
    return head[: len(_REQUEST)] == _REQUEST[: len(head)] and len(head) >= len(_REQUEST)


def _no_runs() -> NDArray[np.int64]:
    return np.zeros((0, 3), np.int64)


def _head_end(data: NDArray[np.uint8], start: int, end: int) -> int:
    found = data[start : min(end, start + MOST_HEAD)].tobytes().find(b"\r\n\r\n")
    return -1 if found < 0 else start + found + 4


@kernel
def _unwrap(data, start, end, out, to_server, state, runs):  # type: ignore[no-untyped-def]
    """Unmask payloads to `out`: how far the stream was read, where the payloads end, how many runs, what is wrong."""
    at, made = np.int64(start), 0
    out = np.int64(out)
    while True:
        left = state[_LEFT]
        if left > 0:
            size = min(left, end - at)
            if size == 0:
                return at, out, made, 0
            if state[_OPCODE] < 8:
                runs[made, 0] = out
                runs[made, 1] = at
                runs[made, 2] = size
                made += 1
                _unmask(data, at, out, size, state[_MASK], state[_PHASE])
                out += size
            state[_PHASE] = (state[_PHASE] + size) & 3
            state[_LEFT] = left - size
            at += size
            continue
        if end - at < 2:
            return at, out, made, 0
        first, second = data[at], data[at + 1]
        opcode, final, masked = first & 15, first >> 7, second >> 7
        length, head = np.int64(second & 127), 2
        if length == 126:
            head = 4
        elif length == 127:
            head = 10
        head += 4 * masked
        if first & 0x70:
            return at, out, made, _PACKED if first & 0x70 == 0x40 and opcode in (1, 2) else 1
        if opcode > 10 or 2 < opcode < 8:
            return at, out, made, 2
        if opcode == 1:
            return at, out, made, 3
        if opcode >= 8 and (length > 125 or not final):
            return at, out, made, 4
        if to_server and not masked:
            return at, out, made, 5
        if masked and not to_server:
            return at, out, made, 6
        if (opcode == 0) != (state[_OPEN] == 1) and opcode < 8:
            return at, out, made, 7
        if end - at < head:
            return at, out, made, 0
        if length > 125:
            width = 2 if length == 126 else 8
            length = np.int64(0)
            for position in range(width):
                length = length << 8 | np.int64(data[at + 2 + position])
            if length < 0:
                return at, out, made, 8
        mask = np.int64(-1)
        if masked:
            mask = np.int64(0)
            for position in range(4):
                mask |= np.int64(data[at + head - 4 + position]) << (8 * position)
        state[_MASK], state[_PHASE], state[_LEFT], state[_OPCODE] = mask, 0, length, opcode
        if opcode < 8:
            state[_OPEN] = 0 if final else 1
        at += head


@kernel
def _unmask(data, source, target, size, mask, phase):  # type: ignore[no-untyped-def]
    """Move bytes down and take their mask off, four a step."""
    if mask < 0:
        mask = np.int64(0)
    first = np.uint8(mask >> (8 * (phase & 3)) & 255)
    second = np.uint8(mask >> (8 * (phase + 1 & 3)) & 255)
    third = np.uint8(mask >> (8 * (phase + 2 & 3)) & 255)
    fourth = np.uint8(mask >> (8 * (phase + 3 & 3)) & 255)
    position = np.int64(0)
    while position + 4 <= size:
        data[target + position] = data[source + position] ^ first
        data[target + position + 1] = data[source + position + 1] ^ second
        data[target + position + 2] = data[source + position + 2] ^ third
        data[target + position + 3] = data[source + position + 3] ^ fourth
        position += 4
    while position < size:
        data[target + position] = data[source + position] ^ np.uint8(mask >> (8 * (phase + position & 3)) & 255)
        position += 1
