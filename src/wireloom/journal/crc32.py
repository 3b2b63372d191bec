"""The CRC-32 of zlib and pcapng, for kernels. Needs numpy and numba; elsewhere `zlib.crc32` gives the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel


def _tables() -> NDArray[np.uint32]:
    """Eight tables, so that the kernel takes eight bytes a step ("slicing by 8")."""
    tables = np.zeros((8, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, value] = crc
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = previous >> 8 ^ tables[0, previous & 0xFF]
    return tables


CRC_TABLES = _tables()


U = np.uint64
"""Kernels index by unsigned numbers where it matters: a signed one may count from the end, and to check that takes
three times as long as the sum, and thirty times as long as a copy."""


@kernel
def u32(data, at):  # type: ignore[no-untyped-def]
    """The little-endian number in four bytes."""
    at = U(at)
    return (
        np.uint32(data[at])
        | np.uint32(data[at + U(1)]) << np.uint32(8)
        | np.uint32(data[at + U(2)]) << np.uint32(16)
        | np.uint32(data[at + U(3)]) << np.uint32(24)
    )


@kernel
def crc32(data, start, end, tables, before):  # type: ignore[no-untyped-def]
    """The CRC-32 of data[start:end] behind bytes whose CRC-32 is `before`; 0 where there are none."""
    crc = np.uint32(before) ^ np.uint32(0xFFFFFFFF)
    at, stop = U(start), U(end)
    byte = np.uint32(0xFF)
    while stop - at >= U(8):
        low = crc ^ u32(data, at)
        crc = (
            tables[U(7), low & byte]
            ^ tables[U(6), low >> np.uint32(8) & byte]
            ^ tables[U(5), low >> np.uint32(16) & byte]
            ^ tables[U(4), low >> np.uint32(24)]
            ^ tables[U(3), data[at + U(4)]]
            ^ tables[U(2), data[at + U(5)]]
            ^ tables[U(1), data[at + U(6)]]
            ^ tables[U(0), data[at + U(7)]]
        )
        at += U(8)
    while at < stop:
        crc = tables[U(0), (crc ^ np.uint32(data[at])) & byte] ^ (crc >> np.uint32(8))
        at += U(1)
    return crc ^ np.uint32(0xFFFFFFFF)
