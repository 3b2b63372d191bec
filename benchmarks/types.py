"""What types cost: a request with a typed body and a typed answer against the same one with plain dicts.

Both ends are in one process, connected in memory, and the rate is by processor time: so that it shows the work alone,
not the waking of processes. The body is a reading of six fields, two of them in a nested list.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from benchmarks.harness import Result, compare
from wireloom import Service
from wireloom.testing import peer_pair

COUNT = 3000


@dataclass
class Part:
    number: int
    name: str


@dataclass
class Reading:
    room: str
    celsius: float
    humidity: float
    parts: list[Part]


class StructPart(msgspec.Struct):
    number: int
    name: str


class StructReading(msgspec.Struct):
    room: str
    celsius: float
    humidity: float
    parts: list[StructPart]


TYPED = Reading("kitchen", 21.5, 0.45, [Part(1, "a"), Part(2, "b")])
STRUCT = StructReading("kitchen", 21.5, 0.45, [StructPart(1, "a"), StructPart(2, "b")])
PLAIN = asdict(TYPED)

service = Service()


@service.request("plain")
def plain(message: Any) -> object:
    return message.value()


@service.request("dataclass")
def typed(reading: Reading) -> Reading:
    return reading


@service.request("msgspec")
def struct(reading: StructReading) -> StructReading:
    return reading


def rate(topic: str, body: object, **returns: Any) -> float:
    """Requests for each second of processor time."""

    async def main() -> float:
        async with peer_pair("emp", service) as (client, _):
            began = time.process_time()
            for _ in range(COUNT):
                await client.request(topic, body, **returns)
            return COUNT / (time.process_time() - began)

    return asyncio.run(main())


def run() -> list[Result]:
    sides = [("dataclass", TYPED, Reading), ("msgspec", STRUCT, StructReading)]
    return [
        compare(
            f"typed request and answer, {name}, emp in memory, by processor time",
            "the same with plain dicts",
            lambda name=name, body=body, kind=kind: rate(name, body, returns=kind),  # type: ignore[misc]
            lambda: rate("plain", PLAIN),
            goal=0.5,
            unit="requests/s",
        )
        for name, body, kind in sides
    ]
