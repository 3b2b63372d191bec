"""The internals of a peer: its driver, its pending calls, and the dispatch of incoming messages.

`Peer` adds the public API.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from wireloom.chunked_json import LARGE
from wireloom.model import (
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    RequestTimeout,
    WireloomError,
    encode_value,
    plain_value,
    typed_value,
)
from wireloom.peers.driver import Driver
from wireloom.peers.handler_runner import Answers
from wireloom.peers.inbox import Inbox
from wireloom.peers.pending_calls import Call, PendingCalls, Waiting
from wireloom.peers.replays import ReplaySubscriptions
from wireloom.peers.send_queue import PIECE, fresh
from wireloom.protocols.contract import HUB_PREFIX, Batch, Format, Protocol, Session
from wireloom.topics import Subscriptions

if TYPE_CHECKING:
    from wireloom.transports import Pipe

SUBSCRIBE, UNSUBSCRIBE = HUB_PREFIX + "subscribe", HUB_PREFIX + "unsubscribe"
PROVIDE, WITHDRAW = HUB_PREFIX + "provide", HUB_PREFIX + "withdraw"

TIMEOUT = 30.0
"""Default seconds that a request waits for its answer."""
QUEUE = 1024
"""Messages that a subscription holds before reading from the connection stops."""

FULL = "; input is not read because a queue of this end is full"

_NUMBERS = count(1)
T = TypeVar("T")
_EVENT, _REQUEST = Kind.EVENT, Kind.REQUEST
_CANCEL, _REDIRECT = Kind.CANCEL, Kind.REDIRECT
_ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR, Kind.PROGRESS, Kind.ACK))


class Channel:
    """Connects a peer with its driver, which changes with every reconnect."""

    _answers: Answers

    def __init__(self, protocol: Protocol, queue: int) -> None:
        self.protocol = protocol
        self._queue = queue
        self._driver: Driver | None = None
        self._loop = asyncio.get_running_loop()
        self._calls = PendingCalls(self._give_up, lambda: FULL if self._holds else "")
        self._subscriptions: Subscriptions[Inbox[Message]] = Subscriptions()
        self._announced: dict[str, list[Inbox[Message]]] = {}
        """Patterns that the other end was asked for, with the subscriptions that need each."""
        self._provided: dict[str, None] = {}
        """Topics that this end provides, as the hub was told."""
        self._replays = ReplaySubscriptions()
        """Subscriptions to past events, by their name at the other end."""
        self._streams: list[Inbox[Message]] = []
        self._holds: set[str] = set()
        self._over: WireloomError | None = None
        """Why nothing can be sent any more; None while a connection is still possible."""
        self._hopeless: asyncio.Future[object] = self._loop.create_future()
        self._closing = False
        self._gone = asyncio.Event()
        self._unhandled = 0
        self._last_form: tuple[str | None, Format | None] = (None, None)
        """The content type that was decoded last, with its format. The next body usually has the same."""

    @property
    def connected(self) -> bool:
        """Whether the session is open now."""
        return self._driver is not None and self._driver.is_open

    @property
    def session(self) -> Session:
        """The protocol's own session, for features of one protocol."""
        return self._current().session

    @property
    def pipe(self) -> Pipe:
        """The connection: addresses and TLS."""
        return self._current().pipe

    @property
    def name(self) -> str:
        """The address of the other end."""
        return self._driver.pipe.peername if self._driver is not None and self._driver._pipe is not None else ""

    @property
    def _is_busy(self) -> bool:
        """Whether incoming messages are still being handled."""
        return self._answers.is_busy

    # Values

    def encode(self, value: object) -> tuple[bytes, str | None]:
        """A value as a body and its content type, in the format agreed with this peer."""
        agreed = None if self._driver is None else self._driver.session.content_type
        if value.__class__ is bytes:
            return value, agreed
        if agreed is not None and not isinstance(value, bytearray | memoryview):
            form = self.protocol.format_for(agreed)
            if form is not None:
                return form.dumps(value), agreed
        body, content_type = encode_value(value)
        return body, content_type or agreed

    def decode(self, message: Message, *kind: object) -> Any:
        """The value of a message's body, of a type if one is given. The inverse of `encode`."""
        if kind:
            return typed_value(message.body, message.content_type, kind[0], self._value_of)
        if message.content_type is None:
            return message.body
        return self._value_of(message.body, message.content_type)

    def _value_of(self, body: bytes, content_type: str) -> object:
        known, form = self._last_form
        if content_type != known:
            form = self.protocol.format_for(content_type)
            self._last_form = (content_type, form)
        return plain_value(body, content_type) if form is None else form.loads(body)

    @overload
    async def value(self, message: Message) -> object: ...
    @overload
    async def value(self, message: Message, kind: type[T], /) -> T: ...
    @overload
    async def value(self, message: Message, kind: object, /) -> Any: ...
    async def value(self, message: Message, *kind: object) -> Any:
        """Like `Message.value`, but a large body is decoded by another thread, so that the event loop is not blocked.

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
            return self.decode(message, *kind)
        return await self._elsewhere(lambda: self.decode(message, *kind))

    # Called by the driver and its owner

    def _attach(self, driver: Driver) -> None:
        """Use this driver from now on."""
        self._driver = driver
        self._gone.clear()
        for reason in self._holds:
            driver.hold(reason)

    def _take(self, batch: Batch) -> None:
        """Handle the messages of one read. After each `PIECE` messages their answers are written."""
        driver = self._driver
        assert driver is not None
        for place, message in enumerate(batch.messages, 1):
            kind = message.kind
            wanted = True
            if kind is _REQUEST:
                self._answers.request(message, driver)
            elif kind in _ANSWERS:
                wanted = self._calls.settle(message)
            elif kind is _EVENT:
                wanted = self._take_event(message)
            elif kind is _CANCEL:
                self._answers.cancel(message, driver)
            elif kind is _REDIRECT:
                self._redirected(message)
            if self._streams:
                for stream in self._streams:
                    stream.put(message)
            elif not wanted:
                self._unhandled += 1
            if place % PIECE == 0:
                self._answers.send_ready(driver)
                driver.write_pending()
        self._answers.send_ready(driver)

    def _take_event(self, message: Message) -> bool:
        if self._replays and self._replays.take(message):
            return True
        if message.topic is None and self._driver is not None and not self._driver.session.hears_topics:
            takers = tuple(self._subscriptions.subscribers())
        else:
            takers = self._subscriptions.lookup(message.topic or "")
        for taker in takers:
            taker.put(message)
        if self._answers.wants_events:
            self._answers.event(message)
            return True
        return bool(takers)

    def _redirected(self, message: Message) -> None:
        """The other end sent a redirect. Only clients follow it."""

    def _lost(self, error: WireloomError) -> None:
        """The connection is lost: fail every pending call. Without a reconnect everything ends."""
        driver = self._driver
        assert driver is not None
        if self._closing:
            error = PeerClosed("the connection was closed by this end")
        self._calls.fail_all(error)
        self._answers.connection_lost(driver)
        self._gone.set()
        self._end(error)

    async def _finished(self) -> None:
        """Wait until all incoming messages are handled."""
        await self._answers.finished()

    def _end(self, error: WireloomError) -> None:
        """End everything: nothing can be sent or received any more."""
        if self._over is not None:
            return
        self._over = error
        if not self._hopeless.done():
            self._hopeless.set_result(None)
        self._calls.fail_all(error)
        self._answers.end()
        quiet = self._closing
        for inbox in (*self._subscriptions.subscribers(), *self._streams, *self._replays.inboxes()):
            inbox.close(None if quiet else fresh(error))

    def _hold(self, reason: str) -> None:
        """Stop reading from the connection until `_release`."""
        self._holds.add(reason)
        if self._driver is not None:
            self._driver.hold(reason)

    def _release(self, reason: str) -> None:
        """Resume reading."""
        self._holds.discard(reason)
        if self._driver is not None:
            self._driver.release(reason)

    # Subscriptions

    async def _open_subscription(
        self, pattern: str, inbox: Inbox[Message], *, local: bool, retained: bool = False
    ) -> bool:
        """Register a subscription, and ask the other end for it. Returns True if it was asked."""
        self._check()
        self._subscriptions.add(pattern, inbox)
        if local:
            return False
        needed_by = self._announced.setdefault(pattern, [])
        needed_by.append(inbox)
        try:
            if len(needed_by) == 1 or retained:
                await self.ask(operation(SUBSCRIBE, pattern, {"retained": True} if retained else {}))
        except NotSupported:
            self._forget(pattern, inbox)
            return False
        except BaseException:
            self._forget(pattern, inbox)
            self._subscriptions.remove(pattern, inbox)
            raise
        return True

    def _drop_subscription(self, pattern: str, inbox: Inbox[Message], *, announced: bool) -> None:
        """Remove a subscription. The other end is told when no subscription needs the pattern any more."""
        self._subscriptions.remove(pattern, inbox)
        inbox.discard()
        if announced and self._forget(pattern, inbox) and self.connected:
            try:
                self._send_and_forget(operation(UNSUBSCRIBE, pattern))
            except WireloomError:
                return  # a lost connection has no subscriptions

    def _send_and_forget(self, request: Message) -> None:
        """Send a request whose answer nobody waits for."""
        self._dispatch(Call(request, TIMEOUT, self._loop), self._current())

    def _drop_stream(self, inbox: Inbox[Message]) -> None:
        """Remove a stream of all messages."""
        if inbox in self._streams:
            self._streams.remove(inbox)
        inbox.discard()

    def _forget(self, pattern: str, inbox: Inbox[Message]) -> bool:
        needed_by = self._announced[pattern]
        needed_by.remove(inbox)
        if needed_by:
            return False
        del self._announced[pattern]
        return True

    def _inbox(self) -> Inbox[Message]:
        reason = f"queue {next(_NUMBERS)}"
        return Inbox(self._queue, lambda: self._hold(reason), lambda: self._release(reason))

    # Calls

    async def ask(self, message: Message, *, timeout: float | None = TIMEOUT) -> Message:  # noqa: ASYNC109
        """Send a request message, and return the answer message."""
        call = Call(message, timeout, self._loop)
        driver = self._driver
        if driver is None or not driver.has_room:
            driver = await self._room(timeout)
        self._dispatch(call, driver)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._withdraw(call)
            raise

    async def _send_progressive(self, call: Call) -> None:
        """Send a request with progress steps."""
        self._dispatch(call, await self._room(call.patience))

    async def _room(self, timeout: float | None) -> Driver:  # noqa: ASYNC109
        """Wait until the driver is open and accepts more. Raises RequestTimeout after `timeout` seconds."""
        while True:
            driver = await self._ready(timeout)
            if not driver.writing_is_paused:
                return driver
            try:
                async with asyncio.timeout(timeout):
                    await driver.drain()
            except TimeoutError:
                where = self.name or "the peer"
                raise RequestTimeout(f"{where} reads too slowly: no room for a request within {timeout:g} s") from None

    def _dispatch(self, call: Waiting, driver: Driver, *, followed: bool | None = None) -> None:
        """Send a request, and register it for its answer. `followed`: others will probably be sent right after it.

        By default this is assumed while other requests wait for their answers.
        """
        if followed is None:
            followed = bool(self._calls.waiting)
        sent = driver.send(call.request, followed=followed)
        if sent.id is None:
            raise NotSupported(f"{self.protocol.name} has no requests")
        self._calls.add(call, sent.id)

    def _dispatch_all(self, calls: Sequence[Waiting], driver: Driver, *, followed: bool) -> None:
        """Send requests together, or one by one. An error of one request becomes its outcome."""
        for start in range(0, len(calls), PIECE):
            piece = calls[start : start + PIECE]
            ids = None
            if len(piece) > 1:
                ids = driver.send_requests([call.request for call in piece], followed=followed)
            if ids is not None:
                self._calls.add_all(piece, ids)
                continue
            for call in piece:
                try:
                    self._dispatch(call, driver, followed=followed)
                except WireloomError as error:
                    call.fail(error)

    def _withdraw(self, call: Waiting) -> None:
        """Remove a call that nobody waits for."""
        if call.id and self._calls.remove(call.id) is not None:
            self._give_up(call)
        if call.steps is not None:
            call.steps.discard()

    def _give_up(self, call: Waiting) -> None:
        """Tell the peer that the answer is no longer wanted, if the protocol can express it."""
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
        """The open driver. A client that is reconnecting waits here."""
        driver = self._current()
        if not driver.is_open:
            raise PeerClosed(f"the connection to {self.name or 'the peer'} is closing")
        return driver

    async def _elsewhere(self, work: Callable[[], T]) -> T:
        """Run slow work on another thread."""
        return await self._loop.run_in_executor(None, work)


def operation(topic: str, pattern: str, options: Mapping[str, object] = MappingProxyType({})) -> Message:
    """The request for an operation of the hub profile on a pattern."""
    body = json.dumps({"topic": pattern, **options}).encode()
    return Message(Kind.REQUEST, topic, body, content_type="application/json")
