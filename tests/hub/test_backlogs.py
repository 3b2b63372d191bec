"""The budget of messages that were read from the journal and are not sent yet."""

from __future__ import annotations

import asyncio

from wireloom.hub.backlogs import Backlog, Backlogs, weight
from wireloom.model import Kind, Message


def messages(count: int, size: int = 1000) -> list[tuple[int, Message]]:
    return [(number, Message(Kind.EVENT, "a", bytes(size))) for number in range(count)]


ONE = weight(messages(1)[0][1])


def test_the_backlog_whose_subscriber_has_not_read_for_longest_is_dropped_first():
    dropped = []
    backlogs = Backlogs(lambda: 5 * ONE, lambda: dropped.append(1))
    first, second, third = (Backlog[int](backlogs) for _ in range(3))
    with first.blocked(), second.blocked():
        first.fill(messages(2))
        second.fill(messages(2))
        assert not dropped and backlogs.held_bytes == 4 * ONE
        third.fill(messages(2))
        assert dropped == [1]
        assert not first and first.was_dropped
        assert second and not second.was_dropped
        third.fill(messages(5))
        assert dropped == [1, 1], "what was dropped is not dropped again"
    assert third.pop()[0] == 0
    third.drop()
    assert third.was_dropped and backlogs.held_bytes == 0


def test_what_is_sent_or_dropped_is_given_back():
    backlogs = Backlogs(lambda: 10 * ONE, lambda: None)
    backlog = Backlog[int](backlogs)
    backlog.fill(messages(3))
    assert [backlog.pop()[0] for _ in range(3)] == [0, 1, 2]
    assert not backlog and backlogs.held_bytes == 0
    backlog.drop()
    assert not backlog.was_dropped, "nothing was left"


async def test_nobody_reads_more_while_those_who_can_send_hold_all():
    backlogs = Backlogs(lambda: 2 * ONE, lambda: None)
    sending, blocked = Backlog[int](backlogs), Backlog[int](backlogs)
    sending.fill(messages(2))
    waiting = asyncio.create_task(backlogs.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    sending.pop()
    await asyncio.wait_for(waiting, 1)
    with blocked.blocked():
        blocked.fill(messages(1))
        await asyncio.wait_for(backlogs.room(), 1)
        assert not blocked, "a subscriber that does not read keeps nobody from reading"
