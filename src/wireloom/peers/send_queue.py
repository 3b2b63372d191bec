"""The outgoing half of a driver: what is sent over a session, and when it is written to the pipe.

A write costs more than anything else here. So the first message of a turn of the loop is written at once, and those
that follow in the same turn are written together. `Outlet.send` has the rules.
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
"""Messages sent in one turn of the loop before the sender is asked to let others have a turn."""
PIECE = 32
"""Messages that are written together, of many that are sent in one turn of the loop."""

_OPEN = SessionState.OPEN


def fresh(error: WireloomError) -> WireloomError:
    """The same error once more, so that each waiting call raises one with a traceback of its own."""
    again = type(error)(*error.args)
    again.__cause__ = error.__cause__
    return again


@functools.lru_cache(maxsize=1)
def _clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The loop's clock: one method for all drivers, instead of one each."""
    return loop.time


class Outlet:
    """Sends what owners want to say, as long as the conversation is open."""

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
        self._writers: list[asyncio.Future[None]] | None = None
        self._announced = False
        self._finishing = False
        self.writing_is_paused = False
        self.failure: WireloomError | None = None
        """Why the conversation is over; None while it is not."""

    def _after(self) -> None:
        """What follows every step of the session: write, look at its state, set the timer."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Whether messages are being handed on, at the end of which all is written that was sent meanwhile."""
        return self._busy

    # Whether something can be sent

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

    @property
    def is_crowded(self) -> bool:
        """Whether a sender should `drain` before it sends more: too much is unsent, or others want a turn."""
        return self.writing_is_paused or self._burst >= BURST or self._working

    # Sending

    def send(self, message: Message, *, followed: bool = False) -> Message:
        """Send a message; returned as the session sent it, with its id.

        It is written at once if it is the first in this turn of the loop, and not `followed` by others, as the caller
        may know. Else it is written at the end of the turn, or in pieces of `PIECE` messages, so that the other end
        begins while this one goes on. Inside a callback of the transport, its end is the end of the turn.
        """
        if self.failure is not None:
            raise fresh(self.failure)
        sent = self.session.send(message, self._now())
        self._queued(1, followed=followed)
        return sent

    def send_requests(self, requests: Sequence[Message], *, followed: bool = False) -> Sequence[str] | None:
        """Send requests together; their ids. None, and nothing sent, where they have to be sent one by one."""
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
        """Send responses together, to requests for one topic; False, and nothing sent, likewise."""
        session = self.session
        if self.failure is not None or not isinstance(session, CallSession):
            return False
        if not session.answer_all(topic, session.content_type, ids, bodies, self._now()):
            return False
        self._queued(len(ids), followed=False)
        return True

    def _queued(self, count: int, *, followed: bool) -> None:
        """The session has so many messages more to say: write them now or later, see `send`."""
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
        """Write what the session has to say.

        The first write of a turn of the loop goes out at once, later ones of the same turn together.
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

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers or (), None
        for writer in writers:
            if not writer.done():
                writer.set_result(None)
