"""The transmission layer of a session: lines in and out, confirmations, resends, fragments, and offloaded work.

`session` builds on this and interprets the documents.

Theory of operation
-------------------
Receiving: a line is a confirmation, a message, or a fragment of one. A new message is assembled, decrypted, decoded,
confirmed and passed on. A message whose id was seen is confirmed again, and not executed again (`delivery.Seen`).

Sending: a message stays in `_unconfirmed` until the peer confirms it, and is sent again after each timeout. After
`resends` attempts the session closes.

Confirmations: a call is confirmed at once. The confirmation of an answer may wait `_SOON` seconds, because nobody waits
for it. It then shares a write with the next line that is sent (`_soon`).

Offloading: decoding or encoding `LARGE` bytes would block the event loop. If the owner allows it (`enable_work`), such
work becomes a `_Job` that another thread runs. Invariant: messages keep their order. While a job decodes, received data
is buffered (`_rest`, `_blocked`). While a job encodes, later documents are queued (`_outbox`). `worked` then goes on
with what was buffered, up to the next large message.

Example: a read holds lines a, B, c, and B is large. `batches` returns a, makes a job for B, and keeps c in `_rest`. The
next read goes to `_blocked`. `worked` takes B, then c, then the buffered read.

Equal timing: with encryption, an unreadable message must not reveal by timing why it failed. Its answer waits for
`failure_delay` (`_late`), and a decoy is decrypted where the line itself has nothing to decrypt.
"""

from __future__ import annotations

import abc
import binascii
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wireloom.model import Message, WireloomError, without_traces
from wireloom.protocols.contract import NOTHING, Batch, Rejected, Role, Session, SessionState, is_control
from wireloom.protocols.wolpertinger import frames, layer1, layer2, messages
from wireloom.protocols.wolpertinger.delivery import Seen, Sent, Unconfirmed
from wireloom.protocols.wolpertinger.frames import UNREADABLE, Confirmation, Data
from wireloom.protocols.wolpertinger.keys import Cipher
from wireloom.protocols.wolpertinger.layer2 import Document, RemoteMethodCall
from wireloom.protocols.wolpertinger.redaction import blanked, starred_lines
from wireloom.protocols.wolpertinger.refusal import Refused, ResultCode
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings

LARGE = 16 * 1024
"""Messages of at least this many bytes are decoded or encoded as offloaded work."""
_SHOWN = 64 * 1024
"""Limit of the refused bytes that records show."""
LINES = 64
"""Limit of lines, or messages, in a batch."""
_SOON = 0.01
"""Seconds that the confirmation of an answer may wait, so that it can share a write with other lines."""
_MANY = 64
"""Limit of confirmations that wait together."""
_CONFIRMATION = b"result:%d;message_id:%d;\n"
_PIECE = re.compile(rb"fragment_index:([0-9]+);fragment_count:([0-9]+);")
_SUCCESS, _CLOSED = ResultCode.SUCCESS, SessionState.CLOSED
BYTES = 64 * 1024 * 1024
"""Above this many unconfirmed bytes nothing more is sent."""


@dataclass(slots=True)
class Reading:
    """A batch while it is being filled."""

    messages: list[Message] = field(default_factory=list)
    refused: list[Rejected] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    """Accepted lines, unchanged."""
    count: int = 0
    """Number of messages on the wire."""

    def batch(self) -> Batch | None:
        """The batch; None if there is nothing in it."""
        if not (self.messages or self.kept or self.refused):
            return None
        extra = len(self.messages) - self.count
        data = self.kept[0] if len(self.kept) == 1 else b"".join(self.kept)
        return Batch(data, self.messages, ignored=max(-extra, 0), added=max(extra, 0), refused=self.refused)


@dataclass(frozen=True, slots=True)
class _Job:
    """Offloaded work: any thread may call `run`; the thread of the session calls `done` with its result."""

    run: Callable[[], object]
    done: Callable[[object, float], None]
    reads: bool = False
    """Whether it decodes: received data is then buffered until it is done."""


@dataclass(frozen=True, slots=True)
class _Later:
    """A document that is made by offloaded work, and what to call if that fails."""

    make: Callable[[], Document]
    failed: Callable[[WireloomError, float], None]


@dataclass(frozen=True, slots=True)
class PackedDocument:
    """A document that is ready to be sent and lacks only its message id."""

    document: Document
    pieces: list[Data]
    cipher: Cipher | None
    """The cipher that encrypted it, if any."""


def pack(document: Document, settings: WolpertingerSettings, cipher: Cipher | None) -> PackedDocument:
    """Do the slow part of sending a document: encode, compress, encrypt and split it."""
    return PackedDocument(document, layer1.pack(layer2.write(document), 0, settings, cipher), cipher)


class Transmission(Session):
    """Layer 1 of one end of a conversation."""

    offloads = True
    remembers = True

    def __init__(self, role: Role, settings: WolpertingerSettings) -> None:
        super().__init__(role)
        self.settings = settings
        self._direction = role.sends.opposite
        self._cipher: Cipher | None = None
        self._tail: list[bytes] = []
        """The beginning of a line."""
        self._tail_size = 0
        self._skipping = False
        self._out: list[bytes] = []
        self._soon: list[bytes] = []
        """Confirmations that go out with the next line, or at `_soon_due`."""
        self._soon_due = 0.0
        self._late: deque[tuple[float, bytes]] = deque()
        """Answers to unreadable messages, and when to send them: all failures take equally long."""
        self._delayed: deque[tuple[float, list[bytes]]] = deque()
        """Messages that `answer_delay` holds back, and all later ones, because messages keep their order."""
        self._seen = Seen(settings.remember)
        self._blanked: dict[int, bytes] = {}
        """Received messages with credentials: by id, the lines that replace them in records."""
        self._wrong: dict[int, None] = {}
        """Received messages that were confirmed, but whose content was refused."""
        self._private: dict[int, tuple[list[bytes], bytes]] = {}
        """Sent messages with credentials: by id, their lines, and the bytes that replace them in records."""
        self._assembly = layer1.Assembly(settings)
        self._unconfirmed = Unconfirmed(settings.delivery_timeout)
        self._reading = Reading()
        """The batch since the last control message."""
        self._batches: list[Batch] = []
        """Complete batches of this read."""
        self._may_offload = False
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._blocked: list[bytes] | None = None
        """Data received while a job decodes a large message; None if there is no such job."""
        self._rest = b""
        """Lines of the same read that follow the large message."""
        self._outbox: deque[Document | _Later] | None = None
        """Documents to send after a job has encoded a large one; None if there is no such job."""

    # What the session implements

    @abc.abstractmethod
    def _take(self, document: Document, message: Message | None, whole: Data, wire: int, now: float) -> None:
        """Act on a received document; `message` is its message, if it was decoded already."""

    @abc.abstractmethod
    def _refuse_document(self, refused: Refused, now: float) -> None:
        """Answer a document that was delivered but is invalid."""

    @abc.abstractmethod
    def _delivered(self, sent: Sent, result: int, now: float) -> None:
        """A call of ours was confirmed."""

    def _is_closed(self) -> bool:
        return self.state is _CLOSED

    # Lines in

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take what the transport read."""
        return list(self.batches(data, now))

    def batches(self, data: bytes, now: float) -> Iterable[Batch]:
        """The same, a few lines at a time."""
        if self.state is _CLOSED or (self._blocked is not None and self._wait_with(data)):
            return NOTHING
        return self._take_data(data, now)

    def _add(self, message: Message) -> None:
        """Add a message to the batch. A control message is the last of its batch; its line was added before."""
        self._reading.messages.append(message)
        if is_control(message):
            self._end_batch()

    def _end_batch(self) -> None:
        batch = self._reading.batch()
        if batch is not None:
            self._batches.append(batch)
            self._reading = Reading()

    def _finish(self) -> Sequence[Batch]:
        """All batches of the read."""
        self._end_batch()
        batches, self._batches = self._batches, []
        return batches

    def _take_data(self, data: bytes, now: float) -> Iterator[Batch]:
        plain = not self._tail and not self._skipping and data.endswith(b"\n")
        yield from self._take_lines(data if plain else self._whole_lines(data), now)
        yield from self._finish()

    def _take_lines(self, lines: bytes, now: float) -> Iterator[Batch]:
        """Take complete lines. A batch ends after `LINES` lines or `LARGE` bytes, so that the owner can yield."""
        at, count, began = 0, 0, 0
        while at < len(lines):
            end = lines.index(b"\n", at)
            self._take_line(lines[at:end], now)
            at = end + 1
            if self.state is _CLOSED:
                return
            if self._blocked is not None:
                self._rest = lines[at:]
                return
            count += 1
            if count >= LINES or at - began >= LARGE:
                count, began = 0, at
                self._end_batch()
                batches, self._batches = self._batches, []
                # Fragments of an incomplete message give no batch, but they took time: let the owner check it.
                yield from batches or (Batch(),)

    def _whole_lines(self, data: bytes) -> bytes:
        """All complete lines; the incomplete line at the end is buffered."""
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
        """A line is too long: drop it up to its end."""
        lost = b"".join([*self._tail, data])
        self._tail, self._tail_size, self._skipping = [], 0, True
        self._reject("wolpertinger.line.too-long", self._too_long(), lost)

    def _too_long(self) -> str:
        return f"a line of more than {self.settings.max_line} bytes; max_message sets the limit"

    def _reject(self, clause: str, detail: str, data: bytes) -> None:
        self._reading.refused.append(Rejected(clause, detail, 0, self._without_credentials(clause, data)))

    def _without_credentials(self, clause: str, data: bytes) -> bytes:
        """Refused lines in the form for records, without credentials."""
        if clause == UNREADABLE:
            return data
        return self._shown(data)

    def _shown(self, data: bytes) -> bytes:
        """Lines without credentials. Beyond `_SHOWN` bytes, everything is replaced by stars."""
        if len(data) <= _SHOWN:
            return starred_lines(data, self._cipher)
        return starred_lines(data[:_SHOWN], self._cipher) + b"*" * (len(data) - _SHOWN)

    def _take_line(self, line: bytes, now: float) -> None:
        raw = line + b"\n"
        try:
            if len(line) > self.settings.max_line:
                raise Refused("wolpertinger.line.too-long", self._too_long())
            frame = frames.parse(line)
            if isinstance(frame, Confirmation):
                self._confirmed(frame, now)
                self._reading.kept.append(raw)
            elif frame.message_id in self._seen:
                self._take_again(frame, raw, now)
            elif self._cipher is not None and frame.encryption is None:
                raise self._plain_text(frame)
            else:
                self._take_piece(frame, raw, now)
        except Refused as refused:
            if refused.clause == UNREADABLE and self._cipher is not None:
                # Nothing can be decrypted here. Decrypt a decoy, so that this takes as long as other failures.
                self._open(frames.decoy(refused.message_id or 0, line), len(raw), raw, now)
            else:
                self._refuse(refused, raw, now)

    def _take_again(self, frame: Data, raw: bytes, now: float) -> None:
        """Confirm a message that was executed before, and do not execute it again."""
        self.count("wolpertinger.message-id.again")
        if frame.fragment_count is None or frame.fragment_index == frame.fragment_count - 1:
            self._confirm(frame.message_id, _SUCCESS)
        whole = self._assemble(frame, raw, now)
        if whole is None:
            return
        if frame.message_id in self._wrong:
            self._reject("wolpertinger.message-id.again", "the message with this id was refused", whole[2])
            return
        self._reading.count += 1
        shown = self._blanked.get(frame.message_id)
        self._reading.kept.append(starred_lines(whole[2], self._cipher) if shown is None else shown)

    def _take_piece(self, frame: Data, raw: bytes, now: float) -> None:
        """Take a message, or a fragment of one."""
        whole = self._assemble(frame, raw, now)
        if whole is not None:
            self._open(*whole, now)

    def _assemble(self, frame: Data, raw: bytes, now: float) -> tuple[Data, int, bytes] | None:
        """The message, its size and its lines, once it is complete: records never hold a part of a message."""
        if frame.fragment_count is None:
            return frame, len(raw), raw
        try:
            return self._assembly.add(frame, now, len(raw), raw)
        finally:
            self._note_lost()

    def _note_lost(self) -> None:
        """Report messages that will never be complete."""
        for _, lines in self._assembly.take_lost():
            self.count("wolpertinger.fragment.dropped")
            self._reject("wolpertinger.fragment.dropped", "pieces of a message that did not become complete", lines)

    def unread(self) -> bytes:
        """Buffered lines, fragments of incomplete messages, and the incomplete line at the end."""
        pieces = [line for kept in self._assembly.open.values() for line in kept.lines]
        return self._shown(b"".join([*pieces, self._rest, *self._tail, *(self._blocked or ())]))

    def _open(self, whole: Data, wire: int, raw: bytes, now: float) -> None:
        """Decode a complete message, as offloaded work if it is large. `raw` holds its lines."""
        if not self._may_offload or len(whole.payload) < LARGE:
            try:
                document = layer1.unpack(whole, self.settings, self._cipher)
            except Refused as refused:
                self._refuse(refused, raw, now)
            else:
                self._accept(document, None, whole, wire, raw, now)
            return
        cipher, settings, direction = self._cipher, self.settings, self._direction

        def read() -> object:
            try:
                document = layer1.unpack(whole, settings, cipher)
                profile = settings.profile
                return document, messages.of_document(document, whole, wire, direction, profile=profile, typed=True)
            except Refused as refused:
                return without_traces(refused)

        def opened(result: object, done: float) -> None:
            if isinstance(result, Refused):
                self._refuse(result, raw, now, done)
            else:
                assert isinstance(result, tuple)
                document, message = result
                self._accept(document, message, whole, wire, raw, now)

        self._blocked = []
        # `now`, the time of arrival, counts: the delay of an error does not depend on when it was found.
        self._jobs.append(_Job(read, opened, reads=True))

    def _accept(
        self, document: Document, message: Message | None, whole: Data, wire: int, raw: bytes, now: float
    ) -> None:
        self._seen.add(whole.message_id, now)
        if isinstance(document, RemoteMethodCall):
            self._confirm(whole.message_id, _SUCCESS)
        else:
            self._confirm_soon(whole.message_id, now)
        self._reading.count += 1
        hidden = blanked(document, profile=self.settings.profile)
        if hidden is not None:
            raw = b"".join(encode(hidden, whole.message_id, self.settings, self._cipher))
            self._blanked[whole.message_id] = raw
            _limit(self._blanked)
        self._reading.kept.append(raw)
        self._take(document, message, whole, wire, now)

    def _plain_text(self, frame: Data) -> Refused:
        """Plain text after the key exchange: send an error in plain text, and close."""
        refused = Refused("wolpertinger.encryption.required", f"message {frame.message_id} is not encrypted")
        self.violation, self.close_reason = refused, "error"
        self._confirm(frame.message_id, ResultCode.SUCCESS)
        xml = layer2.write(layer2.Error("", 202))
        for piece in layer1.pack(xml, self._unconfirmed.draw_id(), self.settings):
            self._queue(frames.encode(piece))
        self.state = SessionState.CLOSED
        return refused

    def _refuse(self, refused: Refused, raw: bytes, now: float, done: float | None = None) -> None:
        """Report an invalid message to the peer, if it has an id.

        `now` is the time of its arrival. `done` is the time when the error was found, if later.
        """
        if refused is self.violation:
            without_traces(refused)
            self.refused = self._without_credentials(refused.clause, raw)
            return
        self._reject(refused.clause, refused.detail, raw)
        if refused.message_id is None:
            return
        if refused.clause == UNREADABLE:
            line = _CONFIRMATION % (refused.result, refused.message_id)
            delay = self.settings.failure_delay
            # A large message may take longer than the delay. Then wait for a multiple of it: times stay equal.
            times = math.ceil(((done or now) - now) / delay) if delay else 0
            self._late.append((now + delay * max(times, 1), line))
            return
        self._confirm(refused.message_id, refused.result)
        if refused.result is ResultCode.SUCCESS:
            self._seen.add(refused.message_id, now)
            self._wrong[refused.message_id] = None
            _limit(self._wrong)
            self._refuse_document(refused, now)

    def _confirm(self, message_id: int, result: ResultCode) -> None:
        self._out.append(_CONFIRMATION % (result, message_id))
        self.sent += 1

    def _confirm_soon(self, message_id: int, now: float) -> None:
        """Confirm an answer together with the next line that is sent: nobody waits for this confirmation."""
        if not self._soon:
            self._soon_due = now + _SOON
        self._soon.append(_CONFIRMATION % (_SUCCESS, message_id))
        self.sent += 1
        if len(self._soon) >= _MANY:
            self._confirm_now()

    def _confirm_now(self) -> None:
        self._out[:0] = self._soon
        self._soon.clear()

    def _confirmed(self, frame: Confirmation, now: float) -> None:
        self._reading.count += 1
        sent = self._unconfirmed.pop(frame.message_id)
        if sent is None:
            self.count("wolpertinger.result.unknown-id")
        elif sent.call_id is not None:
            self._delivered(sent, frame.result, now)

    # Lines out

    def _say(self, document: Document, now: float) -> None:
        """Send a document, after those that are being encoded."""
        if self._outbox is not None:
            self._outbox.append(document)
        else:
            self._say_now(document, now)

    def _say_now(self, document: Document, now: float) -> None:
        message_id = self._unconfirmed.draw_id()
        self._sent(message_id, encode(document, message_id, self.settings, self._cipher), document, now)

    def _say_packed(self, packed: PackedDocument, now: float) -> None:
        message_id = self._unconfirmed.draw_id()
        lines = [frames.encode(piece._replace(message_id=message_id)) for piece in packed.pieces]
        self._sent(message_id, lines, packed.document, now)

    def _say_later(
        self, make: Callable[[], Document], failed: Callable[[WireloomError, float], None], now: float
    ) -> None:
        """Send a large document: offloaded work makes and encodes it."""
        later = _Later(make, failed)
        if self._outbox is not None:
            self._outbox.append(later)
            return
        self._outbox = deque()
        self._write(later)

    def _write(self, later: _Later) -> None:
        settings, cipher = self.settings, self._cipher

        def write() -> object:
            try:
                return pack(later.make(), settings, cipher)
            except WireloomError as error:
                return without_traces(error)

        def written(result: object, now: float) -> None:
            outbox, self._outbox = self._outbox or deque(), None
            if isinstance(result, WireloomError):
                later.failed(result, now)
            else:
                assert isinstance(result, PackedDocument)
                self._say_packed(result, now)
            while outbox:
                following = outbox.popleft()
                if isinstance(following, _Later):
                    self._outbox = outbox
                    self._write(following)
                    return
                self._say(following, now)

        self._jobs.append(_Job(write, written))

    def _sent(self, message_id: int, lines: list[bytes], document: Document, now: float) -> None:
        hidden = blanked(document, profile=self.settings.profile)
        if hidden is not None:
            self._private[message_id] = lines, b"".join(encode(hidden, message_id, self.settings, self._cipher))
            _limit(self._private)
        call_id = document.call_id if isinstance(document, RemoteMethodCall) else None
        due = now
        if self._delayed:
            due = self._delayed[-1][0]
        if not isinstance(document, RemoteMethodCall):
            due = max(due, now + self.settings.answer_delay)
        self._unconfirmed.add(message_id, lines, due, call_id)
        if self._delayed or due > now:
            self._delayed.append((due, lines))
        else:
            self._out += lines
        self.sent += 1
        if len(self._unconfirmed.waiting) > 2 * self.settings.max_unconfirmed or self._unconfirmed.size > 2 * BYTES:
            # A peer that never confirms our answers would make us keep all of them.
            self.count("wolpertinger.delivery.failed")
            self.close_reason = "error"
            self.state = SessionState.CLOSED

    def _queue(self, line: bytes) -> None:
        self._out.append(line)
        self.sent += 1

    def outgoing(self) -> bytes:
        """Lines to write now."""
        out = self._out
        if self._delayed and self._is_closed():
            self._release(math.inf)
        if not out:
            return b""
        if self._soon:
            self._confirm_now()
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def outgoing_frames(self) -> Sequence[bytes]:
        """Like `outgoing`, as separate lines."""
        if self._delayed and self._is_closed():
            self._release(math.inf)
        if self._soon and self._out:
            self._confirm_now()
        out, self._out = self._out, []
        return out

    def _release(self, now: float) -> None:
        """Send the messages whose delay is over."""
        while self._delayed and self._delayed[0][0] <= now:
            self._out += self._delayed.popleft()[1]

    def say_all(self) -> None:
        """Send waiting confirmations now."""
        self._confirm_now()

    def messages_in(self, frame: bytes) -> int:
        """1 for the last fragment of a message, else 0."""
        piece = _PIECE.match(frame)
        return 1 if piece is None or int(piece[1]) == int(piece[2]) - 1 else 0

    def recordable(self, data: bytes) -> bytes:
        """Sent bytes without credentials."""
        for lines, shown in self._private.values():
            # The replacement goes where the last line was: a message counts with its last fragment.
            for line in lines[:-1]:
                data = data.replace(line, b"")
            data = data.replace(lines[-1], shown)
        return data

    # Offloaded work

    def enable_work(self) -> None:
        """From now on `work` returns the decoding and encoding of large messages."""
        self._may_offload = True

    def work(self) -> Callable[[], object] | None:
        """The next job; None if there is none, or one is running."""
        if self._running is not None or not self._jobs or self._is_closed():
            return None
        self._running = self._jobs.popleft()
        return self._running.run

    def worked(self, result: object, now: float) -> Iterable[Batch]:
        """A job is done: take its result, then go on with what was buffered."""
        job, self._running = self._running, None
        if job is None or self._is_closed():
            return NOTHING
        job.done(result, now)
        if not job.reads:
            return self._finish()
        chunks, self._blocked = self._blocked or [], None
        lines, self._rest = self._rest, b""
        return self._read_on(lines, chunks, now)

    def _read_on(self, lines: bytes, chunks: Sequence[bytes], now: float) -> Iterator[Batch]:
        """Take the data that was buffered while a large message was decoded, up to the next large one."""
        yield from self._take_lines(lines, now)
        for chunk in chunks:
            if not self._is_closed() and not self._wait_with(chunk):
                yield from self._take_data(chunk, now)
        yield from self._finish()

    def _wait_with(self, chunk: bytes) -> bool:
        """Whether a job decodes a large message; then buffer this chunk."""
        if self._blocked is not None:
            self._blocked.append(chunk)
        return self._blocked is not None

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete line, of incomplete messages, and of data buffered during a job."""
        return self._tail_size + self._assembly.pending + len(self._rest) + sum(map(len, self._blocked or ()))

    @property
    def _is_busy(self) -> bool:
        return self._running is not None or bool(self._jobs)

    # Time

    def _transmission_deadline(self) -> float | None:
        due = self._unconfirmed.deadline
        if self._soon and (due is None or self._soon_due < due):
            due = self._soon_due
        for waiting in (self._late, self._delayed):
            if waiting and (due is None or waiting[0][0] < due):
                due = waiting[0][0]
        if self._assembly.open:
            given_up = self._assembly.deadline
            if given_up is not None and (due is None or given_up < due):
                due = given_up
        return due

    def _expire_transmission(self, now: float) -> None:
        """Send delayed answers, drop incomplete messages, resend unconfirmed ones."""
        if self._soon and self._soon_due <= now:
            self._confirm_now()
        self._release(now)
        while self._late and self._late[0][0] <= now:
            self._queue(self._late.popleft()[1])
        self._assembly.expire(now)
        self._note_lost()
        for message_id in self._unconfirmed.overdue(now):
            if self._unconfirmed.waiting[message_id].tries >= self.settings.resends:
                # The peer is gone. Callers learn it from the end of the connection.
                self.count("wolpertinger.delivery.failed")
                self.close_reason = "idle"
                self.state = SessionState.CLOSED
                return
            self._out += self._unconfirmed.again(message_id, now).lines
            self.count("wolpertinger.delivery.resent")
            self.sent += 1


def _limit(kept: dict[int, Any]) -> None:
    """Remove the oldest entries beyond `_MANY`: an honest peer needs fewer."""
    while len(kept) > _MANY:
        del kept[next(iter(kept))]


def encode(document: Document, message_id: int, settings: WolpertingerSettings, cipher: Cipher | None) -> list[bytes]:
    """A document as lines."""
    xml = layer2.write(document)
    if cipher is None and (len(xml) < settings.gzip_from or not settings.gzip_from) and len(xml) < settings.split // 2:
        # Fast path for most messages: small, not encrypted, one line.
        return [b"message_id:%d;%b" % (message_id, binascii.b2a_base64(xml))]
    return [frames.encode(piece) for piece in layer1.pack(xml, message_id, settings, cipher)]
