"""An emp session that is fast: short ways for the usual messages, and kernels for large reads.

The conversation itself, and everything unusual, is in `talk.py`. What goes a short way comes to the same, which the
tests hold against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from wireloom.model import Message, PeerClosed
from wireloom.protocols.contract import Asker, Bulk, Calls, Role, Run
from wireloom.protocols.emp.extensions import MAX_ID
from wireloom.protocols.emp.plain import (
    read_related,
    shape_of,
    write_event,
    write_events,
    write_request,
    write_requests,
    write_response,
)
from wireloom.protocols.emp.settings import EmpSettings
from wireloom.protocols.emp.states import CLOSED, CLOSING, OPEN
from wireloom.protocols.emp.talk import EmpTalk

if TYPE_CHECKING:
    from wireloom.protocols.emp.bulk import EmpBulk
    from wireloom.protocols.emp.calls import EmpCalls


class EmpSession(EmpTalk):
    """Client and server are alike in emp; the role only names the direction."""

    def __init__(self, role: Role, settings: EmpSettings) -> None:
        super().__init__(role, settings)
        self._said_topic: str | None = None
        self._said_type: str | None = None
        self._said_shape = shape_of(None, None)
        """The shape of what was said last, and for what that is."""
        self._bulk: type[EmpBulk] | None = None
        self._calls: type[EmpCalls] | None = None

    # Reading

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        kept = self._buffer
        if kept and self.state is not CLOSED and kept.takes(data):
            return Run()
        if self._plain and self.state is OPEN:
            if self._bulk is not None and self._owed_reads.are_for(len(kept) + len(data)):
                if self._slow.reading is None:
                    run = self._receive_bulk(b"".join((kept, data)) if kept else data)
                    if run is not None:
                        return run
            elif not kept:
                # Mostly a read is a few plain messages, and nothing else.
                self._single_out()
                messages: list[Message] = []
                position = read_related(
                    data, 0, self.settings, self._receives, self._waiting, self._owed, self._last_shape, messages
                )
                if position == len(data):
                    return Run(data, messages)
                return self._receive_more(data, position, messages, now)
        self._single_out()
        return super().receive(data, now)

    def take_plain(self, data: bytes, now: float, messages: list[Message]) -> int:
        """Take plain requests and responses."""
        if self._buffer or not self._plain or self.state is not OPEN or self._bulk is not None:
            return 0
        return read_related(
            data, 0, self.settings, self._receives, self._waiting, self._owed, self._last_shape, messages,
            to_askers=True,
        )  # fmt: skip

    # Sending

    def tell(self, event: Message, now: float) -> None:
        """Queue an event; the short way, where it is open and nothing is unusual."""
        body = event.body
        if (
            self._plain and self.state is OPEN and not event.attributes and event.status is None
            and len(body) <= self._largest_plain and (shape := shape_of(event.topic, event.content_type)) is not None
        ):  # fmt: skip
            self._out.append(write_event(shape, body))
            self.sent += 1
        else:
            self.send(event, now)

    def ask(self, request: Message, now: float) -> str | None:
        """Queue a request; the short way, where it is open and nothing is unusual."""
        body, waiting, number = request.body, self._waiting, self._last_id + 1
        if (
            self._plain and self.state is OPEN and not request.attributes and request.status is None
            and len(body) <= self._largest_plain and len(waiting) + len(self._relayed) < self.settings.max_requests
            and number <= MAX_ID and (shape := shape_of(request.topic, request.content_type)) is not None
        ):  # fmt: skip
            self._last_id = number
            identifier = str(number)
            waiting[identifier] = request
            self._out.append(write_request(shape, number, body))
            self.sent += 1
            return identifier
        return self.send(request, now).id

    def ask_for(self, asker: Asker, topic: str, body: bytes, content_type: str | None, now: float) -> str | None:
        """Queue a request, where the short way is open."""
        waiting, number = self._waiting, self._last_id + 1
        if topic is not self._said_topic or content_type is not self._said_type:
            self._say_of(topic, content_type)
        if (
            (shape := self._said_shape) is None or len(body) > self._largest_plain or not self._plain
            or self.state is not OPEN or number > MAX_ID
            or len(waiting) + len(self._relayed) >= self.settings.max_requests
        ):  # fmt: skip
            return None
        self._last_id = number
        identifier = str(number)
        waiting[identifier] = asker
        self._out.append(write_request(shape, number, body))
        self.sent += 1
        return identifier

    def ask_many(self, requests: Sequence[Message], now: float, askers: Sequence[Asker] = ()) -> list[str]:
        """Queue the plain requests that these begin with."""
        first = self._last_id + 1
        if not self._plain or self.state is not OPEN or self._room < len(requests):
            return []
        count = write_requests(requests, first, self.settings, self._out)
        self._last_id += count
        self.sent += count
        identifiers = list(map(str, range(first, first + count)))
        self._waiting.update(zip(identifiers, askers or requests, strict=False))
        return identifiers

    def respond(self, request: Message, body: bytes, content_type: str | None, now: float) -> None:
        """Queue the response to a request; the short way, where that is enough."""
        topic = request.topic
        if topic is not self._said_topic or content_type is not self._said_type:
            self._say_of(topic, content_type)
        if (
            (shape := self._said_shape) is None or len(body) > self._largest_plain or not self._plain
            or self.state is not OPEN or not (number := self._owed.pop(request.id or "", 0))
        ):  # fmt: skip
            super().respond(request, body, content_type, now)
            return
        self._out.append(write_response(shape, number, body))
        self.sent += 1

    def _say_of(self, topic: str | None, content_type: str | None) -> None:
        """Remember the shape of messages with this topic and content type: mostly the next one has them, too."""
        self._said_topic, self._said_type = topic, content_type
        self._said_shape = shape_of(topic, content_type)

    @property
    def event_style(self) -> object:
        """Events are written alike under the same settings, unless something large is still being packed."""
        # Sessions of one listener have the same object; its number is a quicker key than its values.
        return id(self.settings) if self._plain and self.state is OPEN else None

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """Plain `data`."""
        return write_events(events, self.settings)

    # Large reads, by kernels

    def enable_bulk(self) -> bool:
        """Let `receive` use the column kernels for large reads."""
        from wireloom.protocols.emp import bulk, calls

        bulk.warm()
        calls.warm()
        self._bulk, self._calls = bulk.EmpBulk, calls.EmpCalls
        return True

    def _receive_bulk(self, buffer: bytes) -> Run | None:
        """A read of nothing but events and publishes, or calls; None where it has to be read frame by frame."""
        assert self._bulk is not None
        assert self._calls is not None
        if not self._owed_reads:
            calls = self._calls.of(buffer, self.settings.max_message, self._receives)
            if calls is not None:
                return self._receive_calls(buffer, calls)
        self._single_out()
        found = self._bulk.of(self, buffer, self._owed_reads.fewest)
        alone = iter(self._owed.values())
        if found is None or not self._owed_reads.admit(found, alone, len(self._owed), self.settings.max_requests):
            # Frame by frame, every id must be known.
            for read, row in self._owed_reads.single_out():
                self.owe(read.key(row))
            return None
        self._buffer.keep(buffer[found.consumed :])
        return Run(memoryview(buffer)[: found.consumed], bulk=found)

    def _receive_calls(self, buffer: bytes, calls: EmpCalls) -> Run | None:
        """A read of nothing but plain requests, or responses; None where one of them is against the conversation."""
        numbers, owed, waiting = calls.numbers, self._owed, self._waiting
        if calls.asks and len(owed) + len(self._owed_calls) + calls.count > self.settings.max_requests:
            return None
        known = False
        if isinstance(numbers, range):
            if not calls.asks:
                known = self._relayed.remove(numbers)
            elif not any(map(numbers.__contains__, owed.values())):
                known = self._owed_calls.add(numbers)
        if not known:
            self._single_out()
            ids = list(map(str, numbers))
            if calls.asks:
                if not owed.keys().isdisjoint(ids):
                    return None
                owed.update(zip(ids, numbers, strict=True))
            else:
                if not all(map(waiting.__contains__, ids)):
                    return None
                for identifier in ids:
                    del waiting[identifier]
        consumed = calls.consumed
        self._buffer.keep(buffer[consumed:])
        if consumed == len(buffer):
            return Run(buffer, calls=calls)
        return Run(memoryview(buffer)[:consumed], calls=calls)

    def owe(self, request_id: int) -> None:
        """A request leaves its read: it is answered by itself."""
        self._owed[str(request_id)] = request_id

    def answered(self, read: EmpBulk, rows: Sequence[int]) -> None:
        """A read was answered in bulk."""
        self._owed_reads.forget(read)
        if read.singled:
            for row in rows:
                self._owed.pop(str(read.key(row)), None)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames made by `EmpBulk`."""
        if self.state is CLOSED:
            raise PeerClosed("the emp connection is closed")
        self._queue(encoded)
        self.sent += count - 1
        if self.state is CLOSING and not self._owes:
            self._say_bye()

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether our peer takes messages of this size; they mean the same on every emp connection."""
        return (
            self._bulk is not None
            and isinstance(bulk, self._bulk)
            and self._plain
            and self.state is OPEN
            and bulk.max_message <= self.settings.max_message
        )

    def can_relay(self, calls: Calls) -> bool:
        """Whether our peer takes messages of this size as they are, and so many requests of ours."""
        return (
            self._calls is not None
            and isinstance(calls, self._calls)
            and self._plain
            and self.state is OPEN
            and calls.largest <= self._largest_plain
            and (not calls.asks or calls.count <= self._room)
        )

    def relay(self, calls: Calls) -> range:
        """Queue requests under numbers of our own."""
        first, self._last_id = self._last_id + 1, self._last_id + calls.count
        numbers = range(first, self._last_id + 1)
        self._relayed.add(numbers)
        self._out.append(cast("EmpCalls", calls).numbered(first))
        self.sent += calls.count
        return numbers

    def relay_back(self, calls: Calls, numbers: range) -> None:
        """Queue responses under the numbers of the requests they answer."""
        if not self._owed_calls.remove(numbers):
            self._single_out()
            for number in numbers:
                del self._owed[str(number)]
        self._out.append(cast("EmpCalls", calls).numbered(numbers.start))
        self.sent += calls.count
