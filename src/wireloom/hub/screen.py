"""Takes out of a read what its sender may not publish, before it reaches the journal and anybody else.

Events that are refused are not part of the record: they are counted, told on `$hub/undeliverable`, and kept with the
refused frames, as often as the disk should bear it. Requests stay, for their answer will say that they were refused.
Reads in which everything is allowed, which is nearly all of them, are only looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from wireloom.hub.access import Right
from wireloom.model import Kind, Message
from wireloom.protocols.contract import Bulk, Renumbered, Run, apply_agreed, decode_stream
from wireloom.protocols.contract import Rejected as Undecoded

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection

Verdict = Callable[[Message], bool]
"""Whether an event may pass."""


@dataclasses.dataclass(slots=True)
class Screened:
    """What is left of a read."""

    run: Run
    requests: list[Message] = dataclasses.field(default_factory=list)
    """Requests that were taken out of the columns, to be refused one by one."""
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    """Events that were refused, by topic."""
    frames: list[bytes] = dataclasses.field(default_factory=list)
    """Those events, as they came."""


def screen(connection: Connection, run: Run) -> Screened:
    """What the rules leave of a read."""
    bulk = run.bulk
    if bulk is None:
        return _screen_messages(connection, run, connection.may_publish)
    refused: dict[str, int] = {}
    topics: list[str] = []
    dropped: list[bytes] = []
    for topic in bulk.topics():
        authors = bulk.authors(topic)
        if not authors and not connection.grants.may(Right.PUBLISH, topic):
            topics.append(topic)
        for author in authors:
            if not connection.grants_of(author).may(Right.PUBLISH, topic):
                frames = bulk.drop(topic, author)
                dropped += frames
                refused[topic] = refused.get(topic, 0) + len(frames)
    if dropped:
        kept = bytes(run.data)
        for frame in dropped:
            kept = kept.replace(frame, b"", 1)
        return Screened(dataclasses.replace(run, data=kept), refused=refused, frames=dropped)
    return _take_topics(connection, run, bulk, topics) if topics else Screened(run)


def screen_all(connection: Connection, run: Run) -> Screened:
    """What is left of a read when nothing may pass."""
    if run.bulk is None:
        return _screen_messages(connection, run, lambda _: False)
    return _take_topics(connection, run, run.bulk, list(run.bulk.topics()))


def _take_topics(connection: Connection, run: Run, bulk: Bulk, topics: list[str]) -> Screened:
    taken = [message for topic in topics for message in bulk.take(topic)]
    requests = [message for message in taken if message.kind is Kind.REQUEST]
    wrong = frozenset(topics)
    found = _cut(connection, run, lambda message: message.topic not in wrong)
    found.requests = requests
    bulk.count -= sum(found.refused.values())
    return found


def _screen_messages(connection: Connection, run: Run, allowed: Verdict) -> Screened:
    if all(message.kind is not Kind.EVENT or allowed(message) for message in run.messages):
        return Screened(run)
    found = _cut(connection, run, allowed)
    kept = [message for message in run.messages if message.kind is not Kind.EVENT or allowed(message)]
    found.run = dataclasses.replace(found.run, messages=kept)
    return found


def _cut(connection: Connection, run: Run, allowed: Verdict) -> Screened:
    """The frames of a read without those of events that may not pass."""
    found = Screened(run)
    data = bytes(run.data)
    parts: list[bytes] = []
    renumbered: list[Renumbered] = []
    start = gone = size = 0
    stages = [*run.renumbered, Renumbered(len(data), 0, connection.session.topic_numbers())]
    for stage in stages:
        for position, end, message in _frames(connection, data[start : stage.end], stage):
            frame = data[start + position : start + end]
            if message is not None and message.kind is Kind.EVENT and not allowed(message):
                topic = message.topic or ""
                found.refused[topic] = found.refused.get(topic, 0) + 1
                found.frames.append(frame)
                gone += 1
            else:
                parts.append(frame)
                size += len(frame)
        renumbered.append(Renumbered(size, stage.messages - gone, stage.topics))
        start = stage.end
    found.run = dataclasses.replace(run, data=b"".join(parts), renumbered=renumbered[:-1])
    return found


def _frames(connection: Connection, data: bytes, stage: Renumbered) -> list[tuple[int, int, Message | None]]:
    """Where each message of a read is; pieces of a larger one belong to the message that they become."""
    settings = apply_agreed(connection.listener.settings, connection.session.agreed())
    if connection.session.secrets:
        settings = dataclasses.replace(settings, **connection.session.secrets)
    decoder = connection.protocol.decoder(connection.session.inbound, settings, stage.topics)
    spans: list[tuple[int, int, Message | None]] = []
    last = 0
    for each in decode_stream(decoder, data):
        end = each.offset + (len(each.data) if isinstance(each, Undecoded) else each.size)
        if end <= last:
            continue  # pieces of a message that was given up: others stood between them
        spans.append((last, end, None if isinstance(each, Undecoded) else each.message))
        last = end
    if last < len(data):
        spans.append((last, len(data), None))
    return spans
