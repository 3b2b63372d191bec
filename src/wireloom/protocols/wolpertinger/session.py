"""One end of a wolpertinger conversation: confirmations, resends, calls and their answers, trust.

Lines in, messages out. Layer 1 has no handshake: a session is open at once, unless a client was told to
authenticate first. Every message is confirmed as it comes; what is not confirmed in time is sent again. A line that
is wrong is refused by itself and the conversation goes on. Only plain text after the key exchange, and failed
authentication, end it.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wireloom.model import Kind, LimitExceeded, Message, NotSupported, PeerClosed
from wireloom.protocols.contract import HUB_PREFIX, Rejected, Role, Run, Session, SessionState
from wireloom.protocols.wolpertinger import authentication, frames, keys, layer1, layer2, messages
from wireloom.protocols.wolpertinger.authentication import STEPS, Authentication, Entropy, Outcome
from wireloom.protocols.wolpertinger.delivery import Seen, Unconfirmed
from wireloom.protocols.wolpertinger.frames import Confirmation, Data
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Call, Document, Error, Response
from wireloom.protocols.wolpertinger.refusal import ErrorCode, Refused, ResultCode
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.values import Value

_SLOW = 1.0
"""Seconds after which a confirmation is late enough to tell whoever waits for the answer."""
_OFTEN = 1.0
"""Seconds between two Heartbeats that the application asks for."""
_BYTES = 64 * 1024 * 1024
"""Unconfirmed bytes above which nothing more is sent."""
_METADATA = 200
"""Bytes of a line beside its payload, at most."""
_ANSWERS = (Kind.RESPONSE, Kind.ERROR)


@dataclass(slots=True)
class _Asked:
    """A call of ours that waits for its answer."""

    message: Message
    carried: bool
    """Whether it is a request that `Hub.Request` carries."""


@dataclass(slots=True)
class _Owed:
    """A call of the peer that waits for our answer."""

    call: Call
    since: float


@dataclass(slots=True)
class _Reading:
    """What one read brings, while it is taken apart."""

    messages: list[Message]
    refused: list[Rejected]
    kept: list[bytes]
    count: int = 0
    """Messages on the wire."""
    delivered: list[str] | None = None
    """Calls without response value whose delivery was confirmed."""


class WolpertingerSession(Session):
    """Client and server are alike but for one thing: a client may be told to authenticate first."""

    def __init__(
        self, role: Role, settings: WolpertingerSettings, *, unique: int = 0, entropy: Entropy = os.urandom
    ) -> None:
        super().__init__(role)
        layer2.check_available()
        if settings.authenticate >= authentication.ENCRYPTED:
            keys.check_available()
        self.settings = settings
        self.authentication = Authentication(settings, entropy)
        self._cipher: Cipher | None = None
        self._tail: list[bytes] = []
        """The beginning of a line."""
        self._tail_size = 0
        self._skipping = False
        self._out: list[bytes] = []
        self._late: deque[tuple[float, bytes]] = deque()
        """Answers that wait for their time, so that all failures take as long."""
        self._seen = Seen(settings.remember)
        self._assembly = layer1.Assembly(settings)
        self._unconfirmed = Unconfirmed(settings.delivery_timeout, (unique & frames.MAX_ID) or 1)
        self._waiting: dict[str, _Asked] = {}
        """Calls of ours, by CallId, until they are answered."""
        self._own: dict[str, Callable[[Value | None, float], None]] = {}
        """Calls of the session itself, and what to do with the answer."""
        self._owed: dict[str, _Owed] = {}
        self._held: list[Document] | None = None
        """What must wait for the key exchange to be done; None when there is none."""
        self._heartbeat_at = float("-inf")
        self._draw = random.Random(unique)  # ids, not secrets
        self._reading = _Reading([], [], [])
        self._step = 0

    @property
    def trust(self) -> int:
        """How far the peer is trusted."""
        return self.authentication.trust

    @property
    def secrets(self) -> Mapping[str, str]:
        """The settings with which recorded traffic of this connection can be read; empty before the key exchange."""
        cipher = self._cipher
        return {} if cipher is None else {"aes_key": cipher.key.hex(), "aes_iv": cipher.iv.hex()}

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up: a client that is to authenticate begins, all others may talk."""
        if self.max_frame:
            room = max(self.max_frame - _METADATA, 64)
            self.settings = replace(self.settings, split=min(self.settings.split, room))
        if self.role is Role.CLIENT and self.settings.authenticate:
            self._climb(now)
        else:
            self.state = SessionState.OPEN

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        if self.state is SessionState.CLOSED:
            return Run()
        reading = self._reading = _Reading([], [], [])
        whole = self._whole_lines(data)
        if whole:
            lines = whole.split(b"\n")
            lines.pop()
            for line in lines:
                self._take_line(line, now)
                if self._is_closed():
                    break
        return self._finish(reading)

    def _whole_lines(self, data: bytes) -> bytes:
        """All complete lines so far; what follows them is kept."""
        end = data.rfind(b"\n") + 1
        if not end:
            if self._tail_size + len(data) > self.settings.max_line or self._skipping:
                self._skip(data)
            else:
                self._tail.append(data)
                self._tail_size += len(data)
            return b""
        whole = b"".join([*self._tail, data[:end]]) if self._tail else data[:end]
        self._tail, self._tail_size = ([data[end:]], len(data) - end) if end < len(data) else ([], 0)
        if self._skipping:
            self._skipping = False
            rest, _, whole = whole.partition(b"\n")
            self._reject("wolpertinger.line.too-long", "the rest of a line that is too long", rest + b"\n")
        return whole

    def _skip(self, data: bytes) -> None:
        """A line has become too long: nothing of it is kept, up to its end."""
        lost = b"".join([*self._tail, data])
        self._tail, self._tail_size, self._skipping = [], 0, True
        detail = f"a line of more than {self.settings.max_line} bytes; max_message sets the limit"
        self._reject("wolpertinger.line.too-long", detail, lost)

    def _reject(self, clause: str, detail: str, data: bytes) -> None:
        self._reading.refused.append(Rejected(clause, detail, 0, data))

    def _take_line(self, line: bytes, now: float) -> None:
        raw = line + b"\n"
        try:
            if len(line) > self.settings.max_line:
                detail = f"a line of more than {self.settings.max_line} bytes; max_message sets the limit"
                raise Refused("wolpertinger.line.too-long", detail)
            frame = frames.parse(line)
            if isinstance(frame, Confirmation):
                self._confirmed(frame, now)
            else:
                self._data(frame, len(raw), now)
        except Refused as refused:
            self._refuse(refused, now)
            if refused is self.violation:
                self.refused = raw
            else:
                self._reject(refused.clause, refused.detail, raw)
        else:
            self._reading.kept.append(raw)

    def _finish(self, reading: _Reading) -> Run:
        """What the read brought. A call is settled by its confirmation only if no error came with it."""
        for call_id in reading.delivered or ():
            if self._waiting.pop(call_id, None) is not None:
                reading.messages.append(self._local(Kind.ACK, call_id, str(ResultCode.SUCCESS.value)))
        extra = len(reading.messages) - reading.count
        return Run(
            b"".join(reading.kept),
            reading.messages,
            ignored=max(-extra, 0),
            added=max(extra, 0),
            refused=reading.refused,
        )

    def _local(self, kind: Kind, call_id: str, status: str, body: bytes = b"") -> Message:
        """A message that tells the owner what became of a call."""
        return Message(
            kind, None, body, None, call_id, status, None, protocol=messages.NAME, direction=self.role.sends.opposite
        )

    def _is_closed(self) -> bool:
        return self.state is SessionState.CLOSED

    # Layer 1

    def _data(self, frame: Data, wire: int, now: float) -> None:
        if frame.message_id in self._seen:
            self.count("wolpertinger.message-id.again")
            if frame.fragment_count is None or frame.fragment_index == frame.fragment_count - 1:
                self._reading.count += 1
                self._confirm(frame.message_id, ResultCode.SUCCESS)
            return
        if self._cipher is not None and frame.encryption is None:
            self._reset_for_plain_text(frame)
        given_up = self._assembly.dropped
        try:
            whole = self._assembly.add(frame, now, wire)
        finally:
            self._count_dropped(given_up)
        if whole is None:
            return
        document = layer1.unpack(whole[0], self.settings, self._cipher)
        self._seen.add(frame.message_id, now)
        self._confirm(frame.message_id, ResultCode.SUCCESS)
        self._reading.count += 1
        self._take(document, *whole, now)

    def _count_dropped(self, before: int) -> None:
        for _ in range(self._assembly.dropped - before):
            self.count("wolpertinger.fragment.dropped")

    def _confirm(self, message_id: int, result: ResultCode) -> None:
        self._queue(frames.encode(Confirmation(message_id, int(result))))

    def _refuse(self, refused: Refused, now: float) -> None:
        """Tell the peer what was wrong with its message, where it can be told."""
        if refused.message_id is None:
            return
        if refused.result is ResultCode.ENCRYPTION and refused.clause == "wolpertinger.encryption.unreadable":
            line = frames.encode(Confirmation(refused.message_id, int(refused.result)))
            self._late.append((now + self.settings.failure_delay, line))
            return
        self._confirm(refused.message_id, refused.result)
        if refused.result is not ResultCode.SUCCESS or refused.error is None:
            return
        self._seen.add(refused.message_id, now)
        if not refused.is_answer:
            self._say(Error(refused.component, refused.error, refused.call_id), now)
        elif refused.call_id is not None:
            self._fail(refused.call_id, str(ErrorCode.INVALID_RESPONSE.value), refused.detail.encode(), now)

    def _reset_for_plain_text(self, frame: Data) -> None:
        """Plain text after the key exchange: say so in plain text, and end the connection."""
        refused = Refused("wolpertinger.encryption.required", f"message {frame.message_id} is not encrypted")
        self.violation, self.close_reason = refused, "error"
        self._confirm(frame.message_id, ResultCode.SUCCESS)
        self._cipher = None
        xml = layer2.write(Error("", ErrorCode.ENCRYPTION))
        for piece in layer1.pack(xml, self._unconfirmed.draw_id(), self.settings):
            self._queue(frames.encode(piece))
        self.state = SessionState.CLOSED
        raise refused

    def _confirmed(self, frame: Confirmation, now: float) -> None:
        self._reading.count += 1
        sent = self._unconfirmed.pop(frame.message_id)
        if sent is None:
            self.count("wolpertinger.result.unknown-id")
            return
        if sent.call_id is None:
            return
        if frame.result != ResultCode.SUCCESS:
            self._fail(sent.call_id, f"result {frame.result}", _RESULTS.get(frame.result, "unknown").encode(), now)
            return
        asked = self._waiting.get(sent.call_id)
        if asked is None:
            return
        if asked.message.attributes.get("response") == messages.NO_RESPONSE:
            self._reading.delivered = [*(self._reading.delivered or ()), sent.call_id]
        elif now - sent.first_at >= _SLOW:
            # The time for the answer begins with the confirmation.
            self._reading.messages.append(self._local(Kind.PROGRESS, sent.call_id, "delivered"))

    def _fail(self, call_id: str, status: str, detail: bytes, now: float) -> None:
        """A call of ours has failed before the peer could answer it."""
        own = self._own.pop(call_id, None)
        if own is not None:
            own(None, now)
        elif self._waiting.pop(call_id, None) is not None:
            self._reading.messages.append(self._local(Kind.ERROR, call_id, status, detail))

    # Layer 2

    def _take(self, document: Document, whole: Data, wire: int, now: float) -> None:
        """Act on a document, or hand it on as a message."""
        if isinstance(document, Call):
            self._take_call(document, whole, wire, now)
            return
        call_id = document.call_id
        if call_id is None:
            self._hand_on(document, whole, wire)
            return
        own = self._own.pop(call_id, None)
        if own is not None:
            own(document.value if isinstance(document, Response) else None, now)
            return
        asked = self._waiting.pop(call_id, None)
        if asked is None:
            self.count("wolpertinger.response.unknown-call")
            return
        self._hand_on(document, whole, wire, asked)

    def _hand_on(self, document: Document, whole: Data, wire: int, asked: _Asked | None = None) -> None:
        message = messages.of_document(document, whole, wire, self.role.sends.opposite, self.settings.profile)
        if asked is not None and asked.carried:
            message = messages.open_answer(message, document)
        self._reading.messages.append(message)

    def _take_call(self, call: Call, whole: Data, wire: int, now: float) -> None:
        component = call.component.lower()
        if messages.is_heartbeat(call):
            self._reading.messages += [self._local(Kind.PROGRESS, each, "progress") for each in self._waiting]
            return
        if component == "authentication":
            self._authenticate(call, now)
            return
        if self.trust < self.settings.required_trust:
            self._say(Error(call.component, ErrorCode.NOT_AUTHORISED, call.call_id), now)
            return
        message = messages.of_document(call, whole, wire, self.role.sends.opposite, self.settings.profile)
        if component.startswith(HUB_PREFIX):
            # The hub's operations are reached by the component `Hub` alone, and where the profile is on.
            self._say(Error("", ErrorCode.COMPONENT_NOT_FOUND, call.call_id), now)
            return
        if message.kind is Kind.REQUEST:
            if call.call_id in self._owed or len(self._owed) >= self.settings.max_calls:
                self.count(
                    "wolpertinger.call-id.reused" if call.call_id in self._owed else "wolpertinger.calls.too-many"
                )
                self._say(Error(call.component, ErrorCode.REQUEST, call.call_id), now)
                return
            self._owed[call.call_id] = _Owed(call, now)
        self._reading.messages.append(message)

    # Trust

    def _authenticate(self, call: Call, now: float) -> None:
        outcome = self.authentication.answer(call, self.protected)
        if outcome.prove is not None:
            proof = Value("string", outcome.prove)
            self._ask("ClusterAuthVerify", (proof,), lambda value, at: self._proven(call, value, at), now)
            return
        self._answer(call, outcome, now)
        if outcome.cipher is not None:
            self._cipher = outcome.cipher
        if outcome.reset:
            self.count("wolpertinger.authentication.failed")
            self.close_reason = "error"
            self.state = SessionState.CLOSED

    def _proven(self, call: Call, value: Value | None, now: float) -> None:
        """The peer has judged our proof: that is the answer it waits for."""
        accepted = value == authentication.YES
        if accepted:
            self.authentication.standing = max(self.authentication.standing, authentication.MEMBER)
        self._answer(call, Outcome(authentication.YES if accepted else authentication.NO), now)

    def _answer(self, call: Call, outcome: Outcome, now: float) -> None:
        if outcome.error is not None:
            self._say(Error(call.component, outcome.error, call.call_id), now)
        elif not outcome.silent:
            self._say(Response(call.component, call.call_id, outcome.value), now)

    def _ask(
        self, method: str, parameters: tuple[Value, ...], then: Callable[[Value | None, float], None], now: float
    ) -> None:
        call = Call(authentication.COMPONENT, self._draw_call_id(), method, parameters)
        self._own[call.call_id] = then
        self._say(call, now)

    def _climb(self, now: float) -> None:
        """The next step towards the trust that the settings ask for; the conversation opens at the top."""
        if self._step == len(STEPS) or STEPS[self._step].level > self.settings.authenticate:
            self.state = SessionState.OPEN
            return
        step = STEPS[self._step]
        if step.level > authentication.ENCRYPTED and not (self.protected or self.settings.insecure_trust):
            self._not_trusted("trust 3 and 4 need TLS, XMPP over TLS, a local connection, or insecure_trust")
            return

        def judge(value: Value | None, at: float) -> None:
            accepted = step.accept(self.authentication, value)
            if isinstance(accepted, Cipher):
                self._cipher = accepted
            if not accepted:
                self._not_trusted(f"the peer refused {authentication.COMPONENT}.{step.method}")
                return
            self.authentication.standing = max(self.authentication.standing, step.level)
            held, self._held = self._held or [], None
            for document in held:
                self._say(document, at)
            self._step += 1
            self._climb(at)

        self._ask(step.method, step.parameters(self.authentication), judge, now)
        if step.method == "KeyExchange":
            self._held = []

    def _not_trusted(self, why: str) -> None:
        self.close_reason = f"no trust: {why}"
        self.state = SessionState.CLOSED

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue a message: a call, its answer, or an event as the hub profile carries it."""
        kind = message.kind
        if self.state is SessionState.CLOSED or (self.state is SessionState.CLOSING and kind not in _ANSWERS):
            raise PeerClosed("the wolpertinger connection is closed")
        if kind in _ANSWERS and message.correlation_id is not None:
            return self._send_answer(message, now)
        if kind is Kind.PROGRESS:
            return self._send_progress(message, now)
        if kind is Kind.CANCEL:
            self._waiting.pop(message.correlation_id or "", None)
            raise NotSupported("wolpertinger has no way to cancel a call; its answer will be ignored")
        if kind not in (Kind.REQUEST, Kind.EVENT, Kind.ERROR):
            raise NotSupported(f"a wolpertinger session does not send a message of kind {kind}")
        self._check_room()
        if kind is not Kind.ERROR:
            message = message.with_(id=self._draw_call_id())
        document = messages.to_document(message, profile=self.settings.profile)
        if isinstance(document, Call) and document.component.lower() == "authentication":
            raise NotSupported("a session authenticates itself: name the trust to reach in the setting 'authenticate'")
        self._say(document, now)
        if kind is Kind.REQUEST:
            carried = isinstance(document, Call) and messages.is_carried(document, profile=self.settings.profile)
            self._waiting[message.id or ""] = _Asked(message, carried)
        return message

    def _check_room(self) -> None:
        most = self.settings.max_unconfirmed
        if len(self._unconfirmed.waiting) >= most or self._unconfirmed.size > _BYTES:
            raise LimitExceeded(f"too many messages wait for their delivery confirmation; max_unconfirmed is {most}")
        if len(self._waiting) >= self.settings.max_calls:
            raise LimitExceeded(f"too many calls wait for their answer; max_calls is {self.settings.max_calls}")

    def _send_answer(self, message: Message, now: float) -> Message:
        owed = self._owed.get(message.correlation_id or "")
        if owed is None:
            raise NotSupported(f"no call with id {message.correlation_id} waits for an answer")
        if message.attributes.get("response") != messages.NO_RESPONSE or message.kind is Kind.ERROR:
            document = messages.answer(owed.call, message, profile=self.settings.profile)
            if isinstance(document, Error) and message.body:
                self.count("wolpertinger.error.text-dropped")
            try:
                self._say(document, now)
            except LimitExceeded:
                self._say(Error(owed.call.component, ErrorCode.UNSPECIFIED, owed.call.call_id), now)
        del self._owed[owed.call.call_id]
        self._close_when_settled()
        return message

    def _send_progress(self, message: Message, now: float) -> Message:
        """A Heartbeat; it names no call and has no room for a step's body."""
        if not self._owed:
            raise NotSupported("a Heartbeat is sent only while a call is worked on")
        if now - self._heartbeat_at >= _OFTEN:
            self._heartbeat(now)
        return message

    def _heartbeat(self, now: float) -> None:
        self._heartbeat_at = now
        self._say(Call("Core", self._draw_call_id(), "Heartbeat"), now)

    def _say(self, document: Document, now: float) -> None:
        """Encode a document, queue its lines, and wait for their confirmation."""
        if self._held is not None:
            self._held.append(document)
            return
        message_id = self._unconfirmed.draw_id()
        pieces = layer1.pack(layer2.write(document), message_id, self.settings, self._cipher)
        lines = [frames.encode(piece) for piece in pieces]
        call_id = document.call_id if isinstance(document, Call) else None
        self._unconfirmed.add(message_id, lines, now, call_id)
        self._out += lines
        self.sent += 1
        if len(self._unconfirmed.waiting) > 2 * self.settings.max_unconfirmed or self._unconfirmed.size > 2 * _BYTES:
            # A peer that asks and never confirms the answers would make us keep all of them.
            self.count("wolpertinger.delivery.failed")
            self.close_reason = "error"
            self.state = SessionState.CLOSED

    def _queue(self, line: bytes) -> None:
        self._out.append(line)
        self.sent += 1

    def _draw_call_id(self) -> str:
        digits = f"{self._draw.getrandbits(128):032x}"
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def outgoing(self) -> bytes:
        """Lines to write now."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def outgoing_frames(self) -> Sequence[bytes]:
        """The same, a line each."""
        out, self._out = self._out, []
        return out

    # Time

    def deadline(self) -> float | None:
        """When something is due: an answer, a resend, a Heartbeat, or to give up half a message."""
        due = [
            each
            for each in (self._unconfirmed.deadline, self._assembly.deadline, self._heartbeat_due())
            if each is not None
        ]
        if self._late:
            due.append(self._late[0][0])
        return min(due, default=None)

    def _heartbeat_due(self) -> float | None:
        if not self.settings.heartbeat:
            return None
        for owed in self._owed.values():
            return max(owed.since, self._heartbeat_at) + self.settings.heartbeat
        return None

    def expire(self, now: float) -> Run:
        """A deadline has passed."""
        reading = self._reading = _Reading([], [], [])
        while self._late and self._late[0][0] <= now:
            self._queue(self._late.popleft()[1])
        before = self._assembly.dropped
        self._assembly.expire(now)
        self._count_dropped(before)
        due = self._heartbeat_due()
        if due is not None and due <= now:
            self._heartbeat(now)
        for message_id in self._unconfirmed.overdue(now):
            if self._unconfirmed.waiting[message_id].tries >= self.settings.resends:
                # Nobody there. Whoever waits for an answer learns it from the end of the connection.
                self.count("wolpertinger.delivery.failed")
                self.close_reason = "idle"
                self.state = SessionState.CLOSED
                break
            self._out += self._unconfirmed.again(message_id, now).lines
            self.count("wolpertinger.delivery.resent")
            self.sent += 1
        return self._finish(reading)

    # The end

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self.state is SessionState.CLOSED:
            return
        self.close_reason = self.close_reason or "close"
        if self._tail_size:
            self.count("stream.cut")
        if self.state is SessionState.OPENING:
            self.state = SessionState.CLOSED
            return
        self.state = SessionState.CLOSING
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self.state is SessionState.CLOSING and not self._owed:
            self.state = SessionState.CLOSED

    def close(self, now: float, reason: str = "") -> None:
        """Wolpertinger has no goodbye: calls that will get no answer are told so, then the connection ends."""
        if self.state is SessionState.CLOSED:
            return
        self.close_reason = self.close_reason or reason or "close"
        for owed in list(self._owed.values()):
            self._say(Error(owed.call.component, ErrorCode.UNSPECIFIED, owed.call.call_id), now)
        self._owed.clear()
        self.state = SessionState.CLOSED

    def outstanding(self) -> Sequence[Message]:
        """Calls sent and not answered yet."""
        return [asked.message for asked in self._waiting.values()]


_RESULTS: dict[int, str] = {
    ResultCode.TIMEOUT: "delivery failed: timeout",
    ResultCode.UNKNOWN: "delivery failed: unknown error",
    ResultCode.SPLITTING: "delivery failed: the pieces do not fit",
    ResultCode.ENCRYPTION: "delivery failed: encryption",
    ResultCode.INVALID_FORMAT: "delivery failed: invalid format",
}
