"""The headers of many packets as columns: who sends to whom, and where in the packet the payload is.

The reference decoder is `parse_headers` in `tests/captures/plain.py`; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.pipeline.captures.packets import CapturedPackets
from wireloom.pipeline.captures.pcap import (
    COOKED,
    COOKED_2,
    ETHERNET,
    FRAGMENT,
    LOOP,
    NULL,
    TCP,
    UDP,
    UPPER_PDU,
)

FIN, SYN, RST, ACK = 1, 2, 4, 16
OTHER = 0
"""The protocol of a packet that is neither TCP nor UDP nor anything that could become one."""


@dataclass(slots=True)
class Segments:
    """One row for each packet. `start` is an index into `data`; an address is two halves of 16 bytes.

    `original_offset` is where the packet's payload is in the capture.
    """

    data: NDArray[np.uint8]
    protocol: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    addresses: NDArray[np.uint64]
    ports: NDArray[np.int32]
    start: NDArray[np.int64]
    kept: NDArray[np.int64]
    size: NDArray[np.int64]
    seq: NDArray[np.int64]
    ack: NDArray[np.int64]
    time_us: NDArray[np.int64]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.protocol)


def parse_headers(packets: CapturedPackets, base: int, file: int) -> Segments:
    """The headers of all packets. `base` is the offset in the capture of the data's first byte."""
    count = len(packets)
    rows = np.zeros((5, count), np.int64)
    small = np.zeros((2, count), np.uint8)
    addresses = np.zeros((4, count), np.uint64)
    ports = np.zeros((2, count), np.int32)
    _parse(packets.data, packets.offset, packets.captured, packets.link, small, addresses, ports, rows)
    start, kept, size, seq, ack = rows
    return Segments(
        packets.data, small[0], small[1], addresses, ports, start, kept, size, seq, ack,
        packets.time_ns // 1000, np.full(count, file, np.int32), start + base,
    )  # fmt: skip


@kernel
def _u16(data, at):  # type: ignore[no-untyped-def]
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])


@kernel
def _u32(data, at):  # type: ignore[no-untyped-def]
    return _u16(data, at) << 16 | _u16(data, at + 2)


@kernel
def _u64(data, at):  # type: ignore[no-untyped-def]
    return np.uint64(_u32(data, at)) << np.uint64(32) | np.uint64(_u32(data, at + 4))


@kernel
def _network_start(data, at, end, link):  # type: ignore[no-untyped-def]
    """Where the IP header begins; -1: there is none."""
    if link in (12, 14, 101, 228, 229):
        return at
    if link in (NULL, LOOP):
        if end - at < 4:
            return np.int64(-1)
        family = _u32(data, at)
        if data[at + 2] == 0 and data[at + 3] == 0:
            family = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        return at + 4 if family in (2, 10, 24, 28, 30) else np.int64(-1)
    if link == ETHERNET:
        place, start = at + 12, at + 14
    elif link == COOKED:
        place, start = at + 14, at + 16
    elif link == COOKED_2:
        place, start = at, at + 20
    else:
        return np.int64(-1)
    if end - place < 2:
        return np.int64(-1)
    kind = _u16(data, place)
    while kind in (0x8100, 0x88A8, 0x9100) and end >= start + 4:
        kind = _u16(data, start + 2)
        start += 4
    return start if kind in (0x0800, 0x86DD) else np.int64(-1)


@kernel
def _parse(data, offsets, captured, links, small, addresses, ports, rows):  # type: ignore[no-untyped-def]
    mapped = np.uint64(0xFFFF00000000)
    for row in range(len(offsets)):
        at = offsets[row]
        end = at + captured[row]
        if links[row] == UPPER_PDU:
            _parse_upper_pdu(data, at, end, row, small, addresses, ports, rows)
            continue
        at = _network_start(data, at, end, links[row])
        if at < 0 or at >= end:
            continue
        version = data[at] >> 4
        if version == 4:
            if end - at < 20:
                continue
            head, total = np.int64(data[at] & 15) * 4, _u16(data, at + 2)
            stop = at + total if total else end
            if head < 20 or stop < at + head or end < at + head:
                continue
            addresses[1, row] = mapped | np.uint64(_u32(data, at + 12))
            addresses[3, row] = mapped | np.uint64(_u32(data, at + 16))
            following = np.int64(data[at + 9])
            if _u16(data, at + 6) & 0x3FFF:
                following = np.int64(-1)
            at += head
        elif version == 6:
            if end - at < 40:
                continue
            size, following = _u16(data, at + 4), np.int64(data[at + 6])
            for half in range(4):
                addresses[half, row] = _u64(data, at + 8 + 8 * half)
            stop = at + 40 + size if size else end
            at += 40
            for _ in range(16):
                if following == 44:
                    if end - at < 8:
                        following = np.int64(-2)
                    elif _u16(data, at + 2) & 0xFFF9:
                        following = np.int64(-1)
                    else:
                        following, at = np.int64(data[at]), at + 8
                elif following in (0, 43, 60, 135, 139, 140, 51):
                    if end - at < 2:
                        following = np.int64(-2)
                    else:
                        length = np.int64(data[at + 1])
                        length = 4 * (length + 2) if following == 51 else 8 * (length + 1)
                        following, at = np.int64(data[at]), at + length
                if following < 0:
                    break
        else:
            continue
        if following == -1:
            small[0, row] = FRAGMENT
            rows[0, row] = at
            rows[1, row] = max(min(stop, end) - at, 0)
            rows[2, row] = max(stop - at, 0)
            continue
        if following not in (TCP, UDP):
            continue
        least = 20 if following == TCP else 8
        if stop - at < least or end - at < least:
            continue
        if following == TCP:
            head = np.int64(data[at + 12] >> 4) * 4
        else:
            head, length = np.int64(8), _u16(data, at + 4)
            if length:
                stop = min(stop, at + length)
        if head < least or stop < at + head or end < at + head:
            continue
        small[0, row] = following
        ports[0, row] = _u16(data, at)
        ports[1, row] = _u16(data, at + 2)
        if following == TCP:
            rows[3, row] = _u32(data, at + 4)
            rows[4, row] = _u32(data, at + 8)
            small[1, row] = data[at + 13]
        rows[0, row] = at + head
        rows[1, row] = min(stop, end) - (at + head)
        rows[2, row] = stop - (at + head)


@kernel
def _parse_upper_pdu(data, at, end, row, small, addresses, ports, rows):  # type: ignore[no-untyped-def]
    while end - at >= 4:
        tag, length = _u16(data, at), _u16(data, at + 2)
        at += 4
        if tag == 0:
            if rows[4, row]:
                small[0, row] = UPPER_PDU
                rows[0, row] = at
                rows[1, row] = end - at
                rows[2, row] = end - at
            return
        if length > end - at:
            return
        if tag == 12:
            rows[3, row] = at
            rows[4, row] = length
            while rows[4, row] > 0 and data[at + rows[4, row] - 1] == 0:
                rows[4, row] -= 1
        elif tag in (20, 21) and length == 4:
            addresses[2 * (tag - 20), row] = np.uint64(0)
            addresses[2 * (tag - 20) + 1, row] = np.uint64(0xFFFF00000000) | np.uint64(_u32(data, at))
        elif tag in (22, 23) and length == 16:
            addresses[2 * (tag - 22), row] = _u64(data, at)
            addresses[2 * (tag - 22) + 1, row] = _u64(data, at + 8)
        elif tag in (25, 26) and length == 4:
            ports[tag - 25, row] = _u16(data, at + 2)
        at += length
