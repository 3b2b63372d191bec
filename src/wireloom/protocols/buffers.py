"""What the compiled kernels of several protocols need: numbers and text in a buffer of bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel


@inlined
def u32(data: NDArray[np.uint8], at: int | np.int64) -> np.int64:
    """The big-endian number of four bytes at `at`."""
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@kernel
def is_utf8(data: NDArray[np.uint8], at: int | np.int64, end: int | np.int64) -> bool:
    """Whether bytes are UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing past U+10FFFF."""
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
