"""One peer of the hub: its session, its place in the journal, and what waits to be sent to it.

Everything the peer says goes to the journal before it is acted on; everything the hub says to it, but for
deliveries of events, goes there as well. Events for a peer that reads slowly wait in a bounded queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from wireloom.hub.config import ListenerConfig, SlowConsumer
from wireloom.journal.blocks import TopicMap
from wireloom.model import Direction, Kind, Message, WireloomError
from wireloom.peers.driver import Driver
from wireloom.protocols.contract import CUT, URGENT, Role, Run, Sessions
from wireloom.transports.base import Pipe

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")


class Connection:
    """The owner of one accepted pipe."""

    def __init__(self, hub: Hub, listener: ListenerConfig, sessions: Sessions, *, contacted: bool = False) -> None:
        self.hub = hub
        self.listener = listener
        self.protocol = listener.protocol
        self.name = listener.protocol.name
        self.id = hub.journal.new_connection_id()
        unique = self.id & 0xFFFFFFFF
        self.session = sessions.contact(unique=unique) if contacted else sessions.new(Role.SERVER, unique=unique)
        self.session.enable_bulk()
        self.driver = Driver(self.session, on_run=self._on_run, on_end=self._on_end)
        # What the transport calls most goes straight to the driver.
        self.received = self.driver.received
        self.received_datagrams = self.driver.received_datagrams
        self.input_ended = self.driver.input_ended
        self.ended = self.driver.ended
        self.contacted = contacted
        """Whether we spoke first."""
        self.over: asyncio.Event | None = None
        """For those who wait until this connection is gone."""
        self._pipe: Pipe | None = None
        self._queue: deque[tuple[bytes, int]] = deque()
        self._urgent: deque[tuple[bytes, int]] = deque()
        """Events that go ahead of those in the queue."""
        self._queued_bytes = 0
        self._lost = 0
        self.delivered = 0
        """Events sent to this peer, and those dropped because it was slow, since it came."""
        self.lost = 0
        self._inbound, self._outbound = self.session.inbound, self.session.outbound
        self._recorded = dict.fromkeys(Direction, 0)
        """Messages in the journal by direction."""
        self._sent_seen = 0
        self._numbers: Mapping[int, str] | None = None
        self._topic_map: TopicMap | None = None
        self.peer = ""
        self.local = ""

    def talks_over(self, pipe: Pipe) -> bool:
        """Whether this is the owner of a pipe."""
        return self._pipe is pipe

    def __repr__(self) -> str:
        return f"<{self.name} connection {self.id:016x} from {self.peer}>"

    # What the transport calls

    def opened(self, pipe: Pipe) -> None:
        """The pipe is up: record it and start the conversation."""
        self._pipe = pipe
        self.peer, self.local = pipe.peername, pipe.sockname
        if not self.hub.admit(self):
            pipe.abort()
            return
        self.hub.journal.record(
            "opened",
            {
                "protocol": self.name,
                "listener": self.listener.url,
                "peer": self.peer,
                "local": self.local,
                "role": "client" if self.contacted else "server",
                "principal": pipe.principal,
                "tls": pipe.tls.version if pipe.tls else None,
            },
            self.id,
            protocol=self.name,
            source=self.peer or None,
            destination=self.local or None,
        )
        self.driver.opened(_Recorded(pipe, self))

    def writing_paused(self) -> None:
        """The peer reads more slowly than we write: events wait in the queue now."""
        self.driver.writing_paused()

    def writing_resumed(self) -> None:
        """There is room again: first what waited."""
        self.driver.writing_resumed()
        while (self._urgent or self._queue) and not self.driver.writing_is_paused:
            data, count = (self._urgent or self._queue).popleft()
            self._queued_bytes -= len(data)
            self._write_events(data, count)
        if not self._queue and self._lost:
            self._report_lost()

    # What the peer says

    def _on_run(self, run: Run) -> None:
        hub = self.hub
        ticket = 0
        if run.data:
            start, counted = 0, 0
            for end, count, numbers in run.renumbered:
                ticket = self._record(run.data[start:end], count - counted, TopicMap(numbers) if numbers else None)
                start, counted = end, count
            if start < len(run.data):
                ticket = self._record(run.data[start:], run.count - counted, self._topics())
            hub.metrics.received.add(run.count, self.name)
            hub.metrics.received_bytes.add(len(run.data), self.name)
        if run.bulk is not None:
            hub.router.route_bulk(self, run.bulk, ticket)
        else:
            for message in run.messages:
                hub.router.route(self, message, ticket)
        for refused in run.refused:
            self._record_refused(refused.clause, refused.detail, refused.data)
        if self.session.violation is not None:
            self._record_violation()
        hub.watch_pending()

    def _record(self, data: bytes | memoryview, count: int, topics: TopicMap | None) -> int:
        """Append what the peer said to the journal; returns the ticket."""
        before = self._recorded[self._inbound]
        self._recorded[self._inbound] += count
        return self.hub.journal.append(
            self.name,
            self.id,
            self._inbound,
            before,
            data,
            source=self.peer or None,
            destination=self.local or None,
            topics=topics,
        )

    def _topics(self) -> TopicMap | None:
        """The numbers in force, as the journal writes them; made once for each change."""
        numbers = self.session.topic_numbers()
        if numbers is not self._numbers:
            self._numbers = numbers
            self._topic_map = TopicMap(numbers) if numbers else None
        return self._topic_map

    def _record_violation(self) -> None:
        violation = self.session.violation
        assert violation is not None
        log.warning("%r refused: %s", self, violation)
        self._record_refused(violation.clause, violation.detail, self.session.refused)

    def _record_refused(self, clause: str, detail: str, data: bytes) -> None:
        self.hub.refused(self.name, self.id, self._inbound, data, clause, detail, self.peer, self.local)

    def _on_end(self, failure: WireloomError) -> None:
        if self._lost:
            self._report_lost()
        cut = self.session.unread()
        if cut and self.session.violation is None:
            self._record_refused(CUT, "the connection ended inside a frame", cut)
        for what, count in self.session.counters.items():
            self.hub.metrics.ignored.add(count, self.name, what)
        reason = self.session.close_reason or ("reset" if isinstance(failure.__cause__, OSError) else "close")
        self.hub.journal.record(
            "closed",
            {"reason": reason, "detail": str(failure)},
            self.id,
            protocol=self.name,
            source=self.peer or None,
            destination=self.local or None,
        )
        self.hub.forget(self)

    # What the hub says to it

    def send(self, message: Message) -> Message:
        """Send a request, an answer or a control message; recorded in the journal."""
        return self.driver.send(message)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Send answers that are encoded already; recorded in the journal."""
        if self.driver.failure is None and encoded:
            self.session.send_frames(encoded, count)
            self.driver.flush()

    def deliver(self, message: Message) -> None:
        """Send an event; it waits, and may be dropped, if the peer is slow.

        Raises NotSupported or LimitExceeded where the peer's protocol cannot express it.
        """
        if self.driver.failure is not None:
            return
        event = Message(Kind.EVENT, message.topic, message.body, content_type=message.content_type)
        if message.attributes.get(URGENT) == "1":
            event = event.with_(attributes={URGENT: "1"})
        self.driver.write_pending()
        self.session.send(event, self.hub.now())
        self._sent_seen += 1
        if self._pipe is not None and self._pipe.carries_messages:
            for frame in self.session.outgoing_frames():
                self._enqueue(frame, 1, urgent=self.session.is_urgent(frame))
        else:
            self._enqueue(self.session.outgoing(), 1)
        if self.session.offloads:
            self.driver.flush()

    def deliver_frames(self, encoded: bytes, count: int) -> None:
        """Send events that are encoded already."""
        if self.driver.failure is None:
            self.driver.write_pending()
            if self._pipe is not None and self._pipe.carries_messages:
                for frame in self.session.frames_of(encoded):
                    self._enqueue(frame, 1, urgent=self.session.is_urgent(frame))
            else:
                self._enqueue(encoded, count)

    def _enqueue(self, data: bytes, count: int, *, urgent: bool = False) -> None:
        if not self.driver.writing_is_paused and not self._queue and not self._urgent:
            self._write_events(data, count)
            return
        limits = self.hub.config.limits
        if self._queued_bytes + len(data) > limits.queue_bytes:
            match limits.slow_consumer:
                case SlowConsumer.DROP_NEWEST:
                    self._lose(count)
                    return
                case SlowConsumer.DISCONNECT:
                    self._lose(count + sum(each for _, each in (*self._queue, *self._urgent)))
                    log.warning("%r is too slow: disconnected with %d bytes unsent", self, self._queued_bytes)
                    self.session.close_reason = "error"
                    self.hub.forget(self)
                    self.driver.abort()
                    return
                case SlowConsumer.DROP_OLDEST:
                    while self._queue and self._queued_bytes + len(data) > limits.queue_bytes:
                        oldest, dropped = self._queue.popleft()
                        self._queued_bytes -= len(oldest)
                        self._lose(dropped)
        (self._urgent if urgent else self._queue).append((data, count))
        self._queued_bytes += len(data)

    def _write_events(self, data: bytes, count: int) -> None:
        assert self._pipe is not None
        self.delivered += count
        self.hub.metrics.delivered.add(count, self.name)
        if self.hub.config.journal.deliveries:
            self._record_outbound(data, count)
        self._pipe.write(data)

    def _lose(self, count: int) -> None:
        if not self._lost:
            log.warning("%r reads too slowly: events for it are being dropped", self)
        self._lost += count
        self.lost += count
        self.hub.metrics.lost.add(count, self.name, self.hub.config.limits.slow_consumer)

    def _report_lost(self) -> None:
        """One record for a whole spell of losses."""
        self.hub.journal.record(
            "lost", {"count": self._lost, "reason": f"slow consumer: {self.hub.config.limits.slow_consumer}"}, self.id
        )
        self._lost = 0

    def record_sent(self, data: bytes) -> None:
        """Note in the journal what goes out that is no delivery."""
        assert self._pipe is not None
        count = 1 if self._pipe.carries_messages else self.session.sent - self._sent_seen
        self._sent_seen += count
        self._record_outbound(data, count)

    def _record_outbound(self, data: bytes, count: int) -> None:
        self.hub.journal.append(
            self.name,
            self.id,
            self._outbound,
            self._recorded[self._outbound],
            data,
            source=self.local or None,
            destination=self.peer or None,
            inbound=False,
            topics=self._topics(),
        )
        self._recorded[self._outbound] += count

    @property
    def accepted(self) -> int:
        """Messages taken from this peer."""
        return self._recorded[self._inbound]

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait for this peer."""
        return self._queued_bytes


class _Recorded(Pipe):
    """A pipe as the driver sees it: what it writes is recorded on the way."""

    def __init__(self, pipe: Pipe, connection: Connection) -> None:
        self._pipe = pipe
        self._connection = connection
        self.peername, self.sockname, self.tls = pipe.peername, pipe.sockname, pipe.tls
        self.headers, self.credentials = pipe.headers, pipe.credentials
        self.carries_messages, self.max_write = pipe.carries_messages, pipe.max_write

    def write(self, data: bytes) -> None:
        """Record and send."""
        self._connection.record_sent(data)
        self._pipe.write(data)

    def finish(self) -> None:
        """Say that no more will be written."""
        self._pipe.finish()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._pipe.resume_reading()

    def close(self) -> None:
        """Close when everything is sent."""
        self._pipe.close()

    def abort(self) -> None:
        """Close at once."""
        self._pipe.abort()
