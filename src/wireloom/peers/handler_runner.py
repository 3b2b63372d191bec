"""Runs handlers for requests and events, and sends what they return."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import copy_context
from itertools import groupby
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from wireloom.chunked_json import is_large
from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    InvalidState,
    Kind,
    LimitExceeded,
    Message,
    NotSupported,
    RequestFailed,
    WireloomError,
    message_of,
)
from wireloom.peers.driver import Driver
from wireloom.peers.eager_task import Standby
from wireloom.peers.handlers import CLOSING, FAILED, Handler, Result, unknown_topic
from wireloom.peers.inbox import Inbox
from wireloom.peers.pending_calls import CANCELLED
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

LOG = logging.getLogger("wireloom.peers")
_RESPONSE, _ERROR, _NOBODY = Kind.RESPONSE, Kind.ERROR, Authenticity.NONE

Operation = Callable[[Message, "Peer"], object]
"""Answers one operation of the hub profile."""


Key = tuple[int, str]
"""A request that is being answered: the identity of its driver, and its id."""


class Answers:
    """Runs handlers. Up to `concurrency` requests run concurrently. Events run one after another, in order."""

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
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._full = False
        """Whether `concurrency` is reached. Then reading stops, and requests that were already read wait."""
        self._waiting: dict[Key, tuple[Message, Driver]] = {}
        self._standby: Standby | None = None
        self._over = False
        self._ready: list[tuple[Message, bytes]] = []
        """Requests of the current read that are answered, with the bodies of their answers."""
        self._usual = ""
        """The last topic that belonged to the handler: a cache of one entry."""
        self._events: Inbox[Message] = Inbox(queue, lambda: peer._hold("events"), lambda: peer._release("events"))
        self._worker: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    @property
    def wants_events(self) -> bool:
        """Whether there is a handler for events."""
        return self._handler is not None

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs, or something waits for one."""
        return bool(self._tasks or self._waiting) or (self._worker is not None and not self._worker.done())

    def request(self, message: Message, driver: Driver) -> None:
        """Answer a request, now or in a task. If `concurrency` is reached, it waits."""
        if self._full:
            self._waiting[id(driver), message.id or ""] = (message, driver)
            return
        handler, topic = self._handler, message.topic
        try:
            if handler is not None and (topic is self._usual or self._is_usual(topic)):
                result = handler(message, self._peer)
            else:
                result = self._call(message)
        except (Exception, asyncio.CancelledError) as error:
            # An exception of a handler becomes an error answer. It does not end the connection.
            self._fail(driver, message, error)
            return
        if result.__class__ is bytes or result.__class__ is Message:
            self._respond(driver, message, result)
        elif result.__class__ is CoroutineType:
            self._begin(message, driver, result)
        elif inspect.isawaitable(result) or inspect.isasyncgen(result):
            key = (id(driver), message.id or "")
            self._enter(key, self._loop.create_task(self._run(key, message, driver, result)))
        else:
            self._answer(driver, message, result)

    def _is_usual(self, topic: str | None) -> bool:
        """Whether a topic is for the handler, and not an operation of the hub profile.

        Most topics repeat the last one.
        """
        if topic is None or topic.startswith(HUB_PREFIX):
            return False
        self._usual = topic
        return True

    def _answer(self, driver: Driver, message: Message, result: object) -> None:
        """Answer now, or in a task if encoding the answer takes long."""
        if result.__class__ is bytes or result.__class__ is Message or not is_large(result):
            self._respond(driver, message, result)
            return
        key = (id(driver), message.id or "")
        self._enter(key, self._loop.create_task(self._run(key, message, driver, _at_once(result))))

    def _begin(self, message: Message, driver: Driver, work: Coroutine[Any, Any, object]) -> None:
        """Run a handler until it first waits. Most handlers never wait, and need no task (see `eager_task.py`)."""
        standby = self._standby
        if standby is not None and standby.is_ready:
            try:
                result = standby.begin(work)
            except RuntimeError:
                standby = None  # another task is running: this handler gets its own
            else:
                if standby.is_done:
                    error = standby.error
                    if error is None:
                        self._answer(driver, message, result)
                    else:
                        standby.error = None
                        self._fail(driver, message, error)
                    if not standby.is_clean:
                        self._standby = None
                        standby.close()
                    return
        key = (id(driver), message.id or "")
        if standby is None or not standby.is_ready:
            self._enter(key, self._loop.create_task(self._run(key, message, driver, work)))
            if self._standby is None and not self._over:
                self._standby = Standby(self._loop)
        else:
            self._standby = None
            self._enter(key, standby.task)
            standby.take_over(self._run(key, message, driver, standby.rest(result)))

    def _enter(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks[key] = task
        if not self._full and len(self._tasks) >= self._concurrency:
            self._full = True
            self._peer._hold("requests")

    def _call(self, message: Message) -> object:
        topic = message.topic or ""
        if topic.startswith(HUB_PREFIX):
            operation = self._operations.get(topic)
            if operation is not None:
                return operation(message, self._peer)
            if topic.startswith(PUBLISH):
                message = message.with_(kind=Kind.EVENT, topic=topic.removeprefix(PUBLISH))
        if self._handler is None:
            raise unknown_topic(topic)
        return self._handler(message, self._peer)

    async def _run(self, key: Key, message: Message, driver: Driver, work: object) -> None:
        try:
            if isinstance(work, AsyncIterator):
                result = await self._progress(driver, message, work)
            else:
                result = await cast(Awaitable[object], work)
            if result.__class__ is not bytes and result.__class__ is not Message and is_large(result):
                result = await self._written(message, result)
            self._respond(driver, message, result)
            if driver.is_crowded:
                await driver.drain()
        except (Exception, asyncio.CancelledError) as error:
            if _is_stopped(error):
                raise
            self._fail(driver, message, error)
        finally:
            self._finished(key)

    async def _written(self, request: Message, result: object) -> Message:
        """The response with a large value, encoded by another thread."""
        body, content_type = await self._loop.run_in_executor(None, self._peer.encode, result)
        return Message(Kind.RESPONSE, request.topic, body, content_type=content_type)

    def _finished(self, key: Key) -> None:
        if self._tasks.pop(key, None) is not None and self._full:
            # Not within the task that has just ended.
            self._loop.call_soon(self._begin_waiting, context=self._context)

    def _begin_waiting(self) -> None:
        """Start requests that waited for `concurrency`, then resume reading."""
        if len(self._tasks) >= self._concurrency:
            return
        self._full = False
        while self._waiting and not self._full:
            self.request(*self._waiting.pop(next(iter(self._waiting))))
        if not self._full:
            self._peer._release("requests")

    def _stop_task(self, key: Key, message: Message | None, driver: Driver) -> None:
        """Cancel the work on a request. `message` is set if an answer is still owed."""
        task = self._tasks[key]

        def stopped(_: object) -> None:
            # A task that is cancelled before its first step runs none of its code, not even `finally`.
            self._finished(key)
            if message is not None and task.cancelled():
                self._cancelled(driver, key, message)

        task.add_done_callback(stopped)
        task.cancel()

    async def _progress(self, driver: Driver, message: Message, steps: AsyncIterator[object]) -> object:
        try:
            async for step in steps:
                if isinstance(step, Result):
                    return step.value
                body, content_type = self._peer.encode(step)
                try:
                    driver.send(Message(Kind.PROGRESS, message.topic, body, None, message.id, "progress", content_type))
                except (NotSupported, InvalidState):
                    continue  # nobody wants steps, or the protocol has none; the result still counts
                if driver.is_crowded:
                    await driver.drain()
            return None
        finally:
            close = getattr(steps, "aclose", None)
            if close is not None:
                await close()

    def cancel(self, message: Message, driver: Driver) -> None:
        """Handle a cancel from the requester. Unknown and finished requests are ignored."""
        key = (id(driver), message.correlation_id or "")
        kill = message.attributes.get("kill") == "true"
        if key in self._tasks:
            self._stop_task(key, None if kill else message, driver)
        elif self._waiting.pop(key, None) is not None and not kill:
            self._cancelled(driver, key, message)

    def _cancelled(self, driver: Driver, key: Key, message: Message) -> None:
        self._send(driver, Message(Kind.RESPONSE, message.topic, b"", None, key[1], CANCELLED))

    def event(self, message: Message) -> None:
        """Pass an event to the handler, after earlier events."""
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
            except RequestFailed as error:
                LOG.warning("an event of topic %r was refused: %s", message.topic, error)
            except (Exception, asyncio.CancelledError) as error:
                if _is_stopped(error):
                    raise
                LOG.exception("the handler failed for an event of topic %r", message.topic)

    def connection_lost(self, driver: Driver) -> None:
        """Stop the work for requesters on a lost connection."""
        for key in self._keys(driver):
            self._drop(key, driver)

    def _keys(self, driver: Driver) -> list[Key]:
        """The requests of a connection that are being answered, or wait."""
        return [key for key in (*self._tasks, *self._waiting) if key[0] == id(driver)]

    def _drop(self, key: Key, driver: Driver) -> None:
        if self._waiting.pop(key, None) is None:
            self._stop_task(key, None, driver)

    def end(self) -> None:
        """Accept no more. Events that are already here are still handled."""
        self._events.close()
        self._over = True
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    async def finished(self) -> None:
        """Wait until everything accepted so far is handled."""
        self._events.close()
        current = asyncio.current_task()
        owed = {*self._tasks, *self._waiting}
        while running := [task for key, task in self._tasks.items() if key in owed and task is not current]:
            await asyncio.wait(running)
        if self._worker is not None and self._worker is not current:
            await asyncio.wait([self._worker])

    def refuse(self, driver: Driver) -> None:
        """Time is up: answer unfinished requests with an error, and cancel their work."""
        for key in self._keys(driver):
            self._send(driver, Message(Kind.ERROR, None, b"closing", None, key[1], CLOSING))
            self._drop(key, driver)

    def stop(self) -> None:
        """Cancel everything unfinished, events included."""
        self._events.discard()
        self._waiting.clear()
        current = asyncio.current_task() if self._loop.is_running() else None
        for task in (*self._tasks.values(), self._worker):
            if task is not None and task is not current:
                task.cancel()

    # Sending answers

    def send_ready(self, driver: Driver) -> None:
        """Send the answers to requests of the current read: together for one topic, or one by one."""
        while self._ready:
            ready, self._ready = self._ready, []
            for topic, group in groupby(ready, _topic_of):
                answers = list(group)
                ids = [request.id or "" for request, _ in answers]
                if len(ids) == 1 or not driver.send_answers(topic, ids, [body for _, body in answers]):
                    for request, body in answers:
                        self._respond_now(driver, request, body)

    def _respond(self, driver: Driver, request: Message, result: object) -> None:
        if result.__class__ is bytes and driver.is_busy:
            self._ready.append((request, result))
        else:
            self._respond_now(driver, request, result)

    def _respond_now(self, driver: Driver, request: Message, result: object) -> None:
        try:
            if isinstance(result, Message):
                kind = _ERROR if result.kind is _ERROR else _RESPONSE
                answer = (kind, result.topic, result.body, None, request.id, result.status or "done", *result[6:])
                driver.send(message_of(answer))
                return
            if result.__class__ is bytes:
                body, content_type = result, driver.session.content_type
            else:
                body, content_type = self._peer.encode(result)
            driver.send(message_of((
                _RESPONSE, request.topic, body, None, request.id, "done", content_type, NO_ATTRIBUTES,
                "", None, None, None, _NOBODY,
            )))  # fmt: skip
        except Exception as error:  # a handler may return anything
            self._not_sent(driver, request, error)

    def _not_sent(self, driver: Driver, request: Message, error: Exception) -> None:
        """Report a response that could not be sent to the requester, if it is still connected."""
        if isinstance(error, LimitExceeded):
            self._send(driver, _error(request, FAILED, str(error).encode()))
        elif driver.failure is None:
            self._fail(driver, request, error)

    def _fail(self, driver: Driver, request: Message, error: BaseException) -> None:
        if isinstance(error, RequestFailed):
            try:
                driver.send(_error(request, error.code, error.body))
            except Exception as unsent:  # such as a text that is too long
                self._not_sent(driver, request, unsent)
            return
        if driver.failure is None:
            LOG.error("the handler failed for a request for %r", request.topic, exc_info=error)
        self._send(driver, _error(request, FAILED, b"the request could not be handled"))

    def _send(self, driver: Driver, answer: Message) -> None:
        try:
            driver.send(answer)
        except WireloomError as error:
            level = logging.WARNING if isinstance(error, NotSupported | InvalidState) else logging.DEBUG
            LOG.log(level, "an answer could not be sent: %s", error)


def _topic_of(answer: tuple[Message, bytes]) -> str | None:
    return answer[0].topic


def _is_stopped(error: BaseException) -> bool:
    """Whether this end cancelled the handler. A handler may also end as cancelled because something it awaited was."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _at_once(result: object) -> object:
    return result


def _error(request: Message, code: str, body: bytes) -> Message:
    return Message(Kind.ERROR, request.topic, body, None, request.id, code)
