"""The objects of an archive: their names, the index of a segment, and reading any range of it.

Implements "The archive" of docs/reference/journal-format.md. A sealed segment is two objects:

    <hub>/<epoch>/<first packet id, 20 digits>.pcapng.zst     the segment, compressed
    <hub>/<epoch>/<first packet id, 20 digits>.index.json     what is in it

Refused bytes stand in `<hub>/<epoch>/refused/` in the same way. **The index is the commit mark**: it is written after
the segment was stored and checked. A segment without an index does not count.

The segment is a series of independent zstd frames. Each holds whole blocks, at most `FRAME_BYTES` of them unless one
block alone is larger, and the index lists them. So a reader fetches and decompresses just the frames it needs, while
`zstd -d` makes the whole segment of the object.

**Names.** (hub, epoch, packet id) names a block for ever, in a journal folder and in an archive alike.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self, cast

from wireloom.journal.identity import FORMAT_1
from wireloom.journal.segment import REFUSED, segment_name
from wireloom.journal.state import StateDamaged, decode_state, encode_state
from wireloom.model import JournalError, type_of_json
from wireloom.store import Store

FORMAT = "wireloom archive 1"
FRAME_BYTES = 4 * 1024 * 1024
"""Uncompressed bytes of a frame at most, unless one block is larger."""
LARGEST_FRAME = 64 * 1024 * 1024
"""No reader decompresses more at a time, whatever an index says."""
CLAIM = "claim.json"
"""In the hub's folder: which start of the hub may write here."""
_KEY = re.compile(r"([^/]+)/([0-9a-f]{16})/(refused/)?([0-9]{20})\.(pcapng\.zst|index\.json|keys)")


class ArchiveDamaged(JournalError):
    """An object of an archive is not what its index says, or an index says nothing that can be trusted."""


class SegmentId(NamedTuple):
    """A segment, wherever it is stored.

    >>> SegmentId("kitchen", "00c0ffee00c0ffee", 7).index_key
    'kitchen/00c0ffee00c0ffee/00000000000000000007.index.json'
    """

    hub: str
    epoch: str
    """That of a segment of format 1 is sixteen zeros."""
    first: int
    """The packet id of its first block."""
    refused: bool = False

    @property
    def _stem(self) -> str:
        return f"{self.hub}/{self.epoch}/{'refused/' if self.refused else ''}{self.first:020d}"

    @property
    def object_key(self) -> str:
        """The key of the compressed segment."""
        return f"{self._stem}.pcapng.zst"

    @property
    def index_key(self) -> str:
        """The key of its index."""
        return f"{self._stem}.index.json"

    @property
    def keys_key(self) -> str:
        """The key of what opens its encrypted connections, itself encrypted for a recipient."""
        return f"{self._stem}.keys"

    @property
    def file_name(self) -> str:
        """The name that the segment has in a journal folder; in format 1 that had the time in it."""
        return segment_name(self.first, self.epoch)

    @classmethod
    def of_file(cls, hub: str, path: Path) -> Self | None:
        """The segment with the name of a file of a journal; None for another file."""
        found = re.fullmatch(r"(\d{20})-(?:([0-9a-f]{16})|[^-]*Z)\.pcapng", path.name)
        if found is None:
            return None
        return cls(hub, found[2] or FORMAT_1, int(found[1]), path.parent.name == REFUSED)

    @classmethod
    def of_key(cls, key: str) -> Self | None:
        """The segment whose index has this key; None for any other object.

        >>> SegmentId.of_key("kitchen/00c0ffee00c0ffee/refused/00000000000000000007.index.json")
        SegmentId(hub='kitchen', epoch='00c0ffee00c0ffee', first=7, refused=True)
        """
        found = _KEY.fullmatch(key)
        if found is None or found[5] != "index.json":
            return None
        return cls(found[1], found[2], int(found[4]), found[3] is not None)


class ArchiveFrame(NamedTuple):
    """One zstd frame of an archived segment: whole blocks, which can be read without the frames before it."""

    offset: int
    """Where it begins in the object."""
    size: int
    """Its bytes in the object."""
    start: int
    """Where its blocks begin in the segment."""
    length: int
    """Bytes of its blocks."""
    first: int
    """The packet id of its first packet block; 0 if it has none."""
    last: int
    from_ns: int
    """The earliest time of a packet block in it."""
    to_ns: int
    """The latest."""
    blocks: int
    """Packet blocks in it."""
    statements: int
    """How many of its blocks state what later blocks of the segment need: contexts, principals, keys."""
    crc32: int
    """Of its uncompressed bytes."""


@dataclass(frozen=True, slots=True)
class Index:
    """What is in an archived segment."""

    hub: str
    epoch: str
    first: int
    last: int
    after: int
    """The last packet id before this segment that counts."""
    generation: int
    """Which start of the hub stored it."""
    refused: bool
    from_ns: int
    to_ns: int
    latest_ns: int
    """The latest time in this segment and in all that were archived before it."""
    blocks: int
    records: int
    length: int
    """Bytes of the uncompressed segment."""
    sha256: str
    """Of the uncompressed segment."""
    stored: int
    """Bytes of the object."""
    withheld: int
    """How many blocks of keys were blanked."""
    frames: tuple[ArchiveFrame, ...]

    @property
    def segment(self) -> SegmentId:
        """Which segment that is."""
        return SegmentId(self.hub, self.epoch, self.first, self.refused)

    def encode(self) -> bytes:
        """The index object: JSON with a checksum."""
        frames: list[type_of_json] = [list(frame) for frame in self.frames]
        said: dict[str, type_of_json] = {**asdict(self), "columns": list(ArchiveFrame._fields), "frames": frames}
        return encode_state({**said, "format": FORMAT})

    @classmethod
    def decode(cls, data: bytes, name: str) -> Self:
        """The inverse; ArchiveDamaged names the object."""
        try:
            said = decode_state(data, Path(name))
            if said.get("format") != FORMAT:
                raise ArchiveDamaged(f"{name}: is of format {said.get('format')!r}, and this version reads {FORMAT!r}")
            columns = cast("list[str]", said["columns"])
            places = [columns.index(field) for field in ArchiveFrame._fields]
            rows = cast("list[list[int]]", said["frames"])
            known: dict[str, object] = {field.name: said[field.name] for field in fields(cls)}
            known["frames"] = tuple(ArchiveFrame(*(int(row[place]) for place in places)) for row in rows)
            found = cls(**known)  # type: ignore[arg-type]
        except StateDamaged as damage:
            raise ArchiveDamaged(str(damage)) from None
        except (KeyError, ValueError, TypeError, IndexError):
            raise ArchiveDamaged(f"{name}: is damaged: something is missing in it") from None
        found._check(name)
        return found

    def _check(self, name: str) -> None:
        """Whether the frames are one after the other and as long as the segment and the object."""
        at = start = 0
        for frame in self.frames:
            if (frame.offset, frame.start) != (at, start) or not 0 < frame.length <= LARGEST_FRAME or frame.size <= 0:
                raise ArchiveDamaged(f"{name}: is damaged: its frames do not follow each other")
            at, start = at + frame.size, start + frame.length
        if (at, start) != (self.stored, self.length) or not self.frames:
            raise ArchiveDamaged(f"{name}: is damaged: its frames are not the whole segment")

    def frames_between(self, start: int, end: int) -> tuple[ArchiveFrame, ...]:
        """The frames that hold the bytes from `start` to `end` of the segment."""
        first = bisect_right(self.frames, start, key=lambda frame: frame.start) - 1
        last = bisect_right(self.frames, end - 1, key=lambda frame: frame.start)
        return self.frames[max(first, 0) : last] if start < end else ()

    def frames_from(self, packet_id: int) -> tuple[ArchiveFrame, ...]:
        """The frames that hold blocks with this packet id or a later one."""
        return tuple(frame for frame in self.frames if frame.last >= packet_id)


def load_index(store: Store, segment: SegmentId) -> Index:
    """The index of an archived segment; ObjectMissing if it is not archived, or not completely."""
    key = segment.index_key
    found = Index.decode(store.get(key), f"{store.url}/{key}")
    if found.segment != segment:
        raise ArchiveDamaged(f"{store.url}/{key}: is the index of another segment, {found.segment.index_key}")
    return found


def archived_segments(store: Store, hub: str = "", epoch: str = "", *, after: str = "") -> Iterator[SegmentId]:
    """The segments that are archived: of all hubs, of one, or of one epoch of a hub; in order of their keys.

    `after` is a key: only segments whose index comes behind it are looked for.
    """
    place = f"{hub}/{epoch}" if epoch else hub
    for info in store.list(place, after):
        found = SegmentId.of_key(info.key)
        if found is not None:
            yield found


def unpack(frame: ArchiveFrame, stored: bytes, name: str) -> bytes:
    """The blocks in a frame, checked. `stored` are its bytes in the object `name`."""
    import zstandard

    if not 0 < frame.length <= LARGEST_FRAME:
        raise ArchiveDamaged(f"{name}: a frame of {frame.length} bytes, and {LARGEST_FRAME} are allowed")
    try:
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=frame.length)
    except zstandard.ZstdError as error:
        raise ArchiveDamaged(f"{name}: the frame at byte {frame.offset} is damaged: {error}") from None
    if len(data) != frame.length or zlib.crc32(data) != frame.crc32:
        raise ArchiveDamaged(f"{name}: the frame at byte {frame.offset} is not what the index says")
    return data


class FrameCache:
    """Decompressed frames that were read last, a bounded number of bytes. Safe to share by threads."""

    def __init__(self, limit: int = 8 * FRAME_BYTES) -> None:
        self.limit = limit
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, name: str, offset: int) -> bytes | None:
        """The frame that begins at a byte of an object, if it is held."""
        with self._lock:
            found = self._held.get((name, offset))
            if found is not None:
                self._held.move_to_end((name, offset))
            return found

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Hold a frame, and let go of those that were not asked for the longest."""
        with self._lock:
            if (name, offset) not in self._held:
                self._held[name, offset] = data
                self._size += len(data)
            while self._size > self.limit and len(self._held) > 1:
                self._size -= len(self._held.popitem(last=False)[1])


class ArchivedSegment:
    """An archived segment, to be read like a file."""

    def __init__(self, store: Store, index: Index, cache: FrameCache | None = None) -> None:
        self.index = index
        self.name = f"{store.url}/{index.segment.object_key}"
        self._store = store
        self._cache = cache

    @property
    def size(self) -> int:
        """Bytes of the uncompressed segment."""
        return self.index.length

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two places of the uncompressed segment, or fewer at its end."""
        end = min(end, self.size)
        wanted = self.index.frames_between(start, end)
        if not wanted:
            return b""
        data = self._frames(wanted)
        base = wanted[0].start
        return data[start - base : end - base]

    def _frames(self, wanted: tuple[ArchiveFrame, ...]) -> bytes:
        """The blocks of frames that follow each other. Those that are not held are fetched with one request."""
        held = [None if self._cache is None else self._cache.get(self.name, frame.offset) for frame in wanted]
        missing = [frame for frame, data in zip(wanted, held, strict=True) if data is None]
        if missing:
            base = missing[0].offset
            stored = self._store.get_range(self.index.segment.object_key, base, missing[-1].offset + missing[-1].size)
            for at, frame in enumerate(wanted):
                if held[at] is None:
                    piece = stored[frame.offset - base : frame.offset - base + frame.size]
                    held[at] = data = unpack(frame, piece, self.name)
                    if self._cache is not None:
                        self._cache.put(self.name, frame.offset, data)
        return b"".join(cast("list[bytes]", held)) if len(held) > 1 else cast(bytes, held[0])

    def check(self) -> None:
        """Read all of it; ArchiveDamaged if it is not what the index says."""
        total = hashlib.sha256()
        for frame in self.index.frames:
            total.update(self.read(frame.start, frame.start + frame.length))
        if total.hexdigest() != self.index.sha256:
            raise ArchiveDamaged(f"{self.name}: the segment is not what its index says")
