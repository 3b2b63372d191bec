"""The last value of every topic, for subscribers that ask for it (`retained`).

What is kept in memory is a number a topic: the ticket of the run that brought its last value. The value itself is read
from the journal when somebody asks, so it is there as long as the journal keeps it. A small file beside the segments,
written now and then, spares a restarted hub reading the whole journal; what came after it is read again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.hub.published import Publications, Routing
from wireloom.journal.reader import Entry, Offset
from wireloom.journal.runs import read_runs
from wireloom.journal.segment import first_packet_id, segments
from wireloom.journal.state import StateDamaged, load_state, save_state
from wireloom.journal.tail import Tail
from wireloom.journal.threads import DaemonThreads
from wireloom.model import JournalError, Kind, Message, PeerClosed, type_of_json
from wireloom.topics import is_pattern, matches, validate_pattern

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

FILE = "last-values.json"
MAX_TOPICS = 100_000
"""Topics whose last value is known; beyond it, those that were silent longest are forgotten."""
SAVE_EVERY = 30.0
_READ_BACK = 16
"""Segments that are read at most where no file says what is in them."""
_AT_A_TIME = 512


class LastValues:
    """Where the last value of each topic is."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.tickets: dict[str, int] = {}
        """By topic; the router writes into it for every publish."""
        self._known = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._saved_upto = 0
        self._due = 0.0
        self._sending: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreads("last-values", 2)

    @property
    def _file(self) -> Path:
        return self._hub.config.journal_folder / FILE

    def start(self) -> None:
        """Read in the background what earlier runs of the hub left."""
        self._loading = asyncio.get_running_loop().create_task(self._load(self._hub.journal.last_ticket))

    async def _load(self, before: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._threads, _find, self._hub.config.journal_folder, before, Routing(self._hub)
            )
            # As tickets of this process begin behind the packet ids before it, these are tickets, too.
            for topic, ticket in found.items():
                self.tickets.setdefault(topic, ticket)
        except JournalError as error:
            self._tell_unreadable("last values of before the start are not known", error)
        finally:
            self._known.set()

    def send(self, connection: Connection, pattern: str) -> None:
        """Send the last values of these topics before any other event; what is published meanwhile waits."""
        validate_pattern(pattern)
        connection.hold_events()
        task = asyncio.get_running_loop().create_task(self._send(connection, pattern, self._hub.journal.last_ticket))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, connection: Connection, pattern: str, now: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            if is_pattern(pattern):
                known = dict(self.tickets)
                await self._known.wait()
                known = self.tickets | known
            else:
                known = {pattern: self.tickets[pattern]} if pattern in self.tickets else {}
                await self._known.wait()
                if not known and pattern in self.tickets:
                    known = {pattern: self.tickets[pattern]}
            await self._hub.commit.wait(now)
            wanted = await loop.run_in_executor(self._threads, _matching, known, pattern, now)
            for at in range(0, len(wanted), _AT_A_TIME):
                part = [(self._hub.journal.packet_id(ticket), topic) for ticket, topic in wanted[at : at + _AT_A_TIME]]
                values, errors = await loop.run_in_executor(
                    self._threads,
                    _values,
                    self._hub.config.journal_folder,
                    part,
                    Routing(self._hub),
                )
                for error in errors:
                    self._tell_unreadable(f"{connection!r}: some last values cannot be read", error)
                for value in values:
                    await connection.writable()
                    await self._hub.router.deliver_now(connection, value)
        except PeerClosed:
            pass
        except JournalError as error:
            self._tell_unreadable(f"{connection!r}: last values cannot be read", error)
        finally:
            connection.release_events()

    def _tell_unreadable(self, what: str, error: JournalError) -> None:
        self._hub.metrics.read_errors.add(1, "retained")
        log.error("%s: %s", what, error, extra=about("journal.unreadable"))

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called often: forgets what is too much, saves now and then."""
        if len(self.tickets) > MAX_TOPICS:
            newest = heapq.nlargest(MAX_TOPICS * 3 // 4, self.tickets.items(), key=lambda each: each[1])
            self.tickets.clear()
            self.tickets.update(newest)
        upto = self._hub.journal.durable
        if loop.time() >= self._due and self._saving is None and self._known.is_set() and upto != self._saved_upto:
            self._due = loop.time() + SAVE_EVERY
            self._saving = loop.run_in_executor(self._threads, self._save, dict(self.tickets), upto)
            self._saving.add_done_callback(self._saved)

    def _saved(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        if not saving.cancelled() and saving.exception() is not None:
            log.warning("last values could not be saved: %s", saving.exception())

    def _save(self, tickets: dict[str, int], upto: int) -> None:
        packet_id = self._hub.journal.packet_id
        topics: dict[str, type_of_json] = {
            topic: packet_id(ticket) for topic, ticket in tickets.items() if ticket <= upto
        }
        save_state(self._file, {"upto": packet_id(upto), "epoch": self._hub.journal.epoch, "topics": topics})
        self._saved_upto = upto

    async def close(self) -> None:
        """Stop; save what is known."""
        for task in (self._loading, *self._sending):
            if task is not None:
                task.cancel()
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        if self._known.is_set():
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._save, dict(self.tickets), self._hub.journal.durable
                )
            except OSError as error:
                log.warning("last values could not be saved: %s", error)
        self._threads.shutdown(wait=False)


def _find(folder: Path, before: int, routing: Routing) -> dict[str, int]:
    """On a thread: the runs that hold the last values, from the file and from what was written after it."""
    upto, found = _saved_in(folder / FILE)
    newest = segments(folder)[-_READ_BACK:]
    first = first_packet_id(newest[0]) if newest else 0
    tail, publications = Tail(folder, Offset(max(upto, first - 1), 1 << 30)), Publications(routing)
    while entries := tail.read():
        for entry in entries:
            events = publications.take(entry)
            if isinstance(entry, Entry):
                if entry.place.packet_id > before:
                    return found
                for event in events:
                    # The last block of the run, as for what is published now.
                    found[event.topic or ""] = entry.last_packet_id
    return found


def _saved_in(path: Path) -> tuple[int, dict[str, int]]:
    """What the file says; nothing if there is none, or a damaged one."""
    try:
        match load_state(path):
            case None:
                pass
            case {"spread": int(spread)} if spread:
                # Of an earlier version, after a failed write: its numbers are no packet ids.
                pass
            case {"upto": int(upto), "topics": dict(topics)}:
                return upto, {topic: number for topic, number in topics.items() if isinstance(number, int)}
            case _:
                raise StateDamaged(f"{path}: is damaged: it says nothing about topics")
    except StateDamaged as error:
        log.error("%s; last values are searched for in the journal", error, extra=about("retained.damaged"))
    return 0, {}


def _matching(known: dict[str, int], pattern: str, now: int) -> list[tuple[int, str]]:
    """On a thread: ticket and topic of all that match, in the order they were published."""
    return sorted((ticket, topic) for topic, ticket in known.items() if ticket <= now and matches(pattern, topic))


def _values(
    folder: Path, wanted: Sequence[tuple[int, str]], routing: Routing
) -> tuple[list[Message], list[JournalError]]:
    """On a thread: the last values of these topics, where the journal still has them, and why some cannot be read."""
    errors: list[JournalError] = []
    packet_ids = [packet_id for packet_id, _ in wanted]
    runs: dict[int, list[Entry]] = dict(read_runs(folder, packet_ids, on_error=errors.append))
    values = []
    for packet_id, topic in wanted:
        last = _last_of(folder, runs.get(packet_id, ()), topic, routing)
        if last is not None:
            values.append(Message(Kind.EVENT, topic, last.body, content_type=last.content_type))
    return values, errors


def _last_of(folder: Path, run: Sequence[Entry], topic: str, routing: Routing) -> Message | None:
    """The last event of a topic in a run that is known to hold one; None if it does not."""
    found = [
        (entry, event) for entry in run if entry.inbound for event in routing.events(entry) if event.topic == topic
    ]
    kinds = {entry.message.kind for entry, _ in found}
    if Kind.REQUEST not in kinds or (len(kinds) == 1 and not routing.is_routed):
        return found[-1][1] if found else None
    # Some may be calls that a provider took: the records before the run say which.
    tail, publications = Tail(folder, Offset(run[0].place.packet_id, -1)), Publications(routing)
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
