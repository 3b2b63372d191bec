"""Acknowledged ingest, with every message synced to disk before it is acknowledged and without: Redis and NATS."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks import servers
from benchmarks.harness import Result, compare
from benchmarks.window import acknowledged


async def _make_stream(port: int) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    await client.jetstream().add_stream(name="bench", subjects=["bench"])
    await client.close()


def run() -> list[Result]:
    results = []
    with (
        servers.hub() as synced,
        servers.hub(sync=False) as written,
        servers.redis(fsync="always") as redis,
        servers.redis(fsync="everysec") as redis_later,
        tempfile.TemporaryDirectory(prefix="nats-bench-") as store,
        servers.nats(store=Path(store)) as nats,
    ):
        asyncio.run(_make_stream(nats))

        def pair(
            title: str, ports: dict[str, int], kind: str, peer: str, port: int, size: int, window: int,
            ours: int, theirs: int, goal: float,
        ) -> None:  # fmt: skip
            style = {"redis": "Redis Streams", "nats": "JetStream, file storage"}[kind]
            results.append(
                compare(
                    f"acknowledged ingest, {title}, {size} B, window {window}",
                    f"{style}, {peer}",
                    lambda: acknowledged("hsp", ports["hsp"], size, window, ours),
                    lambda: acknowledged(kind, port, size, window, theirs),
                    goal=goal,
                    rounds=3,
                )
            )

        always, later, default = "`appendfsync always`", "`everysec`", "default (not synced)"
        pair("synced", synced, "redis", always, redis, 64, 8192, 1_000_000, 100_000, 10)
        pair("synced", synced, "nats", default, nats, 64, 8192, 1_000_000, 150_000, 5)
        pair("written", written, "nats", default, nats, 64, 8192, 2_000_000, 150_000, 20)
        pair("written", written, "redis", later, redis_later, 64, 8192, 2_000_000, 200_000, 15)
        pair("synced", synced, "redis", always, redis, 64, 1, 1_500, 1_500, 1)
        pair("synced", synced, "redis", always, redis, 64, 16, 10_000, 10_000, 1)
        pair("synced", synced, "redis", always, redis, 1024, 8192, 300_000, 50_000, 8)
        results += [
            compare(
                f"acknowledged ingest in {scheme}, synced, 64 B, window 8192",
                f"Redis Streams, {always}",
                lambda scheme=scheme: acknowledged(scheme, synced[scheme], 64, 8192, 500_000),  # type: ignore[misc]
                lambda: acknowledged("redis", redis, 64, 8192, 100_000),
                goal=5,
                rounds=3,
            )
            for scheme in ("emp", "yamp")
        ]
    return results
