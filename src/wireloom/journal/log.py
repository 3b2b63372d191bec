"""The write path of a journal's segments: number blocks, plan segments, store batches, repeat what failed.

Theory of operation
===================

**The life of a block.** `add`, `add_run` or `add_runs` gives it a ticket and a packet id, and encodes it into a `Part`
in memory. `take` hands parts to `store` as a `PendingWrite`. `store` writes and syncs them. `settle` advances
`durable`. Only `store` may run on another thread, while further blocks are added: it touches nothing but files.

**Segments are self-contained.** A block refers to contexts, principals and keys. Each segment states those it needs
before the first block that refers to them. `Statements` remembers what a segment has stated.

**Tickets and packet ids.** A ticket identifies a block to the caller. Tickets have no gaps and never change. A packet
id identifies a block on disk. At first both are equal.

**The problem.** After a failed write or sync nobody knows which blocks are on disk. If they were written again under
the same packet ids, a reader could find two blocks with one id.

**The idea.** A failed segment is never written to again. Its undurable blocks, which are still in memory, move to a new
segment under fresh packet ids. The head of the new segment names the last packet id that counts before it. Readers and
recovery ignore every packet between that id and the new segment's first. All blocks in memory move by the same number,
the shift. `_shifts` records from which ticket on which shift is valid, so `packet_id(ticket)` stays a binary search.

**The invariants.** A packet id is used for one block only. A block stays in memory until it is durable. Tickets up to
`durable` are on disk. Packet ids below `_reserved` were reserved durably before they were written, so a restart
continues above them.

**Example.** Tickets 1 to 10 are durable with packet ids 1 to 10. The write of 11 to 14 fails, and 15 is in memory: the
next packet id is 16. The failed blocks need one context, a record of its own. The new segment begins with packet id 16
(the context), and the blocks 11 to 15 become packets 17 to 21. The shift is 6. The head of the segment says that packet
10 was the last one that counts, so what the old segment may hold under the ids 11 to 14 is ignored.
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
"""Payloads from this size on are written without a copy."""
PART = 2 * 1024 * 1024
"""A part that has this many bytes is complete: the next run begins another. A commit may take a single part."""


HeadOf = Callable[[int], bytes]
"""Makes the head of a segment, given the last packet id before it that counts. Its size is always the same."""
Reserve = Callable[[int], int]
"""Reserves all packet ids below a number durably. Returns the actual limit, which may be higher."""


def one_thread() -> Executor:
    """The executor that seals a finished segment while the next one is written."""
    return ThreadPoolExecutor(1, thread_name_prefix="journal-seal")


@dataclass(slots=True)
class Statements:
    """What a segment has stated so far. A reader can then decode the segment without any other."""

    number: int = field(default_factory=itertools.count(1).__next__)
    """Identifies the segment in this process."""
    contexts: dict[int, Context] = field(default_factory=dict)
    """Contexts by their id."""
    keys: dict[int, Keys] = field(default_factory=dict)
    """Keys of encrypted connections, by connection."""
    principals: dict[int, Principal] = field(default_factory=dict)
    """Principals of authenticated connections, by connection."""


@dataclass(slots=True)
class Part:
    """Encoded blocks for one segment, with consecutive packet ids."""

    stated: Statements
    """What that segment states, in this part or in earlier ones."""
    begins: int | None = None
    """The packet id of the first block, if a segment begins with this part; else None. `data` has no segment head."""
    data: bytearray = field(default_factory=bytearray)
    """The last bytes of the part; new blocks are appended here."""
    last_ticket: int = 0
    last_packet_id: int = 0
    earlier: list[blocks.Buffer] = field(default_factory=list)
    """The bytes before `data`, in pieces. A large payload is a piece of its own, and is not copied."""
    size: int = 0
    """Bytes of `earlier` and `data`."""

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def add_around(self, head: bytes, payload: blocks.Buffer, tail: bytes) -> None:
        """Append a block without copying its payload. The payload must be immutable."""
        self.data += head
        self.earlier += (self.data, payload)
        self.data = bytearray(tail)

    @property
    def pieces(self) -> list[blocks.Buffer]:
        """All bytes, as the buffers of one write."""
        return [*self.earlier, self.data]

    def joined(self) -> bytearray:
        """All bytes in one buffer. The part keeps this buffer, so changes to it are written."""
        if self.earlier:
            self.data = bytearray().join(self.pieces)
            self.earlier = []
        return self.data


@dataclass(slots=True)
class PendingWrite:
    """A batch for `store`. After `store` it holds the parts that were not stored, and the error."""

    parts: list[Part]
    durable: int
    error: OSError | None = None
    ids_used: bool = False
    """After an error: whether the disk may hold blocks under the packet ids of `parts`."""


class SegmentLog:
    """The segments of one folder, written one after the other.

    A ticket stands for a block: blocks with tickets up to `durable` are on disk. Tickets have no gaps. Packet ids have
    one where blocks had to be written again (see "Tickets and packet ids").
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
        """Packet ids below this number are reserved durably, and may be written."""
        self._stored = last_packet_id
        """The packet id of the last block that is stored."""
        self._shifts: list[tuple[int, int]] = []
        """Pairs (ticket, shift): from this ticket on, the packet id is the ticket plus the shift."""
        self._parts: list[Part] = []
        self._stated = Statements()
        self._planned = 0
        """Bytes of the current segment, with those still in memory; 0: the next block begins a segment."""
        self._began_with, self._began_ns = next_packet_id, 0
        """The first packet id of that segment, and when it was begun."""
        self._file: SegmentFile | None = None
        self._is_storing = False
        """Whether a batch was taken and is not settled yet."""
        self._now_ns = now_ns
        self._new_sealer = sealer
        self._sealer: Executor | None = None
        self._sealing: Future[None] | None = None
        """The seal of the previous segment, for a journal without sync. It takes long: it syncs the whole segment."""

    @property
    def has_pending(self) -> bool:
        """Whether blocks wait for a `take`."""
        return bool(self._parts)

    def is_older(self, seconds: float) -> bool:
        """Whether the current segment was begun at least so many seconds ago, and holds more than one block."""
        if not self._planned or self.next_packet_id - self._began_with < 2:
            return False
        return self._now_ns() - self._began_ns >= seconds * 1e9

    def end_segment(self) -> None:
        """Make the next block begin another segment. The current one is sealed when that block is stored."""
        self._planned = 0

    def packet_id(self, ticket: int) -> int:
        """The packet id of the block that got this ticket.

        The packet id of a block that is not durable may still change.
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
        """Call this before the blocks of a run. It begins a segment if one is due, and states what the run needs.

        `said` are the comments of further records about this run.
        """
        self._make_room()
        if context is not None or keys is not None or principal is not None:
            self._state(context, time_ns, keys, principal)
        for record in said:
            self._add_record(record, time_ns)

    def _make_room(self) -> None:
        """Begin a segment or a part if the current one is full."""
        if not 0 < self._planned <= self.segment_bytes:
            self._begin()
        elif not self._parts or self._parts[-1].size >= PART:
            self._continue()

    def _state(
        self, context: Context | None, time_ns: int, keys: Keys | None = None, principal: Principal | None = None
    ) -> None:
        """Add the records that the current segment does not have yet."""
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

        The result equals that of `prepare` and `add_run` for each run: segments and parts begin at the same blocks.
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
            # The statements alone may have filled the segment. Add one run even then: the next segment would need the
            # same statements, and no run would ever be added.
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
        """State what the blocks of these lines need. The first line is always stated, the rest while there is room."""
        for line in unstated:
            self._state(line.context, time_ns, None, line.principal)
            lines.set_stated(line, self._stated.number)
            if self._planned > self.segment_bytes:
                break

    def add(self, time_ns: int, tags: bytes, tags_crc: int, payload: blocks.Buffer, comment: bytes, flags: int) -> int:
        """Append one block to the last part; returns its ticket."""
        part = self._parts[-1] if self._parts else self._continue()
        if len(payload) < LARGE or not _is_constant(payload):
            packet = encode_packet(self.next_packet_id, time_ns, tags, tags_crc, payload, comment, flags)
            part.data += packet
            return self._count(part, len(packet))
        head, tail = packet_around(self.next_packet_id, time_ns, tags, tags_crc, payload, comment, flags)
        part.add_around(head, payload, tail)
        return self._count(part, len(head) + len(payload) + len(tail))

    def _count(self, part: Part, size: int, blocks_added: int = 1) -> int:
        """Count blocks that were appended to a part, and their bytes; returns the last ticket."""
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
        """Take all pending parts, or with `some` only the first. Call `store` and `settle` before the next `take`."""
        count = 1 if some else len(self._parts)
        parts, self._parts = self._parts[:count], self._parts[count:]
        self._is_storing = True
        return PendingWrite(parts, self.durable)

    def store(self, batch: PendingWrite) -> None:
        """Write and sync a batch. A failing disk raises nothing: the batch keeps the error and the unstored parts."""
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
                # If creating the segment failed and its file was removed, its name and its ids are free for the retry.
                begins = batch.parts[0].begins
                batch.ids_used = begins is None or self._is_there(begins)

    def _is_there(self, first_packet_id: int) -> bool:
        """Whether the segment that begins with this packet id, or its `.committed` file, may exist; in doubt, yes."""
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
        """Seal a segment in the background, one at a time. Raises the error of the previous seal, if it failed."""
        self._wait_for_seal()
        if self._sealer is None:
            self._sealer = self._new_sealer()
        self._sealing = self._sealer.submit(_seal, file)

    def _wait_for_seal(self) -> None:
        sealing, self._sealing = self._sealing, None
        if sealing is not None:
            sealing.result()

    def _drop_oldest(self, quota: int) -> None:
        """Delete the oldest segments until one more fits into the quota."""
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
        """The error if somebody removed or changed the current segment's file; None if it is intact.

        While a batch is being stored this checks nothing, because `store` may be changing the segment on another
        thread. `store` makes the check itself.
        """
        try:
            if self._file is not None and not self._is_storing:
                self._file.check()
        except OSError as error:
            return error
        return None

    def settle(self, batch: PendingWrite) -> int:
        """Finish a batch after `store`; returns the last durable ticket. If it failed, its blocks are pending again."""
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
        """Give up after a failed `store`: drop all pending blocks; returns their size in bytes."""
        lost = sum(part.size for part in batch.parts + self._parts)
        self.durable, self._is_storing = self.ticket, False
        self._parts, self._planned, self.pending_bytes = [], 0, 0
        return lost

    def _begin_again(self) -> None:
        """Move all pending blocks to a new segment, under fresh packet ids (see "Tickets and packet ids").

        If the failed blocks belonged to a segment that had begun before, that segment's statements are lost for them.
        Then the contexts, principals and keys they need are stated again at the start of the new segment. All pending
        blocks move by the same shift.
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
        # Records that an earlier failure added have packet ids but no tickets. So a part that begins a segment takes
        # its first packet id from `begins`, not from its first ticket.
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
        """Seal the current segment. Pending blocks must have been stored before."""
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
        """Close the current segment's file without sealing it. Recovery seals it."""
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
    """Whether the bytes are immutable."""
    return isinstance(payload, bytes) or (isinstance(payload, memoryview) and isinstance(payload.obj, bytes))


def _needed(parts: list[Part]) -> tuple[Statements, list[Keys], list[bytes]]:
    """The statements that blocks of a failed segment refer to; their keys; and their records, to be written again."""
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
"""The protocol name in the tags of records that the journal itself writes."""
RECORD_TAGS = blocks.encode_tags(RECORD_PROTOCOL)
RECORD_TAGS_CRC = zlib.crc32(RECORD_TAGS)
