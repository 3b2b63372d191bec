"""Calls of a method between two processes, 64 characters each way, one at a time and 64 in flight, by the line stream.

Against Python's own XML-RPC server, with a thread and a kept connection for each caller, which is the best it can do,
and against grpc.aio. Latencies are compared, too: a row for the 99th percentile holds its inverse: more is better.
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
from threading import Barrier

import uvloop

import wireloom
from benchmarks import servers
from benchmarks.harness import Result, compare
from wireloom.peers.components import Components, component, method

TEXT = "x" * 64
COUNTS = {1: 5_000, 64: 30_000}
SLOW = {"grpc": 4, "xmlrpc": 4}
"""With 64 in flight."""
WARM_UP = 200
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
        for _ in range(WARM_UP):
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
    ready = Barrier(in_flight + 1)

    def worker(_: int) -> None:
        with xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}") as proxy:
            for _ in range(WARM_UP // in_flight):
                proxy.Echo(TEXT)
            ready.wait()
            for _ in range(each):
                began = time.perf_counter()
                assert proxy.Echo(TEXT) == TEXT
                latencies.append(time.perf_counter() - began)

    with ThreadPoolExecutor(in_flight) as threads:
        working = threads.map(worker, range(in_flight))
        ready.wait()
        started = time.perf_counter()
        list(working)
    return [time.perf_counter() - started, *latencies]


@contextlib.contextmanager
def server(kind: str) -> Iterator[int]:
    module = ["benchmarks.echo", "grpc"] if kind == "grpc" else ["benchmarks.wolpertinger_calls", "serve", kind]
    with servers.running([sys.executable, "-m", *module], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def calls(kind: str, port: int, in_flight: int) -> float:
    module = ["benchmarks.calls"] if kind == "grpc" else ["benchmarks.wolpertinger_calls", "call"]
    count = COUNTS[in_flight] // (SLOW.get(kind, 1) if in_flight > 1 else 1)
    command = [sys.executable, "-m", *module, kind, str(port), str(in_flight), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rate, p50, p99 = map(float, done.stdout.split())
    LATENCIES.setdefault(kind, []).append((p50, p99))
    return rate


def run() -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        ports = {kind: stack.enter_context(server(kind)) for kind in ("wolpertinger", "xmlrpc", "grpc")}

        for peer, title in TITLES.items():
            for in_flight in COUNTS:
                LATENCIES.clear()
                results.append(
                    compare(
                        f"wolpertinger calls, {in_flight} in flight",
                        title,
                        lambda in_flight=in_flight: calls("wolpertinger", ports["wolpertinger"], in_flight),  # type: ignore[misc]
                        lambda peer=peer, in_flight=in_flight: calls(peer, ports[peer], in_flight),  # type: ignore[misc]
                        goal=1,
                        unit="calls/s",
                        rounds=5,
                    )
                )
                if LATENCIES:
                    results.append(slowest(f"wolpertinger calls, {in_flight} in flight, 1/p99", title, peer))
    return results


def slowest(measure: str, title: str, peer: str) -> Result:
    """The 99th percentiles of the runs that were just compared, without the round that warmed up."""
    ours, theirs = ([1e6 / p99 for _, p99 in LATENCIES[kind][1:]] for kind in ("wolpertinger", peer))
    result = Result(measure, title, 1, "1/s", ours, theirs)
    print(result.row())
    for kind, figures in LATENCIES.items():
        p50, p99 = (statistics.median(column) for column in zip(*figures[1:], strict=True))
        print(f"  {kind}: p50 {p50:,.0f} µs, p99 {p99:,.0f} µs", flush=True)
    return result


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
