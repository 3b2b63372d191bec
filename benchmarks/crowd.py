"""A crowd: many connections with one acknowledged publish of 64 bytes in flight on each, against Redis Streams.

The client is `crowd.c`, the same program for both sides. It is compiled once, with the machine's `cc`, into `.build/`.
Both servers sync each message to disk before they acknowledge it. The last rows are 500 publishers and one subscriber,
against nats-server: each publisher sends one event at a time, and has four on the way at most. Repeat one row with

    .venv/bin/python -m benchmarks crowd --only 'hsp, 256 connections'

or one side alone, against a server that runs already (`crowd.c` says what it can do):

    .build/crowd load hsp PORT publish connections=256 time=2000

A row that ends with `1/p99` compares the reciprocals of the 99th percentiles of latency, so that more is better. A row
`by the server's processor time` has messages a second of processor time: on a busy machine it is the steadier one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import servers
from benchmarks.harness import Result, compare

HERE = Path(__file__).parent
BUILD = HERE.parent / ".build"
SIZES = (64, 256, 1000)
TIME = 2000
"""Milliseconds that a side is measured for, after half a second that warms up."""


class Figures(NamedTuple):
    """What one run gave: messages a second, latencies in microseconds, and what a message cost the server."""

    rate: float
    p50: float
    p99: float
    slowest: float
    processor: float
    """Microseconds of the server's processor time a message; setting up the connections is part of it."""


def program() -> Path:
    """The compiled client."""
    sources = [HERE / "crowd.c", HERE / "crowd_protocols.h"]
    built = BUILD / "crowd"
    if not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        compiler = shutil.which("cc")
        if compiler is None:
            raise servers.Unavailable("its client is in C, and there is no C compiler `cc` (Debian: package gcc)")
        BUILD.mkdir(exist_ok=True)
        fresh = BUILD / f"crowd.{os.getpid()}"
        subprocess.run([compiler, "-O2", "-std=gnu11", "-o", str(fresh), str(sources[0])], check=True)
        fresh.replace(built)
    return built


def load(kind: str, port: int, verb: str, *, time: int = TIME, **options: int) -> Figures:
    """One run of the client. `crowd.c` explains verbs and options."""
    words = [f"{name}={value}" for name, value in {**options, "time": time}.items()]
    command = [str(program()), "load", kind, str(port), verb, *words]
    before = servers.processor_seconds(port)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    rate, p50, p99, slowest, count = map(float, done.stdout.split())
    return Figures(rate, p50, p99, slowest, (servers.processor_seconds(port) - before) / count * 1e6)


@contextlib.contextmanager
def responder(kind: str, port: int) -> Iterator[None]:
    """The client as a provider of the topic `bench`, for as long as the block lasts."""
    with servers.running([str(program()), "answer", kind, str(port)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"nobody answers in {kind}")
        yield


class Latencies:
    """A side that returns its rate and keeps its latencies."""

    def __init__(self, run: Callable[[], Figures]) -> None:
        self._run = run
        self.figures: list[Figures] = []

    def __call__(self) -> float:
        self.figures.append(self._run())
        return self.figures[-1].rate

    def measured(self) -> list[Figures]:
        """Without the round that warmed up."""
        return self.figures[1:]

    def __str__(self) -> str:
        _, p50, p99, slowest, _ = (statistics.median(column) for column in zip(*self.measured(), strict=True))
        return f"p50 {p50:,.0f}, p99 {p99:,.0f}, slowest {slowest:,.0f} µs"


def pair(
    measure: str,
    peer: str,
    ours: Callable[[], Figures],
    theirs: Callable[[], Figures],
    *,
    goal: float,
    p50: float | None = None,
    p99: float | None = None,
    rounds: int = 3,
) -> list[Result]:
    """A row for the rate, one for each percentile of latency with a goal (0: none is set), one by processor time."""
    sides = Latencies(ours), Latencies(theirs)
    results = [compare(measure, peer, *sides, goal=goal, rounds=rounds)]
    if not results[0].ours:
        return results

    def row(what: str, name: str, wanted: float, unit: str) -> None:
        rates = [[1e6 / getattr(figures, name) for figures in side.measured()] for side in sides]
        results.append(Result(f"{measure}, {what}", peer, wanted, unit, *rates))
        print(results[-1].row(), flush=True)

    if p50 is not None:
        row("1/p50", "p50", p50, "1/s")
    if p99 is not None:
        row("1/p99", "p99", p99, "1/s")
    row("by the server's processor time", "processor", 0, "messages a processor second")
    if sides[0].figures[0].slowest:  # else the client did not time single messages
        print("\n".join(f"  {who}: {side}" for who, side in zip(("ours", "peer's"), sides, strict=True)), flush=True)
    return results


def run() -> list[Result]:
    program()
    results = []
    with servers.hub() as hub, servers.redis(fsync="always") as redis:

        def ours(scheme: str, count: int, subscribers: int = 0) -> Callable[[], Figures]:
            return lambda: load(scheme, hub[scheme], "publish", connections=count, subscribers=subscribers)

        def theirs(count: int) -> Callable[[], Figures]:
            return lambda: load("redis", redis, "publish", connections=count)

        peer = "Redis Streams, `appendfsync always`"
        for count in SIZES:
            title = f"crowd, synced, 64 B, window 1, hsp, {count:,} connections"
            results += pair(title, peer, ours("hsp", count), theirs(count), goal=0.8, p99=0.67)
        many, few = ours("hsp", 1000), ours("hsp", 256)
        title = "crowd, synced, 64 B, window 1, hsp, 1,000 connections"
        results += pair(title, "itself with 256 connections", many, few, goal=0.9)
        for scheme in ("emp", "yamp"):
            for count in SIZES:
                title = f"crowd, synced, 64 B, window 1, {scheme}, {count:,} connections"
                results += pair(title, peer, ours(scheme, count), theirs(count), goal=0.6, p99=0)
        for count in SIZES:
            title = f"crowd, synced, 64 B, window 1, hsp, {count:,} connections and a subscriber of everything"
            results += pair(title, peer, ours("hsp", count, 1), theirs(count), goal=0.6, p99=0)
    return results + publishers()


def publishers() -> list[Result]:
    """500 publishers to one subscriber. nats-server keeps nothing; the hub writes its journal, and does not sync it."""
    results = []
    # Nothing may be dropped while it is counted.
    with servers.hub(sync=False, extra="[limits]\nqueue_bytes = 1000000000\n") as hub, servers.nats() as nats:

        def side(kind: str, port: int) -> Callable[[], Figures]:
            return lambda: load(kind, port, "event", connections=500, subscribers=1, window=4)

        for scheme, goal in (("hsp", 1), ("emp", 0), ("yamp", 0)):
            title = f"500 publishers → one subscriber, 64 B, {scheme}"
            results += pair(title, "nats-server", side(scheme, hub[scheme]), side("nats", nats), goal=goal, p99=0)
    return results
