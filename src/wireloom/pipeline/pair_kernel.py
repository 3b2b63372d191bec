"""The pairing kernel: matches requests with their answers. `exchanges` and most `findings` come from it.

Theory of operation
===================

**The problem.** Hundreds of thousands of messages per second must be paired: a request with its answer, a ping with its
pong, a message with its acknowledgement. The two may stand in different ranges of the input, which different tasks
decode. Some never get an answer, some answers have no request, and an id may be used again.

**The idea.** A row that takes part in a pairing (see `wireloom.protocols.pairing.Pairing`) is called a turn. It has a
64-bit key: a hash of the connection, the direction that asks, the pairing and the id. And it has an act:

- `OPEN` opens an exchange under its key.
- `STEP` is progress of the open exchange.
- `CLOSE` and `STOP` end it: by an answer, or by a cancellation.
- `MARK` stands for an exchange that another task has completed under this key. It has no rows left to pair; it only
  shows that the id was used again.

The kernel reads the turns in order of time. A hash table with open addressing maps each key to the exchange that is
open under it. That is one pass, constant work per turn, and no Python object.

In a *counted* pairing several exchanges may be open under one key, as pings without an id. `below` links each one to
the one opened before it, so they form a stack. In all other pairings an opening supersedes the one before it.

The kernel runs twice. Each decoding task runs it on its own rows, where nearly every request meets its answer
(`steps/exchanges_partial.py`: the partial aggregate). Turns that found no partner are then joined across tasks and
batches (`steps/exchanges_join.py`: the final join).

**The invariant.** A turn is `unclaimed` only if an exchange opened before the first row could explain it. Only such
turns, and openings without an end, go to the final join. Everything else is final in the task that decoded it.

**Example.** One task sees, all under key 7: `CLOSE` at row 0, `OPEN` at row 1, `STEP` at row 2, `CLOSE` at row 3,
`CLOSE` at row 4. Row 0 is unclaimed: no opening was seen yet, so an earlier range may hold it. Rows 1 and 3 are mates,
with one step. Row 4 is an answer without a request, and certainly so: row 1 was seen, and was closed. It becomes a
finding, and is not carried any further.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import given, kernel

OPEN, CLOSE, STEP, STOP, MARK, NONE = range(6)
"""The act of a turn; see above. `NONE`: the row takes no part in the pairing."""

FORGET_US = 600_000_000
"""An exchange without an answer or progress for this long is over. A later answer does not belong to it."""

_EMPTY = np.int64(-1)


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of `settle`: arrays with one element per turn. -1 means "no turn".

    - `mate`: for an opening, the turn that closed it; for any other turn, the opening that it belongs to.
    - `superseded`: for an opening or a mark, the exchange under the same key that was still open.
    - `first`: for an opening or a mark, whether it is the first one under its key.
    - `unclaimed`: for any other turn, whether only an opening before the first row could explain it.
    - `steps`, `last`: for an opening, how many steps it had, and the time of the last one (its own time without any).
    """

    mate: NDArray[np.int64]
    superseded: NDArray[np.int64]
    first: NDArray[np.bool_]
    unclaimed: NDArray[np.bool_]
    steps: NDArray[np.int32]
    last: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clock:
    """The watermark, the latest time of any message so far, and by how much a later message may be older than it."""

    watermark_us: int
    lateness_us: int = 0


_UNUSED, _NO_OPENING, _NOTHING_OPEN = -2, -3, -1
"""Values of a slot in the hash table other than the row of an open turn: the slot is free; its key was seen, without
an opening; its key was opened, and nothing is open now."""


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
            # If the pairing is not counted, an opening seen here has superseded all earlier ones. Then an exchange
            # from before the first row cannot explain this turn.
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
    """Pair turns, which must be in order of time.

    `steps` and `last` are the values that carried openings have from earlier batches.
    """
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
    """Hash the bytes of a text column into the keys: row rows[i] of the column into keys[places[i]]."""
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
    """Hash texts, such as ids, into the keys, in place."""
    _mix_in(keys, given(offsets), given(data), given(rows), given(places))


def seeds(hashes: NDArray[np.uint64], directions: int, pairing: int) -> NDArray[np.uint64]:
    """The initial keys of a pairing: one per connection name (given by its hash) and direction, in that order."""
    lanes = np.arange(1, directions + 1, dtype=np.uint64) + np.uint64(directions * pairing)
    return ((hashes[:, None] ^ (lanes * _PRIME)) * np.uint64(0xD6E8FEB86659FD93)).ravel()


def warm() -> None:
    """Compile or load the kernels."""
    key = np.zeros(1, np.uint64)
    settle(key, np.zeros(1, np.uint8), np.zeros(1, np.bool_), np.zeros(1, np.int64))
    text = np.frombuffer(b"a", np.uint8)
    mix_in(key, np.array([0, 1], np.int32), text, np.zeros(1, np.int64), np.zeros(1, np.int64))
