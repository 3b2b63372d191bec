"""What waits to be sent to one peer: events, in a bounded queue if the peer reads slowly.

Answers and control messages never wait in this queue. Neither do events that are read from the journal: their reader
waits until the peer can take more. A large event is encoded by another thread when it is first in the queue. Later
events wait for it, so the order is kept.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.limits import SlowConsumer
from wireloom.hub.logs import about
from wireloom.model import Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.peers.driver import Driver
from wireloom.protocols.contract import TRACE, URGENT, Session
from wireloom.transports.base import Pipe

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

log = logging.getLogger("wireloom.hub")

_PASSED_ON = (URGENT, *TRACE)
"""Attributes of an event that are passed on to its subscribers."""
Waiting = tuple[Sequence[bytes] | Message, int]
"""An entry of the queue: frames that are sent all or not at all, with their number of events; or a single event."""
_EMPTY: deque[Waiting] = deque()
"""Shared by all connections with an empty queue. Ten thousand empty deques would need much memory."""


class Outbox(abc.ABC):
    """The side of a connection that sends events."""

    # A base class of each connection, not an attribute: one object less for each of thousands of connections.
    __slots__ = (
        "_events_held",
        "_lost",
        "_pipe",
        "_queue",
        "_queued_bytes",
        "_room",
        "_sent_seen",
        "_urgent",
        "delivered",
        "driver",
        "hub",
        "id",
        "lost",
        "name",
        "peer",
        "session",
        "unsent",
        "unsent_past",
    )

    session: Session
    driver: Driver

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.id = hub.journal.new_connection_id()
        self.peer = ""
        self.name = name
        """The name of the protocol."""
        self._pipe: Pipe | None = None
        self._queue = _EMPTY
        self._urgent = _EMPTY
        """Urgent events. They are sent before those in the queue."""
        self._queued_bytes = 0
        self._events_held = 0
        """How many callers hold events back because older ones must be sent first."""
        self._room: list[asyncio.Future[None]] | None = None
        self._lost = 0
        self.delivered = 0
        """Events sent to this peer, and events dropped because it was slow, since it connected."""
        self.lost = 0
        self.unsent = 0
        """Bytes of requests and answers sent since the peer stopped reading; 0 while it reads."""
        self.unsent_past = 0
        """The same for events read from the journal. No other peer shares these bytes."""
        self._sent_seen = 0
        """Sent messages that are already counted when they are recorded."""

    @abc.abstractmethod
    def _record_outbound(self, data: bytes, count: int, *, delivered: bool = False) -> None:
        """Record outgoing bytes in the journal. `delivered` is set for events to a subscriber."""

    @property
    @abc.abstractmethod
    def principal(self) -> str:
        """The peer's principal, for the log."""

    @abc.abstractmethod
    def cut_off(self, limit: str) -> None:
        """A limit is reached: drop the connection now."""

    @property
    def queued_bytes(self) -> int:
        """Bytes of events that wait for this peer."""
        return self._queued_bytes

    def writing_paused(self) -> None:
        """The peer reads more slowly than the hub writes: from now on events are queued."""
        self.driver.writing_paused()

    def writing_resumed(self) -> None:
        """The peer can take more: send queued events first."""
        self.unsent = self.unsent_past = 0
        self.driver.writing_resumed()
        self._write_queued()

    @property
    def _is_behind(self) -> bool:
        """Whether the peer must first take, or confirm, what it was sent."""
        return self.driver.writing_is_paused or (self.session.remembers and self.session.is_full)

    @property
    def _must_wait(self) -> bool:
        """Whether the next event must be queued."""
        return bool(self._queue or self._urgent or self._events_held or self._is_behind)

    def _write_queued(self) -> None:
        while (self._urgent or self._queue) and not self._events_held and not self._is_behind:
            waiting, count = (self._urgent or self._queue).popleft()
            self._count_queued(-_size(waiting))
            if isinstance(waiting, Message):
                with self._telling_failure(waiting):
                    self._send(waiting)
            else:
                self._write_frames(waiting, count)
        if not self._queue and self._lost:
            self._report_lost()
        if not self._is_behind:
            self._tell_room()

    # Events read from the journal wait there until the peer can take them

    @property
    def has_room(self) -> bool:
        """Whether an event can be sent at once."""
        return not self._must_wait

    async def room(self) -> None:
        """Wait until an event can be sent at once, after all queued ones.

        Raises PeerClosed if the connection is lost.
        """
        while self._must_wait:
            await self._wait_for_room()

    async def writable(self) -> None:
        """Wait until something can be written, ahead of queued events. Raises PeerClosed if the connection is lost."""
        while self._is_behind:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        if self.driver.failure is not None:
            raise PeerClosed("the connection is gone")
        waiter = asyncio.get_running_loop().create_future()
        if self._room is None:
            self._room = []
        self._room.append(waiter)
        await waiter

    def _tell_room(self) -> None:
        waiting, self._room = self._room or (), None
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def hold_events(self) -> None:
        """Queue events until `release_events`."""
        self._events_held += 1

    def release_events(self) -> None:
        """Send the queued events."""
        self._events_held -= 1
        if not self._events_held and self.driver.failure is None:
            self._write_queued()

    # What is sent

    def deliver(self, message: Message) -> None:
        """Send an event. If the peer is slow, the event is queued and may be dropped.

        Raises NotSupported or LimitExceeded if the peer's protocol cannot express it.
        """
        if self.driver.failure is not None:
            return
        event = _event(message)
        if not self._must_wait:
            self._send(event)
        elif self.session.remembers or self.session.packing(event) is not None:
            self._enqueue(event, 1)
        else:
            for frames, count in self._whole(self._event_frames(event)):
                self._write_or_enqueue(frames, count, urgent=self.session.is_urgent(frames[0]))

    async def deliver_now(self, message: Message) -> None:
        """Send an event ahead of queued ones, for a caller that awaited `room`. Raises what `deliver` raises."""
        if self.driver.failure is not None:
            raise PeerClosed("the connection is gone")
        event = _event(message)
        work = self.session.packing(event)
        packed = None if work is None else await asyncio.get_running_loop().run_in_executor(None, work)
        self._write_event(event, packed)
        if self.driver.writing_is_paused:
            self.unsent_past += len(event.body)

    def _send(self, event: Message) -> None:
        """Write an event that is first in the queue: now, or once another thread has encoded it."""
        work = self.session.packing(event)
        if work is None:
            self._write_event(event)
            return
        self.hold_events()
        packing = asyncio.get_running_loop().run_in_executor(None, work)
        self.hub.packing.add(packing)
        packing.add_done_callback(functools.partial(self._packed, event))

    def _packed(self, event: Message, packing: asyncio.Future[object]) -> None:
        self.hub.packing.discard(packing)
        try:
            with self._telling_failure(event):
                self._write_event(event, packing.result())
        finally:
            self.release_events()

    @contextlib.contextmanager
    def _telling_failure(self, event: Message) -> Iterator[None]:
        """Report the failure of a queued event, where `deliver` would have raised it."""
        try:
            yield
        except (NotSupported, LimitExceeded) as error:
            self.hub.router.undeliverable(self, event, str(error))
        except PeerClosed:
            pass

    def _write_event(self, event: Message, packed: object = None) -> None:
        for frames, count in self._whole(self._event_frames(event, packed)):
            self._write_frames(frames, count)
        if self.session.offloads:
            self.driver.flush()

    def _whole(self, frames: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], int]]:
        """Group frames by event: all fragments of one event together."""
        if self._pipe is None or not self._pipe.carries_messages:
            yield from (((frame,), 1) for frame in frames)
            return
        pieces: list[bytes] = []
        for frame in frames:
            pieces.append(frame)
            if count := self.session.messages_in(frame):
                yield pieces, count
                pieces = []

    def _event_frames(self, event: Message, packed: object = None) -> Sequence[bytes]:
        if self.driver.failure is not None:
            raise PeerClosed("the connection is gone")
        self.session.say_all()
        self.driver.write_pending()
        before = self.session.sent
        self.session.send_event(event, packed, self.hub.now())
        self._sent_seen += self.session.sent - before
        if self._pipe is not None and self._pipe.carries_messages:
            return self.session.outgoing_frames()
        return (self.session.outgoing(),)

    def count_events(self, count: int) -> Pipe | None:
        """Count events that are written now. Returns the pipe, or None if `deliver_frames` must be called instead."""
        driver, pipe = self.driver, self._pipe
        if pipe is None or pipe.carries_messages or driver.failure is not None or self._must_wait:
            return None
        if self.hub.config.journal.deliveries:
            return None
        driver.write_pending()
        self.delivered += count
        return pipe

    def deliver_frames(self, encoded: bytes, count: int) -> None:
        """Send events that are already encoded."""
        if self.driver.failure is None:
            self.driver.write_pending()
            if self._pipe is not None and self._pipe.carries_messages:
                for frame in self.session.frames_of(encoded):
                    self._write_or_enqueue((frame,), 1, urgent=self.session.is_urgent(frame))
            else:
                self._write_or_enqueue((encoded,), count)

    def _write_or_enqueue(self, frames: Sequence[bytes], count: int, *, urgent: bool = False) -> None:
        if self._must_wait:
            self._enqueue(frames, count, urgent=urgent)
        else:
            self._write_frames(frames, count)

    def _enqueue(self, waiting: Sequence[bytes] | Message, count: int, *, urgent: bool = False) -> None:
        limits, size = self.hub.config.limits, _size(waiting)
        if self._queued_bytes + size > limits.queue_bytes:
            match limits.slow_consumer:
                case SlowConsumer.DROP_NEWEST:
                    self._lose(count)
                    return
                case SlowConsumer.DISCONNECT:
                    self._lose(count + sum(each for _, each in (*self._queue, *self._urgent)))
                    self.cut_off("slow-consumer")
                    return
                case SlowConsumer.DROP_OLDEST:
                    # Urgent events are dropped last, and only in favour of other urgent events.
                    older = (self._queue, self._urgent if urgent else _EMPTY)
                    while any(older) and self._queued_bytes + size > limits.queue_bytes:
                        self._drop_waiting((older[0] or older[1]).popleft())
        if urgent:
            if self._urgent is _EMPTY:
                self._urgent = deque()
            self._urgent.append((waiting, count))
        else:
            if self._queue is _EMPTY:
                self._queue = deque()
            self._queue.append((waiting, count))
        self._count_queued(size)
        self.hub.watch_memory()

    def _count_queued(self, change: int) -> None:
        self._queued_bytes += change
        self.hub.queued_bytes += change

    def _drop_waiting(self, waiting: Waiting) -> None:
        self._count_queued(-_size(waiting[0]))
        self._lose(waiting[1])

    def shed(self) -> None:
        """All queues together are too large, and this is the longest. Drop half of it, or disconnect the peer."""
        if self.hub.config.limits.slow_consumer is SlowConsumer.DISCONNECT or not self._queue:
            self._lose(sum(each for _, each in (*self._queue, *self._urgent)))
            self.cut_off("memory")
            return
        goal = self._queued_bytes // 2
        newest = self.hub.config.limits.slow_consumer is SlowConsumer.DROP_NEWEST
        while self._queue and self._queued_bytes > goal:
            self._drop_waiting(self._queue.pop() if newest else self._queue.popleft())

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._urgent.clear()
        self._count_queued(-self._queued_bytes)

    def _write_frames(self, frames: Sequence[bytes], count: int) -> None:
        for piece in frames[:-1]:
            self._write_events(piece, 0)
        self._write_events(frames[-1], count)

    def _write_events(self, data: bytes, count: int) -> None:
        assert self._pipe is not None
        self.delivered += count
        self.hub.metrics.delivered.add(count, self.name)
        self.hub.metrics.sent.add(count, self.name)
        if self.hub.config.journal.deliveries:
            self._record_outbound(data, count, delivered=True)
        self._pipe.write(data)

    def _lose(self, count: int) -> None:
        if not self._lost:
            extra = about("consumer.slow", self)
            log.warning("%r reads too slowly: events for it are being dropped", self, extra=extra)
        self._lost += count
        self.lost += count
        self.hub.metrics.lost.add(count, self.name, self.hub.config.limits.slow_consumer)
        self.hub.reached("queue_bytes")

    def _report_lost(self) -> None:
        """Write one record for a whole series of lost events."""
        self.hub.journal.record(
            "lost", {"count": self._lost, "reason": f"slow consumer: {self.hub.config.limits.slow_consumer}"}, self.id
        )
        self._lost = 0


def _event(message: Message) -> Message:
    """The parts of a published message that its subscribers get."""
    event = Message(Kind.EVENT, message.topic, message.body, content_type=message.content_type)
    if message.attributes:
        event = event.with_(attributes={k: v for k, v in message.attributes.items() if k in _PASSED_ON})
    return event


def _size(waiting: Sequence[bytes] | Message) -> int:
    if isinstance(waiting, Message):
        return len(waiting.body) + len(waiting.topic or "")
    return len(waiting[0]) if len(waiting) == 1 else sum(map(len, waiting))
