"""Packets brought together by flow: the two ends of a conversation, whichever of them sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import allocating, kernel
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.pcap import FRAGMENT

FlowKey = tuple[int, bytes, int, bytes, int]
"""Protocol, then address and port of both ends, the smaller end first."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Packets in the order of their flows: those of flow n are order[bounds[n]:bounds[n + 1]], in order of capture.

    `side` of a packet is 0 when the smaller end sent it. `left_out` counts packets of other groups and of no flow.
    """

    order: NDArray[np.int64]
    bounds: NDArray[np.int64]
    side: NDArray[np.uint8]
    keys: list[FlowKey]


def group_flows(segments: Segments, group: int = 0, groups: int = 1) -> Flows:
    """The flows among some packets that belong to one of `groups` groups, by a hash of their ends."""
    count = len(segments)
    flow, first = np.empty(count, np.int64), np.empty(count, np.int64)
    side = np.empty(count, np.uint8)
    size = 1 << max(int(2 * count).bit_length(), 4)
    slots = np.full(size, -1, np.int64)
    found = _assign(segments.protocol, segments.addresses, segments.ports, group, groups, slots, flow, side, first)
    bounds = np.zeros(found + 1, np.int64)
    order = np.empty(count, np.int64)
    kept = _sort(flow, bounds, order)
    return Flows(order[:kept], bounds, side, [_key(segments, int(row), int(side[row])) for row in first[:found]])


def _key(segments: Segments, row: int, side: int) -> FlowKey:
    ends = []
    for end in (side, 1 - side):
        high, low = segments.addresses[2 * end : 2 * end + 2, row].tolist()
        ends.append((high << 64 | low, int(segments.ports[end, row])))
    (one, port), (other, other_port) = ends
    return int(segments.protocol[row]), one.to_bytes(16, "big"), port, other.to_bytes(16, "big"), other_port


@kernel
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@kernel
def _assign(protocol, addresses, ports, group, groups, slots, flow, side, first):  # type: ignore[no-untyped-def]
    """Number the flows in order of appearance; -1 for packets that belong to none, or to another group."""
    found = 0
    mask = np.uint64(len(slots) - 1)
    for row in range(len(protocol)):
        flow[row] = -1
        side[row] = 0
        if protocol[row] <= FRAGMENT:
            continue
        a_high, a_low, a_port = addresses[0, row], addresses[1, row], ports[0, row]
        b_high, b_low, b_port = addresses[2, row], addresses[3, row], ports[1, row]
        if (a_high, a_low, a_port) > (b_high, b_low, b_port):
            a_high, b_high = b_high, a_high
            a_low, b_low = b_low, a_low
            a_port, b_port = b_port, a_port
            side[row] = 1
        value = _mix(a_high + np.uint64(0x9E3779B97F4A7C15))
        value = _mix(value ^ a_low)
        value = _mix(value ^ b_high)
        value = _mix(value ^ b_low)
        value = _mix(
            value ^ (np.uint64(a_port) << np.uint64(32) | np.uint64(b_port) << np.uint64(8) | np.uint64(protocol[row]))
        )
        if groups > 1 and (value >> np.uint64(32)) % np.uint64(groups) != np.uint64(group):
            continue
        slot = value & mask
        while True:
            number = slots[slot]
            if number < 0:
                slots[slot] = found
                first[found] = row
                flow[row] = found
                found += 1
                break
            known = first[number]
            one, other = (2, 0) if side[known] else (0, 2)
            if (
                protocol[known] == protocol[row]
                and addresses[one, known] == a_high
                and addresses[one + 1, known] == a_low
                and addresses[other, known] == b_high
                and addresses[other + 1, known] == b_low
                and ports[one // 2, known] == a_port
                and ports[other // 2, known] == b_port
            ):
                flow[row] = number
                break
            slot = slot + np.uint64(1) & mask
    return found


@allocating
def _sort(flow, bounds, order):  # type: ignore[no-untyped-def]
    """Fill `order` and `bounds`; how many packets there are in all flows."""
    for row in range(len(flow)):
        if flow[row] >= 0:
            bounds[flow[row] + 1] += 1
    for number in range(1, len(bounds)):
        bounds[number] += bounds[number - 1]
    following = bounds.copy()
    for row in range(len(flow)):
        number = flow[row]
        if number >= 0:
            order[following[number]] = row
            following[number] += 1
    return bounds[-1]
