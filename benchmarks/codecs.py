"""Frames decoded and encoded per second on one core, by protocol: one at a time, and a buffer at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import Result, compare
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Protocol, Role
from wireloom.protocols.registry import protocols

COUNT = 20_000
BODY = b"x" * 64


def sample(protocol: Protocol, count: int = COUNT, body: bytes = BODY) -> bytes:
    """A stream as a client would send it: events of 64 bytes, after whatever opens the conversation."""
    session = protocol.session(Role.CLIENT, protocol.settings(), unique=1)
    session.connected(0.0)
    opening = session.outgoing()
    settings = protocol.settings()
    event = Message(Kind.EVENT, "sensors/kitchen", body, id="018f0000-0000-7000-8000-000000000001", content_type=None)
    return opening + protocol.encode(event, settings) * count


def per_second(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - began)


def run() -> list[Result]:
    results = []
    encoding = []
    for name, protocol in protocols().items():
        if protocol.framing.value != "stream":
            continue
        data, settings, columns = sample(protocol), protocol.settings(), protocol.columns()
        columns.warm()

        def by_frames(protocol: Protocol = protocol, data: bytes = data) -> int:
            decoder = protocol.decoder(Direction.C2S, protocol.settings())
            decoder.feed(data)
            return sum(1 for _ in decoder)

        def by_columns(data: bytes = data) -> int:
            return len(columns.decode(Spans.whole(data, Stream(Direction.C2S)), settings))  # noqa: B023

        results.append(
            compare(
                f"{name} frames decoded to columns",
                "its own `frames.py`, one message at a time",
                lambda: per_second(by_columns),
                lambda: per_second(by_frames),
                goal=5,
                unit="frames/s",
            )
        )
        event = Message(Kind.EVENT, "sensors/kitchen", BODY, id="018f0000-0000-7000-8000-000000000001")

        def encode(protocol: Protocol = protocol, event: Message = event) -> int:
            settings = protocol.settings()
            for _ in range(COUNT):
                protocol.encode(event, settings)
            return COUNT

        encoding.append((name, max(per_second(encode) for _ in range(3))))
    print("\n| protocol | encoded one by one, frames/s |\n|---|---|")
    for name, rate in encoding:
        print(f"| {name} | {rate:,.0f} |")
    return results
