"""Column kernels on one core: from the bytes of frames to Arrow arrays, against memcpy of the same bytes.

Counted is the processor time of the process, because other work on the machine then changes little. The frames are
those of `codecs`: events of one topic, with small and with larger bodies. Of mesh packets, which hold at most 255 bytes
in a field, the headers and the places of all fields are read; beside it stands what whole columns take, with every
field that has no column of its own written out as text.
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
from wireloom.pipeline.daemon import keep_memory
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.mesh import MESH, MeshSettings, scan
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.registry import protocols

STREAMS = ("emp", "hsp", "yamp")
BODIES = (128, 1024)
BYTES = 16_000_000
SECONDS = 0.3
"""So long a side works before its rate is taken."""
GOAL = 0.1


def run() -> list[Result]:
    # As in a worker of the pipeline.
    keep_memory()
    # One thread: pyarrow would otherwise use what other cores are there.
    pa.set_cpu_count(1)
    return [*(_stream(name, body) for body in BODIES for name in STREAMS), *_mesh()]


def _stream(name: str, body: int) -> Result:
    protocol = protocols()[name]
    columns, settings = protocol.columns(), protocol.settings()
    columns.warm()
    data = sample(protocol, BYTES // body, b"x" * body)
    spans = Spans.whole(data, Stream(Direction.C2S))
    found = len(columns.decode(spans, settings))
    assert found >= BYTES // body, f"{found} messages of {name}"
    what = f"{name} frames of {len(data) // found} bytes to Arrow columns, one core"
    return _against_memcpy(what, data, lambda: columns.decode(spans, settings))


def _mesh() -> list[Result]:
    columns, settings = MESH.columns(), MeshSettings()
    columns.warm()
    sent = packets(Identity.generate(hmac=True, signature=False), 1000, b"x" * BODIES[0])
    data = b"".join(sent) * 100
    spans = Spans.whole(data, Stream(Direction.DGRAM))

    def headers() -> None:
        scan.scan_packets(spans.data, spans.start, spans.end, settings.limits)

    size = len(data) // (100 * len(sent))
    return [
        _against_memcpy(f"headers of mesh packets of {size} bytes to columns, one core", data, headers),
        _against_memcpy(
            f"mesh packets of {size} bytes, all fields, to Arrow columns, one core",
            data,
            lambda: columns.decode(spans, settings),
            goal=0,
        ),
    ]


def _against_memcpy(what: str, data: bytes, work: Callable[[], object], goal: float = GOAL) -> Result:
    source = np.frombuffer(data, np.uint8)
    target = np.empty_like(source)
    return compare(
        what,
        "memcpy of the same bytes",
        lambda: bytes_per_second(work, len(data)),
        lambda: bytes_per_second(lambda: np.copyto(target, source), len(data)),
        goal=goal,
        unit="bytes/s",
        rounds=5,
    )


def bytes_per_second(work: Callable[[], object], size: int) -> float:
    """How many bytes a second of processor time are worked on."""
    rounds, began = 0, time.process_time()
    while (took := time.process_time() - began) < SECONDS:
        work()
        rounds += 1
    return size * rounds / took
