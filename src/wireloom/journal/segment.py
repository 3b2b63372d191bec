"""The segments of a journal: their names, what may be read of them, and their bytes, without a memory map.

Implements "The folder" of docs/reference/journal-format.md. A segment without a committed-length file is sealed.
Memory maps are not used: an unreadable sector would end the process (SIGBUS) instead of raising an error.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from wireloom.journal import blocks
from wireloom.journal.disk import LOCAL, READ, Disk, read_around, read_range
from wireloom.journal.valid_prefix import sound_length
from wireloom.model import JournalError

LOCK = "lock"
REFUSED = "refused"
COMMITTED = ".committed"
SYNCED, UNSYNCED = b"\n", b"?\n"
"""How the text of a committed length ends: whether those bytes were synced before it was written."""
_LENGTH = re.compile(rb"[0-9]{20}\??\n")
PIECE = 1024 * 1024
"""Bytes of a segment that are read at a time."""
_SMALLEST_PIECE = 4096
"""Never read less: a segment's head must fit."""
_SECTOR = 4096
_NAME = re.compile(r"(\d{20})-(\d{8}T\d{6}\.\d{6}Z|[0-9a-f]{16})\.pcapng")
"""With the time in format 1, with the epoch since."""


def segment_name(packet_id: int, epoch: str) -> str:
    """The name of the segment whose first packet block has this id.

    >>> segment_name(7, "00c0ffee00c0ffee")
    '00000000000000000007-00c0ffee00c0ffee.pcapng'
    """
    return f"{packet_id:020d}-{epoch}.pcapng"


def first_packet_id(segment: Path) -> int:
    """The packet id a segment's name begins with; 0 for a file of another name."""
    match = _NAME.fullmatch(segment.name)
    return 0 if match is None else int(match[1])


def epoch_in(segment: Path) -> str:
    """The epoch in a segment's name; empty where it has none."""
    match = _NAME.fullmatch(segment.name)
    return "" if match is None or match[2].endswith("Z") else match[2]


def is_segment(path: Path) -> bool:
    """Whether a file has the name of a segment."""
    return _NAME.fullmatch(path.name) is not None


def segments(folder: Path | str, disk: Disk = LOCAL) -> list[Path]:
    """The segments of a journal in order of their packet ids; a single file stands for itself."""
    path = Path(folder)
    try:
        names = disk.list(path)
    except NotADirectoryError:
        return [path]
    except OSError as error:
        raise JournalError(f"{path}: no journal here: {error.strerror}; name the folder the hub writes") from None
    found = sorted(name for name in names if _NAME.fullmatch(name))
    if not found and names and LOCK not in names and path.name != REFUSED:
        raise JournalError(f"{path}: no journal here: no segment among {len(names)} files; name the hub's folder")
    return [path / name for name in found]


def following(segment: Path, disk: Disk = LOCAL) -> Path | None:
    """The segment after one in the same folder; None if that is the last."""
    try:
        names = disk.list_after(segment.parent, segment.name)
    except OSError as error:
        raise JournalError(f"{segment.parent}: no journal here: {error.strerror}") from None
    name = min(filter(_NAME.fullmatch, names), default=None)
    return None if name is None else segment.with_name(name)


# --- what may be read -------------------------------------------------------------------------------


def committed_path(segment: Path) -> Path:
    """The file that holds a segment's committed length while it is being written."""
    return segment.with_name(segment.name + COMMITTED)


def is_sealed(segment: Path, disk: Disk = LOCAL) -> bool:
    """Whether a segment will never change again."""
    try:
        disk.look(committed_path(segment))
    except FileNotFoundError:
        return True
    return False


def committed_length(segment: Path | str, disk: Disk = LOCAL) -> int:
    """How many bytes of a segment may be read: all of a sealed one, else the committed length.

    The committed-length file is not synced, so after a power cut it may be too small. If no process writes the journal,
    the valid blocks after that length count, too. They are synced first: a block that was read must not be lost later.
    """
    path = Path(segment)
    stated = stated_length(path, disk)
    try:
        size = disk.look(path).size
        if stated is None:
            return size
        synced = synced_length(path, disk)
        if synced != size and not has_writer(path.parent, disk):
            return _sound_and_synced(path, synced if synced < size else 0, disk)
    except OSError as error:
        raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None
    return min(stated, size)


def _sound_and_synced(path: Path, committed: int, disk: Disk) -> int:
    later = (each for each in segments(path.parent, disk) if each.name > path.name)
    # Ignore later segments without blocks: recovery will delete them.
    following = next((each for each in later if _holds_something(each, disk)), None)
    last = None if following is None else last_id_before(following, disk)
    with OpenSegment(path, disk) as segment:
        # A sync may fail on a read-only disk. Such a disk loses nothing.
        with contextlib.suppress(OSError):
            segment.sync()
        return sound_length_of(path, segment.read_around(), committed, last)[0]


def sound_length_of(path: Path, data: bytes, committed: int, last: int | None = None) -> tuple[int, str]:
    """`sound_length` of the segment of this name with these bytes."""
    is_refused = path.parent.name == REFUSED
    return sound_length(
        data, committed, first=first_packet_id(path), epoch=epoch_in(path), refused=is_refused, last=last
    )


def _holds_something(path: Path, disk: Disk) -> bool:
    """Whether a segment holds a block that recovery will keep."""
    try:
        with OpenSegment(path, disk) as segment:
            if is_sealed(path, disk):
                return segment.size > 0
            length, _ = sound_length_of(path, segment.read_around(), synced_length(path, disk))
            return length > segment.head().size
    except (OSError, JournalError):
        return False


def has_writer(folder: Path, disk: Disk = LOCAL) -> bool:
    """Whether a process writes a journal now; in doubt, yes."""
    try:
        disk.close(disk.lock(folder / LOCK, shared=True))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def stated_length(segment: Path, disk: Disk = LOCAL) -> int | None:
    """What the committed-length file says; None when there is none, 0 when it says nothing, or nonsense."""
    text = committed_text(segment, disk)
    return None if text is None else int(text[:20]) if _LENGTH.fullmatch(text) else 0


def synced_length(segment: Path, disk: Disk = LOCAL) -> int:
    """How many bytes of a segment were synced, as far as the committed-length file tells: recovery keeps them."""
    text = committed_text(segment, disk) or b""
    return int(text) if _LENGTH.fullmatch(text) and text[20:] == SYNCED else 0


def has_wrong_length(segment: Path, disk: Disk = LOCAL) -> bool:
    """Whether there is a committed-length file with something else in it."""
    text = committed_text(segment, disk)
    return bool(text) and _LENGTH.fullmatch(text or b"") is None


def committed_text(segment: Path, disk: Disk = LOCAL) -> bytes | None:
    """The content of the committed-length file; None when there is none."""
    try:
        file = disk.open(committed_path(segment), READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{committed_path(segment)}: cannot be read: {error.strerror}") from None
    try:
        text = disk.pread(file, 64, 0)
        # The writer overwrites it in place: two equal reads cannot be a mixture of old and new digits.
        while (again := disk.pread(file, 64, 0)) != text:
            text = again
    except OSError as error:
        raise JournalError(f"{committed_path(segment)}: cannot be read: {error.strerror}") from None
    finally:
        disk.close(file)
    return text


def bytes_after(folder: Path | str, segment: str, position: int, disk: Disk = LOCAL) -> int:
    """Committed bytes of a journal after a place in it: how far somebody who has read up to there is behind."""
    total = -position if position else 0
    for path in segments(folder, disk):
        if path.name >= segment:
            with contextlib.suppress(JournalError):
                # One that retention takes away meanwhile is nothing to catch up with.
                total += committed_length(path, disk)
    return max(total, 0)


# --- what is in it ----------------------------------------------------------------------------------


class OpenSegment:
    """A segment open for reading. It can be read to its end even if it is removed meanwhile."""

    def __init__(self, path: Path, disk: Disk = LOCAL) -> None:
        """FileNotFoundError if it is not there; JournalError if it cannot be opened otherwise."""
        self.path = path
        self._disk = disk
        try:
            self._file = disk.open(path, READ)
        except FileNotFoundError:
            self._file = -1
            raise
        except OSError as error:
            self._file = -1
            raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        file, self._file = self._file, -1
        if file >= 0:
            self._disk.close(file)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._disk.status(self._file).size

    def sync(self) -> None:
        """Return when the disk has it."""
        self._disk.sync(self._file)

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two places, or fewer at the end; JournalError names the place that cannot be read."""
        try:
            return read_range(self._disk, self._file, start, end)
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot read the segment at byte {self._fault(start, end)}: {error.strerror}; "
                "check that disk"
            ) from None

    def read_around(self) -> bytes:
        """All of it, with zeros where it cannot be read."""
        return read_around(self._disk, self._file, 0, self.size)[0]

    def _fault(self, start: int, end: int) -> int:
        """The first place that cannot be read, to a sector."""
        at = start
        with contextlib.suppress(OSError):
            while at < end and self._disk.pread(self._file, min(_SECTOR - at % _SECTOR, end - at), at):
                at += _SECTOR - at % _SECTOR
        return at

    def head(self) -> blocks.Head:
        """What its beginning says; BlockFault if it is no segment."""
        return blocks.head_of(self.read(0, _SMALLEST_PIECE))

    def pieces(self, start: int, end: int, size: int = PIECE) -> Iterator[tuple[int, bytes]]:
        """Whole blocks from `start`, where one begins, to `end`: the place of each piece and its bytes.

        The last piece ends where a block is cut off or its length makes no sense, or at `end`.
        """
        at = start
        while at < end:
            stop = min(end, at + max(size, _SMALLEST_PIECE))
            try:
                data = self.read(at, stop)
            except JournalError:
                # Whole blocks before the place that cannot be read can be.
                data = self.read(at, self._fault(at, stop))
                if not whole_blocks(data):
                    raise
            whole = whole_blocks(data)
            if whole == 0 and at + len(data) < end:
                # The first block is larger than the piece, or there is not even its head: read just that block.
                wanted = max(int.from_bytes(data[4:8], "little"), 12)
                data = self.read(at, min(end, at + wanted))
                whole = len(data)
            elif at + len(data) >= end:
                whole = len(data)
            if not data:
                return
            yield at, data[:whole]
            at += whole


def whole_blocks(data: bytes) -> int:
    """How many bytes of complete blocks there are, going by their lengths alone."""
    at = 0
    while len(data) - at >= 12:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if size < 12 or size > len(data) - at:
            break
        at += size
    return at


def last_id_before(segment: Path, disk: Disk = LOCAL) -> int | None:
    """The last packet id that counts before a segment, from the segment's head; None if the head cannot be read.

    In format 1 the head does not name it. There, the blocks of a failed write were repeated under the same ids, so it
    is the id before the segment's first.
    """
    try:
        with OpenSegment(segment, disk) as opened:
            head = opened.head()
    except (OSError, JournalError):
        return None
    return first_packet_id(segment) - 1 if head.after is None else head.after


def segment_time(segment: Path, disk: Disk = LOCAL) -> int:
    """When a segment's first block was appended, in nanoseconds since 1970; 0 where it does not tell."""
    match = _NAME.fullmatch(segment.name)
    if match is not None and match[2].endswith("Z"):
        moment = datetime.strptime(match[2], "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
        return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    try:
        return _first_time(segment, disk)
    except (OSError, JournalError, blocks.BlockFault, StopIteration):
        return 0


@lru_cache(maxsize=4096)
def _first_time(segment: Path, disk: Disk) -> int:
    """The time of the first packet block; remembered, for it never changes once it is there."""
    with OpenSegment(segment, disk) as opened:
        end = min(opened.size, 4 * PIECE)
        head = opened.head()
        for base, data in opened.pieces(head.size, end, _SMALLEST_PIECE):
            at = 0
            while at < len(data):
                kind, size = blocks.block_at(data, at, len(data))
                if kind == blocks.ENHANCED_PACKET:
                    return blocks.time_at(data, at)
                if kind == blocks.PADDING:
                    break
                at += size
            if base + len(data) >= end:
                break
    raise JournalError(f"{segment}: no packet block", errno.ENODATA)


def last_block(segment: Path, disk: Disk = LOCAL) -> blocks.Block | None:
    """The last packet block of a sealed segment; None if there is none or the end is damaged."""
    try:
        with OpenSegment(segment, disk) as opened:
            end = opened.size
            size = int.from_bytes(opened.read(max(end - 4, 0), end), "little")
            if end < 12 or not 12 <= size <= end:
                return None
            data = opened.read(end - size, end)
        if blocks.block_at(data, 0, len(data))[0] != blocks.ENHANCED_PACKET:
            return None
        return blocks.parse_packet(data, 0, size)
    except (blocks.BlockFault, JournalError):
        return None
