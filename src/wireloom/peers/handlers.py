"""What a service author writes: handlers, alone or collected in a `Service`.

A handler takes a message and the peer that sent it, or the body as a typed value (`typed_handlers.py`). For a request
it returns the body of the response. An async generator yields progress steps and then a `Result`. `RequestFailed`
becomes an error answer.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wireloom.model import ConfigError, Kind, Message, RequestFailed
from wireloom.peers.typed_handlers import HandlerSignature, handler_of
from wireloom.topics import is_pattern, matches, validate_pattern

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

Handler = Callable[[Message, "Peer"], object | Awaitable[object] | AsyncIterator[object]]
Function = TypeVar("Function", bound=Callable[..., object])

NO_SUCH_TOPIC = "404"
FAILED = "500"
CLOSING = "503"


@dataclass(frozen=True, slots=True)
class Result:
    """The last item of a progress generator: the outcome of the request."""

    value: object = None


@dataclass(frozen=True, slots=True)
class ServiceOperation:
    """One handler of a service, as it was declared."""

    kind: Kind
    """`request` or `event`."""
    topic: str
    function: Callable[..., object]
    signature: HandlerSignature


def unknown_topic(topic: str | None) -> RequestFailed:
    """The error for a request without a handler."""
    return RequestFailed(NO_SUCH_TOPIC, f"nobody handles requests for {topic!r}".encode())


class Service:
    """Handlers by topic.

    >>> service = Service()
    >>> @service.request("math/add")
    ... async def add(message):
    ...     numbers = message.value()
    ...     return numbers["a"] + numbers["b"]
    >>> @service.event("alerts/#")
    ... async def alert(message, peer):
    ...     print(message.topic)
    >>> service.topics
    ('math/add', 'alerts/#')

    A parameter with a type gets the body, read as that type; one that does not fit is refused with error 400 and the
    place. Several such parameters are the fields of a map:

    >>> @service.request("math/divide")
    ... async def divide(a: float, b: float = 1) -> float:
    ...     return a / b

    Patterns may be used for both. An exact topic goes before patterns, an earlier pattern before a later one.
    """

    def __init__(self) -> None:
        self._exact: dict[tuple[Kind, str], Handler] = {}
        self._patterns: list[tuple[Kind, str, Handler]] = []
        self._names: list[str] = []
        self._operations: list[ServiceOperation] = []

    @property
    def operations(self) -> tuple[ServiceOperation, ...]:
        """The operations of the service, in the order they were added."""
        return tuple(self._operations)

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic and pattern that has a handler, in the order they were added."""
        return tuple(self._names)

    @property
    def event_topics(self) -> tuple[str, ...]:
        """Topics and patterns of events that have a handler. A client with this service subscribes to them."""
        exact = [topic for kind, topic in self._exact if kind is Kind.EVENT]
        return tuple(dict.fromkeys([*exact, *(pattern for kind, pattern, _ in self._patterns if kind is Kind.EVENT)]))

    def request(self, topic: str) -> Callable[[Function], Function]:
        """Decorator: this function answers requests for a topic. It may return a typed value."""
        return self._decorator(Kind.REQUEST, topic)

    def event(self, topic: str) -> Callable[[Function], Function]:
        """Decorator: this function takes events of a topic.

        A client with this service as its handler subscribes to them on every connection.
        """
        return self._decorator(Kind.EVENT, topic)

    def _decorator(self, kind: Kind, topic: str) -> Callable[[Function], Function]:
        validate_pattern(topic)

        def add(function: Function) -> Function:
            handler, signature = handler_of(function, sys._getframe(1).f_locals)
            if is_pattern(topic):
                self._patterns.append((kind, topic, handler))
            elif (kind, topic) in self._exact:
                raise ConfigError(f"{kind} {topic!r} has a handler already")
            else:
                self._exact[kind, topic] = handler
            self._names.append(topic)
            self._operations.append(ServiceOperation(kind, topic, function, signature))
            return function

        return add

    def __call__(self, message: Message, peer: Peer) -> object:
        """Call the handler of the message's topic. A request without a handler fails with 404."""
        handler = self.find(message)
        if handler is not None:
            return handler(message, peer)
        if message.kind is Kind.REQUEST:
            raise unknown_topic(message.topic)
        return None

    def find(self, message: Message) -> Handler | None:
        """The handler of a message's topic."""
        topic = message.topic or ""
        handler = self._exact.get((message.kind, topic))
        if handler is None:
            for kind, pattern, candidate in self._patterns:
                if kind is message.kind and matches(pattern, topic):
                    return candidate
        return handler
