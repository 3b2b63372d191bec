"""A crowd: many connections with one acknowledged publish of 64 bytes in flight on each, against Redis Streams.

The client is `crowd.c`, the same program for both sides. It is compiled once, with the machine's `cc`, into `.build/`.
Both servers sync each message to disk before they acknowledge it. Repeat one row with

    .venv/bin/python -m benchmarks crowd --only 'hsp, 256 connections'

or one side alone, against a server that runs already (`crowd.c` says what it can do):

    .build/crowd load hsp PORT publish connections=256 time=2000

A row that ends with `1/p99` compares the reciprocals of the 99th percentiles of latency, so that more is better.
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
    """What the client says of one run: messages a second, and latencies in microseconds."""

    rate: float
    p50: float
    p99: float
    slowest: float


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return Figures(*map(float, done.stdout.split()))


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
    """A row for the rate, and one for each percentile of latency that has a goal; 0 is a row without one."""
    sides = Latencies(ours), Latencies(theirs)
    results = [compare(measure, peer, *sides, goal=goal, rounds=rounds)]
    if not results[0].ours:
        return results
    for name, wanted in (("p50", p50), ("p99", p99)):
        if wanted is not None:
            rates = [[1e6 / getattr(each, name) for each in side.measured()] for side in sides]
            results.append(Result(f"{measure}, 1/{name}", peer, wanted, "1/s", *rates))
            print(results[-1].row(), flush=True)
    for who, side in zip(("ours", "peer's"), sides, strict=True):
        middle = (f"{name} {statistics.median(getattr(f, name) for f in side.measured()):,.0f} µs" for name in Figures._fields[1:])
        print(f"  {who}: {', '.join(middle)}", flush=True)
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
            results += pair(title, peer, ours("hsp", count), theirs(count), goal=0.8, p99=1 / 1.5)
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
    return results
