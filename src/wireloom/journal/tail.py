"""A reader that goes on: everything committed from some point on, a piece at a time, across rotation and restarts.

`Tail.read` never waits: at the end of what is committed it returns nothing, and later more. It holds one piece in
memory, keeps its segment open (so a removed one is read to its end), and finds its beginning by the names of the
segments and by hopping from block to block.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from wireloom.journal import blocks
from wireloom.journal.log import RECORD_TAGS
from wireloom.journal.reader import Decoding, Entry, Offset, Record, Unreadable
from wireloom.journal.recovery import mapped
from wireloom.journal.segment import bytes_after, committed_length, first_packet_id, segment_time, segments
from wireloom.model import ConfigError, JournalError, parse_iso_time
from wireloom.protocols.contract import Settings

PIECE = 256 * 1024
"""Bytes read at a time."""
_SMALLEST = 4096
"""Never read less: a segment's head must fit."""
_RECORDS_BEFORE = 16
"""That are looked at."""
_HEADER = struct.Struct("<II4xIIII")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Since = Offset | int
"""Where to begin: after an offset, or at a time in nanoseconds since 1970."""
Found = Entry | Unreadable | Record


def parse_since(text: str, now_ns: int | None = None) -> Since:
    """What a person writes: an offset, a time (RFC 3339), how long ago (`90s`, `15m`, `2h`, `7d`), or `start`.

    >>> parse_since("1042.7"), parse_since("1970-01-01T00:00:01Z"), parse_since("2m", now_ns=150 * 10**9)
    (Offset(packet_id=1042, number=7), 1000000000, 30000000000)
    """
    if text == "start":
        return 0
    if text.replace(".", "", 1).isdecimal():
        return Offset.parse(text)
    try:
        if text[-1:] in _UNITS and text[:-1].replace(".", "", 1).isdecimal():
            now = time.time_ns() if now_ns is None else now_ns
            return now - int(float(text[:-1]) * _UNITS[text[-1]] * 1e9)
        return parse_iso_time(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"since {text!r} is no point in a journal; "
            "write a time such as 2026-01-31T12:00:00Z, how long ago such as 15m, an offset such as 1042.7, or start"
        ) from None


class Tail:
    """Reads a journal from a point on.

    >>> import tempfile
    >>> from wireloom.journal import Journal
    >>> with tempfile.TemporaryDirectory() as folder, Journal.open(folder) as journal:
    ...     tail = Tail(folder)
    ...     [found.block.record for found in tail.read()], tail.read()
    (['started'], [])
    """

    def __init__(self, folder: Path | str, since: Since = 0, *, settings: Mapping[str, Settings] | None = None) -> None:
        self.folder = Path(folder)
        self.missed = 0
        """Segments that were removed before they were read."""
        self._after = since if isinstance(since, Offset) else None
        self._from_ns = since if isinstance(since, int) else 0
        self._decoding = Decoding(settings or {})
        self._path: Path | None = None
        self._file = -1
        self._position = 0
        self._next_packet_id = 0
        self._before: list[Record] = []
        """Records right before the run to begin in: they may say something about it."""

    @classmethod
    def at_end(cls, folder: Path | str, *, settings: Mapping[str, Settings] | None = None) -> Self:
        """A tail that gives only what is committed from now on."""
        tail = cls(folder, settings=settings)
        found = segments(folder)
        if found:
            tail._open(found[-1])
            tail._hop_to(tail._end())
        return tail

    @property
    def position(self) -> tuple[str, int]:
        """The segment being read, empty before the first, and the byte in it."""
        return ("" if self._path is None else self._path.name, self._position)

    def behind(self) -> int:
        """Committed bytes that were not read yet."""
        return bytes_after(self.folder, *self.position)

    def close(self) -> None:
        """Let go of the segment."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def read(self, limit: int = PIECE) -> list[Found]:
        """What comes next, at most about `limit` bytes of it; nothing when all that is committed was read."""
        while True:
            if self._path is None:
                try:
                    if not self._begin():
                        return []
                except FileNotFoundError:
                    # Removed after it was found: there are others.
                    continue
            found = self._read_on(limit)
            if found:
                return found
            if found is None:
                following = self._following()
                if following is None:
                    return []
                # The segment may have grown before it was left: only what is still at its end goes on.
                found = self._read_on(limit)
                if found:
                    return found
                if found is None:
                    try:
                        self._open(following)
                    except FileNotFoundError:
                        continue
                    if self._next_packet_id and first_packet_id(following) > self._next_packet_id:
                        self.missed += 1

    def _read_on(self, limit: int) -> list[Found] | None:
        """The next piece of the segment; None at its end."""
        end = self._end()
        if self._position >= end:
            return None
        found = [each for block in self._blocks(end, limit) for each in self._decoding.take(block)]
        return self._drop_before(found) if self._after is not None or self._from_ns else found

    def _begin(self) -> bool:
        """Find the segment and the block to begin with; False while there is no segment at all."""
        found = segments(self.folder)
        if not found:
            return False
        if self._after is not None:
            packet_id = self._after.packet_id
            path = next((each for each in reversed(found) if first_packet_id(each) <= packet_id), found[0])
            self._open(path)
            if first_packet_id(path) <= packet_id:
                self._hop_to(self._end(), packet_id=packet_id)
            elif first_packet_id(path) > 1:
                # Before the first id there was never anything.
                self.missed += 1
        else:
            path = self._segment_at(found, self._from_ns)
            self._open(path)
            if segment_time(path) <= self._from_ns:
                self._hop_to(self._end(), time_ns=self._from_ns)
        return True

    def _segment_at(self, found: list[Path], time_ns: int) -> Path:
        """The first segment that may hold blocks of that time or later."""
        for path, following in itertools.pairwise(found):
            # Where the clock was set back, nobody knows how late the blocks before are.
            if segment_time(following) > time_ns or segment_time(following) < segment_time(path):
                return path
        return found[-1]

    def _following(self) -> Path | None:
        """The segment after the current one, if there is one."""
        assert self._path is not None
        return next((each for each in segments(self.folder) if each.name > self._path.name), None)

    def _end(self) -> int:
        assert self._path is not None
        try:
            return committed_length(self._path)
        except JournalError:
            # Removed while it was being read: it was sealed then, and is still open here.
            if self._path.exists():
                raise
            return os.fstat(self._file).st_size

    def _open(self, path: Path) -> None:
        """Go to a segment; FileNotFoundError, and nothing has changed, if it was removed meanwhile."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None
        self.close()
        self._file = file
        self._path = path
        self._position = 0
        self._decoding.begin(path.name)

    def _hop_to(self, end: int, *, packet_id: int | None = None, time_ns: int | None = None) -> None:
        """Go to the first block with that packet id or time (or to the end), noting topic maps and keys on the way."""
        assert self._path is not None
        with mapped(self._file) as data:
            end = min(end, len(data))
            if end == 0:
                return
            position = self._check_head(data[:end])
            number = first_packet_id(self._path)
            passed = deque[tuple[int, int]](maxlen=_RECORDS_BEFORE)
            while end - position >= _HEADER.size:
                kind, size, high, low, captured, _ = _HEADER.unpack_from(data, position)
                if size < 12 or size > end - position:
                    break
                if kind == blocks.ENHANCED_PACKET:
                    if number == packet_id or (time_ns is not None and high << 32 | low >= time_ns):
                        break
                    if captured == len(RECORD_TAGS):
                        self._decoding.skip(blocks.parse_packet(data, position, size))
                    passed.append((position, size))
                    number += 1
                position += size
            self._decoding.learn(data, 0, position)
            self._position = position
            self._next_packet_id = number
            # A damaged one says nothing, and whoever begins here does not ask for it.
            with contextlib.suppress(blocks.BlockFault):
                while passed and (block := blocks.parse_packet(data, *passed.pop())).record is not None:
                    self._before.insert(0, Record(self._path.name, block))

    def _check_head(self, data: blocks.Buffer) -> int:
        try:
            return blocks.check_head(data)
        except blocks.BlockFault as fault:
            raise JournalError(
                f"{self._path}: no journal segment: {fault}; name a file or folder that `wireloom hub` wrote"
            ) from None

    def _blocks(self, end: int, limit: int) -> Iterator[blocks.Block]:
        """The blocks of the next piece; at least one."""
        base = self._position
        data = os.pread(self._file, min(end - base, max(limit, _SMALLEST)), base)
        whole = _whole_blocks(data)
        if whole == 0 and len(data) < end - base:
            # The first block is larger than the piece, or there is not even its head: read just that block.
            size = int.from_bytes(os.pread(self._file, 4, base + 4), "little")
            data = os.pread(self._file, min(max(size, 12), end - base), base)
        elif base + len(data) < end:
            data = data[:whole]
        start = self._check_head(data) if base == 0 else 0
        self._decoding.learn(data, start, len(data))
        try:
            for block in blocks.blocks(data, start, len(data)):
                self._next_packet_id = block.packet_id + 1
                yield replace(block, offset=base + block.offset, payload_offset=base + block.payload_offset)
                self._position = base + block.offset + block.size
        except blocks.BlockFault as fault:
            where = blocks.BlockFault(base + fault.offset, fault.reason)
            raise JournalError(
                f"{self._path}: {where}; `wireloom journal verify {self.folder}` lists every fault"
            ) from None
        self._position = base + len(data)

    def _drop_before(self, found: list[Found]) -> list[Found]:
        """Leave out what stands before the beginning; once something does not, nothing does any more."""
        for at, each in enumerate(found):
            if isinstance(each, Entry):
                place, time_ns = each.place, each.message.time or 0
            else:
                place, time_ns = Offset(each.block.packet_id, 0), each.block.time_ns
            if time_ns >= self._from_ns if self._after is None else place > self._after:
                before = self._before if self._after is not None and place.packet_id == self._after.packet_id else []
                self._after, self._from_ns, self._before = None, 0, []
                return [*before, *found[at:]]
        return []


def _whole_blocks(data: bytes) -> int:
    """How many bytes of complete blocks there are, going by their lengths alone."""
    at = 0
    while len(data) - at >= 12:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if size < 12 or size > len(data) - at:
            break
        at += size
    return at
