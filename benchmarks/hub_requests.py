"""Request and response through the hub: a requester and a provider in Python, each in a process of its own.

The peer is nats-py on both ends of nats-server. The hub keeps every request and answer in its journal; nats-server
keeps nothing.
"""

from __future__ import annotations

import contextlib

from benchmarks import servers
from benchmarks.harness import Result, compare
from benchmarks.requests import STYLES, TITLES, calls, echo, report_latencies

GOALS = ((1, "tasks", 3.0), (64, "tasks", 4.0), (64, "best", 4.0))


def run() -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        nats_port = stack.enter_context(servers.nats())
        stack.enter_context(echo("nats", str(nats_port)))
        hub_port = stack.enter_context(servers.hub(extra='[[listener]]\nurl = "emp://127.0.0.1:0"\n'))["emp"]
        stack.enter_context(echo("provider", str(hub_port)))
        for in_flight, style, goal in GOALS:

            def ours(in_flight: int = in_flight, style: str = style) -> float:
                return calls("emp", hub_port, in_flight, style, "emp through the hub")

            def theirs(in_flight: int = in_flight, style: str = style) -> float:
                return calls("nats", nats_port, in_flight, style)

            how = f", {STYLES[style]}" if in_flight > 1 else ""
            measure = f"emp request/response through the hub, {in_flight} in flight{how}"
            results.append(compare(measure, TITLES["nats"], ours, theirs, goal=goal, unit="requests/s", rounds=3))
    report_latencies()
    return results
