"""Replays: subscriptions that read past events from the journal, and go on with new ones.

A replay reads only the journal, even when it has caught up with live events. So there is no gap and no duplicate where
past and live events meet. A subscriber gets what is committed, in the order of the journal, each message with its
offset. The journal is its queue. A slow subscriber loses nothing and costs no memory, until retention removes what it
has not read.

Threads read and decode the journal, one piece at a time, and only when the peer can take more. If the subscriber stops
reading, the rest of a piece counts in the budget of `backlogs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.hub.backlogs import Backlog, Backlogs
from wireloom.hub.journal_events import PublicationReader, Published, Routing
from wireloom.hub.limits import LimitReached
from wireloom.hub.logs import about
from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.reader import Offset
from wireloom.journal.tail import Since, parse_since
from wireloom.model import ConfigError, JournalError, Kind, Message, PeerClosed
from wireloom.protocols.contract import HUB_PREFIX

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

SINCE = HUB_PREFIX + "since/"
"""Topics of replayed events are `$hub/since/<name>/<offset>/<topic>`."""
_PIECE = 128 * 1024
_SLICE = 0.002
"""Seconds for which one replay sends before the event loop runs other tasks."""
_THREADS = 1
"""One thread: decoding holds the interpreter lock, so more would not read faster, but would delay the event loop."""
_ARCHIVE_THREADS = 4
"""Threads for replays of archived segments. These wait for the object store, and must not delay other replays."""


@dataclass(slots=True)
class _Replay:
    """A subscription that reads the journal."""

    pattern: str
    task: asyncio.Task[None]


class Replays:
    """All subscriptions that read the journal."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._running: dict[Connection, dict[str, _Replay]] = {}
        self._count = 0
        self._by_payer: Counter[str] = Counter()
        self._threads = DaemonExecutor("replay", _THREADS)
        self._archive_threads = DaemonExecutor("replay-archive", _ARCHIVE_THREADS)
        self.backlogs = Backlogs(lambda: hub.config.limits.replay_bytes, lambda: hub.reached("replay_bytes"))
        """Messages that were read and are not sent yet."""
        self._turns = asyncio.Lock()
        """The replay that holds it may send. Waiters get it in order, each in its own iteration of the event loop. So
        other tasks wait for one slice at most, however many replays there are.
        """

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def counted(self, connection: Connection) -> Iterator[None]:
        """Count a reader of the journal for a connection. Raises LimitReached if there are too many."""
        limits, payer = self._hub.config.limits, connection.payer
        if self._count >= limits.replays:
            raise LimitReached("replays", f"{limits.replays} subscriptions read the journal already")
        if self._by_payer[payer] >= limits.replays_per_principal:
            most = f"{limits.replays_per_principal} subscriptions of {payer} read the journal already"
            raise LimitReached("replays_per_principal", most)
        self._count += 1
        self._by_payer[payer] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._by_payer[payer] -= 1
            if not self._by_payer[payer]:
                del self._by_payer[payer]

    def start(self, connection: Connection, pattern: str, since: object, name: object) -> None:
        """Send what was published to these topics since a point, then what follows."""
        if not isinstance(since, str):
            raise ConfigError(f"since is {since!r}; it must be text: a time or an offset")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"as is {name!r}; it must be a text without /")
        self._hub.topic_limits.check(name)
        point = parse_since(since, identity=self._hub.journal.identity)
        if isinstance(point, Offset) and point.packet_id >= self._hub.journal.next_packet_id:
            # An offset in the future would send nothing for long, and the subscriber would not know why.
            raise ConfigError(
                f"since {since} is past the end of this journal; is it of another one? Name a time instead"
            )
        if name in self._running.get(connection, ()):
            raise ConfigError(f"a subscription named {name!r} is there already; name this one otherwise")
        counted = contextlib.ExitStack()
        counted.enter_context(self.counted(connection))
        task = asyncio.get_running_loop().create_task(self._run(connection, pattern, point, name))
        self._running.setdefault(connection, {})[name] = _Replay(pattern, task)
        task.add_done_callback(lambda done: self._ended(done, connection, name, counted))

    def stop(self, connection: Connection, name: str) -> None:
        """Stop a replay."""
        replay = self._running.get(connection, {}).pop(name, None)
        if replay is not None:
            replay.task.cancel()

    def _ended(
        self, task: asyncio.Task[None], connection: Connection, name: str, counted: contextlib.ExitStack
    ) -> None:
        counted.close()
        own = self._running.get(connection, {})
        if name in own and own[name].task is task:
            del own[name]
        if not own:
            self._running.pop(connection, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("%r: reading the journal failed", connection, exc_info=task.exception())

    def revoke(self, connection: Connection, may: Callable[[str], bool]) -> None:
        """Stop the replays whose pattern the connection may no longer subscribe to."""
        for name, replay in list(self._running.get(connection, {}).items()):
            if not may(replay.pattern):
                extra = about("access.revoked", connection)
                log.warning("%r may no longer subscribe %s", connection, replay.pattern, extra=extra)
                self.stop(connection, name)

    def drop(self, connection: Connection) -> None:
        """Stop the replays of a connection that is gone."""
        for name in list(self._running.get(connection, ())):
            self.stop(connection, name)

    async def close(self) -> None:
        """Stop all replays. A thread that reads goes on to the end of its piece."""
        tasks = [replay.task for own in self._running.values() for replay in own.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)
        self._archive_threads.shutdown(wait=False)

    async def _run(self, connection: Connection, pattern: str, since: Since, name: str) -> None:
        hub = self._hub
        head = f"{SINCE}{name}/{hub.journal.epoch}:"
        reader: PublicationReader | None = None
        reading: Future[tuple[list[Published], Offset | None] | None] | None = None

        def let_go() -> None:
            nonlocal reader
            if reader is not None:
                reader.close_after(reading)
                reader = None

        backlog: Backlog[Offset] = Backlog(self.backlogs, let_go)
        try:
            while True:
                await connection.room()
                await self.backlogs.room()
                if reader is None:
                    reader = PublicationReader(
                        hub.config.journal_folder, since, pattern, Routing(hub), _PIECE, hub.read_disk
                    )
                commits = hub.commit.commits
                reading = (self._archive_threads if reader.is_remote else self._threads).submit(reader.read)
                found = await asyncio.wrap_future(reading)
                if reader.missed():
                    self._tell_missed(connection)
                if found is None:
                    await hub.commit.after(commits)
                    continue
                backlog.fill(found[0])
                end = found[1]
                found = reading = None  # release them: the backlog may be dropped
                last = await self._send(connection, head, backlog)
                since = (last if backlog.was_dropped else end) or since
        except PeerClosed:
            pass
        except JournalError as error:
            hub.metrics.read_errors.add(1, "replay")
            log.error("%r: cannot go on reading the journal: %s", connection, error, extra=about("journal.unreadable"))
            connection.driver.close("the journal cannot be read")
        finally:
            backlog.drop()

    async def _send(self, connection: Connection, head: str, backlog: Backlog[Offset]) -> Offset | None:
        """Send what was read, slice by slice, as the peer takes it. Returns the offset of the last message sent."""
        hub, last = self._hub, None
        while backlog:
            with backlog.blocked():
                await connection.room()
            async with self._turns:
                # Not the loop's clock: it may stand still until the next iteration.
                until = time.monotonic() + _SLICE
                while backlog and connection.has_room and time.monotonic() < until:
                    last, message = backlog.pop()
                    topic = f"{head}{last}/{message.topic}"
                    message = Message(Kind.EVENT, topic, message.body, content_type=message.content_type)
                    await hub.router.deliver_now(connection, message)
                    del message  # release it: it may be large, and the peer may not read for long
                    hub.metrics.replayed.add(1, connection.name)
            await asyncio.sleep(0)
        return last

    def _tell_missed(self, connection: Connection) -> None:
        log.warning("%r: retention has removed what it had not read yet", connection)
        self._hub.journal.record("lost", {"count": 0, "reason": "retention: removed before it was read"}, connection.id)
