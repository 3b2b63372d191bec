"""One end of a yamp conversation: handshake, liveness, requests and their outcomes. Bytes in, messages out.

Implements what the yamp specification says of behaviour: "System Frames" and "User Message Frames". The
tables in `states.py` say which frames each role takes in each state; what the other role sends follows from it.

    client                          server
      | -- handshake (version, serializer) -> |   OPENING
      | <- the same handshake --------------- |   OPEN      (or close, or close-redirect: CLOSED)
      | <- events, requests, answers, pings -> |
      | -- close ----------------------------- |   CLOSED
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from wireloom.model import (
    BodyError,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    WireloomError,
)
from wireloom.protocols.contract import HUB_PREFIX, LOGIN, NOTHING_AGREED, Role, Run, Session, SessionState, request_of
from wireloom.protocols.kept import Kept
from wireloom.protocols.owing import OwedReads
from wireloom.protocols.yamp import errors, formats, frames
from wireloom.protocols.yamp.frames import FrameType, ResponseType
from wireloom.protocols.yamp.plain import Asked, LastUri, Owed, owed_for, read_plain
from wireloom.protocols.yamp.protocol import YampSettings, parse_uid, split_url, to_frame, to_message
from wireloom.protocols.yamp.states import ANSWERS, RECEIVES, SENDABLE
from wireloom.protocols.yamp.uids import Uids, uid_text

if TYPE_CHECKING:
    from wireloom.protocols.yamp.bulk import YampBulk

_OPEN, _CLOSED = SessionState.OPEN, SessionState.CLOSED
PUBLISH = HUB_PREFIX + "publish/"
_AGREED: Mapping[str, Mapping[str, str | bool]] = {
    name: MappingProxyType({"serializer": name}) for name in formats.CONTENT_TYPES if name != formats.DEFAULT
}


class YampTalk(Session):
    """The conversation itself; `YampSession` puts shorter ways on top of it."""

    steady = True

    def __init__(self, role: Role, settings: YampSettings, *, unique: int = 0) -> None:
        super().__init__(role)
        self.settings = settings
        self._agreed = NOTHING_AGREED
        self.serializer: str | None = None
        """What the handshake agreed on; an empty serializer counts as json."""
        if role is Role.CLIENT:
            self.content_type = formats.content_type(settings.serializer)
        self._uids = Uids(unique)
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._held: list[bytes] = []
        """Frames to send once the handshake is done."""
        self._held_size = 0
        self._waiting: dict[bytes, Asked] = {}
        """Requests we sent, or who asked them, by uid, until they are answered."""
        self._cancelled: dict[bytes, None] = {}
        """Those of them we asked to cancel; a peer that never answers must not use up `max_requests`."""
        self._owed: dict[str, Owed] = {}
        """Requests the peer waits on, by uid as text."""
        self._last_uri = LastUri()
        self._killed: dict[str, None] = {}
        """Requests the peer killed, whose late answers must not be sent; the oldest are forgotten first."""
        self._owed_reads: OwedReads[bytes] = OwedReads()
        self._singled: dict[str, tuple[YampBulk, int]] = {}
        """Requests that are owed one by one and in bulk, and where they are in their read."""
        self._closing_reason = ""
        self._input_ended = False
        self._receives = role.sends.opposite
        self._handshake_due: float | None = None
        self._heard = 0.0
        self._ping_sent: float | None = None
        self._peer_closed = False
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

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        if self.state is SessionState.CLOSED:
            if self._peer_closed and data:
                self._count_followed()
            return Run()
        self._heard, self._ping_sent = now, None
        kept = self._buffer
        if not kept:
            position, run = self._read(data)
            if position < len(data):
                kept += data[position:]
        elif not kept.takes(data):
            kept.needed = 0
            kept += data
            position, run = self._read(kept)
            del kept[:position]
        else:
            run = Run()
        return run

    def _read(self, buffer: bytes | bytearray) -> tuple[int, Run]:
        """All complete frames at the start of the buffer, and where they end."""
        messages: list[Message] = []
        position = ignored = 0
        logins: list[tuple[int, int]] = []
        """Where credentials are."""
        try:
            while True:
                if self.state is _OPEN:
                    position = read_plain(
                        buffer, position, self.settings.max_body, self.settings.max_requests, self.content_type,
                        self._receives, self._waiting, self._cancelled, self._owed, self._killed, self._last_uri,
                        messages,
                    )  # fmt: skip
                if position == len(buffer):
                    if buffer.__class__ is bytes and not ignored and not logins and self.state is _OPEN:
                        return position, Run(buffer, messages)  # as nearly every read
                    break
                if self.state is _CLOSED:
                    break
                self._check_turn(buffer[position])
                found = frames.decode(buffer, position, self.settings.max_body)
                if found is None:
                    self._buffer.needed = frames.needed(buffer, position)
                    break
                message = self._accept(found[0])
                if message is None:
                    ignored += 1
                else:
                    messages.append(message)
                    if message.topic == LOGIN and isinstance(found[0], frames.Request | frames.Event):
                        logins.append((found[1] - len(found[0].body), found[1]))
                position = found[1]
        except ProtocolViolation as violation:
            self._refuse(violation, bytes(buffer[position:]))
        accepted = bytes(memoryview(buffer)[:position])
        for start, end in logins:
            accepted = accepted[:start] + b"*" * (end - start) + accepted[end:]
        run = Run(accepted, messages, ignored=ignored)
        if self.state is SessionState.CLOSED and self.violation is None:
            self._peer_closed = True
            if position < len(buffer):
                self._count_followed()
        return position, run

    def _count_followed(self) -> None:
        """Something came after the peer's close: once, however it was cut into reads."""
        if "yamp.close.followed" not in self.counters:
            self.count("yamp.close.followed")

    def _check_turn(self, type_: int) -> None:
        """Refuse a frame that is out of turn by its first byte, before any of it is waited for."""
        if type_ in RECEIVES[self.role, self.state] or type_ > FrameType.RESPONSE:
            return
        name = FrameType(type_).name.lower().replace("_", "-")
        if self.state is SessionState.OPENING:
            if type_ == FrameType.CLOSE_REDIRECT:
                raise frames.violation("yamp.redirect.direction", "a client sent close-redirect")
            raise frames.violation("yamp.handshake.first", f"{name} before the handshake")
        if type_ == FrameType.HANDSHAKE:
            raise frames.violation("yamp.handshake.repeated", "a second handshake")
        raise frames.violation("yamp.redirect.direction", "a client sent close-redirect")

    def _accept(self, frame: frames.Frame) -> Message | None:
        """Check a frame against the conversation; returns what it says, None where it says nothing."""
        match frame:
            case frames.Event():
                pass
            case frames.Request():
                if not self._take_request(frame):
                    return None
            case frames.Response():
                if not self._take_response(frame):
                    return None
            case frames.Cancel(request_uid=request_uid, kill=kill):
                identifier = uid_text(request_uid)
                if identifier not in self._owed:
                    self.count("yamp.cancel.unknown")
                    return None
                if kill:
                    self._forget(identifier)
            case frames.Ping(payload):
                self._say(frames.Pong(payload))
            case frames.Pong(payload):
                if payload != self._ping_payload:
                    self.count("yamp.pong.unasked")
                else:
                    self._ping_payload = None
            case frames.Handshake():
                self._agree(frame)
            case frames.Close(reason):
                self._closed("close", reason)
            case frames.CloseRedirect(url):
                if split_url(url) is None:
                    raise frames.violation("yamp.redirect.url", f"{url!r} is not <protocol>://<host>:<port>[/uri]")
                self._closed("redirect", url)
        message = to_message(frame, self._receives, self.content_type)
        if message.kind is Kind.REQUEST:
            return _operation(message)
        return errors.read_code(message) if message.kind is Kind.ERROR else message

    def _agree(self, theirs: frames.Handshake) -> None:
        """The handshake: a server echoes what it supports, a client wants its own back."""
        if theirs.version != frames.VERSION:
            raise frames.violation(
                "yamp.handshake.version", f"version {theirs.version} is not supported; supported: {frames.VERSION}"
            )
        serializer = theirs.serializer or formats.DEFAULT
        if self.role is Role.CLIENT:
            if serializer != self.settings.serializer:
                raise frames.violation(
                    "yamp.handshake.echo",
                    f"asked for serializer {self.settings.serializer!r}, the server answered {theirs.serializer!r}",
                )
        elif serializer not in self.settings.serializers:
            supported = ", ".join(self.settings.serializers)
            raise frames.violation(
                "yamp.handshake.serializer", f"serializer {serializer!r} is not supported; supported: {supported}"
            )
        elif self.settings.redirect:
            self._say(frames.CloseRedirect(self.settings.redirect))
            self._closed("redirect", self.settings.redirect)
            return
        else:
            self._say(theirs)
        self.serializer = serializer
        self._agreed = _AGREED.get(serializer, NOTHING_AGREED)
        self.content_type = formats.content_type(serializer)
        self.state = SessionState.OPEN
        for encoded in self._held:
            self._write(encoded)
        self._held.clear()

    def _take_request(self, request: frames.Request) -> bool:
        identifier = uid_text(request.uid)
        if identifier in self._owed:
            raise frames.violation("yamp.request.uid-reused", f"{identifier} is still unanswered")
        if self.state is SessionState.CLOSING:
            self.count("yamp.request.closing")
            self._say(frames.Response(self._uid(self._heard), request.uri, request.uid, ResponseType.ERROR, b""))
            return False
        if len(self._owed) >= self.settings.max_requests:
            raise frames.violation(
                "yamp.request.too-many", f"{len(self._owed)} requests are unanswered; max_requests allows no more"
            )
        self._killed.pop(identifier, None)
        self._owed[identifier] = owed_for(request.uid, request.uri, request.progressive)
        return True

    def _take_response(self, response: frames.Response) -> bool:
        asked = self._waiting.get(response.request_uid)
        if asked is None:
            self.count("yamp.response.unknown")
            return False
        if response.type is not ResponseType.PROGRESS:
            self._settle(response.request_uid)
        elif not _wants_progress(request_of(asked[1])):
            self.count("yamp.progress.unrequested")
            return False
        return True

    def _forget(self, request_id: str) -> None:
        """The peer killed a request: no response may follow."""
        del self._owed[request_id]
        if request_id in self._singled:
            read, row = self._singled.pop(request_id)
            read.withdraw(row)
        self._killed[request_id] = None
        if len(self._killed) > self.settings.max_requests:
            del self._killed[next(iter(self._killed))]
        self._close_when_settled()

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        self.violation, self.refused = violation, rest
        if violation.reply:
            self._write(violation.reply)
        self._closed("error")

    def _closed(self, reason: str, detail: str = "") -> None:
        self.close_reason = self.close_reason or reason
        self.close_detail = self.close_detail or detail
        self.state = SessionState.CLOSED

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self.state is SessionState.CLOSED:
            return
        if self._buffer:
            self.count("stream.cut")
        self._input_ended = True
        self.close_reason = self.close_reason or "close"
        self.state = SessionState.CLOSED if self.state is SessionState.OPENING else SessionState.CLOSING
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self.state is SessionState.CLOSING and not self._owed and not self._owed_reads:
            self._goodbye()

    def _goodbye(self) -> None:
        """`system.close`, after which the connection is dropped; who has left already needs none."""
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
        """The same, frame by frame: over WebSocket we send one frame a message."""
        out, self._out = self._out, []
        if any(isinstance(each, Joined) for each in out):
            return [frame for each in out for frame in (split(each) if isinstance(each, Joined) else (each,))]
        return out

    def deadline(self) -> float | None:
        """When the handshake is overdue, a ping is due, or nothing was heard since one."""
        if self.state is SessionState.OPENING:
            return self._handshake_due
        if self.state is SessionState.CLOSED or self._input_ended or not self.settings.ping_interval:
            return None
        if self._ping_sent is not None:
            return self._ping_sent + self.settings.pong_timeout
        return self._heard + self.settings.ping_interval

    def expire(self, now: float) -> Run:
        """Give up a handshake, ping an idle peer, close when nothing at all comes back."""
        due = self.deadline()
        if due is None or now < due:
            return Run()
        if self.state is SessionState.OPENING:
            detail = f"no handshake within {self.settings.handshake_timeout:g} s (handshake_timeout)"
            self._refuse(frames.violation("yamp.handshake.timeout", detail), bytes(self._buffer))
        elif self._ping_sent is None:
            self._pings += 1
            self._ping(str(self._pings).encode(), now)
        else:
            self._closing_reason = f"nothing heard for {self.settings.pong_timeout:g} s after a ping (pong_timeout)"
            self.close_reason = "idle"
            self._goodbye()
        return Run()

    def _ping(self, payload: bytes, now: float) -> None:
        self._say(to_frame(Message(Kind.PING, body=payload), self.settings))
        self._ping_sent, self._ping_payload = now, payload

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue a message; before the handshake is done it is held back.

        The uid is drawn here. An answer gets the uri of its request. A body of plain values whose content
        type is not the one agreed on is converted.
        """
        if self.state is SessionState.CLOSED or (self.state is SessionState.CLOSING and message.kind not in ANSWERS):
            raise PeerClosed("the yamp connection is closed")
        if message.kind is Kind.CLOSE:
            self.close(now, message.attributes.get("reason", ""))
            return message
        if message.kind is Kind.REDIRECT:
            return self._redirect(message)
        if message.kind is Kind.PING and self.state is SessionState.OPEN:
            self._ping(message.body, now)
            return message
        if message.kind not in SENDABLE:
            raise NotSupported(f"a yamp session sends no {message.kind} for its application in state {self.state}")
        if message.kind in ANSWERS:
            return self._answer(message, now)
        if message.kind is Kind.CANCEL:
            return self._cancel(message, now)
        if not message.topic:
            raise NotSupported(f"a yamp {message.kind} needs a topic: it is the uri")
        if message.kind is Kind.EVENT:
            return self._queue(message, message.topic, now)
        if len(self._waiting) >= self.settings.max_requests:
            if not self._cancelled:
                raise LimitExceeded(f"{len(self._waiting)} requests wait for a response; max_requests allows no more")
            self._settle(next(iter(self._cancelled)))
        sent = self._queue(message, message.topic, now)
        self._waiting[parse_uid(sent.id, "id")] = (sent.id or "", sent)
        return sent

    def _settle(self, request_uid: bytes) -> None:
        """No answer to this request is waited for any more."""
        del self._waiting[request_uid]
        self._cancelled.pop(request_uid, None)

    def _answer(self, message: Message, now: float) -> Message:
        request_id = uid_text(parse_uid(message.correlation_id, "correlation_id"))
        owed = self._owed.get(request_id)
        if owed is None:
            if request_id not in self._killed:
                raise NotSupported(f"no yamp request {message.correlation_id} waits for an answer")
            if message.kind is not Kind.PROGRESS:
                del self._killed[request_id]
            self.count("yamp.response.killed")
            return message
        _, uri, progressive, _ = owed
        if message.kind is Kind.PROGRESS and not progressive:
            self.count("yamp.progress.unrequested")
            return message
        sent = self._queue(errors.with_code(message, self.content_type), uri, now)
        if message.kind is not Kind.PROGRESS:
            del self._owed[request_id]
            self._close_when_settled()
        return sent

    def _cancel(self, message: Message, now: float) -> Message:
        request_uid = parse_uid(message.correlation_id, "correlation_id")
        asked = self._waiting.get(request_uid)
        if asked is None:
            # The answer was faster; the peer would ignore the cancel.
            self.count("yamp.cancel.unknown")
            return message
        sent = self._queue(message, request_of(asked[1]).topic, now)
        if sent.attributes.get("kill") == "true":
            self._settle(request_uid)
        else:
            self._cancelled[request_uid] = None
        return sent

    def _redirect(self, message: Message) -> Message:
        if self.role is not Role.SERVER:
            raise NotSupported("only a yamp server redirects")
        if split_url(message.attributes.get("url", "")) is None:
            raise NotSupported("a yamp redirect needs attributes['url'] as <protocol>://<host>:<port>[/uri]")
        self._say(to_frame(message, self.settings))
        self._closed("redirect", message.attributes["url"])
        return message

    def _queue(self, message: Message, uri: str | None, now: float) -> Message:
        """Encode a user message under this uri and with a uid of its own; returned as it went out."""
        body, content_type = message.body, message.content_type
        if content_type != self.content_type:
            try:
                body, content_type = formats.convert(body, content_type, self.content_type)
            except ProtocolViolation as error:
                raise BodyError(f"the body is not {content_type}: {error.detail}") from None
        sent = Message(
            message.kind, uri, body, uid_text(self._uid(now)), message.correlation_id, message.status, content_type,
            message.attributes, "yamp", message.time, message.connection, self.role.sends, message.authenticity,
        )  # fmt: skip
        encoded = frames.encode(to_frame(sent, self.settings))
        if self.state is SessionState.OPENING:
            if self._held_size + len(encoded) > self.settings.max_body:
                raise LimitExceeded("more than max_body bytes wait for the yamp handshake")
            self._held_size += len(encoded)
            self._held.append(encoded)
        else:
            self._write(encoded)
        return sent

    def _uid(self, now: float) -> bytes:
        return self._uids.draw(int((now + self.epoch) * 1000))

    def _say(self, frame: frames.Frame) -> None:
        self._write(frames.encode(frame))

    def _write(self, encoded: bytes) -> None:
        """Queue one frame."""
        self._out.append(encoded)
        self.sent += 1

    def close(self, now: float, reason: str = "") -> None:
        """Say goodbye. What is owed is answered first; a second call does not wait for that."""
        if self.state is SessionState.CLOSED:
            return
        if self.state is SessionState.CLOSING or not (self._owed or self._owed_reads):
            self._closing_reason = reason or self._closing_reason
            self._goodbye()
        else:
            self._closing_reason = reason
            self.state = SessionState.CLOSING

    def agreed(self) -> Mapping[str, str | bool]:
        """The serializer where it is not the usual one: later readers do not see the handshake."""
        return self._agreed

    @property
    def buffered(self) -> int:
        """Bytes of the beginning of a frame."""
        return len(self._buffer)

    def unread(self) -> bytes:
        """The beginning of a frame."""
        return bytes(self._buffer)

    def outstanding(self) -> Sequence[Message]:
        """Requests sent and not answered yet."""
        return [request_of(asked[1]).with_(id=asked[0]) for asked in self._waiting.values()]


class Joined(bytes):
    """Several frames in a row."""


def split(encoded: bytes) -> list[bytes]:
    """Events and responses in a row, one by one."""
    found, start = [], 0
    while start < len(encoded):
        body = start + 18 + encoded[start + 17] + (21 if encoded[start] == FrameType.RESPONSE else 4)
        end = body + int.from_bytes(encoded[body - 4 : body], "big")
        found.append(encoded[start:end])
        start = end
    return found


def _wants_progress(request: Message) -> bool:
    return request.attributes.get("progressive") == "true"


def _operation(request: Message) -> Message:
    """Operations of the hub take JSON: a request for one that came as another kind of plain values is converted."""
    topic = request.topic or ""
    if not topic.startswith(HUB_PREFIX) or topic.startswith(PUBLISH):
        return request
    try:
        body, content_type = formats.convert(request.body, request.content_type, "application/json")
    except WireloomError:
        return request
    return request.with_(body=body, content_type=content_type)
