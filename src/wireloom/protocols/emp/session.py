"""One end of an emp conversation: handshake, liveness, requests and responses, the end.

Implements the section "Communication flow" of the emp specification. Both ends are alike: each says `hello` at once
and may then do whatever the other may. The tables in `states.py` say what each message does in each state,
`pending.py` has the rules of requests and responses.

Reads are decoded by `frames.py` and `messages.py`. With `enable_bulk`, large reads of nothing but events and
acknowledged publishes are decoded by the kernel in `bulk.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from wireloom.model import (
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    WireloomError,
    message_of,
)
from wireloom.protocols.contract import LOGIN, NOTHING_AGREED, TRACE, Bulk, Role, Run, Session
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.frames import ErrorCode, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import encode, is_reserved, to_message
from wireloom.protocols.emp.offload import Later, Offload, is_slow_to_read, is_slow_to_write
from wireloom.protocols.emp.pending import Pending
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

if TYPE_CHECKING:
    from wireloom.protocols.emp.bulk import EmpBulk

_HELLO = Frame(Type.HELLO, frames.encode_hello(frames.Hello()))
_BYE, _PING, _PONG = Frame(Type.BYE), Frame(Type.PING), Frame(Type.PONG)
_EXCLUSIVE: Mapping[str, str | bool] = MappingProxyType({"size_mode": str(SizeMode.EXCLUSIVE)})
# A member of an enum is looked up by name each time; these are looked up once.
_EVENT, _REQUEST, _ERROR, _PINGS, _CLOSE, _OTHER = (
    Kind.EVENT, Kind.REQUEST, Kind.ERROR, Kind.PING, Kind.CLOSE, Kind.OTHER,
)  # fmt: skip
_DATA = int(Type.DATA)


class EmpSession(Session):
    """Client and server are alike in emp; the role only names the direction."""

    steady = True

    def __init__(self, role: Role, settings: EmpSettings) -> None:
        super().__init__(role)
        self.settings = settings
        self._inclusive = settings.size_mode is SizeMode.INCLUSIVE
        self._receives = role.sends.opposite
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._held: list[bytes] = []
        """Messages of the application that wait for the handshake to end."""
        self._held_size = 0
        self._pending = Pending(settings.max_requests)
        self._deadline: float | None = None
        self._ping_due = 0.0
        self._ping_sent: float | None = None
        self._pongs_unsent = 0
        self._slow = Offload()
        self._bye_waits = False
        """`bye` is said, but stands behind a large message that is still being packed."""
        self._bulk: type[EmpBulk] | None = None

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up: say `hello`, and wait for the peer's."""
        self._write(_HELLO)
        self._deadline = now + self.settings.handshake_timeout

    def receive(self, data: bytes, now: float) -> Run:
        """Take what the transport read."""
        kept = self._buffer
        if self.state is CLOSED or (kept and kept.takes(data)):
            return Run()
        if self._slow.reading is not None:
            kept += data
            return Run()
        if self._is_for_bulk(len(kept) + len(data)):
            run = self._receive_bulk(b"".join((kept, data)) if kept else data)
            if run is not None:
                return run
        if kept:
            kept += data
        return self._receive_frames(kept or data, now)

    def _receive_frames(self, buffer: bytes | bytearray, now: float) -> Run:
        """Take the complete frames of a buffer, which is what was kept or a new read; keep the rest."""
        kept, settings = self._buffer, self.settings
        max_message, size_mode = settings.max_message, settings.size_mode
        position, size = 0, len(buffer)
        messages: list[Message] = []
        logins: list[tuple[int, int, Message]] = []
        """Where messages with credentials are."""
        kept.needed = 0
        try:
            while position < size:
                if self.state is CLOSED:
                    raise ProtocolViolation("emp.flow.after-end", f"{size - position} bytes more")
                found = frames.decode(buffer, position, max_message, size_mode)
                if found is None:
                    kept.needed = frames.needed(buffer, position, size_mode)
                    break
                frame, end = found
                if self._slow.is_allowed and self._waits_for(frame):
                    break
                message = self._accept(frame, now)
                messages.append(message)
                if message.topic == LOGIN:
                    logins.append((position, end, message))
                position = end
        except ProtocolViolation as violation:
            self._refuse(violation, bytes(buffer[position:]))
            return Run(self._blanked(bytes(buffer[:position]), logins), messages)
        accepted = bytes(buffer[:position])
        if kept:
            del kept[:position]
        elif position < size:
            kept += buffer[position:]
        return Run(self._blanked(accepted, logins) if logins else accepted, messages)

    def _blanked(self, data: bytes, logins: list[tuple[int, int, Message]]) -> bytes:
        """The same messages with stars for the bodies of some; what was compressed is not any more."""
        for start, end, message in reversed(logins):
            attributes = {name: value for name, value in message.attributes.items() if name != "compression"}
            starred = message.with_(body=b"*" * len(message.body), attributes=attributes)
            data = data[:start] + encode(starred, self.settings) + data[end:]
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
        if type_ >= _DATA:
            if message.id is not None:
                self._pending.owe(message.id)
            elif message.correlation_id is not None:
                self._pending.settle(message.correlation_id)
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
        return NOTHING_AGREED if self._inclusive else _EXCLUSIVE

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
        kind, state, pending = message.kind, self.state, self._pending
        if state is CLOSED:
            raise PeerClosed("the emp connection is closed")
        if kind is _CLOSE:
            self.close(now)
            return message
        held = state is OPENING and kind not in MAY_SEND[OPENING]
        answer = message.correlation_id if kind in ANSWERS else None
        if kind not in MAY_SEND[OPEN]:
            raise NotSupported(f"emp cannot send a message of kind {kind}")
        if state is CLOSING and (kind not in MAY_SEND[CLOSING] or (kind is _OTHER and answer is None)):
            raise PeerClosed("the emp connection is closing; only answers that are owed can be sent")
        if kind is _PINGS:
            if held or self._ping_sent is not None:
                raise NotSupported("emp allows one ping at a time, after the handshake: wait for the pong")
            self._ping(now)
            return message
        if answer is not None and answer not in pending.owed:
            raise NotSupported(f"no request {answer} waits for a response")
        if kind is _ERROR and answer is None and is_reserved(message.status):
            message = message.with_(status=str(int(ErrorCode.UNSPECIFIED)))
        # Only requests have an id.
        identifier = pending.next_id() if kind is _REQUEST else None
        if message.id != identifier:
            message = message_of((*message[:3], identifier, *message[4:]))
        later = self._slow.is_allowed and not held and is_slow_to_write(message, self.settings)
        if later:
            self._write_later(message)
        else:
            data = encode(message, self.settings)
            if held:
                self._hold(data)
            else:
                self._queue(data)
        if kind is _REQUEST:
            pending.asked(message.id or "")
        elif answer is not None:
            del pending.owed[answer]
        if kind is _ERROR and answer is None:
            self._leave("error")
        elif self.state is CLOSING and not pending.owes:
            self._say_bye()
        return message

    def packing(self, event: Message) -> Callable[[], bytes] | None:
        """Large events that are to be compressed are written elsewhere."""
        if self.state is not OPEN or not self._slow.is_allowed or not is_slow_to_write(event, self.settings):
            return None
        encode(event.with_(body=b""), self.settings)
        return lambda: encode(event, self.settings)

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event past what is being packed."""
        if self.state is not OPEN or (packed is None and not self._slow.behind):
            self.send(event, now)
        else:
            self._out.append(packed if isinstance(packed, bytes) else encode(event, self.settings))
            self.sent += 1

    @property
    def event_style(self) -> object:
        """Events are written alike under the same settings, unless something large is still being packed."""
        # Sessions of one listener have the same object; its number is a quicker key than its values.
        return id(self.settings) if self.state is OPEN and not self._slow.behind else None

    def write_events(self, events: Sequence[Message], now: float) -> bytes | None:
        """Events as `data`; None if one of them is to be compressed, or is part of a trace."""
        settings, above = self.settings, self.settings.compress_above
        written: list[bytes] = []
        for event in events:
            if (above is not None and len(event.body) > above) or (event.attributes and TRACE[0] in event.attributes):
                return None
            plain = Message(_EVENT, event.topic, event.body, content_type=event.content_type)
            written.append(encode(plain, settings))
        return b"".join(written)

    def _hold(self, data: bytes) -> None:
        if self._held_size + len(data) > self.settings.max_message:
            raise LimitExceeded("the handshake is not over and messages of max_message bytes wait for its end")
        self._held_size += len(data)
        self._held.append(data)

    def _ping(self, now: float) -> None:
        self._ping_sent = now
        self._write(_PING)

    def close(self, now: float, reason: str = "") -> None:
        """Say `bye`, as soon as the answers that are owed are sent or `close_timeout` has passed."""
        if self.state is OPENING or (self.state is OPEN and not self._pending.owes):
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

    def _write(self, frame: Frame) -> None:
        self._queue(frames.encode(frame, self.settings.size_mode))

    def _write_error(self, code: ErrorCode, text: str) -> None:
        self._write(Frame(Type.ERROR, frames.encode_error(frames.Error(code, text))))

    def _queue(self, data: bytes) -> None:
        if self._slow.behind:
            self._slow.behind.append(data)
        else:
            self._out.append(data)
        self.sent += 1

    # Large reads, by a kernel

    def enable_bulk(self) -> bool:
        """Let `receive` use the kernel for large reads."""
        from wireloom.protocols.emp import bulk

        bulk.warm()
        self._bulk = bulk.EmpBulk
        return True

    def _is_for_bulk(self, size: int) -> bool:
        """Whether the kernel is to be tried with a read of so many bytes."""
        return (
            self._bulk is not None and self._inclusive and self.state is OPEN and self._pending.owed_reads.are_for(size)
        )

    def _receive_bulk(self, buffer: bytes) -> Run | None:
        """A read of nothing but events and publishes; None where it has to be read frame by frame."""
        assert self._bulk is not None
        pending = self._pending
        found = self._bulk.of(self, buffer, pending.owed_reads.fewest)
        if found is None or not pending.admit(found):
            pending.single_out()
            return None
        self._buffer.keep(buffer[found.consumed :])
        return Run(memoryview(buffer)[: found.consumed], bulk=found)

    def owe(self, request_id: int) -> None:
        """A request leaves its read: it is answered by itself."""
        self._pending.owe_alone(request_id)

    def answered(self, read: EmpBulk, rows: Sequence[int]) -> None:
        """A read was answered in bulk."""
        self._pending.owed_reads.forget(read)
        if read.singled:
            for row in rows:
                self._pending.owed.pop(str(read.key(row)), None)

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames made by `EmpBulk`."""
        if self.state is CLOSED:
            raise PeerClosed("the emp connection is closed")
        self._queue(encoded)
        self.sent += count - 1
        if self.state is CLOSING and not self._pending.owes:
            self._say_bye()

    def can_forward(self, bulk: Bulk, topic: str) -> bool:
        """Whether our peer takes messages of this size; they mean the same on every emp connection."""
        return (
            self._bulk is not None
            and isinstance(bulk, self._bulk)
            and self._inclusive
            and self.state is OPEN
            and not self._slow.behind
            and bulk.max_message <= self.settings.max_message
        )

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

    def _write_later(self, message: Message) -> None:
        """Pack elsewhere; what is said from now on goes behind. Mistakes that the size has no part in raise now."""
        encode(message.with_(body=b""), self.settings)
        self._slow.behind.append(Later(message, lambda: encode(message, self.settings)))
        self.sent += 1
        self.offloads = True

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
            run = self._receive_frames(self._buffer, now)
            if slow.input_ended:
                self.end_of_input(now)
        else:
            # It may have been given up meanwhile.
            run = self._packed(cast("bytes | WireloomError", result)) if slow.behind else Run()
        self._out += slow.ready()
        if self._bye_waits and not slow.behind:
            self._leave("close")
        self.offloads = slow.is_needed
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
            self._pending.settle(message.id or "")
            return Run(messages=[failed], added=1)
        if message.correlation_id is not None:
            self._out.append(encode(failed.with_(correlation_id=message.correlation_id), self.settings))
        else:
            self.sent -= 1
            self.count("emp.message.unsent")
        return Run()
