"""`python -m benchmarks [--only REGEX] [--first] [NAME...]`: run measurements and print one table.

`--only` takes the rows whose measure and peer match. `--first` runs both sides ahead of everything else on the machine,
where the system allows it: for a machine that cannot be made idle. Keep it short: others wait meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from benchmarks import harness
from benchmarks.harness import HEADER, save
from benchmarks.servers import Unavailable

MEASURES = {
    "ingest": "benchmarks.ingest",
    "crowd": "benchmarks.crowd",
    "fanout": "benchmarks.fanout",
    "topics": "benchmarks.topics",
    "idle": "benchmarks.idle",
    "archive": "benchmarks.archive",
    "pipeline": "benchmarks.pipeline",
    "pipeline-streaming": "benchmarks.pipeline_streaming",
    "pipeline-scaling": "benchmarks.pipeline_scaling",
    "pipeline-startup": "benchmarks.pipeline_startup",
    "pipeline-mesh": "benchmarks.pipeline_mesh",
    "pipeline-latency": "benchmarks.pipeline_latency",
    "captures": "benchmarks.captures",
    "requests": "benchmarks.requests",
    "hub-requests": "benchmarks.hub_requests",
    "crowd-requests": "benchmarks.crowd_requests",
    "types": "benchmarks.types",
    "codecs": "benchmarks.codecs",
    "kernels": "benchmarks.kernels",
    "mesh": "benchmarks.mesh_codec",
    "mesh-udp": "benchmarks.mesh_udp",
    "wolpertinger": "benchmarks.wolpertinger_calls",
    "wolpertinger-codec": "benchmarks.wolpertinger_codec",
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(MEASURES)}")
    parser.add_argument("--only", default="", metavar="REGEX", help="only rows whose measure and peer match")
    parser.add_argument("--first", action="store_true", help="run ahead of everything else on the machine")
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in MEASURES]
    if unknown:
        print(f"unknown measure {unknown[0]!r}; known: {', '.join(MEASURES)}", file=sys.stderr)
        return 2
    harness.ONLY = given.only
    if given.first:
        harness.go_first()
    print(HEADER, flush=True)
    missed = False
    for name in given.names or MEASURES:
        try:
            results = [each for each in import_module(MEASURES[name]).run() if each.ours]
        except Unavailable as reason:
            print(f"{name}: left out, {reason}", file=sys.stderr)
            continue
        save(name, results)
        missed |= any(sorted(r.ratios)[len(r.ratios) // 2] < r.goal for r in results)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
