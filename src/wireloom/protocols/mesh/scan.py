"""The kernels that find packets in a buffer and take apart the usual ones.

Part of `columns.py` and `bulk.py`. A packet of the usual shape (a name, at most one more data field, security fields,
nothing compressed, encrypted, split or unknown) is understood here entirely, and checked by every rule of `frames.py`.
Whatever is not of that shape, bad packets included, is left to the readable code.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.protocols.buffers import is_utf8
from wireloom.protocols.mesh.frames import HEADER_SIZE, Limits

PLAIN, NAME, NAME_SIZE, BODY, BODY_SIZE, BODY_TYPE = 0, 1, 2, 3, 4, 5
NODE, KEY_ID, PUBLIC, HMAC, SIGNATURE, STAMP = 6, 7, 8, 9, 10, 11
MESSAGE_ID, FLAGS, EVENT_TYPE, TIMESTAMP, SIGNED_AT, SORTED, COVERED = 12, 13, 14, 15, 16, 17, 18
WIDTH = 19
"""Columns of the table that `take_apart` fills.

PLAIN is 1 for packets of the usual shape; the rest is for those only. Places are in the buffer, -1 for none. BODY_TYPE
is the body's field type. SORTED is 1 when the canonical payload is the payload up to place COVERED, as it stands.
Timestamps above 2**62 are left to the readable code.
"""

_HEADER = HEADER_SIZE


@kernel
def count_packets(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], runs: NDArray[np.int64]
) -> int:
    """How many packets there are; `runs` gets the number in each span."""
    total = 0
    for index in range(start.shape[0]):
        at, last, found = start[index], end[index], 0
        while at < last:
            if last - at < _HEADER:
                found = -1
                break
            size = _HEADER + ((np.int64(data[at + 15]) << 8) | np.int64(data[at + 16]))
            if size > last - at:
                found = -1
                break
            at += size
            found += 1
        if found < 0:
            found = 1
        runs[index] = found
        total += found
    return total


@kernel
def place_packets(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    runs: NDArray[np.int64],
    span: NDArray[np.int32],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
) -> None:
    """Where each packet is."""
    row = 0
    for index in range(start.shape[0]):
        at = start[index]
        for number in range(runs[index]):
            length = end[index] - at
            if number < runs[index] - 1:
                length = _HEADER + ((np.int64(data[at + 15]) << 8) | np.int64(data[at + 16]))
            span[row] = index
            offset[row] = at
            size[row] = length
            at += length
            row += 1


@inlined
def _big_endian(data: NDArray[np.uint8], at: np.int64, size: int) -> np.uint64:
    value = np.uint64(0)
    for index in range(size):
        value = (value << np.uint64(8)) | np.uint64(data[at + index])
    return value


@kernel
def take_apart(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    max_payload: int,
    max_fields: int,
    table: NDArray[np.int64],
) -> None:
    """Fill a row of the table for each packet."""
    for row in range(offset.shape[0]):
        _take_apart_one(data, offset[row], size[row], max_payload, max_fields, table[row])


@kernel
def _take_apart_one(
    data: NDArray[np.uint8],
    start: np.int64,
    size: np.int64,
    max_payload: int,
    max_fields: int,
    row: NDArray[np.int64],
) -> None:
    row[PLAIN] = 0
    for column in range(1, MESSAGE_ID):
        row[column] = -1
    if size < _HEADER or data[start] != 1 or data[start + 5] & 0xFE:
        return
    length = size - _HEADER
    if length > max_payload or _big_endian(data, start + 15, 2) != np.uint64(length):
        return
    timestamp = _big_endian(data, start + 7, 8)
    if timestamp >> np.uint64(62):
        return
    event_type = data[start + 6]
    if event_type < 1 or event_type > 3:
        return
    at, last, count, previous = start + _HEADER, start + size, 0, 0
    ordered, covered = 1, start + size
    while at < last:
        if last - at < 2:
            return
        kind, content = data[at], np.int64(data[at + 1])
        place = at + 2
        if content > last - place or row[SIGNATURE] >= 0:
            return
        count += 1
        if kind in (1, 4, 5):
            if content == 255 or row[HMAC] >= 0:
                return
            if kind != 4 and not is_utf8(data, place, place + content):
                return
            if kind == 1 and event_type == 3 and row[NAME] < 0:
                row[NAME] = place
                row[NAME_SIZE] = content
            elif row[BODY] < 0:
                row[BODY] = place
                row[BODY_SIZE] = content
                row[BODY_TYPE] = kind
            else:
                return
        else:
            column, wanted = -1, 0
            if kind == 0x14:
                column, wanted = NODE, 16
            elif kind == 0x18:
                column, wanted = KEY_ID, 4
            elif kind == 0x10:
                column, wanted = HMAC, 32
            elif kind == 0x12:
                column, wanted = SIGNATURE, 64
            elif kind == 0x13:
                column, wanted = PUBLIC, 32
            elif kind == 0x15:
                column, wanted = STAMP, 8
            if column < 0 or content != wanted or row[column] >= 0:
                return
            if row[HMAC] >= 0 and kind != 0x12:
                return
            row[column] = place
        if kind in (0x10, 0x12):
            covered = min(covered, at)
        else:
            if kind < previous:
                ordered = 0
            previous = kind
        at = place + content
    if count > max_fields or ((row[HMAC] >= 0 or row[SIGNATURE] >= 0) and row[NODE] < 0):
        return
    if event_type == 1 and (row[NODE] < 0 or row[BODY_TYPE] != 4):
        return
    if event_type == 2 and (row[NODE] < 0 or row[STAMP] < 0):
        return
    if event_type == 3 and row[NAME] < 0:
        return
    signed_at = timestamp
    if row[STAMP] >= 0:
        signed_at = _big_endian(data, row[STAMP], 8)
        if signed_at >> np.uint64(62):
            return
    row[MESSAGE_ID] = np.int64(_big_endian(data, start + 1, 4))
    row[FLAGS] = data[start + 5]
    row[EVENT_TYPE] = event_type
    row[TIMESTAMP] = np.int64(timestamp)
    row[SIGNED_AT] = np.int64(signed_at)
    row[SORTED] = ordered
    row[COVERED] = covered
    row[PLAIN] = 1


def find_packets(
    data: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Span, place and size of every packet of every span."""
    runs = np.empty(len(start), np.int64)
    total = count_packets(data, start, end, runs)
    span, offset, size = np.empty(total, np.int32), np.empty(total, np.int64), np.empty(total, np.int64)
    place_packets(data, start, end, runs, span, offset, size)
    return span, offset, size


def read_packets(
    data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64], limits: Limits
) -> NDArray[np.int64]:
    """The table of what the usual packets are made of; see `WIDTH`."""
    table = np.empty((len(offset), WIDTH), np.int64)
    take_apart(data, offset, size, limits.max_payload, limits.max_fields, table)
    return table


@cache
def warm() -> None:
    """Compile or load the kernels, so that the first packets do not wait for it."""
    data = np.zeros(HEADER_SIZE, np.uint8)
    _, offset, size = find_packets(data, np.zeros(1, np.int64), np.full(1, HEADER_SIZE, np.int64))
    read_packets(data, offset, size, Limits())
