"""Many requests with a bounded number in flight, and their answers in order, without a task or future for each.

A `_Row` holds the requests that were sent and whose outcome was not taken yet. There are at most `in_flight` of them:
the next request is sent when an answer is taken. So a slow consumer slows down the other end, and memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from wireloom.model import ConfigError, Message, WireloomError
from wireloom.peers.pending_calls import NEVER, Waiting

if TYPE_CHECKING:
    from wireloom.peers.driver import Driver
    from wireloom.peers.peer import Peer

Body = TypeVar("Body")
Answer = TypeVar("Answer")

IN_FLIGHT = 64
"""Default number of requests in flight."""


class _Place(Waiting):
    """One request of a row."""

    __slots__ = ("outcome", "row")

    def __init__(self, row: _Row[Body], deadline: float) -> None:
        self.row = row
        self.id = ""
        self.patience = row.timeout
        self.deadline = deadline
        self.outcome: Message | WireloomError | None = None

    def finish(self, answer: Message) -> None:
        """Deliver the answer."""
        self.outcome = answer
        row = self.row
        if row.waker is not None and row.places[0] is self:
            row.wake()

    def fail(self, error: WireloomError) -> None:
        """Deliver an error instead of an answer."""
        self.outcome = error
        if self.row.waker is not None:
            self.row.wake()


class _Row(Generic[Body]):
    """Requests in the order they were sent."""

    def __init__(
        self,
        peer: Peer,
        message: Callable[[Body], Message],
        in_flight: int,
        timeout: float | None,
    ) -> None:
        self.peer = peer
        self.message = message
        self.in_flight = in_flight
        self.low = in_flight // 2
        """Low water mark: send more requests, together, when so few are left or when no answer is ready."""
        self.timeout = timeout
        self.loop = asyncio.get_running_loop()
        self.places: deque[_Place] = deque()
        self.waker: asyncio.Future[None] | None = None
        """Set while somebody waits for the first outcome, or for the end."""
        self.room: asyncio.Future[None] | None = None
        """Set while `feed` waits for a free place."""
        self.over = False
        """Whether no more requests will be sent."""
        self.failure: Exception | None = None
        """The error that ended the row early, if any."""

    def wake(self) -> None:
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)

    def end(self, failure: Exception | None = None) -> None:
        self.over, self.failure = True, failure
        self.wake()

    def send(self, bodies: Iterable[Body], driver: Driver) -> None:
        """Send a request for each body. An error of one request becomes its outcome."""
        deadline = NEVER if self.timeout is None else self.loop.time() + self.timeout
        ready: list[_Place] = []
        for body in bodies:
            place = _Place(self, deadline)
            self.places.append(place)
            try:
                place.request = self.message(body)
            except WireloomError as error:
                place.fail(error)
            else:
                ready.append(place)
        self.peer._dispatch_all(ready, driver, followed=self.in_flight > 1)

    def fill(self, bodies: Iterator[Body]) -> None:
        """Send requests while there are bodies and free places, and the connection accepts more."""
        driver = self.peer._driver
        if driver is None or not driver.has_room:
            return
        wanted = self.in_flight - len(self.places)
        taken: list[Body] = []
        try:
            for body in islice(bodies, wanted):
                taken.append(body)  # noqa: PERF402 - what came before an error counts
            self.over = len(taken) < wanted
        except Exception as error:  # raised again at the end of the row: earlier answers are not lost
            self.end(error)
        self.send(taken, driver)

    async def feed(self, bodies: AsyncIterable[Body]) -> None:
        """Send requests as bodies arrive from an async iterable."""
        try:
            async for body in bodies:
                while len(self.places) >= self.in_flight:
                    self.room = self.loop.create_future()
                    await self.room
                driver = self.peer._driver
                if driver is None or not driver.has_room:
                    driver = await self.peer._room(self.timeout)
                self.send((body,), driver)
                self.wake()
        except Exception as error:  # raised again at the end of the row
            self.end(error)
        else:
            self.end()
        finally:
            if isinstance(bodies, AsyncGenerator):
                await bodies.aclose()

    def tell_room(self) -> None:
        """Wake `feed`: a place is free."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    async def wait(self) -> None:
        """Wait until the first request has its outcome, a first request exists, or the row is over."""
        if self.waker is not None:
            raise RuntimeError("the answers of one row of requests are taken by one task at a time")
        self.waker = self.loop.create_future()
        try:
            await self.waker
        finally:
            self.waker = None

    def close(self) -> None:
        """Give up the remaining requests."""
        self.over, self.failure = True, None
        places = list(self.places)
        self.places.clear()
        for place in places:
            if place.outcome is None:
                self.peer._withdraw(place)


class Many(AsyncIterator[Answer], Generic[Body, Answer]):
    """The answers to many requests, in the order of the requests. Made by `request_many` and `ask_many`.

    Leaving the `async with`, or dropping the iterator, gives up the requests in flight. Cancelling the wait for an
    answer loses none.
    """

    def __init__(
        self,
        peer: Peer,
        bodies: Iterable[Body] | AsyncIterable[Body],
        message: Callable[[Body], Message],
        answer: Callable[[Message], Answer],
        *,
        in_flight: int,
        timeout: float | None,
        return_errors: bool,
    ) -> None:
        self._row: _Row[Body] = _Row(peer, message, in_flight, timeout)
        self._answer = answer
        self._return_errors = return_errors
        self._number = 0
        self._bodies: Iterator[Body] | None = None
        self._feeder: asyncio.Task[None] | None = None
        if in_flight < 1:
            raise ConfigError(f"in_flight is {in_flight}; at least one request must be on its way")
        if isinstance(bodies, AsyncIterable):
            self._coming: AsyncIterable[Body] = bodies
        elif isinstance(bodies, str | bytes | bytearray | memoryview | dict):
            raise ConfigError(f"bodies is one {type(bodies).__name__}; it must be a list, or any iterable, of bodies")
        else:
            self._bodies = iter(bodies)

    async def __anext__(self) -> Answer:
        row, bodies = self._row, self._bodies
        places = row.places
        if bodies is None and self._feeder is None:
            self._feeder = row.loop.create_task(row.feed(self._coming))
        while True:
            if bodies is not None and not row.over and (len(places) <= row.low or places[0].outcome is None):
                row.fill(bodies)
            if places:
                outcome = places[0].outcome
                if outcome is None:
                    await row.wait()
                    continue
                places.popleft()
                if row.room is not None:
                    row.tell_room()
                if isinstance(outcome, Message):
                    self._number += 1
                    return self._answer(outcome)
                return self._hand_out_error(outcome)
            if row.over:
                failure, row.failure = row.failure, None
                raise failure or StopAsyncIteration
            if bodies is None:
                await row.wait()
            else:
                # Nothing is in flight, and nothing can be sent: the client is reconnecting, or the connection is full.
                try:
                    await row.peer._room(row.timeout)
                except WireloomError:
                    row.over = True
                    raise

    def _hand_out_error(self, error: WireloomError) -> Answer:
        self._number += 1
        if self._return_errors:
            return error  # type: ignore[return-value]
        self.close()
        error.add_note(f"in the answer to request {self._number} of many")
        raise error

    def close(self) -> None:
        """Send no more, and give up what is in flight."""
        if self._feeder is not None:
            self._feeder.cancel()
        self._row.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_feeder"):
            self.close()
