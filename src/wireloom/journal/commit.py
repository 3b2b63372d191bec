"""Group commit: one sync of the disk makes the blocks of many callers durable.

Implements "Group commit" of the design. `GroupCommit` runs a `Journal` on an event loop, and tells callers when their
blocks are durable.

Theory of operation
===================

**The problem.** A sync costs as much for one block as for a thousand. A sync per block would limit the journal to a few
thousand blocks per second. A sync that is delayed too long makes every publisher wait for its acknowledgement.

**The idea.** One commit at a time. A commit takes what was appended, writes it, syncs it, and then calls the callbacks
of all tickets that are durable now. Blocks that arrive during a commit wait for the next one. So the size of a group
follows the load: the slower the disk, the more blocks share a sync, up to `PART` bytes (see `log.py`).

**The invariant.** A callback for a ticket runs only after the block of that ticket is written and synced. If the disk
fails, no callback runs. The blocks stay in memory, and the commit is repeated every `RETRY` seconds until it succeeds.

**When a commit begins.**

- A caller waits for a ticket: at the end of this iteration of the loop. All that became readable in this iteration is
  in the same group.
- Nobody waits: `LATEST` seconds after the first block was appended.
- A commit is under way: as soon as it has ended.

**Polling for more.** Before a commit, the loop may poll once more: blocks that just arrived then join the group. A poll
is fruitless if nobody else began to wait. After four or more fruitless polls in a row (`n` of them, `MOST_IN_VAIN` at
most), the next `2**n` commits are made without a poll.

**Where a commit is made.** A handover to a thread costs more than a fast sync. So a small commit that somebody waits
for is made on the loop. The thread makes large commits, commits that begin a segment, and commits that nobody waits
for. A slow disk must not stall the loop, so two more rules send small commits to the thread:

- At least seven of the last nine commits took `INLINE_SECONDS` or more. The rule looks at the lower quartile, because
  on a busy machine many commits only seem slow: they waited for a processor.
- One commit on the loop took `SLOW` seconds or more. Then `FIRST_RUN` commits in a row on the thread must be faster
  than `SLOW`, before the loop commits again. If the loop stalls again soon (see `SOON`), the number doubles, up to
  `LONGEST_RUN`.

Example: a sync on the loop takes 30 ms. The next eight commits go to the thread. All are fast, so the loop commits
again. Its 40th commit takes 25 ms. That is within `SOON * 8` commits, so now 16 fast commits are needed.

**Sharing the interpreter.** The thread needs the interpreter lock between its system calls. A busy loop releases the
lock often, for microseconds each: in kernels, to send, to poll. That wakes the thread, but the loop has the lock again
before the thread runs. The thread forces a switch only after a millisecond without such a wake-up
(`sys.setswitchinterval`). So a commit of 50 KB once took half a second. Therefore the loop pauses while the thread
makes a commit: for `SHARE` seconds at most, every `SHARE_EVERY` seconds.
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
"""A commit is made on the loop up to `INLINE_BYTES`, and while the lower quartile of the last commits is below
`INLINE_SECONDS`."""
INLINE_WRITTEN = 1024 * 1024
"""Replaces `INLINE_BYTES` for a journal that does not sync."""
SLOW = 0.02
"""A commit on the loop that takes this many seconds sends the next ones to the thread."""
STALLED = 0.1
"""The same limit for a commit on the thread. It is higher, because a thread may have waited for a processor."""
FIRST_RUN, LONGEST_RUN = 8, 1024
"""Commits in a row that must be faster than `SLOW` before they are made on the loop again."""
SHARE, SHARE_EVERY = 0.0002, 0.002
"""For how many seconds the loop pauses for the thread, and the seconds between two pauses."""
SHARE_PART = 16
"""A long commit waits for the disk, not for the interpreter. So the next pause comes at the earliest after a sixteenth
of the time that the commit has taken so far."""
SOON = 16
"""A stall of the loop is soon, and doubles the number of fast commits needed, if it comes within `SOON` times that
number of commits."""
MOST_IN_VAIN = 6
"""Fruitless polls in a row are counted up to this number. From four on, `n` of them skip the poll of `2**n` commits."""
HIGH_WATER = 64 * 1024 * 1024
"""Pending bytes from which on `full` is true: the owner should stop reading."""


class GroupCommit:
    """Commits a journal's blocks on an event loop; all methods are called on that loop.

    Every block that is appended to the journal is committed within about 5 ms, without a call. `when_durable` and
    `wait` tell when a block is durable.
    """

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, *, high_water: int = HIGH_WATER) -> None:
        self.journal = journal
        self.last_error: str | None = None
        """The error of the last attempt; None if it succeeded."""
        self.commits = 0
        """Commits that succeeded."""
        self._next: asyncio.Future[None] | None = None
        """Done with the next commit; None while nobody waits in `after`."""
        self.on_commit: Callable[[], None] | None = None
        """Called just before a commit: the owner may append what has arrived meanwhile."""
        self.on_told: Callable[[], None] | None = None
        """Called after all callbacks of a commit have run."""
        self.on_failed: Callable[[str], None] | None = None
        """Called with the error message when an attempt failed."""
        self._loop = loop
        self.high_water = high_water
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """Ticket, order of arrival, callback; sorted."""
        self._arrivals = 0
        self._room: list[Callable[[], None]] = []
        self._thread = DaemonExecutor("journal")
        self._syncing = False
        self._in_flight: PendingCommit | None = None
        """The commit that the thread is making."""
        self._idle = threading.Event()
        """Set while the thread makes no commit."""
        self._begun = 0.0
        """When the thread was given its last commit."""
        self._sharing: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._looking = 0
        """During a poll before a commit: how many callbacks waited when it began. 0: no poll is under way."""
        self._in_vain = 0
        """Fruitless polls in a row."""
        self._alone = 0
        """The next so many commits are made without a poll."""
        self._since = 0.0
        """When the oldest pending block was appended."""
        self._average = 0.0
        """Seconds a commit takes, as a moving average."""
        self._latest: deque[float] = deque([0.0], maxlen=9)
        """Seconds that the last commits took."""
        self._is_fast = True
        """Whether a small commit may be made on the loop."""
        self._run = 0
        """How many fast commits in a row the last stall asked for."""
        self._run_left = 0
        """How many of them are missing; 0 while commits may be made on the loop."""
        self._run_ended = 0
        """The value of `commits` when none was missing any more."""
        self._closed = False
        self._given_up = False
        """Whether `close` was cancelled. From then on only the thread uses the journal."""
        journal.on_pending = self._pending
        if journal.has_pending:
            self._pending()

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to commit succeeded."""
        return self.last_error is None

    @property
    def is_writing(self) -> bool:
        """Whether the thread makes a commit. Nobody else may use the journal's files meanwhile."""
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
        """Back-pressure: whether the owner should stop reading until the callback of `when_room` runs."""
        return self.journal.pending_bytes >= self.high_water

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the pending bytes are below half of `high_water`."""
        self._room.append(callback)
        if not self.full:
            self._loop.call_soon(self._tell_room)

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        """Call back once, when the block of this ticket is durable. Callbacks run in the order of their tickets."""
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
        """Return when `commits` exceeds this number. A reader that found nothing new waits here for the next commit."""
        if self.commits <= commits:
            if self._next is None:
                self._next = self._loop.create_future()
            # All callers share the future. The shield keeps it alive when one caller is cancelled.
            await asyncio.shield(self._next)

    async def close(self) -> None:
        """Wait until everything appended so far is durable, then stop. The journal stays open.

        While the disk fails, this waits. A caller may cancel it to give up. A sync that is under way then goes on in
        the thread, and the caller may call only `seal`.
        """
        try:
            if self.journal.has_pending or self._syncing:
                await self.wait(self.journal.last_ticket)
            self._stop()
            # Settling the last commit may have begun another one: wait until the thread is idle.
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
        """Close the journal on the thread; call it after `close`. A sync that is under way there is finished first.

        If the caller is cancelled, the thread still closes the journal. If the process ends before that, recovery does.
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
        """The journal's first pending block was appended."""
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
        # A commit does not cancel this timer, because most timers would be cancelled. So the timer may fire early for
        # what is pending now: then it is set again for the rest of the time.
        left = self._since + LATEST - self._loop.time()
        if not self.journal.has_pending:
            self._begin()
        elif left > LATEST / 10 and self.healthy:
            self._arm(left)
        else:
            # Reads that are ready may cause a commit of their own, which includes these blocks: poll for them first.
            # Two nested `call_soon` guarantee a poll in between, on any event loop.
            self._loop.call_soon(self._loop.call_soon, self._begin_late, self.commits)

    def _begin_late(self, commits: int) -> None:
        """Commit overdue blocks, unless another commit was made after number `commits` or is scheduled."""
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
        """Commit, after one more poll if polls have been fruitful (see "Polling for more")."""
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
        """Begin a commit, on the loop or on the thread, unless one is under way."""
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
        """Pause the loop, so that the thread gets the interpreter lock for its commit."""
        self._sharing = None
        if not self._syncing or self._closed:
            return
        self._idle.wait(SHARE)
        taken = time.monotonic() - self._begun
        self._sharing = self._loop.call_later(max(SHARE_EVERY, taken / SHARE_PART), self._share)

    def _store_for_loop(self, batch: PendingCommit) -> float:
        """`_store` for the thread: also ends the loop's pause."""
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
        """Whether the next small commit may be made on the loop, given how long the last one took."""
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
                # An error in one callback must not keep the others from running.
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
