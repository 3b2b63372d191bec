"""One end of an hsp connection: ids, pending answers, keep-alive. Bytes in, messages out.

hsp has no handshake and no closing message. A session remembers which ids have a pending answer,
in both directions, and when it last heard from the peer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from wireloom.model import (
    InvalidState,
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    message_of,
    without_traces,
)
from wireloom.protocols.column_session import KERNEL_FROM, CallSession
from wireloom.protocols.contract import (
    HUB_PREFIX,
    LOGIN,
    NOTHING,
    NOTHING_AGREED,
    PUBLISH,
    Batch,
    Calls,
    EventHead,
    Role,
    SessionState,
    is_control,
)
from wireloom.protocols.hsp import frames
from wireloom.protocols.hsp.profile import Names, parse_map
from wireloom.protocols.hsp.protocol import HspSettings, to_frame, to_message
from wireloom.protocols.partial_frame import Kept
from wireloom.protocols.pending_acks import Owed, OwedBatches

if TYPE_CHECKING:
    from wireloom.protocols.publish_columns import PublishColumns

MAP = HUB_PREFIX + "map"
MAX_MAP = 256 * 1024
"""Bytes of one `$hub/map`."""
MAX_MAPS = 1024
"""Limit of maps on one connection: each is written to the journal with all earlier ones."""
MAX_NAMES = 64 * 1024
"""Characters of all topics that one connection may give numbers to."""
MAX_IDS = 1 << 32
"""There are no more ids than that."""


_OPEN, _CLOSING, _CLOSED = SessionState.OPEN, SessionState.CLOSING, SessionState.CLOSED
_REQUEST = Kind.REQUEST
_ACK = int(frames.Command.ACK)
_NO_PROFILE: Mapping[str, str | bool] = MappingProxyType({"profile": False})
ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR))
_ANSWER_FRAMES = (frames.Ack, frames.Error, frames.ErrorUndef)


class HspSession(CallSession):
    """Client or server of one hsp connection. Both behave the same; the role only gives the direction."""

    steady = True

    def __init__(
        self, role: Role, settings: HspSettings, *, unique: int = 0, topics: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(role)
        self.settings = settings
        self.names, self._own_names = _first_names(
            tuple((topics or {}).items()), settings.profile, silent=role is Role.SERVER and settings.profile
        )
        """The names for sending; `names` are those for receiving."""
        self._first_topics = self.names.topics
        self._receives = role.sends.opposite
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._next_id = unique & 0xFFFFFFFF
        self._waiting: set[int] = set()
        """Ids of requests we sent, until they are answered."""
        self._owed: dict[int, None] = {}
        """Ids of the peer whose answers are pending."""
        self._owed_batches = OwedBatches()
        self._maps = 0
        self._heard = 0.0
        self._ping_sent: float | None = None

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up; hsp sends nothing at first."""
        self.state = SessionState.OPEN
        self._heard = now

    def enable_columns(self) -> bool:
        """Let `receive` use the kernel for long reads."""
        from wireloom.protocols.hsp.publish_columns import HspPublishes, warm

        warm()
        self.columns = HspPublishes
        return True

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take what the transport read."""
        return list(self.batches(data, now))

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        """Like `receive`, one batch at a time."""
        if self.state is _CLOSED:
            return NOTHING
        self._heard = now
        kept = self._buffer
        if kept:
            if kept.takes(data):
                return NOTHING
            data = kept.joined(data)
        return self._decode(data, self._read_frames)

    def kernel_from(self, first: int) -> int:
        """Lower where the read begins with an `ACK`: these are short, and eight of them pay for the call."""
        return 40 if first == _ACK else KERNEL_FROM

    def batch_key(self, now: float) -> Hashable | None:
        """Names are shared by the sessions of a listener until a peer brings its own."""
        if self._buffer or self.state is not _OPEN:
            return None
        self._heard = now
        return id(self.names)

    def keep(self, rest: bytes) -> None:
        """Buffer an incomplete frame."""
        self._buffer.keep(rest, frames.needed(rest, 0))

    def _read_frames(self, buffer: bytes, start: int, most: int) -> tuple[Batch | None, int]:
        """Decode up to `most` frames, or to the first control message; returns them and where the next frame begins.

        That is the end of the buffer if nothing more can be decoded: an incomplete frame is buffered.
        """
        messages: list[Message] = []
        position, ignored, limit = start, 0, self.settings.max_payload
        numbers = self.names.topics
        credentials = 0
        """How many bytes at the end of what was accepted are credentials."""
        over = False
        try:
            for _ in range(most):
                found = frames.decode(buffer, position, limit)
                if found is None:
                    over = True
                    break
                message = self._accept(found[0])
                position = found[1]
                if message is None:
                    ignored += 1
                    continue
                messages.append(message)
                if is_control(message):
                    credentials = len(message.body) if message.topic == LOGIN else 0
                    break
        except ProtocolViolation as violation:
            violation.offset = None
            self._refuse(violation, buffer[position:])
            over = True
        data = buffer if start == 0 and position == len(buffer) else buffer[start:position]
        if credentials:
            data = data[:-credentials] + b"*" * credentials
        batch = Batch(data, messages, ignored=ignored) if data else None
        if batch is not None and self.names.topics is not numbers:
            batch.numbers = numbers
        if not over:
            return batch, position
        if position < len(buffer) and self.violation is None:
            self.keep(buffer[position:])
        return batch, len(buffer)

    def _accept(self, frame: frames.Frame) -> Message | None:
        """Check a frame against the state; returns its message, or None if no action is needed."""
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

    @property
    def refuses(self) -> bool:
        """Where the hub profile is off, nobody acts on its operations."""
        return not self.names.profile

    def refusal(self, request: Message) -> str | None:
        """Refuse operations: the hub would acknowledge them as publishes, and the sender would think they are done."""
        number = int(request.attributes["type"])
        if self.names.profile or not self.names.is_kept_for_hub(number):
            return None
        return f"type {number} is kept for the hub profile, which is off here (profile): name the type in `topics`"

    def settle(self, message_id: int) -> bool:
        """An answer arrived: its request is no longer pending. Answers to unknown ids are counted and ignored."""
        if message_id not in self._waiting:
            self.count("hsp.response.unknown-id")
            return False
        self._waiting.remove(message_id)
        return True

    def owes(self, message_id: int) -> bool:
        """Whether the answer to this id is pending."""
        return message_id in self._owed or (bool(self._owed_batches) and self._owed_batches.has(message_id))

    def owe(self, owed: Owed) -> bool:
        """Refuse a batch if one of its ids is pending."""
        return self._owed_batches.admit(owed, self._owed, len(self._owed), MAX_IDS)

    def owe_one(self, request: Message) -> None:
        """Register one request whose answer is pending."""
        self._owed[int(request.id or 0)] = None

    def settled(self, batch: PublishColumns, read: int) -> None:
        """The acknowledgements of a read are no longer pending."""
        self._owed_batches.settle(batch, read)
        if self.state is not _OPEN:
            self._close_when_settled()

    def _pong(self) -> None:
        if self._ping_sent is None:
            self.count("hsp.pong.unasked")
        self._ping_sent = None

    def _learn(self, body: bytes) -> None:
        """`$hub/map`: from now on these numbers stand for these topics, in both directions."""
        self._maps += 1
        learnt = parse_map(body) if len(body) <= MAX_MAP and self._maps <= MAX_MAPS else None
        if learnt is None:
            self.count("hsp.map.invalid")
            return
        known = {**self.names.topics, **learnt}
        added = [topic for number, topic in known.items() if number not in self._first_topics]
        if len(added) > self.settings.max_numbers or sum(map(len, added)) > MAX_NAMES:
            self.count("hsp.map.too-many")
            return
        self.names = Names.shared(known, self.names.profile)
        self._own_names = Names.shared({**self._own_names.topics, **learnt}, self.names.profile, taken=known)

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        self.violation, self.refused, self.close_reason = without_traces(violation), bytes(rest), "error"
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
        if self.state is _CLOSING and not self._owed and not self._owed_batches:
            self.state = _CLOSED

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

    def expire(self, now: float) -> Sequence[Batch]:
        """Ping an idle peer; close when it does not answer."""
        due = self.deadline()
        if due is None or now < due:
            return NOTHING
        if self._ping_sent is None:
            self._ping_sent = now
            self._queue(frames.encode(frames.PING))
        else:
            self.close_reason = "idle"
            self.state = SessionState.CLOSED
        return NOTHING

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
            raise InvalidState(f"no DATA_ACK with id {message_id} waits for an answer")
        self._owed.pop(message_id, None)

    def _draw_id(self) -> int:
        """The next id, skipping those still waiting for a response."""
        while self._next_id in self._waiting:
            self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        drawn = self._next_id
        self._next_id = (drawn + 1) & 0xFFFFFFFF
        return drawn

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already."""
        if self.state is SessionState.CLOSED:
            raise PeerClosed("the hsp connection is closed")
        self._queue(encoded, count)

    # Requests and answers, many at a time

    def take_calls(self, calls: Calls) -> bool:
        """Take answers to pending requests, or requests that were a batch of publishes before (`as_calls`)."""
        numbers = list(map(int, calls.ids))
        if not calls.is_answers:
            self._owed.update(dict.fromkeys(numbers))
            return True
        answered = set(numbers)
        if len(answered) < len(numbers) or not answered <= self._waiting:
            return False
        self._waiting -= answered
        return True

    def ask_all(
        self, topic: str, content_type: str | None, bodies: Sequence[bytes], now: float
    ) -> Sequence[str] | None:
        """Queue a `DATA_ACK` for each body."""
        if self.state is not _OPEN or (topic.startswith(HUB_PREFIX) and not topic.startswith(PUBLISH)):
            return None
        try:
            type_, head = self._own_names.head(topic, content_type)
        except NotSupported:
            return None
        if max(map(len, bodies)) + len(head) > self.settings.max_payload:
            return None
        numbers = [self._draw_id() for _ in bodies]
        self._waiting.update(numbers)
        self._queue(frames.encode_requests(numbers, type_, head, bodies), len(bodies))
        return list(map(str, numbers))

    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes], now: float
    ) -> bool:
        """Queue an `ACK` for each id; hsp answers have no body."""
        numbers = list(map(int, ids))
        answered = set(numbers)
        if self.state is not _OPEN or len(answered) < len(numbers) or not self._owed.keys() >= answered:
            return False
        for number in numbers:
            del self._owed[number]
        self._queue(frames.encode_acks(numbers), len(numbers))
        for _ in filter(None, bodies):
            self.count("hsp.response.body-dropped")
        return True

    @property
    def event_style(self) -> object:
        """Events are identical for sessions with the same topic numbers and the same size limit."""
        # Names are shared by the sessions of a listener until a peer brings its own.
        return (id(self._own_names), self.settings.max_payload) if self.state is _OPEN else None

    def event_head(self, topic: str, content_type: str | None) -> EventHead | None:
        """`DATA`, the type, the size; an envelope's beginning where no type says it."""
        type_, head = self._own_names.head(topic, content_type)
        size = len(head)
        return EventHead(b"\0" + type_.to_bytes(2) + bytes(4) + head, 3, size, self.settings.max_payload - size)

    def _queue(self, encoded: bytes, count: int = 1) -> None:
        self._out.append(encoded)
        self.sent += count

    def close(self, now: float, reason: str = "") -> None:
        """Close after all pending answers were sent; hsp has no closing message."""
        if self.state in (SessionState.OPENING, SessionState.OPEN):
            self.close_reason = self.close_reason or reason or "close"
            self.state = SessionState.CLOSING
        self._close_when_settled()

    @property
    def buffered(self) -> int:
        """The size of the buffered, incomplete frame."""
        return len(self._buffer)

    def unread(self) -> bytes:
        """The incomplete frame at the end of the input."""
        return bytes(self._buffer)

    def discard(self) -> None:
        """Drop the buffered bytes."""
        self._buffer.clear()

    def agreed(self) -> Mapping[str, str | bool]:
        """States that the hub profile is off, if it is."""
        return NOTHING_AGREED if self.names.profile else _NO_PROFILE

    def topic_numbers(self) -> Mapping[int, str]:
        """The types that stand for topics on this connection."""
        return self.names.topics


@lru_cache(maxsize=256)
def _first_names(topics: tuple[tuple[int, str], ...], profile: bool, *, silent: bool) -> tuple[Names, Names]:
    """The names for receiving and for sending before any map; the connections of a listener share them.

    A server cannot know whether a peer that uses the profile has the server's numbers: until it says so with a map of
    its own, it is sent envelopes (`silent`). Without the profile numbers are all there is.
    """
    known = dict(topics)
    return Names.shared(known, profile), Names.shared({} if silent else known, profile, taken=known)


def is_map(message: Message) -> bool:
    """Whether a message changes what numbers stand for."""
    return message.topic == MAP and message.kind is _REQUEST


def reused(message_id: int) -> ProtocolViolation:
    """A `DATA_ACK` with an id that is still unanswered."""
    return ProtocolViolation("hsp.message-id.reused", f"id {message_id} is still unanswered")
