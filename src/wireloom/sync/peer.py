"""A peer without asyncio: the same names and the same errors as `wireloom.Peer`, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar, overload

from wireloom import peers
from wireloom.model import Message
from wireloom.peers.peer import DRAIN, PLAIN
from wireloom.peers.peer_core import TIMEOUT
from wireloom.peers.request_many import IN_FLIGHT
from wireloom.protocols.contract import Protocol, Session
from wireloom.sync.portal import Portal
from wireloom.sync.streams import Many, MessageStream, Progress, PublishMany, Subscription
from wireloom.transports import Pipe

T = TypeVar("T")
S = TypeVar("S")
Body = TypeVar("Body")


class Peer:
    """The other end of a connection. `wireloom.Peer` documents each method in full.

    Every method blocks until it is done. Several threads may use one peer at the same time.
    """

    def __init__(self, portal: Portal, inner: peers.Peer) -> None:
        self._portal = portal
        self._inner = inner

    # Publish

    def publish(
        self,
        topic: str,
        body: object = None,
        *,
        ack: bool = False,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send an event. With `ack` this returns when the peer has acknowledged it."""
        self._portal.run(self._inner.publish(topic, body, ack=ack, timeout=timeout, attributes=attributes))

    def publish_many(
        self,
        topic: str | Callable[[Body], str],
        bodies: Iterable[Body],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> PublishMany:
        """Publish each body with an acknowledgement: `wait` for all, or iterate over the number acknowledged so far.

        The event loop's thread takes the bodies. So an iterable that blocks delays every synchronous peer.
        """
        inner = self._portal.call(
            lambda: self._inner.publish_many(
                topic, bodies, in_flight=in_flight, timeout=timeout, attributes=attributes, return_errors=return_errors
            )
        )
        return PublishMany(self._portal, inner)

    # Request

    @overload
    def request(
        self,
        topic: str,
        body: object = None,
        *,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> object: ...
    @overload
    def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: type[T],
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> T: ...
    @overload
    def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: object,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Any: ...
    def request(
        self,
        topic: str,
        body: object = None,
        *,
        returns: object = PLAIN,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request, and return the answer's value, of the type `returns` if given."""
        return self._portal.run(
            self._inner.request(topic, body, returns=returns, timeout=timeout, attributes=attributes)
        )

    @overload
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[object]: ...
    @overload
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        returns: type[T],
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[T]: ...
    def request_many(
        self,
        topic: str,
        bodies: Iterable[object],
        *,
        returns: Any = PLAIN,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
        return_errors: bool = False,
    ) -> Many[Any]:
        """Send a request for each body, `in_flight` at a time, and iterate over the answers in order."""
        inner = self._portal.call(
            lambda: self._inner.request_many(
                topic,
                bodies,
                returns=returns,
                in_flight=in_flight,
                timeout=timeout,
                attributes=attributes,
                return_errors=return_errors,
            )
        )
        return Many(self._portal, inner)

    def ask(self, message: Message, *, timeout: float | None = TIMEOUT) -> Message:
        """Send a request message, and return the answer message."""
        return self._portal.run(self._inner.ask(message, timeout=timeout))

    def ask_many(
        self,
        messages: Iterable[Message],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = TIMEOUT,
        return_errors: bool = False,
    ) -> Many[Message]:
        """Like `request_many`, but with requests and answers as messages."""
        inner = self._portal.call(
            lambda: self._inner.ask_many(messages, in_flight=in_flight, timeout=timeout, return_errors=return_errors)
        )
        return Many(self._portal, inner)

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
        returns: Any = PLAIN,
        steps: Any = PLAIN,
        timeout: float | None = TIMEOUT,
        attributes: Mapping[str, str] | None = None,
    ) -> Progress[Any, Any]:
        """Send a request that takes a while: iterate over its progress steps, then call `result`."""
        inner = self._portal.call(
            lambda: self._inner.request_progress(
                topic, body, returns=returns, steps=steps, timeout=timeout, attributes=attributes
            )
        )
        return Progress(self._portal, inner)

    def call(
        self,
        component: str,
        method: str,
        *arguments: object,
        returns: object = object,
        timeout: float | None = TIMEOUT,
    ) -> object:
        """Call a method of a component, in a protocol that has them, with typed values."""
        return self._portal.run(self._inner.call(component, method, *arguments, returns=returns, timeout=timeout))

    # Subscribe, provide

    def subscribe(
        self, pattern: str, *, local: bool = False, since: str | datetime | None = None, retained: bool = False
    ) -> Subscription:
        """Events of topics that match a pattern. The other end has the subscription when this returns."""

        async def begin() -> peers.Subscription:
            found = self._inner.subscribe(pattern, local=local, since=since, retained=retained)
            await found.start()
            return found

        return Subscription(self._portal, self._portal.run(begin()))

    def messages(self) -> MessageStream:
        """Every message from the other end from now on, including those with a handler."""
        return MessageStream(self._portal, self._portal.call(self._inner.messages))

    def provide(self, *topics: str) -> None:
        """Tell a hub that requests for these topics or patterns come to this peer's handler."""
        self._portal.run(self._inner.provide(*topics))

    def stop_providing(self, *topics: str) -> None:
        """Tell the hub that this peer no longer provides these topics."""
        self._portal.run(self._inner.stop_providing(*topics))

    # Values

    @overload
    def value(self, message: Message) -> object: ...
    @overload
    def value(self, message: Message, kind: type[T], /) -> T: ...
    @overload
    def value(self, message: Message, kind: object, /) -> Any: ...
    def value(self, message: Message, *kind: object) -> Any:
        """The value of a message's body; the same as `Message.value`."""
        return self._inner.decode(message, *kind)

    def decode(self, message: Message, *kind: object) -> Any:
        """The value of a message's body, of a type if one is given. The inverse of `encode`."""
        return self._inner.decode(message, *kind)

    def encode(self, value: object) -> tuple[bytes, str | None]:
        """A value as a body and its content type, in the format agreed with this peer."""
        return self._inner.encode(value)

    # The rest

    def send(self, message: Message) -> Message:
        """Send any message unchanged, for features of one protocol. Returns it with its id."""
        return self._portal.call(lambda: self._inner.send(message))

    def send_event(self, topic: str, body: object = None) -> None:
        """Send an event without waiting for back-pressure; see `is_slow`."""
        self._portal.call(lambda: self._inner.send_event(topic, body))

    def cancel(self, request: Message, *, kill: bool = False) -> None:
        """Ask the peer to stop working on a request (as returned by `send`). With `kill` no answer follows."""
        self._portal.call(lambda: self._inner.cancel(request, kill=kill))

    def drain(self) -> None:
        """Wait until more can be sent."""
        self._portal.run(self._inner.drain())

    def abort(self) -> None:
        """Drop the connection at once."""
        self._portal.call(self._inner.abort)

    def close(self, reason: str = "", *, drain: float = DRAIN) -> None:
        """Finish what is in flight, for at most `drain` seconds, then close politely."""

        async def work() -> None:
            await self._inner.close(reason, drain=drain)
            self._portal.open.discard(self._inner)

        if self._portal.is_running:
            self._portal.run(work())

    @property
    def connected(self) -> bool:
        """Whether the session is open now."""
        return self._inner.connected

    @property
    def is_slow(self) -> bool:
        """Whether `drain` should be called before more is sent."""
        return self._inner.is_slow

    @property
    def name(self) -> str:
        """The address of the other end."""
        return self._inner.name

    @property
    def unhandled(self) -> int:
        """Messages that arrived and that nobody handled."""
        return self._inner.unhandled

    @property
    def protocol(self) -> Protocol:
        """The protocol of the connection."""
        return self._inner.protocol

    @property
    def session(self) -> Session:
        """The protocol's own session, for features of one protocol."""
        return self._inner.session

    @property
    def pipe(self) -> Pipe:
        """The connection: addresses and TLS."""
        return self._inner.pipe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(Peer):
    """The peer at the other end of a connection that this end made. Made by `connect`."""

    def __init__(self, portal: Portal, inner: peers.Client) -> None:
        super().__init__(portal, inner)
        self._client = inner

    @property
    def url(self) -> str:
        """The URL of this peer, after redirects."""
        return self._client.url

    @property
    def reconnects(self) -> int:
        """How often the client reconnected."""
        return self._client.reconnects

    def stop_reconnecting(self) -> None:
        """Stop trying to connect. If the connection is lost, everything ends now."""
        self._portal.call(self._client.stop_reconnecting)
