"""`python -m benchmarks [NAME...]`: run measurements and print one table."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.harness import HEADER, save
from benchmarks.servers import Unavailable

MEASURES = {
    "ingest": "benchmarks.ingest",
    "fanout": "benchmarks.fanout",
    "idle": "benchmarks.idle",
    "pipeline": "benchmarks.pipeline",
    "pipeline-streaming": "benchmarks.pipeline_streaming",
    "pipeline-scaling": "benchmarks.pipeline_scaling",
    "pipeline-startup": "benchmarks.pipeline_startup",
    "pipeline-mesh": "benchmarks.pipeline_mesh",
    "pipeline-latency": "benchmarks.pipeline_latency",
    "captures": "benchmarks.captures",
    "requests": "benchmarks.requests",
    "hub-requests": "benchmarks.hub_requests",
    "codecs": "benchmarks.codecs",
    "kernels": "benchmarks.kernels",
    "mesh": "benchmarks.mesh_codec",
    "mesh-udp": "benchmarks.mesh_udp",
    "wolpertinger": "benchmarks.wolpertinger_calls",
    "wolpertinger-codec": "benchmarks.wolpertinger_codec",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        print(f"unknown measure {unknown[0]!r}; known: {', '.join(MEASURES)}", file=sys.stderr)
        return 2
    print(HEADER, flush=True)
    missed = False
    for name in names or MEASURES:
        try:
            results = import_module(MEASURES[name]).run()
        except Unavailable as reason:
            print(f"{name}: left out, {reason}", file=sys.stderr)
            continue
        save(name, results)
        missed |= any(sorted(r.ratios)[len(r.ratios) // 2] < r.goal for r in results)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
