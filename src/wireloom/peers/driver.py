"""Runs one session on one pipe: it connects the protocol core with bytes and the clock.

Clients, servers and the hub use it. It passes received bytes and expired deadlines to the session, writes the session's
output, and closes the pipe as politely as the transport allows. It does not interpret messages: every `Batch` goes to
`on_batch`. `send_queue.py` decides when bytes are written. `chunked_driver.py` explains how long reads are taken in
chunks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from wireloom.model import HandshakeFailed, PeerClosed, ProtocolViolation, WireloomError
from wireloom.peers.chunked_driver import WAITING, Rest
from wireloom.peers.coarse_timers import FAR, rounds_of
from wireloom.peers.send_queue import Outlet
from wireloom.protocols.column_session import LOOK_AHEAD
from wireloom.protocols.contract import Batch, Calls, Publishes, Role, Session, SessionState
from wireloom.transports.base import EndedPipe, Pipe
from wireloom.transports.portions import LONG, SHORT, Portions, clock, portions_of

LOG = logging.getLogger("wireloom.peers")

LINGER = 5.0
"""Seconds that a closed session waits for the peer to read the last bytes and close its half. Then it is dropped."""

_OPEN, _CLOSED = SessionState.OPEN, SessionState.CLOSED
_NEVER = float("inf")
_NO_HOLDS: frozenset[str] = frozenset()
_ONLY_WAITING = frozenset((WAITING,))


def is_local(peername: str) -> bool:
    """Whether the other end is on this machine.

    >>> is_local("127.0.0.1:5045"), is_local("[::1]:5045"), is_local("unix:/a"), is_local("192.0.2.1:5045")
    (True, True, True, False)
    """
    return peername.startswith(("127.", "[::1]:", "memory:", "unix:"))


class Driver(Outlet):
    """Owns a pipe on behalf of a session.

    `on_batch` gets the batches of each read, in order. `on_read` is called after the last batch of a read. `on_open` is
    called once, after the handshake and before the first batch. `on_end` is called once, when the pipe is gone, with
    the error that says why.
    """

    __slots__ = (
        "_broken",
        "_holds",
        "_input_over",
        "_linger",
        "_on_end",
        "_on_open",
        "_portions",
        "_rest",
        "_round",
        "_timer",
        "_timer_at",
        "aborted",
        "on_batch",
        "on_read",
    )

    def __init__(
        self,
        session: Session,
        *,
        on_batch: Callable[[Batch], None],
        on_read: Callable[[], None] | None = None,
        on_open: Callable[[], None] | None = None,
        on_end: Callable[[WireloomError], None] | None = None,
    ) -> None:
        super().__init__(session)
        self.on_batch = on_batch
        self.on_read = on_read
        self._on_open = on_open
        self._on_end = on_end
        self._linger = LINGER
        self._timer: asyncio.TimerHandle | None = None
        self._round: float | None = None
        """The second of the coarse timer, if a coarse timer is used."""
        self._timer_at = _NEVER
        self._holds = _NO_HOLDS
        self._portions: Portions = portions_of(self._loop)
        self._rest: Rest | None = None
        """Bytes and batches that were received and are not taken yet."""
        self._input_over = False
        self._broken: BaseException | None = None
        """An error at this end, after which the session cannot continue."""
        self.aborted = False
        """Whether this end dropped the connection. Then it is unknown how much of the last output the peer received."""
        if session.offloads:
            session.enable_work()

    # Called by the transport

    def opened(self, pipe: Pipe) -> None:
        """The pipe is open: start the session."""
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
        """Take received bytes. After the end of the session they are discarded."""
        if self._finishing:
            return
        if self._must_wait(len(data)):
            self._wait_with(data)
            return
        session = self.session
        self._took(session.batches(data, self._now()))
        self._say(session)

    def received_datagrams(self, data: bytes, ends: Sequence[int]) -> None:
        """Take datagrams that arrived together."""
        if self._finishing:
            return
        batches = self.session.receive_datagrams(data, ends, self._now())
        if self._must_wait(len(data)):
            self._wait_with(iter(batches))
            return
        self._took(batches)
        self._after()

    def _took(self, batches: Iterable[Batch]) -> None:
        """Pass on the batches of one step of the session, after what already waits."""
        if self._rest is not None:
            self._wait_with(iter(batches))
            return
        left = self._hand_on(iter(batches), clock() + LONG)
        if left is not None:
            self._wait_with(left)

    def _hand_on(self, batches: Iterator[Batch], until: float) -> Iterator[Batch] | None:
        """Pass on batches until a time, or until the driver is on hold. Returns the remaining batches, if any."""
        session, left = self.session, None
        before = clock()
        self._busy = True
        try:
            for batch in batches:
                if self.failure is not None:
                    return None  # an earlier batch dropped the connection
                if not self._announced and session.state is _OPEN:
                    self._announce()
                self.on_batch(batch)
                now = clock()
                if isinstance(batch, Publishes | Calls):
                    self._adapt(session, now - before)
                if now > until or self._is_held:
                    left = batches
                    break
                before = now
            if self.on_read is not None:
                self.on_read()
        finally:
            self._busy = False
        return left

    def _adapt(self, session: Session, took: float) -> None:
        """Let the kernel decode fewer bytes at a time if a batch took too long, and more if it was quick.

        The time depends on the number of subscribers.
        """
        ahead = session.look_ahead
        if took > LONG:
            session.look_ahead = max(LOOK_AHEAD[0], ahead // 2)
        elif took < LONG / 2 and ahead < LOOK_AHEAD[1]:
            session.look_ahead = 2 * ahead

    # Received and not taken yet

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were received and are not decoded yet."""
        return 0 if self._rest is None else self._rest.size

    @property
    def has_rest(self) -> bool:
        """Whether received bytes or batches wait."""
        return self._rest is not None

    @property
    def _is_held(self) -> bool:
        """Whether the driver is on hold for a reason other than its own rest."""
        return bool(self._holds) and self._holds != _ONLY_WAITING

    def _must_wait(self, size: int) -> bool:
        """Whether bytes must wait: the driver is on hold, earlier bytes wait, or other long reads do."""
        return self._rest is not None or bool(self._holds) or (size > SHORT and len(self._portions) > 0)

    def _wait_with(self, received: bytes | Iterator[Batch]) -> None:
        """Put bytes or batches into the rest. Reading stops meanwhile."""
        if self._rest is None:
            self._rest = Rest()
            self.hold(WAITING)
        self._rest.waiting.append(received)
        self.stand_in_row()

    def stand_in_row(self) -> None:
        """Enter the queue of rests, unless the driver is on hold."""
        rest = self._rest
        if rest is not None and not rest.is_due and (rest.end is not None or not self._is_held):
            rest.is_due = True
            self._portions.join(self)

    def take_portion(self, until: float) -> None:
        """Take the next chunk of the rest, until a time."""
        rest = self._rest
        if rest is None:
            return
        if not self._finishing and (rest.end is not None or not self._is_held):
            try:
                first = rest.waiting.popleft()
                batches = iter(self.session.batches(first, self._now())) if isinstance(first, bytes) else first
                left = self._hand_on(batches, until)
                if left is not None:
                    rest.waiting.appendleft(left)
                self._say(self.session)
            except Exception as error:
                self._break(error)
        rest.is_due = False
        if rest is not self._rest or (rest.waiting and not self._finishing):
            return
        self._rest = None
        self.release(WAITING)
        if rest.end is not None:
            self.ended(*rest.end)
        elif rest.input_is_over:
            self.input_ended()

    def input_ended(self) -> None:
        """The peer closed its half. This takes effect after everything that waits."""
        if self._rest is not None and not self._finishing:
            self._rest.input_is_over = True
            return
        self._input_over = True
        if self._finishing:
            self.pipe.close()
            return
        self.session.end_of_input(self._now())
        self._after()

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone: take what was received before, then tell everybody who waits."""
        if self._rest is not None and not self._finishing and not self.aborted:
            self._pipe = EndedPipe(self.pipe)
            self._rest.end = (error,)
            self.stand_in_row()
            return
        self._rest = None
        self.failure = self._reason(error)
        self._finishing = True
        self.session.state = _CLOSED
        self._disarm()
        self._wake_writers()
        if self._on_end is not None:
            self._on_end(self.failure)

    def writing_paused(self) -> None:
        """Too many bytes are unsent. A server stops reading, because each answer would add to them.

        A client goes on reading. Otherwise two ends that wait for each other would deadlock.
        """
        self.writing_is_paused = True
        if self.session.role is Role.SERVER:
            self.hold("output")

    def writing_resumed(self) -> None:
        """The pipe accepts more bytes."""
        self.writing_is_paused = False
        self.release("output")
        self._wake_writers()

    # Called by owners

    def hold(self, reason: str) -> None:
        """Stop reading until every reason for it is released."""
        if not self._holds and self._pipe is not None and not self._finishing:
            self._pipe.pause_reading()
        self._holds |= {reason}

    def release(self, reason: str) -> None:
        """Release one reason not to read."""
        if reason in self._holds:
            self._holds -= {reason}
            if not self._holds and self._pipe is not None:
                self._pipe.resume_reading()
            elif self._rest is not None:
                self.stand_in_row()

    @property
    def holds(self) -> frozenset[str]:
        """The reasons for which reading is on hold. Empty while it reads."""
        return self._holds

    def close(self, reason: str = "") -> None:
        """Close politely, as the protocol does it. `on_end` follows when the peer has received it."""
        if self.is_connected:
            self.session.close(self._now(), reason)
            self._after()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._pipe is not None and self.failure is None:
            self.aborted = True
            self._pipe.abort()
            if self._rest is not None and self._rest.end is not None:
                self.ended(*self._rest.end)  # the pipe has already ended

    def give_up(self) -> None:
        """Drop the connection without a call of `on_end`."""
        self._on_end = None
        self.abort()
        if self.failure is None:
            self.ended(None)

    # Inside

    def _announce(self) -> None:
        self._announced = True
        if self._on_open is not None:
            self._on_open()

    def _after(self) -> None:
        """Follows every step of the session: write its output, check its state, set the timer."""
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
        """Let a thread do slow work of the session. Reading stops until it is done."""
        work = self.session.work()
        if work is not None:
            self._working = True
            self.hold("work")
            self._loop.run_in_executor(None, work).add_done_callback(self._worked)

    def _worked(self, done: asyncio.Future[object]) -> None:
        if done.cancelled():
            self._break(asyncio.CancelledError("the work was cancelled"))
            return
        failed = done.exception()
        if failed is not None:
            self._break(failed)
            return
        if self._finishing:
            return
        try:
            self._took(self.session.worked(done.result(), self._now()))
        except Exception as error:
            self._break(error)
            return
        self._working = False
        self.release("work")
        self._after()
        if not self._working:
            self._wake_writers()

    def _break(self, error: BaseException) -> None:
        """Work failed unexpectedly. The peer's message is lost, so drop the connection."""
        where = self._pipe.peername if self._pipe is not None else ""
        LOG.error("%s: the connection is dropped, its work failed: %r", where, error, exc_info=error)
        if self.failure is None:
            self._broken = error
            self.abort()

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
        """The timer fired. Traffic usually moves the deadline, so it may be too early."""
        self._timer, self._round, self._timer_at = None, None, _NEVER
        if self._finishing:
            return
        session = self.session
        deadline = session.deadline()
        # The loop rounds timers. Without this margin a timer could be slightly too early again and again.
        now = self._now() + 0.001
        if deadline is not None and deadline <= now:
            self._took(session.expire(max(now, deadline)))
        self._after()

    def _finish(self) -> None:
        """The session is over: close our half, let the peer read the last bytes, then close."""
        if self._finishing:
            return
        self._finishing = True
        self._disarm()
        if self._holds:
            self._holds = _NO_HOLDS
            self.pipe.resume_reading()
        if self._input_over or self.session.is_misled:
            self.pipe.close()
        else:
            # Go on reading: closing with unread input would reset the connection and destroy the last output.
            self.pipe.finish()
        patience = self.session.linger
        if patience is None:
            self._timer = self._loop.call_later(self._linger, self.abort)
        else:
            self._timer = self._loop.call_later(patience, self._hang_up)

    def _hang_up(self) -> None:
        """The peer does not close its half: close both once everything is sent."""
        self._timer = self._loop.call_later(self._linger, self.abort)
        self.pipe.close()

    def _reason(self, error: Exception | None) -> WireloomError:
        session, where = self.session, (self._pipe.peername if self._pipe is not None else "") or "the peer"
        failure: WireloomError
        violation: ProtocolViolation | None = session.violation
        if violation is not None:
            detail = f"the connection to {where} was closed because the peer broke the protocol: {violation}"
        elif self._broken is not None:
            detail = f"the connection to {where} was dropped: work on it failed: {self._broken!r}"
        elif error is not None:
            detail = f"the connection to {where} was lost: {error}"
        elif session.close_reason == "redirect":
            detail = f"the connection to {where} was closed: it redirects to {session.close_detail}"
        elif session.close_detail or session.close_reason not in (None, "", "close"):
            detail = f"the connection to {where} was closed: {session.close_detail or session.close_reason}"
        else:
            detail = f"the connection to {where} was closed"
        failure = PeerClosed(detail) if self._announced else HandshakeFailed(f"no handshake: {detail}")
        failure.__cause__ = violation or self._broken or error
        return failure
