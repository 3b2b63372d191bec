"""One end of a yamp conversation: handshake, liveness, requests and their outcomes. Bytes in, messages out.

Implements what the yamp specification says of behaviour: "System Frames" and "User Message Frames". The
tables in `states.py` say which frames each role takes in each state; what the other role sends follows from it.

    client                          server
      | -- handshake (version, serializer) -> |   OPENING
      | <- the same handshake --------------- |   OPEN      (or close, or close-redirect: CLOSED)
      | <- events, requests, answers, pings -> |
      | -- close ----------------------------- |   CLOSED

Short reads are decoded by `frames.py`. Of long ones, events and acknowledged publishes are decoded by the kernel of
`publish_columns.py`, once `enable_columns` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from wireloom.formats import body_formats
from wireloom.formats.conversion import conversion_of, converted, takes_long
from wireloom.model import (
    InvalidState,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    message_of,
    without_traces,
)
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.contract import (
    LOGIN,
    NOTHING,
    NOTHING_AGREED,
    Batch,
    Calls,
    EventHead,
    Role,
    SessionState,
    is_control,
)
from wireloom.protocols.offload import Later, WriteLater
from wireloom.protocols.partial_frame import Kept
from wireloom.protocols.pending_acks import Owed, OwedBatches
from wireloom.protocols.yamp import errors, frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.operations import operation_in_json
from wireloom.protocols.yamp.protocol import (
    YampSettings,
    agreed_serializer,
    event_beginning,
    fits,
    parse_uid,
    split_url,
    to_frame,
    to_message,
    uri_of,
)
from wireloom.protocols.yamp.requests import Received, Sent, Unanswered
from wireloom.protocols.yamp.states import ANSWERS, RECEIVES, refuse_out_of_turn
from wireloom.protocols.yamp.uids import Uids, uid_bytes, uid_text

if TYPE_CHECKING:
    from wireloom.protocols.publish_columns import PublishColumns

_OPENING, _OPEN = SessionState.OPENING, SessionState.OPEN
_CLOSING, _CLOSED = SessionState.CLOSING, SessionState.CLOSED
_EVENT, _REQUEST, _PROGRESS, _ERROR = Kind.EVENT, Kind.REQUEST, Kind.PROGRESS, Kind.ERROR
_AGREED: Mapping[str, Mapping[str, str | bool]] = {
    name: MappingProxyType({"serializer": name}) for name in body_formats.CONTENT_TYPES if name != body_formats.DEFAULT
}


class YampSession(CallSession):
    """Client or server of one yamp connection.

    Uids are UUIDs of version 7: their time is `now` plus `epoch`, their random part comes from a generator
    seeded with `unique`. Requests that time out are the caller's to give up: a cancel with `kill` forgets them.
    """

    steady = True
    linger = 0.5

    def __init__(self, role: Role, settings: YampSettings, *, unique: int = 0) -> None:
        super().__init__(role)
        self.settings = settings
        self._agreed = NOTHING_AGREED
        self.serializer: str | None = None
        """What the handshake agreed on; an empty serializer counts as json."""
        if role is Role.CLIENT:
            self.content_type = body_formats.content_type(settings.serializer)
        self._receives, self._sends = role.sends.opposite, role.sends
        self._uids = Uids(unique)
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._held: list[bytes] = []
        """Frames to send once the handshake is done."""
        self._held_size = 0
        self._waiting = Sent(settings.max_requests)
        """Requests of ours whose answers are pending."""
        self._owed = Received(settings.max_requests)
        """Requests of the peer whose answers are pending."""
        self._owed_batches = OwedBatches()
        """Publishes of the peer whose acknowledgements are pending, a batch at a time."""
        self._closing_reason = ""
        self._slow = WriteLater()
        """Requests and answers whose bodies are converted on another thread, and all frames after them."""
        self._input_ended = False
        self._peer_closed = False
        self._handshake_due: float | None = None
        self._heard = 0.0
        self._ping_sent: float | None = None
        self._answers_pings = False
        """Whether the peer ever sent a pong. Some never do, and are not closed for it."""
        self._ping_payload: bytes | None = None
        self._pings = 0

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up: a client sends its handshake, a server waits for one."""
        self._heard = now
        if self.settings.handshake_timeout:
            self._handshake_due = now + self.settings.handshake_timeout
        if self.role is Role.CLIENT:
            self._say(frames.Handshake(frames.VERSION, self.settings.serializer))

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take what the transport read."""
        return list(self.batches(data, now))

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        """Like `receive`, one batch at a time."""
        if self.state is _CLOSED:
            if self._peer_closed and data:
                self._count_followed()
            return NOTHING
        self._heard, self._ping_sent = now, None
        kept = self._buffer
        if kept:
            if kept.takes(data):
                return NOTHING
            data = kept.joined(data)
        return self._decode(data, self._read_frames)

    def _read_frames(self, data: bytes, start: int, most: int) -> tuple[Batch | None, int]:
        """Decode up to `most` frames, or to the first control message; returns them and where the next frame begins.

        That is the end of the data if nothing more can be decoded: an incomplete frame is buffered.
        """
        messages: list[Message] = []
        position, size, ignored = start, len(data), 0
        credentials = 0
        """How many bytes at the end of what was accepted are credentials."""
        is_over = False
        state: SessionState | None = None
        in_turn: frozenset[FrameType] = frozenset()
        try:
            for _ in range(most):
                if position == size or self.state is _CLOSED:
                    is_over = True
                    break
                if self.state is not state:
                    state = self.state
                    in_turn = RECEIVES[self.role, state]
                if data[position] not in in_turn:
                    refuse_out_of_turn(state, data[position])
                found = frames.decode(data, position, self.settings.max_body)
                if found is None:
                    self.keep(data[position:])
                    is_over = True
                    break
                frame, end = found
                message = self._accept(frame)
                position = end
                if message is None:
                    ignored += 1
                    continue
                messages.append(message)
                if is_control(message):
                    if message.topic == LOGIN and isinstance(frame, frames.Request | frames.Event):
                        credentials = len(frame.body)
                    break
        except ProtocolViolation as violation:
            self._refuse(violation, data[position:])
            is_over = True
        if self.state is _CLOSED and self.violation is None:
            self._peer_closed = is_over = True
            if position < size:
                self._count_followed()
        accepted = data if start == 0 and position == size else data[start:position]
        if credentials:
            accepted = accepted[:-credentials] + b"*" * credentials
        batch = Batch(accepted, messages, ignored=ignored) if accepted else None
        return batch, size if is_over else position

    def batch_key(self, now: float) -> Hashable | None:
        """Reads with the same serializer may be decoded together."""
        if self._buffer or self.state is not _OPEN:
            return None
        self._heard, self._ping_sent = now, None
        return self.content_type

    def keep(self, rest: bytes) -> None:
        """Buffer an incomplete frame."""
        self._buffer.keep(rest, frames.needed(rest, 0))

    def _count_followed(self) -> None:
        """Count once that something came after the peer's close, however many reads it took."""
        if "yamp.close.followed" not in self.counters:
            self.count("yamp.close.followed")

    def _accept(self, frame: frames.Frame) -> Message | None:
        """Check a frame against the state; returns its message, or None if it has none."""
        match frame:
            case frames.Event():
                pass
            case frames.Request():
                if not self._take_request(frame):
                    return None
            case frames.Response():
                ignored = self._waiting.why_ignored(frame)
                if ignored is not None:
                    self.count(ignored)
                    return None
            case frames.Cancel():
                if not self._take_cancel(frame):
                    return None
            case frames.Ping(payload):
                self._say(frames.Pong(payload))
            case frames.Pong(payload):
                if payload != self._ping_payload:
                    self.count("yamp.pong.unasked")
                else:
                    self._ping_payload, self._answers_pings = None, True
            case frames.Handshake():
                self._agree(frame)
            case frames.Close(reason):
                self._closed("close", reason)
            case frames.CloseRedirect(url):
                if split_url(url) is None:
                    raise frames.violation("yamp.redirect.url", f"{url!r} is not <protocol>://<host>:<port>[/uri]")
                self._closed("redirect", url)
        message = to_message(frame, self._receives, self.content_type)
        if message.kind is _REQUEST:
            return operation_in_json(message)
        return errors.read_code(message) if message.kind is _ERROR else message

    def _agree(self, theirs: frames.Handshake) -> None:
        """The handshake: a server echoes what it supports; a client expects its own handshake back."""
        serializer = agreed_serializer(theirs, self.role, self.settings)
        if self.role is Role.SERVER and self.settings.redirect:
            self._say(frames.CloseRedirect(self.settings.redirect))
            self._closed("redirect", self.settings.redirect)
            return
        if self.role is Role.SERVER:
            self._say(theirs)
        self.serializer = serializer
        self._agreed = _AGREED.get(serializer, NOTHING_AGREED)
        self.content_type = body_formats.content_type(serializer)
        self.state = _OPEN
        for encoded in self._held:
            self._write(encoded)
        self._held.clear()

    def _take_request(self, request: frames.Request) -> bool:
        request_id = uid_text(request.uid)
        if self._owed_batches and self._owed_batches.has(request_id):
            raise frames.violation("yamp.request.uid-reused", f"{request_id} is still unanswered")
        if self.state is _CLOSING and request_id not in self._owed:
            self.count("yamp.request.closing")
            body = body_formats.nothing(self.content_type)
            self._say(frames.Response(self._uid(self._heard), request.uri, request.uid, ResponseType.ERROR, body))
            return False
        self._owed.add(request_id, request, self._owed_batches.size)
        return True

    def _take_cancel(self, cancel: frames.Cancel) -> bool:
        request_id = uid_text(cancel.request_uid)
        if request_id not in self._owed:
            self.count("yamp.cancel.unknown")
            return False
        if cancel.kill:
            self._owed.kill(request_id)
            self._close_when_settled()
        return True

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        self.violation, self.refused = without_traces(violation), rest
        if violation.reply:
            self._write(violation.reply)
        self._closed("error")

    def _closed(self, reason: str, detail: str = "") -> None:
        self.close_reason = self.close_reason or reason
        self.close_detail = self.close_detail or detail
        self.state = _CLOSED

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self.state is _CLOSED:
            return
        if self._buffer:
            self.count("stream.cut")
        self._input_ended = True
        self.close_reason = self.close_reason or "close"
        self.state = _CLOSED if self.state is _OPENING else _CLOSING
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self.state is _CLOSING and not self._owed and not self._owed_batches and not self._slow.behind:
            self._goodbye()

    def _goodbye(self) -> None:
        """Send `system.close` and drop the connection. A peer that has closed already is sent nothing."""
        if not self._input_ended:
            self._say(frames.Close(frames.cut(self._closing_reason)))
        self._closed("close", self._closing_reason)

    def outgoing(self) -> bytes:
        """Bytes to write now."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def outgoing_frames(self) -> Sequence[bytes]:
        """Like `outgoing`, as separate frames: over WebSocket each message holds one frame."""
        out, self._out = self._out, []
        if any(isinstance(each, JoinedFrames) for each in out):
            return [
                frame for each in out for frame in (frames.split(each) if isinstance(each, JoinedFrames) else (each,))
            ]
        return out

    def deadline(self) -> float | None:
        """When the handshake times out, a ping is due, or the answer to a ping is overdue."""
        if self.state is _OPENING:
            return self._handshake_due
        if self.state is _CLOSED or self._input_ended or not self.settings.ping_interval:
            return None
        if self._ping_sent is None:
            return self._heard + self.settings.ping_interval
        return self._ping_sent + (self.settings.pong_timeout if self._answers_pings else self.settings.ping_interval)

    def expire(self, now: float) -> Sequence[Batch]:
        """Time out a handshake, ping an idle peer, or close if a peer that used to answer pings no longer does."""
        due = self.deadline()
        if due is None or now < due:
            return NOTHING
        if self.state is _OPENING:
            detail = f"no handshake within {self.settings.handshake_timeout:g} s (handshake_timeout)"
            self._refuse(frames.violation("yamp.handshake.timeout", detail), bytes(self._buffer))
        elif self._ping_sent is None or not self._answers_pings:
            self._pings += 1
            self._ping(str(self._pings).encode(), now)
        else:
            self._closing_reason = f"nothing heard for {self.settings.pong_timeout:g} s after a ping (pong_timeout)"
            self.close_reason = "idle"
            self._goodbye()
        return NOTHING

    def _ping(self, payload: bytes, now: float) -> None:
        self._say(to_frame(Message(Kind.PING, body=payload), self.settings))
        self._ping_sent, self._ping_payload = now, payload

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue a message; before the handshake is done it is held back.

        The uid is drawn here. An answer gets the uri of its request. A body whose content type is not the one agreed
        on is converted, see `conversion.convert`.
        """
        kind, state = message.kind, self.state
        if state is _CLOSED or (state is _CLOSING and kind not in ANSWERS):
            raise PeerClosed("the yamp connection is closed")
        if kind is _EVENT:
            return self._queue(self._prepare(_EVENT, message, uri_of(message), now))
        if kind is _REQUEST:
            return self._ask(message, now)
        if kind in ANSWERS:
            return self._answer(message, now)
        if kind is Kind.CANCEL:
            return self._cancel(message, now)
        if kind is Kind.REDIRECT:
            return self._redirect(message)
        if kind is Kind.CLOSE:
            self.close(now, message.attributes.get("reason", ""))
        elif kind is Kind.PING and state is _OPEN:
            self._ping(message.body, now)
        else:
            error = InvalidState if kind is Kind.PING else NotSupported
            raise error(f"a yamp session sends no {kind} for its application in state {state}")
        return message

    def _ask(self, message: Message, now: float) -> Message:
        uri = uri_of(message)
        self._waiting.make_room()
        sent = self._say_message(_REQUEST, message, uri, now)
        self._waiting[sent.id or ""] = Unanswered(uri, message.attributes.get("progressive") == "true")
        return sent

    def _answer(self, message: Message, now: float) -> Message:
        request_id = message.correlation_id or ""
        if request_id not in self._owed:
            # The same uid may be written in another form.
            request_id = uid_text(parse_uid(request_id, "correlation_id"))
        owed = self._owed.get(request_id)
        if owed is None:
            if request_id not in self._owed.killed:
                raise InvalidState(f"no yamp request {message.correlation_id} waits for an answer")
            if message.kind is not _PROGRESS:
                del self._owed.killed[request_id]
            self.count("yamp.response.killed")
            return message
        if message.kind is _PROGRESS and not owed.progressive:
            self.count("yamp.progress.unrequested")
            return message
        coded = errors.with_code(message, self.content_type)
        sent = self._say_message(message.kind, coded, owed.uri, now)
        if message.kind is not _PROGRESS:
            del self._owed[request_id]
            self._close_when_settled()
        return sent

    def _cancel(self, message: Message, now: float) -> Message:
        request_id = uid_text(parse_uid(message.correlation_id, "correlation_id"))
        asked = self._waiting.get(request_id)
        if asked is None:
            # The answer was faster; the peer would ignore the cancel.
            self.count("yamp.cancel.unknown")
            return message
        sent = self._queue(self._prepare(Kind.CANCEL, message, asked.uri, now))
        self._waiting.cancel(request_id, kill=message.attributes.get("kill") == "true")
        return sent

    def _redirect(self, message: Message) -> Message:
        if self.role is not Role.SERVER:
            raise NotSupported("only a yamp server redirects")
        if split_url(message.attributes.get("url", "")) is None:
            raise NotSupported("a yamp redirect needs attributes['url'] as <protocol>://<host>:<port>[/uri]")
        self._say(to_frame(message, self.settings))
        self._closed("redirect", message.attributes["url"])
        return message

    def _say_message(self, kind: Kind, message: Message, uri: str, now: float) -> Message:
        """Queue a request or an answer; if its body takes time to convert, another thread does that."""
        if not (self._slow.is_allowed and self.state is not _OPENING and self._takes_long(message)):
            return self._queue(self._prepare(kind, message, uri, now))
        plain = self._addressed(kind, message, message.body, message.content_type, uri, now)
        target, settings = self.content_type, self.settings

        def encode() -> bytes:
            body, content_type = converted(plain.body, plain.content_type, target, settings.max_converted)
            return frames.encode(to_frame(plain.with_(body=body, content_type=content_type), settings))

        self._slow.behind.append(Later(plain, encode))
        self.sent += 1
        self.offloads = True
        return plain

    def _takes_long(self, message: Message) -> bool:
        return takes_long(message.body, message.content_type, self.content_type)

    def _prepare(self, kind: Kind, message: Message, uri: str, now: float) -> Message:
        """A message as it goes out: under this uri, with a uid of its own, its body as the serializer wants it."""
        body, content_type = message.body, message.content_type
        if content_type != self.content_type:
            body, content_type = converted(body, content_type, self.content_type, self.settings.max_converted)
        return self._addressed(kind, message, body, content_type, uri, now)

    def _addressed(
        self, kind: Kind, message: Message, body: bytes, content_type: str | None, uri: str, now: float
    ) -> Message:
        attributes = message.attributes
        if message.content_type not in (None, self.content_type):
            attributes = {**attributes, "content_type": message.content_type}
        return message_of((
            kind, uri, body or body_formats.nothing(content_type), uid_text(self._uid(now)), message.correlation_id,
            message.status, content_type, attributes, "yamp", message.time, message.connection, self._sends,
            message.authenticity,
        ))  # fmt: skip

    def _queue(self, message: Message) -> Message:
        """Encode a user message, and send it when the handshake is done."""
        encoded = frames.encode(to_frame(message, self.settings))
        if self.state is _OPENING:
            if self._held_size + len(encoded) > self.settings.max_body:
                raise LimitExceeded("more than max_body bytes wait for the yamp handshake")
            self._held_size += len(encoded)
            self._held.append(encoded)
        else:
            self._write(encoded)
        return message

    def _uid(self, now: float) -> bytes:
        return self._uids.draw(int((now + self.epoch) * 1000))

    def _say(self, frame: frames.Frame) -> None:
        self._write(frames.encode(frame))

    def _write(self, encoded: bytes) -> None:
        """Queue one frame, after those that are being converted."""
        (self._slow.behind or self._out).append(encoded)
        self.sent += 1

    def close(self, now: float, reason: str = "") -> None:
        """Close after all pending answers were sent; a second call does not wait for them."""
        if self.state is _CLOSED:
            return
        if self.state is _CLOSING or not (self._owed or self._owed_batches or self._slow.behind):
            self._closing_reason = reason or self._closing_reason
            self._goodbye()
        else:
            self._closing_reason = reason
            self.state = _CLOSING

    def agreed(self) -> Mapping[str, str | bool]:
        """The serializer if it is not the default: readers of a journal may not see the handshake."""
        return self._agreed

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

    # Events that are written once for many connections

    @property
    def event_style(self) -> object:
        """Events are identical under the same settings and serializer; the uids of one session serve all others."""
        # Sessions of one listener share the object, and its `id` is a faster key than its values.
        return (id(self.settings), self.content_type) if self.state is _OPEN else None

    event_uid_at = 1

    def event_head(self, topic: str, content_type: str | None) -> EventHead | None:
        """An `event` frame up to its body; None where the body has to be converted."""
        if not self._is_plain(content_type):
            return None
        head, smallest = event_beginning(topic), 1 if body_formats.nothing(self.content_type) else 0
        return EventHead(head, len(head) - 4, 0, self.settings.max_body, smallest=smallest)

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """Events as frames, their bodies converted; None if that is slow for one of them."""
        ready: list[Message] = []
        for event in events:
            body, content_type = event.body, event.content_type
            if content_type != self.content_type:
                if self._takes_long(event):
                    return None
                body, content_type = converted(body, content_type, self.content_type, self.settings.max_converted)
            ready.append(event.with_(body=body or body_formats.nothing(content_type), content_type=content_type))
        return super().write_events(ready, now)

    def draw_uids(self, now: float) -> bytes:
        """A uid from which the kernel can count up."""
        first = self._uid(now)
        return first[:8] + (int.from_bytes(first[8:]) & ~(1 << 61)).to_bytes(8)

    def frames_of(self, encoded: bytes) -> Sequence[bytes]:
        """Events one by one."""
        return frames.split(encoded)

    # Batches in columns

    def enable_columns(self) -> bool:
        """Let `receive` use the kernel for long reads."""
        from wireloom.protocols.yamp.publish_columns import YampPublishes, warm

        warm()
        self.columns = YampPublishes
        return True

    @property
    def heard_at(self) -> float:
        """When something was read last."""
        return self._heard

    def owe(self, owed: Owed) -> bool:
        """Refuse a batch if one of its uids is pending, or if the limit of requests would be exceeded."""
        return not self._owed.killed and self._owed_batches.admit(
            owed, self._owed, len(self._owed), self.settings.max_requests
        )

    def owe_one(self, request: Message) -> None:
        """Register one request whose answer is pending."""
        self._owed[request.id or ""] = Unanswered(request.topic or "", progressive=False)

    def settled(self, batch: PublishColumns, read: int) -> None:
        """The acknowledgements of a read are no longer pending."""
        self._owed_batches.settle(batch, read)
        self._close_when_settled()

    def take_calls(self, calls: Calls) -> bool:
        """Take answers, or requests without progress."""
        if calls.is_answers:
            return self._waiting.settle_all(calls.ids)
        return not self._owed_batches and self._owed.add_all(calls.ids, [calls.topics[code] for code in calls.codes])

    def ask_all(
        self, topic: str, content_type: str | None, bodies: Sequence[bytes], now: float
    ) -> Sequence[str] | None:
        """Queue requests without progress."""
        if not topic or not self._fit(topic, content_type, bodies):
            return None
        uids = [self._uid(now) for _ in bodies]
        ids = list(map(uid_text, uids))
        if not self._waiting.ask_all(ids, topic):
            return None
        self.send_frames(frames.encode_requests(uids, topic, bodies), len(ids))
        return ids

    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes], now: float
    ) -> bool:
        """Queue responses with the uri of their requests."""
        if not self._fit("", content_type, bodies) or (uri := self._owed.answer_all(ids)) is None:
            return False
        uids, request_uids = [self._uid(now) for _ in bodies], list(map(uid_bytes, ids))
        self.send_frames(frames.encode_responses(uids, uri, request_uids, bodies), len(ids))
        return True

    def _fit(self, uri: str, content_type: str | None, bodies: Sequence[bytes]) -> bool:
        """Whether all of these can be written now, without converting a body."""
        if self.state is not _OPEN or self._slow.behind or not self._is_plain(content_type):
            return False
        try:
            fits(uri, "topic", frames.MAX_URI)
        except (NotSupported, LimitExceeded):
            return False
        if max(map(len, bodies)) > self.settings.max_body:
            return False
        return all(bodies) or not body_formats.nothing(self.content_type)

    def _is_plain(self, content_type: str | None) -> bool:
        """Whether bodies of this type go out as they are, unless they are empty."""
        agreed = self.content_type
        return content_type == agreed or (content_type is None and not body_formats.nothing(agreed))

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already."""
        if self.state is _CLOSED:
            raise PeerClosed("the yamp connection is closed")
        (self._slow.behind or self._out).append(JoinedFrames(encoded))
        self.sent += count
        self._close_when_settled()

    # Bodies that take time to convert, by another thread

    offloads = True

    def enable_work(self) -> None:
        """From now on large bodies are converted by `work`; `offloads` says whether there is any."""
        self._slow.is_allowed = True
        self.offloads = False

    def work(self) -> Callable[[], object] | None:
        """The next body to convert."""
        return None if self.state is _CLOSED else self._slow.work()

    def worked(self, result: object, now: float) -> Sequence[Batch]:
        """A conversion is done; if it failed, the caller gets the error."""
        slow = self._slow
        slow.done()
        if self.state is _CLOSED or not slow.behind:
            return NOTHING
        later = slow.behind.popleft()
        assert isinstance(later, Later)
        batches: Sequence[Batch] = NOTHING
        if isinstance(result, bytes):
            self._out.append(result)
        else:
            batches = self._not_converted(later.message, str(result), now)
        self._out += slow.ready()
        self.offloads = slow.is_needed
        self._close_when_settled()
        return batches

    def _not_converted(self, message: Message, why: str, now: float) -> Sequence[Batch]:
        if message.kind is _REQUEST:
            self._waiting.pop(message.id or "", None)
            failed = Message(_ERROR, message.topic, why.encode(), None, message.id, "413", "text/plain")
            return (Batch(messages=[failed], added=1),)
        text = converted(why.encode(), "text/plain", self.content_type, self.settings.max_converted)[0]
        uid, asked = self._uid(now), parse_uid(message.correlation_id, "correlation_id")
        self._out.append(frames.encode(frames.Response(uid, message.topic or "", asked, ResponseType.ERROR, text)))
        return NOTHING

    def packing(self, event: Message) -> Callable[[], tuple[bytes, str | None]] | None:
        """Large events are converted on another thread, once for all peers that need the same format."""
        if self.state is not _OPEN or not self._slow.is_allowed or not self._takes_long(event):
            return None
        return conversion_of(event.body, event.content_type, self.content_type, self.settings.max_converted).result

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event past what is being converted."""
        if isinstance(packed, tuple):
            event = event.with_(body=packed[0], content_type=packed[1])
        if self.state is not _OPEN or not self._slow.behind:
            self.send(event, now)
            return
        self._out.append(frames.encode(to_frame(self._prepare(_EVENT, event, uri_of(event), now), self.settings)))
        self.sent += 1


class JoinedFrames(bytes):
    """Several frames in a row; any other bytes in `YampSession._out` are one frame."""
