"""64 bits for a name, the same in every process and version: BLAKE2b (RFC 7693) with a digest of 8 bytes.

Buckets, and the keys of what waits for an answer, are made of them and carried from batch to batch. So a kernel
computes what `hashlib` would, for a hundred thousand names at a time: 0.3 µs a name instead of 1.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.kernels import given, inlined, kernel

_INITIAL = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.uint8,
)
_QUARTERS = np.array(
    [
        [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
        [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
    ],
    np.uint8,
)  # fmt: skip
_DIGEST_SIZE, _BLOCK, _ROUNDS = 8, 128, 12


def name_hash(name: str) -> int:
    """The hash of one name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=_DIGEST_SIZE).digest(), "little")


def name_hashes(names: pa.Array) -> NDArray[np.uint64]:
    """The hashes of many names; a null counts as no letters.

    >>> name_hashes(pa.array(["a", None])).tolist() == [name_hash("a"), name_hash("")]
    True
    """
    names = names.cast(pa.string()).fill_null("")
    _, offsets, data = names.buffers()
    found = np.empty(len(names), np.uint64)
    if not len(names):
        return found
    starts = np.frombuffer(offsets, np.int32)[names.offset : names.offset + len(names) + 1]
    letters = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    _hash(given(letters), given(starts), np.empty(16, np.uint64), np.empty(16, np.uint64), found)
    for row in np.flatnonzero(np.diff(starts) > _BLOCK).tolist():
        found[row] = name_hash(names[row].as_py())
    return found


@inlined
def _turned(value, by):  # type: ignore[no-untyped-def]
    return value >> np.uint64(by) | value << np.uint64(64 - by)


@kernel
def _hash(letters, starts, words, state, found):  # type: ignore[no-untyped-def]
    """The hash of each name of one block; longer ones are left out."""
    for row in range(found.shape[0]):
        start, size = starts[row], starts[row + 1] - starts[row]
        if size > _BLOCK:
            continue
        for word in range(16):
            value = np.uint64(0)
            for byte in range(min(max(size - 8 * word, 0), 8)):
                value |= np.uint64(letters[start + 8 * word + byte]) << np.uint64(8 * byte)
            words[word] = value
        for word in range(8):
            state[word] = _INITIAL[word]
            state[word + 8] = _INITIAL[word]
        state[0] ^= np.uint64(0x01010000 | _DIGEST_SIZE)
        begin = state[0]
        state[12] ^= np.uint64(size)
        state[14] = ~state[14]
        for turn in range(_ROUNDS):
            for quarter in range(8):
                a, b, c, d = _QUARTERS[quarter]
                one, two = words[_SIGMA[turn % 10, 2 * quarter]], words[_SIGMA[turn % 10, 2 * quarter + 1]]
                va, vb, vc, vd = state[a], state[b], state[c], state[d]
                va = va + vb + one
                vd = _turned(vd ^ va, 32)
                vc = vc + vd
                vb = _turned(vb ^ vc, 24)
                va = va + vb + two
                vd = _turned(vd ^ va, 16)
                vc = vc + vd
                vb = _turned(vb ^ vc, 63)
                state[a], state[b], state[c], state[d] = va, vb, vc, vd
        found[row] = begin ^ state[0] ^ state[8]


def warm() -> None:
    """Compile or load the kernel."""
    name_hashes(pa.array(["a"]))
