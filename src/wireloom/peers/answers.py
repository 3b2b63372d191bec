"""The answering side of a peer: runs handlers for requests and events, and sends what they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from wireloom.model import Kind, LimitExceeded, Message, NotSupported, RequestFailed, WireloomError
from wireloom.peers.calls import CANCELLED
from wireloom.peers.driver import Driver
from wireloom.peers.handlers import FAILED, Handler, Result, unknown_topic
from wireloom.peers.inbox import Inbox
from wireloom.protocols.contract import HUB_PREFIX

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

LOG = logging.getLogger("wireloom.peers")
PUBLISH = HUB_PREFIX + "publish/"

Operation = Callable[[Message, "Peer"], object]
"""Answers one operation of the hub profile."""


class Answers:
    """Runs handlers. Requests run beside each other, up to `concurrency`; events one after another, in order."""

    def __init__(
        self,
        peer: Peer,
        handler: Handler | None,
        operations: dict[str, Operation],
        *,
        queue: int,
        concurrency: int,
    ) -> None:
        self._peer = peer
        self._handler = handler
        self._operations = operations
        self._concurrency = concurrency
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._killed: set[tuple[int, str]] = set()
        self._events: Inbox[Message] = Inbox(queue, lambda: peer.hold("events"), lambda: peer.release("events"))
        self._worker: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def wants_events(self) -> bool:
        """Whether events go to a handler."""
        return self._handler is not None

    def request(self, message: Message, driver: Driver) -> None:
        """Answer a request, now or in a task."""
        topic = message.topic or ""
        try:
            if topic.startswith(HUB_PREFIX) and topic in self._operations:
                result = self._operations[topic](message, self._peer)
            elif self._handler is None:
                raise unknown_topic(topic)
            elif topic.startswith(PUBLISH):
                result = self._handler(message.with_(kind=Kind.EVENT, topic=topic.removeprefix(PUBLISH)), self._peer)
            else:
                result = self._handler(message, self._peer)
        except Exception as error:  # whatever a handler raises is an answer, not the end of the connection
            self._fail(driver, message, error)
            return
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            self._start(message, driver, result)
        else:
            self._respond(driver, message, result)

    def _start(self, message: Message, driver: Driver, work: Awaitable[object] | AsyncIterator[object]) -> None:
        key = (id(driver), message.id or "")
        task = self._loop.create_task(self._run(message, driver, work))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._done(key, message, driver, work, done))
        if len(self._tasks) >= self._concurrency:
            self._peer.hold("requests")

    async def _run(self, message: Message, driver: Driver, work: Awaitable[object] | AsyncIterator[object]) -> None:
        try:
            result: object
            if isinstance(work, AsyncIterator):
                result = await self._progress(driver, message, work)
            else:
                result = await work
            self._respond(driver, message, result)
            if driver.writing_is_paused:
                await driver.drain()
        except Exception as error:
            self._fail(driver, message, error)

    def _done(
        self, key: tuple[int, str], message: Message, driver: Driver, work: object, task: asyncio.Task[None]
    ) -> None:
        """A task may be cancelled before it began, so nothing of this can be left to the task itself."""
        del self._tasks[key]
        if task.cancelled():
            if inspect.iscoroutine(work):
                work.close()
            if key not in self._killed:
                self._send(driver, _answer(message, Kind.RESPONSE, CANCELLED))
        self._killed.discard(key)
        if len(self._tasks) < self._concurrency:
            self._peer.release("requests")

    async def _progress(self, driver: Driver, message: Message, steps: AsyncIterator[object]) -> object:
        try:
            async for step in steps:
                if isinstance(step, Result):
                    return step.value
                try:
                    driver.send(self._with_body(_answer(message, Kind.PROGRESS, "progress"), step))
                except NotSupported:
                    continue  # nobody asked for steps, or the protocol has none; the result still counts
                if driver.writing_is_paused:
                    await driver.drain()
            return None
        finally:
            close = getattr(steps, "aclose", None)
            if close is not None:
                await close()

    def cancel(self, message: Message, driver: Driver) -> None:
        """The requester no longer wants an answer. Unknown or finished requests are ignored."""
        key = (id(driver), message.correlation_id or "")
        task = self._tasks.get(key)
        if task is not None:
            if message.attributes.get("kill") == "true":
                self._killed.add(key)
            task.cancel()

    def event(self, message: Message) -> None:
        """Give an event to the handler, after those that came before it."""
        self._events.put(message)
        if self._worker is None:
            self._worker = self._loop.create_task(self._handle_events())

    async def _handle_events(self) -> None:
        assert self._handler is not None
        while True:
            try:
                message = await self._events.get()
            except StopAsyncIteration:
                return
            try:
                result = self._handler(message, self._peer)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                LOG.exception("the handler failed for an event of topic %r", message.topic)

    def connection_lost(self, driver: Driver) -> None:
        """Whoever asked over this connection is gone: stop working for them."""
        for key, task in list(self._tasks.items()):
            if key[0] == id(driver):
                self._killed.add(key)
                task.cancel()

    async def finished(self) -> None:
        """Wait until everything taken so far is handled."""
        self._events.close()
        waiting = [*self._tasks.values(), *([self._worker] if self._worker else [])]
        current = asyncio.current_task()
        waiting = [task for task in waiting if task is not current]
        if waiting:
            await asyncio.wait(waiting)

    def stop(self) -> None:
        """Drop what is not finished."""
        self._events.discard()
        current = asyncio.current_task() if self._loop.is_running() else None
        for task in (*self._tasks.values(), self._worker):
            if task is not None and task is not current:
                task.cancel()

    # What goes back

    def _respond(self, driver: Driver, message: Message, result: object) -> None:
        try:
            if isinstance(result, Message):
                answer = result.with_(correlation_id=message.id, status=result.status or "done")
            else:
                answer = self._with_body(_answer(message, Kind.RESPONSE, "done"), result)
            driver.send(answer)
        except LimitExceeded as error:
            self._send(driver, _answer(message, Kind.ERROR, FAILED, str(error).encode()))
        except WireloomError as error:
            if driver.failure is None:
                self._fail(driver, message, error)

    def _fail(self, driver: Driver, message: Message, error: Exception) -> None:
        if isinstance(error, RequestFailed):
            code, body = error.code, error.body
        else:
            if driver.failure is None:
                LOG.error("the handler failed for a request for %r", message.topic, exc_info=error)
            code, body = FAILED, b"the request could not be handled"
        self._send(driver, _answer(message, Kind.ERROR, code, body))

    def _send(self, driver: Driver, answer: Message) -> None:
        try:
            driver.send(answer)
        except WireloomError as error:
            LOG.debug("an answer could not be sent: %s", error)

    def _with_body(self, answer: Message, value: object) -> Message:
        body, content_type = self._peer.encode(value)
        return answer.with_(body=body, content_type=content_type) if body else answer


def _answer(request: Message, kind: Kind, status: str, body: bytes = b"") -> Message:
    return Message(kind, request.topic, body, None, request.id, status)
