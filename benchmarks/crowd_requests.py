"""Requests of 64 bytes through the hub from 256 connections, one in flight on each, against nats-server.

The requesters are `crowd.c` on both sides. The provider is in Python (our library in emp, nats-py), or pre-built
(`crowd.c`). The hub keeps every request and answer in its journal; nats-server keeps nothing. Repeat one row with

    .venv/bin/python -m benchmarks crowd-requests --only 'emp.*Python'
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from benchmarks import servers
from benchmarks.crowd import Figures, load, pair, program, responder
from benchmarks.harness import Result
from benchmarks.requests import echo

CONNECTIONS = 256


def side(kind: str, port: int) -> Callable[[], Figures]:
    return lambda: load(kind, port, "request", connections=CONNECTIONS)


def run() -> list[Result]:
    program()
    results = []
    with contextlib.ExitStack() as stack:
        # A topic has one provider at a hub: each row has a hub of its own, for as long as it is measured.
        nats = stack.enter_context(servers.nats())
        stack.enter_context(echo("nats", str(nats)))
        hub = stack.enter_context(servers.hub())
        stack.enter_context(echo("provider", "emp", str(hub["emp"])))
        title = f"requests through the hub, 64 B, emp, {CONNECTIONS} connections, provider in Python"
        peer = "nats-server, responder nats-py"
        results += pair(title, peer, side("emp", hub["emp"]), side("nats", nats), goal=0, p50=0, p99=0)
    for scheme in ("hsp", "emp", "yamp"):
        with servers.hub() as hub, servers.nats() as nats, responder(scheme, hub[scheme]), responder("nats", nats):
            title = f"requests through the hub, 64 B, {scheme}, {CONNECTIONS} connections, pre-built provider"
            peer = "nats-server, pre-built responder"
            results += pair(title, peer, side(scheme, hub[scheme]), side("nats", nats), goal=0, p50=0, p99=0)
    return results
