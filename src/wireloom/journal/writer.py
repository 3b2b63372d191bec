"""The journal's writer. Appended blocks stay in memory until `commit` writes them to disk.

Implements the writing side of docs/reference/journal-format.md. One process writes a journal at a time. `append` takes
one run of frames. `append_runs` takes the runs that many connections sent in one iteration of the event loop.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from wireloom.journal import blocks
from wireloom.journal.context import Context, Principal
from wireloom.journal.disk import LOCAL, READ, Disk, make_folders, write_all
from wireloom.journal.identity import IdentityFile, JournalIdentity, LastIds, RandomBits, claim
from wireloom.journal.keys import Keys
from wireloom.journal.lines import Line
from wireloom.journal.log import (
    RECORD_PROTOCOL,
    RECORD_TAGS,
    RECORD_TAGS_CRC,
    PendingWrite,
    SegmentLog,
    one_thread,
)
from wireloom.journal.recovery import Recovery, recover
from wireloom.journal.segment import LOCK, REFUSED
from wireloom.model import ConfigError, Direction, JournalError, local_path, type_of_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from wireloom.journal.encoding import LineTable

MIB = 1024 * 1024
_MOST_UNUSED = 8_192
"""Lines without a slot, and contexts, that are remembered."""
_PATIENCE = (0.01, 0.05, 0.2)
"""Seconds to wait for the lock."""
_MAX_REFUSED_PENDING = MIB


@dataclass(slots=True)
class PendingCommit:
    """What waits to be written: see `Journal.take`."""

    frames: PendingWrite
    refused: PendingWrite | None
    """None if there is nothing, which is usual."""

    @property
    def size(self) -> int:
        """How many bytes there are to write."""
        return sum([part.size for part in self.frames.parts])

    @property
    def begins_segment(self) -> bool:
        """Whether a segment ends and another begins with it, which takes longer."""
        return any(part.begins for part in self.frames.parts)


class Journal:
    """A journal open for writing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Journal.open(folder) as journal:
    ...     connection = journal.new_connection_id()
    ...     ticket = journal.append("hsp", connection, Direction.C2S, 0, b"\\x03")
    ...     journal.commit() >= ticket
    True
    """

    def __init__(
        self,
        folder: Path,
        lock: int,
        recovery: Recovery,
        identity: IdentityFile,
        log: SegmentLog,
        refused: SegmentLog,
        lines: LineTable,
        *,
        disk: Disk,
        now_ns: Callable[[], int],
        random_bits: RandomBits,
    ) -> None:
        """Use `Journal.open`."""
        self.folder = folder
        self.recovery = recovery
        self.new_epoch = ""
        """Why a new epoch began with this opening; empty if none did, or with a new journal."""
        self.refused_dropped = 0
        """Refused bytes that were not kept because too many came at once or their disk failed."""
        self.on_pending: Callable[[], None] | None = None
        """Called when something waits for a commit where nothing did before."""
        self.disk = disk
        self._identity = identity
        self._now_ns = now_ns
        self._lock = lock
        self._log = log
        self._refused = refused
        self._told_damage = ""
        self._lines: dict[int, Line] = {}
        """By side."""
        self._table = lines
        """Of those that have a slot."""
        self._contexts: dict[tuple[tuple[int, str], ...], Context] = {}
        self._last_connection = 0
        self._salt = random_bits(19)
        self._floor = recovery.last_time_ns // 1_000_000 + 1

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        segment_bytes: int = 64 * MIB,
        sync: bool = True,
        refused_quota: int = 64 * MIB,
        hub: str | None = None,
        disk: Disk = LOCAL,
        now_ns: Callable[[], int] = time.time_ns,
        random_bits: RandomBits = secrets.randbits,
        sealer: Callable[[], Executor] = one_thread,
    ) -> Self:
        """Take the lock, recover what a crash left behind, and begin a new segment.

        `sync=False` acknowledges what is written and leaves the sync to the operating system. `hub` is the id of the
        hub; without one it is drawn when the folder becomes a journal.
        """
        # Readers import this module, too, and do without numpy and numba.
        from wireloom.journal.encoding import LineTable, warm

        path = local_path(folder, "a journal")
        warm()
        try:
            for each in (path, path / REFUSED):
                make_folders(disk, each)
            lock = _take_lock(path, disk)
        except OSError as error:
            raise JournalError(f"{path}: cannot open the journal: {error.strerror}; name a writable folder") from None
        try:
            found = recover(path, disk)
            found_refused = recover(path / REFUSED, disk)
            last = LastIds(found.last_packet_id, found_refused.last_packet_id)
            identity, why = claim(path, last, random_bits, hub, disk)
            own, version = identity.identity, _version()

            def head_of(after: int, *, refused: bool = False) -> bytes:
                return blocks.segment_head(version, own.hub, own.epoch, own.generation, after, refused=refused)

            log = SegmentLog(
                path,
                own.epoch,
                head_of,
                identity.reserve,
                last_packet_id=last.frames,
                next_packet_id=own.reserved,
                segment_bytes=segment_bytes,
                sync=sync,
                disk=disk,
                now_ns=now_ns,
                sealer=sealer,
            )
            refused = SegmentLog(
                path / REFUSED,
                own.epoch,
                functools.partial(head_of, refused=True),
                identity.reserve_refused,
                last_packet_id=last.refused,
                next_packet_id=own.refused_reserved,
                segment_bytes=min(segment_bytes, refused_quota // 8),
                sync=False,
                quota=refused_quota,
                disk=disk,
                now_ns=now_ns,
                sealer=sealer,
            )
            journal = cls(
                *(path, lock, found, identity, log, refused, LineTable()),
                disk=disk,
                now_ns=now_ns,
                random_bits=random_bits,
            )
            journal.new_epoch = why
            journal.record("started", _started(version, own, found))
            journal.commit()
        except OSError as error:
            disk.close(lock)
            raise JournalError(f"{path}: cannot recover the journal: {error.strerror}; check that disk") from None
        except (JournalError, ConfigError):
            disk.close(lock)
            raise
        return journal

    @property
    def identity(self) -> JournalIdentity:
        """Whose journal this is, and its epochs."""
        return self._identity.identity

    @property
    def epoch(self) -> str:
        """The epoch: with the hub's id and a packet id it names a block for ever."""
        return self._identity.identity.epoch

    def packet_id(self, ticket: int) -> int:
        """The packet id of the block that got this ticket, once it is durable."""
        return self._log.packet_id(ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_connection_id(self) -> int:
        """A 64-bit number for a connection, never given out before by this journal."""
        # Milliseconds, then a counter that begins at random: a clock that was set back between two runs
        # would have to meet the same millisecond and the same number to repeat an id.
        now = max(self._now_ns() // 1_000_000, self._floor)
        self._last_connection = max(self._last_connection + 1, now << 20 | self._salt)
        return self._last_connection

    def append(
        self,
        protocol: str,
        connection: int,
        direction: Direction,
        sequence: int,
        data: blocks.Buffer,
        *,
        source: str | None = None,
        destination: str | None = None,
        inbound: bool = True,
        topics: Context | Mapping[int, str] | None = None,
        keys: Keys | None = None,
        principal: Principal | None = None,
        said: Sequence[bytes] = (),
        time_ns: int | None = None,
    ) -> int:
        """Append a run of complete frames; returns the ticket that is durable once the run is.

        `sequence` counts the messages of this connection and direction before the run. `topics` are the numbers that
        stand for topics in it, or a `Context` made once, which is faster and has settings, too. `keys` open what is
        encrypted in it, `principal` is who the peer was proved to be: both are stated once a segment. `said` are
        comments of records about this run: they stand right before it, in the same segment and the same commit.
        """
        now = self._now_ns() if time_ns is None else time_ns
        log = self._log
        idle = not log.has_pending
        ends, side = (protocol, direction, source, destination), connection if inbound else ~connection
        line = self._lines.get(side)
        if line is None or line.ends != ends:
            line = self._remember(Line(connection, ends, inbound=inbound))
        if topics is None or topics.__class__ is Context:
            context = topics
        else:
            context = self._context(cast("Mapping[int, str]", topics)) if topics else None
        log.prepare(context, now, keys, principal, said)
        ticket = log.add_run(now, line, sequence, data, context)
        if idle and self.on_pending is not None:
            self.on_pending()
        return ticket

    def _remember(self, line: Line) -> Line:
        """Keep a line for the next run of its side; those that have no slot are forgotten when they are many."""
        if len(self._lines) - len(self._table) >= _MOST_UNUSED:
            self._lines = {side: each for side, each in self._lines.items() if each.slot >= 0}
        self._lines[line.side] = line
        return line

    def _context(self, topics: Mapping[int, str]) -> Context:
        """The context of some topics, the same one for all connections."""
        key = tuple(topics.items())
        known = self._contexts.get(key)
        if known is None:
            if len(self._contexts) >= _MOST_UNUSED:
                self._contexts.clear()
            known = self._contexts[key] = Context(topics)
        return known

    def line(
        self,
        connection: int,
        protocol: str,
        direction: Direction,
        source: str | None,
        destination: str | None,
        *,
        inbound: bool,
    ) -> Line:
        """Make a line for `append_runs`: one direction of one connection. `release` it when the connection ends."""
        line = Line(connection, (protocol, direction, source, destination), inbound=inbound)
        self._table.add(line)
        return self._remember(line)

    def describe(self, line: Line, context: Context | None, principal: Principal | None = None) -> None:
        """Say what the next runs of a line need to be understood; until then that is nothing.

        `append_runs` names the context in their blocks, and states it and the principal once a segment.
        """
        self._table.describe(line, context, principal)

    def release(self, line: Line) -> None:
        """Give back a line's slot: its connection has ended."""
        self._table.remove(line)
        if self._lines.get(line.side) is line:
            del self._lines[line.side]

    def append_runs(
        self,
        data: blocks.Buffer,
        starts: ArrayLike,
        ends: ArrayLike,
        lines: ArrayLike,
        sequences: ArrayLike,
        *,
        time_ns: int | None = None,
    ) -> NDArray[np.int64]:
        """Append a run of complete frames of each of many lines; returns their tickets, in the same order.

        Run `i` is `data[starts[i]:ends[i]]`, of the line with the slot `lines[i]`; `sequences[i]` counts the messages
        of that line before it. What is written is what `append` would write for one run after the other. Encrypted
        connections use `append`, which states their keys.

        A call costs 7 µs, and 0.1 µs more for each small run; `append` costs 2.2 µs. So it pays from four runs on.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Journal.open(folder) as journal:
        ...     one, two = (journal.line(each, "hsp", Direction.C2S, None, None, inbound=True) for each in (1, 2))
        ...     tickets = journal.append_runs(b"\\x03\\x03\\x03", [0, 1], [1, 3], [one.slot, two.slot], [0, 0])
        ...     journal.commit() >= int(tickets[-1])
        True
        """
        now = self._now_ns() if time_ns is None else time_ns
        idle = not self._log.has_pending
        runs = self._table.runs(starts, ends, lines, sequences)
        tickets = self._log.add_runs(now, data, runs, self._table)
        if idle and self.has_pending and self.on_pending is not None:
            self.on_pending()
        return tickets

    def record(
        self,
        name: str,
        details: Mapping[str, type_of_json],
        connection: int | None = None,
        *,
        protocol: str = RECORD_PROTOCOL,
        source: str | None = None,
        destination: str | None = None,
        time_ns: int | None = None,
    ) -> int:
        """Append a record (`opened`, `closed`, `lost`, ...); returns its ticket."""
        now = self._now_ns() if time_ns is None else time_ns
        idle = not self._log.has_pending
        comment = blocks.record_comment(name, details, connection)
        tags = blocks.encode_tags(protocol, source, destination)
        self._log.prepare(None, now)
        ticket = self._log.add(now, tags, zlib.crc32(tags), b"", comment, blocks.INBOUND)
        if idle and self.on_pending is not None:
            self.on_pending()
        return ticket

    def refuse(
        self,
        protocol: str,
        connection: int,
        direction: Direction,
        data: blocks.Buffer,
        *,
        clause: str,
        detail: str,
        source: str | None = None,
        destination: str | None = None,
        time_ns: int | None = None,
        size: int | None = None,
    ) -> int:
        """Record bytes that broke the protocol; their first 4 KiB go to the segments in `refused/`.

        `size` is how many there were, if `data` is only their beginning.
        """
        now = self._now_ns() if time_ns is None else time_ns
        details: dict[str, type_of_json] = {
            "clause": clause,
            "detail": detail,
            "size": len(data) if size is None else size,
            "direction": str(direction),
        }
        if self._refused.pending_bytes < _MAX_REFUSED_PENDING:
            tags = blocks.encode_tags(protocol, source, destination, datagram=direction is Direction.DGRAM)
            comment = blocks.record_comment("refused", details, connection)
            first = bytes(data[: blocks.MAX_REFUSED])
            self._refused.prepare(None, now)
            self._refused.add(now, tags, zlib.crc32(tags), first, comment, blocks.INBOUND)
        else:
            self.refused_dropped += len(data) if size is None else size
        return self.record(
            "refused",
            details,
            connection,
            protocol=protocol,
            source=source,
            destination=destination,
            time_ns=now,
        )

    def end_older(self, seconds: float) -> bool:
        """End segments that were begun so long ago: a record begins the next ones. Returns whether any ended.

        One that holds no more than the record it began with goes on.
        """
        is_older = self._log.is_older(seconds)
        if is_older:
            self._log.end_segment()
            self.record("rotated", {"after_seconds": seconds})
        if self._refused.is_older(seconds):
            now = self._now_ns()
            self._refused.end_segment()
            self._refused.prepare(None, now)
            comment = blocks.record_comment("rotated", {"after_seconds": seconds})
            self._refused.add(now, RECORD_TAGS, RECORD_TAGS_CRC, b"", comment, blocks.INBOUND)
            if not is_older:
                # A commit takes refused bytes along with others.
                self.record("rotated", {"refused": True})
            is_older = True
        return is_older

    @property
    def syncs(self) -> bool:
        """Whether a commit waits until the disk has it."""
        return self._log.sync

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that are not committed yet, in a commit that is under way or before one."""
        return self._log.pending_bytes

    @property
    def has_pending(self) -> bool:
        """Whether something waits for the next commit."""
        return self._log.has_pending

    @property
    def last_ticket(self) -> int:
        """The ticket of the block appended last."""
        return self._log.ticket

    @property
    def next_packet_id(self) -> int:
        """The packet id of the block that comes next."""
        return self._log.next_packet_id

    @property
    def durable(self) -> int:
        """The last ticket that is durable."""
        return self._log.durable

    def commit(self) -> int:
        """Write and sync everything appended so far; returns the last durable ticket.

        When the disk fails, raises JournalError and keeps what is not durable: a later commit tries it
        again in a new segment.
        """
        batch = self.take()
        self.store(batch)
        return self.settle(batch)

    def take(self, *, some: bool = False) -> PendingCommit:
        """The first step of a commit, on the thread that appends: take the pending blocks.

        `some`: take only as much as the disk stores in a few milliseconds. So callers learn early what is durable.
        """
        return PendingCommit(self._log.take(some=some), self._refused.take() if self._refused.has_pending else None)

    def store(self, batch: PendingCommit) -> None:
        """The second step, on any thread, also while others append: write and sync."""
        self._log.store(batch.frames)
        if batch.refused is not None:
            self._refused.store(batch.refused)

    def settle(self, batch: PendingCommit) -> int:
        """The last step, on the thread that appends. Returns the last durable ticket, or raises JournalError."""
        if batch.refused is not None:
            if batch.refused.error is not None:
                # Refused bytes are only evidence: they are dropped, not retried.
                self.refused_dropped += self._refused.forget(batch.refused)
            else:
                self._refused.settle(batch.refused)
        return self._log.settle(batch.frames)

    def close(self) -> None:
        """Commit what is left, seal the segment and release the lock."""
        if self._lock < 0:
            return
        try:
            self.record("stopped", {"version": _version()})
            self.commit()
            self._log.close()
            self._refused.close()
            self._identity.release(self._log.next_packet_id, self._refused.next_packet_id)
        except OSError as error:
            raise JournalError(f"{self.folder}: cannot close the journal: {error.strerror}; check that disk") from None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the lock without another write: the next one who opens the journal recovers it."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            self._log.abandon()
            self._refused.abandon()
            self.disk.close(lock)

    def check(self) -> None:
        """Check whether somebody deleted or moved the current segment. If so, begin a new one with a record of it."""
        damage = self._log.check()
        text = "" if damage is None else damage.strerror or str(damage)
        if text and text != self._told_damage:
            self.record("removed", {"detail": text})
        self._told_damage = text


def _started(version: str, own: JournalIdentity, found: Recovery) -> dict[str, type_of_json]:
    """What the record `started` says."""
    details: dict[str, type_of_json] = {"version": version}
    if own.ancestors:
        details["ancestor"] = {"end": own.ancestors[0].end, "epoch": own.ancestors[0].epoch}
    if found.cuts:
        details["cut_bytes"] = sum(cut.cut_bytes for cut in found.cuts)
        details["segment"] = found.cuts[-1].segment
    return details


def _take_lock(folder: Path, disk: Disk) -> int:
    for wait in (*_PATIENCE, None):
        try:
            lock = disk.lock(folder / LOCK)
            break
        except BlockingIOError:
            # A reader holds it for a moment, to see whether there is a writer.
            if wait is not None:
                time.sleep(wait)
    else:
        raise JournalError(
            f"{folder}: another process (pid {_holder(folder, disk)}) writes this journal; "
            "stop it or name another folder"
        )
    # The number only serves the message above: a disk too full for it is reported where it matters.
    with contextlib.suppress(OSError):
        disk.truncate(lock, 0)
        write_all(disk, lock, [b"%d\n" % os.getpid()], 0)
    return lock


def _holder(folder: Path, disk: Disk) -> str:
    with contextlib.suppress(OSError):
        file = disk.open(folder / LOCK, READ)
        try:
            return disk.pread(file, 20, 0).decode(errors="replace").strip() or "unknown"
        finally:
            disk.close(file)
    return "unknown"


@functools.cache
def _version() -> str:
    try:
        return installed_version("wireloom")
    except PackageNotFoundError:
        return "0"
