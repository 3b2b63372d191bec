"""Audit of recorded messages: what a receiver would have found wrong with each when it arrived.

The contract of protocols whose datagrams can be forged, replayed or out of date, for journals and captures. There is no
clock here: the capture time of a packet is the receiver's `now`. The replay window of the receiver is a `Window`,
which is saved as bytes between two batches. Needs numpy and numba, as `columns.py` does.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Authenticity

AUTHENTICITIES = tuple(Authenticity)
AUTHENTICITY_CODES: Mapping[Authenticity, int] = {value: code for code, value in enumerate(AUTHENTICITIES)}

NAME_SIZE = 20
Names = NDArray[np.bytes_]
"""Arrays with `NAME_SIZE` bytes for each item."""


class Finding(NamedTuple):
    """A violation in well-formed bytes: the packet's row, a clause of the protocol, and what exactly was wrong."""

    row: int
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class Packets:
    """Packets in one buffer, a row each, and what their receiver knew of them.

    They are whole and decode without a violation. `source` is an index into `sources`, the senders' addresses.
    """

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    time_us: NDArray[np.int64]
    """When each packet arrived, in microseconds since 1970."""
    source: NDArray[np.int32]
    sources: Sequence[str]

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known about packets, a row each; `authenticity` is an index into `AUTHENTICITIES`.

    Packets without a finding are `remembered` under their `name` until `until_us`: until then a second one is a replay.
    """

    authenticity: NDArray[np.uint8]
    findings: list[Finding]
    """At most one a packet, in the order of rows."""
    remembered: NDArray[np.bool_]
    name: Names
    until_us: NDArray[np.int64]


class Window:
    """The names that were seen, each until it expires.

    >>> window = Window()
    >>> names, until = np.array([b"a" * 20, b"b" * 20, b"a" * 20]), np.array([300, 301, 302])
    >>> window.repeats(names, np.array([0, 1, 2]), until).tolist()
    [False, False, True]
    >>> later = Window(window.save())
    >>> later.repeats(names[:2], np.array([299, 301]), np.array([599, 601])).tolist()
    [True, False]
    """

    def __init__(self, state: bytes = b"") -> None:
        count, rest = divmod(len(state), NAME_SIZE + 8)
        if rest:
            raise ValueError(
                f"the state of a replay window has {NAME_SIZE + 8} bytes an entry, not {len(state)} in all"
            )
        self._name: Names = np.frombuffer(state[: count * NAME_SIZE], f"S{NAME_SIZE}")
        self._until = np.frombuffer(state[count * NAME_SIZE :], "<i8").astype(np.int64)

    def __len__(self) -> int:
        return len(self._name)

    def save(self) -> bytes:
        """The state as bytes."""
        return self._name.tobytes() + self._until.astype("<i8").tobytes()

    def repeats(self, name: Names, time_us: NDArray[np.int64], until_us: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these were seen before and have not expired; processed in order of time, then of rows.

        A repeat does not extend an entry. A name that comes after its expiry is a new entry.
        """
        known = len(self._name)
        names = np.concatenate((self._name, name.astype(f"S{NAME_SIZE}")))
        times = np.concatenate((np.full(known, np.iinfo(np.int64).min), time_us))
        until = np.concatenate((self._until, until_us))
        order = np.lexsort((times, names))
        ordered = names[order]
        first = np.ones(len(names), np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        again, kept = np.zeros(len(names), np.bool_), np.zeros(len(names), np.bool_)
        _repeats(order, first, times, until, again, kept)
        self._name, self._until = names[kept], until[kept]
        return again[known:]

    def forget(self, now_us: int) -> None:
        """Drop the entries that have expired at that time."""
        kept = self._until > now_us
        self._name, self._until = self._name[kept], self._until[kept]


@kernel
def _repeats(
    order: NDArray[np.int64],
    first: NDArray[np.bool_],
    times: NDArray[np.int64],
    until: NDArray[np.int64],
    again: NDArray[np.bool_],
    kept: NDArray[np.bool_],
) -> None:
    """Mark repeats. Rows are grouped by name, in order of time; `kept` marks the last new entry of each name."""
    holder = 0
    for index in range(order.shape[0]):
        row = order[index]
        if not first[index]:
            if times[row] < until[holder]:
                again[row] = True
                continue
            kept[holder] = False
        holder = row
        kept[row] = True


class Auditor(abc.ABC):
    """Examines packets in the order of their times, batch by batch.

    `look` alone keeps no state, so many can look at once; `Window.repeats` then finds replays among the names.
    """

    severities: ClassVar[Mapping[str, str]]
    """Every rule there is, and how bad a breach of it is: `info`, `warning` or `critical`."""
    replay_rule: ClassVar[str]

    def __init__(self, state: bytes = b"") -> None:
        self.window = Window(state)

    @abc.abstractmethod
    def look(self, packets: Packets) -> Examined:
        """Examine each packet separately."""

    def examine(self, packets: Packets) -> Examined:
        """Examine each packet, together with all packets before it."""
        found = self.look(packets)
        rows = np.flatnonzero(found.remembered)
        again = self.window.repeats(found.name[rows], packets.time_us[rows], found.until_us[rows])
        repeated = rows[again]
        if not len(repeated):
            return found
        found.remembered[repeated] = False
        found.findings.extend(Finding(row, self.replay_rule, "it was seen before") for row in repeated.tolist())
        found.findings.sort()
        return found

    def forget(self, now_us: int) -> None:
        """Drop entries that have expired at that time."""
        self.window.forget(now_us)

    def state(self) -> bytes:
        """The state for the next auditor."""
        return self.window.save()
