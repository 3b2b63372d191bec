"""Request and response through the hub: a requester and a provider in Python, each in a process of its own.

The peer is nats-py on both ends of nats-server. The hub keeps every request and answer in its journal; nats-server
keeps nothing. A relay that does nothing but pass on bytes, with a bare protocol on both ends, is set against it, too:
what that cannot reach no hub in Python can.
"""

from __future__ import annotations

import contextlib

from benchmarks import servers
from benchmarks.harness import Result, compare
from benchmarks.requests import TITLES, calls, echo, report_latencies, title

GOALS = (
    ("emp", 1, "tasks", 3.0),
    ("emp-asleep", 1, "tasks", 3.0),
    ("bare", 1, "tasks", 3.0),
    ("emp", 64, "tasks", 4.0),
    ("emp", 64, "best", 4.0),
    ("emp-asleep", 64, "best", 4.0),
    ("bare", 64, "tasks", 4.0),
)


def run() -> list[Result]:
    results = []
    with contextlib.ExitStack() as stack:
        nats_port = stack.enter_context(servers.nats())
        stack.enter_context(echo("nats", str(nats_port)))
        asleep = "[limits]\nbusy_poll_seconds = 0\n"
        ports = {
            kind: stack.enter_context(servers.hub(extra=extra))["emp"]
            for kind, extra in (("emp", ""), ("emp-asleep", asleep))
        }
        for kind, port in ports.items():
            stack.enter_context(echo("provider", kind, str(port)))
        ports["bare"] = stack.enter_context(echo("relay", str(stack.enter_context(echo("bare")))))
        for kind, in_flight, style, goal in GOALS:

            def ours(kind: str = kind, in_flight: int = in_flight, style: str = style) -> float:
                return calls(kind, ports[kind], in_flight, style)

            def theirs(in_flight: int = in_flight, style: str = style) -> float:
                return calls("nats", nats_port, in_flight, style)

            through = "response through a bare relay" if kind == "bare" else "response through the hub"
            measure = title(kind, in_flight, style).replace("response", through, 1)
            results.append(compare(measure, TITLES["nats"], ours, theirs, goal=goal, unit="requests/s", rounds=3))
    report_latencies()
    return results
