"""Follows a journal: reads everything committed after a position, across rotation and restarts.

`Tail.read` never waits. At the end of the committed bytes it returns nothing; a later call returns what is new. A tail
holds one piece in memory. It keeps its segment open, so it can read a segment to its end after retention removed it. It
finds its first block by the names of the segments, and then by skipping from block to block.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from wireloom.journal import blocks
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.identity import NO_EPOCHS, JournalIdentity
from wireloom.journal.keys import keys_in
from wireloom.journal.log import RECORD_TAGS
from wireloom.journal.reader import Decoding, Entry, Offset, Record, Unreadable, blocks_in, check_segment
from wireloom.journal.segment import (
    OpenSegment,
    bytes_after,
    committed_length,
    first_packet_id,
    following,
    last_id_before,
    segment_time,
    segments,
)
from wireloom.model import ConfigError, JournalError, parse_iso_time
from wireloom.protocols.contract import Settings

PIECE = 256 * 1024
"""Bytes read at a time."""
_RECORDS_BEFORE = 16
"""Limit of records before the first run that are kept."""
_WITH_EPOCH = re.compile(r"([0-9a-f]{16}):([0-9]+\.[0-9]+)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Since = Offset | int
"""Where to begin: after an offset, or at a time in nanoseconds since 1970."""
Found = Entry | Unreadable | Record


def parse_since(text: str, now_ns: int | None = None, identity: JournalIdentity | None = None) -> Since:
    """What a person writes: an offset, a time (RFC 3339), how long ago (`90s`, `15m`, `2h`, `7d`), or `start`.

    An offset may have its epoch before it (`<epoch>:1042.7`). Then `identity`, that of the journal, tells whether it is
    one of this journal; ConfigError if not.

    >>> parse_since("1042.7"), parse_since("1970-01-01T00:00:01Z"), parse_since("2m", now_ns=150 * 10**9)
    (Offset(packet_id=1042, number=7), 1000000000, 30000000000)
    """
    if text == "start":
        return 0
    if text.replace(".", "", 1).isdecimal():
        return Offset.parse(text)
    if match := _WITH_EPOCH.fullmatch(text):
        offset = Offset.parse(match[2])
        end = NO_EPOCHS.end_of(match[1]) if identity is None else identity.end_of(match[1])
        if end is not None and offset.packet_id > end:
            raise ConfigError(
                f"since {text} is of a time that this journal does not hold: it was made from a copy that ended with "
                f"packet id {end}; name a time instead"
            )
        return offset
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

    def __init__(
        self,
        folder: Path | str,
        since: Since = 0,
        *,
        settings: Mapping[str, Settings] | None = None,
        disk: Disk = LOCAL,
    ) -> None:
        self.folder = Path(folder)
        self._disk = disk
        self.missed = 0
        """Segments that were removed before they were read."""
        self._after = since if isinstance(since, Offset) else None
        self._from_ns = since if isinstance(since, int) else 0
        self._decoding = Decoding(settings or {})
        self._segment: OpenSegment | None = None
        self._position = 0
        self._next_packet_id = 0
        self._before: list[Record] = []
        """The records right before the first run: they may concern it."""

    @classmethod
    def at_end(cls, folder: Path | str, *, settings: Mapping[str, Settings] | None = None, disk: Disk = LOCAL) -> Self:
        """A tail that gives only what is committed from now on."""
        tail = cls(folder, settings=settings, disk=disk)
        found = segments(folder, disk)
        if found:
            tail._open(found[-1])
            tail._hop_to(tail._end())
        return tail

    @property
    def position(self) -> tuple[str, int]:
        """The segment being read, empty before the first, and the byte in it."""
        return ("" if self._segment is None else self._segment.path.name, self._position)

    @property
    def is_remote(self) -> bool:
        """Whether the next piece comes from an archive, or may."""
        return self._disk.is_remote(self.folder if self._segment is None else self._segment.path)

    def behind(self) -> int:
        """Committed bytes that were not read yet."""
        return bytes_after(self.folder, *self.position, self._disk)

    def close(self) -> None:
        """Close the segment."""
        if self._segment is not None:
            self._segment.close()

    def __del__(self) -> None:
        self.close()

    def read(self, limit: int = PIECE) -> list[Found]:
        """The next entries, of about `limit` bytes at most; empty if all committed bytes were read."""
        while True:
            if self._segment is None:
                try:
                    if not self._begin():
                        return []
                except FileNotFoundError:
                    # Retention removed it after it was listed: try the next one.
                    continue
            found = self._read_on(limit)
            if found:
                return found
            if found is None:
                later = following(self._opened.path, self._disk)
                if later is None:
                    return []
                # The segment may have grown since the last read: leave it only if it still has nothing new.
                found = self._read_on(limit)
                if found:
                    return found
                if found is None:
                    try:
                        self._open(later)
                    except FileNotFoundError:
                        continue
                    if self._next_packet_id and self._is_missing(later):
                        self.missed += 1

    def _read_on(self, limit: int) -> list[Found] | None:
        """The next piece of the segment; None at its end."""
        end = self._end()
        if self._position >= end:
            return None
        found = [each for block in self._blocks(end, limit) for each in self._decoding.take(block)]
        return self._drop_before(found) if self._after is not None or self._from_ns else found

    def _is_missing(self, later: Path) -> bool:
        """Whether blocks between the last one that was read and this segment are missing."""
        last = last_id_before(later, self._disk)
        return last is not None and last >= self._next_packet_id

    def _begin(self) -> bool:
        """Find the segment and the block to begin with; False while there is no segment at all."""
        found = segments(self.folder, self._disk)
        if not found:
            return False
        if self._after is not None:
            packet_id = self._after.packet_id
            path = next((each for each in reversed(found) if first_packet_id(each) <= packet_id), found[0])
            self._open(path)
            if first_packet_id(path) <= packet_id:
                self._hop_to(self._end(), packet_id=packet_id)
            elif first_packet_id(path) > 1:
                # Packet ids begin with 1. The first segment begins later, so an earlier one was removed.
                self.missed += 1
        else:
            since = self._disk.name_since(self.folder, self._from_ns) if self._from_ns else ""
            path = self._segment_at([each for each in found if each.name >= since] or found[-1:], self._from_ns)
            self._open(path)
            if segment_time(path, self._disk) <= self._from_ns:
                self._hop_to(self._end(), time_ns=self._from_ns)
        return True

    def _segment_at(self, found: list[Path], time_ns: int) -> Path:
        """The first segment that may hold blocks of that time or later."""
        for path, after in itertools.pairwise(found):
            earlier, later = (segment_time(each, self._disk) for each in (path, after))
            # If the clock was set back here, blocks of the segment before may have later times: do not skip it.
            if later > time_ns or later < earlier:
                return path
        return found[-1]

    @property
    def _opened(self) -> OpenSegment:
        assert self._segment is not None
        return self._segment

    def _end(self) -> int:
        try:
            return committed_length(self._opened.path, self._disk)
        except JournalError:
            # Removed while it was being read: it was sealed then, and is still open here.
            with contextlib.suppress(FileNotFoundError):
                self._disk.look(self._opened.path)
                raise
            return self._opened.size

    def _open(self, path: Path) -> None:
        """Go to a segment; FileNotFoundError, and nothing has changed, if it was removed meanwhile."""
        opened = OpenSegment(path, self._disk)
        self.close()
        self._segment = opened
        self._position = 0
        self._decoding.begin(path.name)

    def _hop_to(self, end: int, *, packet_id: int | None = None, time_ns: int | None = None) -> None:
        """Go to the first block with that packet id or time (or to the end), noting what is stated on the way."""
        segment = self._opened
        if min(end, segment.size) == 0:
            return
        self._position = check_segment(segment)
        number = first_packet_id(segment.path)
        passed = deque[tuple[bytes, int, int]](maxlen=_RECORDS_BEFORE)
        with contextlib.suppress(blocks.BlockFault):
            for base, data in segment.pieces(self._position, end):
                at, found = 0, False
                while at < len(data):
                    kind, size = blocks.block_at(data, at, len(data))
                    if kind == blocks.ENHANCED_PACKET:
                        found = number == packet_id or (time_ns is not None and blocks.time_at(data, at) >= time_ns)
                        if found:
                            break
                        if blocks.captured_at(data, at) == len(RECORD_TAGS):
                            self._decoding.skip(blocks.parse_packet(data, at, size))
                        passed.append((data, at, size))
                        number += 1
                    at += size
                    self._position = base + at
                self._decoding.learn(keys_in(data, 0, at))
                if found:
                    break
        self._next_packet_id = number
        # A damaged one says nothing, and whoever begins here does not ask for it.
        with contextlib.suppress(blocks.BlockFault):
            while passed and (block := blocks.parse_packet(*passed.pop())).record is not None:
                self._before.insert(0, Record(segment.path.name, block))

    def _blocks(self, end: int, limit: int) -> Iterator[blocks.Block]:
        """The blocks of the next piece; at least one."""
        segment = self._opened
        start = self._position or check_segment(segment)
        base, data = next(segment.pieces(start, end, limit), (start, b""))
        if not data:
            raise JournalError(f"{segment.path}: ends at byte {start}, before its committed length")
        self._decoding.learn(keys_in(data, 0, len(data)))
        try:
            for block in blocks_in(data, base):
                self._next_packet_id = block.packet_id + 1
                yield block
                self._position = block.offset + block.size
        except blocks.BlockFault as fault:
            raise JournalError(
                f"{segment.path}: {fault}; `wireloom journal verify {self.folder}` lists every fault"
            ) from None
        self._position = base + len(data)

    def _drop_before(self, found: list[Found]) -> list[Found]:
        """Drop entries before the start position. After the first entry that is kept, nothing is dropped any more."""
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
