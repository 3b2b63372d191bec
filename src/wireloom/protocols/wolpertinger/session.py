"""One end of a wolpertinger conversation: calls and their answers, Heartbeats, trust. Lines in, messages out.

Layer 1 (`transmission`) has no handshake: a session is open at once, unless a client was told to authenticate first. A
message that is wrong is refused by itself and the conversation goes on. Only plain text after the key exchange, failed
authentication, and a peer that confirms nothing end it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from wireloom.model import (
    Authenticity,
    InvalidState,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    WireloomError,
    message_of,
)
from wireloom.protocols.contract import HUB_PREFIX, Batch, Role, SessionState
from wireloom.protocols.wolpertinger import authentication, keys, layer2, messages
from wireloom.protocols.wolpertinger.authentication import STEPS, Authentication, Entropy, Outcome
from wireloom.protocols.wolpertinger.delivery import Sent
from wireloom.protocols.wolpertinger.frames import Data
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Document, Error, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.refusal import ErrorCode, Refused, ResultCode
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.transmission import BYTES, LARGE, LINES, PackedDocument, Transmission, pack
from wireloom.protocols.wolpertinger.values import Value

_SLOW = 1.0
"""Seconds after which a confirmation is late: the caller is then told of it."""
_OFTEN = 1.0
"""Seconds between two Heartbeats that the application asks for, or that count while `_MANY` calls wait."""
_MANY = 1000
_LAST_DIGITS = (1 << 48) - 1
"""The part of a CallId that counts up; the other digits are random for each session."""
_METADATA = 200
"""Bytes of a line beside its payload, at most."""
_REQUEST, _RESPONSE, _EVENT, _ERROR, _PROGRESS = Kind.REQUEST, Kind.RESPONSE, Kind.EVENT, Kind.ERROR, Kind.PROGRESS
_OPEN, _CLOSING, _CLOSED = SessionState.OPEN, SessionState.CLOSING, SessionState.CLOSED
_SUCCESS, _NOBODY = ResultCode.SUCCESS, Authenticity.NONE
_ANSWERS, _SENDS = (_RESPONSE, _ERROR), (_REQUEST, _EVENT, _ERROR)
_RESULTS: dict[int, str] = {
    ResultCode.TIMEOUT: "delivery failed: timeout",
    ResultCode.UNKNOWN: "delivery failed: unknown error",
    ResultCode.SPLITTING: "delivery failed: the pieces do not fit",
    ResultCode.ENCRYPTION: "delivery failed: encryption",
    ResultCode.INVALID_FORMAT: "delivery failed: invalid format",
}


@dataclass(slots=True)
class _Asked:
    """A pending call of ours."""

    message: Message
    carried: bool
    """Whether it is a request that `Hub.Request` carries."""


@dataclass(slots=True)
class _Owed:
    """A pending call of the peer, without its parameters."""

    component: str
    carried: bool
    """Whether it is a request that `Hub.Request` carries."""
    since: float


class WolpertingerSession(Transmission):
    """Client or server of one connection. They differ in one thing: a client may have to authenticate first."""

    def __init__(
        self, role: Role, settings: WolpertingerSettings, *, unique: int = 0, entropy: Entropy = os.urandom
    ) -> None:
        super().__init__(role, settings)
        layer2.check_available()
        if settings.authenticate >= authentication.ENCRYPTED:
            keys.check_available()
        self.authentication = Authentication(settings, entropy)
        self._waiting: dict[str, _Asked] = {}
        """Calls of ours, by CallId, until they are answered."""
        self._own: dict[str, Callable[[Value | None, float], None]] = {}
        """Calls of the session itself, and what to do with the answer."""
        self._owed: dict[str, _Owed] = {}
        self._held: list[Document] | None = None
        """Documents that wait for the key exchange; None if there is none under way."""
        self._settled: list[str] = []
        """Calls without response value whose delivery was confirmed in this read."""
        self._heartbeat_at = float("-inf")
        self._worked_at = float("-inf")
        """When the peer last said that it works on what it was asked."""
        draw = random.Random(unique)  # ids, not secrets
        self._call_prefix = str(UUID(int=draw.getrandbits(128), version=4))[:24]
        self._calls_made = draw.getrandbits(48)
        self._step = 0
        self._input_over = False

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
            self.state = _OPEN

    def _finish(self) -> Sequence[Batch]:
        """What the read brought. A call is settled by its confirmation only if no error came with it."""
        if self._settled:
            settled, self._settled = self._settled, []
            for call_id in settled:
                if self._waiting.pop(call_id, None) is not None:
                    self._tell(Kind.ACK, call_id, str(_SUCCESS.value))
        if self._input_over and self._blocked is None:
            self._end_input()
        self._close_when_settled()
        return super()._finish()

    def _tell(self, kind: Kind, call_id: str, status: str, body: bytes = b"") -> None:
        """Tell the owner what became of a call."""
        self._add(
            Message(
                kind,
                None,
                body,
                None,
                call_id,
                status,
                None,
                protocol=messages.NAME,
                direction=self._direction,
            )
        )

    def _delivered(self, sent: Sent, result: int, now: float) -> None:
        call_id = sent.call_id or ""
        if result != _SUCCESS:
            self._fail(call_id, f"result {result}", _RESULTS.get(result, "delivery failed"), now)
            return
        asked = self._waiting.get(call_id)
        if asked is None:
            return
        if asked.message.attributes.get("response") == messages.NO_RESPONSE:
            self._settled.append(call_id)
        elif now - sent.first_at >= _SLOW:
            # The time for the answer begins with the confirmation.
            self._tell(_PROGRESS, call_id, "delivered")

    def _fail(self, call_id: str, status: str, detail: str, now: float) -> None:
        """A call of ours has failed before the peer could answer it."""
        own = self._own.pop(call_id, None)
        if own is not None:
            own(None, now)
        elif self._waiting.pop(call_id, None) is not None:
            self._tell(_ERROR, call_id, status, detail.encode())

    # What the peer says

    def _take(self, document: Document, message: Message | None, whole: Data, wire: int, now: float) -> None:
        if isinstance(document, RemoteMethodCall):
            self._take_call(document, message, whole, wire, now)
            return
        asked: _Asked | None = None
        if document.call_id is not None:
            own = self._own.pop(document.call_id, None)
            if own is not None:
                own(document.value if isinstance(document, Response) else None, now)
                return
            asked = self._waiting.pop(document.call_id, None)
            if asked is None:
                self.count("wolpertinger.response.unknown-call")
                return
        message = message or self._message(document, whole, wire)
        if isinstance(document, Error):
            message = messages.with_text(message)
        if asked is not None and asked.carried:
            message = messages.open_answer(message, document)
        self._add(message)

    def _message(self, document: Document, whole: Data, wire: int) -> Message:
        return messages.of_document(document, whole, wire, self._direction, profile=self.settings.profile, typed=True)

    def _take_call(self, call: RemoteMethodCall, message: Message | None, whole: Data, wire: int, now: float) -> None:
        component = messages.called(call.component, call.method).component
        if component == "core" and messages.is_heartbeat(call):
            self._take_heartbeat(now)
            return
        if component == "authentication":
            self._authenticate(call, now)
            return
        if self.authentication.trust < self.settings.required_trust:
            self._say(Error(call.component, ErrorCode.NOT_AUTHORISED, call.call_id), now)
            return
        if component.startswith(HUB_PREFIX):
            # The hub's operations are reached by the component `Hub` alone, and where the profile is on.
            self._say(Error("", ErrorCode.COMPONENT_NOT_FOUND, call.call_id), now)
            return
        message = message or self._message(call, whole, wire)
        if message.kind is _REQUEST:
            reused = call.call_id in self._owed
            if reused or len(self._owed) >= self.settings.max_calls:
                self.count("wolpertinger.call-id.reused" if reused else "wolpertinger.calls.too-many")
                self._say(Error(call.component, ErrorCode.REQUEST, call.call_id), now)
                return
            carried = component == "hub" and self._is_carried(call)
            self._owed[call.call_id] = _Owed(call.component, carried, now)
        self._add(message)

    def _take_heartbeat(self, now: float) -> None:
        """The peer works on all pending calls. If there are many, Heartbeats count only every `_OFTEN` seconds."""
        if now - self._worked_at < _OFTEN * min(len(self._waiting) / _MANY, 1):
            return
        self._worked_at = now
        for number, call_id in enumerate(self._waiting, 1):
            self._tell(_PROGRESS, call_id, "progress")
            if number % LINES == 0:
                self._end_batch()

    def _refuse_document(self, refused: Refused, now: float) -> None:
        if not refused.is_answer:
            self._say(Error(refused.component, refused.error or ErrorCode.INVALID_XML, refused.call_id), now)
        elif refused.call_id is not None:
            self._fail(refused.call_id, str(ErrorCode.INVALID_RESPONSE.value), refused.detail, now)

    # Trust

    def _authenticate(self, call: RemoteMethodCall, now: float) -> None:
        outcome = self.authentication.answer(call, self.protected)
        self.identities = self.authentication.identities
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
            self.state = _CLOSED

    def _proven(self, call: RemoteMethodCall, value: Value | None, now: float) -> None:
        """The peer has judged our proof: that is the answer it waits for."""
        accepted = value == authentication.YES
        if accepted:
            self.authentication.standing = max(self.authentication.standing, authentication.MEMBER)
        self._answer(call, Outcome(authentication.YES if accepted else authentication.NO), now)

    def _answer(self, call: RemoteMethodCall, outcome: Outcome, now: float) -> None:
        if outcome.error is not None:
            self._say(Error(call.component, outcome.error, call.call_id), now)
        elif not outcome.silent:
            self._say(Response(call.component, call.call_id, outcome.value), now)

    def _ask(
        self, method: str, parameters: tuple[Value, ...], then: Callable[[Value | None, float], None], now: float
    ) -> None:
        call = RemoteMethodCall(authentication.COMPONENT, self._draw_call_id(), method, parameters)
        self._own[call.call_id] = then
        self._say(call, now)

    def _climb(self, now: float) -> None:
        """The next step towards the trust that the settings ask for; the conversation opens at the top."""
        if self._step == len(STEPS) or STEPS[self._step].level > self.settings.authenticate:
            self.state = _OPEN
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
        self.state = _CLOSED

    # What the application says

    def send(self, message: Message, now: float) -> Message:
        """Queue a message: a call, its answer, or an event as the hub profile carries it."""
        kind = message.kind
        self._check_open(kind)
        if kind in _ANSWERS and message.correlation_id is not None:
            return self._send_answer(message, now)
        if kind is _PROGRESS:
            return self._send_progress(message, now)
        if kind not in _SENDS:
            if kind is Kind.CANCEL:
                self._waiting.pop(message.correlation_id or "", None)
                raise NotSupported("wolpertinger has no way to cancel a call; its answer will be ignored")
            raise NotSupported(f"a wolpertinger session does not send a message of kind {kind}")
        self._check_room()
        if kind is not _ERROR:
            message = self._with_call_id(message)
        if self._is_large(message):
            self._send_large(message, now)
            return message
        document = messages.to_document(message, profile=self.settings.profile)
        if isinstance(document, RemoteMethodCall) and document.component.lower() == "authentication":
            raise NotSupported("a session authenticates itself: name the trust to reach in the setting 'authenticate'")
        self._say(document, now)
        if kind is _REQUEST:
            self._waiting[message.id or ""] = _Asked(message, self._is_carried(document))
        return message

    def _with_call_id(self, message: Message) -> Message:
        return message_of(
            (message.kind, message.topic, message.body, self._draw_call_id(), None, None, message.content_type,
             message.attributes, messages.NAME, None, None, None, _NOBODY)
        )  # fmt: skip

    def packing(self, event: Message) -> Callable[[], PackedDocument] | None:
        """Large events are made, compressed and encrypted on another thread."""
        if not self._is_large(event):
            return None
        self._check_open(_EVENT)
        event, settings, cipher = self._with_call_id(event), self.settings, self._cipher
        return lambda: pack(messages.to_document(event, profile=settings.profile), settings, cipher)

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event ahead of documents that are being encoded."""
        self._check_open(_EVENT)
        if isinstance(packed, PackedDocument) and self._held is None and packed.cipher is self._cipher:
            self._say_packed(packed, now)
            return
        document = messages.to_document(self._with_call_id(event), profile=self.settings.profile)
        if self._held is not None:
            self._held.append(document)
        else:
            self._say_now(document, now)

    def _is_carried(self, document: Document) -> bool:
        return isinstance(document, RemoteMethodCall) and messages.is_carried(document, profile=self.settings.profile)

    def _is_large(self, message: Message) -> bool:
        if len(message.body) > self.settings.max_message:
            raise LimitExceeded(f"a body of {len(message.body)} bytes; max_message is {self.settings.max_message}")
        return self._may_offload and self._held is None and len(message.body) >= LARGE

    def _send_large(self, message: Message, now: float) -> None:
        """A call or an event that takes time to write; what goes wrong with it is told later."""
        profile, call_id = self.settings.profile, message.id or ""

        def make() -> Document:
            document = messages.to_document(message, profile=profile)
            if asked is not None:
                asked.carried = self._is_carried(document)
            return document

        def failed(error: WireloomError, at: float) -> None:
            self.count("wolpertinger.message.unsent")
            self._fail(call_id, str(ErrorCode.REQUEST.value), str(error), at)

        asked: _Asked | None = None
        if message.kind is _REQUEST:
            asked = self._waiting[call_id] = _Asked(message, carried=False)
        self._say_later(make, failed, now)

    def _check_open(self, kind: Kind) -> None:
        if self.state is _CLOSED or (self.state is _CLOSING and kind not in _ANSWERS):
            raise PeerClosed("the wolpertinger connection is closed")

    @property
    def is_full(self) -> bool:
        """Whether the peer has still to confirm as much as is sent ahead of its confirmations."""
        unconfirmed = self._unconfirmed
        return len(unconfirmed.waiting) >= self.settings.max_unconfirmed or unconfirmed.size > BYTES

    def _check_room(self) -> None:
        if self.is_full:
            most = self.settings.max_unconfirmed
            raise LimitExceeded(f"too many messages wait for their delivery confirmation; max_unconfirmed is {most}")
        if len(self._waiting) >= self.settings.max_calls:
            raise LimitExceeded(f"too many calls wait for their answer; max_calls is {self.settings.max_calls}")

    def _send_answer(self, message: Message, now: float) -> Message:
        call_id = message.correlation_id or ""
        owed = self._owed.get(call_id)
        if owed is None:
            raise InvalidState(f"no call with id {call_id} waits for an answer")
        component, carried = owed.component, owed.carried
        silent = message.kind is _RESPONSE and message.attributes.get("response") == messages.NO_RESPONSE
        if silent:
            pass
        elif len(message.body) > self.settings.max_message:
            self._say(Error(component, ErrorCode.UNSPECIFIED, call_id), now)
        elif message.kind is _RESPONSE and self._is_large(message):
            self._say_later(
                lambda: messages.answer(component, call_id, message, carried=carried),
                lambda _, at: self._say(Error(component, ErrorCode.UNSPECIFIED, call_id), at),
                now,
            )
        else:
            document = messages.answer(component, call_id, message, carried=carried)
            if isinstance(document, Error) and message.body:
                self.count("wolpertinger.error.text-dropped")
            try:
                self._say(document, now)
            except LimitExceeded:
                self._say(Error(component, ErrorCode.UNSPECIFIED, call_id), now)
        del self._owed[call_id]
        self._close_when_settled()
        return message

    def _send_progress(self, message: Message, now: float) -> Message:
        """Send a Heartbeat, which cannot name a call or carry a body."""
        if not self._owed:
            raise InvalidState("a Heartbeat is sent only while a call is worked on")
        if now - self._heartbeat_at >= _OFTEN:
            self._heartbeat(now)
        return message

    def _heartbeat(self, now: float) -> None:
        self._heartbeat_at = now
        self._say(RemoteMethodCall("Core", self._draw_call_id(), "Heartbeat"), now)

    def _say(self, document: Document, now: float) -> None:
        """Send a document, after the key exchange if one is under way."""
        if self._held is not None:
            self._held.append(document)
        else:
            super()._say(document, now)

    def _draw_call_id(self) -> str:
        self._calls_made += 1
        return f"{self._call_prefix}{self._calls_made & _LAST_DIGITS:012x}"

    # Time

    def deadline(self) -> float | None:
        """When something is due: an answer, a resend, a Heartbeat, or to give up half a message."""
        due, beat = self._transmission_deadline(), self._heartbeat_due()
        return beat if due is None else due if beat is None else min(due, beat)

    def _heartbeat_due(self) -> float | None:
        if self.settings.heartbeat:
            for owed in self._owed.values():
                return max(owed.since, self._heartbeat_at) + self.settings.heartbeat
        return None

    def expire(self, now: float) -> Sequence[Batch]:
        """A deadline has passed."""
        due = self._heartbeat_due()
        if due is not None and due <= now:
            self._heartbeat(now)
        self._expire_transmission(now)
        self._close_when_settled()
        return self._finish()

    # The end

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self.state is _CLOSED:
            return
        self._input_over = True
        if self._blocked is None:
            self._end_input()

    def _end_input(self) -> None:
        self._input_over = False
        self.close_reason = self.close_reason or "close"
        if self._tail_size:
            self.count("stream.cut")
        if self.state is _OPEN:
            self.state = _CLOSING
        elif self.state is SessionState.OPENING:
            self.state = _CLOSED
        self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self.state is _CLOSING and not self._owed and not self._is_busy and not self._delayed:
            self._confirm_now()
            self.state = _CLOSED

    def close(self, now: float, reason: str = "") -> None:
        """Send an error for each pending call of the peer, then close; wolpertinger has no closing message."""
        if self.state is _CLOSED:
            return
        self.close_reason = self.close_reason or reason or "close"
        for call_id, owed in list(self._owed.items()):
            self._say(Error(owed.component, ErrorCode.UNSPECIFIED, call_id), now)
        self._owed.clear()
        self.state = _CLOSING
        self._close_when_settled()
