"""A client that keeps a number of requests in flight, each awaited by a coroutine of its own, the same for every peer.

`python -m benchmarks.calls KIND PORT IN_FLIGHT COUNT` prints requests per second and the 50th and 99th percentile of
their latency in microseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable

import uvloop

import wireloom
from benchmarks.echo import SETTINGS

BODY = b"x" * 64
Call = Callable[[], Awaitable[object]]


async def bare(port: int) -> Call:
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

    return call


async def ours(scheme: str, port: int) -> Call:
    peer = await wireloom.connect(f"{scheme}://127.0.0.1:{port}", settings=SETTINGS.get(scheme))
    return lambda: peer.request("bench", BODY)


async def websockets(port: int) -> Call:
    """Answers come in order, so a queue of futures tells whose they are: the least a user would have to write."""
    from websockets.asyncio.client import connect

    connection = await connect(f"ws://127.0.0.1:{port}", compression=None)
    waiting: deque[asyncio.Future[None]] = deque()

    async def read() -> None:
        async for _ in connection:
            waiting.popleft().set_result(None)

    _keep.append(asyncio.create_task(read()))
    loop = asyncio.get_running_loop()

    async def call() -> None:
        future = loop.create_future()
        waiting.append(future)
        await connection.send(BODY)
        await future

    return call


async def grpc(port: int) -> Call:
    import grpc.aio

    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    method = channel.unary_unary("/bench/Echo")
    _keep.append(channel)
    return lambda: method(BODY)


async def zmq(port: int) -> Call:
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    waiting: deque[asyncio.Future[None]] = deque()

    async def read() -> None:
        while True:
            await socket.recv_multipart()
            waiting.popleft().set_result(None)

    _keep.append(asyncio.create_task(read()))
    loop = asyncio.get_running_loop()

    async def call() -> None:
        future = loop.create_future()
        waiting.append(future)
        await socket.send_multipart([b"", BODY])
        await future

    return call


async def nats(port: int) -> Call:
    import nats as client

    connection = await client.connect(f"nats://127.0.0.1:{port}")
    return lambda: connection.request("bench", BODY, timeout=30)


_keep: list[object] = []


async def measure(kind: str, port: int, in_flight: int, count: int) -> tuple[float, float, float]:
    makers = {"bare": bare, "websockets": websockets, "grpc": grpc, "zmq": zmq, "nats": nats}
    call = await makers[kind](port) if kind in makers else await ours(kind, port)
    for _ in range(200):
        await call()
    latencies: list[float] = []
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await call()
            latencies.append(time.perf_counter() - began)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    seconds = time.perf_counter() - started
    latencies.sort()
    return count / seconds, latencies[len(latencies) // 2] * 1e6, latencies[len(latencies) * 99 // 100] * 1e6


if __name__ == "__main__":
    print(*uvloop.run(measure(sys.argv[1], *map(int, sys.argv[2:5]))), flush=True)
    # Open clients of other libraries would complain about a loop that is gone.
    sys.stdout.flush()
    import os

    os._exit(0)
