"""One end of an hsp conversation: ids, answers owed, keep-alive. Bytes in, messages out.

hsp has no handshake and no goodbye. What a session must keep in mind is which ids wait for an answer,
on either side, and when the peer was heard last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from wireloom.model import Kind, Message, NotSupported, PeerClosed, ProtocolViolation, message_of
from wireloom.protocols.contract import (
    HUB_PREFIX,
    LOGIN,
    NOTHING_AGREED,
    Bulk,
    Renumbered,
    Role,
    Run,
    Session,
    SessionState,
)
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import ENVELOPE, Names, parse_map
from wireloom.protocols.hsp.protocol import HspSettings, to_frame, to_message
from wireloom.protocols.kept import Kept

if TYPE_CHECKING:
    from wireloom.protocols.hsp import bulk

MAP = HUB_PREFIX + "map"
MAX_NAMES = 1024 * 1024
"""Characters of all topics that one connection may give numbers to."""
BULK_FROM = 512
"""Reads shorter than this are decoded frame by frame: a kernel call costs more than a few frames do."""


_OPEN, _CLOSING, _CLOSED = SessionState.OPEN, SessionState.CLOSING, SessionState.CLOSED
_REQUEST = Kind.REQUEST
_NO_PROFILE: Mapping[str, str | bool] = MappingProxyType({"profile": False})
ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR))
_ANSWER_FRAMES = (frames.Ack, frames.Error, frames.ErrorUndef)


class HspSession(Session):
    """Client and server are alike in hsp; the role only names the direction."""

    steady = True

    def __init__(
        self, role: Role, settings: HspSettings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(role)
        self.settings = settings
        self.names, self._own_names = _first_names(
            tuple((topics or {}).items()), settings.profile, silent=role is Role.SERVER and settings.profile
        )
        """What we write; `names` is what we read."""
        self._receives = role.sends.opposite
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._next_id = unique & 0xFFFFFFFF
        self._waiting: set[int] = set()
        """Ids of requests we sent, until they are answered."""
        self._owed: dict[int, None] = {}
        """Ids the peer waits on."""
        self._bulk: type[bulk.HspBulk] | None = None
        self._bulk_owed: dict[bulk.HspBulk, None] = {}
        """Runs whose acknowledgements are still to be sent, in order."""
        self._heard = 0.0
        self._ping_sent: float | None = None

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up; hsp says nothing until somebody has something to say."""
        self.state = SessionState.OPEN
        self._heard = now

    def enable_bulk(self) -> bool:
        """Let `receive` use the column kernels for large reads."""
        from wireloom.protocols.hsp.bulk import HspBulk, warm

        warm()
        self._bulk = HspBulk
        return True

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        if self.state is SessionState.CLOSED:
            return Run()
        self._heard = now
        kept = self._buffer
        if kept:
            if kept.takes(data):
                return Run()
            data = kept.joined(data)
        if self._bulk is not None and len(data) >= BULK_FROM:
            return self._receive_bulk(data)
        return self._receive_frames(data)

    def _receive_frames(self, buffer: bytes) -> Run:
        messages: list[Message] = []
        position = ignored = 0
        limit = self.settings.max_payload
        renumbered: list[Renumbered] = []
        logins: list[tuple[int, int]] = []
        """Where credentials are."""
        try:
            while (found := frames.decode(buffer, position, limit)) is not None:
                frame, end = found
                numbers = self.names.topics
                message = self._accept(frame)
                if message is not None:
                    messages.append(message)
                    if message.topic == LOGIN:
                        logins.append((end - len(message.body), end))
                else:
                    ignored += 1
                position = end
                if self.names.topics is not numbers:
                    renumbered.append(Renumbered(end, len(messages) + ignored, numbers))
        except ProtocolViolation as violation:
            violation.offset = None
            self._refuse(violation, buffer[position:])
            return Run(_blanked(buffer[:position], logins), messages, ignored=ignored, renumbered=renumbered)
        accepted = buffer
        if position < len(buffer):
            self._buffer.keep(buffer[position:], frames.needed(buffer, position))
            accepted = buffer[:position]
        if logins:
            accepted = _blanked(accepted, logins)
        return Run(accepted, messages, ignored=ignored, renumbered=renumbered)

    def _receive_bulk(self, buffer: bytes) -> Run:
        assert self._bulk is not None
        run = self._bulk(self, buffer)
        if run.by_frame:
            # What follows a new topic map must be read with it, and credentials must be found: frame after frame.
            return self._receive_frames(buffer)
        rest = buffer[run.consumed :]
        if run.violation is None and rest:
            # After others it was not looked at yet.
            self._buffer.keep(rest, 0 if run.consumed else frames.needed(rest, 0))
        if run.pings:
            self._queue(frames.encode(frames.PONG) * run.pings, run.pings)
        for _ in range(run.pongs):
            self._pong()
        if run.violation is not None:
            self._refuse(run.violation, rest)
        if run.owes:
            self._bulk_owed[run] = None
        return Run(memoryview(buffer)[: run.consumed], bulk=run)

    def _accept(self, frame: frames.Frame) -> Message | None:
        """Check a frame against the conversation; returns what it says, None if nobody is to act on it."""
        if isinstance(frame, frames.DataAck):
            if self.owes(frame.message_id):
                raise reused(frame.message_id)
            self._owed[frame.message_id] = None
        elif isinstance(frame, frames.Ping):
            self._queue(frames.encode(frames.PONG))
        elif isinstance(frame, frames.Pong):
            self._pong()
        message = to_message(frame, self.names, self._receives)
        if message.correlation_id is not None:
            return message if self.settle(int(message.correlation_id)) else None
        if is_map(message):
            self._learn(message.body)
        return message

    def settle(self, message_id: int) -> bool:
        """An answer arrived: the request no longer waits. Answers to nothing are counted, and ignored."""
        if message_id not in self._waiting:
            self.count("hsp.response.unknown-id")
            return False
        self._waiting.remove(message_id)
        return True

    def owes(self, message_id: int) -> bool:
        """Whether the peer waits for an answer to this id."""
        if message_id in self._owed:
            return True
        return bool(self._bulk_owed) and any(run.owes_id(message_id) for run in self._bulk_owed)

    def owed_ids(self) -> set[int]:
        """Every id the peer waits on."""
        return set(self._owed).union(*(run.owed_ids() for run in self._bulk_owed))

    def owed_ranges(self) -> list[tuple[int, int]]:
        """Among which the ids are that the peer waits on: a cheap way to see that new ones are new."""
        ranges = [each for run in self._bulk_owed for each in run.owed_ranges]
        if self._owed:
            ranges.append((min(self._owed), max(self._owed)))
        return ranges

    def owe(self, message_id: int) -> None:
        """The peer waits for an answer to this id, one by one."""
        self._owed[message_id] = None

    def answered(self, run: bulk.HspBulk) -> None:
        """A run was acknowledged in bulk."""
        self._bulk_owed.pop(run, None)
        self._close_when_settled()

    def _pong(self) -> None:
        if self._ping_sent is None:
            self.count("hsp.pong.unasked")
        self._ping_sent = None

    def _learn(self, body: bytes) -> None:
        """`$hub/map`: from now on these numbers stand for these topics, in both directions."""
        learnt = parse_map(body)
        known = {**self.names.topics, **(learnt or {})}
        if learnt is None or sum(map(len, known.values())) > MAX_NAMES:
            self.count("hsp.map.invalid")
            return
        self.names = Names(known, self.names.profile)
        self._own_names = Names({**self._own_names.topics, **learnt}, self.names.profile, taken=known)

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        self.violation, self.refused, self.close_reason = violation, bytes(rest), "error"
        if violation.reply:
            self._queue(violation.reply)
        self._buffer.clear()
        self.state = SessionState.CLOSED

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self.state is SessionState.CLOSED:
            return
        self.close_reason = self.close_reason or "close"
        if self._buffer:
            self.count("stream.cut")
        self.state = SessionState.CLOSING
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self.state is SessionState.CLOSING and not self._owed and not self._bulk_owed:
            self.state = SessionState.CLOSED

    def outgoing(self) -> bytes:
        """Bytes to write now."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def deadline(self) -> float | None:
        """When a ping is due, or the pong is overdue."""
        if self.state is not _OPEN or not self.settings.ping_interval:
            return None
        if self._ping_sent is not None:
            return self._ping_sent + self.settings.pong_timeout
        return self._heard + self.settings.ping_interval

    def expire(self, now: float) -> Run:
        """Ping an idle peer; close when it does not answer."""
        due = self.deadline()
        if due is None or now < due:
            return Run()
        if self._ping_sent is None:
            self._ping_sent = now
            self._queue(frames.encode(frames.PING))
        else:
            self.close_reason = "idle"
            self.state = SessionState.CLOSED
        return Run()

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue a message: `DATA`, `DATA_ACK`, or the answer to one."""
        state = self.state
        if state is not _OPEN and (state is _CLOSED or (state is _CLOSING and message.kind not in ANSWERS)):
            raise PeerClosed("the hsp connection is closed")
        if message.kind is _REQUEST:
            message = message_of((*message[:3], str(self._draw_id()), *message[4:]))
        frame = to_frame(message, self._own_names, self.settings)
        if isinstance(frame, frames.DataAck):
            self._waiting.add(frame.message_id)
            if is_map(message):
                self._learn(message.body)
        elif isinstance(frame, _ANSWER_FRAMES):
            self._discharge(frame.message_id)
            if message.body and isinstance(frame, frames.Ack):
                self.count("hsp.response.body-dropped")
        elif isinstance(frame, frames.Ping):
            self._ping_sent = now if self._ping_sent is None else self._ping_sent
        elif isinstance(frame, frames.Pong):
            raise NotSupported("an hsp session answers each PING itself; a PONG cannot be sent by hand")
        self._queue(frames.encode(frame))
        self._close_when_settled()
        return message

    def _discharge(self, message_id: int) -> None:
        if message_id not in self._owed:
            raise NotSupported(f"no DATA_ACK with id {message_id} waits for an answer")
        self._owed.pop(message_id, None)

    def _draw_id(self) -> int:
        """The next id, skipping those still waiting for a response."""
        while self._next_id in self._waiting:
            self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        drawn = self._next_id
        self._next_id = (drawn + 1) & 0xFFFFFFFF
        return drawn

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames made by `HspBulk`."""
        if self.state is SessionState.CLOSED:
            raise PeerClosed("the hsp connection is closed")
        self._queue(encoded, count)

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether our peer is told of this topic by these numbers, or this envelope, and takes such payloads."""
        if not isinstance(bulk, self._bulk or ()) or bulk.max_payload > self.settings.max_payload:
            return False
        names = self._own_names
        if bulk.envelope:
            return names.profile and names.head(topic, bulk.content_type) == (ENVELOPE, bulk.envelope)
        return all(names.says(number, topic) for number in bulk.numbers(topic))

    @property
    def event_style(self) -> object:
        """Events are written alike where the same numbers are known, and the same size is taken."""
        # Names are shared by the sessions of a listener until a peer brings its own.
        return (id(self._own_names), self.settings.max_payload) if self.state is _OPEN else None

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """`DATA`."""
        largest, names = self.settings.max_payload, self._own_names
        written: list[bytes] = []
        for event in events:
            if not event.topic:
                return None
            type_, payload = names.write(event.topic, event.body, event.content_type)
            if len(payload) > largest:
                return None
            written.append(frames.encode(frames.Data(type_, payload)))
        return b"".join(written)

    def _queue(self, encoded: bytes, count: int = 1) -> None:
        self._out.append(encoded)
        self.sent += count

    def close(self, now: float, reason: str = "") -> None:
        """Hsp has no goodbye: what is owed is answered, then the stream closes."""
        if self.state in (SessionState.OPENING, SessionState.OPEN):
            self.close_reason = self.close_reason or reason or "close"
            self.state = SessionState.CLOSING
        self._close_when_settled()

    @property
    def buffered(self) -> int:
        """Bytes of the beginning of a frame."""
        return len(self._buffer)

    def unread(self) -> bytes:
        """The beginning of a frame."""
        return bytes(self._buffer)

    def agreed(self) -> Mapping[str, str | bool]:
        """That the hub profile is off, where it is."""
        return NOTHING_AGREED if self.names.profile else _NO_PROFILE

    def topic_numbers(self) -> Mapping[int, str]:
        """The types that stand for topics on this connection."""
        return self.names.topics


@lru_cache(maxsize=256)
def _first_names(topics: tuple[tuple[int, str], ...], profile: bool, *, silent: bool) -> tuple[Names, Names]:
    """What is read and what is written before anybody sent a map; connections of a listener have them in common.

    A server cannot know whether a peer that uses the profile has the server's numbers: until it says so with a map of
    its own, it is sent envelopes (`silent`). Without the profile numbers are all there is.
    """
    known = dict(topics)
    return Names(known, profile), Names({} if silent else known, profile, taken=known)


def _blanked(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    """The same with stars at some places.

    >>> _blanked(b"my secret!", [(3, 9)])
    b'my ******!'
    """
    for start, end in spans:
        data = data[:start] + b"*" * (end - start) + data[end:]
    return data


def is_map(message: Message) -> bool:
    """Whether a message changes what numbers stand for."""
    return message.topic == MAP and message.kind is _REQUEST


def reused(message_id: int) -> ProtocolViolation:
    """A `DATA_ACK` with an id that is still unanswered."""
    return ProtocolViolation("hsp.message-id.reused", f"id {message_id} is still unanswered")
