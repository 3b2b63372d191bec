"""Publish to subscribe with the Python clients of both sides: publisher and subscriber, each in a process of its own.

`python -m benchmarks.pubsub subscribe|publish KIND PORT COUNT`: the subscriber says `ready`, and when all has come the
messages per second from the first to the last; the publisher sends as fast as its client lets it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import uvloop

import wireloom
from benchmarks import servers

BODY = b'"' + b"x" * 62 + b'"'
TOPIC = "bench"


async def publish_ours(scheme: str, port: int, count: int) -> None:
    async with wireloom.connect(f"{scheme}://127.0.0.1:{port}") as peer:
        for _ in range(count):
            await peer.publish(TOPIC, BODY)


async def subscribe_ours(scheme: str, port: int, count: int) -> None:
    async with wireloom.connect(f"{scheme}://127.0.0.1:{port}") as peer, peer.subscribe(TOPIC) as events:
        print("ready", flush=True)
        await anext(events)
        began = time.perf_counter()
        for _ in range(count - 1):
            await anext(events)
        print((count - 1) / (time.perf_counter() - began), flush=True)


async def publish_nats(_: str, port: int, count: int) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    for _ in range(count):
        await client.publish(TOPIC, BODY)
    await client.close()


async def subscribe_nats(_: str, port: int, count: int) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    events = await client.subscribe(TOPIC, pending_msgs_limit=0, pending_bytes_limit=0)
    await client.flush()
    print("ready", flush=True)
    await events.next_msg(timeout=30)
    began = time.perf_counter()
    # Its iterator is the faster of the two ways to read that it has.
    left = count - 1
    async for _message in events.messages:
        left -= 1
        if not left:
            break
    print((count - 1) / (time.perf_counter() - began), flush=True)
    await client.close()


def passed_on(source: str, source_port: int, target: str, target_port: int, count: int) -> float:
    """Messages per second from a publisher to a subscriber through the server that listens on these ports."""

    def command(side: str, kind: str, port: int) -> list[str]:
        return [sys.executable, "-m", "benchmarks.pubsub", side, kind, str(port), str(count)]

    with servers.running(command("subscribe", target, target_port), stdout=subprocess.PIPE) as subscriber:
        assert subscriber.stdout is not None
        if subscriber.stdout.readline().strip() != "ready":
            raise RuntimeError("the subscriber could not connect")
        subprocess.run(command("publish", source, source_port), timeout=120, check=True)
        return float(subscriber.stdout.readline())


async def main(side: str, kind: str, port: int, count: int) -> None:
    ways = {
        ("publish", True): publish_nats,
        ("publish", False): publish_ours,
        ("subscribe", True): subscribe_nats,
        ("subscribe", False): subscribe_ours,
    }
    await asyncio.wait_for(ways[side, kind == "nats"](kind, port, count), 120)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
