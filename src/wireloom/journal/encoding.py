"""The blocks of many connections, encoded by one call of a kernel.

A turn of the event loop brings a run of frames from each of many connections. Making one block in Python costs more
than a microsecond; here it is a tenth of one. The bytes are those of `blocks.encode_packet`, which is the
one to read: a property test holds both together.

`LineTable` has what all blocks of a line have in common, as rows of arrays. A line's place there is its slot.
Needs numpy and numba, so it is imported when a journal is opened for writing, not before.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wireloom.journal import blocks
from wireloom.journal.context import Context, Principal
from wireloom.journal.crc32 import CRC_TABLES, U, crc32
from wireloom.journal.lines import END, SEQUENCE, SLOT, START, TICKET, Line
from wireloom.journal.log import LARGE
from wireloom.kernels import kernel
from wireloom.model import Direction

Runs = NDArray[np.int64]
"""A column a run; `lines` has the rows."""

_AT_ONCE = 1024 * 1024
"""Bytes that one call encodes at most."""
_FIRST_SLOTS, _FIRST_WIDTH = 64, 192

_TAGS, _COMMENT, _WORD, _CRC, _FLAGS, _STATED = range(6)
"""The numbers of a slot: lengths of its tags, of its comment's beginning and of the word that names its context (the
three stand one behind the other in its texts), the CRC-32 of the tags, its flags, and the number of the segment in
which everything is stated that its blocks need."""
_NUMBERS = struct.Struct("=6q")
_NOWHERE = -1
"""No segment has this number."""


class LineTable:
    """The lines of the connections that are open, and the kernel's arrays about them."""

    def __init__(self) -> None:
        self._lines: list[Line | None] = []
        """By slot; None for one that is free."""
        self._free: list[int] = []
        self._numbers = np.empty((0, 6), np.int64)
        self._texts = np.empty(0, np.uint8)
        self._width = 0
        """Bytes of a slot's texts."""
        self._out = np.empty(_AT_ONCE, np.uint8)
        self._grow(_FIRST_SLOTS, _FIRST_WIDTH)

    def __len__(self) -> int:
        return len(self._lines) - len(self._free)

    def add(self, line: Line) -> None:
        """Give a line a slot."""
        if not self._free:
            self._grow(2 * len(self._lines), self._width)
        line.slot = self._free.pop()
        self._lines[line.slot] = line
        self._write(line)

    def remove(self, line: Line) -> None:
        """Take its slot from a line."""
        slot, line.slot = line.slot, -1
        self._lines[slot] = None
        self._numbers[slot, _STATED] = _NOWHERE
        self._free.append(slot)

    def describe(self, line: Line, context: Context | None, principal: Principal | None) -> None:
        """What the next runs of a line need to be understood."""
        line.context, line.principal = context, principal
        self._write(line)

    def _write(self, line: Line) -> None:
        word = b"" if line.context is None else line.context.word
        text = b"".join((line.tags, line.comment, word))
        if len(text) > self._width:
            self._grow(len(self._lines), 2 * len(text))
        row = line.slot * self._width
        self._text_bytes[row : row + len(text)] = text
        _NUMBERS.pack_into(
            self._number_bytes, line.slot * _NUMBERS.size,
            len(line.tags), len(line.comment), len(word), line.tags_crc, line.flags, _NOWHERE,
        )  # fmt: skip

    def _grow(self, slots: int, width: int) -> None:
        before = len(self._lines)
        numbers, texts = np.full((slots, 6), _NOWHERE, np.int64), np.zeros((slots, width), np.uint8)
        numbers[:before] = self._numbers
        texts[:before, : self._width] = self._texts.reshape(before, self._width)
        self._numbers, self._texts, self._width = numbers, texts.reshape(-1), width
        self._number_bytes, self._text_bytes = numbers.data.cast("B"), self._texts.data
        self._lines += [None] * (slots - before)
        self._free += range(slots - 1, before - 1, -1)

    def line(self, slot: int) -> Line:
        """The line that has this slot."""
        line = self._lines[slot] if slot >= 0 else None
        if line is None:
            raise ValueError(f"slot {slot} belongs to no line")
        return line

    def is_stated(self, slot: int, segment: int) -> bool:
        """Whether the segment with this number has everything that blocks of a line need."""
        return bool(self._numbers.item(slot, _STATED) == segment)

    def set_stated(self, line: Line, segment: int) -> None:
        """The segment with this number has it now."""
        self._numbers[line.slot, _STATED] = segment

    def unstated(self, slots: NDArray[np.int64], segment: int) -> list[Line]:
        """The lines among these for which that is not so, each once, in order."""
        missing = slots[self._numbers[slots, _STATED] != segment]
        return [self.line(slot) for slot in dict.fromkeys(missing.tolist())]

    @staticmethod
    def runs(starts: ArrayLike, ends: ArrayLike, slots: ArrayLike, sequences: ArrayLike) -> Runs:
        """Some runs in the one form that the kernel is compiled for."""
        first = np.asarray(starts)
        runs: Runs = np.empty((5, len(first)), np.int64)
        runs[START], runs[END], runs[SLOT], runs[SEQUENCE] = first, ends, slots, sequences
        return runs

    def encode(
        self,
        data: blocks.Buffer,
        runs: Runs,
        first: int,
        *,
        packet_id: int,
        ticket: int,
        time_ns: int,
        segment: int,
        room: int,
    ) -> tuple[int, memoryview]:
        """Encode runs from the first on, and write their tickets; returns how many that were, and the blocks.

        Packet ids and tickets ascend from the given ones. It ends before a run that is large, or whose line is not
        stated in the segment, and once the blocks have `room` bytes or more. The blocks are valid until the next call.
        """
        count, size, fault = _encode(
            _read_only(data), runs, first, self._numbers, self._texts, self._width, CRC_TABLES, self._out,
            packet_id, ticket, time_ns, segment, room, LARGE,
        )  # fmt: skip
        if fault:
            raise ValueError(f"run {first + count} is not in the data, has no line, or a sequence that is too large")
        return count, self._out.data[:size]


@cache
def warm() -> None:
    """Compile or load the kernel, so that the first turn does not wait for it."""
    table, line = LineTable(), Line(1, ("any", Direction.C2S, None, None), inbound=True)
    table.add(line)
    table.set_stated(line, 1)
    table.encode(b"x", table.runs([0], [1], [0], [0]), 0, packet_id=1, ticket=1, time_ns=0, segment=1, room=1)


def _read_only(data: blocks.Buffer) -> NDArray[np.uint8]:
    """The bytes as an array that is not writable: one type of array, so one compilation of the kernel."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


@kernel
def _put(out, at, value):  # type: ignore[no-untyped-def]
    """A little-endian number of four bytes."""
    at = U(at)
    out[at] = value & 0xFF
    out[at + U(1)] = value >> 8 & 0xFF
    out[at + U(2)] = value >> 16 & 0xFF
    out[at + U(3)] = value >> 24 & 0xFF


@kernel
def _copy(out, at, data, start, size):  # type: ignore[no-untyped-def]
    """Copies so many bytes; returns where they end."""
    to, source = U(at), U(start)
    for each in range(U(size)):
        out[to + each] = data[source + each]
    return at + size


@kernel
def _zeros(out, at, size):  # type: ignore[no-untyped-def]
    to = U(at)
    for each in range(U(size)):
        out[to + each] = 0
    return at + size


@kernel
def _encode(  # type: ignore[no-untyped-def]
    data, runs, first, numbers, texts, width, tables, out, packet_id, ticket, time_ns, segment, room, large
):  # fmt: skip
    """How many runs were taken, how many bytes their blocks have, and whether the next run makes no sense."""
    at, row = 0, first
    room = min(room, len(out) - large - width - 128)
    while row < runs.shape[1] and at < room:
        start, end, slot, sequence = runs[START, row], runs[END, row], runs[SLOT, row], runs[SEQUENCE, row]
        if not (0 <= start <= end <= len(data) and 0 <= slot < len(numbers) and 0 <= sequence < 10**18):
            return row - first, at, True
        payload = end - start
        if payload >= large or numbers[slot, _STATED] != segment:
            break
        tags, text, word = numbers[slot, _TAGS], numbers[slot, _COMMENT], numbers[slot, _WORD]
        digits, rest = 1, U(sequence)
        while rest >= U(10):
            digits += 1
            rest //= U(10)
        captured, comment = tags + payload, text + digits + word
        total = 72 + captured + (-captured & 3) + comment + (-comment & 3)
        _put(out, at, 6)
        _put(out, at + 4, total)
        _put(out, at + 8, 0)
        _put(out, at + 12, time_ns >> 32)
        _put(out, at + 16, time_ns)
        _put(out, at + 20, captured)
        _put(out, at + 24, captured)
        texts_at = slot * width
        to = _copy(out, at + 28, texts, texts_at, tags)
        to = _copy(out, to, data, start, payload)
        to = _zeros(out, to, -captured & 3)
        crc = np.int64(crc32(data, start, end, tables, numbers[slot, _CRC]))
        # Codes and lengths of the options: flags, hash (of type 2, a CRC-32), packet id, comment.
        _put(out, to, 2 | 4 << 16)
        _put(out, to + 4, numbers[slot, _FLAGS])
        _put(out, to + 8, 3 | 5 << 16)
        _put(out, to + 12, 2 | crc << 8)
        _put(out, to + 16, crc >> 24)
        _put(out, to + 20, 5 | 8 << 16)
        _put(out, to + 24, packet_id)
        _put(out, to + 28, packet_id >> 32)
        _put(out, to + 32, 1 | comment << 16)
        to = _copy(out, to + 36, texts, texts_at + tags, text) + digits
        rest = U(sequence)
        for each in range(1, digits + 1):
            out[U(to - each)] = U(48) + rest % U(10)
            rest //= U(10)
        to = _copy(out, to, texts, texts_at + tags + text, word)
        _zeros(out, to, (-comment & 3) + 4)
        _put(out, at + total - 4, total)
        runs[TICKET, row] = ticket
        packet_id += 1
        ticket += 1
        at += total
        row += 1
    return row - first, at, False
