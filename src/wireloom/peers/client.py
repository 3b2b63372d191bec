"""`connect`: a peer at a URL, with automatic reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from typing import Self

from wireloom.model import (
    ConfigError,
    HandshakeFailed,
    Kind,
    Message,
    NotSupported,
    PeerClosed,
    RequestFailed,
    RequestTimeout,
    WireloomError,
)
from wireloom.peers.backoff import Backoff
from wireloom.peers.driver import Driver
from wireloom.peers.endpoint import Endpoint, endpoint
from wireloom.peers.handlers import Handler, Service
from wireloom.peers.inbox import Inbox
from wireloom.peers.peer import CONCURRENCY, DRAIN, Peer
from wireloom.peers.peer_core import PROVIDE, QUEUE, SUBSCRIBE, TIMEOUT, operation
from wireloom.peers.pending_calls import Call
from wireloom.peers.send_queue import fresh
from wireloom.protocols.contract import LOGIN, Role
from wireloom.transports import TLS, Options
from wireloom.transports.busy_poll import BUSY_POLL
from wireloom.transports.tls import client_context

LOG = logging.getLogger("wireloom.peers")
MAX_REDIRECTS = 5
CONNECT_TIMEOUT = 10.0
CONFIRM_TIMEOUT = 1.0
"""Seconds that connecting waits for the handler's subscriptions to be confirmed.

A peer that does not answer by then sends events without subscriptions.
"""


def connect(
    url: str,
    *,
    handler: Handler | None = None,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[int, str] | None = None,
    tls: TLS | ssl.SSLContext | None = None,
    token: str | None = None,
    reconnect: bool | Backoff = True,
    resend: bool = False,
    queue: int = QUEUE,
    concurrency: int = CONCURRENCY,
    timeout: float = CONNECT_TIMEOUT,
    busy_poll: float = BUSY_POLL,
) -> Client:
    """A peer at a URL; use it with `async with`, or await it and close it yourself.

        async with wireloom.connect("hsp://127.0.0.1:5042") as peer:
            await peer.publish("sensors/kitchen", {"c": 21.5})

    - `handler` handles requests and events from the other end. The events of a `Service` are subscribed to.
    - `settings` are the protocol's settings by name. `topics` are numbers that stand for topics, in protocols that
      number them.
    - `tls` holds certificates, for schemes with TLS.
    - `token` proves our identity to a hub. It is the first request on every connection.
    - `reconnect` says whether, and how fast, to reconnect after a connection is lost. A redirect is always followed.
      With `resend`, unanswered requests are sent again; otherwise they fail with PeerClosed.
    - `queue` is how many messages a subscription holds before reading from the connection stops.
    - `timeout` is for one attempt to connect, including the handshake.
    - `busy_poll` is for how many seconds the event loop polls after a read without sleeping, if the next read usually
      comes within this time. It shortens sequential round trips to a fraction, and uses a whole core while they last.
      0: no busy polling.
    """
    return Client(
        endpoint(url),
        handler=handler,
        settings=settings,
        topics=topics,
        tls=tls,
        token=token,
        backoff=reconnect if isinstance(reconnect, Backoff) else Backoff() if reconnect else None,
        resend=resend,
        queue=queue,
        concurrency=concurrency,
        timeout=timeout,
        busy_poll=busy_poll,
    )


class Client(Peer):
    """The peer at the other end of a connection that this end made."""

    def __init__(
        self,
        place: Endpoint,
        *,
        handler: Handler | None,
        settings: Mapping[str, object] | None,
        topics: Mapping[int, str] | None,
        tls: TLS | ssl.SSLContext | None,
        token: str | None,
        backoff: Backoff | None,
        resend: bool,
        queue: int,
        concurrency: int,
        timeout: float,
        busy_poll: float,
    ) -> None:
        super().__init__(place.protocol, handler=handler, queue=queue, concurrency=concurrency)
        self._home = self._place = place
        self._settings = place.protocol.settings(place.settings_with(settings))
        self._sessions = place.protocol.sessions(self._settings, topics)
        if token is not None and not place.protocol.takes_tokens:
            raise ConfigError(f"{place.protocol.name} has no way to show a token")
        self._tls = tls
        self._token = token
        self._login: Call | None = None
        """The login request, while its answer is awaited."""
        self._backoff = backoff
        self._delays: Iterator[float] | None = None
        self._resend = resend
        self._timeout = timeout
        self._busy_poll = busy_poll
        self._redirect: str | None = None
        self._redirects = 0
        """How many redirects were followed in a row."""
        self._opened_at = 0.0
        self._opening: asyncio.Future[None] | None = None
        self._up = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self._last_error: WireloomError | None = None
        self._handled_events = handler.event_topics if isinstance(handler, Service) else ()
        """Topics of the handler's events. They are subscribed on every connection."""
        self._confirmed: list[asyncio.Future[Message]] = []
        """The answers to those subscriptions."""
        self.reconnects = 0
        """How often the client reconnected."""

    @property
    def url(self) -> str:
        """The URL of this peer, after redirects."""
        return self._place.url

    async def open(self) -> Self:
        """Connect; called by `async with` and by `await`."""
        if self._driver is not None:
            return self
        try:
            await self._open()
        except WireloomError as error:
            if self._backoff is None or not self._backoff.from_start:
                self._end(error)
                raise
            await self._try_again(error)
            self._check()
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    def stop_reconnecting(self) -> None:
        """Stop trying to connect. If the connection is lost, everything ends now."""
        self._backoff = None
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            self._end(fresh(self._last_error or PeerClosed("reconnecting was stopped")))

    async def close(self, reason: str = "", *, drain: float = DRAIN) -> None:
        """Finish what is in flight, close politely, and stay closed."""
        self._backoff = None
        task, self._reconnecting = self._reconnecting, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await super().close(reason, drain=drain)

    # Connecting

    async def _open(self) -> None:
        """Connect, and follow redirects. The session is open when this returns."""
        learnt = False
        while True:
            self._redirect = None
            try:
                await self._open_at(self._place)
                return
            except WireloomError as error:
                if self._driver is None:
                    raise  # no session was made: there is nothing to release
                self._let_go(error)
                if not learnt and self._sessions.learn(self._current().session, self._place.url):
                    learnt = True
                    continue
                if not self._follow():
                    self._place = self._home
                    raise

    async def _open_at(self, place: Endpoint) -> None:
        session = self._sessions.new(Role.CLIENT, unique=secrets.randbits(64), url=place.url)
        self._opening = opening = asyncio.get_running_loop().create_future()
        driver = Driver(session, on_batch=self._take, on_open=self._on_open, on_end=self._on_end)
        self._attach(driver)
        tls = client_context(self._tls) if place.secure else None
        certificates = self._tls if isinstance(self._tls, TLS) else None
        hostname = certificates.server_hostname if certificates is not None else None
        try:
            async with asyncio.timeout(self._timeout):
                options = Options(
                    tls=tls, server_hostname=hostname, certificates=certificates, busy_poll=self._busy_poll
                )
                await place.transport.connect(place.address, driver, options)
                await opening
                if self._login is not None:
                    await self._login.answer
            if self._confirmed:
                await asyncio.wait(self._confirmed, timeout=min(self._timeout, CONFIRM_TIMEOUT))
        except RequestFailed as error:
            driver.give_up()
            raise HandshakeFailed(f"{place.url} refused the token: {error}") from None
        except WireloomError:
            driver.give_up()
            raise
        except TimeoutError:
            driver.give_up()
            speaks = f"does it speak {place.protocol.name}?"
            raise HandshakeFailed(f"{place.url} did not answer within {self._timeout:g} s; {speaks}") from None
        except OSError as error:
            driver.give_up()
            raise PeerClosed(f"cannot reach {place.url}: {why_unreachable(error)}") from error
        except BaseException:
            driver.give_up()
            raise
        finally:
            self._opening = self._login = None

    def _on_open(self) -> None:
        self._opened_at = asyncio.get_running_loop().time()
        self._restore()
        self._up.set()
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)

    def _on_end(self, error: WireloomError) -> None:
        opening = self._opening
        if opening is not None:
            if not opening.done():
                opening.set_exception(error)
                opening.exception()  # mark it as retrieved: nobody may await it
            if self._login is not None:
                self._login.fail(error)
            self._gone.set()
        else:
            self._lost(error)

    def _lost(self, error: WireloomError) -> None:
        """The connection is lost: fail what waits, and start to reconnect."""
        self._up.clear()
        self._last_error = error
        if (self._backoff is None and self._redirect is None) or self._closing or self._over is not None:
            super()._lost(error)
            return
        self._let_go(error)
        self._gone.set()
        self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect(error))

    def _let_go(self, error: WireloomError) -> None:
        """Fail the requests sent over this connection, and stop the handlers of requests received over it."""
        driver = self._driver
        assert driver is not None
        if not self._resend:
            self._calls.fail_all(error)
        else:
            self._calls.fail_progressive(error)
        self._answers.connection_lost(driver)

    async def _reconnect(self, error: WireloomError) -> None:
        LOG.info("%s; connecting again", error)
        try:
            if self._backoff is None:
                await self._go_where_redirected()
            else:
                await self._try_again(error)
        finally:
            self._reconnecting = None

    async def _go_where_redirected(self) -> None:
        """Follow a redirect even without automatic reconnect."""
        if asyncio.get_running_loop().time() - self._opened_at >= Backoff().stable:
            self._redirects = 0
        try:
            self._follow()
            await self._open()
        except WireloomError as error:
            self._end(error)

    async def _try_again(self, error: WireloomError) -> None:
        assert self._backoff is not None
        loop = asyncio.get_running_loop()
        if self._delays is None or loop.time() - self._opened_at >= self._backoff.stable:
            self._delays = self._backoff.delays()
            self._redirects = 0
        try:
            self._follow()
        except HandshakeFailed as refused:
            error = self._last_error = refused
        for delay in self._delays:
            await self._backoff.sleep(delay)
            try:
                await self._open()
            except WireloomError as again:
                error = self._last_error = again
            else:
                self.reconnects += 1
                return
        self._end(error)

    def _restore(self) -> None:
        """After a reconnect: subscribe and provide again, and resend unanswered requests."""
        driver = self._driver
        assert driver is not None
        calls = self._calls.take_all()
        try:
            if self._token is not None:
                self._login = Call(_show(self._token), TIMEOUT, self._loop)
                self._dispatch(self._login, driver)
            for pattern, inboxes in self._announced.items():
                self._ask_again(operation(SUBSCRIBE, pattern), inboxes)
            for replay in self._replays.running():
                self._ask_again(replay.request(), [replay.inbox])
            for topic in self._provided:
                self._ask_again(operation(PROVIDE, topic), [])
            self._subscribe_for_handler()
            while calls:
                self._dispatch(calls[0], driver)
                calls.pop(0)
        except WireloomError as error:
            for call in (*calls, *([self._login] if self._login is not None else ())):
                call.fail(fresh(error))

    def _subscribe_for_handler(self) -> None:
        """Subscribe to the handler's events, if the protocol has subscriptions."""
        self._confirmed = []
        with contextlib.suppress(NotSupported):
            for each in self._handled_events:
                self._confirmed.append(self._ask_again(operation(SUBSCRIBE, each), []))

    def _forget(self, pattern: str, inbox: Inbox[Message]) -> bool:
        """Remove a subscription.

        Returns False if the pattern is still needed here; the handler always needs its own.
        """
        return super()._forget(pattern, inbox) and pattern not in self._handled_events

    def _ask_again(self, request: Message, inboxes: list[Inbox[Message]]) -> asyncio.Future[Message]:
        """Repeat a subscription or provide request. If it is refused now, the iterators of its events get the error."""
        call = Call(request, TIMEOUT, self._loop)

        def answered(answer: asyncio.Future[Message]) -> None:
            error = answer.exception()
            if isinstance(error, RequestFailed):
                LOG.warning("%s does not grant %s %r: %s", self.url, request.topic, request.body, error)
                for inbox in inboxes:
                    inbox.close(error)

        call.answer.add_done_callback(answered)
        self._dispatch(call, self._current())
        return call.answer

    async def _ready(self, timeout: float | None) -> Driver:  # noqa: ASYNC109
        while True:
            self._check()
            if self._driver is not None and self._driver.is_open:
                return self._driver
            if self._driver is None:
                raise PeerClosed("not connected yet: use `async with connect(...) as peer`")
            if self._closing:
                raise PeerClosed(f"the connection to {self.url} is closing")
            if self._backoff is None and self._reconnecting is None:
                return await super()._ready(timeout)
            # A connection may be closing for some time before it is lost.
            self._up.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._wait_up()
            except TimeoutError:
                why = f": {self._last_error}" if self._last_error else ""
                raise RequestTimeout(f"not connected to {self.url} within {timeout:g} s{why}") from None

    async def _wait_up(self) -> None:
        """Wait until there is a connection, or no more attempts."""
        up: asyncio.Future[object] = asyncio.ensure_future(self._up.wait())
        try:
            await asyncio.wait((up, self._hopeless), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()

    # Redirects

    def _redirected(self, message: Message) -> None:
        """Store a redirect. It is followed when the other end has closed."""
        self._redirect = message.attributes.get("url") or message.body.decode(errors="replace")

    def _follow(self) -> bool:
        """Go to the target of the last redirect. Returns False if there was none.

        If a redirect is not followed, the next attempt goes to the original URL.
        """
        url, self._redirect = self._redirect, None
        if url is None:
            self._redirects = 0
            return False
        place, self._place = self._place, self._home
        if self._redirects == MAX_REDIRECTS:
            self._redirects = 0
            raise HandshakeFailed(f"{self._home.url} redirected more than {MAX_REDIRECTS} times in a row")
        try:
            self._place = endpoint(self.protocol.redirected(url, self._settings, secure=place.secure))
        except (NotSupported, ConfigError) as error:
            raise HandshakeFailed(f"{place.url} redirects to {url}, which is not followed: {error}") from error
        self._redirects += 1
        return True


def _show(token: str) -> Message:
    body = json.dumps({"token": token}).encode()
    return Message(Kind.REQUEST, LOGIN, body, content_type="application/json")


def why_unreachable(error: OSError) -> str:
    """Why connecting failed, in short words, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message})"
        return f"{why}; name its authority: --ca FILE of the commands, TLS(ca=...) in Python"
    text = error.strerror or str(error) or type(error).__name__
    if isinstance(error, socket.gaierror):
        return f"{text}: no such host is known; check the name in the URL"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS; use the scheme without TLS, or check the port"
    if isinstance(error, ConnectionResetError):
        return "it hung up during the handshake; check scheme and port in the URL"
    if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
        return f"{os.strerror(error.errno)}: nothing listens there; start the server, or check the URL"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT):
        return f"{text}: check the address, and that a firewall lets this machine reach it"
    return text
