"""Request and response between two Python processes, 64 bytes each way, one at a time and 64 in flight."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import servers
from benchmarks.harness import Result, compare

GOALS = {"bare": (0.5, 0.25), "websockets": (1, 4), "grpc": (20, 20), "nats": (4, 4), "zmq": (1, 1)}
TITLES = {
    "bare": "bare asyncio protocol on uvloop",
    "websockets": "websockets",
    "grpc": "grpc.aio",
    "nats": "nats-py through nats-server",
    "zmq": "pyzmq asyncio",
}
KINDS = ("bare", "websockets", "grpc", "zmq", "emp", "hsp", "yamp")
COUNTS = {1: 5_000, 64: 30_000}
SLOW = {"grpc": 5, "nats": 2}
"""Peers that get through fewer requests in the same time."""
LATENCIES: dict[str, list[tuple[float, float]]] = {}


@contextlib.contextmanager
def echo(kind: str, *words: str) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.echo", kind, *words]
    with servers.running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def calls(kind: str, port: int, in_flight: int) -> float:
    count = COUNTS[in_flight] // SLOW.get(kind, 1)
    command = [sys.executable, "-m", "benchmarks.calls", kind, str(port), str(in_flight), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rate, p50, p99 = map(float, done.stdout.split())
    LATENCIES.setdefault(f"{kind}, {in_flight} in flight", []).append((p50, p99))
    return rate


def run() -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        nats_port = stack.enter_context(servers.nats())
        stack.enter_context(echo("nats", str(nats_port)))
        ports = {kind: stack.enter_context(echo(kind)) for kind in KINDS}
        ports["nats"] = nats_port

        def pair(scheme: str, peer: str, in_flight: int, goal: float) -> Result:
            return compare(
                f"{scheme} request/response, {in_flight} in flight",
                TITLES[peer],
                lambda: calls(scheme, ports[scheme], in_flight),
                lambda: calls(peer, ports[peer], in_flight),
                goal=goal,
                unit="requests/s",
                rounds=3,
            )

        for peer, goals in GOALS.items():
            for in_flight, goal in zip((1, 64), goals, strict=True):
                results.append(pair("emp", peer, in_flight, goal))
        for scheme in ("hsp", "yamp"):
            results += [pair(scheme, "bare", n, g) for n, g in zip((1, 64), GOALS["bare"], strict=True)]
    print("\n| requests | p50 µs | p99 µs |\n|---|---|---|")
    for name, figures in LATENCIES.items():
        p50, p99 = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {p50:,.0f} | {p99:,.0f} |")
    return results
