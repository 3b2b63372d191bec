"""Looks for faults in a journal: every block's lengths and hash, packet ids without holes, committed lengths."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.keys import DECRYPTION_SECRETS
from wireloom.journal.keys import parse as parse_keys
from wireloom.journal.recovery import mapped
from wireloom.journal.segment import REFUSED, first_packet_id, segments, stated_length
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


def verify(folder: Path | str, seen: Verified | None = None) -> Iterator[Fault]:
    """Every fault in a journal and in its refused bytes, in order."""
    seen = Verified() if seen is None else seen
    path = Path(folder)
    yield from _verify_folder(segments(path), seen)
    if (path / REFUSED).is_dir():
        yield from _verify_folder(segments(path / REFUSED), seen)


def _verify_folder(found: list[Path], seen: Verified) -> Iterator[Fault]:
    expected: int | None = None
    for path in found:
        stated = stated_length(path)
        try:
            with mapped(path) as data:
                size = len(data)
                if stated is not None and stated > size:
                    yield Fault(path, size, f"{stated} bytes are committed, the file ends")
                end = size if stated is None else min(stated, size)
                seen.segments += 1
                seen.size += end
                if end:
                    expected = yield from _verify_segment(path, data, end, expected, seen)
                elif stated is None:
                    yield Fault(path, 0, "a sealed segment that is empty")
                    expected = None
        except FileNotFoundError:
            # Retention took it meanwhile.
            expected = None
        except OSError as error:
            raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None


def _verify_segment(
    path: Path, data: memoryview, end: int, expected: int | None, seen: Verified
) -> Generator[Fault, None, int | None]:
    """The faults of one segment; returns the packet id that must come next, None if nobody knows."""
    try:
        offset = blocks.check_head(data[:end])
    except blocks.BlockFault as fault:
        yield Fault(path, fault.offset, fault.reason)
        return None
    named, maps, more = first_packet_id(path), set[int](), False
    while offset < end:
        try:
            block_type, size = blocks.block_at(data, offset, end)
        except blocks.BlockFault as fault:
            # Without a length there is no way to the next block.
            yield Fault(path, fault.offset, fault.reason)
            return None
        if block_type == blocks.ENHANCED_PACKET:
            try:
                block = blocks.parse_packet(data, offset, size)
            except blocks.BlockFault as fault:
                yield Fault(path, fault.offset, fault.reason)
                expected, named = None, 0
                offset += size
                continue
            seen.blocks += 1
            if named and block.packet_id != named:
                yield Fault(path, offset, f"packet id {block.packet_id}, the name says {named}")
            elif expected is not None and block.packet_id != expected:
                yield Fault(path, offset, f"packet id {block.packet_id} where {expected} should come")
            expected, named = block.packet_id + 1, 0
            if block.record == "topics":
                maps.add(int(str(block.details.get("map")), 16))
            if block.topic_map is not None and block.topic_map not in maps:
                yield Fault(path, offset, f"topic map {block.topic_map:08x} not stated before")
            more = block.more
        elif block_type == DECRYPTION_SECRETS:
            try:
                parse_keys(data, offset, size)
            except blocks.BlockFault as fault:
                yield Fault(path, fault.offset, fault.reason)
        offset += size
    if more:
        yield Fault(path, end, "a run that goes on in a block that is missing")
    return expected
