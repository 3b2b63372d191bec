"""Runs one session on one pipe: the only place where bytes, clock and conversation meet.

Used by clients, servers and the hub alike. It calls the session with what was read and when a deadline
has passed, writes what the session has to say, and closes as politely as the transport allows. What the messages
mean is not its business: every read's `Run` goes to `on_run`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence

from wireloom.model import HandshakeFailed, Message, PeerClosed, ProtocolViolation, WireloomError
from wireloom.peers.rounds import FAR, rounds_of
from wireloom.protocols.contract import Asker, Role, Run, Session, SessionState
from wireloom.transports.base import Pipe

BURST = 64
"""Messages sent in one turn of the loop before the sender is asked to let others have a turn."""
PIECE = 32
"""Of many messages at once so many are written together, so that the other end begins while this one goes on."""
LINGER = 5.0
"""Seconds a closed conversation waits for the peer to take the last words and close its half."""

_OPEN, _CLOSED = SessionState.OPEN, SessionState.CLOSED
_NEVER = float("inf")
_NO_HOLDS: frozenset[str] = frozenset()


def fresh(error: WireloomError) -> WireloomError:
    """The same error once more, so that each waiting call raises one with a traceback of its own."""
    again = type(error)(*error.args)
    again.__cause__ = error.__cause__
    return again


@functools.lru_cache(maxsize=1)
def _clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock: one method for all drivers, instead of one each."""
    return loop.time


def is_local(peername: str) -> bool:
    """Whether the other end is on this machine.

    >>> is_local("127.0.0.1:5045"), is_local("[::1]:5045"), is_local("unix:/a"), is_local("192.0.2.1:5045")
    (True, True, True, False)
    """
    return peername.startswith(("127.", "[::1]:", "memory:", "unix:"))


class Driver:
    """The owner of a pipe on behalf of a session.

    `on_run` gets what each read brought. `on_open` is called once, when the handshake is done, before the first
    run; `on_end` once, when the pipe is gone, with the error that says why.
    """

    __slots__ = (
        "_announced",
        "_burst",
        "_busy",
        "_by_message",
        "_finishing",
        "_flush_due",
        "_holds",
        "_input_over",
        "_is_plain",
        "_linger",
        "_loop",
        "_more",
        "_now",
        "_on_end",
        "_on_open",
        "_pipe",
        "_round",
        "_timer",
        "_timer_at",
        "_working",
        "_writers",
        "aborted",
        "failure",
        "on_messages",
        "on_run",
        "session",
        "writing_is_paused",
    )

    _largest_read: float = _NEVER
    """Bytes that are taken at once, here and now."""

    def __init__(
        self,
        session: Session,
        *,
        on_run: Callable[[Run], None],
        on_open: Callable[[], None] | None = None,
        on_end: Callable[[WireloomError], None] | None = None,
        linger: float = LINGER,
    ) -> None:
        self.session = session
        self.on_run = on_run
        self.on_messages: Callable[[list[Message]], None] | None = None
        """Takes plain messages without a run (see `Session.take_plain`); None where everything has to be in a run."""
        self._on_open = on_open
        self._on_end = on_end
        self._linger = linger
        self._loop = asyncio.get_running_loop()
        self._now = _clock(self._loop)
        self._pipe: Pipe | None = None
        self._busy = False
        """Inside a callback of the transport; it writes once, at its end."""
        self._flush_due = False
        """Something was written in this turn of the loop; what else there is goes out at its end."""
        self._more = False
        """There is something else."""
        self._by_message = False
        self._is_plain = False
        """Whether nothing but writing has to follow a step of the session that leaves it open."""
        self._burst = 0
        """Messages sent in this turn of the loop."""
        self._working = False
        """Another thread does something for the session."""
        self._timer: asyncio.TimerHandle | None = None
        self._round: float | None = None
        """The second at which to look, where no timer of our own is needed."""
        self._timer_at = _NEVER
        self._holds = _NO_HOLDS
        self._writers: list[asyncio.Future[None]] | None = None
        self._announced = False
        self._finishing = False
        self._input_over = False
        self.writing_is_paused = False
        self.failure: WireloomError | None = None
        """Why the conversation is over; None while it is not."""
        self.aborted = False
        """Whether this end dropped the connection: nobody knows what the peer took of the last words."""
        if session.offloads:
            session.enable_work()

    # What the transport calls

    def opened(self, pipe: Pipe) -> None:
        """The pipe is up: start the conversation."""
        self._pipe = pipe
        self._by_message = pipe.carries_messages
        self.session.epoch = time.time() - self._now()
        self.session.peer = pipe.peername
        self.session.max_frame = pipe.max_write
        self.session.protected = pipe.tls is not None or is_local(pipe.peername)
        self.session.connected(self._now())
        if self._holds:
            pipe.pause_reading()
        self._after()

    def received(self, data: bytes) -> None:
        """Bytes arrived; after the end of the conversation they are thrown away."""
        if len(data) > self._largest_read:
            self._received_much(data)
            return
        if self._finishing:
            return
        self._busy = True
        session = self.session
        try:
            if self.on_messages is not None and self._is_plain:
                messages: list[Message] = []
                end = session.take_plain(data, self._now(), messages)
                if messages:
                    self.on_messages(messages)
                if end < len(data) and not self._finishing:
                    self._took(session.receive(data[end:], self._now()))
            else:
                self._took(session.receive(data, self._now()))
        finally:
            self._busy = False
        # The same as `_say`, without a call.
        if self._is_plain and session.state is _OPEN and not session.offloads:
            out = session.outgoing()
            if out:
                self._pipe.write(out)  # type: ignore[union-attr]
        else:
            self._after()

    def _received_much(self, data: bytes) -> None:
        """More arrived than is taken at once."""
        raise NotImplementedError

    def received_datagrams(self, data: bytes, ends: Sequence[int]) -> None:
        """Datagrams arrived together."""
        if self._finishing:
            return
        self._busy = True
        try:
            self._took(self.session.receive_datagrams(data, ends, self._now()))
        finally:
            self._busy = False
        self._after()

    def _took(self, run: Run) -> None:
        session = self.session
        if not self._announced and session.state is _OPEN:
            self._announce()
        if run.messages or run.bulk is not None or run.data or run.refused or session.violation is not None:
            self.on_run(run)

    def input_ended(self) -> None:
        """The peer closed its half."""
        self._input_over = True
        if self._finishing:
            self.pipe.close()
            return
        self.session.end_of_input(self._now())
        self._after()

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone: everybody who waits for it is told why."""
        self.failure = self._reason(error)
        self._finishing = True
        self.session.state = _CLOSED
        self._disarm()
        self._wake_writers()
        if self._on_end is not None:
            self._on_end(self.failure)

    def writing_paused(self) -> None:
        """Too much is unsent. A server stops reading, too: the answers would only add to it.

        A client goes on reading, else two ends that wait for each other would wait for ever.
        """
        self.writing_is_paused = True
        if self.session.role is Role.SERVER:
            self.hold("output")

    def writing_resumed(self) -> None:
        """There is room again."""
        self.writing_is_paused = False
        self.release("output")
        self._wake_writers()

    # What owners call

    @property
    def pipe(self) -> Pipe:
        """The pipe; there is one from `opened` on."""
        assert self._pipe is not None
        return self._pipe

    @property
    def is_connected(self) -> bool:
        """Whether there is a pipe that has not ended."""
        return self._pipe is not None and self.failure is None

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._announced and self.session.state is _OPEN

    @property
    def has_room(self) -> bool:
        """Whether messages can be sent, and nothing waits to be taken by the transport."""
        return self._announced and not self.writing_is_paused and self.session.state is _OPEN

    def send(self, message: Message) -> Message:
        """Send a message; returned as the session sent it, with its id."""
        if self.failure is not None:
            raise fresh(self.failure)
        sent = self.session.send(message, self._now())
        self._burst += 1
        if self._busy:
            self._more = True
        elif not self._flush_due:
            self.flush()
        elif self._by_message or self._burst % BURST == 0:
            self._after()
        else:
            self._more = True
        return sent

    def tell(self, event: Message) -> None:
        """Send an event: the same as `send`, for whom it is of no concern what id it gets."""
        if self.failure is not None:
            raise fresh(self.failure)
        self.session.tell(event, self._now())
        self._burst += 1
        if self._busy:
            self._more = True
        elif not self._flush_due:
            self.flush()
        elif self._by_message or self._burst % BURST == 0:
            self._after()
        else:
            self._more = True

    def ask_for(self, asker: Asker, topic: str, body: bytes, content_type: str | None, *, alone: bool) -> str | None:
        """Send a request the short way, if there is room (see `has_room`); returns its id, None if it is for `ask`."""
        session = self.session
        identifier = session.ask_for(asker, topic, body, content_type, self._now())
        if identifier is not None:
            if alone and self._is_plain and not self._busy and not self._flush_due and not session.offloads:
                self._pipe.write(session.outgoing())  # type: ignore[union-attr]
            else:
                self._asked(alone)
        return identifier

    def ask(self, request: Message, *, alone: bool) -> str | None:
        """Send a request; returns its id. `alone` if no other waits for an answer: then it is written at once.

        Others are likely to follow in the same turn of the loop, and are written together.
        """
        if self.failure is not None:
            raise fresh(self.failure)
        identifier = self.session.ask(request, self._now())
        self._asked(alone)
        return identifier

    def _asked(self, alone: bool) -> None:
        """Write a request that the session has ready, at once or with those that follow."""
        if self._busy:
            self._more = True
        elif self._flush_due:
            self._burst += 1
            if self._burst % PIECE:
                self._more = True
            else:
                self.write_pending()
        elif not alone:
            self._flush_due = self._more = True
            self._loop.call_soon(self._flush_rest)
        else:
            self._say(self.session)

    def ask_many(self, requests: Sequence[Message], askers: Sequence[Asker] = ()) -> list[str]:
        """Send as many of these requests, from the first on, as the session can send together; returns their ids."""
        if self.failure is not None:
            raise fresh(self.failure)
        identifiers = self.session.ask_many(requests, self._now(), askers)
        if len(identifiers) >= PIECE:
            self.write_pending()
        elif self._busy or self._flush_due:
            self._more = True
        elif identifiers:
            self._flush_due = self._more = True
            self._loop.call_soon(self._flush_rest)
        return identifiers

    def respond(self, request: Message, body: bytes, content_type: str | None) -> None:
        """Send the response to a request."""
        if self.failure is not None:
            raise fresh(self.failure)
        self.session.respond(request, body, content_type, self._now())
        if self._busy or self._flush_due:
            self._more = True
        else:
            self.flush()

    def flush(self) -> None:
        """Write what the session has to say.

        The first write of a turn of the loop goes out at once, later ones of the same turn together.
        """
        if self._busy or self._flush_due:
            self._more = True
            return
        self._flush_due = True
        self._loop.call_soon(self._flush_rest)
        self._after()

    def write_out(self) -> None:
        """Write what the session has to say now; inside a callback of the transport that is done at its end."""
        if not self._busy and not self._finishing:
            self._say(self.session)

    def _say(self, session: Session) -> None:
        """Write what the session has to say: at once where nothing else depends on it."""
        if self._is_plain and session.state is _OPEN and not session.offloads:
            out = session.outgoing()
            if out:
                self._pipe.write(out)  # type: ignore[union-attr]
        else:
            self._after()

    @property
    def is_crowded(self) -> bool:
        """Whether a sender should `drain` before it sends more: too much is unsent, or others want a turn."""
        return self.writing_is_paused or self._burst >= BURST or self._working

    def write_pending(self) -> None:
        """Write what the session has to say at this moment, even inside a callback."""
        pipe = self.pipe
        if self._by_message:
            for frame in self.session.outgoing_frames():
                pipe.write(frame)
        else:
            data = self.session.outgoing()
            if data:
                pipe.write(data)

    async def drain(self) -> None:
        """Wait until there is room to write. Raises PeerClosed when the connection is lost instead.

        Whoever sends in a loop awaits this when `is_crowded`: it lets the loop turn even if there is room.
        """
        if self._burst >= BURST:
            self._burst = 0
            await asyncio.sleep(0)
        while (self.writing_is_paused or self._working) and self.failure is None:
            writer = self._loop.create_future()
            if self._writers is None:
                self._writers = []
            self._writers.append(writer)
            try:
                await writer
            finally:
                if writer in (self._writers or ()):
                    self._writers.remove(writer)
        if self.failure is not None:
            raise fresh(self.failure)

    def hold(self, reason: str) -> None:
        """Stop reading until every reason to do so is released."""
        if not self._holds and self._pipe is not None and not self._finishing:
            self._pipe.pause_reading()
        self._holds |= {reason}

    def release(self, reason: str) -> None:
        """Take back one reason not to read."""
        if reason in self._holds:
            self._holds -= {reason}
            if not self._holds and self._pipe is not None:
                self._pipe.resume_reading()

    @property
    def holds(self) -> frozenset[str]:
        """Why nothing is read at the moment; empty when it is."""
        return self._holds

    def close(self, reason: str = "") -> None:
        """Say goodbye as the protocol does it; `on_end` follows when the peer has taken it."""
        if self.is_connected:
            self.session.close(self._now(), reason)
            self._after()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._pipe is not None and self.failure is None:
            self.aborted = True
            self._pipe.abort()

    # Inside

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers or (), None
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def _announce(self) -> None:
        self._announced = True
        if self._on_open is not None:
            self._on_open()

    def _flush_rest(self) -> None:
        self._flush_due = False
        self._burst = 0
        if self._more:
            self._more = False
            if not self._finishing:
                self._after()

    def _after(self) -> None:
        """What follows every step of the session: write, look at its state, set the timer."""
        session = self.session
        if self._by_message:
            self.write_pending()
        else:
            data = session.outgoing()
            if data:
                self._pipe.write(data)  # type: ignore[union-attr]
        state = session.state
        if state is not _OPEN:
            if state is _CLOSED:
                self._finish()
                return
        elif not self._announced:
            self._announce()
        if state is _OPEN:
            self._is_plain = session.steady and not self._by_message
        deadline = session.deadline()
        if deadline is not None and deadline < self._timer_at:
            self._arm(deadline)
        if session.offloads:
            self._start_work()

    def _start_work(self) -> None:
        """Let a thread do what is slow; nothing more is read until that is done."""
        work = self.session.work()
        if work is not None:
            self._working = True
            self.hold("work")
            self._loop.run_in_executor(None, work).add_done_callback(self._worked)

    def _worked(self, done: asyncio.Future[object]) -> None:
        if self._finishing:
            return
        self._busy = True
        try:
            self._took(self.session.worked(done.result(), self._now()))
        finally:
            self._busy = False
        self._working = False
        self.release("work")
        self._after()
        if not self._working:
            self._wake_writers()

    def _arm(self, deadline: float) -> None:
        self._disarm()
        self._timer_at = deadline
        if deadline - self._now() > FAR:
            self._round = rounds_of(self._loop).join(deadline, self._expire)
        else:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _disarm(self) -> None:
        self._timer_at = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._round is not None:
            rounds_of(self._loop).leave(self._round, self._expire)
            self._round = None

    def _expire(self) -> None:
        """The timer fired. Deadlines mostly move away with traffic, so it may be too early to act."""
        self._timer, self._round, self._timer_at = None, None, _NEVER
        if self._finishing:
            return
        session = self.session
        deadline = session.deadline()
        # Loops round timers: without the margin a timer could find itself a hair too early for ever.
        now = self._now() + 0.001
        if deadline is not None and deadline <= now:
            self._busy = True
            try:
                run = session.expire(max(now, deadline))
                if run.messages or run.bulk is not None or run.refused:
                    self.on_run(run)
            finally:
                self._busy = False
        self._after()

    def _finish(self) -> None:
        """The conversation is over: close our half, let the peer take the last words, then close."""
        if self._finishing:
            return
        self._finishing = True
        self._disarm()
        if self._holds:
            self._holds = _NO_HOLDS
            self.pipe.resume_reading()
        if self._input_over:
            self.pipe.close()
        else:
            # Closing with unread input would reset the connection and destroy what was just written.
            self.pipe.finish()
        self._timer = self._loop.call_later(self._linger, self.abort)

    def _reason(self, error: Exception | None) -> WireloomError:
        session, where = self.session, (self._pipe.peername if self._pipe is not None else "") or "the peer"
        failure: WireloomError
        violation: ProtocolViolation | None = session.violation
        if violation is not None:
            detail = f"the connection to {where} was closed because the peer broke the protocol: {violation}"
        elif error is not None:
            detail = f"the connection to {where} was lost: {error}"
        elif session.close_detail or session.close_reason not in (None, "", "close"):
            detail = f"the connection to {where} was closed: {session.close_detail or session.close_reason}"
        else:
            detail = f"the connection to {where} was closed"
        failure = PeerClosed(detail) if self._announced else HandshakeFailed(f"no handshake: {detail}")
        failure.__cause__ = violation or error
        return failure
