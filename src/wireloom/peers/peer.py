"""The other end of a conversation, as a service author sees it: publish, request, subscribe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    ConfigError,
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    WireloomError,
    encode_value,
    message_of,
)
from wireloom.peers.answers import PUBLISH, Answers, Operation
from wireloom.peers.calls import Call, Calls, Waiting, question
from wireloom.peers.driver import LINGER, PIECE, Driver, fresh
from wireloom.peers.handlers import Handler
from wireloom.peers.inbox import Inbox
from wireloom.peers.many import IN_FLIGHT, Many
from wireloom.peers.replays import Replay, Replays
from wireloom.peers.streams import MessageStream, Progress, Subscription
from wireloom.pieces import LARGE, is_large
from wireloom.protocols.contract import HUB_PREFIX, Asker, Protocol, Run, Session
from wireloom.topics import Subscriptions

if TYPE_CHECKING:
    from wireloom.transports import Pipe

SUBSCRIBE, UNSUBSCRIBE = HUB_PREFIX + "subscribe", HUB_PREFIX + "unsubscribe"
PROVIDE, WITHDRAW = HUB_PREFIX + "provide", HUB_PREFIX + "withdraw"

TIMEOUT = 30.0
"""Seconds a request waits for its answer unless told otherwise."""
QUEUE = 1024
"""Messages a subscription holds before no more is read from the connection."""
CONCURRENCY = 256
"""Requests of one peer that are handled at the same time."""
DRAIN = 5.0
"""Seconds that closing waits for what is still in flight."""

FULL = "; input is not read because a queue of this end is full"

_NUMBERS = count(1)
T = TypeVar("T")
# Looking up a member of an enum costs as much as a call, and these are needed for every message.
_EVENT, _REQUEST, _CANCEL, _REDIRECT = Kind.EVENT, Kind.REQUEST, Kind.CANCEL, Kind.REDIRECT
_RESPONSE, _NOBODY = Kind.RESPONSE, Authenticity.NONE
_ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR, Kind.PROGRESS, Kind.ACK))


class Peer:
    """One peer, reached by `connect` or come in through `serve`.

    Everything may be cancelled at any time without losing a message.
    """

    def __init__(
        self,
        protocol: Protocol,
        *,
        handler: Handler | None = None,
        operations: dict[str, Operation] | None = None,
        queue: int = QUEUE,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self.protocol = protocol
        self._queue = queue
        self._driver: Driver | None = None
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(self._give_up, lambda: FULL if self._holds else "")
        self._answers = Answers(self, handler, operations or {}, queue=queue, concurrency=concurrency)
        self._subscriptions: Subscriptions[Inbox[Message]] = Subscriptions()
        self._announced: dict[str, int] = {}
        """Patterns the other end was asked for, and how many subscriptions need each."""
        self._provided: dict[str, None] = {}
        """Topics this end answers requests for, as the other end, a hub, was told."""
        self.replays = Replays()
        """Subscriptions to the past, by the name that the other end knows them by."""
        self._streams: list[Inbox[Message]] = []
        self._holds: set[str] = set()
        self._over: WireloomError | None = None
        """Why nothing can be sent ever again; None while there is hope."""
        self._hopeless: asyncio.Future[object] = self._loop.create_future()
        self._closing = False
        self._gone = asyncio.Event()
        self._unhandled = 0

    # What users call

    @property
    def connected(self) -> bool:
        """Whether the conversation is open right now."""
        return self._driver is not None and self._driver.is_open

    @property
    def session(self) -> Session:
        """The protocol's own session, for what only this protocol has."""
        return self._current().session

    @property
    def pipe(self) -> Pipe:
        """The connection: addresses and TLS."""
        return self._current().pipe

    @property
    def driver(self) -> Driver | None:
        """What runs the connection at the moment; for the parts of this room."""
        return self._driver

    @property
    def name(self) -> str:
        """The address of the other end."""
        return self._driver.pipe.peername if self._driver is not None and self._driver._pipe is not None else ""

    @property
    def unhandled(self) -> int:
        """Messages that came in and that nobody wanted."""
        return self._unhandled + self._calls.unwanted

    async def publish(
        self,
        topic: str,
        body: object = None,
        *,
        ack: bool = False,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send an event. With `ack` it is an acknowledged publish: this returns when the peer has taken it.

        Without it this returns as soon as there is room for the next.
        """
        kind = _EVENT
        if ack:
            kind, topic = _REQUEST, PUBLISH + topic
        if body.__class__ is bytes or not is_large(body):
            message = self._message(kind, topic, body, attributes)
        else:
            message = await self._elsewhere(lambda: self._message(kind, topic, body, attributes))
        if ack:
            await self.ask(message, timeout=timeout)
            return
        driver = self._driver
        if driver is None or not driver.is_open:
            driver = await self._ready(timeout)
        driver.tell(message)
        if driver.is_crowded:
            await driver.drain()

    async def request(
        self,
        topic: str,
        body: object = None,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> object:
        """Ask, and return the answer's value (JSON as Python values, text as str, anything else as bytes).

        Raises RequestFailed when the peer says no, RequestTimeout when it says nothing, PeerClosed when the
        connection is lost. After a timeout or when this call is cancelled, the peer is told, where the protocol can.
        """
        if not topic:
            raise ConfigError("a topic must not be empty")
        driver, calls = self._driver, self._calls
        if body.__class__ is bytes and driver is not None:
            data, content_type = body, driver.session.content_type
        elif is_large(body):
            data, content_type = await self._elsewhere(lambda: self.encode(body))
        else:
            data, content_type = self.encode(body)
        call = question(calls, topic, data, content_type, attributes, timeout, self._loop)
        if driver is None or not driver.has_room:
            driver = await self.room(timeout)
        alone = not calls.waiting
        number = None if attributes else driver.ask_for(call, topic, data, content_type, alone=alone)
        if number is None:
            self.dispatch(call, driver, alone=alone)
        else:
            calls.add(call, number)
        try:
            answer = await call.answer
        except asyncio.CancelledError:
            self._withdraw(call)
            raise
        content_type = call.answer_type
        if content_type is None:
            return answer
        if len(answer) < LARGE:
            return self._value_of(answer, content_type)
        return await self._elsewhere(lambda: self._value_of(answer, content_type))

    async def ask(self, message: Message, *, timeout: float | None = TIMEOUT) -> Message:  # noqa: ASYNC109
        """Send a request as it is, and return the answer as it came."""
        call = Call(message, timeout, self._loop)
        driver = self._driver
        if driver is None or not driver.has_room:
            driver = await self.room(timeout)
        self.dispatch(call, driver)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    def request_many(
        self,
        topic: str,
        bodies: Iterable[object] | AsyncIterable[object],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[object, object]:
        """Ask for each body, `in_flight` of them at a time, and iterate over the answers in the order of the bodies.

        Many times faster than a task with a `request` each. The next body is taken, and sent, when an answer is taken,
        so both may go on for ever. What ends a `request` with an error ends the iteration at that answer, and gives
        up what is in flight; with `return_errors` the error is an item like the answers, and the iteration goes on.

        >>> import asyncio, wireloom.testing
        >>> async def square(message, peer):
        ...     return message.value() ** 2
        >>> async def main():
        ...     async with wireloom.testing.peer_pair("yamp", square) as (client, server):
        ...         return [answer async for answer in client.request_many("math/square", range(5), in_flight=3)]
        >>> asyncio.run(main())
        [0, 1, 4, 9, 16]
        """
        if not topic:
            raise ConfigError("a topic must not be empty")
        return Many(
            self,
            bodies,
            functools.partial(self._request_for, topic, attributes or NO_ATTRIBUTES),
            self.decode,
            in_flight=in_flight,
            timeout=timeout,
            return_errors=return_errors,
            bodies_only=True,
        )

    def ask_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        return_errors: bool = False,
    ) -> Many[Message, Message]:
        """The same as `request_many` for requests as they are, and answers as they came."""
        return Many(
            self,
            messages,
            lambda message: message,
            lambda answer: answer,
            in_flight=in_flight,
            timeout=timeout,
            return_errors=return_errors,
        )

    def call(
        self,
        component: str,
        method: str,
        *arguments: object,
        returns: object = object,
        timeout: float | None = TIMEOUT,
    ) -> Coroutine[Any, Any, object]:
        """Call a method of a component, in a protocol that has them (wolpertinger), with typed values.

        `returns` is the type of the result; None for a method without response value: such a call is done when the
        other end has confirmed its delivery.
        """
        return _caller()(self, component, method, *arguments, returns=returns, timeout=timeout)

    def request_progress(
        self,
        topic: str,
        body: object = None,
        *,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress:
        """Ask for something that takes a while: iterate over the steps, then await the result.

        `timeout` is the longest silence between two steps.
        """
        steps: Inbox[Message] = self._inbox()
        message = self._message(_REQUEST, topic, body, {**(attributes or {}), "progressive": "true"})
        return Progress(self, Call(message, timeout, self._loop, steps))

    async def provide(self, *topics: str) -> None:
        """Tell a hub that requests for these topics (or patterns) come here, to the handler.

        It is told again after a reconnect. Raises RequestFailed where the other end is no hub.
        """
        for topic in topics:
            await self.ask(operation(PROVIDE, topic))
            self._provided[topic] = None

    async def stop_providing(self, *topics: str) -> None:
        """Tell the hub that requests for these topics go elsewhere, or nowhere."""
        for topic in topics:
            self._provided.pop(topic, None)
            await self.ask(operation(WITHDRAW, topic))

    def subscribe(
        self, pattern: str, *, local: bool = False, since: str | datetime | None = None, retained: bool = False
    ) -> Subscription:
        """Events of topics that match a pattern, as an async iterator of messages.

        The other end is asked for them (`$hub/subscribe`), and asked again after a reconnect. With `local` it is
        not: for peers that send events unasked. Where the protocol cannot ask, events are only filtered here.

        A hub also gives the past. With `retained` the last value of each topic comes first. With `since` (a time, how
        long ago such as `15m`, an offset such as `1042.7`, or `start`) everything comes that was committed since
        then, and then what follows, each message once and in order, also across reconnects; its attribute `offset`
        is where to go on later.
        """
        if since is not None:
            return Replay(self, self.replays, pattern, self._inbox(), since, retained=retained, local=local)
        return Subscription(self, pattern, self._inbox(), local=local, retained=retained)

    def messages(self) -> MessageStream:
        """Everything the other end sends from now on, also what is handled elsewhere."""
        inbox = self._inbox()
        self._streams.append(inbox)
        if self._driver is not None:
            self._driver.on_messages = None
        return MessageStream(self, inbox)

    def send(self, message: Message) -> Message:
        """Send any message as it is; for what only one protocol has. Returned with its id."""
        return self._current().send(message)

    def send_event(self, topic: str, body: object = None) -> None:
        """Send an event without waiting for room; see `is_slow`."""
        self._current().tell(self._message(_EVENT, topic, body, None))

    @property
    def is_slow(self) -> bool:
        """Whether `drain` should be awaited before more is sent."""
        return self._driver is not None and self._driver.is_crowded

    @property
    def is_busy(self) -> bool:
        """Whether messages that came in are still being handled."""
        return self._answers.is_busy

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._driver is not None:
            self._driver.abort()

    async def drain(self) -> None:
        """Wait until there is room to send more."""
        await self._current().drain()

    def cancel(self, request: Message, *, kill: bool = False) -> None:
        """Ask the peer to stop working on a request (as returned by `send`); with `kill` no answer follows."""
        attributes = {"kill": "true"} if kill else {}
        self._current().send(Message(Kind.CANCEL, request.topic, correlation_id=request.id, attributes=attributes))

    async def close(self, reason: str = "", *, drain: float = DRAIN) -> None:
        """Finish what is in flight, for at most `drain` seconds, say goodbye, and close."""
        self._closing = True
        driver = self._driver
        try:
            try:
                async with asyncio.timeout(drain):
                    await self._answers.finished()
                    await self._calls.settled()
            except TimeoutError:
                if driver is not None:
                    self._answers.refuse(driver)
            if driver is not None and driver.is_connected:
                driver.close(reason)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER):
                        await self._gone.wait()
        finally:
            self.end(PeerClosed("the connection was closed by this end"))
            self._answers.stop()
            if driver is not None:
                driver.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def encode(self, value: object) -> tuple[bytes, str | None]:
        """A value as a body and its content type, in the form agreed with this peer."""
        agreed = None if self._driver is None else self._driver.session.content_type
        if value.__class__ is bytes:
            return value, agreed
        if agreed is not None and not isinstance(value, bytearray | memoryview):
            form = self.protocol.format_for(agreed)
            if form is not None:
                return form.dumps(value), agreed
        body, content_type = encode_value(value)
        return body, content_type or agreed

    def decode(self, message: Message) -> object:
        """The value of a message's body; the inverse of `encode`."""
        if message.content_type is None:
            return message.body
        return self._value_of(message.body, message.content_type)

    def _value_of(self, body: bytes, content_type: str) -> object:
        form = self.protocol.format_for(content_type)
        return Message(_EVENT, None, body, content_type=content_type).value() if form is None else form.loads(body)

    async def value(self, message: Message) -> object:
        """The same as `decode`; a large body is read by another thread, so that the event loop turns meanwhile.

        >>> import asyncio, wireloom.testing
        >>> async def count(message, peer):
        ...     return len(await peer.value(message))
        >>> async def main():
        ...     async with wireloom.testing.peer_pair("yamp", count) as (client, server):
        ...         return await client.request("count", list(range(50_000)))
        >>> asyncio.run(main())
        50000
        """
        if len(message.body) < LARGE:
            return self.decode(message)
        return await self._elsewhere(lambda: self.decode(message))

    # What the driver and its owner call

    def attach(self, driver: Driver) -> None:
        """From now on talk over this driver."""
        self._driver = driver
        driver.on_messages = None if self._streams else self.take_messages
        self._gone.clear()
        for reason in self._holds:
            driver.hold(reason)

    def take(self, run: Run) -> None:
        """What one read brought."""
        self.take_messages(run.messages)

    def take_messages(self, messages: Sequence[Message]) -> None:
        """Messages that came together."""
        driver = self._driver
        assert driver is not None
        if len(messages) > PIECE:
            for start in range(0, len(messages), PIECE):
                self.take_messages(messages[start : start + PIECE])
                driver.write_pending()
            return
        for message in messages:
            kind = message.kind
            wanted = True
            if kind is _RESPONSE:
                wanted = self._calls.settle(message)
            elif kind is _REQUEST:
                self._answers.request(message, driver)
            elif kind in _ANSWERS:
                wanted = self._calls.settle(message)
            elif kind is _EVENT:
                wanted = self._take_event(message)
            elif kind is _CANCEL:
                self._answers.cancel(message, driver)
            elif kind is _REDIRECT:
                self.redirected(message)
            if self._streams:
                for stream in self._streams:
                    stream.put(message)
            elif not wanted:
                self._unhandled += 1

    def _take_event(self, message: Message) -> bool:
        if self.replays and self.replays.take(message):
            return True
        takers = self._subscriptions.lookup(message.topic or "")
        for taker in takers:
            taker.put(message)
        if self._answers.wants_events:
            self._answers.event(message)
            return True
        return bool(takers)

    def redirected(self, message: Message) -> None:
        """The other end wants us to go elsewhere; only clients can."""

    def lost(self, error: WireloomError) -> None:
        """The connection is gone. Every waiting call fails; without a way back everything ends."""
        driver = self._driver
        assert driver is not None
        if self._closing:
            error = PeerClosed("the connection was closed by this end")
        self._calls.fail_all(error)
        self._answers.connection_lost(driver)
        self._gone.set()
        self.end(error)

    async def finished(self) -> None:
        """Wait until everything that came in is handled."""
        await self._answers.finished()

    def end(self, error: WireloomError) -> None:
        """Nothing will come or go any more."""
        if self._over is not None:
            return
        self._over = error
        if not self._hopeless.done():
            self._hopeless.set_result(None)
        self._calls.fail_all(error)
        self._answers.end()
        quiet = self._closing
        for inbox in (*self._subscriptions.subscribers(), *self._streams, *self.replays.inboxes()):
            inbox.close(None if quiet else fresh(error))

    def hold(self, reason: str) -> None:
        """Read no more from the connection until `release`."""
        self._holds.add(reason)
        if self._driver is not None:
            self._driver.hold(reason)

    def release(self, reason: str) -> None:
        """Read again."""
        self._holds.discard(reason)
        if self._driver is not None:
            self._driver.release(reason)

    # Subscriptions

    async def open_subscription(
        self, pattern: str, inbox: Inbox[Message], *, local: bool, retained: bool = False
    ) -> bool:
        """Enter a subscription here and ask the other end; True when it was asked."""
        self._check()
        self._subscriptions.add(pattern, inbox)
        if local:
            return False
        self._announced[pattern] = self._announced.get(pattern, 0) + 1
        try:
            if self._announced[pattern] == 1 or retained:
                await self.ask(operation(SUBSCRIBE, pattern, {"retained": True} if retained else {}))
        except NotSupported:
            self._forget(pattern)
            return False
        except BaseException:
            self._forget(pattern)
            self._subscriptions.remove(pattern, inbox)
            raise
        return True

    def drop_subscription(self, pattern: str, inbox: Inbox[Message], *, announced: bool) -> None:
        """Leave a subscription; the other end is told when nobody here wants the pattern any more."""
        self._subscriptions.remove(pattern, inbox)
        inbox.discard()
        if announced and self._forget(pattern) and self.connected:
            try:
                self.send_and_forget(operation(UNSUBSCRIBE, pattern))
            except WireloomError:
                return  # a connection that is lost has no subscriptions

    def send_and_forget(self, request: Message) -> None:
        """Send a request whose answer nobody waits for."""
        self.dispatch(Call(request, TIMEOUT, self._loop), self._current())

    def drop_stream(self, inbox: Inbox[Message]) -> None:
        """Leave the stream of all messages."""
        if inbox in self._streams:
            self._streams.remove(inbox)
        if self._driver is not None and not self._streams:
            self._driver.on_messages = self.take_messages
        inbox.discard()

    def _forget(self, pattern: str) -> bool:
        self._announced[pattern] -= 1
        if self._announced[pattern]:
            return False
        del self._announced[pattern]
        return True

    # Calls

    async def send_progressive(self, call: Call) -> None:
        """Send a request whose steps somebody iterates over."""
        self.dispatch(call, await self.room(call.patience))

    def withdraw(self, call: Waiting) -> None:
        """Nobody waits for this call any more."""
        self._withdraw(call)

    async def room(self, timeout: float | None) -> Driver:  # noqa: ASYNC109
        """Wait for the driver, when it is open and there is room to write."""
        while True:
            driver = await self._ready(timeout)
            if not driver.writing_is_paused:
                return driver
            await driver.drain()

    def dispatch(self, call: Waiting, driver: Driver, *, alone: bool | None = None) -> None:
        """Send a request, and wait for its answer; `alone` if it should not wait for others to be sent with it."""
        if alone is None:
            alone = not self._calls.waiting
        identifier = driver.ask(call.request, alone=alone)
        if identifier is None:
            raise NotSupported(f"{self.protocol.name} has no requests")
        self._calls.add(call, identifier)

    def dispatch_many(self, calls: Sequence[Waiting], driver: Driver, askers: Sequence[Asker] = ()) -> int:
        """Send the first of these requests, with one deadline, that can go together; returns how many that are."""
        identifiers = driver.ask_many([call.request for call in calls], askers)
        if identifiers:
            self._calls.add_many(calls, identifiers)
        return len(identifiers)

    def forget(self, call: Waiting) -> bool:
        """The answer to a call is there; False if nobody waits for it any more."""
        return self._calls.forget(call.id)

    def _withdraw(self, call: Waiting) -> None:
        if call.id and self._calls.remove(call.id) is not None:
            self._give_up(call)
        if call.steps is not None:
            call.steps.discard()

    def _give_up(self, call: Waiting) -> None:
        """Tell the peer that the answer is no longer wanted, where the protocol can say so."""
        try:
            self._current().send(Message(Kind.CANCEL, call.request.topic, correlation_id=call.id))
        except WireloomError:
            return

    # Inside

    def _check(self) -> None:
        if self._over is not None:
            raise fresh(self._over)

    def _current(self) -> Driver:
        self._check()
        if self._driver is None:
            raise PeerClosed("the connection is not open yet")
        return self._driver

    async def _ready(self, timeout: float | None) -> Driver:  # noqa: ASYNC109
        """The driver, open. A client that is reconnecting waits here."""
        driver = self._current()
        if not driver.is_open:
            raise PeerClosed(f"the connection to {self.name or 'the peer'} is closing")
        return driver

    def _request_for(self, topic: str, attributes: Mapping[str, str], body: object) -> Message:
        data, content_type = self.encode(body)
        return message_of(
            (_REQUEST, topic, data, None, None, None, content_type, attributes, "", None, None, None, _NOBODY)
        )

    def _message(self, kind: Kind, topic: str, body: object, attributes: Mapping[str, str] | None) -> Message:
        if not topic:
            raise ConfigError("a topic must not be empty")
        driver = self._driver
        if body.__class__ is bytes and driver is not None:
            data, content_type = body, driver.session.content_type
        else:
            data, content_type = self.encode(body)
        attributes = attributes or NO_ATTRIBUTES
        return message_of(
            (kind, topic, data, None, None, None, content_type, attributes, "", None, None, None, _NOBODY)
        )

    async def _elsewhere(self, work: Callable[[], T]) -> T:
        """Let another thread do what takes long."""
        return await self._loop.run_in_executor(None, work)

    def _inbox(self) -> Inbox[Message]:
        reason = f"queue {next(_NUMBERS)}"
        return Inbox(self._queue, lambda: self.hold(reason), lambda: self.release(reason))


@functools.cache
def _caller() -> Callable[..., Coroutine[Any, Any, object]]:
    """What makes typed calls; its module knows of peers itself."""
    from wireloom.peers.components import call

    return call


def operation(topic: str, pattern: str, options: Mapping[str, object] = MappingProxyType({})) -> Message:
    """The request for an operation of the hub profile on a pattern."""
    body = json.dumps({"topic": pattern, **options}).encode()
    return Message(Kind.REQUEST, topic, body, content_type="application/json")
