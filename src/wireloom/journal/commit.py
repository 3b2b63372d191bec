"""Group commit: the journal on an event loop, and who waits for what to be durable.

Implements "Group commit" of the design. What comes together in one turn is synced at once, on the loop, because a
hop to a thread costs more than a fast sync. Larger commits, and blocks that nobody waits for, are left to a thread.
Further blocks gather meanwhile, so every sync carries all that came during the one before, up to a few megabytes.
A failing disk keeps everybody waiting and is tried again until it works; nothing in doubt is ever reported durable.

A slow disk must not stall the loop. Two rules decide where a small commit is made:

- If most of the last nine took two milliseconds or more, the thread makes it.
- If one on the loop took `SLOW` seconds, the thread makes the next ones, until `FIRST_RUN` in a row were faster than
  that. If the loop is soon stalled again, twice as many are needed, up to `LONGEST_RUN`.

A busy loop must not stall the thread either. The thread needs the interpreter lock between its system calls. A busy
loop releases the lock often, for microseconds each: in kernels, to send, to poll. That wakes the thread, but the loop
has the lock again before the thread runs. The thread would force a switch only after a millisecond without such a
wake-up (`sys.setswitchinterval`), so a commit of 50 KB took half a second. Therefore the loop waits for the thread, for
`SHARE` seconds at most, every `SHARE_EVERY` seconds, while the thread is at a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable

from wireloom.journal.daemon_executor import DaemonExecutor
from wireloom.journal.writer import Journal, PendingCommit
from wireloom.model import JournalError

LATEST = 0.005
"""Seconds after which a block is written even if nobody waits for it."""
RETRY = 0.2
"""Seconds between attempts while the disk fails."""
INLINE_BYTES = 256 * 1024
INLINE_SECONDS = 0.002
"""Commits this small, on a disk this fast, are made on the loop. How fast it is says the lower quartile of the last
commits: on a busy machine many seem slow that have only waited for a processor, and with a thread all the more."""
INLINE_WRITTEN = 1024 * 1024
"""The same where nothing is synced."""
SLOW = 0.02
"""Seconds of one commit on the loop after which the next ones are made on the thread."""
STALLED = 0.1
"""The same for one that the thread has made: less may be the wait for a processor."""
FIRST_RUN, LONGEST_RUN = 8, 1024
"""Commits in a row that must be faster than `SLOW` before they are made on the loop again."""
SHARE, SHARE_EVERY = 0.0002, 0.002
"""Seconds for which the loop lets the thread have the interpreter, and how often it does so."""
SHARE_PART = 16
"""A commit that takes long waits for the disk, not for the interpreter: the next wait then comes after this part of the
time that it has taken."""
SOON = 16
"""A stall is a mistake of the rule, and doubles the run, if it comes within so many runs' commits after its end."""
MOST_IN_VAIN = 6
"""Looks for what else has come that are counted: if so many found nothing, as many commits, as a power of two, are made
without one."""
HIGH_WATER = 64 * 1024 * 1024
"""Bytes in memory above which `full` asks the owner to stop reading."""


class GroupCommit:
    """Commits a journal's blocks on an event loop; all methods are called on that loop.

    Every block the journal takes is committed by itself within 5 ms. `when_durable` and `wait` tell when.
    """

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, *, high_water: int = HIGH_WATER) -> None:
        self.journal = journal
        self.last_error: str | None = None
        """What the disk said when the last attempt failed; None while it works."""
        self.commits = 0
        """Commits that succeeded."""
        self._next: asyncio.Future[None] | None = None
        """Done with the next commit; there while somebody waits for it."""
        self.on_commit: Callable[[], None] | None = None
        """Called before a commit that somebody waits for: what has arrived meanwhile may still be appended."""
        self.on_told: Callable[[], None] | None = None
        """Called when all who waited for a commit have been told."""
        self.on_failed: Callable[[str], None] | None = None
        """Called with what the disk said when an attempt failed."""
        self._loop = loop
        self.high_water = high_water
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """Ticket, order of arrival, callback; sorted."""
        self._arrivals = 0
        self._room: list[Callable[[], None]] = []
        self._thread = DaemonExecutor("journal")
        self._syncing = False
        self._in_flight: PendingCommit | None = None
        """What the thread commits."""
        self._idle = threading.Event()
        """Set while the thread is at no commit."""
        self._begun = 0.0
        """When the thread was given its last commit."""
        self._sharing: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._looking = 0
        """How many wait, while the loop looks once more whether others have come; 0 while it does not."""
        self._in_vain = 0
        """Looks in a row that found nothing."""
        self._alone = 0
        """Commits to come for which there is none."""
        self._since = 0.0
        """When the first of what waits for a commit came."""
        self._average = 0.0
        """Seconds a commit takes, as a moving average."""
        self._latest: deque[float] = deque([0.0], maxlen=9)
        """Seconds that the last commits took."""
        self._is_fast = True
        """Whether a small commit may be made on the loop."""
        self._run = 0
        """How long the last run of fast commits had to be."""
        self._run_left = 0
        """How many of them are still to come; 0 while commits may be made on the loop."""
        self._run_ended = 0
        """`commits` at its end."""
        self._closed = False
        self._given_up = False
        """Whether closing was cancelled: from then on the journal belongs to the thread."""
        journal.on_pending = self._pending
        if journal.has_pending:
            self._pending()

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to commit succeeded."""
        return self.last_error is None

    @property
    def is_writing(self) -> bool:
        """Whether the thread is at a commit: the journal's files are its own until it is done."""
        return self._syncing

    @property
    def seconds(self) -> float:
        """How long a commit takes, as a moving average."""
        return self._average

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that are not durable yet."""
        return self.journal.pending_bytes

    @property
    def full(self) -> bool:
        """Whether so much waits that the owner should stop reading until `when_room` calls."""
        return self.journal.pending_bytes >= self.high_water

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call once when less than half of the limit waits; soon, if that is so already."""
        self._room.append(callback)
        if not self.full:
            self._loop.call_soon(self._tell_room)

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        """Call once the block of this ticket is durable. Callbacks run in the order of their tickets."""
        self._arrivals += 1
        entry = (ticket, self._arrivals, callback)
        if not self._waiting or self._waiting[-1] < entry:
            self._waiting.append(entry)
        else:
            insort(self._waiting, entry)
        self._schedule()

    async def wait(self, ticket: int) -> None:
        """Return once the block of this ticket is durable."""
        if ticket > self.journal.durable:
            durable: asyncio.Future[None] = self._loop.create_future()
            self.when_durable(ticket, lambda: None if durable.done() else durable.set_result(None))
            await durable

    async def after(self, commits: int) -> None:
        """Return once there were more commits than this; for who reads what is committed and found nothing new."""
        if self.commits <= commits:
            if self._next is None:
                self._next = self._loop.create_future()
            # One future for all: whoever is cancelled must not cancel it for the others.
            await asyncio.shield(self._next)

    async def close(self) -> None:
        """Wait until everything appended so far is durable, then stop. The journal stays open.

        While the disk fails this waits with everybody else. Cancelling it gives up; a sync that is under way then goes
        on, and only `seal` may follow.
        """
        try:
            if self.journal.has_pending or self._syncing:
                await self.wait(self.journal.last_ticket)
            self._stop()
            # The last commit may have begun another.
            await self._loop.run_in_executor(self._thread, lambda: None)
        except BaseException:
            self._stop()
            self._given_up = True
            raise
        self._thread.shutdown(wait=False)

    def _stop(self) -> None:
        """Begin no more commits."""
        self._closed = True
        self.journal.on_pending = None
        for handle in (self._soon, self._later, self._sharing):
            if handle is not None:
                handle.cancel()

    async def seal(self) -> None:
        """After `close`: close the journal, on a thread, behind a sync that may still be under way there.

        Cancelling it leaves that to the thread, and to recovery if the process ends before.
        """
        thread = self._thread if self._given_up else DaemonExecutor("journal")
        sealing = thread.submit(self._seal)
        thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(sealing))

    def _seal(self) -> None:
        batch, self._in_flight = self._in_flight, None
        if batch is not None:
            with contextlib.suppress(JournalError):
                self.journal.settle(batch)
        self.journal.close()

    def _pending(self) -> None:
        """The journal has something to commit where it had nothing."""
        self._since = self._loop.time()
        self._arm()

    def _arm(self, delay: float = LATEST) -> None:
        if self._later is None and not self._syncing:
            self._later = self._loop.call_later(delay, self._deadline)

    def _schedule(self) -> None:
        """Commit once everything that is ready in this iteration of the loop has been appended."""
        if self._soon is None and not self._syncing and self.healthy and not self._closed:
            self._soon = self._loop.call_soon(self._end_of_iteration)

    def _deadline(self) -> None:
        self._later = None
        # The timer stays when a commit comes before it, for many do; what waits then has come later.
        left = self._since + LATEST - self._loop.time()
        if not self.journal.has_pending:
            self._begin()
        elif left > LATEST / 10 and self.healthy:
            self._arm(left)
        else:
            # What is ready to be read may have a commit of its own, which takes this along: look for it first. The
            # second of two callbacks comes behind a poll, on any loop.
            self._loop.call_soon(self._loop.call_soon, self._begin_late, self.commits)

    def _begin_late(self, commits: int) -> None:
        """Commit what was overdue after so many commits, unless there was one since, or is about to be one."""
        if self.on_commit is not None:
            self.on_commit()
        if self._soon is None and self.commits == commits:
            self._begin()

    def flush(self) -> None:
        """Commit now what somebody waits for, instead of at the end of this iteration of the loop."""
        if self._soon is not None:
            self._soon.cancel()
            self._end_of_iteration()

    def _end_of_iteration(self) -> None:
        """Commit, with what came while the last read was handled: where others did before, it is looked for."""
        if self.on_commit is not None:
            self.on_commit()
        self._soon = None
        if self._alone:
            self._alone -= 1
        elif not self._looking:
            self._looking = len(self._waiting)
            self._soon = self._loop.call_soon(self._end_of_iteration)
            return
        else:
            self._in_vain = 0 if len(self._waiting) > self._looking else min(self._in_vain + 1, MOST_IN_VAIN)
            self._alone = 2**self._in_vain if self._in_vain > 3 else 0
            self._looking = 0
        self._begin()

    def _begin(self) -> None:
        """Commit what waits, here or on the thread, unless the thread is at it."""
        if self._syncing or self._closed:
            return
        if not self.journal.has_pending:
            self._tell_durable()
            return
        batch = self.journal.take(some=True)
        most = INLINE_BYTES if self.journal.syncs else INLINE_WRITTEN
        if self._waiting and batch.size <= most and self._is_fast and not batch.begins_segment:
            self._settle(batch, self._store(batch), on_loop=True)
        else:
            self._syncing = True
            self._in_flight = batch
            self._idle.clear()
            self._begun = time.monotonic()
            done = self._loop.run_in_executor(self._thread, self._store_for_loop, batch)
            done.add_done_callback(lambda future: self._stored(batch, future))
            if self._sharing is None:
                self._sharing = self._loop.call_later(SHARE_EVERY, self._share)

    def _share(self) -> None:
        """Let the thread have the interpreter, while it is at a commit."""
        self._sharing = None
        if not self._syncing or self._closed:
            return
        self._idle.wait(SHARE)
        taken = time.monotonic() - self._begun
        self._sharing = self._loop.call_later(max(SHARE_EVERY, taken / SHARE_PART), self._share)

    def _store_for_loop(self, batch: PendingCommit) -> float:
        """What the thread does."""
        try:
            return self._store(batch)
        finally:
            self._idle.set()

    def _store(self, batch: PendingCommit) -> float:
        started = time.perf_counter()
        self.journal.store(batch)
        return time.perf_counter() - started

    def _stored(self, batch: PendingCommit, done: asyncio.Future[float]) -> None:
        if self._given_up:
            return
        self._syncing, self._in_flight = False, None
        self._settle(batch, done.result())

    def _settle(self, batch: PendingCommit, seconds: float, *, on_loop: bool = False) -> None:
        self._average += (seconds - self._average) / 8
        self._latest.append(seconds)
        try:
            self.journal.settle(batch)
        except JournalError as error:
            self.last_error = str(error)
            if self.on_failed is not None:
                self.on_failed(self.last_error)
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_later(RETRY, self._deadline)
        else:
            self.last_error = None
            self.commits += 1
            if self._next is not None:
                if not self._next.done():
                    self._next.set_result(None)
                self._next = None
        self._tell_durable()
        if seconds >= INLINE_SECONDS or not self._is_fast:
            self._is_fast = self._judge(seconds, on_loop=on_loop)
        self._tell_room()
        if self.healthy and self.journal.has_pending:
            if self._waiting:
                self._schedule()
            else:
                self._arm()

    def _judge(self, seconds: float, *, on_loop: bool) -> bool:
        """Whether the next small commit may be made on the loop, after one that took so long."""
        if on_loop and seconds >= SLOW:
            is_soon = self._run and self.commits - self._run_ended <= SOON * self._run
            self._run = min(2 * self._run, LONGEST_RUN) if is_soon else FIRST_RUN
            self._run_left = self._run
        elif seconds >= (SLOW if self._run_left else STALLED):
            self._run = self._run_left = max(self._run, FIRST_RUN)
        elif self._run_left:
            self._run_left -= 1
            self._run_ended = self.commits
        return not self._run_left and sorted(self._latest)[len(self._latest) // 4] < INLINE_SECONDS

    def _tell_durable(self) -> None:
        if not self._waiting:
            return
        durable = self.journal.durable
        while self._waiting and self._waiting[0][0] <= durable:
            if self._waiting[-1][0] <= durable:
                ready, self._waiting = self._waiting, []
            else:
                count = next(at for at, entry in enumerate(self._waiting) if entry[0] > durable)
                ready, self._waiting = self._waiting[:count], self._waiting[count:]
            for _, _, callback in ready:
                # A callback that fails is its owner's bug; the others must still be told.
                try:
                    callback()
                except Exception as error:
                    self._loop.call_exception_handler({"message": "a journal callback failed", "exception": error})
        if self.on_told is not None:
            self.on_told()

    def _tell_room(self) -> None:
        if self._room and self.journal.pending_bytes < self.high_water / 2:
            callbacks, self._room = self._room, []
            for callback in callbacks:
                callback()
