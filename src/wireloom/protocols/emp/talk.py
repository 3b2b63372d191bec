"""One end of an emp conversation: handshake, liveness, requests and responses, the end.

Implements the section "Communication flow" of the emp specification and the rules of its request-response
extension. Both ends are alike: each says `hello` at once and may then do whatever the other may.

The tables in `states.py` say what each message does in each state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from wireloom.model import Kind, LimitExceeded, Message, NotSupported, PeerClosed, ProtocolViolation, WireloomError
from wireloom.protocols.contract import LOGIN, NOTHING_AGREED, Asker, Role, Run, Session, request_of
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.extensions import MAX_ID
from wireloom.protocols.emp.frames import ErrorCode, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import is_reserved, to_frame, to_message
from wireloom.protocols.emp.offload import Later, Offload, is_slow_to_read, is_slow_to_write
from wireloom.protocols.emp.plain import LARGEST_SHAPE, LastShape, read_plain, read_related, write_plain
from wireloom.protocols.emp.settings import EmpSettings
from wireloom.protocols.emp.states import (
    ANSWERS,
    APPLICATION,
    CLOSED,
    CLOSING,
    CONVERSATION,
    MAY_SEND,
    OPEN,
    OPENING,
    OUT_OF_TURN,
)
from wireloom.protocols.kept import Kept
from wireloom.protocols.owing import OwedReads
from wireloom.protocols.stretches import Stretches

_HELLO = Frame(Type.HELLO, frames.encode_hello(frames.Hello()))
_PASSED_ON = Message(Kind.REQUEST)
"""Stands for requests of others: those who passed them on know more about them."""
_EXCLUSIVE: Mapping[str, str | bool] = MappingProxyType({"size_mode": str(SizeMode.EXCLUSIVE)})
_BYE, _PING, _PONG = Frame(Type.BYE), Frame(Type.PING), Frame(Type.PONG)


class EmpTalk(Session):
    """The conversation itself; `EmpSession` puts shorter ways on top of it."""

    steady = True

    def __init__(self, role: Role, settings: EmpSettings) -> None:
        super().__init__(role)
        self.settings = settings
        self._plain = settings.size_mode is SizeMode.INCLUSIVE
        """Whether the short ways of `plain.py` may be tried."""
        self._largest_plain = settings.max_message - LARGEST_SHAPE
        """Bytes of a body that surely fits, and is not compressed."""
        if settings.compress_above is not None:
            self._largest_plain = min(self._largest_plain, settings.compress_above)
        self._receives = role.sends.opposite
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._held: list[bytes] = []
        """Messages of the application that wait for the handshake to end."""
        self._held_size = 0
        self._last_id = 0
        self._waiting: dict[str, Message | Asker] = {}
        """Requests we sent, or who asked them, by id, until they are answered; the messages need not bear the id."""
        self._owed: dict[str, int] = {}
        """Requests that the peer waits on: their ids as in messages, and as on the wire."""
        self._last_shape = LastShape()
        self._deadline: float | None = None
        self._ping_due = 0.0
        self._ping_sent: float | None = None
        self._pongs_unsent = 0
        self._slow = Offload()
        self._bye_waits = False
        """`bye` is said, but stands behind a large message that is still being packed."""
        self._owed_reads: OwedReads[int] = OwedReads()
        self._owed_calls = Stretches()
        """Requests that the peer waits on, too, and that were passed on with many others; not in `_owed`."""
        self._relayed = Stretches()
        """Requests that we passed on with many others, and that are not answered; not in `_waiting`."""

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up: say `hello`, and wait for the peer's."""
        self._write(_HELLO)
        self._deadline = now + self.settings.handshake_timeout

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        if self.state is CLOSED:
            return Run()
        kept = self._buffer
        if kept and kept.takes(data):
            return Run()
        if kept or self._slow.reading is not None:
            kept += data
        if self._slow.reading is not None:
            return Run()
        return self._receive_more(kept or data, 0, [], now)

    def _receive_more(self, buffer: bytes | bytearray, position: int, messages: list[Message], now: float) -> Run:
        """Take what is in a buffer, after the messages up to `position`; what is not complete is kept."""
        settings, direction, kept = self.settings, self._receives, self._buffer
        kept.needed = 0
        logins: list[tuple[int, int, Message]] = []
        """Where messages with credentials are."""
        try:
            while True:
                if self._plain and self.state is OPEN:
                    position = read_related(
                        buffer, position, settings, direction, self._waiting, self._owed, self._last_shape, messages
                    )
                    if position == len(buffer):
                        break
                    quick = read_plain(buffer, position, settings, direction)
                else:
                    quick = None
                if quick is not None:
                    message, end = quick
                    self._correlate(message)
                elif found := frames.decode(buffer, position, settings.max_message, settings.size_mode):
                    if self._slow.is_allowed and self._waits_for(found[0]):
                        break
                    message, end = self._accept(found[0], now), found[1]
                else:
                    kept.needed = frames.needed(buffer, position, settings.size_mode)
                    break
                messages.append(message)
                if message.topic == LOGIN:
                    logins.append((position, end, message))
                position = end
                if self.state is CLOSED:
                    if position < len(buffer):
                        raise ProtocolViolation("emp.flow.after-end", f"{len(buffer) - position} bytes more")
                    break
        except ProtocolViolation as violation:
            self._refuse(violation, bytes(buffer[position:]))
            return Run(self._blanked(bytes(buffer[:position]), logins), messages)
        accepted = self._blanked(bytes(buffer[:position]), logins) if logins else bytes(buffer[:position])
        if kept:
            del kept[:position]
        elif position < len(buffer):
            kept += buffer[position:]
        return Run(accepted, messages)

    def _blanked(self, data: bytes, logins: list[tuple[int, int, Message]]) -> bytes:
        """The same messages with stars for the bodies of some; what was compressed is not any more."""
        for start, end, message in reversed(logins):
            attributes = {name: value for name, value in message.attributes.items() if name != "compression"}
            starred = message.with_(body=b"*" * len(message.body), attributes=attributes)
            data = data[:start] + frames.encode(to_frame(starred, self.settings), self.settings.size_mode) + data[end:]
        return data

    def _accept(self, frame: Frame, now: float) -> Message:
        """Check a frame against the conversation, act on it, and say what it means."""
        type_ = frame.type
        then = CONVERSATION[self.state].get(type_ if type_ < APPLICATION else APPLICATION)
        if then is None:
            raise frames.violation(OUT_OF_TURN[self.state], f"message of type {type_} while {self.state}")
        unpacked, self._slow.unpacked = self._slow.unpacked, None
        if isinstance(unpacked, ProtocolViolation):
            raise unpacked
        message = to_message(frame, self.settings, self._receives, unpacked)
        if type_ >= Type.DATA:
            self._correlate(message)
        elif type_ == Type.PING:
            self._answer_ping()
        elif type_ == Type.PONG:
            self._pong(now)
        elif type_ == Type.HELLO:
            self._greet(message, now)
        else:
            self._leave("close" if type_ == Type.BYE else "error")
        self.state = then
        return message

    def _greet(self, message: Message, now: float) -> None:
        """The peer's `hello` ends the handshake."""
        version = message.attributes["version"]
        if version != str(frames.VERSION):
            raise frames.violation("emp.hello.version", f"version {version}; version {frames.VERSION} is supported")
        self._deadline = None
        self._ping_due = now + self.settings.ping_interval
        for data in self._held:
            self._queue(data)
        self._held.clear()

    def _correlate(self, message: Message) -> None:
        """Requests are owed an answer; answers must be awaited."""
        if message.id is not None:
            self._owe(message.id)
        elif message.correlation_id is not None:
            self._settle(message.correlation_id)

    def _owe(self, request_id: str) -> None:
        """A request arrived: it must be answered, and its id is taken until then."""
        if request_id in self._owed:
            raise frames.violation("emp.request.reused-id", f"request {request_id} is still unanswered")
        if len(self._owed) >= self.settings.max_requests:
            raise frames.violation(
                "emp.request.too-many", f"{len(self._owed)} requests are unanswered, as many as max_requests allows"
            )
        self._owed[request_id] = int(request_id)

    def _settle(self, request_id: str) -> None:
        """A response arrived: its request no longer waits."""
        if self._waiting.pop(request_id, None) is None:
            raise frames.violation("emp.response.unknown-id", f"no request {request_id} waits for a response")

    def _answer_ping(self) -> None:
        if self._pongs_unsent:
            self.count("emp.ping.overlap")
        self._pongs_unsent += 1
        self._write(_PONG)

    def _pong(self, now: float) -> None:
        """The first pong after a ping ends the procedure; others are ignored."""
        if self._ping_sent is None:
            self.count("emp.pong.unasked")
            return
        self._ping_due = max(self._ping_sent + self.settings.ping_interval, now)
        self._ping_sent = None

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        """Tell the peer which rule it broke, and close."""
        self.violation = frames.readdress(violation, self.settings.size_mode)
        self.refused = rest
        self._slow.behind.clear()
        if violation.reply:
            self._queue(violation.reply)
        self._leave("error")

    def _leave(self, reason: str) -> None:
        """The end: nothing is sent or received after this."""
        self.close_reason = self.close_reason or reason
        self.state = CLOSED
        self._deadline = None

    def end_of_input(self, now: float) -> None:
        """The peer closed the connection without a word: the last of the three ways to terminate."""
        if self._slow.reading is not None:
            self._slow.input_ended = True
            return
        if self._buffer and self.state is not CLOSED:
            self.count("stream.cut")
        self._leave("close")

    def agreed(self) -> Mapping[str, str | bool]:
        """The size mode where it is not the usual one: later readers do not know the settings."""
        return NOTHING_AGREED if self._plain else _EXCLUSIVE

    def outgoing(self) -> bytes:
        """Bytes to write now."""
        self._pongs_unsent = 0
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def deadline(self) -> float | None:
        """When the handshake, a pong or the last answers are overdue, or the next ping is due."""
        if self.state is not OPEN:
            return self._deadline
        if self._ping_sent is not None:
            return self._ping_sent + self.settings.pong_timeout
        return self._ping_due if self.settings.ping_interval else None

    def expire(self, now: float) -> Run:
        """Ping, or give up on a peer that did not answer in time."""
        due = self.deadline()
        if due is None or now < due:
            return Run()
        if self.state is OPENING:
            self.violation = frames.violation(
                "emp.handshake.timeout", f"no hello within handshake_timeout, {self.settings.handshake_timeout} s"
            )
            self._queue(frames.readdress(self.violation, self.settings.size_mode).reply)
            self._leave("error")
        elif self.state is CLOSING:
            self._slow.behind.clear()
            self._say_bye()
        elif self._ping_sent is None:
            self._ping(now)
        else:
            self._slow.behind.clear()
            self._write_error(ErrorCode.TIMEOUT, f"no pong within pong_timeout, {self.settings.pong_timeout} s")
            self._leave("idle")
        return Run()

    # The application's side

    def send(self, message: Message, now: float) -> Message:
        """Queue a message; what is sent during the handshake goes out when that ends.

        A request gets its id here. A response, or an error that answers a request, names the request in
        `correlation_id`. An error that names none ends the connection.
        """
        kind = message.kind
        if self.state is CLOSED:
            raise PeerClosed("the emp connection is closed")
        if kind is Kind.CLOSE:
            self.close(now)
            return message
        held = self.state is OPENING and kind not in MAY_SEND[OPENING]
        answers = kind in ANSWERS and message.correlation_id is not None
        if kind not in MAY_SEND[OPEN]:
            raise NotSupported(f"emp cannot send a message of kind {kind}")
        if self.state is CLOSING and (kind not in MAY_SEND[CLOSING] or (kind is Kind.OTHER and not answers)):
            raise PeerClosed("the emp connection is closing; only answers that are owed can be sent")
        if kind is Kind.PING:
            self._may_ping(held)
            self._ping(now)
            return message
        answer = message.correlation_id if answers else None
        if answer is not None:
            self._single_out()
            if answer not in self._owed:
                raise NotSupported(f"no request {answer} waits for a response")
        if kind is Kind.ERROR and answer is None and is_reserved(message.status):
            message = message.with_(status=str(int(ErrorCode.UNSPECIFIED)))
        message = self._numbered(message)
        slow = self._slow.is_allowed and not held and is_slow_to_write(message, self.settings)
        data = b"" if slow else self._encode(message, answer or message.id)
        if held:
            self._hold(data)
        if kind is Kind.REQUEST:
            self._last_id += 1
            self._waiting[str(self._last_id)] = message
        elif answer is not None:
            self._owed.pop(answer, None)
        if slow:
            self._write_later(message, answer or message.id)
        elif not held:
            self._queue(data)
        if kind is Kind.ERROR and answer is None:
            self._leave("error")
        elif self.state is CLOSING and not self._owes:
            self._say_bye()
        return message

    def packing(self, event: Message) -> Callable[[], bytes] | None:
        """Large events that are to be compressed are written elsewhere."""
        if self.state is not OPEN or not self._slow.is_allowed or not is_slow_to_write(event, self.settings):
            return None
        self._encode(event.with_(body=b""), None)
        return lambda: self._encode(event, None)

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event past what is being packed."""
        if self.state is not OPEN or (packed is None and not self._slow.behind):
            self.send(event, now)
        else:
            self._out.append(packed if isinstance(packed, bytes) else self._encode(event, None))
            self.sent += 1

    def _numbered(self, message: Message) -> Message:
        """Requests are numbered from 1; nothing else has an id of its own."""
        if message.kind is not Kind.REQUEST:
            return message if message.id is None else message.with_(id=None)
        if self._room <= 0:
            if self._last_id < MAX_ID:
                count = len(self._waiting) + len(self._relayed)
                raise LimitExceeded(f"{count} requests wait for a response, as many as max_requests allows")
            raise LimitExceeded("all request identifiers of this connection are used: open another")
        m = message
        number = str(self._last_id + 1)
        # Spelled out, because `with_` takes longer than all the rest of sending.
        return Message(
            m.kind, m.topic, m.body, number, m.correlation_id, m.status, m.content_type, m.attributes, m.protocol,
            m.time, m.connection, m.direction, m.authenticity,
        )  # fmt: skip

    def _encode(self, message: Message, related: str | None) -> bytes:
        """The message as bytes; `related` is the id of the request that it is or answers."""
        settings = self.settings
        data = None
        if settings.size_mode is SizeMode.INCLUSIVE:
            data = write_plain(message, int(related or 0), settings)
        return data or frames.encode(to_frame(message, settings), settings.size_mode)

    def _hold(self, data: bytes) -> None:
        if self._held_size + len(data) > self.settings.max_message:
            raise LimitExceeded("the handshake is not over and messages of max_message bytes wait for its end")
        self._held_size += len(data)
        self._held.append(data)

    def _may_ping(self, held: bool) -> None:
        if held or self._ping_sent is not None:
            raise NotSupported("emp allows one ping at a time, after the handshake: wait for the pong")

    def _ping(self, now: float) -> None:
        self._ping_sent = now
        self._write(_PING)

    def close(self, now: float, reason: str = "") -> None:
        """Say `bye`, as soon as the answers that are owed are sent or `close_timeout` has passed."""
        if self.state is OPENING or (self.state is OPEN and not self._owes):
            self.close_reason = reason or "close"
            self._say_bye()
        elif self.state is OPEN:
            self.close_reason = reason or "close"
            self.state = CLOSING
            self._deadline = now + self.settings.close_timeout

    def _say_bye(self) -> None:
        self._write(_BYE)
        if self._slow.behind:
            self.state, self._bye_waits = CLOSING, True
        else:
            self._leave("close")

    @property
    def buffered(self) -> int:
        """Bytes of the beginning of a frame."""
        return len(self._buffer)

    def unread(self) -> bytes:
        """The beginning of a frame."""
        return bytes(self._buffer)

    def outstanding(self) -> Sequence[Message]:
        """Requests sent and not answered yet."""
        self._single_out()
        return [request_of(asked).with_(id=identifier) for identifier, asked in self._waiting.items()]

    def _write(self, frame: Frame) -> None:
        self._queue(frames.encode(frame, self.settings.size_mode))

    def _queue(self, data: bytes) -> None:
        if self._slow.behind:
            self._slow.behind.append(data)
        else:
            self._out.append(data)
        self.sent += 1

    @property
    def _owes(self) -> bool:
        return bool(self._owed or self._owed_reads or self._owed_calls)

    @property
    def _room(self) -> int:
        """How many requests can be sent before others are answered."""
        waiting = len(self._waiting) + len(self._relayed)
        return min(self.settings.max_requests - waiting, MAX_ID - self._last_id)

    def _single_out(self) -> None:
        """Know every request by itself: what comes now, or is sent, may be about any of them."""
        if self._owed_calls:
            self._owed.update({str(number): number for number in self._owed_calls})
            self._owed_calls.clear()
        if self._relayed:
            self._waiting.update(dict.fromkeys(map(str, self._relayed), _PASSED_ON))
            self._relayed.clear()

    # Large bodies, by another thread

    offloads = True

    def enable_work(self) -> None:
        """From now on large bodies are packed and unpacked by `work`; `offloads` says whether there is any."""
        self._slow.is_allowed = True
        self.offloads = False

    def _waits_for(self, frame: Frame) -> bool:
        """Whether a frame's body is unpacked elsewhere first; then it is looked at again."""
        if self._slow.unpacked is not None or not is_slow_to_read(frame):
            return False
        self._slow.reading, self.offloads = frame, True
        return True

    def _write_later(self, message: Message, related: str | None) -> None:
        """Pack elsewhere; what is said from now on goes behind. Mistakes that the size has no part in raise now."""
        self._encode(message.with_(body=b""), related)
        self._slow.behind.append(Later(message, lambda: self._encode(message, related)))
        self.sent += 1
        # The short ways write at once, so they are closed until nothing is before them.
        self.offloads, self._plain = True, False

    def work(self) -> Callable[[], object] | None:
        """The next body to pack or unpack."""
        return None if self.state is CLOSED else self._slow.work(self.settings.max_decompressed)

    def worked(self, result: object, now: float) -> Run:
        """A body is done: go on with what waited for it."""
        slow = self._slow
        slow.done()
        if self.state is CLOSED:
            return Run()
        if slow.reading is not None:
            slow.reading, slow.unpacked = None, cast("bytes | ProtocolViolation", result)
            run = self.receive(b"", now)
            if slow.input_ended:
                self.end_of_input(now)
        else:
            # It may have been given up meanwhile.
            run = self._packed(cast("bytes | WireloomError", result)) if slow.behind else Run()
        self._out += slow.ready()
        if self._bye_waits and not slow.behind:
            self._leave("close")
        self.offloads = slow.is_needed
        self._plain = not slow.behind and self.settings.size_mode is SizeMode.INCLUSIVE
        return run

    def _packed(self, result: bytes | WireloomError) -> Run:
        """A message has its bytes; or it is too large even so, and whoever waits for it is told."""
        later = self._slow.behind.popleft()
        assert isinstance(later, Later)
        if isinstance(result, bytes):
            self._out.append(result)
            return Run()
        message = later.message
        failed = Message(Kind.ERROR, message.topic, str(result).encode(), None, message.id, "413", "text/plain")
        if message.kind is Kind.REQUEST:
            del self._waiting[message.id or ""]
            return Run(messages=[failed], added=1)
        if message.correlation_id is not None:
            self._out.append(self._encode(failed.with_(correlation_id=message.correlation_id), message.correlation_id))
        else:
            self.sent -= 1
            self.count("emp.message.unsent")
        return Run()

    def _write_error(self, code: ErrorCode, text: str) -> None:
        self._write(Frame(Type.ERROR, frames.encode_error(frames.Error(code, text))))
