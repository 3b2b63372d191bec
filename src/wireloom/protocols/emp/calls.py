"""A large read of an emp connection that holds plain requests, or plain responses, and nothing else.

They are found by a kernel, and written again by another under the ids that they have on the connection they go to: no
object is made for a message.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import NO_ATTRIBUTES, Authenticity, Direction, Kind, Message, message_of
from wireloom.protocols.buffers import same, u32
from wireloom.protocols.contract import Calls
from wireloom.protocols.emp.messages import DONE
from wireloom.protocols.emp.plain import LARGEST_SHAPE, RELATED_SIZE, shape_of, topic_of, write_request
from wireloom.protocols.owing import FEWEST

_SIZE = struct.Struct(">I")
_REQUEST, _RESPONSE, _NOBODY = Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE
_NUMBER = 20
"""Where in a message its number stands."""


@kernel
def _scan(
    data: NDArray[np.uint8], head_size: int, max_message: int, places: NDArray[np.int64], numbers: NDArray[np.int64]
) -> tuple[int, int | np.int64, int]:
    """Find messages that begin like the first, but for size and number.

    Returns how many, the largest's size, and how many numbers do not follow the one before. `places` gets where each
    begins, and where the last ends. -1 if there is anything else, or a number that no request can have.
    """
    count, at, size, largest, breaks = 0, np.int64(0), len(data), np.int64(0), 0
    while size - at >= 8:
        length = u32(data, at)
        if length < head_size or length > max_message:
            return -1, largest, breaks
        if length > size - at:
            break
        after = _NUMBER + 8
        if not same(data, at + 4, 4, _NUMBER - 4) or not same(data, at + after, after, head_size - after):
            return -1, largest, breaks
        number = (u32(data, at + _NUMBER) << 32) | u32(data, at + _NUMBER + 4)
        if number <= 0:
            return -1, largest, breaks
        if count > 0 and number != numbers[count - 1] + 1:
            breaks += 1
        places[count], numbers[count] = at, number
        largest = max(largest, length)
        at += length
        count += 1
        places[count] = at
    return count, largest, breaks


@kernel
def _renumber(data: NDArray[np.uint8], places: NDArray[np.int64], count: int, first: int) -> None:
    """Give messages other numbers, from the first on."""
    for row in range(count):
        number, at = first + row, places[row] + _NUMBER
        for index in range(8):
            data[at + index] = (number >> (56 - 8 * index)) & 0xFF


@cache
def warm() -> None:
    """Compile or load the kernels, once, before a connection waits for them."""
    shape = shape_of("a", None)
    assert shape is not None
    sample = b"".join(write_request(shape, number, b"b") for number in range(1, FEWEST + 1))
    found = EmpCalls.of(sample, 1024, Direction.C2S)
    assert found is not None
    found.numbered(1)


class EmpCalls(Calls):
    """Such a read, or a part of it."""

    def __init__(
        self,
        data: bytes,
        kind: tuple[bool, str, str | None],
        head_size: int,
        largest: int,
        direction: Direction,
        places: NDArray[np.int64],
        numbers: range | Sequence[int],
    ) -> None:
        self.asks, self.topic, self.content_type = self._kind = kind
        self.count = len(numbers)
        self.largest = largest
        """Bytes of the largest of them."""
        self._data = data
        self._head_size = head_size
        self._direction = direction
        self._places, self.numbers = places, numbers
        self.consumed = int(places[self.count])
        """Where the last of them ends."""

    @classmethod
    def of(cls, buffer: bytes, max_message: int, direction: Direction) -> EmpCalls | None:
        """The requests, or the responses, that a read holds; None if it holds anything else, or few of them."""
        if len(buffer) <= RELATED_SIZE + 8:
            return None
        head_size = RELATED_SIZE + _SIZE.unpack_from(buffer, RELATED_SIZE)[0]
        if head_size > LARGEST_SHAPE or (kind := topic_of(buffer[4:_NUMBER], buffer[RELATED_SIZE:head_size])) is None:
            return None
        most = len(buffer) // head_size
        places, numbers = np.empty(most + 1, np.int64), np.empty(most, np.int64)
        count, largest, breaks = _scan(np.frombuffer(buffer, np.uint8), head_size, max_message, places, numbers)
        if count < FEWEST:
            return None
        found: range | list[int]
        if breaks:
            found = numbers[:count].tolist()
            if len(set(found)) < count:
                return None
        else:
            first = int(numbers[0])
            found = range(first, first + count)
        return cls(buffer, kind, head_size, largest, direction, places, found)

    def messages(self) -> list[Message]:
        """All of them as messages."""
        kind, status = (_REQUEST, None) if self.asks else (_RESPONSE, DONE)
        found = []
        for (start, end), identifier in zip(self._spans(), map(str, self.numbers), strict=True):
            own, answered = (identifier, None) if self.asks else (None, identifier)
            found.append(message_of((
                kind, self.topic, self._data[start + self._head_size : end], own, answered, status,
                self.content_type, NO_ATTRIBUTES, "emp", None, None, self._direction, _NOBODY,
            )))  # fmt: skip
        return found

    def _spans(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise(self._places[: self.count + 1].tolist()))

    def part(self, which: slice) -> EmpCalls:
        """Some of them."""
        pieces = [self._data[start:end] for start, end in self._spans()[which]]
        places = np.array([0, *itertools.accumulate(map(len, pieces))], np.int64)
        return EmpCalls(
            b"".join(pieces), self._kind, self._head_size, self.largest, self._direction, places, self.numbers[which]
        )

    def numbered(self, first: int) -> bytes:
        """Their bytes under other numbers, from this one on."""
        data = np.frombuffer(self._data, np.uint8, self.consumed).copy()
        _renumber(data, self._places, self.count, first)
        return data.tobytes()
