"""The other end of a connection, as a service author uses it: publish, request, subscribe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, overload

from wireloom.chunked_json import is_large
from wireloom.model import (
    NO_ATTRIBUTES,
    Authenticity,
    ConfigError,
    Kind,
    Message,
    PeerClosed,
    WireloomError,
    message_of,
)
from wireloom.peers.driver import LINGER
from wireloom.peers.handler_runner import Answers, Operation
from wireloom.peers.handlers import Handler
from wireloom.peers.inbox import Inbox
from wireloom.peers.peer_core import PROVIDE, QUEUE, TIMEOUT, WITHDRAW, Channel, operation
from wireloom.peers.pending_calls import Call
from wireloom.peers.publish_many import PublishMany
from wireloom.peers.replays import Replay
from wireloom.peers.request_many import IN_FLIGHT, Many
from wireloom.peers.streams import MessageStream, Progress, Subscription
from wireloom.protocols.contract import PUBLISH, Protocol

CONCURRENCY = 256
"""How many requests of one peer are handled concurrently."""
DRAIN = 5.0
"""Seconds that closing waits for what is still in flight."""

_EVENT, _REQUEST, _NOBODY = Kind.EVENT, Kind.REQUEST, Authenticity.NONE
PLAIN = object()
"""Stands for "no type": values as they are in the body."""
T = TypeVar("T")
S = TypeVar("S")
Body = TypeVar("Body")


class Peer(Channel):
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
        super().__init__(protocol, queue)
        self._answers = Answers(self, handler, operations or {}, queue=queue, concurrency=concurrency)

    @property
    def unhandled(self) -> int:
        """Messages that arrived and that nobody handled."""
        return self._unhandled

    async def publish(
        self,
        topic: str,
        body: object = None,
        *,
        ack: bool = False,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send an event. With `ack` it is an acknowledged publish: this returns when the peer has acknowledged it.

        Without `ack` this returns as soon as the next event can be sent. `attributes` are fields of one protocol beyond
        topic and body. If the protocol cannot carry one, NotSupported is raised.
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
        driver.send(message)
        if driver.is_crowded:
            await driver.drain()

    @overload
    async def request(
        self,
        topic: str,
        body: object = None,
        *,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> object: ...
    @overload
    async def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: type[T],
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> T: ...
    @overload
    async def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: object,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> Any: ...
    async def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: object = PLAIN,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109
        attributes: Mapping[str, str] | None = None,
    ) -> object:
        """Send a request, and return the answer's value: JSON as Python values, text as str, anything else as bytes.

        `body` may be a typed value, such as a dataclass. With `returns`, a type, the answer is a value of that type; an
        answer that does not fit raises ValidationError, which names the place. See `Message.value` for the types.

        Raises RequestFailed if the peer answers with an error, RequestTimeout if it does not answer in time, and
        PeerClosed if the connection is lost. After a timeout or a cancellation the peer is told, if the protocol can.
        Without a timeout (None) this end waits as long as the connection lasts. A hub between the two waits for its own
        `request_timeout`, 30 s by default, and then answers 504.
        """
        if body.__class__ is bytes or not is_large(body):
            message = self._message(_REQUEST, topic, body, attributes)
        else:
            message = await self._elsewhere(lambda: self._message(_REQUEST, topic, body, attributes))
        answer = await self.ask(message, timeout=timeout)
        if returns is not PLAIN:
            return await self.value(answer, returns)
        return answer.body if answer.content_type is None else await self.value(answer)

    @overload
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object] | AsyncIterable[object],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[object, object]: ...
    @overload
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object] | AsyncIterable[object],
        *,
        returns: type[T],
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: Literal[False] = False,
    ) -> Many[object, T]: ...
    @overload
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object] | AsyncIterable[object],
        *,
        returns: type[T],
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool,
    ) -> Many[object, T | WireloomError]: ...
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object] | AsyncIterable[object],
        *,
        returns: object = PLAIN,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[object, Any]:
        """Send a request for each body, `in_flight` at a time, and iterate over the answers in the order of the bodies.

        This is many times faster than a task with a `request` for each. The next body is sent when an answer is taken.
        So the bodies may be endless. An error ends the iteration at its answer, and gives up the requests in flight.
        With `return_errors` the error is an item like the answers, and the iteration goes on.
        `returns` is the type of the answers, as with `request`.

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
        if attributes:
            self.protocol.check_attributes(attributes)
        return Many(
            self,
            bodies,
            functools.partial(self._request_for, topic, attributes or NO_ATTRIBUTES),
            self.decode if returns is PLAIN else lambda answer: self.decode(answer, returns),
            in_flight=in_flight,
            timeout=timeout,
            return_errors=return_errors,
        )

    def publish_many(
        self,
        topic: str | Callable[[Body], str],
        bodies: Iterable[Body] | AsyncIterable[Body],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> PublishMany:
        """Publish each body with an acknowledgement, `in_flight` of them at a time, in their order.

        Await it for the number that was acknowledged, or iterate over that number as it grows. `topic` may be a
        function that names the topic of each body. The first publish that fails ends it with its error, whose note says
        which one it was; with `return_errors` errors are items, and it goes on.

        >>> import asyncio, wireloom.testing
        >>> async def main():
        ...     async with wireloom.testing.peer_pair("emp", lambda message, peer: None) as (client, server):
        ...         return await client.publish_many("readings/kitchen", range(1000), in_flight=100)
        >>> asyncio.run(main())
        1000
        """
        if attributes:
            self.protocol.check_attributes(attributes)
        given = attributes or NO_ATTRIBUTES
        fixed = None if callable(topic) else _named(topic)

        def message(body: Body) -> Message:
            return self._request_for(PUBLISH + (fixed or _named(topic(body))), given, body)  # type: ignore[operator]

        many: Many[Any, Message] = Many(
            self,
            bodies,
            message,
            lambda answer: answer,
            in_flight=in_flight,
            timeout=timeout,
            return_errors=return_errors,
        )
        return PublishMany(many)

    def ask_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        return_errors: bool = False,
    ) -> Many[Message, Message]:
        """Like `request_many`, but with requests and answers as messages."""
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

    @overload
    def request_progress(
        self,
        topic: str,
        body: object = None,
        *,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress[object, object]: ...
    @overload
    def request_progress(
        self,
        topic: str,
        body: object = None,
        *,
        returns: type[T],
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress[object, T]: ...
    @overload
    def request_progress(
        self,
        topic: str,
        body: object = None,
        *,
        returns: type[T],
        steps: type[S],
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress[S, T]: ...
    def request_progress(
        self,
        topic: str,
        body: object = None,
        *,
        returns: object = PLAIN,
        steps: object = PLAIN,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress[Any, Any]:
        """Send a request that takes a while: iterate over its progress steps, then await the result.

        `timeout` is the longest time without a step. `steps` and `returns` are the types of steps and result.
        """
        inbox: Inbox[Message] = self._inbox()
        message = self._message(_REQUEST, topic, body, attributes)
        message = message.with_(attributes={**message.attributes, "progressive": "true"})
        call = Call(message, timeout, self._loop, inbox)
        return Progress(self, call, step=_given(steps), outcome=_given(returns))

    async def provide(self, *topics: str) -> None:
        """Tell a hub that requests for these topics or patterns come to this peer's handler.

        This is repeated after a reconnect. Raises RequestFailed if the other end is not a hub.
        """
        for topic in topics:
            await self.ask(operation(PROVIDE, topic))
            self._provided[topic] = None

    async def stop_providing(self, *topics: str) -> None:
        """Tell the hub that this peer no longer provides these topics."""
        for topic in topics:
            self._provided.pop(topic, None)
            await self.ask(operation(WITHDRAW, topic))

    def subscribe(
        self, pattern: str, *, local: bool = False, since: str | datetime | None = None, retained: bool = False
    ) -> Subscription:
        """Events of topics that match a pattern, as an async iterator of messages.

        The other end is asked for them (`$hub/subscribe`), and asked again after a reconnect. With `local` it is not
        asked: for peers that send events without subscriptions. If the protocol has no subscriptions, events are only
        filtered here.

        A hub can also send past events. With `retained` the last value of each topic comes first. With `since`,
        everything committed since a point comes first, then what follows: each message once and in order, also across
        reconnects. The point is a time, an age such as `15m`, an offset such as `1042.7`, or `start`. The attribute
        `offset` of a message is where to continue later.
        """
        if since is not None:
            return Replay(self, self._replays, pattern, self._inbox(), since, retained=retained, local=local)
        return Subscription(self, pattern, self._inbox(), local=local, retained=retained)

    def messages(self) -> MessageStream:
        """Every message from the other end from now on, including those with a handler."""
        inbox = self._inbox()
        self._streams.append(inbox)
        return MessageStream(self, inbox)

    def send(self, message: Message) -> Message:
        """Send any message unchanged, for features of one protocol. Returns it with its id."""
        return self._current().send(message)

    def send_event(self, topic: str, body: object = None) -> None:
        """Send an event without waiting for back-pressure; see `is_slow`."""
        self._current().send(self._message(_EVENT, topic, body, None))

    @property
    def is_slow(self) -> bool:
        """Whether `drain` should be awaited before more is sent."""
        return self._driver is not None and self._driver.is_crowded

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._driver is not None:
            self._driver.abort()

    async def drain(self) -> None:
        """Wait until more can be sent."""
        await self._current().drain()

    def cancel(self, request: Message, *, kill: bool = False) -> None:
        """Ask the peer to stop working on a request (as returned by `send`). With `kill` no answer follows."""
        attributes = {"kill": "true"} if kill else {}
        self._current().send(Message(Kind.CANCEL, request.topic, correlation_id=request.id, attributes=attributes))

    async def close(self, reason: str = "", *, drain: float = DRAIN) -> None:
        """Finish what is in flight, for at most `drain` seconds, then close politely.

        In flight are: running handlers, requests and acknowledged publishes without an answer, and bytes that are not
        written because the other end reads slowly. The last bytes and the goodbye have 5 more seconds.
        """
        self._closing = True
        driver = self._driver
        try:
            try:
                async with asyncio.timeout(drain):
                    await self._answers.finished()
                    await self._calls.settled()
                    if driver is not None and driver.is_connected:
                        with contextlib.suppress(WireloomError):
                            await driver.drain()
            except TimeoutError:
                if driver is not None:
                    self._answers.refuse(driver)
            if driver is not None and driver.is_connected:
                driver.close(reason)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER + (driver.session.linger or 0.0)):
                        await self._gone.wait()
        finally:
            self._end(PeerClosed("the connection was closed by this end"))
            self._answers.stop()
            if driver is not None:
                driver.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Inside

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
        if attributes:
            self.protocol.check_attributes(attributes)
        else:
            attributes = NO_ATTRIBUTES
        return message_of(
            (kind, topic, data, None, None, None, content_type, attributes, "", None, None, None, _NOBODY)
        )


def _named(topic: str) -> str:
    if not topic:
        raise ConfigError("a topic must not be empty")
    return topic


def _given(kind: object) -> tuple[object, ...]:
    """A given type as a tuple; empty if none was given."""
    return () if kind is PLAIN else (kind,)


@functools.cache
def _caller() -> Callable[..., Coroutine[Any, Any, object]]:
    """The function for typed calls. Imported late, because its module imports peers."""
    from wireloom.peers.wolpertinger.components import call

    return call
