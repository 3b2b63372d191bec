"""Looks for faults in a journal: every block's lengths and hash, packet ids, committed lengths.

Packet ids ascend by one inside a segment. Between two segments there may be a gap, which the head of the later one
states: it says after which packet id it goes on. What stands there instead, or is missing before it, is a fault.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.keys import DECRYPTION_SECRETS
from wireloom.journal.keys import parse as parse_keys
from wireloom.journal.segment import (
    REFUSED,
    OpenSegment,
    committed_length,
    committed_path,
    first_packet_id,
    has_wrong_length,
    segments,
    stated_length,
)
from wireloom.model import JournalError


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where.

    >>> str(Fault(Path("a.pcapng"), 96, "wrong hash"))
    'a.pcapng: wrong hash at byte 96'
    """

    segment: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.segment}: {self.reason} at byte {self.offset}"


@dataclass(slots=True)
class Verified:
    """What `verify` has looked at so far."""

    segments: int = 0
    blocks: int = 0
    size: int = 0


def verify(folder: Path | str, seen: Verified | None = None, disk: Disk = LOCAL) -> Iterator[Fault]:
    """Every fault in a journal and in its refused bytes, in order."""
    seen = Verified() if seen is None else seen
    path = Path(folder)
    yield from _verify_folder(segments(path, disk), seen, disk)
    # Refused bytes are evidence, not a record: they are not synced, and a power cut may take some.
    try:
        refused = segments(path / REFUSED, disk) if disk.look(path / REFUSED).is_folder else []
    except OSError:
        refused = []
    yield from _verify_folder(refused, seen, disk)


def _verify_folder(found: list[Path], seen: Verified, disk: Disk) -> Iterator[Fault]:
    last: int | None = None
    """The last packet id before the segment; None if nobody knows."""
    for path in found:
        try:
            stated = stated_length(path, disk)
            with OpenSegment(path, disk) as segment:
                if has_wrong_length(path, disk):
                    yield Fault(committed_path(path), 0, "no committed length, but something else,")
                size = segment.size
                if stated is not None and stated > size:
                    yield Fault(path, size, f"{stated} bytes are committed, the file ends")
                end = min(committed_length(path, disk), size)
                seen.segments += 1
                seen.size += end
                if end:
                    last = yield from _Walk(segment, seen).faults(end, last)
                elif stated is None:
                    yield Fault(path, 0, "a sealed segment that is empty")
                    last = None
        except FileNotFoundError:
            # Retention took it meanwhile.
            last = None
        except OSError as error:
            raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None


class _Walk:
    """A walk through one segment."""

    def __init__(self, segment: OpenSegment, seen: Verified) -> None:
        self._segment = segment
        self._path = segment.path
        self._seen = seen
        self._expected: int | None = first_packet_id(segment.path) or None
        self._known: dict[int, blocks.Stated] = {}
        self._more = False

    def faults(self, end: int, last: int | None) -> Generator[Fault, None, int | None]:
        """The faults of the segment; returns its last packet id, None if nobody knows."""
        try:
            head = self._segment.head()
        except blocks.BlockFault as fault:
            yield Fault(self._path, fault.offset, fault.reason)
            return None
        first = first_packet_id(self._path)
        after = first - 1 if head.after is None else head.after
        if first and last is not None and after != last and self._path.parent.name != REFUSED:
            yield Fault(self._path, 0, f"goes on after packet id {after}, the segment before it ends with {last}")
        offset = head.size
        try:
            for base, data in self._segment.pieces(head.size, end):
                offset = base
                while offset < base + len(data):
                    block_type, size = blocks.block_at(data, offset - base, len(data))
                    if block_type == blocks.PADDING:
                        break
                    yield from self._block(data, base, offset, block_type, size)
                    offset += size
        except blocks.BlockFault as fault:
            # Without a length there is no way to the next block.
            yield Fault(self._path, offset, fault.reason)
            return None
        except JournalError as error:
            yield Fault(self._path, offset, str(error))
            return None
        if self._more:
            yield Fault(self._path, end, "a run that goes on in a block that is missing")
        return None if self._expected is None else self._expected - 1

    def _block(self, data: bytes, base: int, offset: int, block_type: int, size: int) -> Iterator[Fault]:
        try:
            if block_type == DECRYPTION_SECRETS:
                parse_keys(data, offset - base, size)
            if block_type != blocks.ENHANCED_PACKET:
                return
            block = blocks.parse_packet(data, offset - base, size)
        except blocks.BlockFault as fault:
            yield Fault(self._path, offset, fault.reason)
            if block_type == blocks.ENHANCED_PACKET:
                self._expected = None
            return
        self._seen.blocks += 1
        if self._expected is not None and block.packet_id != self._expected:
            yield Fault(self._path, offset, f"packet id {block.packet_id} where {self._expected} should come")
        self._expected = block.packet_id + 1
        blocks.add_context(self._known, block)
        if block.context is not None and block.context not in self._known:
            yield Fault(self._path, offset, f"context {block.context:08x} not stated before")
        self._more = block.more
