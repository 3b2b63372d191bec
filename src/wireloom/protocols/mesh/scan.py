"""The kernels that find packets in a buffer and parse those of the usual shape.

Part of `columns.py` and `publishes.py`. A packet of the usual shape (a name, at most one more data field, security
fields, nothing compressed, encrypted, split or unknown) is parsed here completely, and checked by every rule of
`frames.py`. All other packets, invalid ones included, are left to the reference decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.protocols.kernel_bytes import is_ascii, is_utf8, u32
from wireloom.protocols.mesh.frames import HEADER_SIZE, SIZES, EventType, PacketLimits, Type

PLAIN, NAME, NAME_SIZE, BODY, BODY_SIZE, BODY_TYPE = 0, 1, 2, 3, 4, 5
NODE, KEY_ID, PUBLIC, HMAC, SIGNATURE, STAMP = 6, 7, 8, 9, 10, 11
MESSAGE_ID, FLAGS, EVENT_TYPE, TIMESTAMP, SIGNED_AT, SORTED, COVERED = 12, 13, 14, 15, 16, 17, 18
LINES = 19
"""Lines of the table that `scan_packets` and `read_packets` fill, a column a packet.

PLAIN is 1 for packets of the usual shape; the rest is for those only. Places are in the buffer, -1 for none. BODY_TYPE
is the body's field type, -1 where there is no body; its size is 0 then. SORTED is 1 when the canonical payload is the
payload up to position COVERED. Timestamps above 2**62 are left to the reference decoder.
"""

_HEADER = HEADER_SIZE
_EVENT, _HELLO, _STRING, _BINARY = int(EventType.EVENT), int(EventType.HELLO), int(Type.STRING), int(Type.BINARY)
_LINE_OF, _SIZE_OF = np.full(256, -1, np.int64), np.full(256, -1, np.int64)
"""By type of field: its line, and the size it must have. Data fields, which are names or bodies, have the line 0."""
_LINE_OF[[Type.STRING, Type.BINARY, Type.JSON]] = 0
_LINE_OF[Type.NODE_ID], _LINE_OF[Type.AUTH_KEY_ID], _LINE_OF[Type.PUBLIC_KEY] = NODE, KEY_ID, PUBLIC
_LINE_OF[Type.HMAC], _LINE_OF[Type.SIGNATURE], _LINE_OF[Type.TIMESTAMP] = HMAC, SIGNATURE, STAMP
_SIZE_OF[list(SIZES)] = list(SIZES.values())
_SIGNED = 1 << HMAC | 1 << SIGNATURE


@inlined
def _u16(data: NDArray[np.uint8], at: np.int64) -> np.int64:
    here = np.uint64(at)
    return (np.int64(data[here]) << 8) | np.int64(data[here + np.uint64(1)])


@inlined
def _u64(data: NDArray[np.uint8], at: np.int64) -> np.int64:
    """The big-endian number of eight bytes; negative from 2**63 on."""
    high: np.int64 = u32(data, at)
    low: np.int64 = u32(data, at + 4)
    return (high << 32) | low


@inlined
def _take_apart(
    data: NDArray[np.uint8],
    start: np.int64,
    size: np.int64,
    max_payload: int,
    max_fields: int,
    table: NDArray[np.int64],
    row: np.uint64,
) -> bool:
    """Fill a column of the table from the packet at `start`; False if it is not of the usual shape."""
    for line in range(NAME, MESSAGE_ID):
        table[line, row] = -1
    table[BODY, row] = table[BODY_SIZE, row] = 0
    here, length = np.uint64(start), size - _HEADER
    if length < 0 or length > max_payload or _u16(data, start + 15) != length:
        return False
    event_type, timestamp = data[here + np.uint64(6)], _u64(data, start + 7)
    if data[here] != 1 or data[here + np.uint64(5)] & 0xFE or timestamp >> 62 or not 1 <= event_type <= 3:
        return False
    at, last, count, previous = start + _HEADER, start + size, 0, np.uint8(0)
    ordered, covered, seen, body_type = 1, start + size, 0, np.uint8(0)
    while at < last:
        kind, place = data[np.uint64(at)], at + 2
        if place > last:
            return False
        content = np.int64(data[np.uint64(at + 1)])
        end, line = place + content, _LINE_OF[kind]
        # Nothing stands behind a signature, and nothing but a signature behind an HMAC.
        if end > last or line < 0 or (seen & _SIGNED and (line != SIGNATURE or seen & 1 << SIGNATURE)):
            return False
        if line == 0:
            if content == 255 or (kind != _BINARY and not is_ascii(data, place, end) and not is_utf8(data, place, end)):
                return False
            if kind == _STRING and event_type == _EVENT and not seen & 1 << NAME:
                line = NAME
            else:
                line, body_type = BODY, kind
            table[line + 1, row] = content
        elif content != _SIZE_OF[kind]:
            return False
        if seen & 1 << line:
            return False
        seen |= 1 << line
        table[line, row] = place
        if line in (HMAC, SIGNATURE):
            covered = min(covered, at)
        else:
            if kind < previous:
                ordered = 0
            previous = kind
        at = end
        count += 1
    if count > max_fields or (seen & _SIGNED and not seen & 1 << NODE):
        return False
    if event_type == _EVENT:
        if not seen & 1 << NAME:
            return False
    elif not seen & 1 << NODE or (body_type != _BINARY if event_type == _HELLO else not seen & 1 << STAMP):
        return False
    signed_at = timestamp
    if seen & 1 << STAMP:
        signed_at = _u64(data, table[STAMP, row])
        if signed_at >> 62:
            return False
    if seen & 1 << BODY:
        table[BODY_TYPE, row] = body_type
    table[MESSAGE_ID, row] = u32(data, start + 1)
    table[FLAGS, row] = data[here + np.uint64(5)]
    table[EVENT_TYPE, row] = event_type
    table[TIMESTAMP, row], table[SIGNED_AT, row] = timestamp, signed_at
    table[SORTED, row], table[COVERED, row] = ordered, covered
    return True


@kernel
def _read(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    max_payload: int,
    max_fields: int,
    table: NDArray[np.int64],
) -> None:
    """Fill a column of the table for each packet."""
    for number in range(offset.shape[0]):
        row = np.uint64(number)
        table[PLAIN, row] = _take_apart(data, offset[row], size[row], max_payload, max_fields, table, row)


@kernel
def _scan(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    max_payload: int,
    max_fields: int,
    span: NDArray[np.int32],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Count the packets; fill as many rows as the arrays hold.

    Bytes that are not a sequence of complete packets count as one invalid packet.
    """
    total, room = 0, offset.shape[0]
    for index in range(start.shape[0]):
        at, last, first = start[index], end[index], total
        while at < last:
            length, left = np.int64(_HEADER), last - at
            if left >= _HEADER:
                length += _u16(data, at + 15)
            if length > left:
                at, length, total = start[index], last - start[index], first
            if total < room:
                row = np.uint64(total)
                span[row], offset[row], size[row] = index, at, length
                table[PLAIN, row] = _take_apart(data, at, length, max_payload, max_fields, table, row)
            at += length
            total += 1
    return total


@dataclass(frozen=True, slots=True)
class Scan:
    """Every packet of every span: which span it is in, its place and size, and the table of what it is made of."""

    span: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    table: NDArray[np.int64]

    def only(self, kept: NDArray[np.bool_]) -> Scan:
        """Some of the packets."""
        return Scan(self.span[kept], self.offset[kept], self.size[kept], self.table[:, kept])


_GUESS = 128
"""Bytes of a packet, as a first guess."""


def scan_packets(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], limits: PacketLimits
) -> Scan:
    """Find all packets and take the usual ones apart, in one pass if the guess of how many there are is enough."""
    room = int((end - start).sum()) // _GUESS + len(start) + 16
    while True:
        span, offset, size = np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room, np.int64)
        table = np.empty((LINES, room), np.int64)
        total = _scan(data, start, end, limits.max_payload, limits.max_fields, span, offset, size, table)
        if total <= room:
            return Scan(span[:total], offset[:total], size[:total], table[:, :total])
        room = total


def read_packets(
    data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64], limits: PacketLimits
) -> NDArray[np.int64]:
    """The table of what packets at known places are made of; see `LINES`."""
    table = np.empty((LINES, len(offset)), np.int64)
    _read(data, offset, size, limits.max_payload, limits.max_fields, table)
    return table


@cache
def warm() -> None:
    """Compile or load the kernels, so that the first packets do not wait for it."""
    data = np.zeros(HEADER_SIZE, np.uint8)
    found = scan_packets(data, np.zeros(1, np.int64), np.full(1, HEADER_SIZE, np.int64), PacketLimits())
    # Datagrams are bytes, which are read-only: for these it is compiled once more.
    for each in (data, np.frombuffer(bytes(HEADER_SIZE), np.uint8)):
        read_packets(each, found.offset, found.size, PacketLimits())
