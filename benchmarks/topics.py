"""A hundred topics, one after the other on one connection, against the same with one topic.

A publisher sends 64 bytes a message, a window of 8,192 messages, 512 to a `send`: events, or publishes that are
acknowledged. They go to one subscriber of everything, or to a hundred subscribers of one topic each; with one topic, the
first of the hundred gets all of them. The client is `crowd.c`, which holds both ends. Nothing is synced. Repeat with

    .venv/bin/python -m benchmarks topics --only 'hsp, events'
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import servers
from benchmarks.crowd import Figures, load, pair, program
from benchmarks.harness import Result

TOPICS = 100
VERBS = {"event": "events", "publish": "acknowledged publishes"}
SUBSCRIBERS = {1: "a subscriber of everything", TOPICS: "a subscriber for each"}


def run() -> list[Result]:
    program()
    results = []
    # Nothing may be dropped while it is counted.
    with servers.hub(sync=False, extra="[limits]\nqueue_bytes = 1000000000\n", topics=TOPICS) as hub:

        def side(scheme: str, verb: str, subscribers: int, topics: int) -> Callable[[], Figures]:
            return lambda: load(
                scheme, hub[scheme], verb, window=8192, chunk=512, subscribers=subscribers, topics=topics, time=1000
            )

        for scheme in ("hsp", "emp", "yamp"):
            for verb, what in VERBS.items():
                for subscribers, whom in SUBSCRIBERS.items():
                    title = f"100 topics in turn, 64 B, {scheme}, {what}, {whom}"
                    ours, one = (side(scheme, verb, subscribers, topics) for topics in (TOPICS, 1))
                    results += pair(title, "itself with one topic", ours, one, goal=0.5)
    return results
