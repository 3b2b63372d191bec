"""The journal's writer: what the hub appends, in memory until `commit` puts it on disk.

Implements the writing side of docs/reference/journal-format.md. One process writes a journal at a time.
`append` is called once a socket read and makes no object that outlives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from wireloom.journal import blocks
from wireloom.journal.blocks import Envelope, TopicMap
from wireloom.journal.keys import Keys
from wireloom.journal.log import LARGE, RECORD_PROTOCOL, Batch, SegmentLog
from wireloom.journal.recovery import Recovery, recover
from wireloom.journal.segment import LOCK, REFUSED
from wireloom.model import Direction, JournalError, type_of_json

MIB = 1024 * 1024
_MAX_ENVELOPES = 8_192
_MAX_REFUSED_PENDING = MIB


@dataclass(slots=True)
class JournalBatch:
    """What waits to be written: see `Journal.take`."""

    frames: Batch
    refused: Batch | None
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

    def __init__(self, folder: Path, lock: int, recovery: Recovery, log: SegmentLog, refused: SegmentLog) -> None:
        """Use `Journal.open`."""
        self.folder = folder
        self.recovery = recovery
        self.refused_dropped = 0
        """Refused bytes that were not kept because too many came at once or their disk failed."""
        self.on_pending: Callable[[], None] | None = None
        """Called when something waits for a commit where nothing did before."""
        self._lock = lock
        self._log = log
        self._refused = refused
        self._envelopes: dict[int, Envelope] = {}
        """By connection; those of what goes out by its complement."""
        self._topics: dict[int, TopicMap] = {}
        self._last_connection = 0
        self._salt = secrets.randbits(19)
        self._floor = recovery.last_time_ns // 1_000_000 + 1

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        segment_bytes: int = 64 * MIB,
        sync: bool = True,
        refused_quota: int = 64 * MIB,
    ) -> Self:
        """Take the lock, recover what a crash left behind, and begin a new segment.

        `sync=False` acknowledges what is written and leaves the sync to the operating system.
        """
        path = Path(folder)
        try:
            for each in (path, path / REFUSED):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _take_lock(path)
        except OSError as error:
            raise JournalError(f"{path}: cannot open the journal: {error.strerror}; name a writable folder") from None
        try:
            version = _version()
            found = recover(path)
            found_refused = recover(path / REFUSED)
            log = SegmentLog(path, version, next_packet_id=found.next_packet_id, segment_bytes=segment_bytes, sync=sync)
            refused = SegmentLog(
                path / REFUSED,
                version,
                next_packet_id=found_refused.next_packet_id,
                segment_bytes=min(segment_bytes, refused_quota // 8),
                sync=False,
                quota=refused_quota,
            )
            journal = cls(path, lock, found, log, refused)
            details: dict[str, type_of_json] = {"version": version}
            if found.cuts:
                details["cut_bytes"] = sum(cut.cut_bytes for cut in found.cuts)
                details["segment"] = found.cuts[-1].segment
            journal.record("started", details)
            journal.commit()
        except OSError as error:
            os.close(lock)
            raise JournalError(f"{path}: cannot recover the journal: {error.strerror}; check that disk") from None
        except JournalError:
            os.close(lock)
            raise
        return journal

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
        now = max(time.time_ns() // 1_000_000, self._floor)
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
        topics: TopicMap | Mapping[int, str] | None = None,
        keys: Keys | None = None,
        time_ns: int | None = None,
    ) -> int:
        """Append a run of complete frames; returns the ticket that is durable once the run is.

        `sequence` counts the messages of this connection and direction before the run. `topics` are
        the numbers that stand for topics in it; a `TopicMap` made once is fastest. `keys` open what is encrypted in
        it; they are stated once a segment.
        """
        now = time.time_ns() if time_ns is None else time_ns
        log = self._log
        idle = not log.has_pending
        ends, side = (protocol, direction, source, destination), connection if inbound else ~connection
        envelope = self._envelopes.get(side)
        if envelope is None or envelope.ends != ends:
            if len(self._envelopes) >= _MAX_ENVELOPES:
                self._envelopes.clear()
            envelope = self._envelopes[side] = Envelope.of(connection, ends, inbound=inbound)
        if topics is None or topics.__class__ is TopicMap:
            topic_map = topics
        else:
            topic_map = self._topic_map(connection, cast("Mapping[int, str]", topics)) if topics else None
        if data.__class__ is bytes and len(data) < LARGE and log.takes_later(topic_map, keys):
            ticket = log.add_later(now, envelope, sequence, data, topic_map)
        else:
            ticket = self._append_now(now, envelope, sequence, data, topic_map, keys)
        if idle and self.on_pending is not None:
            self.on_pending()
        return ticket

    def _append_now(
        self,
        now: int,
        envelope: Envelope,
        sequence: int,
        data: blocks.Buffer,
        topic_map: TopicMap | None,
        keys: Keys | None,
    ) -> int:
        log, tags, crc, flags = self._log, envelope.tags, envelope.tags_crc, envelope.flags
        log.prepare(topic_map, now, keys)
        comment = envelope.comment_for(sequence, topic_map)
        room = blocks.MAX_PACKET_DATA - len(tags)
        if len(data) > room:
            view = memoryview(data)
            last = len(view) - room
            start = 0
            while start < last:
                log.add(now, tags, crc, view[start : start + room], comment + b" more", flags)
                start += room
            data = view[start:]
        return log.add(now, tags, crc, data, comment, flags)

    def _topic_map(self, connection: int, topics: Mapping[int, str]) -> TopicMap:
        """The map of a connection, made anew only when its topics have changed."""
        known = self._topics.get(connection)
        if known is None or known.topics != topics:
            if len(self._topics) >= _MAX_ENVELOPES:
                self._topics.clear()
            known = self._topics[connection] = TopicMap(topics)
        return known

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
        now = time.time_ns() if time_ns is None else time_ns
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
    ) -> int:
        """Record bytes that broke the protocol; their first 4 KiB go to the segments in `refused/`."""
        now = time.time_ns() if time_ns is None else time_ns
        details: dict[str, type_of_json] = {
            "clause": clause,
            "detail": detail,
            "size": len(data),
            "direction": str(direction),
        }
        if self._refused.pending_bytes < _MAX_REFUSED_PENDING:
            tags = blocks.encode_tags(protocol, source, destination, datagram=direction is Direction.DGRAM)
            comment = blocks.record_comment("refused", details, connection)
            first = bytes(data[: blocks.MAX_REFUSED])
            self._refused.prepare(None, now)
            self._refused.add(now, tags, zlib.crc32(tags), first, comment, blocks.INBOUND)
        else:
            self.refused_dropped += len(data)
        return self.record(
            "refused",
            details,
            connection,
            protocol=protocol,
            source=source,
            destination=destination,
            time_ns=now,
        )

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
        """The packet id of the block that comes next; ids run ahead of tickets after a write that failed."""
        return self._log.next_packet_id

    @property
    def durable(self) -> int:
        """The last ticket that is durable."""
        return self._log.durable

    def encode(self) -> None:
        """Whoever appended has sent what it had to send: a good time to encode what was appended."""
        self._log.encode()

    def commit(self) -> int:
        """Write and sync everything appended so far; returns the last durable ticket.

        When the disk fails, raises JournalError and keeps what is not durable: a later commit tries it
        again in a new segment.
        """
        batch = self.take()
        self.store(batch)
        return self.settle(batch)

    def take(self, *, some: bool = False) -> JournalBatch:
        """The first third of a commit, on the thread that appends: what is to be written.

        `some`: no more than the disk takes in a few milliseconds, so that what is durable is told while more comes.
        """
        return JournalBatch(self._log.take(some=some), self._refused.take() if self._refused.has_pending else None)

    def store(self, batch: JournalBatch) -> None:
        """The second third, on any thread, while others append: write and sync."""
        self._log.store(batch.frames)
        if batch.refused is not None:
            self._refused.store(batch.refused)

    def settle(self, batch: JournalBatch) -> int:
        """The last third, on the thread that appends: the last durable ticket, or JournalError."""
        if batch.refused is not None:
            if batch.refused.error is not None:
                # Evidence is worth less than acknowledged messages: it is dropped, not retried.
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
        finally:
            try:
                self._log.close()
                self._refused.close()
            finally:
                os.close(self._lock)
                self._lock = -1


def _take_lock(folder: Path) -> int:
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise JournalError(
            f"{folder}: another process (pid {holder}) writes this journal; stop it or name another folder"
        ) from None
    # The number only serves the message above: a disk too full for it is reported where it matters.
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _version() -> str:
    try:
        return installed_version("wireloom")
    except PackageNotFoundError:
        return "0"
