"""Subscriptions that ask for the past: read from the journal, and from nothing else, also when they have caught up.

So there is no seam: a subscriber gets what is committed, in the order of the journal, each message with its offset.
The journal is its queue: a subscriber that reads slowly loses nothing, and costs no memory, until retention takes what
it has not read. Reading and decoding is done on threads, a piece at a time, and only when there is room to send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from wireloom.hub.logs import about
from wireloom.hub.published import PublicationReader, Published, Routing
from wireloom.journal.reader import Offset
from wireloom.journal.tail import Since, parse_since
from wireloom.journal.threads import DaemonThreads
from wireloom.model import ConfigError, JournalError, Kind, Message, PeerClosed
from wireloom.protocols.contract import HUB_PREFIX
from wireloom.topics import validate_pattern, validate_topic

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

SINCE = HUB_PREFIX + "since/"
"""Topics of replayed events are `$hub/since/<name>/<offset>/<topic>`."""
MAX_PER_CONNECTION = 16
_PIECE = 128 * 1024
_SLICE = 64
"""Events encoded before others on the loop have their turn."""
_THREADS = 2


class Replays:
    """All subscriptions that read the journal."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._running: dict[tuple[Connection, str], asyncio.Task[None]] = {}
        self._patterns: dict[tuple[Connection, str], str] = {}
        self._threads = DaemonThreads("replay", _THREADS)

    def __len__(self) -> int:
        return len(self._running)

    def start(self, connection: Connection, pattern: str, since: object, name: object) -> None:
        """Send what was published to these topics since then, and go on with what comes."""
        validate_pattern(pattern)
        if not isinstance(since, str):
            raise ConfigError(f"since is {since!r}; it must be text: a time or an offset")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"as is {name!r}; it must be a text without /")
        validate_topic(name)
        point = parse_since(since, identity=self._hub.journal.identity)
        if isinstance(point, Offset) and point.packet_id >= self._hub.journal.next_packet_id:
            # Whoever waited for that many messages to come would hear nothing, and not know why.
            raise ConfigError(
                f"since {since} is past the end of this journal; is it of another one? Name a time instead"
            )
        if (connection, name) in self._running:
            raise ConfigError(f"a subscription named {name!r} is there already; name this one otherwise")
        if sum(owner is connection for owner, _ in self._running) >= MAX_PER_CONNECTION:
            raise ConfigError(f"a connection may have {MAX_PER_CONNECTION} subscriptions with since")
        task = asyncio.get_running_loop().create_task(self._run(connection, pattern, point, name))
        self._running[connection, name] = task
        self._patterns[connection, name] = pattern
        task.add_done_callback(lambda done: self._ended(done, connection, name))

    def stop(self, connection: Connection, name: str) -> None:
        """Send no more."""
        task = self._running.pop((connection, name), None)
        if task is not None:
            task.cancel()

    def _ended(self, task: asyncio.Task[None], connection: Connection, name: str) -> None:
        if self._running.get((connection, name)) in (task, None):
            self._running.pop((connection, name), None)
            self._patterns.pop((connection, name), None)
        if not task.cancelled() and task.exception() is not None:
            log.error("%r: reading the journal failed", connection, exc_info=task.exception())

    def revoke(self, connection: Connection, may: Callable[[str], bool]) -> None:
        """Stop those whose pattern the connection may no longer subscribe to."""
        for owner, name in [key for key in self._running if key[0] is connection]:
            if not may(self._patterns[owner, name]):
                self.stop(owner, name)

    def drop(self, connection: Connection) -> None:
        """A connection is gone."""
        for owner, name in [key for key in self._running if key[0] is connection]:
            self.stop(owner, name)

    async def close(self) -> None:
        """Stop everything. A thread that reads goes on to the end of its piece."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def _run(self, connection: Connection, pattern: str, since: Since, name: str) -> None:
        hub = self._hub
        reader = PublicationReader(hub.config.journal_folder, since, pattern, Routing(hub), _PIECE)
        head = f"{SINCE}{name}/{hub.journal.epoch}:"
        reading: Future[tuple[list[Published], Offset | None] | None] | None = None
        try:
            while True:
                await connection.room()
                commits = hub.commit.commits
                reading = self._threads.submit(reader.read)
                found = await asyncio.wrap_future(reading)
                if reader.missed():
                    self._tell_missed(connection)
                if found is None:
                    await hub.commit.after(commits)
                    continue
                for number, (offset, message) in enumerate(found[0]):
                    if number % _SLICE == _SLICE - 1:
                        await asyncio.sleep(0)
                    await connection.room()
                    topic = f"{head}{offset}/{message.topic}"
                    event = Message(Kind.EVENT, topic, message.body, content_type=message.content_type)
                    await hub.router.deliver_now(connection, event)
                    hub.metrics.replayed.add(1, connection.name)
        except PeerClosed:
            pass
        except JournalError as error:
            hub.metrics.read_errors.add(1, "replay")
            log.error("%r: cannot go on reading the journal: %s", connection, error, extra=about("journal.unreadable"))
            connection.driver.close("the journal cannot be read")
        finally:
            reader.close_after(reading)

    def _tell_missed(self, connection: Connection) -> None:
        log.warning("%r: retention has removed what it had not read yet", connection)
        self._hub.journal.record("lost", {"count": 0, "reason": "retention: removed before it was read"}, connection.id)
