"""One end of a ticker conversation: ids, answers owed, pings and the goodbye. Bytes in, messages out."""

from __future__ import annotations

from collections.abc import Sequence

from wireloom.model import InvalidState, Kind, Message, NotSupported, PeerClosed, ProtocolViolation
from wireloom.protocols.contract import LOGIN, NOTHING, Batch, Role, Session, SessionState, is_control
from wireloom_ticker import frames
from wireloom_ticker.frames import Frame
from wireloom_ticker.protocol import TickerSettings, to_frame, to_message

ANSWERS = (Kind.RESPONSE, Kind.ERROR)


class TickerSession(Session):
    """Client and server are alike; each numbers its own requests."""

    def __init__(self, role: Role, settings: TickerSettings, *, unique: int = 0) -> None:
        super().__init__(role)
        self.settings = settings
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._next_id = unique & frames.MAX_ID
        self._waiting: set[int] = set()
        """Ids of requests we sent, until they are answered."""
        self._owed: set[int] = set()
        """Ids of requests that the peer wants answered."""
        self._peer_left = False
        self._heard = 0.0
        self._ping_sent: float | None = None

    def connected(self, now: float) -> None:
        """The transport is up; there is no handshake."""
        self.state = SessionState.OPEN
        self._heard = now

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        """Take what the transport read: all complete frames of it."""
        if self.state is SessionState.CLOSED:
            return NOTHING
        self._heard = now
        self._buffer += data
        batches: list[Batch] = []
        messages: list[Message] = []
        start = position = ignored = 0
        try:
            while (found := frames.decode(self._buffer, position, self.settings.max_body)) is not None:
                frame, end = found
                message = self._accept(frame)
                position = end
                if message is None:
                    ignored += 1
                    continue
                messages.append(message)
                if is_control(message):
                    # What it changes is in force for the next batch, so it is the last of this one.
                    if message.topic == LOGIN:
                        # The journal keeps what `Batch.data` holds: no tokens.
                        self._buffer[position - 1 - len(frame.body) : position - 1] = b"*" * len(frame.body)
                    batches.append(Batch(bytes(self._buffer[start:position]), messages, ignored=ignored))
                    start, messages, ignored = position, [], 0
        except ProtocolViolation as violation:
            self.violation, self.refused, self.close_reason = violation, bytes(self._buffer[position:]), "error"
            self.state = SessionState.CLOSED
        if position > start:
            batches.append(Batch(bytes(self._buffer[start:position]), messages, ignored=ignored))
        del self._buffer[: len(self._buffer) if self.violation else position]
        self._close_when_settled()
        return batches

    def _accept(self, frame: Frame) -> Message | None:
        """Check a frame against the conversation; None if nobody is to act on it."""
        if self._peer_left:
            raise ProtocolViolation("ticker.bye.last", f"{frame.verb} after BYE")
        message = to_message(frame, self.inbound)
        if frame.verb == "ASK" and frame.id is not None:
            if frame.id in self._owed:
                raise ProtocolViolation("ticker.id.reused", f"id {frame.id} is still unanswered")
            self._owed.add(frame.id)
        elif message.correlation_id is not None:
            if frame.id not in self._waiting:
                self.count("ticker.answer.unknown-id")
                return None
            self._waiting.discard(frame.id)
        elif frame.verb == "PING":
            self._queue(Frame("PONG"))
        elif frame.verb == "PONG":
            self._ping_sent = None
        elif frame.verb == "BYE":
            self._peer_left = True
            self._leave("close")
        return message

    def send(self, message: Message, now: float) -> Message:
        """Queue a message."""
        answer = message.kind in ANSWERS
        if self.state is SessionState.CLOSED or (self.state is SessionState.CLOSING and not answer):
            raise PeerClosed("the ticker connection is closed")
        if message.kind in (Kind.PONG, Kind.CLOSE):
            raise NotSupported(f"a ticker session says {message.kind} by itself")
        if message.kind is Kind.REQUEST:
            message = message.with_(id=str(self._draw_id()))
        frame = to_frame(message, self.settings)
        if answer:
            if frame.id not in self._owed:
                raise InvalidState(f"no request with id {frame.id} waits for an answer")
            self._owed.discard(frame.id)
        elif frame.id is not None:
            self._waiting.add(frame.id)
        elif message.kind is Kind.PING:
            self._ping_sent = now if self._ping_sent is None else self._ping_sent
        self._queue(frame)
        self._close_when_settled()
        return message

    def _draw_id(self) -> int:
        while self._next_id in self._waiting:
            self._next_id = (self._next_id + 1) & frames.MAX_ID
        drawn = self._next_id
        self._next_id = (drawn + 1) & frames.MAX_ID
        return drawn

    def _queue(self, frame: Frame) -> None:
        self._out.append(frames.encode(frame))
        self.sent += 1

    def outgoing(self) -> bytes:
        """Bytes to write now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def deadline(self) -> float | None:
        """When a ping is due, or its answer overdue."""
        if self.state is not SessionState.OPEN or not self.settings.ping_interval:
            return None
        if self._ping_sent is not None:
            return self._ping_sent + self.settings.pong_timeout
        return self._heard + self.settings.ping_interval

    def expire(self, now: float) -> Sequence[Batch]:
        """Ask a silent peer whether it is there; give up when it does not say so."""
        due = self.deadline()
        if due is not None and now >= due:
            if self._ping_sent is None:
                self._ping_sent = now
                self._queue(Frame("PING"))
            else:
                self.close_reason, self.state = "idle", SessionState.CLOSED
        return NOTHING

    def close(self, now: float, reason: str = "") -> None:
        """Answer what is owed, then say goodbye."""
        self._leave(reason or "close")
        self._close_when_settled()

    def end_of_input(self, now: float) -> None:
        """The peer sends no more; it still gets the answers it waits for."""
        if self._buffer:
            self.count("stream.cut")
        self._leave("close")
        self._close_when_settled()

    def _leave(self, reason: str) -> None:
        if self.state is not SessionState.CLOSED:
            self.close_reason = self.close_reason or reason
            self.state = SessionState.CLOSING

    def _close_when_settled(self) -> None:
        if self.state is SessionState.CLOSING and not self._owed:
            self._queue(Frame("BYE"))
            self.state = SessionState.CLOSED

    def unread(self) -> bytes:
        """The beginning of a frame."""
        return bytes(self._buffer)

    @property
    def buffered(self) -> int:
        """How much that is."""
        return len(self._buffer)
