"""A hundred topics, one after the other on one connection, against the same with one topic.

A publisher sends messages of 64 bytes, 1,024 to a `send`: events, or publishes that are acknowledged. At most 65,536
events are on the way, or 8,192 publishes. They go to one subscriber of everything, or to a hundred subscribers of one
topic each; with one topic, the first of the hundred gets all of them. The client is `crowd.c`, which holds both ends.
Nothing is synced. Repeat with

    .venv/bin/python -m benchmarks topics --only 'hsp, events'
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import servers
from benchmarks.crowd import Figures, load, pair, program
from benchmarks.harness import Result

TOPICS = 100
VERBS = {"event": ("events", 65_536), "publish": ("acknowledged publishes", 8192)}
"""Their titles, and how many may be on the way."""
SUBSCRIBERS = {1: "a subscriber of everything", TOPICS: "a subscriber for each"}


def run() -> list[Result]:
    program()
    results = []
    # Nothing may be dropped while it is counted.
    with servers.hub(sync=False, extra="[limits]\nqueue_bytes = 1000000000\n", topics=TOPICS) as hub:

        def side(scheme: str, verb: str, window: int, subscribers: int, topics: int) -> Callable[[], Figures]:
            how = {"window": window, "chunk": 1024, "subscribers": subscribers, "topics": topics}
            return lambda: load(scheme, hub[scheme], verb, **how)

        for scheme in ("hsp", "emp", "yamp"):
            for verb, (what, window) in VERBS.items():
                for subscribers, whom in SUBSCRIBERS.items():
                    title = f"100 topics in turn, 64 B, {scheme}, {what}, {whom}"
                    ours, one = (side(scheme, verb, window, subscribers, topics) for topics in (TOPICS, 1))
                    results += pair(title, "itself with one topic", ours, one, goal=0.5)
    return results
