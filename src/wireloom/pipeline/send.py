"""Sends rows of `messages` back to a live peer, in order, as fast as it takes them or at the pace they had.

Events, and what was published with an acknowledgement, are published; requests are asked again if that is wanted.
Everything else (answers, pings, handshakes, operations of the hub) belongs to the connection it was said on: it is
left out, and counted. So are attributes: they tell of the original bytes. Only `urgent` goes on, as in the hub.

No more than `IN_FLIGHT` answers are awaited at a time, and nothing is sent while the connection is full. A lost
connection is an error; whoever then sends again sends some messages twice (at least once).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wireloom.model import NO_ATTRIBUTES, ConfigError, Kind, Message, RequestFailed, RequestTimeout, WireloomError
from wireloom.peers.pending_calls import Call
from wireloom.pipeline.send_options import SendOptions
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, URGENT
from wireloom.protocols.publish_rules import OPERATION, meaning

if TYPE_CHECKING:
    import pyarrow as pa

    from wireloom.peers import Client

IN_FLIGHT = 256
"""Acknowledgements and answers that are awaited at a time."""
LOOK = 1.0
"""Seconds after which a pause of the pace is interrupted, to see whether the peer is still there."""

COLUMNS = ("time", "protocol", "kind", "topic", "body", "content_type", "attributes")
"""The columns of `messages` that matter; others are ignored."""
_KINDS = {str(kind): kind for kind in Kind}
_URGENT = {URGENT: "1"}


class SendFailed(WireloomError):
    """Not everything could be sent; the text says why, and how far it went."""


@dataclass
class SendCounts:
    """What became of the rows."""

    published: int = 0
    acknowledged: int = 0
    requested: int = 0
    refused: int = 0
    """Requests that were answered with an error, or not in time."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that were left out, by reason."""

    def __add__(self, other: SendCounts) -> SendCounts:
        return SendCounts(
            self.published + other.published,
            self.acknowledged + other.acknowledged,
            self.requested + other.requested,
            self.refused + other.refused,
            self.skipped + other.skipped,
        )

    def __str__(self) -> str:
        """One line for a person.

        >>> print(SendCounts(3, 3, 2, 1, Counter(ping=4, response=1)))
        3 published (3 acknowledged), 2 requested (1 refused), 5 skipped (4 ping, 1 response)
        """
        words = f"{self.published:,} published"
        if self.acknowledged:
            words += f" ({self.acknowledged:,} acknowledged)"
        if self.requested:
            words += f", {self.requested:,} requested" + (f" ({self.refused:,} refused)" if self.refused else "")
        if self.skipped:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.most_common())
            words += f", {self.skipped.total():,} skipped ({reasons})"
        return words


class MessageRow(NamedTuple):
    """One row of `messages`, as far as it matters for sending."""

    time_us: int | None
    message: Message | None
    """None where the row's kind is none that we know."""
    kind: str


@dataclass
class Pace:
    """Keeps the gaps between messages, times a factor. Clock and sleep can be brought along."""

    factor: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _first_us: int | None = None
    _began: float = 0.0

    def left(self, time_us: int | None) -> float:
        """Seconds until a message of that time is due; the first is due now."""
        if not self.factor or time_us is None:
            return 0.0
        if self._first_us is None:
            self._first_us, self._began = time_us, self.clock()
        return self._began + (time_us - self._first_us) / 1e6 / self.factor - self.clock()


def check_columns(schema: pa.Schema, options: SendOptions) -> None:
    """Whether rows of this schema can be sent; if not, the error says what is missing."""
    import pyarrow as pa

    text = (pa.types.is_string, pa.types.is_large_string)
    binary = (pa.types.is_binary, pa.types.is_large_binary)
    right = {
        "topic": ("a string", text),
        "body": ("binary or a string", binary + text),
        "kind": ("a string", text),
        "protocol": ("a string", text),
        "content_type": ("a string", text),
        "time": ("a timestamp", (pa.types.is_timestamp,)),
        "attributes": ("a map of strings", (pa.types.is_map,)),
    }
    needed = ["topic", "body", *(["time"] if options.pace else [])]
    missing = [name for name in needed if name not in schema.names]
    if missing:
        raise ConfigError(f"the rows have no column {missing[0]!r}; to be sent they need {', '.join(needed)}")
    for name, (what, checks) in right.items():
        if name in schema.names and not any(check(schema.field(name).type) for check in checks):
            raise ConfigError(f"the column {name!r} is {schema.field(name).type}; it must be {what}")


def rows_of(batch: pa.RecordBatch) -> Iterator[MessageRow]:
    """The rows of a batch; without a column `kind` all are events."""
    import pyarrow as pa

    columns: dict[str, list[object]] = {}
    for name in COLUMNS:
        if name not in batch.schema.names:
            columns[name] = [None if name != "kind" else "event"] * batch.num_rows
            continue
        column = batch.column(name)
        if name == "time":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        columns[name] = column.to_pylist()
    for time_us, protocol, kind, topic, body, content_type, attributes in zip(*columns.values(), strict=True):
        data = body.encode() if isinstance(body, str) else body or b""
        known = _KINDS.get(str(kind))
        told = dict(attributes or ())
        goal = f"{HUB_PREFIX}{told[OPERATION]}" if topic is None and OPERATION in told else topic
        message = None
        if known is not None:
            message = Message(
                known, goal, data, content_type=content_type, protocol=protocol or "",
                attributes=_URGENT if told.get(URGENT) == "1" else NO_ATTRIBUTES,
            )  # fmt: skip
        yield MessageRow(time_us, message, str(kind))


async def send_batches(batches: Iterable[pa.RecordBatch], options: SendOptions, pace: Pace | None = None) -> SendCounts:
    """Connect, and send the rows of these batches in their order.

    The batches are waited for in another thread, so that the conversation goes on meanwhile.
    """
    loop = asyncio.get_running_loop()
    iterator = iter(batches)
    sent = SendCounts()
    try:
        async with options.connect() as peer:
            sender = Sender(peer, options, pace or Pace(options.pace), sent)
            try:
                while (batch := await loop.run_in_executor(None, next, iterator, None)) is not None:
                    check_columns(batch.schema, options)
                    for row in rows_of(batch):
                        await sender.send(row)
                await sender.finish()
            finally:
                sender.count_acknowledged()
        if not options.ack and peer._driver is not None and peer._driver.aborted:
            raise SendFailed("the peer did not take the last messages in time, or did not say so (`ack` makes it)")
    except ConfigError:
        raise
    except WireloomError as error:
        if not sent.published and not sent.requested:
            raise
        raise SendFailed(f"{error}; before that: {sent}; sending again sends those again, too") from error
    return sent


class Sender:
    """Sends rows to one peer, and keeps count."""

    def __init__(self, peer: Client, options: SendOptions, pace: Pace, sent: SendCounts) -> None:
        self._peer = peer
        self._options = options
        self._pace = pace
        self._sent = sent
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Call] = deque()

    async def send(self, row: MessageRow) -> None:
        """Send what the row says when it is due, as soon as there is room; or leave it out."""
        message = self._prepared(row)
        if message is None:
            return
        while (left := self._pace.left(row.time_us)) > 0:
            await self._pace.sleep(min(left, LOOK))
            await self._peer.drain()  # raises if the connection was lost meanwhile
        while self._pending and (len(self._pending) >= IN_FLIGHT or self._pending[0].answer.done()):
            await self._settle(self._pending.popleft())
        try:
            if message.kind is Kind.EVENT:
                self._peer.send(message)
            else:
                driver = await self._peer._room(self._options.timeout)
                call = Call(message, self._options.timeout, self._loop)
                self._peer._dispatch(call, driver)
                self._pending.append(call)
        except WireloomError as error:
            raise SendFailed(f"the message to {_goal(message)!r} was not sent: {error}") from error
        if message.kind is Kind.EVENT or _is_publish(message):
            self._sent.published += 1
        else:
            self._sent.requested += 1
        if self._peer.is_slow:
            await self._peer.drain()

    async def finish(self) -> None:
        """Wait for every answer, and for room: what comes after this is the goodbye."""
        while self._pending:
            await self._settle(self._pending.popleft())
        await self._peer.drain()

    def count_acknowledged(self) -> None:
        """Count what was acknowledged already and not looked at, when sending ends early."""
        for call in self._pending:
            if call.answer.done() and not call.answer.cancelled() and call.answer.exception() is None:
                self._sent.acknowledged += _is_publish(call.request)
        self._pending.clear()

    def _prepared(self, row: MessageRow) -> Message | None:
        """What to send for a row; None, and counted, if that is nothing."""
        options, message = self._options, row.message
        topic = "" if message is None else message.topic or ""
        if message is not None:
            # Rows of `messages` say so already; whoever makes rows may write `$hub/publish/<topic>`.
            meant = meaning(message.kind, message.topic)
            if meant.kind is Kind.EVENT and meant.topic and not meant.topic.startswith(HUB_PREFIX):
                topic = f"{options.topic_prefix}{meant.topic}"
                kind = Kind.REQUEST if options.ack else Kind.EVENT
                return message.with_(kind=kind, topic=PUBLISH + topic if options.ack else topic, protocol="")
        if topic.startswith(HUB_PREFIX):
            self._sent.skipped["hub operation"] += 1
        elif message is None or message.kind not in (Kind.EVENT, Kind.REQUEST):
            self._sent.skipped[row.kind] += 1
        elif not topic:
            self._sent.skipped[f"{row.kind} without topic"] += 1
        elif not options.requests:
            self._sent.skipped["request"] += 1
        else:
            return message.with_(topic=options.topic_prefix + topic, protocol="")
        return None

    async def _settle(self, call: Call) -> None:
        """Take the outcome of the oldest call. A refused publish is an error; a refused request is an answer."""
        is_publish = _is_publish(call.request)
        try:
            await call.answer
        except (RequestFailed, RequestTimeout) as error:
            if is_publish:
                raise SendFailed(f"the message to {_goal(call.request)!r} was not acknowledged: {error}") from error
            self._sent.refused += 1
        else:
            self._sent.acknowledged += is_publish


def _is_publish(message: Message) -> bool:
    return (message.topic or "").startswith(PUBLISH)


def _goal(message: Message) -> str:
    return (message.topic or "").removeprefix(PUBLISH)
