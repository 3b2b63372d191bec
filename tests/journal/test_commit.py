"""Group commit on an event loop."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tests.disks import SlowDisk
from wireloom.journal import GroupCommit, Journal, read_blocks, read_messages, segments
from wireloom.journal.commit import INLINE_BYTES, SHARE
from wireloom.journal.verify import verify
from wireloom.model import Direction

from .conftest import data


@pytest.fixture
async def commit(tmp_path):
    journal = Journal.open(tmp_path)
    group = GroupCommit(journal, asyncio.get_running_loop())
    yield group
    await group.close()
    journal.close()


def append(group: GroupCommit, number: int, size: int = 0) -> int:
    return group.journal.append("hsp", 1, Direction.C2S, number, data("x" * size))


def readable(group: GroupCommit) -> int:
    return sum(1 for segment in segments(group.journal.folder) for _ in read_blocks(segment))


async def test_what_is_waited_for_is_readable_afterwards(commit):
    before = readable(commit)
    for number in range(20):
        await commit.wait(append(commit, number))
        assert readable(commit) == before + number + 1


async def test_callbacks_run_in_the_order_of_tickets_whatever_the_order_of_asking(commit):
    told = []
    tickets = [append(commit, number) for number in range(50)]
    for ticket in reversed(tickets):
        commit.when_durable(ticket, lambda ticket=ticket: told.append(ticket))
    await commit.wait(tickets[-1])
    assert told == tickets


@pytest.mark.parametrize(("count", "size"), [(30, 5000), (400, 10)], ids=["large", "small"])
async def test_a_callback_never_runs_before_its_block_is_synced(commit, monkeypatch, count, size):
    unsynced, writes = False, 0
    real, really_write = os.fdatasync, os.pwritev

    def syncing(descriptor: int) -> None:
        nonlocal unsynced
        real(descriptor)
        unsynced = False

    def writing(descriptor: int, pieces: list[bytes], at: int, flags: int = 0) -> int:
        nonlocal unsynced, writes
        if at or len(pieces) > 1:  # else it is the committed length
            writes += 1
            unsynced = not flags & os.RWF_DSYNC
        return really_write(descriptor, pieces, at, flags)

    monkeypatch.setattr(os, "fdatasync", syncing)
    monkeypatch.setattr(os, "pwritev", writing)
    told: list[tuple[int, bool]] = []
    tickets = []
    for number in range(count):
        tickets.append(append(commit, number, size * (number % 7)))
        commit.when_durable(tickets[-1], lambda ticket=tickets[-1]: told.append((ticket, unsynced)))
        while len(told) <= number - 3:
            await asyncio.sleep(0)
    await commit.wait(tickets[-1])
    assert told == [(ticket, False) for ticket in tickets]
    assert writes > count // 5


async def test_blocks_of_one_iteration_share_one_sync(commit):
    before = commit.commits
    await asyncio.gather(*(commit.wait(append(commit, number)) for number in range(100)))
    assert commit.commits - before == 1


async def test_what_came_while_a_read_was_handled_shares_the_sync_with_it(commit):
    loop = asyncio.get_running_loop()
    for number in range(0, 20, 2):
        before = commit.commits
        first = loop.create_task(commit.wait(append(commit, number)))
        await asyncio.sleep(0)
        second = loop.create_task(commit.wait(append(commit, number + 1)))
        await asyncio.gather(first, second)
        assert commit.commits - before == 1


async def test_where_one_always_comes_alone_nobody_looks_for_others(commit):
    looks = [0]
    schedule = commit._end_of_iteration

    def looked() -> None:
        schedule()
        looks[0] += commit._soon is not None

    commit._end_of_iteration = looked
    for number in range(400):
        await commit.wait(append(commit, number))
    assert 4 <= looks[0] < 20
    assert commit.commits >= 400


async def test_a_block_nobody_waits_for_is_committed_by_itself(commit):
    ticket = append(commit, 0)
    async with asyncio.timeout(30):
        while commit.journal.durable < ticket:
            await asyncio.sleep(0.001)


async def test_a_block_that_is_overdue_shares_the_commit_of_what_is_ready_to_be_read(commit):
    durable = asyncio.get_running_loop().create_future()

    def read() -> None:
        commit.on_commit = None
        commit.when_durable(append(commit, 1), lambda: durable.set_result(None))

    before, ticket = commit.commits, append(commit, 0)
    commit.on_commit = read
    async with asyncio.timeout(30):
        await durable
    assert (commit.commits - before, commit.journal.durable) == (1, ticket + 1)


async def test_a_large_batch_is_synced_on_the_thread_and_the_loop_goes_on(commit, monkeypatch):
    loop_thread = threading.get_ident()
    inside, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        assert threading.get_ident() != loop_thread
        inside.set()
        assert go_on.wait(30)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    first = append(commit, 0, 2 * INLINE_BYTES)
    waiting = asyncio.ensure_future(commit.wait(first))
    while not inside.is_set():
        await asyncio.sleep(0.001)
    # The sync is under way: the loop runs, and what is appended now waits for the next one.
    second = append(commit, 1, 2 * INLINE_BYTES)
    assert not waiting.done()
    assert commit.journal.durable < first
    assert commit.pending_bytes > 400_000
    go_on.set()
    await commit.wait(second)
    assert waiting.done()
    assert commit.pending_bytes == 0


async def test_a_callback_that_fails_does_not_keep_the_others_waiting(commit):
    problems = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
    ticket = append(commit, 0)
    told = []
    commit.when_durable(ticket, lambda: 1 // 0)
    commit.when_durable(ticket, lambda: told.append(True))
    await commit.wait(ticket)
    assert told == [True]
    assert isinstance(problems[0]["exception"], ZeroDivisionError)


async def test_callbacks_may_append_and_wait_again(commit):
    done = asyncio.get_running_loop().create_future()
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        if count == 400:
            done.set_result(None)
        else:
            commit.when_durable(append(commit, count), again)

    commit.when_durable(append(commit, 0), again)
    await asyncio.wait_for(done, 60)
    assert count == 400


async def test_a_cancelled_wait_disturbs_nobody(commit):
    ticket = append(commit, 0)
    cancelled = asyncio.ensure_future(commit.wait(ticket))
    other = asyncio.ensure_future(commit.wait(ticket))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other


async def test_too_much_in_memory_is_told_and_room_again_too(tmp_path):
    with Journal.open(tmp_path) as journal:
        group = GroupCommit(journal, asyncio.get_running_loop(), high_water=100_000)
        assert not group.full
        append(group, 0, 2 * INLINE_BYTES)
        assert group.full
        room = asyncio.Event()
        group.when_room(room.set)
        assert not room.is_set()
        await asyncio.wait_for(room.wait(), 30)
        assert not group.full
        again = asyncio.Event()
        group.when_room(again.set)
        await asyncio.wait_for(again.wait(), 30)
        await group.close()


async def test_without_sync_nothing_is_synced_but_everything_is_told(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path, sync=False)
    group = GroupCommit(journal, asyncio.get_running_loop())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda descriptor: pytest.fail("synced"))
        await group.wait(append(group, 0))
        await group.wait(append(group, 1, 2 * INLINE_BYTES))
    await group.close()
    journal.close()


async def test_much_at_once_is_committed_and_told_in_parts(tmp_path):
    """Runs stay whole, their order too, and who waits for the first need not wait for the last."""
    journal = Journal.open(tmp_path)
    commit = GroupCommit(journal, asyncio.get_running_loop())
    told: list[tuple[int, bool]] = []
    for number in range(12):
        ticket = journal.append("hsp", 1, Direction.C2S, number, data(f"{number:02d}" + "x" * 700_000))
        commit.when_durable(ticket, lambda number=number: told.append((number, journal.has_pending)))
    await commit.wait(ticket)
    assert [number for number, _ in told] == list(range(12))
    assert told[0] == (0, True)
    assert commit.commits > 2
    assert [entry.message.body[:2] for entry in read_messages(tmp_path)] == [b"%02d" % number for number in range(12)]
    await commit.close()
    journal.close()
    assert list(verify(tmp_path)) == []


class Timed:
    """A group commit that believes to have taken so many seconds, and says which commits were made on the loop."""

    def __init__(self, commit: GroupCommit) -> None:
        self.commit = commit
        self.seconds = 0.0001
        self.on_loop: list[bool] = []
        self._loop = threading.get_ident()
        self._number = 0
        self._really_store = commit._store
        commit._store = self._store

    def _store(self, batch) -> float:
        self._really_store(batch)
        self.on_loop.append(threading.get_ident() == self._loop)
        return self.seconds

    async def make(self, count: int, seconds: float = 0.0001) -> int:
        """So many commits, each waited for; how many of them were made on the loop."""
        self.on_loop.clear()
        self.seconds = seconds
        for _ in range(count):
            self._number += 1
            await self.commit.wait(append(self.commit, self._number))
        return sum(self.on_loop)

    async def until_on_loop(self) -> int:
        """Fast commits made until one is on the loop again."""
        made = 0
        while not await self.make(1):
            made += 1
            assert made < 10_000
        return made


async def test_one_slow_commit_on_the_loop_sends_the_next_to_the_thread(commit):
    timed = Timed(commit)
    assert await timed.make(20) >= 19
    assert await timed.make(1, seconds=0.03) == 1
    assert await timed.make(20, seconds=0.03) == 0


async def test_commits_come_back_to_the_loop_after_a_run_of_fast_ones_that_doubles_each_time_it_was_too_short(commit):
    timed = Timed(commit)
    runs = []
    for _ in range(12):
        await timed.make(1, seconds=2.0)
        runs.append(await timed.until_on_loop())
    assert runs[:4] == [8, 16, 32, 64]
    assert runs[-2:] == [1024, 1024]
    # A slow one in between begins the run anew.
    await timed.make(1, seconds=2.0)
    assert await timed.make(500) == 0
    await timed.make(1, seconds=0.5)
    assert await timed.until_on_loop() == 1024
    # What went well for long counts.
    commit.commits += 20_000
    await timed.make(1, seconds=2.0)
    assert await timed.until_on_loop() == 8


async def test_a_stall_that_the_thread_has_seen_spares_the_loop_the_same(commit):
    timed = Timed(commit)
    timed.seconds = 0.5
    commit.when_durable(append(commit, 0, 2 * INLINE_BYTES), lambda: None)
    await commit.wait(commit.journal.last_ticket)
    assert timed.on_loop == [False]
    assert await timed.make(5, seconds=0.5) == 0


async def test_commits_that_are_a_little_slow_go_to_the_thread_only_when_most_are(commit):
    timed = Timed(commit)
    assert await timed.make(20) >= 19
    assert await timed.make(6, seconds=0.005) == 6
    await timed.make(3, seconds=0.005)
    assert await timed.make(10, seconds=0.005) == 0
    await timed.make(4)
    assert await timed.make(10) == 10


async def test_a_slow_disk_keeps_the_loop_waiting_for_one_sync_at_most(commit, monkeypatch):
    disk = SlowDisk(monkeypatch)
    disk.seconds = 0.2
    loop = asyncio.get_running_loop()
    unserved, last = 0.0, loop.time()

    async def tick() -> None:
        nonlocal unserved, last
        while True:
            gap, last = loop.time() - last, loop.time()
            unserved += gap if gap > 0.1 else 0
            await asyncio.sleep(0.005)

    ticking = asyncio.create_task(tick())
    for number in range(10):
        await commit.wait(append(commit, number))
    ticking.cancel()
    assert unserved < 0.4
    disk.seconds = 0


async def test_closing_is_given_up_while_a_sync_hangs(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path)
    group = GroupCommit(journal, asyncio.get_running_loop())
    disk = SlowDisk(monkeypatch)
    disk.stall()
    append(group, 0, 2 * INLINE_BYTES)
    closing = asyncio.create_task(group.close())
    await asyncio.to_thread(disk.entered.wait, 30)
    closing.cancel()
    await asyncio.wait((closing,), timeout=10)
    assert closing.cancelled()
    sealing = asyncio.create_task(group.seal())
    await asyncio.sleep(0.05)
    assert not sealing.done()
    disk.go_on()
    await sealing
    assert list(verify(tmp_path)) == []
    assert len(list(read_messages(tmp_path))) == 1


async def test_the_loop_lets_the_thread_have_the_interpreter_while_it_commits(commit, monkeypatch):
    """Else a busy loop, which releases it often and for microseconds, would always have it back before the thread."""
    release, waits, real = threading.Event(), [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (release.wait(10), real(descriptor)))
    monkeypatch.setattr(commit._idle, "wait", lambda seconds: waits.append(seconds))
    ticket = append(commit, 0)
    await asyncio.sleep(0.05)  # nobody waits for it: the thread has begun after 5 ms
    assert commit.is_writing and 3 <= len(waits) <= 25, waits
    await asyncio.sleep(0.4)
    assert len(waits) <= 80, "a disk that is slow does not slow the loop for long"
    release.set()
    await commit.wait(ticket)
    seen = len(waits)
    await asyncio.sleep(0.05)
    assert len(waits) == seen, "nothing is waited for between commits"
    assert set(waits) == {SHARE}
