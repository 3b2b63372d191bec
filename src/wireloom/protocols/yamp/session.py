"""A yamp session that is fast: short ways for the usual messages, and kernels for large reads.

The conversation itself, and everything unusual, is in `talk.py`. What goes a short way comes to the same, which the
tests hold against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wireloom.model import Message, PeerClosed
from wireloom.protocols.contract import Asker, Bulk, Role, Run, SessionState
from wireloom.protocols.yamp.plain import owed_for, read_plain, write_event, write_request, write_response
from wireloom.protocols.yamp.protocol import YampSettings
from wireloom.protocols.yamp.talk import Joined, YampTalk, split
from wireloom.protocols.yamp.uids import uid_text

if TYPE_CHECKING:
    from wireloom.protocols.yamp.bulk import YampBulk

_OPEN = SessionState.OPEN


class YampSession(YampTalk):
    """Client or server of one yamp connection.

    Uids are UUIDs of version 7: their time is `now` plus `epoch`, their random part comes from a generator
    seeded with `unique`. Requests that time out are the caller's to give up: a cancel with `kill` forgets them.
    """

    def __init__(self, role: Role, settings: YampSettings, *, unique: int = 0) -> None:
        super().__init__(role, settings, unique=unique)
        self._bulk: type[YampBulk] | None = None
        self._told_at = math.nan
        self._milliseconds = 0
        """The time for uids, and what `now` was then."""

    # Reading

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        kept = self._buffer
        if kept and self.state is not SessionState.CLOSED and kept.takes(data):
            self._heard, self._ping_sent = now, None
            return Run()
        if self._bulk is not None and self.state is _OPEN and self._owed_reads.are_for(len(kept) + len(data)):
            self._heard, self._ping_sent = now, None
            run = self._receive_bulk(b"".join((kept, data)) if kept else data)
            if run is not None:
                return run
        return super().receive(data, now)

    def take_plain(self, data: bytes, now: float, messages: list[Message]) -> int:
        """Take events, requests and responses."""
        if self._buffer or self.state is not _OPEN or self._bulk is not None:
            return 0
        self._heard, self._ping_sent = now, None
        settings = self.settings
        return read_plain(
            data, 0, settings.max_body, settings.max_requests, self.content_type, self._receives, self._waiting,
            self._cancelled, self._owed, self._killed, self._last_uri, messages, to_askers=True,
        )  # fmt: skip

    # Sending

    def tell(self, event: Message, now: float) -> None:
        """Queue an event; the short way, where the conversation is open and the body is as agreed."""
        body, topic = event.body, event.topic
        if (
            self.state is _OPEN and topic and event.content_type == self.content_type
            and len(body) <= self.settings.max_body
        ):  # fmt: skip
            encoded = write_event(self._uids.draw(int((now + self.epoch) * 1000)), topic, body)
            if encoded is not None:
                self._out.append(encoded)
                self.sent += 1
                return
        self.send(event, now)

    def ask(self, request: Message, now: float) -> str | None:
        """Queue a request; the short way, where the conversation is open and nothing is unusual."""
        body, topic, settings = request.body, request.topic, self.settings
        if (
            self.state is _OPEN and topic and not request.attributes and request.content_type == self.content_type
            and len(body) <= settings.max_body and len(self._waiting) < settings.max_requests
        ):  # fmt: skip
            uid, identifier = self._uids.draw_with_text(int((now + self.epoch) * 1000))
            encoded = write_request(uid, topic, body)
            if encoded is not None:
                self._waiting[uid] = (identifier, request)
                self._out.append(encoded)
                self.sent += 1
                return identifier
        return self.send(request, now).id

    def ask_for(self, asker: Asker, topic: str, body: bytes, content_type: str | None, now: float) -> str | None:
        """Queue a request, where the short way is open."""
        settings = self.settings
        if (
            self.state is not _OPEN or content_type != self.content_type
            or len(body) > settings.max_body or len(self._waiting) >= settings.max_requests
        ):  # fmt: skip
            return None
        if now != self._told_at:
            self._tell_time(now)
        uid, identifier = self._uids.draw_with_text(self._milliseconds)
        encoded = write_request(uid, topic, body)
        if encoded is None:
            return None
        self._waiting[uid] = (identifier, asker)
        self._out.append(encoded)
        self.sent += 1
        return identifier

    def ask_many(self, requests: Sequence[Message], now: float, askers: Sequence[Asker] = ()) -> list[str]:
        """Queue the plain requests that these begin with."""
        settings, waiting, agreed, out = self.settings, self._waiting, self.content_type, self._out
        if self.state is not _OPEN or settings.max_requests - len(waiting) < len(requests):
            return []
        identifiers: list[str] = []
        milliseconds, draw = int((now + self.epoch) * 1000), self._uids.draw_with_text
        waits: Sequence[Message | Asker] = askers or requests
        for request, asked in zip(requests, waits, strict=True):
            topic, body = request.topic, request.body
            if not topic or request.attributes or request.content_type != agreed or len(body) > settings.max_body:
                break
            uid, identifier = draw(milliseconds)
            encoded = write_request(uid, topic, body)
            if encoded is None:
                break
            waiting[uid] = (identifier, asked)
            out.append(encoded)
            identifiers.append(identifier)
        self.sent += len(identifiers)
        return identifiers

    def respond(self, request: Message, body: bytes, content_type: str | None, now: float) -> None:
        """Queue the response to a request; the short way, where that is enough."""
        owed = self._owed.get(request.id or "")
        if (
            owed is None or self.state is not _OPEN or content_type != self.content_type
            or len(body) > self.settings.max_body
        ):  # fmt: skip
            super().respond(request, body, content_type, now)
            return
        del self._owed[request.id or ""]
        if now != self._told_at:
            self._tell_time(now)
        self._out.append(write_response(self._uids.draw(self._milliseconds), owed, body))
        self.sent += 1

    def _tell_time(self, now: float) -> None:
        """Remember the time for uids: clocks of loops stand still for a while, and many are drawn meanwhile."""
        self._told_at, self._milliseconds = now, int((now + self.epoch) * 1000)

    @property
    def event_style(self) -> object:
        """Events are written alike under the same settings and serializer; a uid of one session serves all others."""
        # Sessions of one listener have the same object; its number is a quicker key than its values.
        return (id(self.settings), self.content_type) if self.state is _OPEN else None

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """`event` frames; bodies that would have to be converted are not for the short way."""
        agreed, largest, draw = self.content_type, self.settings.max_body, self._uids.draw
        milliseconds = int((now + self.epoch) * 1000)
        written: list[bytes] = []
        for event in events:
            topic, body = event.topic, event.body
            if not topic or event.content_type not in (agreed, None) or len(body) > largest:
                return None
            encoded = write_event(draw(milliseconds), topic, body)
            if encoded is None:
                return None
            written.append(encoded)
        return b"".join(written)

    def frames_of(self, encoded: bytes) -> Sequence[bytes]:
        """Events one by one."""
        return split(encoded)

    # Large reads, by kernels

    def enable_bulk(self) -> bool:
        """Let `receive` use the column kernels for large reads."""
        from wireloom.protocols.yamp.bulk import YampBulk, warm

        warm()
        self._bulk = YampBulk
        return True

    def _receive_bulk(self, buffer: bytes) -> Run | None:
        """A read of nothing but events and publishes; None where it has to be read frame by frame."""
        assert self._bulk is not None
        found = None if self._killed else self._bulk.of(self, buffer, self._owed_reads.fewest)
        alone = (uid for uid, _, _, _ in self._owed.values())
        if found is None or not self._owed_reads.admit(found, alone, len(self._owed), self.settings.max_requests):
            # Frame by frame, every uid must be known.
            for read, row in self._owed_reads.single_out():
                assert isinstance(read, self._bulk)
                self.owe(read, row)
                self._singled[uid_text(read.key(row))] = read, row
            return None
        self._buffer.keep(buffer[found.consumed :])
        return Run(memoryview(buffer)[: found.consumed], bulk=found)

    def owe(self, read: YampBulk, row: int) -> None:
        """A request is answered by itself."""
        uid = read.key(row)
        self._owed[uid_text(uid)] = owed_for(uid, read.uri(row), False)

    def answered(self, read: YampBulk, rows: Sequence[int]) -> None:
        """A read was answered in bulk."""
        self._owed_reads.forget(read)
        for row in rows:
            identifier = uid_text(read.key(row))
            if self._singled.pop(identifier, None) is not None:
                self._owed.pop(identifier, None)

    def draw_many(self) -> bytes:
        """A uid to count up from."""
        return self._uid(self._heard)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames made by `YampBulk`."""
        if self.state is SessionState.CLOSED:
            raise PeerClosed("the yamp connection is closed")
        self._out.append(Joined(encoded))
        self.sent += count
        self._close_when_settled()

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether our peer agreed on the same serializer and takes bodies of this size."""
        return (
            self._bulk is not None
            and isinstance(bulk, self._bulk)
            and self.state is _OPEN
            and bulk.content_type == self.content_type
            and bulk.max_body <= self.settings.max_body
        )
