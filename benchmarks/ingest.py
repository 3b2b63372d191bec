"""Acknowledged ingest: every message is synced to disk before it is acknowledged, on both sides."""

from __future__ import annotations

from benchmarks import servers
from benchmarks.harness import Result, compare
from benchmarks.window import acknowledged


def run() -> list[Result]:
    results = []
    with servers.hub() as ports, servers.redis(fsync="always") as redis:

        def pair(size: int, window: int, ours: int, theirs: int, goal: float) -> Result:
            return compare(
                f"acknowledged ingest, synced, {size} B, window {window}",
                "Redis Streams, `appendfsync always`",
                lambda: acknowledged("hsp", ports["hsp"], size, window, ours),
                lambda: acknowledged("redis", redis, size, window, theirs),
                goal=goal,
            )

        results.append(pair(64, 8192, 2_000_000, 300_000, 5))
    return results
