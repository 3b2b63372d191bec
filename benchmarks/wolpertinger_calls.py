"""Calls of a method between two processes, 64 characters each way, one at a time and 64 in flight, by the line stream.

Against Python's own XML-RPC server, with a thread and a kept connection for each caller, which is the best it can do,
and against grpc.aio.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
import xmlrpc.client
import xmlrpc.server
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from socketserver import ThreadingMixIn

import uvloop

import wireloom
from benchmarks import servers
from benchmarks.harness import Result, compare
from wireloom.peers.components import Components, component, method

TEXT = "x" * 64
COUNTS = {1: 3_000, 64: 15_000}
SLOW = {"grpc": 4, "xmlrpc": 4}
TITLES = {"xmlrpc": "Python's xmlrpc server", "grpc": "grpc.aio"}
LATENCIES: dict[str, list[tuple[float, float]]] = {}


@component("Bench")
class Bench:
    """What is called."""

    @method
    def Echo(self, text: str) -> str:  # noqa: N802
        return text


class _Server(ThreadingMixIn, xmlrpc.server.SimpleXMLRPCServer):
    daemon_threads = True
    request_queue_size = 256
    """With the default of 5, callers that come at once are reset, or wait for seconds."""


class _Handler(xmlrpc.server.SimpleXMLRPCRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True


async def serve_ours() -> None:
    async with wireloom.serve("wolpertinger://127.0.0.1:0", Components(Bench())) as server:
        print(server.port, flush=True)
        await server.serve_forever()


def serve_xmlrpc() -> None:
    server = _Server(("127.0.0.1", 0), _Handler, logRequests=False)
    server.register_function(lambda text: text, "Echo")
    print(server.server_address[1], flush=True)
    server.serve_forever()


async def call_ours(port: int, in_flight: int, count: int) -> list[float]:
    latencies: list[float] = []
    async with wireloom.connect(f"wolpertinger://127.0.0.1:{port}") as peer:
        for _ in range(200):
            await peer.call("Bench", "Echo", TEXT)
        left = count

        async def worker() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                began = time.perf_counter()
                assert await peer.call("Bench", "Echo", TEXT, returns=str) == TEXT
                latencies.append(time.perf_counter() - began)

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        return [time.perf_counter() - started, *latencies]


def call_xmlrpc(port: int, in_flight: int, count: int) -> list[float]:
    latencies: list[float] = []
    each = max(count // in_flight, 1)

    def worker(_: int) -> None:
        with xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}") as proxy:
            for _ in range(each):
                began = time.perf_counter()
                assert proxy.Echo(TEXT) == TEXT
                latencies.append(time.perf_counter() - began)

    started = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as threads:
        list(threads.map(worker, range(in_flight)))
    return [time.perf_counter() - started, *latencies]


@contextlib.contextmanager
def server(kind: str) -> Iterator[int]:
    module = ["benchmarks.echo", "grpc"] if kind == "grpc" else ["benchmarks.wolpertinger_calls", "serve", kind]
    with servers.running([sys.executable, "-m", *module], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def calls(kind: str, port: int, in_flight: int) -> float:
    module = ["benchmarks.calls"] if kind == "grpc" else ["benchmarks.wolpertinger_calls", "call"]
    count = COUNTS[in_flight] // SLOW.get(kind, 1)
    command = [sys.executable, "-m", *module, kind, str(port), str(in_flight), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rate, p50, p99 = map(float, done.stdout.split())
    LATENCIES.setdefault(f"{kind}, {in_flight} in flight", []).append((p50, p99))
    return rate


def run() -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(server(kind)) for kind in ("wolpertinger", "xmlrpc", "grpc")}

        def pair(peer: str, in_flight: int) -> Result:
            return compare(
                f"wolpertinger calls, {in_flight} in flight",
                TITLES[peer],
                lambda: calls("wolpertinger", ports["wolpertinger"], in_flight),
                lambda: calls(peer, ports[peer], in_flight),
                goal=1,
                unit="calls/s",
                rounds=3,
            )

        results = [pair(peer, in_flight) for peer in TITLES for in_flight in COUNTS]
    print("\n| calls | p50 µs | p99 µs |\n|---|---|---|")
    for name, figures in LATENCIES.items():
        p50, p99 = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {p50:,.0f} | {p99:,.0f} |")
    return results


def main(what: str, kind: str, *numbers: str) -> None:
    if what == "serve":
        serve_xmlrpc() if kind == "xmlrpc" else uvloop.run(serve_ours())
        return
    port, in_flight, count = map(int, numbers)
    if kind == "xmlrpc":
        seconds, *latencies = call_xmlrpc(port, in_flight, count)
    else:
        seconds, *latencies = uvloop.run(call_ours(port, in_flight, count))
    latencies.sort()
    print(len(latencies) / seconds, latencies[len(latencies) // 2] * 1e6, latencies[len(latencies) * 99 // 100] * 1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
