"""Writing to many pipes at once does what `write` does to each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import accumulate

from tests.transports.test_pipes import joined
from wireloom.transports import Options
from wireloom.transports.many_writes import write_each

PLAIN = Options(), Options()
PIECE = 50_000


def bounds(parts: list[bytes]) -> tuple[list[int], list[int]]:
    ends = list(accumulate(map(len, parts)))
    return [0, *ends[:-1]], ends


async def test_a_pipe_gives_its_socket_only_while_nothing_waits_in_it() -> None:
    async with joined("tcp", PLAIN) as (client, server):
        client.pipe.pause_reading()
        assert server.pipe.descriptor() >= 0
        while server.writing:
            server.pipe.write(b"x" * PIECE)
        assert server.pipe.descriptor() == -1
        client.pipe.resume_reading()
        await server.until("resumed")
        server.pipe.close()
        assert server.pipe.descriptor() == -1


async def test_what_a_socket_does_not_take_waits_in_its_pipe_and_nobody_else_is_kept_waiting() -> None:
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(joined("tcp", PLAIN)) for _ in range(3)]
        slow, slow_server = pairs[1]
        slow.pipe.pause_reading()
        rounds = 0
        while slow_server.writing:
            parts = [b"%d" % rounds, bytes([rounds % 256]) * PIECE, b"%d" % rounds]
            write_each([server.pipe for _, server in pairs], b"".join(parts), *bounds(parts))
            rounds += 1
        numbers = b"".join(b"%d" % each for each in range(rounds))
        for client, _ in (pairs[0], pairs[2]):
            await client.until_size(len(numbers))
            assert bytes(client.data) == numbers
        slow.pipe.resume_reading()
        await slow.until_size(rounds * PIECE)
        assert bytes(slow.data) == b"".join(bytes([each % 256]) * PIECE for each in range(rounds))


async def test_a_peer_that_is_gone_disturbs_nobody() -> None:
    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(joined("tcp", PLAIN)) for _ in range(3)]
        gone, gone_server = pairs[0]
        gone.pipe.abort()
        await gone.until("ended")
        for number in range(100):
            there = [server.pipe for _, server in pairs if "ended" not in server.events]
            parts = [b"%d" % number] * len(there)
            write_each(there, b"".join(parts), *bounds(parts))
            await asyncio.sleep(0)
        numbers = b"".join(b"%d" % each for each in range(100))
        for client, _ in pairs[1:]:
            await client.until_size(len(numbers))
            assert bytes(client.data) == numbers
        await gone_server.until("ended")
