"""Column kernels on one core: from the bytes of frames to Arrow arrays, against memcpy of the same bytes.

Counted is the processor time of the process, because other work on the machine then changes little. The frames are
those of `codecs`, with bodies of 128 bytes: events of one topic. Mesh packets carry an HMAC, which is not checked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks.codecs import sample
from benchmarks.harness import Result, compare
from benchmarks.mesh_codec import packets
from wireloom.model import Direction
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Framing
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.registry import protocols

FRAMES = 100_000
BODY = b"x" * 128
MEASURED = ("emp", "hsp", "yamp", "mesh")
SECONDS = 0.3
"""So long a side works before its rate is taken."""


def bytes_per_second(work: Callable[[], object], size: int) -> float:
    """How many bytes a second of processor time are worked on."""
    rounds, began = 0, time.process_time()
    while (took := time.process_time() - began) < SECONDS:
        work()
        rounds += 1
    return size * rounds / took


def run() -> list[Result]:
    # One thread: pyarrow would otherwise use what other cores are there.
    pa.set_cpu_count(1)
    return [_kernel(name) for name in MEASURED]


def _kernel(name: str) -> Result:
    protocol = protocols()[name]
    columns, settings = protocol.columns(), protocol.settings()
    columns.warm()
    if protocol.framing is Framing.STREAM:
        data, direction = sample(protocol, FRAMES, BODY), Direction.C2S
    else:
        sent = packets(Identity.generate(hmac=True, signature=False), FRAMES // 100, BODY)
        data, direction = b"".join(sent) * 100, Direction.DGRAM
    spans = Spans.whole(data, Stream(direction))
    found = len(columns.decode(spans, settings))
    assert found >= FRAMES, f"{found} messages of {name}"
    source = np.frombuffer(data, np.uint8)
    target = np.empty_like(source)
    return compare(
        f"{name} frames of {len(data) // found} bytes to Arrow columns, one core",
        "memcpy of the same bytes",
        lambda: bytes_per_second(lambda: columns.decode(spans, settings), len(data)),
        lambda: bytes_per_second(lambda: np.copyto(target, source), len(data)),
        goal=0.1,
        unit="bytes/s",
        rounds=5,
    )
