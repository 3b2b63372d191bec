"""Request and response between two Python processes, 64 bytes each way, one at a time and 64 in flight.

With 64 in flight each side does it in the way that is fastest with its library (style `best` in `calls.py`), but for
the bare protocol, which has a future and a coroutine for each request, and is compared with `request` in 64 coroutines.
The bare protocol is set against grpc.aio and nats-py, too: what it cannot reach no Python peer can that sleeps between
two reads, as our ends do `without busy_poll`.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import servers
from benchmarks.echo import how
from benchmarks.harness import Result, compare

GOALS = {"bare": (0.5, 0.25), "websockets": (1, 4), "grpc": (20, 20), "nats": (4, 4), "zmq": (1, 1)}
TITLES = {
    "bare": "bare asyncio protocol on uvloop",
    "websockets": "websockets",
    "grpc": "grpc.aio",
    "nats": "nats-py through nats-server",
    "zmq": "pyzmq asyncio",
}
KINDS = ("bare", "websockets", "grpc", "zmq", "emp", "hsp", "yamp", "emp-asleep")
COUNTS = {1: 10_000, 64: 100_000}
STYLES = {"tasks": "a coroutine each", "best": "in a row"}
SLOW = {"grpc": 5, "nats": 2, "zmq": 2}
"""Peers that get through fewer requests in the same time."""
LATENCIES: dict[str, list[tuple[float, float]]] = {}


@contextlib.contextmanager
def echo(kind: str, *words: str) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.echo", kind, *words]
    with servers.running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def title(kind: str, in_flight: int, style: str = "tasks") -> str:
    scheme, busy_poll = how(kind)
    asleep = "" if busy_poll else " without busy_poll"
    many = f", {STYLES[style]}" if in_flight > 1 else ""
    return f"{scheme} request/response{asleep}, {in_flight} in flight{many}"


def calls(kind: str, port: int, in_flight: int, style: str = "tasks", name: str = "") -> float:
    count = COUNTS[in_flight] // SLOW.get(kind, 1)
    command = [sys.executable, "-m", "benchmarks.calls", kind, str(port), str(in_flight), str(count), style]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rate, p50, p99 = map(float, done.stdout.split())
    LATENCIES.setdefault(title(name or kind, in_flight, style), []).append((p50, p99))
    return rate


def run(peers: tuple[str, ...] = tuple(GOALS), schemes: tuple[str, ...] = ("hsp", "yamp")) -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        nats_port = stack.enter_context(servers.nats())
        stack.enter_context(echo("nats", str(nats_port)))
        ports = {kind: stack.enter_context(echo(kind)) for kind in KINDS}
        ports["nats"] = nats_port

        def pair(scheme: str, peer: str, in_flight: int, goal: float, style: str = "tasks") -> Result:
            return compare(
                title(scheme, in_flight, style),
                TITLES[peer],
                lambda: calls(scheme, ports[scheme], in_flight, style),
                lambda: calls(peer, ports[peer], in_flight, style),
                goal=goal,
                unit="requests/s",
                rounds=3,
            )

        for peer in peers:
            one, many = GOALS[peer]
            results.append(pair("emp", peer, 1, one))
            if peer in ("bare", "websockets"):
                results.append(pair("emp", peer, 64, many))
            if peer != "bare":
                results.append(pair("emp", peer, 64, many, "best"))
            if peer in ("bare", "grpc", "nats"):
                results.append(pair("emp-asleep", peer, 1, one))
            if peer in ("grpc", "nats"):
                results += [pair("bare", peer, 1, one), pair("bare", peer, 64, many)]
        for scheme in schemes:
            results += [pair(scheme, "bare", n, g) for n, g in zip((1, 64), GOALS["bare"], strict=True)]
    report_latencies()
    return results


def report_latencies() -> None:
    print("\n| requests | p50 µs | p99 µs |\n|---|---|---|")
    for name, figures in LATENCIES.items():
        p50, p99 = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"| {name} | {p50:,.0f} | {p99:,.0f} |")
