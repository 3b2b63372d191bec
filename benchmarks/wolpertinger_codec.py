"""Messages per second through layers 1 and 2 on one core: small plain calls, as peers write them."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

from benchmarks.harness import Result, compare
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Role
from wireloom.protocols.wolpertinger import WOLPERTINGER, WolpertingerSettings

COUNT = 20_000
GOAL = 40_000
SETTINGS = WolpertingerSettings()


def calls() -> bytes:
    """What a client sends: calls of a method with one text of 64 characters."""
    session = WOLPERTINGER.session(Role.CLIENT, WolpertingerSettings(max_unconfirmed=COUNT, max_calls=COUNT), unique=1)
    session.connected(0.0)
    body = b'["' + b"x" * 64 + b'"]'
    for _ in range(COUNT):
        session.send(Message(Kind.REQUEST, "Test.Echo", body, content_type="application/json"), 0.0)
    return session.outgoing()


def indented(data: bytes) -> bytes:
    """The same with the white space that other implementations put between elements."""
    lines = []
    for line in data.splitlines():
        head, _, payload = line.rpartition(b";")
        xml = base64.b64decode(payload).replace(b"><", b">\n  <")
        lines.append(head + b";" + base64.b64encode(xml) + b"\n")
    return b"".join(lines)


def rate(work: Callable[[], int]) -> float:
    """Per second of a core's time: what others do on the machine meanwhile does not count."""
    began = time.process_time()
    done = work()
    return done / (time.process_time() - began)


def decoding(data: bytes) -> Callable[[], float]:
    def work() -> int:
        decoder = WOLPERTINGER.decoder(Direction.C2S, SETTINGS)
        decoder.feed(data)
        return sum(1 for _ in decoder)

    return lambda: rate(work)


def receiving(data: bytes) -> Callable[[], float]:
    """A session: what the decoder does, and the confirmations."""

    def work() -> int:
        session = WOLPERTINGER.session(Role.SERVER, WolpertingerSettings(max_calls=COUNT), unique=1)
        session.connected(0.0)
        found = 0
        for start in range(0, len(data), 65536):
            found += sum(len(batch.messages) for batch in session.receive(data[start : start + 65536], 0.0))
            session.outgoing()
        return found

    return lambda: rate(work)


def in_columns(data: bytes) -> Callable[[], float]:
    columns = WOLPERTINGER.columns()
    return lambda: rate(lambda: len(columns.decode(Spans.whole(data, Stream(Direction.C2S)), SETTINGS)))


def run() -> list[Result]:
    plain = calls()
    results = []
    for name, side, goal in (
        ("decoding, one at a time", decoding(plain), GOAL),
        ("decoding, indented XML", decoding(indented(plain)), GOAL),
        ("receiving in a session", receiving(plain), GOAL),
        ("decoding into columns", in_columns(plain), GOAL),
    ):
        results.append(compare(f"wolpertinger {name}", f"{goal:,}/s", side, lambda goal=goal: float(goal), goal=1))
    return results
