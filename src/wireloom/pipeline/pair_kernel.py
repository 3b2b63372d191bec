"""What is open and what closes it: the kernel behind `exchanges` and most `findings`.

Works on turns: messages that open something under a key, come in between, or close it (see
`wireloom.protocols.pairing.Pairing`). The same kernel runs twice: in the worker that has just decoded a
range, where nearly every request meets its answer, and in the step that joins what ranges leave over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import given, kernel

OPEN, CLOSE, STEP, STOP, MARK, NONE = range(6)
"""What a turn does. A mark stands for something that was opened and closed elsewhere, under the same key."""

FORGET_US = 600_000_000
"""After so long without an answer or progress nobody waits any more: what comes later answers nothing."""

_EMPTY = np.int64(-1)


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of each turn; a row a turn, -1 for no turn.

    `mate`: of an opening what closed it, of everything else the opening it belongs to. `superseded`: of an opening or a
    mark, the opening under the same key that was still open. `first`: nothing was opened under this key before.
    `steps` and `last`: of an opening, how many steps it had and when the last one was (its own time if none).
    `unclaimed`: closes and steps that no opening *seen here* explains, but one before all of this might.
    """

    mate: NDArray[np.int64]
    superseded: NDArray[np.int64]
    first: NDArray[np.bool_]
    unclaimed: NDArray[np.bool_]
    steps: NDArray[np.int32]
    last: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clock:
    """The latest time of any message so far, and how much later than that an earlier message may still come."""

    watermark_us: int
    lateness_us: int = 0


_UNUSED, _NO_OPENING, _NOTHING_OPEN = -2, -3, -1
"""What a slot of the kernel's table says where it is not the number of the turn that is open."""


@kernel
def _settle(  # type: ignore[no-untyped-def]
    key, act, counted, time, forget, slot_key, slot_row, below,
    mate, superseded, first, unclaimed, steps, last,
):  # fmt: skip
    mask = np.uint64(slot_key.shape[0] - 1)
    for row in range(key.shape[0]):
        slot = (key[row] ^ (key[row] >> np.uint64(32))) & mask
        while slot_row[slot] != _UNUSED and slot_key[slot] != key[row]:
            slot = (slot + np.uint64(1)) & mask
        if slot_row[slot] == _UNUSED:
            slot_key[slot] = key[row]
            slot_row[slot] = _NO_OPENING
        pending = slot_row[slot]
        doing = act[row]
        if doing in (OPEN, MARK):
            first[row] = pending == _NO_OPENING
            if counted[row]:
                below[row] = max(pending, np.int64(-1))
            elif pending >= 0 and time[row] - last[pending] <= forget:
                superseded[row] = pending
            if doing == OPEN:
                slot_row[slot] = row
            elif not counted[row]:
                slot_row[slot] = _NOTHING_OPEN
        elif pending < 0 or time[row] - last[pending] > forget:
            # Where only one can be open, an opening seen here ends all doubt about earlier ones.
            unclaimed[row] = counted[row] or pending == _NO_OPENING
        else:
            mate[row] = pending
            if doing == STEP:
                steps[pending] += 1
                last[pending] = max(last[pending], time[row])
            else:
                mate[pending] = row
                slot_row[slot] = below[pending] if counted[row] else np.int64(_NOTHING_OPEN)


def settle(
    key: NDArray[np.uint64],
    act: NDArray[np.uint8],
    counted: NDArray[np.bool_],
    time_us: NDArray[np.int64],
    *,
    steps: NDArray[np.int32] | None = None,
    last: NDArray[np.int64] | None = None,
    forget_us: int = FORGET_US,
) -> Settled:
    """Match turns that stand in order; `steps` and `last` are what openings have had already."""
    count = len(key)
    room = 1 << max(4, (2 * count).bit_length())
    settled = Settled(
        np.full(count, _EMPTY),
        np.full(count, _EMPTY),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        np.zeros(count, np.int32) if steps is None else steps.astype(np.int32),
        time_us.copy() if last is None else last.astype(np.int64),
    )
    _settle(
        given(key), given(act), given(counted), given(time_us), forget_us,
        np.empty(room, np.uint64), np.full(room, np.int64(_UNUSED)),
        np.full(count, _EMPTY), settled.mate, settled.superseded, settled.first, settled.unclaimed, settled.steps,
        settled.last,
    )  # fmt: skip
    return settled


_PRIME = np.uint64(0x9E3779B97F4A7C15)


@kernel
def _mix_in(keys, offsets, data, rows, places):  # type: ignore[no-untyped-def]
    """Mix the bytes of a text column into the keys: row rows[i] of the column into keys[places[i]]."""
    for index in range(rows.shape[0]):
        start, end = np.uint64(offsets[rows[index]]), np.uint64(offsets[rows[index] + 1])
        value = keys[places[index]] ^ (end - start)
        word, filled = np.uint64(0), np.uint64(0)
        for at in range(start, end):
            word = (word << np.uint64(8)) | np.uint64(data[np.uint64(at)])
            filled += np.uint64(1)
            if filled == np.uint64(8):
                value = (value ^ word) * np.uint64(0x9E3779B97F4A7C15)
                value ^= value >> np.uint64(29)
                word, filled = np.uint64(0), np.uint64(0)
        value = (value ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(32)
        value *= np.uint64(0x94D049BB133111EB)
        keys[places[index]] = value ^ (value >> np.uint64(29))


def mix_in(
    keys: NDArray[np.uint64],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Make texts part of keys, in place."""
    _mix_in(keys, given(offsets), given(data), given(rows), given(places))


def seeds(hashes: NDArray[np.uint64], directions: int, pairing: int) -> NDArray[np.uint64]:
    """The beginning of a key for the hash of each name and each direction, in that order."""
    lanes = np.arange(1, directions + 1, dtype=np.uint64) + np.uint64(directions * pairing)
    return ((hashes[:, None] ^ (lanes * _PRIME)) * np.uint64(0xD6E8FEB86659FD93)).ravel()


def warm() -> None:
    """Compile or load the kernels."""
    key = np.zeros(1, np.uint64)
    settle(key, np.zeros(1, np.uint8), np.zeros(1, np.bool_), np.zeros(1, np.int64))
    text = np.frombuffer(b"a", np.uint8)
    mix_in(key, np.array([0, 1], np.int32), text, np.zeros(1, np.int64), np.zeros(1, np.int64))
