"""The archive of one hub's journal: who may write to it, what is in it, and one more segment.

Implements "The archive" of docs/reference/journal-format.md.

**Once.** A segment is created with one put-if-absent. If the object is there already, it counts as this segment only if
its uncompressed bytes have the same checksum; else two histories have one name, and `Conflict` is raised. Then the
index is created in the same way. So an upload that was killed anywhere is simply made again. Nothing is kept on disk
about uploads: what is archived, the archive says.

**One writer.** `claim.json` in the hub's folder holds a generation and a random name. Every start of a hub takes the
next generation by compare-and-set. Before every upload the writer looks whether the claim is still its own; if not,
another machine runs a hub with this id, and `FencedOff` is raised. The claim also says from which epochs the journal
comes, so that it can be restored from the archive alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from wireloom.journal.archive_format import (
    CLAIM,
    ArchiveDamaged,
    ArchivedSegment,
    FrameCache,
    Index,
    SegmentId,
    archived_segments,
    load_index,
)
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.identity import Ancestor, JournalIdentity
from wireloom.journal.segment import OpenSegment
from wireloom.journal.state import StateDamaged, decode_state, encode_state
from wireloom.model import JournalError, WireloomError, type_of_json
from wireloom.store import ObjectChanged, ObjectMissing, Store

_MOST_INDEXES = 4096
"""Indexes that are kept in memory."""


class Conflict(JournalError):
    """The archive has other bytes under the name of a segment."""


class FencedOff(JournalError):
    """Another machine runs a hub with this id, and has claimed the archive later."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may write to a hub's part of an archive."""

    hub: str
    generation: int
    holder: str
    """Drawn at random: an etag may be a hash of the content, so two claims must differ."""
    epoch: str
    ancestors: tuple[Ancestor, ...]
    claimed_ns: int

    def encode(self) -> bytes:
        """As an object."""
        ancestors: list[type_of_json] = [{"end": each.end, "epoch": each.epoch} for each in self.ancestors]
        return encode_state(
            {
                "ancestors": ancestors,
                "claimed_ns": self.claimed_ns,
                "epoch": self.epoch,
                "generation": self.generation,
                "holder": self.holder,
                "hub": self.hub,
            }
        )

    @classmethod
    def decode(cls, data: bytes, name: str) -> Claim:
        """The inverse; ArchiveDamaged names the object."""
        try:
            said = decode_state(data, Path(name))
            ancestors = cast("list[dict[str, type_of_json]]", said["ancestors"])
            return cls(
                str(said["hub"]),
                int(cast(int, said["generation"])),
                str(said["holder"]),
                str(said["epoch"]),
                tuple(Ancestor(str(each["epoch"]), int(cast(int, each["end"]))) for each in ancestors),
                int(cast(int, said["claimed_ns"])),
            )
        except StateDamaged as damage:
            raise ArchiveDamaged(str(damage)) from None
        except (KeyError, ValueError, TypeError, AttributeError):
            raise ArchiveDamaged(f"{name}: is damaged: something is missing in it") from None


def load_claim(store: Store, hub: str) -> Claim:
    """The claim on a hub's part of an archive; ObjectMissing if there is none."""
    key = f"{hub}/{CLAIM}"
    return Claim.decode(store.get(key), f"{store.url}/{key}")


class Archive:
    """What is archived of one journal: of its epoch and of those it comes from. Safe to share by threads."""

    def __init__(self, store: Store, identity: JournalIdentity, reads: Store | None = None) -> None:
        """`reads` is the same store for those who read it and cannot wait."""
        self.store = store
        self._reads = store if reads is None else reads
        self.identity = identity
        self.is_known = False
        """Whether the archive was listed."""
        self._cache = FrameCache()
        self._lock = threading.Lock()
        self._names: dict[bool, list[str]] = {False: [], True: []}
        """Of the archived segments, as in a journal folder, in order; for refused bytes under True."""
        self._segments: dict[str, SegmentId] = {}
        """By name; those of refused bytes with `refused/` before it."""
        self._indexes: dict[SegmentId, Index] = {}
        self._ends = {each.epoch: each.end for each in identity.ancestors}

    # What is in it

    def refresh(self) -> None:
        """Look what is archived. Only what may be new is listed; StoreError if the store is away."""
        for epoch in (self.identity.epoch, *self._ends):
            if self.is_known and epoch in self._ends:
                continue  # An epoch that ended gets no more segments.
            for segment in archived_segments(self.store, self.identity.hub, epoch):
                self.add(segment)
        self.is_known = True

    def add(self, segment: SegmentId) -> None:
        """A segment is archived."""
        end = self._ends.get(segment.epoch)
        if end is not None and segment.first > end and not segment.refused:
            # This epoch went on elsewhere; here it ended before.
            return
        with self._lock:
            name = _listed_name(segment)
            if name not in self._segments:
                self._segments[name] = segment
                names = self._names[segment.refused]
                names.insert(bisect_left(names, segment.file_name), segment.file_name)

    def names(self, *, refused: bool = False, after: str = "") -> list[str]:
        """The names of archived segments behind a name, as they are in a journal folder, in order."""
        with self._lock:
            names = self._names[refused]
            return names[bisect_right(names, after) :] if after else list(names)

    def find(self, name: str, *, refused: bool = False) -> SegmentId | None:
        """The archived segment that has this name in a journal folder."""
        return self._segments.get(f"refused/{name}" if refused else name)

    def has(self, segment: SegmentId) -> bool:
        """Whether a segment is known to be archived."""
        return _listed_name(segment) in self._segments

    def index(self, segment: SegmentId) -> Index:
        """The index of an archived segment."""
        with self._lock:
            found = self._indexes.get(segment)
        return found or self._remember(load_index(self._reads, segment))

    def _remember(self, index: Index) -> Index:
        with self._lock:
            while len(self._indexes) >= _MOST_INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[index.segment] = index
        return index

    def open(self, segment: SegmentId) -> ArchivedSegment:
        """A segment, to be read."""
        return ArchivedSegment(self._reads, self.index(segment), self._cache)

    def name_since(self, time_ns: int) -> str:
        """The first name behind which there may be blocks of that time or later: all archived before it are older.

        `latest_ns` in the indexes never falls from one segment to the next, so a few of them tell.
        """
        names = self.names()
        at = bisect_left(names, time_ns, key=lambda name: self.index(self._segments[name]).latest_ns)
        return names[min(at, len(names) - 1)] if names else ""

    def latest_ns(self, before: int) -> int:
        """The latest time in the archived segments before a packet id."""
        names = self.names()
        at = bisect_left(names, f"{before:020d}")
        return self.index(self._segments[names[at - 1]]).latest_ns if at else 0

    # One more

    def claim(self) -> Claim:
        """Take the next generation; whoever had the one before is fenced off."""
        key = f"{self.identity.hub}/{CLAIM}"
        while True:
            before, etag = 0, ""
            with contextlib.suppress(ObjectMissing):
                etag = self.store.head(key).etag
                before = load_claim(self.store, self.identity.hub).generation
            own = Claim(
                self.identity.hub,
                before + 1,
                secrets.token_hex(16),
                self.identity.epoch,
                self.identity.ancestors,
                time.time_ns(),
            )
            with contextlib.suppress(ObjectChanged):
                if etag:
                    self.store.replace(key, own.encode(), etag)
                elif not self.store.put_new(key, own.encode()):
                    continue
                return own

    def check(self, own: Claim) -> None:
        """FencedOff if somebody has claimed the archive since."""
        try:
            found = load_claim(self.store, own.hub)
        except ObjectMissing:
            raise FencedOff(f"{self.store.url}/{own.hub}/{CLAIM} was removed; start the hub again") from None
        if found.holder != own.holder:
            raise FencedOff(
                f"{self.store.url}: hub {own.hub!r} was started elsewhere, as generation {found.generation}, and this "
                f"one is {own.generation}: give one of the two another id, or stop it"
            )

    def upload(self, path: Path, own: Claim, *, level: int = 3, recipient: str = "", disk: Disk = LOCAL) -> Index:
        """Archive a sealed segment, unless it is archived already; returns its index as the archive has it.

        Raises Conflict, FencedOff, StoreError, or JournalError for a segment that is damaged.
        """
        from wireloom.journal.archive_pack import index_stored, pack

        segment = self._segment(path)
        packed = pack(
            segment, _read(path, disk), level=level, generation=own.generation, latest_ns=self._latest_before(segment)
        )
        self.check(own)
        index = packed.index
        if not self.store.put_new(segment.object_key, packed.stored):
            try:
                stored = self.store.get(segment.object_key)
                index = index_stored(segment, stored, generation=own.generation, latest_ns=index.latest_ns)
            except JournalError as error:
                raise Conflict(f"{self.store.url}/{segment.object_key}: is there already, and {error}") from None
            self._compare(index, packed.index)
        if packed.secrets and recipient:
            from wireloom.journal.archive_keys import encrypt

            # Encrypted anew each time: the one that is there opens as well.
            self.store.put_new(segment.keys_key, encrypt(packed.secrets, recipient))
        if not self.store.put_new(segment.index_key, index.encode()):
            index = load_index(self.store, segment)
            self._compare(index, packed.index)
        if self.store.head(segment.object_key).size != index.stored:
            raise Conflict(f"{self.store.url}/{segment.object_key}: is not as long as its index says")
        self._remember(index)
        self.add(segment)
        return index

    def _segment(self, path: Path) -> SegmentId:
        segment = SegmentId.of_file(self.identity.hub, path)
        if segment is None:
            raise JournalError(f"{path}: is no segment of a journal")
        return segment

    def _latest_before(self, segment: SegmentId) -> int:
        return 0 if segment.refused else self.latest_ns(segment.first)

    def _compare(self, found: Index, own: Index) -> None:
        if (found.sha256, found.length) != (own.sha256, own.length):
            raise Conflict(
                f"{self.store.url}/{own.segment.object_key}: holds other bytes than the segment of this name here "
                f"({found.length} and {own.length}); nothing is removed from this disk until that is settled"
            )

    def verify(self, path: Path, disk: Disk = LOCAL) -> None:
        """Make sure that a local segment may be removed: ask the archive, and compare. Raises if it may not."""
        from wireloom.journal.archive_pack import archived_form

        segment = self._segment(path)
        index = load_index(self.store, segment)
        data = archived_form(segment, _read(path, disk))
        if (len(data), hashlib.sha256(data).hexdigest()) != (index.length, index.sha256):
            raise Conflict(f"{self.store.url}/{segment.object_key}: holds other bytes than {path}")
        if self.store.head(segment.object_key).size != index.stored:
            raise Conflict(f"{self.store.url}/{segment.object_key}: is not as long as its index says")
        self._remember(index)
        self.add(segment)

    def holds(self, path: Path) -> bool:
        """Whether a local segment may be removed; in doubt, no. Conflict, if the archive has other bytes."""
        try:
            self.verify(path)
        except Conflict:
            raise
        except (WireloomError, OSError):
            return False
        return True


def _listed_name(segment: SegmentId) -> str:
    return f"refused/{segment.file_name}" if segment.refused else segment.file_name


def _read(path: Path, disk: Disk) -> bytes:
    with OpenSegment(path, disk) as segment:
        return segment.read(0, segment.size)


def not_archived(archive: Archive, paths: Iterable[Path]) -> list[Path]:
    """The segments among some files that are not known to be archived, in order."""
    found = []
    for path in paths:
        segment = SegmentId.of_file(archive.identity.hub, path)
        if segment is not None and not archive.has(segment):
            found.append(path)
    return found
