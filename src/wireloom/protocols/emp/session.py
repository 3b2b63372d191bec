"""One end of an emp conversation: handshake, liveness, requests and responses, the end.

Implements the section "Communication flow" of the emp specification. Both ends have the same rights: each sends `hello`
at once. The tables in `states.py` say what each message does in each state,
`pending.py` has the rules of requests and responses.

Reads are decoded by `frames.py` and `messages.py`. Of long reads, events and acknowledged
publishes are decoded by the kernel of `publish_columns.py`, once `enable_columns` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from wireloom.model import (
    InvalidState,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    PeerClosed,
    ProtocolViolation,
    WireloomError,
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
    Publishes,
    Role,
    is_control,
)
from wireloom.protocols.emp import frames, remembered_heads
from wireloom.protocols.emp.frames import ErrorCode, Frame, SizeMode, Type
from wireloom.protocols.emp.messages import (
    DONE,
    HUB_EXTENSIONS,
    encode,
    encode_calls,
    is_reserved,
    plain_frame,
    to_message,
    told,
)
from wireloom.protocols.emp.offload import Offload, is_slow_to_read, is_slow_to_write
from wireloom.protocols.emp.pending import Pending
from wireloom.protocols.emp.settings import EmpSettings, Profile, settled
from wireloom.protocols.emp.sizes import told_mode
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
from wireloom.protocols.offload import Later
from wireloom.protocols.partial_frame import Kept

if TYPE_CHECKING:
    from wireloom.protocols.pending_acks import Owed
    from wireloom.protocols.publish_columns import PublishColumns

OVERLAPS = 3
"""How often a peer may send a ping before it has our pong to the last one."""

_HELLO_FRAME = Frame(Type.HELLO, frames.encode_hello(frames.Hello()))
_BYE_FRAME, _PING_FRAME, _PONG_FRAME = Frame(Type.BYE), Frame(Type.PING), Frame(Type.PONG)
_EXCLUSIVE: Mapping[str, str | bool] = MappingProxyType({"size_mode": str(SizeMode.EXCLUSIVE)})
_EVENT, _REQUEST, _RESPONSE, _ERROR, _PING, _CLOSE, _OTHER = (
    Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.PING, Kind.CLOSE, Kind.OTHER,
)  # fmt: skip
_DATA = int(Type.DATA)
_AUTO, _INCLUSIVE, _EXCLUSIVE_MODE = SizeMode.AUTO, SizeMode.INCLUSIVE, SizeMode.EXCLUSIVE

SILENCE = 1.0
"""Seconds that a listener waits for a `hello`, which shows the size mode, before it sends its own."""


class EmpSession(CallSession):
    """Client or server of one emp connection. Both behave the same; the role only gives the direction."""

    steady = True

    def __init__(self, role: Role, settings: EmpSettings, first_mode: SizeMode = _INCLUSIVE) -> None:
        """`first_mode` is the size mode in which a client begins if the settings say `auto`."""
        super().__init__(role)
        self._asked = settings
        """The settings as given. `settings` are those in force: each `auto` is replaced once its value is known."""
        mode, profile = settings.size_mode, settings.profile
        if mode is _AUTO and role is Role.CLIENT:
            mode = first_mode
        if profile is Profile.AUTO:
            # Peers with exclusive sizes are known to crash on unknown extensions.
            profile = Profile.ON if role is Role.CLIENT and mode is not _EXCLUSIVE_MODE else Profile.OFF
        self.settings = settled(settings, mode, profile)
        self.sends_topics, self.hears_topics = profile is Profile.ON, False
        self._hello_due: float | None = None
        """When to send `hello` without waiting longer, in the default size mode."""
        self._wants_columns = False
        self.other_mode: SizeMode | None = None
        """The size mode of the server, if it differs from the one that we used."""
        self._receives = role.sends.opposite
        self._buffer = Kept()
        self._out: list[bytes] = []
        self._held: list[Message] = []
        """Messages of the application that wait for the handshake to end."""
        self._held_size = 0
        self._pending = Pending(settings.max_requests)
        self._deadline: float | None = None
        self._ping_due = 0.0
        self._ping_sent: float | None = None
        self._pongs_unsent = 0
        self._slow = Offload()
        self._slow.max_decompressed = settings.max_decompressed
        self._bye_waits = False
        """Whether `bye` is queued after a large message that is still being packed."""

    # The transport's side

    def connected(self, now: float) -> None:
        """The transport is up: send `hello`. If the size mode is unknown, wait for the peer's `hello` first."""
        if self.settings.size_mode is _AUTO:
            self._hello_due = now + SILENCE
        else:
            self._write(_HELLO_FRAME)
        self._deadline = now + self.settings.handshake_timeout

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take what the transport read."""
        return list(self.batches(data, now))

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        """Like `receive`, one batch at a time."""
        if self.state is CLOSED:
            return NOTHING
        kept = self._buffer
        if self._slow.reading is not None:
            kept += data
            return NOTHING
        if kept:
            if kept.takes(data):
                return NOTHING
            data = kept.joined(data)
        found = self._decode(data, partial(self._read_frames, now))
        return found if self.hears_topics or self.columns is None else self._looking_for_hub(found)

    def _looking_for_hub(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Note that the peer knows the hub's extension: every message of a batch in columns has it."""
        for batch in batches:
            if isinstance(batch, Publishes | Calls):
                self._see_hub()
            yield batch

    def _see_hub(self) -> None:
        """The peer knows the hub's extension: from now on it is sent topics, unless the settings say no."""
        self.hears_topics = True
        if self._asked.profile is Profile.AUTO and self.settings.profile is not Profile.ON:
            self.settings = settled(self._asked, self.settings.size_mode, Profile.ON)
            self.sends_topics = True

    def _set_mode(self, mode: SizeMode) -> None:
        """The size mode is known: send `hello` in it."""
        self.settings = settled(self._asked, mode, self.settings.profile)
        self._hello_due = None
        self._write(_HELLO_FRAME)
        if self._wants_columns:
            self.enable_columns()

    def _read_frames(self, now: float, data: bytes, start: int, most: int) -> tuple[Batch | None, int]:
        """Decode up to `most` frames, or to the first control message; returns them and where the next frame begins.

        That is the end of the data if nothing more can be decoded now: a frame that is incomplete, or waits for slow
        work, is buffered.
        """
        size = len(data)
        if self.state is OPENING and not self._read_mode(data, start):
            return None, size
        max_message, size_mode = self.settings.max_message, self.settings.size_mode
        messages: list[Message] = []
        position, login = start, None
        is_over = False
        try:
            for _ in range(most):
                if position == size:
                    break
                if self.state is CLOSED:
                    raise ProtocolViolation("emp.flow.after-end", f"{size - position} bytes more")
                if size_mode is _INCLUSIVE and self.hears_topics and self.state is OPEN:
                    known = remembered_heads.read(data, position, max_message, self._receives)
                    if known is not None:
                        message, end = known
                        self._take_call(message)
                        messages.append(message)
                        position = end
                        continue
                found = frames.decode(data, position, max_message, size_mode)
                if found is None:
                    self.keep(data[position:])
                    is_over = True
                    break
                frame, end = found
                if self._slow.is_allowed and self._waits_for(frame):
                    self._buffer.keep(data[position:])
                    is_over = True
                    break
                message = self._accept(frame, now)
                messages.append(message)
                if size_mode is _INCLUSIVE:
                    remembered_heads.remember(data, position, frame, message)
                if is_control(message):
                    login = (position, message) if message.topic == LOGIN else None
                    position = end
                    break
                position = end
        except ProtocolViolation as violation:
            self._refuse(violation, data[position:])
            is_over = True
        accepted = data if start == 0 and position == size else data[start:position]
        if login is not None:
            accepted = accepted[: login[0] - start] + self._blanked(login[1])
        batch = Batch(accepted, messages) if accepted else None
        return batch, size if is_over else position

    def _read_mode(self, data: bytes, start: int) -> bool:
        """Detect the peer's size mode if the settings say `auto`; False if there is nothing more to do."""
        if self._asked.size_mode is not _AUTO:
            return True
        told = told_mode(data, start, self.settings.max_message)
        if told is None:
            self.keep(data[start:])
            return False
        if self.settings.size_mode is _AUTO:
            self._set_mode(told)
        elif told is not self.settings.size_mode and self.role is Role.CLIENT:
            self.other_mode, self.is_misled = told, True
            self.violation = frames.violation("emp.envelope.size", f"the server's sizes are {told}, ours are not")
            self._leave("error")
            return False
        return True

    def _blanked(self, login: Message) -> bytes:
        """The frame of a login with stars for its body, not compressed."""
        attributes = {name: value for name, value in login.attributes.items() if name != "compression"}
        return encode(login.with_(body=b"*" * len(login.body), attributes=attributes), self.settings)

    def batch_key(self, now: float) -> Hashable | None:
        """All emp connections that use columns can be decoded together: their sizes are inclusive."""
        if self._buffer or self.state is not OPEN or not self.hears_topics or self._slow.reading is not None:
            return None
        return "emp"

    def keep(self, rest: bytes) -> None:
        """Buffer an incomplete frame."""
        self._buffer.keep(rest, frames.needed(rest, 0, self.settings.size_mode))

    def _accept(self, frame: Frame, now: float) -> Message:
        """Check a frame against the state, act on it, and return its message."""
        type_ = frame.type
        then = CONVERSATION[self.state].get(type_ if type_ < APPLICATION else APPLICATION)
        if then is None:
            raise frames.violation(OUT_OF_TURN[self.state], f"message of type {type_} while {self.state}")
        unpacked, self._slow.unpacked = self._slow.unpacked, None
        if isinstance(unpacked, ProtocolViolation):
            raise unpacked
        message = to_message(frame, self.settings, self._receives, unpacked)
        if frame.blocks and not self.hears_topics and any(each.extension in HUB_EXTENSIONS for each in frame.blocks):
            self._see_hub()
        if type_ >= _DATA:
            self._take_call(message)
        elif type_ == Type.PING:
            self._answer_ping()
        elif type_ == Type.PONG:
            self._pong(now)
        elif type_ == Type.HELLO:
            self._greet(message, now)
        elif type_ == Type.BYE:
            self._leave("close")
        else:
            self.close_detail = told(message)
            self._leave("error")
        self.state = then
        return message

    def _take_call(self, message: Message) -> None:
        """Check the id of a request or a response."""
        if message.id is not None:
            self._pending.owe(message.id)
        elif message.correlation_id is not None:
            self._pending.settle(message.correlation_id)

    def _greet(self, message: Message, now: float) -> None:
        """The peer's `hello` ends the handshake."""
        version = message.attributes["version"]
        if version != str(frames.VERSION):
            raise frames.violation("emp.hello.version", f"version {version}; version {frames.VERSION} is supported")
        self._deadline = None
        self._ping_due = now + self.settings.ping_interval
        for held in self._held:
            self._queue(encode(held, self.settings))
        self._held.clear()

    def _answer_ping(self) -> None:
        """Answer a ping. A peer may have one ping under way; after `OVERLAPS` violations it is closed."""
        if self._pongs_unsent:
            self.count("emp.ping.overlap")
            if self.counters["emp.ping.overlap"] > OVERLAPS:
                raise frames.violation("emp.ping.too-many", f"{OVERLAPS + 1} pings before the last was answered")
        self._pongs_unsent += 1
        self._write(_PONG_FRAME)

    def _pong(self, now: float) -> None:
        """The first pong after a ping ends the procedure; others are ignored."""
        if self._ping_sent is None:
            self.count("emp.pong.unasked")
            return
        self._ping_due = max(self._ping_sent + self.settings.ping_interval, now)
        self._ping_sent = None

    def _refuse(self, violation: ProtocolViolation, rest: bytes) -> None:
        """Tell the peer which rule it broke, and close."""
        self.violation = without_traces(frames.readdress(violation, self.settings.size_mode))
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
        """The peer closed the connection without a message: the last of the three ways to terminate."""
        if self._slow.reading is not None:
            self._slow.input_ended = True
            return
        if self._buffer and self.state is not CLOSED:
            self.count("stream.cut")
        self._leave("close")

    def agreed(self) -> Mapping[str, str | bool]:
        """The size mode if it is not the default: readers of a journal do not know the settings."""
        return _EXCLUSIVE if self.settings.size_mode is _EXCLUSIVE_MODE else NOTHING_AGREED

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
            if self._hello_due is not None and self._deadline is not None:
                return min(self._hello_due, self._deadline)
            return self._deadline
        if self._ping_sent is not None:
            return self._ping_sent + self.settings.pong_timeout
        return self._ping_due if self.settings.ping_interval else None

    def expire(self, now: float) -> Sequence[Batch]:
        """Ping, or give up on a peer that did not answer in time."""
        due = self.deadline()
        if due is None or now < due:
            return NOTHING
        if self.state is OPENING and self._hello_due is not None and now >= self._hello_due:
            self._set_mode(_INCLUSIVE)
        elif self.state is OPENING:
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
        return NOTHING

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
        if kind is _PING:
            if held or self._ping_sent is not None:
                raise InvalidState("emp allows one ping at a time, after the handshake: wait for the pong")
            self._ping(now)
            return message
        if answer is not None and answer not in pending.owed:
            raise InvalidState(f"no request {answer} waits for a response")
        if kind is _ERROR and answer is not None and self.settings.profile is Profile.OFF:
            # The answer cannot be sent. Release the id: it must not stay pending for ever.
            del pending.owed[answer]
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
                self._hold(message, len(data))
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
        """Large events that are to be compressed are encoded on another thread."""
        if self.state is not OPEN or not self._slow.is_allowed or not is_slow_to_write(event, self.settings):
            return None
        encode(event.with_(body=b""), self.settings)
        return lambda: encode(event, self.settings)

    def send_event(self, event: Message, packed: object, now: float) -> None:
        """Queue an event ahead of messages that are being packed."""
        if self.state is not OPEN or (packed is None and not self._slow.behind):
            self.send(event, now)
        else:
            self._out.append(packed if isinstance(packed, bytes) else encode(event, self.settings))
            self.sent += 1

    @property
    def event_style(self) -> object:
        """Events are identical under the same settings; None while something large is being packed."""
        # Sessions with equal settings share the object, and its `id` is a faster key than its values.
        return id(self.settings) if self.state is OPEN and not self._slow.behind else None

    def event_head(self, topic: str, content_type: str | None) -> EventHead | None:
        """A `data` head, usually with the hub's block. By size mode, its size includes or excludes the size field."""
        plain = plain_frame(_EVENT, topic, content_type, None, self.settings)
        return EventHead(bytes(4) + plain[4:], 0, int.from_bytes(plain[:4]), self._largest(plain))

    def _largest(self, plain: bytes) -> int:
        """The largest body that may follow the beginning of a frame, and is not compressed."""
        settings = self.settings
        largest = settings.max_message - len(plain)
        return largest if settings.compress_above is None else min(largest, settings.compress_above)

    def _hold(self, message: Message, size: int) -> None:
        if self._held_size + size > self.settings.max_message:
            raise LimitExceeded("the handshake is not over and messages of max_message bytes wait for its end")
        self._held_size += size
        self._held.append(message)

    def _ping(self, now: float) -> None:
        self._ping_sent = now
        self._write(_PING_FRAME)

    def close(self, now: float, reason: str = "") -> None:
        """Send `bye` as soon as all pending answers were sent, or `close_timeout` has passed."""
        if self.state is OPENING or (self.state is OPEN and not self._pending.owes):
            self.close_reason = reason or "close"
            self._say_bye()
        elif self.state is OPEN:
            self.close_reason = reason or "close"
            self.state = CLOSING
            self._deadline = now + self.settings.close_timeout

    def _say_bye(self) -> None:
        self._write(_BYE_FRAME)
        if self._slow.behind:
            self.state, self._bye_waits = CLOSING, True
        else:
            self._leave("close")

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

    # Batches in columns

    def enable_columns(self) -> bool:
        """Let `receive` use the kernel for long reads, as soon as sizes are known to be inclusive."""
        if self.settings.size_mode is _EXCLUSIVE_MODE:
            return False
        from wireloom.protocols.emp.publish_columns import EmpPublishes, warm

        warm()  # also where the mode is not known yet: a hub calls this before it has connections
        self._wants_columns = True
        if self.settings.size_mode is _INCLUSIVE:
            self.columns = EmpPublishes
        return True

    def owe(self, owed: Owed) -> bool:
        """Refuse a batch if one of its ids is pending, or if the limit of requests would be exceeded."""
        return self._pending.admit(owed)

    def owe_one(self, request: Message) -> None:
        """Register one request whose answer is pending."""
        self._pending.owe(request.id or "")

    def settled(self, batch: PublishColumns, read: int) -> None:
        """The acknowledgements of a read are no longer pending."""
        self._pending.owed_batches.settle(batch, read)

    def take_calls(self, calls: Calls) -> bool:
        """Take requests or answers."""
        return (self._pending.settle_all if calls.is_answers else self._pending.owe_all)(calls.ids)

    def ask_all(
        self, topic: str, content_type: str | None, bodies: Sequence[bytes], now: float
    ) -> Sequence[str] | None:
        """Queue requests with the next ids."""
        plain = self._plain_call(_REQUEST, topic, content_type, bodies)
        ids = None if plain is None else self._pending.ask_all(len(bodies))
        if plain is not None and ids is not None:
            self._queue_calls(plain, ids, bodies)
        return ids

    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes], now: float
    ) -> bool:
        """Queue responses to pending requests."""
        plain = self._plain_call(_RESPONSE, topic, content_type, bodies)
        if plain is None or not self._pending.answer_all(ids):
            return False
        self._queue_calls(plain, ids, bodies)
        return True

    def _plain_call(
        self, kind: Kind, topic: str | None, content_type: str | None, bodies: Sequence[bytes]
    ) -> bytes | None:
        """The common part of all these frames; None if they cannot be encoded now, or need compression."""
        if self.state is not OPEN or self._slow.behind:
            return None
        try:
            plain = plain_frame(kind, topic, content_type, None if kind is _REQUEST else DONE, self.settings)
        except (NotSupported, LimitExceeded):
            return None
        return plain if max(map(len, bodies)) <= self._largest(plain) else None

    def _queue_calls(self, plain: bytes, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        self._queue(encode_calls(plain, ids, bodies))
        self.sent += len(ids) - 1

    def send_frames(self, encoded: bytes, count: int) -> None:
        """Queue frames that are encoded already."""
        if self.state is CLOSED:
            raise PeerClosed("the emp connection is closed")
        self._queue(encoded)
        self.sent += count - 1
        if self.state is CLOSING and not self._pending.owes:
            self._say_bye()

    # Large bodies, by another thread

    offloads = True

    def enable_work(self) -> None:
        """From now on large bodies are packed and unpacked by `work`; `offloads` says whether there is any."""
        self._slow.is_allowed = True
        self.offloads = False

    def _waits_for(self, frame: Frame) -> bool:
        """Whether another thread must unpack the body of a frame first; the frame is then decoded again."""
        if self._slow.unpacked is not None or not is_slow_to_read(frame):
            return False
        self._slow.reading, self.offloads = frame, True
        return True

    def _write_later(self, message: Message) -> None:
        """Pack on another thread; later messages are queued. Errors that do not depend on the size are raised now."""
        encode(message.with_(body=b""), self.settings)
        self._slow.behind.append(Later(message, lambda: encode(message, self.settings)))
        self.sent += 1
        self.offloads = True

    def work(self) -> Callable[[], object] | None:
        """The next body to pack or unpack."""
        return None if self.state is CLOSED else self._slow.work()

    def worked(self, result: object, now: float) -> Iterable[Batch]:
        """A body is done: go on with what waited for it."""
        slow = self._slow
        slow.done()
        if self.state is CLOSED:
            return NOTHING
        if slow.reading is not None:
            slow.reading, slow.unpacked = None, cast("bytes | ProtocolViolation", result)
            return self._read_on(now)
        # It may have been given up meanwhile.
        batches = self._packed(cast("bytes | WireloomError", result)) if slow.behind else NOTHING
        self._write_ready()
        return batches

    def _read_on(self, now: float) -> Iterator[Batch]:
        """Take the frame whose body was unpacked, and the data after it."""
        yield from self.batches(b"", now)
        if self._slow.input_ended and self._slow.reading is None:
            self.end_of_input(now)
        self._write_ready()

    def _write_ready(self) -> None:
        """Write the messages that no longer wait for slow work."""
        slow = self._slow
        self._out += slow.ready()
        if self._bye_waits and not slow.behind:
            self._leave("close")
        self.offloads = slow.is_needed

    def _packed(self, result: bytes | WireloomError) -> Sequence[Batch]:
        """A message was packed; if it is still too large, report that to whoever waits for it."""
        later = self._slow.behind.popleft()
        assert isinstance(later, Later)
        if isinstance(result, bytes):
            self._out.append(result)
            return NOTHING
        message = later.message
        failed = Message(Kind.ERROR, message.topic, str(result).encode(), None, message.id, "413", "text/plain")
        if message.kind is Kind.REQUEST:
            self._pending.settle(message.id or "")
            return (Batch(messages=[failed], added=1),)
        if message.correlation_id is not None:
            self._out.append(encode(failed.with_(correlation_id=message.correlation_id), self.settings))
        else:
            self.sent -= 1
            self.count("emp.message.unsent")
        return NOTHING
