"""The last value of every topic, for subscribers that ask for it (`retained`).

Memory holds one number for each topic: the ticket of the run that brought its last value (`last_value_index.py`). The
value itself is read from the journal when a subscriber asks. So it is available as long as the journal keeps it.

A file beside the segments holds the same numbers. The hub appends changes to it now and then. After a restart the hub
reads that file, and from the journal only what is newer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.hub.backlogs import Backlog, weight
from wireloom.hub.journal_events import Publications, Routing
from wireloom.hub.last_value_index import FILE, LatestFile, LatestTickets
from wireloom.hub.logs import about
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.reader import Entry, Offset
from wireloom.journal.runs import read_runs
from wireloom.journal.segment import first_packet_id, segments
from wireloom.journal.state import StateDamaged
from wireloom.journal.tail import Tail
from wireloom.model import JournalError, Kind, Message, PeerClosed
from wireloom.topics import is_pattern, matches

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

SAVE_EVERY = 30.0
_READ_BACK = 16
"""Maximum segments that are read back if no file covers them."""
_AT_A_TIME = 512
_PIECE = 256 * 1024
"""Bytes of values that are read at a time. The run that crosses this limit is read to its end."""


class LastValues:
    """The last value of each topic."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.latest = LatestTickets(hub.config.limits.last_values_bytes)
        self.note = self.latest.note
        """The router calls this for every topic of a batch."""
        self._known = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._saved_upto = 0
        self._due = 0.0
        self._forgotten = 0
        """Forgotten topics that metrics already count."""
        self._sending: dict[asyncio.Task[None], tuple[Connection, str]] = {}
        self._searching = asyncio.Lock()
        """Held during a search: only one search of all topics runs at a time."""
        self._threads = DaemonExecutor("last-values", 2)

    @property
    def tickets(self) -> dict[str, int]:
        """Tickets by topic."""
        return self.latest.tickets

    def start(self) -> None:
        """Restore the index in the background, from earlier runs of the hub."""
        folder = self._hub.config.journal_folder
        self._file = LatestFile(folder / FILE, self._hub.journal.epoch, self._hub.disk)
        self._loading = asyncio.get_running_loop().create_task(self._load(folder, self._hub.journal.last_ticket))

    async def _load(self, folder: Path, before: int) -> None:
        loop = asyncio.get_running_loop()
        routing, disk = Routing(self._hub), self._hub.read_disk
        try:
            found = await loop.run_in_executor(
                self._threads, _find, folder, self._file, before, routing, self.latest.most, disk
            )
            # Tickets of this process begin after all earlier packet ids, so packet ids are valid tickets.
            for number, (topic, ticket) in enumerate(found):
                if not self.latest.note_older(topic, ticket):
                    break
                if number % _AT_A_TIME == _AT_A_TIME - 1:
                    await asyncio.sleep(0)
        except JournalError as error:
            self._tell_unreadable("last values of before the start are not known", error)
        finally:
            self._known.set()

    def send(self, connection: Connection, pattern: str) -> None:
        """Send the last values of these topics before any other event. What is published meanwhile is queued.

        Raises LimitReached if too many subscriptions read the journal.
        """
        counted = contextlib.ExitStack()
        counted.enter_context(self._hub.replays.counted(connection))
        connection.hold_events()
        task = asyncio.get_running_loop().create_task(self._send(connection, pattern, self._hub.journal.last_ticket))
        self._sending[task] = connection, pattern
        task.add_done_callback(lambda done: self._sent(done, connection, counted))

    def _sent(self, task: asyncio.Task[None], connection: Connection, counted: contextlib.ExitStack) -> None:
        counted.close()
        del self._sending[task]
        connection.release_events()
        if not task.cancelled() and task.exception() is not None:
            log.error("%r: reading last values failed", connection, exc_info=task.exception())

    def revoke(self, connection: Connection, may: Callable[[str], bool]) -> None:
        """Stop sending values that a connection may no longer subscribe to."""
        for task, (owner, pattern) in list(self._sending.items()):
            if owner is connection and not may(pattern):
                task.cancel()

    async def _send(self, connection: Connection, pattern: str, now: int) -> None:
        backlogs = self._hub.replays.backlogs
        backlog: Backlog[int] = Backlog(backlogs)
        try:
            await self._known.wait()
            wanted = await self._find_matching(pattern, now)
            await self._hub.commit.wait(now)
            at = 0
            while at < len(wanted):
                await connection.writable()
                await backlogs.room()
                part = [(self._hub.journal.packet_id(ticket), topic) for ticket, topic in wanted[at : at + _AT_A_TIME]]
                values, upto, errors = await asyncio.get_running_loop().run_in_executor(
                    self._threads,
                    _values,
                    self._hub.config.journal_folder,
                    part,
                    Routing(self._hub),
                    self._hub.read_disk,
                )
                for error in errors:
                    self._tell_unreadable(f"{connection!r}: some last values cannot be read", error)
                backlog.fill(values)
                del values  # release them: the backlog may be dropped
                sent = -1
                while backlog:
                    with backlog.blocked():
                        await connection.writable()
                    if backlog:
                        sent, value = backlog.pop()
                        await self._hub.router.deliver_now(connection, value)
                        del value
                at += sent + 1 if backlog.was_dropped else upto
        except PeerClosed:
            pass
        except JournalError as error:
            self._tell_unreadable(f"{connection!r}: last values cannot be read", error)
        finally:
            backlog.drop()

    async def _find_matching(self, pattern: str, now: int) -> list[tuple[int, str]]:
        """Ticket and topic of all matches, in the order of publication.

        What was published after `now` is delivered as a live event.
        """
        if not is_pattern(pattern):
            ticket = self.tickets.get(pattern)
            return [] if ticket is None or ticket > now else [(ticket, pattern)]
        async with self._searching:
            known = list(self.tickets.items())
            return await asyncio.get_running_loop().run_in_executor(self._threads, _matching, known, pattern, now)

    def _tell_unreadable(self, what: str, error: JournalError) -> None:
        self._hub.metrics.read_errors.add(1, "retained")
        log.error("%s: %s", what, error, extra=about("journal.unreadable"))

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called often: saves from time to time."""
        self._hub.reached("last_values_bytes", self.latest.forgotten - self._forgotten)
        self._forgotten = self.latest.forgotten
        upto = self._hub.journal.durable
        if loop.time() >= self._due and self._saving is None and self._known.is_set() and upto != self._saved_upto:
            self._due = loop.time() + SAVE_EVERY
            self._saving = loop.create_task(self._save(upto))

    async def _save(self, upto: int) -> None:
        """Append changes to the file, or rewrite it."""
        changed = self.latest.take_unsaved()
        whole = list(self.tickets.items()) if self._file.is_long else None
        unsaved = changed
        try:
            unsaved = await asyncio.get_running_loop().run_in_executor(self._threads, self._write, changed, whole, upto)
            self._saved_upto = upto
        except OSError as error:
            log.warning("last values could not be saved: %s", error)
        finally:
            self.latest.put_back(unsaved)
            self._saving = None

    def _write(self, changed: dict[str, int], whole: list[tuple[str, int]] | None, upto: int) -> dict[str, int]:
        """Runs on a thread. Returns the changes that are not durable yet."""
        packet_id = self._hub.journal.packet_id
        save, topics = (self._file.append, changed.items()) if whole is None else (self._file.rewrite, whole)
        save(((topic, packet_id(ticket)) for topic, ticket in topics if ticket <= upto), packet_id(upto))
        return {topic: ticket for topic, ticket in changed.items() if ticket > upto}

    async def close(self) -> None:
        """Stop, and save the index."""
        for task in (self._loading, *self._sending):
            if task is not None:
                task.cancel()
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        if self._known.is_set():
            await self._save(self._hub.journal.durable)
        self._threads.shutdown(wait=False)


def _find(
    folder: Path, file: LatestFile, before: int, routing: Routing, most: int, disk: Disk
) -> Sequence[tuple[str, int]]:
    """Runs on a thread: the runs with the last values, newest first, from the file and from later segments."""
    try:
        return _find_on(disk, folder, file, before, routing, most)
    except JournalError as error:
        if disk is LOCAL:
            raise
        what = "last values are searched for on this disk only: %s"
        log.warning(what, error, extra=about("retained.unarchived"))
        return _find_on(LOCAL, folder, file, before, routing, most)


def _find_on(
    disk: Disk, folder: Path, file: LatestFile, before: int, routing: Routing, most: int
) -> Sequence[tuple[str, int]]:
    upto, saved = file.load(_tell_damaged)
    found = LatestTickets(most)
    for topic, number in sorted(saved.items(), key=lambda each: each[1]):
        found.note(topic, number)
    del saved
    newest = segments(folder, disk)[-_READ_BACK:]
    first = first_packet_id(newest[0]) if newest else 0
    tail, publications = Tail(folder, Offset(max(upto, first - 1), 1 << 30), disk=disk), Publications(routing)
    while entries := tail.read():
        for entry in entries:
            events = publications.take(entry)
            if isinstance(entry, Entry):
                if entry.place.packet_id > before:
                    return list(reversed(found.tickets.items()))
                for event in events:
                    # The last block of the run, as for live events.
                    found.note(event.topic or "", entry.last_packet_id)
    return list(reversed(found.tickets.items()))


def _tell_damaged(error: StateDamaged) -> None:
    log.error("%s; last values are searched for in the journal", error, extra=about("retained.damaged"))


def _matching(known: Iterable[tuple[str, int]], pattern: str, now: int) -> list[tuple[int, str]]:
    """Runs on a thread: ticket and topic of all matches, in the order of publication."""
    return sorted((ticket, topic) for topic, ticket in known if ticket <= now and matches(pattern, topic))


def _values(
    folder: Path, wanted: Sequence[tuple[int, str]], routing: Routing, disk: Disk
) -> tuple[list[tuple[int, Message]], int, list[JournalError]]:
    """Runs on a thread: the last values of these topics that the journal still has, each with its index in `wanted`.

    `wanted` holds packet id and topic, by ascending packet id. Also returns how many of `wanted` were handled (fewer if
    values are large), and why some cannot be read.
    """
    errors: list[JournalError] = []
    topics: dict[int, list[int]] = {}
    for index, (packet_id, _) in enumerate(wanted):
        topics.setdefault(packet_id, []).append(index)
    values: list[tuple[int, Message]] = []
    size = 0
    for packet_id, run in read_runs(folder, list(topics), disk=disk, on_error=errors.append):
        for index in topics[packet_id]:
            topic = wanted[index][1]
            last = _last_of(folder, run, topic, routing, disk)
            if last is not None:
                value = Message(Kind.EVENT, topic, last.body, content_type=last.content_type)
                values.append((index, value))
                size += weight(value)
        if size >= _PIECE:
            return values, topics[packet_id][-1] + 1, errors
    return values, len(wanted), errors


def _last_of(folder: Path, run: Sequence[Entry], topic: str, routing: Routing, disk: Disk) -> Message | None:
    """The last event of a topic in a run that should contain one. None if it does not."""
    found = [
        (entry, event) for entry in run if entry.inbound for event in routing.events(entry) if event.topic == topic
    ]
    kinds = {entry.message.kind for entry, _ in found}
    if Kind.REQUEST not in kinds or (len(kinds) == 1 and not routing.is_routed):
        return found[-1][1] if found else None
    # Some requests may be calls that went to a provider. The records before the run say which.
    tail, publications = Tail(folder, Offset(run[0].place.packet_id, -1), disk=disk), Publications(routing)
    try:
        events = [(entry, publications.take(entry)) for entry in tail.read()]
    finally:
        tail.close()
    within = [
        event
        for entry, each in events
        if isinstance(entry, Entry) and entry.place.packet_id == run[0].place.packet_id
        for event in each
        if event.topic == topic
    ]
    return within[-1] if within else None
