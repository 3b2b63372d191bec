"""Requests without an answer yet: who waits for which one, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from wireloom.model import Kind, Message, RequestFailed, RequestTimeout, WireloomError
from wireloom.peers.inbox import Inbox
from wireloom.peers.send_queue import fresh

CANCELLED = "cancelled"
_PROGRESS, _ERROR = Kind.PROGRESS, Kind.ERROR
NEVER = float("inf")
"""The deadline of a request without a timeout."""


class Waiting:
    """One request that waits for its outcome."""

    __slots__ = ("deadline", "id", "patience", "request")

    request: Message
    id: str
    patience: float | None
    deadline: float
    steps: Inbox[Message] | None = None
    """Where its progress steps go, if somebody iterates over them."""

    def finish(self, answer: Message) -> None:
        """Deliver the answer."""
        raise NotImplementedError

    def fail(self, error: WireloomError) -> None:
        """Deliver an error instead of an answer."""
        raise NotImplementedError


class Call(Waiting):
    """One request with a future for its outcome."""

    __slots__ = ("answer", "steps")

    def __init__(
        self,
        request: Message,
        patience: float | None,
        loop: asyncio.AbstractEventLoop,
        steps: Inbox[Message] | None = None,
    ) -> None:
        self.request = request
        self.id = ""
        self.patience = patience
        self.deadline = NEVER if patience is None else loop.time() + patience
        self.answer: asyncio.Future[Message] = loop.create_future()
        self.steps = steps

    def finish(self, answer: Message) -> None:
        """Deliver the answer."""
        if not self.answer.done():
            self.answer.set_result(answer)
        if self.steps is not None:
            self.steps.close()

    def fail(self, error: WireloomError) -> None:
        """Deliver an error instead of an answer."""
        if not self.answer.done():
            self.answer.set_exception(error)
            # Mark the error as retrieved: a call that nobody awaits is no mistake.
            self.answer.exception()
        if self.steps is not None:
            self.steps.close()


class PendingCalls:
    """The requests of one connection that wait for answers, by id.

    One timer serves all of them. It is set for the first deadline, and set again when it fires.
    """

    def __init__(self, on_timeout: Callable[[Waiting], None], explain: Callable[[], str] = str) -> None:
        self.waiting: dict[str, Waiting] = {}
        self._on_timeout = on_timeout
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.idle: list[asyncio.Future[None]] = []
        """Futures of those who wait until no request waits."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, call: Waiting, request_id: str) -> None:
        """Add a request that was sent with this id."""
        call.id = request_id
        self.waiting[request_id] = call
        deadline = call.deadline
        if (self._timer is None or deadline < self._timer_at) and deadline != NEVER:
            self._watch(deadline)

    def add_all(self, calls: Sequence[Waiting], ids: Sequence[str]) -> None:
        """Add requests that were sent together, with these ids. All have the same deadline."""
        for call, request_id in zip(calls, ids, strict=True):
            call.id = request_id
            self.waiting[request_id] = call
        if calls[0].deadline != NEVER:
            self._watch(calls[0].deadline)

    def settle(self, answer: Message) -> bool:
        """Deliver an answer to its request. Returns False if no request has its id."""
        kind = answer.kind
        if kind is _PROGRESS:
            call = self.waiting.get(answer.correlation_id or "")
            if call is None:
                return False
            if call.patience is not None:
                call.deadline = self._loop.time() + call.patience
            if call.steps is not None:
                call.steps.put(answer)
            return True
        call = self.waiting.pop(answer.correlation_id or "", None)
        if call is None:
            return False
        if self.idle and not self.waiting:
            self.wake_idle()
        if kind is _ERROR:
            call.fail(RequestFailed(answer.status or "error", answer.body))
        elif answer.status == CANCELLED:
            call.fail(RequestFailed(CANCELLED, answer.body))
        else:
            call.finish(answer)
        return True

    def remove(self, request_id: str) -> Waiting | None:
        """Remove a request that nobody waits for."""
        call = self.waiting.pop(request_id, None)
        if not self.waiting and self.idle:
            self.wake_idle()
        return call

    def take_all(self) -> list[Waiting]:
        """Remove and return all requests, in the order they were sent."""
        calls = list(self.waiting.values())
        self.waiting.clear()
        self.wake_idle()
        return calls

    def fail_all(self, error: WireloomError) -> None:
        """Fail all requests, because the connection is lost."""
        for call in self.take_all():
            call.fail(fresh(error))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fail_progressive(self, error: WireloomError) -> None:
        """Fail the requests whose steps somebody iterates over: these cannot be sent again."""
        for call in list(self.waiting.values()):
            if call.steps is not None:
                self.remove(call.id)
                call.fail(fresh(error))

    async def settled(self) -> None:
        """Wait until no request waits."""
        while self.waiting:
            idle = self._loop.create_future()
            self.idle.append(idle)
            await idle

    def wake_idle(self) -> None:
        """Wake those who wait in `settled`."""
        idle, self.idle = self.idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)

    def _watch(self, deadline: float) -> None:
        if self._timer is None or deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.001
        late = [call for call in self.waiting.values() if call.deadline <= now]
        for call in late:
            self.remove(call.id)
            self._on_timeout(call)
            topic, patience = call.request.topic, call.patience
            why = self._explain()
            call.fail(RequestTimeout(f"no answer to the request for {topic!r} within {patience:g} s{why}"))
        deadline = min((call.deadline for call in self.waiting.values()), default=NEVER)
        if deadline != NEVER:
            self._watch(deadline)
