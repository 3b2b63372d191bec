"""A client that keeps a number of requests in flight, in one of two styles.

`python -m benchmarks.calls KIND PORT IN_FLIGHT COUNT [STYLE]` prints requests per second and the 50th and 99th
percentile of their latency in microseconds.

- `tasks`: each request is awaited by a coroutine of its own, as in a service that asks on behalf of many users.
- `best`: one task with a list of requests, written the way that is fastest with each library. Where a library has no
  such way, or it is not faster (grpc.aio, nats-py), it is the same as `tasks`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvloop

import wireloom
from benchmarks.echo import SETTINGS, how

BODY = b"x" * 64
Call = Callable[[], Awaitable[object]]
Row = Callable[[Iterator[bytes], int], AsyncIterator[object]]
"""Sends each body, so many in flight, and gives an item for each answer, in order."""
Ways = tuple[Call, Row | None]


async def bare(port: int) -> Ways:
    loop = asyncio.get_running_loop()
    waiting: deque[asyncio.Future[None]] = deque()

    class Client(asyncio.Protocol):
        left = 0

        def data_received(self, data: bytes) -> None:
            self.left += len(data)
            while self.left >= len(BODY):
                self.left -= len(BODY)
                waiting.popleft().set_result(None)

    transport, _ = await loop.create_connection(Client, "127.0.0.1", port)

    def call() -> Awaitable[object]:
        future = loop.create_future()
        waiting.append(future)
        transport.write(BODY)
        return future

    return call, None


async def ours(kind: str, port: int) -> Ways:
    scheme, busy_poll = how(kind)
    peer = await wireloom.connect(f"{scheme}://127.0.0.1:{port}", settings=SETTINGS.get(scheme), busy_poll=busy_poll)
    return (
        lambda: peer.request("bench", BODY),
        lambda bodies, in_flight: peer.request_many("bench", bodies, in_flight=in_flight),
    )


async def window(
    bodies: Iterator[bytes],
    in_flight: int,
    send: Callable[[bytes], Awaitable[object]],
    receive: Callable[[], Awaitable[object]],
) -> AsyncIterator[object]:
    """Answers come in order and one task does it all: nothing tells them apart, and nothing has to."""
    left = 0
    for body in bodies:
        await send(body)
        left += 1
        if left == in_flight:
            break
    while left:
        yield await receive()
        left -= 1
        for body in bodies:
            await send(body)
            left += 1
            break


async def websockets(port: int) -> Ways:
    """For the tasks a queue of futures tells whose answer it is: the least a user would have to write."""
    from websockets.asyncio.client import connect

    connection = await connect(f"ws://127.0.0.1:{port}", compression=None)
    waiting: deque[asyncio.Future[None]] = deque()
    reader: list[asyncio.Task[None]] = []

    async def read() -> None:
        async for _ in connection:
            waiting.popleft().set_result(None)

    loop = asyncio.get_running_loop()

    async def call() -> None:
        if not reader:
            reader.append(asyncio.create_task(read()))
        future = loop.create_future()
        waiting.append(future)
        await connection.send(BODY)
        await future

    return call, lambda bodies, in_flight: window(bodies, in_flight, connection.send, connection.recv)


async def grpc(port: int) -> Ways:
    import grpc.aio

    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    method = channel.unary_unary("/bench/Echo")
    _keep.append(channel)
    return lambda: method(BODY), None


async def zmq(port: int) -> Ways:
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    waiting: deque[asyncio.Future[None]] = deque()
    reader: list[asyncio.Task[None]] = []

    async def read() -> None:
        while True:
            await socket.recv_multipart()
            waiting.popleft().set_result(None)

    loop = asyncio.get_running_loop()

    async def call() -> None:
        if not reader:
            reader.append(asyncio.create_task(read()))
        future = loop.create_future()
        waiting.append(future)
        await socket.send_multipart([b"", BODY])
        await future

    def row(bodies: Iterator[bytes], in_flight: int) -> AsyncIterator[object]:
        return window(bodies, in_flight, lambda body: socket.send_multipart([b"", body]), socket.recv_multipart)

    return call, row


async def nats(port: int) -> Ways:
    """Publishing by hand with an inbox for the answers, in one task, turned out to be slower than its `request`."""
    import nats as client

    connection = await client.connect(f"nats://127.0.0.1:{port}")
    return lambda: connection.request("bench", BODY, timeout=30), None


_keep: list[object] = []


async def in_tasks(call: Call, in_flight: int, count: int) -> list[float]:
    latencies: list[float] = []
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return latencies


async def in_a_row(row: Row, in_flight: int, count: int) -> list[float]:
    began: deque[float] = deque()

    def bodies() -> Iterator[bytes]:
        for _ in range(count):
            began.append(time.perf_counter())
            yield BODY

    return [time.perf_counter() - began.popleft() async for _ in row(bodies(), in_flight)]


async def measure(kind: str, port: int, in_flight: int, count: int, style: str) -> tuple[float, float, float]:
    makers = {"bare": bare, "websockets": websockets, "grpc": grpc, "zmq": zmq, "nats": nats}
    call, row = await makers[kind](port) if kind in makers else await ours(kind, port)

    async def run(number: int, amount: int) -> list[float]:
        if style == "best" and row is not None:
            return await in_a_row(row, number, amount)
        return await in_tasks(call, number, amount)

    await run(1, 200)
    started = time.perf_counter()
    latencies = await run(in_flight, count)
    seconds = time.perf_counter() - started
    assert len(latencies) == count
    latencies.sort()
    return count / seconds, latencies[len(latencies) // 2] * 1e6, latencies[len(latencies) * 99 // 100] * 1e6


if __name__ == "__main__":
    style = sys.argv[5] if len(sys.argv) > 5 else "tasks"
    print(*uvloop.run(measure(sys.argv[1], *map(int, sys.argv[2:5]), style)), flush=True)
    # Open clients of other libraries would complain about a loop that is gone.
    sys.stdout.flush()
    import os

    os._exit(0)
