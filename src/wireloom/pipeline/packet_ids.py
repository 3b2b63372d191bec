"""Kernels that find packet ids in the bytes of a segment. They skip from block to block by length, and check no more.

Planning uses them to find the offset of a packet id, see `extents.py`. The module needs numba, so it is imported where
it is used.
"""

from __future__ import annotations

import numpy as np

from wireloom.kernels import inlined, kernel

ENDED, FOUND, BROKEN = 0, 1, 2
"""Why a kernel stopped: at the end of the bytes, at the block it searched for, or where no valid block begins."""
NO_ID = -1


@inlined
def _word(data, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[at])
        | np.int64(data[at + 1]) << 8
        | np.int64(data[at + 2]) << 16
        | np.int64(data[at + 3]) << 24
    )  # fmt: skip


@inlined
def _size_at(data, at):  # type: ignore[no-untyped-def]
    """The size of the whole block at a place; 0 if its end is not there, -1 if none begins here."""
    if len(data) - at < 12:
        return np.int64(0)
    size = _word(data, at + 4)
    if size < 12 or size & 3:
        return np.int64(-1)
    if size > len(data) - at:
        return np.int64(0)
    return size if _word(data, at + size - 4) == size else np.int64(-1)


@inlined
def _id_at(data, offset, size):  # type: ignore[no-untyped-def]
    """The packet id of a block; -1 if it has none."""
    if _word(data, offset) != 6 or size < 32:
        return np.int64(-1)
    captured = _word(data, offset + 20)
    at, stop = offset + 28 + captured + (-captured & 3), offset + size - 4
    while stop - at >= 4:
        code = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        length = np.int64(data[at + 2]) | np.int64(data[at + 3]) << 8
        at += 4
        if code == 0 or length > stop - at:
            break
        if code == 5 and length == 8:
            return _word(data, at) | _word(data, at + 4) << 32
        at += length + (-length & 3)
    return np.int64(-1)


@kernel
def seek(data, wanted):  # type: ignore[no-untyped-def]
    """The end of the last block with an id below `wanted` (or -1), where the next block begins, and why it ended."""
    at, after = np.int64(0), np.int64(-1)
    while at < len(data):
        size = _size_at(data, at)
        if size <= 0:
            return after, at, 0 if size == 0 else 2
        found = _id_at(data, at, size)
        if found >= wanted:
            return after, at, 1
        at += size
        if found >= 0:
            after = at
    return after, at, 0


@kernel
def cut(data, highest, after, best):  # type: ignore[no-untyped-def]
    """The last id above `after` of a block that does not begin behind `highest`, else the first one behind that. `best`
    is what was found before these bytes.
    """
    at = np.int64(0)
    while at < len(data):
        size = _size_at(data, at)
        if size <= 0:
            return best, at, 0 if size == 0 else 2
        found = _id_at(data, at, size)
        if found > after:
            if at > highest:
                return (found if best < 0 else best), at, 1
            best = found
        at += size
    return best, at, 0


@kernel
def id_from(data, lowest):  # type: ignore[no-untyped-def]
    """The first id of a block that does not begin before `lowest`; -1 if there is none."""
    at = np.int64(0)
    while at < len(data):
        size = _size_at(data, at)
        if size <= 0:
            break
        found = _id_at(data, at, size)
        if found >= 0 and at >= lowest:
            return found
        at += size
    return np.int64(-1)


@kernel
def hop(data, at):  # type: ignore[no-untyped-def]
    """Where hopping over blocks ends."""
    while at < len(data):
        size = _size_at(data, at)
        if size <= 0:
            return at
        at += size
    return at


@kernel
def walk_back(data, lowest):  # type: ignore[no-untyped-def]
    """The first of the blocks that stand without a gap before the end."""
    at = np.int64(len(data))
    while at - lowest >= 12:
        size = _word(data, at - 4)
        if size < 12 or size & 3 or size > at - lowest or _word(data, at - size + 4) != size:
            break
        at -= size
    return at


def warm() -> None:
    """Compile or load the kernels."""
    data = np.zeros(16, np.uint8)
    data.flags.writeable = False
    seek(data, 0)
    cut(data, 0, 0, -1)
    id_from(data, 0)
    hop(data, 0)
    walk_back(data, 0)
