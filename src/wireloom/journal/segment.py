"""The files of a journal: names, the committed length beside a segment, and the one segment being written.

Implements "The folder" and the order of "Committing and recovery" in docs/reference/journal-format.md.
A segment without a committed-length file is sealed; so that file comes first and goes last.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from wireloom.journal import blocks
from wireloom.model import JournalError

LOCK = "lock"
REFUSED = "refused"
COMMITTED = ".committed"
_NAME = re.compile(r"(\d{20})-\d{8}T\d{6}\.\d{6}Z\.pcapng")
_OWNER_ONLY = 0o600
_SMALL, _FEW = 16 * 1024, 32
"""Bytes of a small commit, and how many of them in a row come before padding is worth its place."""
_PAGES_AHEAD = 64
"""Of padding, written at once."""
_MOST_PIECES = 1024
"""That one call writes."""
_SYNCED = getattr(os, "RWF_DSYNC", 0)
"""Has a write return when the disk has it: one call less, where there is one, but no faster if the file grows."""


def segment_name(packet_id: int, time_ns: int) -> str:
    """The name of the segment whose first packet block has this id.

    >>> segment_name(7, 1_500_000_000)
    '00000000000000000007-19700101T000001.500000Z.pcapng'
    """
    seconds, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{packet_id:020d}-{moment:%Y%m%dT%H%M%S}.{rest // 1000:06d}Z.pcapng"


def first_packet_id(segment: Path) -> int:
    """The packet id a segment's name begins with; 0 for a file of another name."""
    match = _NAME.fullmatch(segment.name)
    return 0 if match is None else int(match[1])


def segment_time(segment: Path) -> int:
    """The time in a segment's name, in nanoseconds since 1970: when its first block was appended; 0 for other names.

    >>> segment_time(Path(segment_name(7, 1_500_000_000)))
    1500000000
    """
    if _NAME.fullmatch(segment.name) is None:
        return 0
    moment = datetime.strptime(segment.name[21:43], "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def is_segment(path: Path) -> bool:
    """Whether a file has the name of a segment."""
    return _NAME.fullmatch(path.name) is not None


def segments(folder: Path | str) -> list[Path]:
    """The segments of a journal in order of time; a single file stands for itself."""
    path = Path(folder)
    if path.is_file():
        return [path]
    try:
        names = [entry.name for entry in os.scandir(path)]
    except OSError as error:
        raise JournalError(f"{path}: no journal here: {error.strerror}; name the folder the hub writes") from None
    found = sorted(name for name in names if _NAME.fullmatch(name))
    if not found and names and LOCK not in names:
        raise JournalError(f"{path}: no journal here: no segment among {len(names)} files; name the hub's folder")
    return [path / name for name in found]


def committed_path(segment: Path) -> Path:
    """The file that holds a segment's committed length while it is being written."""
    return segment.with_name(segment.name + COMMITTED)


def is_sealed(segment: Path) -> bool:
    """Whether a segment will never change again."""
    return not committed_path(segment).exists()


def committed_length(segment: Path | str) -> int:
    """How many bytes of a segment may be read: all of a sealed one, else what is known to be safe."""
    path = Path(segment)
    stated = stated_length(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None
    return size if stated is None else min(stated, size)


def bytes_after(folder: Path | str, segment: str, position: int) -> int:
    """Committed bytes of a journal after a place in it: how far somebody who has read up to there is behind."""
    total = -position if position else 0
    for path in segments(folder):
        if path.name >= segment:
            with contextlib.suppress(JournalError):
                # One that retention takes away meanwhile is nothing to catch up with.
                total += committed_length(path)
    return max(total, 0)


def stated_length(segment: Path) -> int | None:
    """What the committed-length file says; None when there is none, 0 when it says nothing yet."""
    committed = committed_path(segment)
    try:
        text = committed.read_bytes()
        # The writer overwrites it in place: two equal reads cannot be a mixture of old and new digits.
        while (again := committed.read_bytes()) != text:
            text = again
    except FileNotFoundError:
        return None
    return int(text) if len(text) == 21 and text[:20].isdigit() else 0


def sync_folder(folder: Path) -> None:
    """Make names created or removed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentFile:
    """The segment being written. Every method may raise OSError; after that only `abandon` is left.

    A sync of a file that has grown takes longer than one of a file that has not: the file system must store the new
    size, too. So where one small commit follows the other, the file grows in steps ahead of them, by padding.
    """

    def __init__(self, folder: Path, name: str, *, sync: bool) -> None:
        self.path = folder / name
        self.committed = 0
        self.sync = sync
        self._small = 0
        """Small commits in a row."""
        self._padded = 0
        """Where the padding ends; 0 while there is none."""
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_RDWR
        self._length = os.open(committed_path(self.path), flags, _OWNER_ONLY)
        self._data = -1
        try:
            self._state_length(0)
            self._data = os.open(self.path, flags, _OWNER_ONLY)
            if sync:
                sync_folder(folder)
        except OSError:
            self.abandon()
            raise

    def store(self, pieces: Sequence[blocks.Buffer], size: int) -> None:
        """Write, sync, then state the new length."""
        end = self.committed + size
        padding = self._padding(end, size) if self.sync else b""
        is_synced = False
        try:
            if padding:
                is_synced = self._write((*pieces, padding), _SYNCED)
            else:
                self._write(pieces)
        except OSError:
            if not padding:
                raise
            # There may be no room for padding, but some for what is to be kept.
            self._small, self._padded = -sys.maxsize, 0
            os.ftruncate(self._data, self.committed)
            self._write(pieces)
        if self.sync and not is_synced:
            os.fdatasync(self._data)
        self._state_length(end)
        self.committed = end

    def _padding(self, end: int, size: int) -> bytes:
        """What is written behind a commit: up to the next page of padding, and more of it where it is used up."""
        self._small = self._small + 1 if size <= _SMALL else min(self._small, 0)
        often = self._small > _FEW
        if not often and end >= self._padded:
            return b""
        padding = blocks.filler(end)
        if end + len(padding) > self._padded:
            if often:
                padding += blocks.PAGE_OF_PADDING * _PAGES_AHEAD
            self._padded = end + len(padding)
        return padding

    def _write(self, pieces: Sequence[blocks.Buffer], flags: int = 0) -> bool:
        """Write behind what is committed; True if the flags held for all of it."""
        at, at_once = self.committed, bool(flags)
        for start in range(0, len(pieces), _MOST_PIECES):
            some = pieces[start : start + _MOST_PIECES]
            size = sum(map(len, some))
            written = os.pwritev(self._data, some, at, flags)
            if written < size:
                at_once = False
                rest = memoryview(b"".join(some))
                while written < size:
                    written += os.pwrite(self._data, rest[written:], at + written)
            at += size
        return at_once

    def _state_length(self, length: int) -> None:
        os.pwrite(self._length, b"%020d\n" % length, 0)

    def seal(self) -> None:
        """The segment will not change any more."""
        if self._padded > self.committed:
            os.ftruncate(self._data, self.committed)
        if not self.sync or self._padded:
            os.fdatasync(self._data)
        self._close()
        committed_path(self.path).unlink()
        sync_folder(self.path.parent)

    def abandon(self) -> None:
        """After a failure: cut off what was not committed, and seal the rest if that much works.

        If it does not, the committed-length file stays and keeps readers away from the tail until the
        next writer's recovery.
        """
        with contextlib.suppress(OSError):
            if self.committed == 0:
                self.path.unlink(missing_ok=True)
            elif self._data >= 0:
                os.ftruncate(self._data, self.committed)
                os.fdatasync(self._data)
            committed_path(self.path).unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        for descriptor in (self._data, self._length):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._data = self._length = -1
