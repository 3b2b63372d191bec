"""Blocks on their way to disk: numbered, planned into segments, taken as a batch, stored, settled.

A `SegmentLog` lives on one thread, except for `store`, which only touches files and may run on another
while further blocks are added. Nothing leaves memory before it is committed: after a failed write or sync
the segment ends, and what was in doubt begins a new one, under packet ids that nobody had before.
"""

from __future__ import annotations

import errno
import itertools
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.journal import blocks
from wireloom.journal.blocks import encode_packet, packet_around
from wireloom.journal.context import Context, Principal
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.keys import Keys
from wireloom.journal.lines import SLOT, TICKET, Line
from wireloom.journal.segment import committed_path, is_segment, segment_name
from wireloom.journal.segment_file import SegmentFile
from wireloom.model import JournalError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wireloom.journal.encoding import LineTable, Runs

LARGE = 16 * 1024
"""Payloads from this size on are written from where they are, not copied first."""
PART = 2 * 1024 * 1024
"""Bytes from which on the next run begins another part, so that less than all can be taken."""


HeadOf = Callable[[int], bytes]
"""Makes the head of a segment, given the last packet id before it that counts. Its size is always the same."""
Reserve = Callable[[int], int]
"""Reserves packet ids below a number durably; returns the number below which they are reserved now."""


def one_thread() -> Executor:
    """What seals segments beside the one that is written."""
    return ThreadPoolExecutor(1, thread_name_prefix="journal-seal")


@dataclass(slots=True)
class Statements:
    """What has been stated in a segment so far, so that each segment can be understood by itself."""

    number: int = field(default_factory=itertools.count(1).__next__)
    """Of the segment: another one for each."""
    contexts: dict[int, Context] = field(default_factory=dict)
    """By their id."""
    keys: dict[int, Keys] = field(default_factory=dict)
    """Of encrypted connections, by connection."""
    principals: dict[int, Principal] = field(default_factory=dict)
    """Of connections that proved who they are, by connection."""


@dataclass(slots=True)
class Part:
    """Blocks for one segment, numbered one after the other."""

    stated: Statements
    """In that segment, in this part or before it."""
    begins: int | None = None
    """The packet id of the first of them, if a segment begins with it. Its head is not in `data`."""
    data: bytearray = field(default_factory=bytearray)
    """What comes last."""
    last_ticket: int = 0
    last_packet_id: int = 0
    earlier: list[blocks.Buffer] = field(default_factory=list)
    """What comes before it, in pieces; large payloads are pieces of their own."""
    size: int = 0
    """Bytes of all of it."""

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def add_around(self, head: bytes, payload: blocks.Buffer, tail: bytes) -> None:
        """A block whose payload nobody will change, behind what is encoded."""
        self.data += head
        self.earlier += (self.data, payload)
        self.data = bytearray(tail)

    @property
    def pieces(self) -> list[blocks.Buffer]:
        """All of it, to be written."""
        return [*self.earlier, self.data]

    def joined(self) -> bytearray:
        """All of it in one piece, which stays the part's own."""
        if self.earlier:
            self.data = bytearray().join(self.pieces)
            self.earlier = []
        return self.data


@dataclass(slots=True)
class PendingWrite:
    """What `store` is to write; afterwards what is left of it, and why."""

    parts: list[Part]
    durable: int
    error: OSError | None = None
    ids_used: bool = False
    """After an error: whether blocks may be on disk under the packet ids of what is left."""


class SegmentLog:
    """The segments of one folder, written one after the other.

    A ticket stands for a block: tickets up to `durable` are on disk. Tickets are counted without a gap; packet ids
    leave one where blocks had to be written again (see `packet_id`).
    """

    def __init__(
        self,
        folder: Path,
        epoch: str,
        head_of: HeadOf,
        reserve: Reserve,
        *,
        last_packet_id: int,
        next_packet_id: int,
        segment_bytes: int,
        sync: bool,
        quota: int | None = None,
        disk: Disk = LOCAL,
        now_ns: Callable[[], int] = time.time_ns,
        sealer: Callable[[], Executor] = one_thread,
    ) -> None:
        self.folder = folder
        self.epoch = epoch
        self.segment_bytes = segment_bytes
        self.sync = sync
        self.quota = quota
        self.next_packet_id = next_packet_id
        self.ticket = self.durable = next_packet_id - 1
        self.pending_bytes = 0
        self.dropped_segments = 0
        self._disk = disk
        self._head_of = head_of
        self._head_size = len(head_of(0))
        self._reserve = reserve
        self._reserved = next_packet_id
        """Packet ids below this may be written."""
        self._stored = last_packet_id
        """The last packet id that counts: that is stored."""
        self._shifts: list[tuple[int, int]] = []
        """From which ticket on packet ids are how much larger than tickets."""
        self._parts: list[Part] = []
        self._stated = Statements()
        self._planned = 0
        """Bytes of the segment that blocks go to now, counting what is still in memory; 0: none begun."""
        self._began_with, self._began_ns = next_packet_id, 0
        """The first packet id of that segment, and when it was begun."""
        self._file: SegmentFile | None = None
        self._is_storing = False
        """Whether a batch was taken and is not settled yet."""
        self._now_ns = now_ns
        self._new_sealer = sealer
        self._sealer: Executor | None = None
        self._sealing: Future[None] | None = None
        """Of the segment before, where what is written is not synced at once: sealing must sync all of it."""

    @property
    def has_pending(self) -> bool:
        """Whether blocks wait for a `take`."""
        return bool(self._parts)

    def is_older(self, seconds: float) -> bool:
        """Whether the segment that blocks go to was begun so long ago, and holds more than its first block."""
        if not self._planned or self.next_packet_id - self._began_with < 2:
            return False
        return self._now_ns() - self._began_ns >= seconds * 1e9

    def end_segment(self) -> None:
        """Let the next block begin another segment; this one is sealed when that block is stored."""
        self._planned = 0

    def packet_id(self, ticket: int) -> int:
        """The packet id of the block that got this ticket.

        Of one that is not durable it may still change.
        """
        at = bisect_left(self._shifts, (ticket + 1,)) - 1
        return ticket if at < 0 else ticket + self._shifts[at][1]

    def prepare(
        self,
        context: Context | None,
        time_ns: int,
        keys: Keys | None = None,
        principal: Principal | None = None,
        said: Sequence[bytes] = (),
    ) -> None:
        """Call before the blocks of a run: begins a segment if it is time, and states in it what is not stated yet.

        `said` are comments of records about this run.
        """
        self._make_room()
        if context is not None or keys is not None or principal is not None:
            self._state(context, time_ns, keys, principal)
        for record in said:
            self._add_record(record, time_ns)

    def _make_room(self) -> None:
        """Begin a segment if it is time, or another part of what waits."""
        if not 0 < self._planned <= self.segment_bytes:
            self._begin()
        elif not self._parts or self._parts[-1].size >= PART:
            self._continue()

    def _state(
        self, context: Context | None, time_ns: int, keys: Keys | None = None, principal: Principal | None = None
    ) -> None:
        """State what the segment does not have yet."""
        stated = self._stated
        if keys is not None and stated.keys.get(keys.connection) is not keys:
            stated.keys[keys.connection] = keys
            self._append(keys.block)
        if principal is not None and stated.principals.get(principal.connection) is not principal:
            stated.principals[principal.connection] = principal
            self._add_record(principal.record, time_ns)
        if context is not None and context.id not in stated.contexts:
            stated.contexts[context.id] = context
            for record in context.records:
                self._add_record(record, time_ns)

    def _add_record(self, comment: bytes, time_ns: int) -> None:
        self.add(time_ns, RECORD_TAGS, RECORD_TAGS_CRC, b"", comment, blocks.INBOUND)

    def add_run(
        self, time_ns: int, line: Line, sequence: int, payload: blocks.Buffer, context: Context | None = None
    ) -> int:
        """Append the blocks of one run; returns the ticket of the last. `prepare` must have been called for it."""
        tags, crc, flags = line.tags, line.tags_crc, line.flags
        comment = line.comment_for(sequence, b"" if context is None else context.word)
        room = blocks.MAX_PACKET_DATA - len(tags)
        if len(payload) > room:
            payload = memoryview(payload)
            while len(payload) > room:
                self.add(time_ns, tags, crc, payload[:room], comment + b" more", flags)
                payload = payload[room:]
        return self.add(time_ns, tags, crc, payload, comment, flags)

    def add_runs(self, time_ns: int, data: blocks.Buffer, runs: Runs, lines: LineTable) -> NDArray[np.int64]:
        """Append a block for each of many runs; returns their tickets.

        Segments and parts begin where `prepare` and `add_run` for one run after the other would begin them.
        """
        row, count = 0, runs.shape[1]
        while row < count:
            self._make_room()
            start, end, slot, sequence, _ = runs[:, row].tolist()
            segment = self._stated.number
            if not lines.is_stated(slot, segment):
                self._state_lines(lines.unstated(runs[SLOT, row:], segment), time_ns, lines)
            if end - start >= LARGE:
                line, payload = lines.line(slot), memoryview(data)[start:end]
                if len(payload) != end - start:
                    raise ValueError(f"run {row} is not in the data")
                runs[TICKET, row] = self.add_run(time_ns, line, sequence, payload, line.context)
                row += 1
                continue
            part = self._parts[-1]
            # What had to be stated may have filled it: then one run follows, or the next segment would be as full.
            room = max(min(PART - part.size, self.segment_bytes + 1 - self._planned), 1)
            taken, encoded = lines.encode(
                data, runs, row,
                packet_id=self.next_packet_id, ticket=self.ticket + 1, time_ns=time_ns, segment=segment, room=room,
            )  # fmt: skip
            part.data += encoded
            self._count(part, len(encoded), taken)
            row += taken
        tickets: NDArray[np.int64] = runs[TICKET]
        return tickets

    def _state_lines(self, unstated: list[Line], time_ns: int, lines: LineTable) -> None:
        """State what blocks of these lines need: of the first, and of as many more as the segment has room for."""
        for line in unstated:
            self._state(line.context, time_ns, None, line.principal)
            lines.set_stated(line, self._stated.number)
            if self._planned > self.segment_bytes:
                break

    def add(self, time_ns: int, tags: bytes, tags_crc: int, payload: blocks.Buffer, comment: bytes, flags: int) -> int:
        """Append one block to what waits; returns its ticket."""
        part = self._parts[-1] if self._parts else self._continue()
        if len(payload) < LARGE or not _is_constant(payload):
            packet = encode_packet(self.next_packet_id, time_ns, tags, tags_crc, payload, comment, flags)
            part.data += packet
            return self._count(part, len(packet))
        head, tail = packet_around(self.next_packet_id, time_ns, tags, tags_crc, payload, comment, flags)
        part.add_around(head, payload, tail)
        return self._count(part, len(head) + len(payload) + len(tail))

    def _count(self, part: Part, size: int, blocks_added: int = 1) -> int:
        """So many blocks, of so many bytes, have the next packet ids and tickets; returns the last ticket."""
        self.next_packet_id += blocks_added
        self.ticket += blocks_added
        part.last_packet_id = self.next_packet_id - 1
        part.last_ticket = self.ticket
        part.size += size
        self._planned += size
        self.pending_bytes += size
        return self.ticket

    def _append(self, block: bytes) -> None:
        part = self._parts[-1] if self._parts else self._continue()
        part.data += block
        self._count(part, len(block), 0)

    def _begin(self) -> None:
        self._stated = Statements()
        self._began_with, self._began_ns = self.next_packet_id, self._now_ns()
        self._continue(self.next_packet_id)
        self._planned = self._head_size

    def _continue(self, begins: int | None = None) -> Part:
        part = Part(self._stated, begins, last_ticket=self.ticket, last_packet_id=self.next_packet_id - 1)
        self._parts.append(part)
        return part

    def take(self, *, some: bool = False) -> PendingWrite:
        """Everything that waits, or the first part of it, to be stored and then settled before the next `take`."""
        count = 1 if some else len(self._parts)
        parts, self._parts = self._parts[:count], self._parts[count:]
        self._is_storing = True
        return PendingWrite(parts, self.durable)

    def store(self, batch: PendingWrite) -> None:
        """Write a batch and sync it. Never raises for a failing disk: the batch says what is left of it."""
        try:
            while batch.parts:
                part = batch.parts[0]
                if part.last_packet_id >= self._reserved:
                    self._reserved = self._reserve(part.last_packet_id + 1)
                batch.ids_used = True
                pieces, size = part.pieces, part.size
                if part.begins is not None:
                    self._next_file(part.begins)
                    pieces, size = [self._head_of(self._stored), *pieces], size + self._head_size
                if self._file is None:
                    raise OSError(errno.EBADF, "the segment has ended")
                self._file.store(pieces, size)
                batch.durable, self._stored = part.last_ticket, part.last_packet_id
                batch.ids_used = False
                del batch.parts[0]
        except OSError as error:
            batch.error = error
            if batch.ids_used:
                if self._file is not None:
                    self._file.abandon()
                    self._file = None
                # A segment that could not even be begun was removed, and leaves its name and its ids to the next try.
                begins = batch.parts[0].begins
                batch.ids_used = begins is None or self._is_there(begins)

    def _is_there(self, first_packet_id: int) -> bool:
        """Whether a segment, or what stands beside it, has the name that begins with this packet id; in doubt, yes."""
        path = self.folder / segment_name(first_packet_id, self.epoch)
        for each in (path, committed_path(path)):
            try:
                self._disk.look(each)
            except FileNotFoundError:
                continue
            except OSError:
                pass
            return True
        return False

    def _next_file(self, first_packet_id: int) -> None:
        if self._file is not None:
            if self.sync or self.quota is not None:
                self._file.seal()
            else:
                self._seal_later(self._file)
            self._file = None
        if self.quota is not None:
            self._drop_oldest(self.quota)
        path = self.folder / segment_name(first_packet_id, self.epoch)
        self._file = SegmentFile(path, self._disk, sync=self.sync)

    def _seal_later(self, file: SegmentFile) -> None:
        """Seal a segment while others write the next; one at a time. Raises what went wrong with the one before."""
        self._wait_for_seal()
        if self._sealer is None:
            self._sealer = self._new_sealer()
        self._sealing = self._sealer.submit(_seal, file)

    def _wait_for_seal(self) -> None:
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def _drop_oldest(self, quota: int) -> None:
        """Make room for one more segment within the quota."""
        paths = sorted(self.folder / name for name in self._disk.list(self.folder))
        sizes = [(path, self._disk.look(path).size) for path in paths if is_segment(path)]
        total = sum(size for _, size in sizes) + self.segment_bytes
        for path, size in sizes:
            if total <= quota:
                break
            self._disk.unlink(path)
            self._disk.sync_folder(self.folder)
            self.dropped_segments += 1
            total -= size

    def check(self) -> OSError | None:
        """What somebody did to the segment that is being written; None if it is as it should be.

        While a batch is stored, on another thread perhaps, the segment may end and another begin. `store` looks itself.
        """
        try:
            if self._file is not None and not self._is_storing:
                self._file.check()
        except OSError as error:
            return error
        return None

    def settle(self, batch: PendingWrite) -> int:
        """After `store`: the last ticket that is durable. After a failure, what is left waits again."""
        self.durable, self._is_storing = batch.durable, False
        if batch.error is not None:
            self._parts = batch.parts + self._parts
            if batch.ids_used:
                self._begin_again()
        self.pending_bytes = sum([part.size for part in self._parts])
        if batch.error is not None:
            raise JournalError(_failure(self.folder, batch.error)) from batch.error
        return self.durable

    def forget(self, batch: PendingWrite) -> int:
        """After a failed `store`: drop everything that waits; returns how many bytes that was."""
        lost = sum(part.size for part in batch.parts + self._parts)
        self.durable, self._is_storing = self.ticket, False
        self._parts, self._planned, self.pending_bytes = [], 0, 0
        return lost

    def _begin_again(self) -> None:
        """Give blocks whose segment has ended a segment of their own, under fresh packet ids.

        Nobody knows which of them the disk has. So the old ids are not used again: the next segment says in its head
        after which packet id it goes on, and what stands between that one and its own first does not count.

        Contexts and principals that the blocks name, and the keys they need, are stated again before them. All blocks
        that wait move up by the same number, so that a ticket still tells the packet id.
        """
        parts, first_ticket = self._parts, self.durable + 1
        before: list[bytes] = []
        is_homeless = parts[0].begins is None
        if is_homeless:
            count = next((at for at, part in enumerate(parts) if part.begins is not None), len(parts))
            stated, keys, before = _needed(parts[:count])
            joined = bytearray().join([*(each.block for each in keys), *(part.joined() for part in parts[:count])])
            merged = Part(stated, parts[0].last_packet_id, joined, parts[count - 1].last_ticket)
            merged.last_packet_id = parts[count - 1].last_packet_id
            if count == len(parts):
                self._stated = stated
            parts = self._parts = [merged, *parts[count:]]
        following = self.next_packet_id
        now = self._now_ns()
        head = b"".join(
            blocks.encode_packet(following + at, now, RECORD_TAGS, RECORD_TAGS_CRC, b"", record, blocks.INBOUND)
            for at, record in enumerate(before)
        )
        # Records that were stated again after an earlier failure have packet ids and no tickets.
        shift = following + len(before) - (self.packet_id(first_ticket) if is_homeless else parts[0].begins or 0)
        for part in parts:
            data = part.joined()
            for at in _packet_offsets(data):
                blocks.renumber(data, blocks.packet_id_at(data, at) + shift, at)
            part.last_packet_id += shift
            if part.begins is not None:
                part.begins += shift
        first = parts[0]
        first.begins = following
        first.data = bytearray(head) + first.joined()
        first.size = len(first.data)
        self.next_packet_id += shift
        if len(parts) == 1 or all(part.begins is None for part in parts[1:]):
            self._planned = self._head_size + sum(part.size for part in parts)
        self._shift_from(first_ticket, shift)

    def _shift_from(self, ticket: int, shift: int) -> None:
        shift += self._shifts[-1][1] if self._shifts else 0
        if self._shifts and self._shifts[-1][0] == ticket:
            self._shifts.pop()
        self._shifts.append((ticket, shift))

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

    def abandon(self) -> None:
        """Let go of the segment being written as it is: recovery seals it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _seal(file: SegmentFile) -> None:
    try:
        file.seal()
    except OSError:
        file.abandon()
        raise


def _is_constant(payload: blocks.Buffer) -> bool:
    """Whether its bytes stay as they are, whoever has them."""
    return isinstance(payload, bytes) or (isinstance(payload, memoryview) and isinstance(payload.obj, bytes))


def _needed(parts: list[Part]) -> tuple[Statements, list[Keys], list[bytes]]:
    """What blocks of an ended segment need to be understood: as statements, as keys, and as records."""
    known, needed = parts[0].stated, Statements()
    for part in parts:
        data = part.joined()
        for at in _packet_offsets(data):
            comment = blocks.comment_at(data, at)
            if not comment.startswith(b"conn="):
                continue
            connection = int(comment[5:21], 16)
            if connection in known.keys:
                needed.keys[connection] = known.keys[connection]
            if connection in known.principals:
                needed.principals[connection] = known.principals[connection]
            word = comment.find(b" ctx=")
            if word >= 0:
                number = int(comment[word + 5 : word + 13], 16)
                needed.contexts[number] = known.contexts[number]
    records = [each.record for each in needed.principals.values()]
    records += [record for each in needed.contexts.values() for record in each.records]
    return needed, list(needed.keys.values()), records


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
        errno.ENOENT: "let nobody remove files of a hub that runs",
        errno.ESTALE: "let nobody move files of a hub that runs",
    }.get(error.errno or 0, "check that disk")
    return (
        f"{folder}: cannot write the journal: {error.strerror}; {hint}. "
        "Nothing uncommitted was acknowledged; writing goes on once it works again"
    )


RECORD_PROTOCOL = "journal"
"""The name in the tags of records that belong to no protocol."""
RECORD_TAGS = blocks.encode_tags(RECORD_PROTOCOL)
RECORD_TAGS_CRC = zlib.crc32(RECORD_TAGS)
