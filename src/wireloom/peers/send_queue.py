"""The outgoing half of a driver: when messages of a session are written to the pipe.

Theory of operation
-------------------
The problem: a write to a socket costs more than the encoding of a message. To write each message by itself is slow. To
collect all of them first adds latency to a single one.

The idea: write the first message of an iteration of the event loop at once, and collect the later ones. They are
written at the end of the iteration, or whenever `PIECE` of them are collected. So the other end can start on the first
piece while this end produces the next.

If the caller knows that more messages follow (`followed`), the first one is collected, too. Inside a callback of the
transport everything is collected and written once, at the end of the callback.

Example: a program publishes 100 events in a loop without an await. Event 1 is written at once. The others are written
in pieces when the 32nd, the 64th and the 96th message is sent, and the last ones at the end of the iteration.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence

from wireloom.model import Message, WireloomError
from wireloom.protocols.column_session import CallSession
from wireloom.protocols.contract import Session, SessionState
from wireloom.transports.base import Pipe

BURST = 64
"""Messages sent in one iteration of the loop before the sender should let other tasks run."""
PIECE = 32
"""Messages that are written together, if many are sent in one iteration of the loop."""

_OPEN = SessionState.OPEN


def fresh(error: WireloomError) -> WireloomError:
    """A copy of an error, so that each waiting call raises one with its own traceback."""
    again = type(error)(*error.args)
    again.__cause__ = error.__cause__
    return again


@functools.lru_cache(maxsize=1)
def _clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock: one bound method shared by all drivers."""
    return loop.time


class Outlet:
    """Sends messages while the session is open."""

    __slots__ = (
        "_announced",
        "_burst",
        "_busy",
        "_by_message",
        "_finishing",
        "_flush_due",
        "_is_plain",
        "_loop",
        "_more",
        "_now",
        "_pipe",
        "_working",
        "_writers",
        "failure",
        "session",
        "writing_is_paused",
    )

    def __init__(self, session: Session) -> None:
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._now = _clock(self._loop)
        self._pipe: Pipe | None = None
        self._busy = False
        """Inside a callback of the transport: output is written once, at its end."""
        self._flush_due = False
        """Something was written in this iteration of the loop. Later output is written at its end."""
        self._more = False
        """Later output exists."""
        self._by_message = False
        self._is_plain = False
        """Whether a step of an open session needs no more than writing."""
        self._burst = 0
        """Messages sent in this iteration of the loop."""
        self._working = False
        """Whether another thread works for the session."""
        self._writers: list[asyncio.Future[None]] | None = None
        self._announced = False
        self._finishing = False
        self.writing_is_paused = False
        self.failure: WireloomError | None = None
        """Why the session is over; None while it is open."""

    def _after(self) -> None:
        """Follows every step of the session: write its output, check its state, set the timer."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Whether messages are being passed on. Everything sent meanwhile is written at the end of that."""
        return self._busy

    # Whether something can be sent

    @property
    def pipe(self) -> Pipe:
        """The pipe. It exists from `opened` on."""
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
        """Whether messages can be sent, and the transport has no backlog."""
        return self._announced and not self.writing_is_paused and self.session.state is _OPEN

    @property
    def is_crowded(self) -> bool:
        """Whether a sender should `drain` before it sends more: too much is unsent, or other tasks should run."""
        return self.writing_is_paused or self._burst >= BURST or self._working

    # Sending

    def send(self, message: Message, *, followed: bool = False) -> Message:
        """Send a message. Returns it as the session sent it, with its id.

        The theory of operation at the top of this module says when it is written.
        """
        if self.failure is not None:
            raise fresh(self.failure)
        sent = self.session.send(message, self._now())
        self._queued(1, followed=followed)
        return sent

    def send_requests(self, requests: Sequence[Message], *, followed: bool = False) -> Sequence[str] | None:
        """Send requests together. Returns their ids; or None, with nothing sent, if they must be sent one by one."""
        session, first = self.session, requests[0]
        topic, content_type = first.topic, first.content_type
        if not topic or self.failure is not None or not isinstance(session, CallSession):
            return None
        for request in requests:
            if request.topic != topic or request.content_type != content_type or request.attributes:
                return None
        ids = session.ask_all(topic, content_type, [request.body for request in requests], self._now())
        if ids is not None:
            self._queued(len(ids), followed=followed)
        return ids

    def send_answers(self, topic: str | None, ids: Sequence[str], bodies: Sequence[bytes]) -> bool:
        """Send responses to requests for one topic together.

        Returns False, with nothing sent, if they must be sent one by one.
        """
        session = self.session
        if self.failure is not None or not isinstance(session, CallSession):
            return False
        if not session.answer_all(topic, session.content_type, ids, bodies, self._now()):
            return False
        self._queued(len(ids), followed=False)
        return True

    def _queued(self, count: int, *, followed: bool) -> None:
        """The session has `count` more messages to send: write them now or later."""
        pieces = self._burst // PIECE
        self._burst += count
        if self._busy:
            self._more = True
        elif self._flush_due:
            if self._by_message or self._burst // PIECE > pieces:
                self._after()
            else:
                self._more = True
        elif followed and count < PIECE:
            self._flush_due = self._more = True
            self._loop.call_soon(self._flush_rest)
        else:
            self.flush()

    # Writing

    def flush(self) -> None:
        """Write the session's output.

        The first write of an iteration of the loop is made at once. Later ones of the same iteration are combined.
        """
        if self._busy or self._flush_due:
            self._more = True
            return
        self._flush_due = True
        self._loop.call_soon(self._flush_rest)
        self._after()

    def _flush_rest(self) -> None:
        self._flush_due = False
        self._burst = 0
        if self._more:
            self._more = False
            if not self._finishing:
                self._after()

    def write_out(self) -> None:
        """Write the session's output now, or at the end of the current callback of the transport."""
        if not self._busy and not self._finishing:
            self._say(self.session)

    def _say(self, session: Session) -> None:
        """Write the session's output, by the fast path if a plain write is enough."""
        if self._is_plain and session.state is _OPEN and not session.offloads:
            out = session.outgoing()
            if out:
                self._pipe.write(out)  # type: ignore[union-attr]
        else:
            self._after()

    def write_pending(self) -> None:
        """Write the session's output now, even inside a callback."""
        pipe = self.pipe
        if self._by_message:
            for frame in self.session.outgoing_frames():
                pipe.write(frame)
        else:
            data = self.session.outgoing()
            if data:
                pipe.write(data)

    async def drain(self) -> None:
        """Wait until more can be written. Raises PeerClosed if the connection is lost.

        A sender in a loop awaits this when `is_crowded`. It lets other tasks run even if nothing is queued.
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

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers or (), None
        for writer in writers:
            if not writer.done():
                writer.set_result(None)
