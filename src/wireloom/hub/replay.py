"""Subscriptions that ask for the past: read from the journal, and from nothing else, also when they have caught up.

So there is no seam: a subscriber gets what is committed, in the order of the journal, each message with its offset.
The journal is its queue: a subscriber that reads slowly loses nothing, and costs no memory, until retention takes what
it has not read. Reading and decoding is done on threads, a piece at a time, and only when there is room to send. What
is left of a piece when the subscriber stops reading is in the budget of `backlogs.py`.
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
"""Seconds for which one of them sends before everybody else on the loop has a turn."""
_THREADS = 1
"""More would not read faster, for decoding takes the interpreter, but keep the event loop from it longer."""
_ARCHIVE_THREADS = 4
"""For those who read archived segments: they wait for a store, which nobody else should do with them."""


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
        """What was read and is not sent yet."""
        self._turns = asyncio.Lock()
        """Whose turn it is to send. Waiters are served in order, each in its own iteration of the event loop: however
        many there are, others wait for one slice."""

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def counted(self, connection: Connection) -> Iterator[None]:
        """Something reads the journal for a connection from now on; raises LimitReached if too many do."""
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
        """Send what was published to these topics since then, and go on with what comes."""
        if not isinstance(since, str):
            raise ConfigError(f"since is {since!r}; it must be text: a time or an offset")
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"as is {name!r}; it must be a text without /")
        self._hub.topic_limits.check(name)
        point = parse_since(since, identity=self._hub.journal.identity)
        if isinstance(point, Offset) and point.packet_id >= self._hub.journal.next_packet_id:
            # Whoever waited for that many messages to come would hear nothing, and not know why.
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
        """Send no more."""
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
        """Stop those whose pattern the connection may no longer subscribe to."""
        for name, replay in list(self._running.get(connection, {}).items()):
            if not may(replay.pattern):
                extra = about("access.revoked", connection)
                log.warning("%r may no longer subscribe %s", connection, replay.pattern, extra=extra)
                self.stop(connection, name)

    def drop(self, connection: Connection) -> None:
        """A connection is gone."""
        for name in list(self._running.get(connection, ())):
            self.stop(connection, name)

    async def close(self) -> None:
        """Stop everything. A thread that reads goes on to the end of its piece."""
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
                found = reading = None  # the backlog may be dropped
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
        """Send what was read, a slice at a time, as the peer takes it; returns the offset of the last one sent."""
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
                    del message  # it may be large, and the peer may not read for long
                    hub.metrics.replayed.add(1, connection.name)
            await asyncio.sleep(0)
        return last

    def _tell_missed(self, connection: Connection) -> None:
        log.warning("%r: retention has removed what it had not read yet", connection)
        self._hub.journal.record("lost", {"count": 0, "reason": "retention: removed before it was read"}, connection.id)
