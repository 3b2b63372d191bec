"""Makes the objects of an archive out of sealed segments. Needs zstandard, numpy and numba.

What is archived of a segment is the same whoever archives it and whenever: the segment's bytes with the keys of
encrypted connections blanked. So two uploads of one segment can be told from two segments with one name.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import zstandard

from wireloom.journal import blocks
from wireloom.journal.archive_format import FRAME_BYTES, LARGEST_FRAME, ArchiveDamaged, ArchiveFrame, Index, SegmentId
from wireloom.journal.index import BlockIndex, index_blocks
from wireloom.journal.keys import DECRYPTION_SECRETS, blanked
from wireloom.model import JournalError

_STATEMENTS = (b"record=context ", b"record=topics ", b"record=principal ")


@dataclass(frozen=True, slots=True)
class Packed:
    """A segment, ready to be stored."""

    index: Index
    stored: bytes
    """The object."""
    secrets: tuple[tuple[int, bytes], ...]
    """The blocks of keys that were blanked: where each stands in the segment, and its bytes."""


class _Content(NamedTuple):
    data: bytes
    found: BlockIndex
    head: blocks.Head
    keys: list[tuple[int, int]]


def pack(segment: SegmentId, data: bytes, *, level: int = 3, generation: int = 0, latest_ns: int = 0) -> Packed:
    """Compress a sealed segment. `latest_ns` is the latest time in the segments before it.

    Raises JournalError for bytes that are no sound segment.
    """
    content = _understood(segment, data)
    secrets = tuple((at, data[at : at + size]) for at, size in content.keys)
    content = content._replace(data=_without_keys(content))
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    pieces = list(itertools.pairwise(_borders(content)))
    stored = [compressor.compress(content.data[start:end]) for start, end in pieces]
    sizes = [len(each) for each in stored]
    index = _index(segment, content, pieces, sizes, generation, latest_ns)
    return Packed(index, b"".join(stored), secrets)


def archived_form(segment: SegmentId, data: bytes) -> bytes:
    """What is archived of a sealed segment, uncompressed. Raises JournalError as `pack` does."""
    return _without_keys(_understood(segment, data))


def _without_keys(content: _Content) -> bytes:
    if not content.keys:
        return content.data
    changed = bytearray(content.data)
    for at, size in content.keys:
        changed[at : at + size] = blanked(content.data, at, size)
    return bytes(changed)


def index_stored(segment: SegmentId, stored: bytes, *, generation: int = 0, latest_ns: int = 0) -> Index:
    """The index of an object that is stored already, without one; ArchiveDamaged if it is no archived segment."""
    pieces: list[tuple[int, int]] = []
    sizes: list[int] = []
    parts: list[bytes] = []
    at = 0
    while rest := stored[sum(sizes) :]:
        try:
            length = zstandard.frame_content_size(rest)
            if not 0 < length <= LARGEST_FRAME:
                raise ArchiveDamaged(f"{segment.object_key}: a frame of {length} bytes; {LARGEST_FRAME} are allowed")
            reader = zstandard.ZstdDecompressor().decompressobj()
            part = reader.decompress(rest)
        except zstandard.ZstdError as error:
            raise ArchiveDamaged(f"{segment.object_key}: is damaged: {error}") from None
        if len(part) != length or not reader.eof:
            raise ArchiveDamaged(f"{segment.object_key}: is cut off")
        parts.append(part)
        sizes.append(len(rest) - len(reader.unused_data))
        pieces.append((at, at + length))
        at += length
    content = _understood(segment, b"".join(parts))
    return _index(segment, content, pieces, sizes, generation, latest_ns)


def _understood(segment: SegmentId, data: bytes) -> _Content:
    """What stands in a segment; JournalError if that is not sound from its first byte to its last."""
    name = segment.file_name
    try:
        head = blocks.head_of(data)
    except blocks.BlockFault as fault:
        raise JournalError(f"{name}: cannot be archived: {fault}") from None
    array = np.frombuffer(data, np.uint8)
    found = index_blocks(array, 0, len(array))
    if found.fault is not None or found.end != len(data):
        raise JournalError(f"{name}: cannot be archived: {found.fault or 'no block'} at byte {found.end}")
    if not len(found) or int(found.packet_id[0]) != segment.first:
        raise JournalError(f"{name}: cannot be archived: its first packet id is not that of its name")
    if head.epoch and (head.epoch, head.hub) != (segment.epoch, segment.hub):
        raise JournalError(
            f"{name}: cannot be archived: it is of hub {head.hub!r} and epoch {head.epoch}, not of {segment.hub!r}"
        )
    return _Content(data, found, head, list(_key_blocks(data, found)))


def _key_blocks(data: bytes, found: BlockIndex) -> Iterator[tuple[int, int]]:
    """Where blocks of keys stand: in what is left between the packet blocks."""
    ends = np.concatenate(([0], found.offset + found.size))
    begins = np.concatenate((found.offset, [len(data)]))
    for gap in np.flatnonzero(begins > ends).tolist():
        at, end = int(ends[gap]), int(begins[gap])
        while at < end:
            kind, size = blocks.block_at(data, at, end)
            if kind == DECRYPTION_SECRETS:
                yield at, size
            at += size


def _borders(content: _Content) -> Iterator[int]:
    """Where frames begin, and where the last ends: at packet blocks, `FRAME_BYTES` apart at most if that can be."""
    at, end, offsets = 0, len(content.data), content.found.offset
    yield at
    while end - at > FRAME_BYTES:
        row = int(np.searchsorted(offsets, at + FRAME_BYTES, "right")) - 1
        if row < 0 or offsets[row] <= at:
            row += 1
            while row < len(offsets) and offsets[row] <= at:
                row += 1
        if row >= len(offsets):
            break
        at = int(offsets[row])
        yield at
    yield end


def _index(
    segment: SegmentId,
    content: _Content,
    pieces: list[tuple[int, int]],
    sizes: list[int],
    generation: int,
    latest_ns: int,
) -> Index:
    data, found, head, keys = content
    records = np.flatnonzero(found.is_record).tolist()
    stating = [int(found.offset[row]) for row in records if _states(data, int(found.offset[row]))]
    stating = sorted(stating + [at for at, _ in keys])
    frames, offset = [], 0
    for (start, end), size in zip(pieces, sizes, strict=True):
        low, high = np.searchsorted(found.offset, [start, end]).tolist()
        times, ids = found.time_ns[low:high], found.packet_id[low:high]
        said = int(np.searchsorted(stating, end)) - int(np.searchsorted(stating, start)) if stating else 0
        is_any = high > low
        frames.append(
            ArchiveFrame(
                offset, size, start, end - start,
                int(ids[0]) if is_any else 0, int(ids[-1]) if is_any else 0,
                int(times.min()) if is_any else 0, int(times.max()) if is_any else 0,
                high - low, said, zlib.crc32(memoryview(data)[start:end]),
            )
        )  # fmt: skip
        offset += size
    to_ns = int(found.time_ns.max())
    return Index(
        hub=segment.hub,
        epoch=segment.epoch,
        first=segment.first,
        last=int(found.packet_id[-1]),
        after=segment.first - 1 if head.after is None else head.after,
        generation=generation,
        refused=segment.refused,
        from_ns=int(found.time_ns.min()),
        to_ns=to_ns,
        latest_ns=max(to_ns, latest_ns),
        blocks=len(found),
        records=len(records),
        length=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        stored=offset,
        withheld=len(keys),
        frames=tuple(frames),
    )


def _states(data: bytes, at: int) -> bool:
    return blocks.comment_at(data, at).startswith(_STATEMENTS)
