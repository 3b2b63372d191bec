"""Removes events from a read that their sender may not publish, before the read is journaled or routed.

A refused event is not journaled. It is counted, reported on `$hub/undeliverable`, and kept with the refused frames, up
to a rate that protects the disk. Refused requests stay, because they are answered with an error. In nearly all reads
everything is allowed: these are checked but not copied.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wireloom.model import Kind, Message
from wireloom.protocols.contract import Batch, Publishes, apply_agreed, decode_stream
from wireloom.protocols.contract import Rejected as Undecoded

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection

Verdict = Callable[[str, str | None], bool]
"""Whether an event may pass, given its topic and its author (see `Session.written_by`)."""


@dataclasses.dataclass(slots=True)
class Screened:
    """The rest of a batch after filtering."""

    batch: Batch
    refused: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many events were refused, by topic."""
    frames: list[bytes] = dataclasses.field(default_factory=list)
    """The frames of the refused events."""


def screen(connection: Connection, batch: Batch, verdict: Verdict) -> Screened:
    """Filter a batch: remove the events that may not pass."""
    if isinstance(batch, Publishes):
        parted = batch.split(verdict)
        if parted is not None:
            return _count(*parted)
        batch = batch.as_messages()[0]
    written_by = connection.session.written_by

    def allowed(message: Message) -> bool:
        return verdict(message.topic or "", written_by(message))

    if all(message.kind is not Kind.EVENT or allowed(message) for message in batch.messages):
        return Screened(batch)
    found = Screened(batch)
    data = bytes(batch.data)
    parts: list[bytes] = []
    for start, end, message in _frames(connection, data, batch):
        if message is not None and message.kind is Kind.EVENT and not allowed(message):
            topic = message.topic or ""
            found.refused[topic] = found.refused.get(topic, 0) + 1
            found.frames.append(data[start:end])
        else:
            parts.append(data[start:end])
    kept = [message for message in batch.messages if message.kind is not Kind.EVENT or allowed(message)]
    added = len(batch.messages) - batch.count
    found.batch = Batch(b"".join(parts), kept, ignored=max(-added, 0), added=max(added, 0), refused=batch.refused)
    found.batch.numbers = batch.numbers
    return found


def _count(rest: Batch, refused: Sequence[tuple[str, bytes]]) -> Screened:
    counts = Counter(topic for topic, _ in refused)
    return Screened(rest, dict(counts), [frame for _, frame in refused])


def _frames(connection: Connection, data: bytes, batch: Batch) -> list[tuple[int, int, Message | None]]:
    """The position of each message in a batch. Fragments belong to the message that they form."""
    session = connection.session
    # Negotiated settings are stored as differences from these.
    settings = apply_agreed(connection.protocol.lenient(), session.agreed())
    if session.secrets:
        settings = dataclasses.replace(settings, **session.secrets)
    numbers = session.topic_numbers() if batch.numbers is None else batch.numbers
    decoder = connection.protocol.decoder(session.inbound, settings, numbers)
    spans: list[tuple[int, int, Message | None]] = []
    last = 0
    for each in decode_stream(decoder, data):
        end = each.offset + (len(each.data) if isinstance(each, Undecoded) else each.size)
        if end <= last:
            continue  # fragments of an abandoned message, with other messages between them
        spans.append((last, end, None if isinstance(each, Undecoded) else each.message))
        last = end
    if last < len(data):
        spans.append((last, len(data), None))
    return spans
