"""Extracts the payload of a WebSocket (RFC 6455) from one direction of its TCP stream.

The upgrade and control frames are removed. Binary messages are unmasked in place and moved together. If an end offered
or accepted permessage-deflate (RFC 7692), messages are unpacked one by one.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel

UPGRADE = "websocket.upgrade"
FRAME = "websocket.frame"
"""Clauses of what breaks the transport's own rules."""
COMPRESSED = "websocket.compressed"
"""The clause of messages that permessage-deflate packed and that cannot be unpacked."""
MOST_HEAD = 1 << 16
LARGEST_MESSAGE = 1 << 26
"""The largest message that is unpacked, in bytes before and after unpacking. Larger ones are rejected."""
_REQUEST = b"GET "
_EXTENSION = re.compile(rb"(?im)^sec-websocket-extensions:.*\bpermessage-deflate\b")
_TAIL = b"\0\0\xff\xff"
"""What a sender takes off the end of each packed message."""
_WINDOW = 1 << 15

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
    "a message packed by permessage-deflate, to which nobody agreed in this capture",
    "a message packed by permessage-deflate that cannot be unpacked",
)
_LENGTH, _PACKED, _DAMAGED = range(8, 11)
_WHOLE = -1
"""In place of a fault: a control frame or a message is over."""


@dataclass(slots=True)
class Unwrapping:
    """One direction of one WebSocket."""

    to_server: bool
    raw: bytes = b""
    """The beginning of a head or of a frame's header, kept for the next piece."""
    numbers: list[int] = field(default_factory=lambda: [0, 0, -1, 0, 0, 0])
    window: bytes | None = None
    """What a packed message may refer to: the end of those before it. None: this end did not offer to pack.

    It is kept even if the ends agreed to begin anew with each message: then nothing refers to it.
    """

    @property
    def is_inside_message(self) -> bool:
        """Whether a message that is taken as a whole has begun."""
        return bool(self.raw and self.window is not None and self.numbers[_HEAD_OVER])

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
        if self.window is not None:
            return self._unpack(data, at, end, start)
        state = np.array(self.numbers, np.int64)
        runs = np.empty(((end - at) // 2 + 2, 3), np.int64)
        position, out, made, fault = _unwrap(data, at, end, start, self.to_server, state, runs, False)
        self.numbers = state.tolist()
        return Unwrapped(int(position), int(out), runs[:made], *_problem(fault))

    def _unpack(self, data: NDArray[np.uint8], start: int, end: int, out: int) -> Unwrapped:
        """The same, a whole message at a time; what they carry does not fit into their place."""
        rest = data[start:end].copy()
        state, runs = np.array(self.numbers, np.int64), np.empty((len(rest) // 2 + 2, 3), np.int64)
        at, size, contents, origins = 0, 0, [], []
        while True:
            position, stop, _, fault = _unwrap(rest, at, len(rest), at, self.to_server, state.copy(), runs, True)
            is_packed = fault == _PACKED
            if is_packed:
                rest[at] &= 0xBF
                position, stop, _, fault = _unwrap(rest, at, len(rest), at, self.to_server, state.copy(), runs, True)
            if not fault and len(rest) - at > LARGEST_MESSAGE:
                fault = _LENGTH
            if fault != _WHOLE:
                break
            content = rest[at:stop].tobytes()
            try:
                content = self._inflate(content) if is_packed else content
            except zlib.error:
                fault = _DAMAGED
                break
            if content:
                origins.append((size, start + at, start + int(position) - 1))
                contents.append(content)
                size += len(content)
            at = int(position)
        places = np.array(origins, np.int64).reshape(-1, 3)
        return Unwrapped(start + at, out, _no_runs(), *_problem(fault), b"".join(contents), places)

    def _inflate(self, packed: bytes) -> bytes:
        window = self.window or b""
        unpacker = zlib.decompressobj(-15, zdict=window)
        content = unpacker.decompress(packed + _TAIL, LARGEST_MESSAGE)
        if unpacker.unconsumed_tail:
            raise zlib.error("too large")
        self.window = (window + content)[-_WINDOW:]
        return content

    def start_inside(self) -> None:
        """The upgrade was before the capture: a frame begins here."""
        self.numbers = [1, 0, -1, 0, 0, 0]

    def _check_head(self, head: bytes) -> str:
        """What is wrong with an upgrade; nothing: empty."""
        first, _, rest = head.partition(b"\r\n")
        if _EXTENSION.search(rest):
            self.window = b""
        if self.to_server:
            if not first.startswith(_REQUEST) or not re.search(rb"(?im)^upgrade:[ \t]*websocket[ \t]*\r?$", rest):
                return f"{first[:80].decode(errors='replace')!r} is no request to upgrade to WebSocket"
        elif not first.startswith(b"HTTP/1.1 101"):
            return f"{first[:80].decode(errors='replace')!r} does not agree to WebSocket"
        return ""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """How far the stream was understood, where what it carries ends now, and from where each run of it came.

    A row of `runs` is a place now, the place before, and a size. `unpacked` is to stand from `end` on; a row of
    `origins` is a place in it, and where the first and the last byte stood of the message that it came from.
    """

    position: int
    end: int
    runs: NDArray[np.int64]
    clause: str | None = None
    detail: str = ""
    unpacked: bytes = b""
    origins: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))


def _problem(fault: int) -> tuple[str | None, str]:
    """Clause and words for a fault."""
    if fault in (0, _WHOLE):
        return None, ""
    return COMPRESSED if fault in (_PACKED, _DAMAGED) else FRAME, _FAULTS[fault]


def looks_like_request(head: bytes) -> bool:
    """Whether a stream may begin with a request for an upgrade."""
    return head[: len(_REQUEST)] == _REQUEST[: len(head)] and len(head) >= len(_REQUEST)


def _no_runs() -> NDArray[np.int64]:
    return np.zeros((0, 3), np.int64)


def _head_end(data: NDArray[np.uint8], start: int, end: int) -> int:
    found = data[start : min(end, start + MOST_HEAD)].tobytes().find(b"\r\n\r\n")
    return -1 if found < 0 else start + found + 4


@kernel
def _unwrap(data, start, end, out, to_server, state, runs, single):  # type: ignore[no-untyped-def]
    """Unmask payloads to `out`: how far the stream was read, where the payloads end, how many runs, what is wrong.

    `single`: no more than one message, or a control frame between two.
    """
    at, made = np.int64(start), 0
    out = np.int64(out)
    while True:
        left = state[_LEFT]
        if single and left == 0 and at > start and state[_OPEN] == 0:
            return at, out, made, _WHOLE
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
                return at, out, made, _LENGTH
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
