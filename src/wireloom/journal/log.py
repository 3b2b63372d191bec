"""Blocks on their way to disk: numbered, planned into segments, taken as a batch, stored, settled.

A `SegmentLog` lives on one thread, except for `store`, which only touches files and may run on another
while further blocks are added. Nothing leaves memory before it is committed: after a failed write or sync
the segment ends, and what was in doubt begins a new one.
"""

from __future__ import annotations

import errno
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.blocks import encode_packet, packet_around, packet_size
from wireloom.journal.keys import Keys
from wireloom.journal.segment import SegmentFile, segment_name
from wireloom.model import JournalError

LARGE = 16 * 1024
"""Payloads from this size on are written from where they are, not copied first."""
PART = 2 * 1024 * 1024
"""Bytes from which on the next run begins another part, so that less than all can be taken."""


MOST_UNWRITTEN = 64
"""Blocks that wait to be encoded."""

_Unwritten = tuple[int, int, blocks.Envelope, int, bytes, blocks.TopicMap | None]
"""Packet id, time, envelope, sequence, payload, topics: what a block is made of."""


@dataclass(slots=True)
class Part:
    """Blocks for one segment; `begins` names it when they are its first.

    `maps` are the topic maps stated in that segment so far, in this part or before it; `keys` those of encrypted
    connections, by connection.
    """

    maps: dict[int, blocks.TopicMap]
    keys: dict[int, Keys]
    begins: str | None = None
    data: bytearray = field(default_factory=bytearray)
    """What comes last."""
    last_ticket: int = 0
    earlier: list[blocks.Buffer] = field(default_factory=list)
    """What comes before it, in pieces; large payloads are pieces of their own."""
    size: int = 0
    """Bytes of all of it; an estimate while something is not encoded."""

    unwritten: list[_Unwritten] = field(default_factory=list)
    """What comes after all that, as it was given: whoever sends or acts on it does not wait for its encoding."""

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def add(self, block: blocks.Buffer) -> None:
        """A block, or several, behind what is encoded."""
        self.data += block
        self.size += len(block)

    def encode(self) -> int:
        """Encode what is not yet; returns by how many bytes the estimate was wrong."""
        if not self.unwritten:
            return 0
        packets, estimate = [], 0
        for number, time_ns, envelope, sequence, payload, topics in self.unwritten:
            estimate += envelope.size + len(payload)
            comment = envelope.comment_for(sequence, topics)
            packets.append(
                encode_packet(number, time_ns, envelope.tags, envelope.tags_crc, payload, comment, envelope.flags)
            )
        self.unwritten.clear()
        written = b"".join(packets)
        self.data += written
        self.size += len(written) - estimate
        return len(written) - estimate

    def add_around(self, head: bytes, payload: blocks.Buffer, tail: bytes) -> None:
        """A block whose payload nobody will change, behind what is encoded."""
        self.data += head
        self.earlier += (self.data, payload)
        self.data = bytearray(tail)
        self.size += len(head) + len(payload) + len(tail)

    @property
    def pieces(self) -> list[blocks.Buffer]:
        """All of it, to be written, once it is encoded."""
        return [*self.earlier, self.data]

    def joined(self) -> bytearray:
        """All of it in one piece, which stays the part's own."""
        if self.earlier:
            self.data = bytearray().join(self.pieces)
            self.earlier = []
        return self.data


@dataclass(slots=True)
class Batch:
    """What `store` is to write; afterwards what is left of it, and why."""

    parts: list[Part]
    durable: int
    error: OSError | None = None


class SegmentLog:
    """The segments of one folder, written one after the other.

    A ticket stands for a block: tickets up to `durable` are on disk. It equals the block's packet id
    until a failed write makes topic records necessary that nobody asked for.
    """

    def __init__(
        self,
        folder: Path,
        version: str,
        *,
        next_packet_id: int,
        segment_bytes: int,
        sync: bool,
        quota: int | None = None,
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.sync = sync
        self.quota = quota
        self.next_packet_id = next_packet_id
        self.ticket = self.durable = next_packet_id - 1
        self.pending_bytes = 0
        self.dropped_segments = 0
        self._head = blocks.segment_head(version)
        self._parts: list[Part] = []
        self._maps: dict[int, blocks.TopicMap] = {}
        self._keys: dict[int, Keys] = {}
        self._planned = 0
        """Bytes of the segment that blocks go to now, counting what is still in memory; 0: none begun."""
        self._file: SegmentFile | None = None
        self._sealer: ThreadPoolExecutor | None = None
        self._sealing: Future[None] | None = None
        """Of the segment before, where what is written is not synced at once: sealing must sync all of it."""

    @property
    def has_pending(self) -> bool:
        """Whether blocks wait for a `take`."""
        return bool(self._parts)

    def prepare(self, topic_map: blocks.TopicMap | None, time_ns: int, keys: Keys | None = None) -> None:
        """Call before the blocks of a run: begins a segment if it is time, states map and keys where they are new."""
        self.encode()
        if not 0 < self._planned <= self.segment_bytes:
            self._begin(time_ns)
        elif self._parts and self._parts[-1].size >= PART:
            self._continue()
        if keys is not None and self._keys.get(keys.connection) is not keys:
            self._keys[keys.connection] = keys
            self._append(keys.block)
        if topic_map is not None and topic_map.id not in self._maps:
            self._maps[topic_map.id] = topic_map
            for record in topic_map.records:
                self.add(time_ns, RECORD_TAGS, RECORD_TAGS_CRC, b"", record, blocks.INBOUND)

    def takes_later(self, topic_map: blocks.TopicMap | None, keys: Keys | None) -> bool:
        """Whether a small block can be left to `encode`: no segment begins, and nothing has to be stated before it."""
        parts = self._parts
        return (
            0 < self._planned <= self.segment_bytes
            and (keys is None or self._keys.get(keys.connection) is keys)
            and (topic_map is None or topic_map.id in self._maps)
            and (not parts or (parts[-1].size < PART and len(parts[-1].unwritten) < MOST_UNWRITTEN))
        )

    def add_later(
        self, time_ns: int, envelope: blocks.Envelope, sequence: int, payload: bytes, topics: blocks.TopicMap | None
    ) -> int:
        """Append one block that is encoded later; returns its ticket."""
        part = self._parts[-1] if self._parts else self._continue()
        part.unwritten.append((self.next_packet_id, time_ns, envelope, sequence, payload, topics))
        size = envelope.size + len(payload)
        self.next_packet_id += 1
        self.ticket += 1
        part.last_ticket = self.ticket
        part.size += size
        self._planned += size
        self.pending_bytes += size
        return self.ticket

    def add(self, time_ns: int, tags: bytes, tags_crc: int, payload: blocks.Buffer, comment: bytes, flags: int) -> int:
        """Append one block to what waits; returns its ticket."""
        part = self._parts[-1] if self._parts else self._continue()
        size = packet_size(tags, payload, comment)
        packet = (self.next_packet_id, time_ns, tags, tags_crc, payload, comment, flags)
        if size < LARGE or not _is_constant(payload):
            part.add(encode_packet(*packet))
        else:
            head, tail = packet_around(*packet)
            part.add_around(head, payload, tail)
        self.next_packet_id += 1
        self.ticket += 1
        part.last_ticket = self.ticket
        self._planned += size
        self.pending_bytes += size
        return self.ticket

    def _append(self, block: bytes) -> None:
        part = self._parts[-1] if self._parts else self._continue()
        part.add(block)
        self._planned += len(block)
        self.pending_bytes += len(block)

    def _begin(self, time_ns: int) -> None:
        self._maps, self._keys = {}, {}
        name = segment_name(self.next_packet_id, time_ns)
        self._parts.append(Part(self._maps, self._keys, name, bytearray(self._head), self.ticket))
        self._planned = len(self._head)
        self.pending_bytes += len(self._head)

    def _continue(self) -> Part:
        part = Part(self._maps, self._keys)
        self._parts.append(part)
        return part

    def encode(self) -> None:
        """Encode what waits to be: when there is time for it, for a commit would have to do it all at once."""
        if self._parts:
            wrong = self._parts[-1].encode()
            self._planned += wrong
            self.pending_bytes += wrong

    def take(self, *, some: bool = False) -> Batch:
        """Everything that waits, or the first part of it, to be stored and then settled before the next `take`."""
        self.encode()
        count = 1 if some else len(self._parts)
        parts, self._parts = self._parts[:count], self._parts[count:]
        return Batch(parts, self.durable)

    def store(self, batch: Batch) -> None:
        """Write a batch and sync it. Never raises for a failing disk: the batch says what is left of it."""
        try:
            while batch.parts:
                part = batch.parts[0]
                if part.begins is not None:
                    self._next_file(part.begins)
                if self._file is None:
                    raise OSError(errno.EBADF, "the segment has ended")
                self._file.store(part.pieces, part.size)
                batch.durable = part.last_ticket
                del batch.parts[0]
        except OSError as error:
            batch.error = error
            if self._file is not None:
                self._file.abandon()
                self._file = None

    def _next_file(self, name: str) -> None:
        if self._file is not None:
            if self.sync or self.quota is not None:
                self._file.seal()
            else:
                self._seal_later(self._file)
            self._file = None
        if self.quota is not None:
            self._drop_oldest(self.quota)
        self._file = SegmentFile(self.folder, name, sync=self.sync)

    def _seal_later(self, file: SegmentFile) -> None:
        """Seal a segment while others write the next; one at a time. Raises what went wrong with the one before."""
        self._wait_for_seal()
        if self._sealer is None:
            self._sealer = ThreadPoolExecutor(1, thread_name_prefix="journal-seal")
        self._sealing = self._sealer.submit(_seal, file)

    def _wait_for_seal(self) -> None:
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def _drop_oldest(self, quota: int) -> None:
        """Make room for one more segment within the quota."""
        sizes = [(path, path.stat().st_size) for path in sorted(self.folder.glob("*.pcapng"))]
        total = sum(size for _, size in sizes) + self.segment_bytes
        for path, size in sizes:
            if total <= quota:
                break
            path.unlink()
            self.dropped_segments += 1
            total -= size

    def settle(self, batch: Batch) -> int:
        """After `store`: the last ticket that is durable. After a failure, what is left waits again."""
        self.durable = batch.durable
        if batch.error is not None:
            self.encode()
            self._parts = batch.parts + self._parts
            if self._parts[0].begins is None:
                self._begin_again()
            else:
                # A fresh name: what the failure left behind may be in the way of the old one.
                self._parts[0].begins = segment_name(int(self._parts[0].begins[:20]), time.time_ns())
        self.pending_bytes = sum([part.size for part in self._parts])
        if batch.error is not None:
            raise JournalError(_failure(self.folder, batch.error)) from batch.error
        return self.durable

    def forget(self, batch: Batch) -> int:
        """After a failed `store`: drop everything that waits; returns how many bytes that was."""
        lost = sum(part.size for part in batch.parts + self._parts)
        self.next_packet_id -= self.ticket - batch.durable
        self.ticket = self.durable = batch.durable
        self._parts, self._planned, self.pending_bytes = [], 0, 0
        return lost

    def _begin_again(self) -> None:
        """Give blocks whose segment has ended a segment of their own.

        The topic maps they name and the keys they need are stated again before them. Maps have packet ids, so the
        blocks, and whatever waits behind them, move up to later ones.
        """
        ended = self._parts[0].maps
        count = next((at for at, part in enumerate(self._parts) if part.begins), len(self._parts))
        homeless, later = self._parts[:count], self._parts[count:]
        waiting = [block for part in homeless for block in _packets(part.joined())]
        first_id = blocks.packet_id_of(waiting[0])
        comments = [blocks.comment_of(block) for block in waiting]
        kept = [
            block for block, comment in zip(waiting, comments, strict=True) if not comment.startswith(b"record=topics ")
        ]
        maps = {
            number: topic_map
            for number, topic_map in ended.items()
            if any(topic_map.word in comment for comment in comments)
        }
        needed = {comment[5:21] for comment in comments if comment.startswith(b"conn=")}
        keys = {number: each for number, each in self._parts[0].keys.items() if b"%016x" % number in needed}
        now = time.time_ns()
        part = Part(maps, keys, segment_name(first_id, now), bytearray(self._head), homeless[-1].last_ticket)
        part.add(b"".join(each.block for each in keys.values()))
        packet_id = first_id
        for topic_map in maps.values():
            for record in topic_map.records:
                part.add(
                    blocks.encode_packet(packet_id, now, RECORD_TAGS, RECORD_TAGS_CRC, b"", record, blocks.INBOUND)
                )
                packet_id += 1
        for block in kept:
            blocks.renumber(block, packet_id)
            part.add(block)
            packet_id += 1
        if later:
            for other in later:
                if other.begins is not None:
                    other.begins = f"{packet_id:020d}{other.begins[20:]}"
                for at in _packet_offsets(other.joined()):
                    blocks.renumber(other.data, packet_id, at)
                    packet_id += 1
        else:
            self._maps, self._keys = maps, keys
            self._planned = part.size
        self.next_packet_id = packet_id
        self._parts = [part, *later]

    def close(self) -> None:
        """Seal the segment being written. What waits in memory must have been stored before."""
        file, self._file = self._file, None
        self._planned = 0
        try:
            try:
                if file is not None:
                    _seal(file)
            finally:
                self._wait_for_seal()
        except OSError as error:
            raise JournalError(_failure(self.folder, error)) from error
        finally:
            if self._sealer is not None:
                self._sealer.shutdown()


def _seal(file: SegmentFile) -> None:
    try:
        file.seal()
    except OSError:
        file.abandon()
        raise


def _is_constant(payload: blocks.Buffer) -> bool:
    """Whether its bytes stay as they are, whoever has them."""
    return isinstance(payload, bytes) or (isinstance(payload, memoryview) and isinstance(payload.obj, bytes))


def _packets(data: bytearray) -> Iterator[bytearray]:
    for offset in _packet_offsets(data):
        yield data[offset : offset + blocks.block_at(data, offset, len(data))[1]]


def _packet_offsets(data: bytearray) -> Iterator[int]:
    offset = 0
    while offset < len(data):
        block_type, size = blocks.block_at(data, offset, len(data))
        if block_type == blocks.ENHANCED_PACKET:
            yield offset
        offset += size


def _failure(folder: Path, error: OSError) -> str:
    hint = {
        errno.ENOSPC: "free some space on that disk",
        errno.EDQUOT: "raise the quota or free some space",
        errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
        errno.EROFS: "mount that disk writable",
        errno.EACCES: "let this user write there",
    }.get(error.errno or 0, "check that disk")
    return (
        f"{folder}: cannot write the journal: {error.strerror}; {hint}. "
        "Nothing uncommitted was acknowledged; writing goes on once it works again"
    )


RECORD_PROTOCOL = "journal"
"""The name in the tags of records that belong to no protocol."""
RECORD_TAGS = blocks.encode_tags(RECORD_PROTOCOL)
RECORD_TAGS_CRC = zlib.crc32(RECORD_TAGS)
