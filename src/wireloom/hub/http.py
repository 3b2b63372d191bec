"""The hub over HTTP: pages for operators, and the endpoint for CloudEvents.

A CloudEvent is posted to `/events/<topic>`, or to `/events` with its topic in its subject. It is published like an
event of any other peer, through an in-memory connection. So it is journaled, and answered once it is on disk.

Rights are checked first: no body is read if its sender may publish nothing. One body has limits of size and time, and
all bodies together have a limit of size. A batch is checked completely before any of it is published. It is checked in
small portions, so that the event loop can run other tasks in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakValueDictionary

from aiohttp import web

from wireloom.hub.access import ANONYMOUS, Grants, Right
from wireloom.hub.cloudevents import STRUCTURED, CloudEvent, NoCloudEvent, TooLarge, from_http, topic_in
from wireloom.hub.limits import OverRate
from wireloom.hub.logs import about
from wireloom.model import ConfigError, Kind, LimitExceeded, Message, RequestFailed, RequestTimeout, WireloomError
from wireloom.protocols.contract import PUBLISH
from wireloom.transports.http import KEEP_ALIVE, HttpLimits, HttpListener, answering, is_for
from wireloom.transports.portions import LONG

if TYPE_CHECKING:
    from wireloom.hub.config import HttpConfig
    from wireloom.hub.hub import Hub
    from wireloom.peers.client import Client

log = logging.getLogger("wireloom.hub")

_NAME = "http"
"""The label of this endpoint in metrics, in place of a protocol's name."""
_LINGERING = 2.0
"""Seconds for a client to read why its body was refused before the connection closes."""
_LARGE = 1024 * 1024
"""Bodies of at least this many bytes are joined on a thread."""
_LIMITS = {
    "connections": "http_connections",
    "address": "http_connections_per_address",
    "head": "handshake_seconds",
    "unread": "handshake_seconds",
    "body": "http_body_seconds",
    "bodies": "http_body_bytes",
}
"""The limit behind each reason to close or to refuse."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    body: str
    status: int = 200
    content_type: str = "text/plain"
    version: str = ""
    """The version parameter of the content type."""


Pages = Mapping[str, Callable[[], Page]]
Connect = Callable[[], "Client"]


class HttpServer:
    """Serves pages by path. Accepts CloudEvents if it has a connection to publish them."""

    def __init__(self, hub: Hub, config: HttpConfig, pages: Pages, connect: Connect | None) -> None:
        self._hub = hub
        self._config = config
        self._pages = pages
        self._connect = connect
        self._peer: Client | None = None
        self._connecting = asyncio.Lock()
        self._paying: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By principal: held while a request waits for its rate."""
        self._turn = asyncio.Lock()
        """Each waiter gets it in a later iteration of the loop. So each iteration handles one page, or one portion of a
        batch, however many requests there are.
        """
        application = web.Application(middlewares=[self._plainly])
        for path in pages:
            application.router.add_get(path, self._page)
        if connect is not None:
            for path in ("/events", "/events/{topic:.+}"):
                application.router.add_post(path, self._take, expect_handler=_not_yet)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=2.0,
            auto_decompress=False,
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=_LINGERING,
        )

    async def start(self) -> int:
        """Listen. Returns the port."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = HttpListener(self._runner.server, self._limits, self._closed)
        address = self._config.address
        try:
            return await self._listener.start(address, self._config.tls)
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"cannot listen on {address} for the hub's pages: {error.strerror or error}; "
                "stop whoever uses that port, or name another one under [http]"
            ) from None

    async def stop(self) -> None:
        """Finish requests in progress, then close."""
        self._listener.close()
        await self._runner.cleanup()

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._listener)

    def _limits(self) -> HttpLimits:
        limits = self._hub.config.limits
        return HttpLimits(limits.http_connections, limits.http_connections_per_address, limits.handshake_seconds)

    def _closed(self, why: str) -> None:
        metrics = self._hub.metrics
        self._hub.reached(_LIMITS.get(why))
        if why in ("connections", "address", "sockets"):
            metrics.turned_away.add(1, f"{_NAME}-{why}")
        else:
            metrics.cut_off.add(1, _NAME, why)

    async def disconnect(self) -> None:
        """Close the in-memory connection for events."""
        if self._peer is not None:
            with contextlib.suppress(WireloomError):
                await self._peer.close()

    @property
    def _most(self) -> int:
        return self._hub.config.limits.message_bytes

    @web.middleware
    async def _plainly(self, request: web.Request, handler: Callable[..., object]) -> web.StreamResponse:
        """Turn errors into a response of one line."""
        try:
            with answering(request.transport, request.content.is_eof):
                self._check_host(request)
                response: web.StreamResponse = await handler(request)  # type: ignore[misc]
        except web.HTTPNotFound:
            known = sorted(self._pages) + (["/events"] if self._connect else [])
            response = _said(404, f"not found; there are: {', '.join(known)}")
        except web.HTTPMethodNotAllowed as error:
            response = _said(405, f"{request.path} takes {', '.join(sorted(error.allowed_methods))}")
        except web.HTTPException as error:
            response = _said(error.status, error.text or error.reason)
            if "Retry-After" in error.headers:
                response.headers["Retry-After"] = error.headers["Retry-After"]
        response.headers.update(_HEADERS)
        if not request.content.is_eof():
            response.force_close()
        return response

    def _check_host(self, request: web.Request) -> None:
        for host in request.headers.getall("Host", ()):
            if not is_for(host, self._config.names):
                self._hub.metrics.denied.add(1, _NAME, "host")
                raise web.HTTPMisdirectedRequest(
                    text=f"this hub does not answer to the name {host[:100]!a}; its own names are hosts under [http]"
                )

    async def _page(self, request: web.Request) -> web.Response:
        async with self._turn:
            page = self._pages[request.path]()
        content_type = f"{page.content_type}{page.version}; charset=utf-8"
        return web.Response(body=page.body.encode(), status=page.status, headers={"Content-Type": content_type})

    # CloudEvents

    async def _take(self, request: web.Request) -> web.Response:
        topic = request.match_info.get("topic")
        # Before anything is read or parsed: an unauthorised client must cost nothing.
        identities = self._identities_of(request)
        grants = self._hub.access.grants(identities, local=self._config.local)
        poster = _Poster(request, identities, grants)
        try:
            named = topic or topic_in(request.headers)
            self._check_right(poster, None if named is None else self._hub.topic_limits.check(named))
            body = await self._read(poster)
            count = 0
            async for name, _ in self._events(poster, topic, body):
                self._check_right(poster, name)
                count += 1
            if topic is not None and count != 1:
                raise NoCloudEvent("a batch is posted to /events: each event names its topic as its subject")
            await self._pay(poster, count)
            await self._publish(poster, topic, body)
        except TooLarge as error:
            self._hub.reached("http_json_bytes")
            raise web.HTTPRequestEntityTooLarge(0, text=str(error)) from None
        except (NoCloudEvent, ConfigError) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        finally:
            self._hub.posted_bytes -= poster.held
        return web.Response(status=204)

    def _too_large(self) -> web.HTTPException:
        self._hub.reached("message_bytes")
        text = f"the body is larger than {self._most} bytes (message_bytes in [limits])"
        return web.HTTPRequestEntityTooLarge(self._most, text=text)

    def _check_right(self, poster: _Poster, topic: str | None) -> None:
        """Check the right to publish to a topic, or to any topic if it is not known yet."""
        allowed = poster.grants.may_at_all(Right.PUBLISH) if topic is None else poster.grants.may(Right.PUBLISH, topic)
        if not allowed:
            what = "anything" if topic is None else repr(topic)
            principal = (*poster.identities, ANONYMOUS)[0]
            self._warn("access.denied", poster.request, f"{principal} may not publish {what}")
            self._hub.metrics.denied.add(1, _NAME, Right.PUBLISH)
            raise web.HTTPForbidden(text=f"publishing {'' if topic is None else f'to {topic} '}is not allowed")

    async def _read(self, poster: _Poster) -> bytes:
        """Read the body, within the limits of size and time. `poster.held` counts its bytes."""
        hub, request, limits = self._hub, poster.request, self._hub.config.limits
        size = request.content_length or 0
        if size > self._most:
            raise self._too_large()
        if size > limits.http_json_bytes and request.content_type == STRUCTURED:
            raise TooLarge(limits.http_json_bytes)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(limits.http_body_seconds):
                while piece := await request.content.readany():
                    poster.held += len(piece)
                    hub.posted_bytes += len(piece)
                    if poster.held > self._most:
                        raise self._too_large()
                    if hub.posted_bytes > limits.http_body_bytes:
                        self._closed("bodies")
                        raise web.HTTPServiceUnavailable(
                            text="not kept: too much is posted at once (http_body_bytes in [limits]); try again",
                            headers={"Retry-After": "1"},
                        )
                    pieces.append(piece)
        except TimeoutError:
            self._closed("body")
            seconds = f"{limits.http_body_seconds:g} s (http_body_seconds in [limits])"
            raise web.HTTPRequestTimeout(text=f"the body did not arrive within {seconds}") from None
        except (ConnectionError, web.RequestPayloadError):
            raise web.HTTPBadRequest(text="the body did not arrive whole") from None
        if poster.held < _LARGE:
            return b"".join(pieces)
        return await asyncio.to_thread(b"".join, pieces)

    async def _events(self, poster: _Poster, topic: str | None, body: bytes) -> AsyncIterator[tuple[str, CloudEvent]]:
        """The events of a body with their topics. Each iteration of the loop parses one portion."""
        events = from_http(poster.request.headers, body, self._hub.config.limits.http_json_bytes)
        while True:
            async with self._turn:
                portion = list(_portion(events))
            if not portion:
                return
            for event in portion:
                yield self._hub.topic_limits.check(topic or event.topic or ""), event
            await asyncio.sleep(0)

    async def _publish(self, poster: _Poster, topic: str | None, body: bytes) -> None:
        """Publish the events of a body in order. Returns once all of them are on disk."""

        async def messages() -> AsyncIterator[Message]:
            async for name, event in self._events(poster, topic, body):
                yield Message(
                    Kind.REQUEST, PUBLISH + name, event.data, content_type=event.content_type, attributes=event.kept()
                )

        try:
            peer = await self._connected()
            async with peer.ask_many(messages(), timeout=self._hub.config.limits.request_timeout) as answers:
                async for _ in answers:
                    pass
        except LimitExceeded as error:
            raise web.HTTPRequestEntityTooLarge(self._most, text=str(error)) from None
        except RequestFailed as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except (RequestTimeout, WireloomError, OSError) as error:
            # It is unknown whether anything was stored, so the client may try again.
            raise web.HTTPServiceUnavailable(text=f"not kept: {error}") from None

    def _identities_of(self, request: web.Request) -> tuple[str, ...]:
        """The identities of a client. A wrong token ends the request."""
        hub = self._hub
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            attempts = hub.doorkeeper.attempts.of(request.remote or "")
            if attempts.is_empty(hub.now()):
                hub.metrics.logins.add(1, _NAME, "limited")
                self._warn("login.limited", request, "too many wrong tokens")
                raise web.HTTPTooManyRequests(text="too many wrong tokens came from this address")
            holder = hub.access.config.tokens.holder(token.strip())
            hub.metrics.logins.add(1, _NAME, "refused" if holder is None else "accepted")
            if holder is None:
                attempts.take(1, hub.now())
                self._warn("login.refused", request, "the token is not known here")
                raise web.HTTPUnauthorized(text="this token is not known here")
            return (f"token:{holder}",)
        if request.headers.get("Origin") is not None and not hub.access.config.rules:
            raise web.HTTPForbidden(text="web pages may post events only with a token; see [access]")
        return ()

    async def _pay(self, poster: _Poster, count: int) -> None:
        """Charge a client for its events. Over its rate, it waits or is refused, as `over_rate` says.

        Requests of one principal over many connections wait in order, and no longer than a body may take.
        """
        hub, address = self._hub, poster.request.remote or ""
        principal = (*poster.identities, address)[0]
        bucket = hub.doorkeeper.bucket(principal, address, stranger=poster.grants.nothing)
        if bucket is None:
            return
        limits = hub.config.limits
        policy, most = limits.over_rate, limits.http_body_seconds
        if policy is OverRate.REFUSE:
            if bucket.is_empty(hub.now()):
                self._over_rate(policy, "too many events; try again later")
            bucket.take(count, hub.now())
        elif count / bucket.rate > most:
            self._over_rate(policy, f"a batch of {count} events takes longer than {most:g} s at your rate")
        else:
            try:
                async with asyncio.timeout(most), self._paying.setdefault(principal, asyncio.Lock()):
                    await self._wait(bucket.take(count, hub.now()))
            except TimeoutError:
                self._over_rate(policy, "too many events at once; try again later")

    async def _wait(self, delay: float) -> None:
        if delay > 0:
            self._hub.metrics.over_rate.add(1, _NAME, OverRate.PAUSE)
            self._hub.reached("messages_per_second")
            await asyncio.sleep(delay)

    def _over_rate(self, policy: OverRate, text: str) -> NoReturn:
        self._hub.metrics.over_rate.add(1, _NAME, policy)
        self._hub.reached("messages_per_second")
        raise web.HTTPTooManyRequests(text=text)

    def _warn(self, event: str, request: web.Request, what: str) -> None:
        log.warning("events posted from %s: %s", request.remote, what, extra=about(event))

    async def _connected(self) -> Client:
        assert self._connect is not None
        async with self._connecting:
            if self._peer is None:
                self._peer = await self._connect()
            return self._peer


@dataclass(slots=True)
class _Poster:
    """A client that posts events, and how many bytes are held for it."""

    request: web.Request
    identities: tuple[str, ...]
    grants: Grants
    held: int = 0


def _portion(events: Iterator[CloudEvent]) -> Iterator[CloudEvent]:
    """As many events as can be parsed in a short time, and at least one."""
    until = time.monotonic() + LONG
    for event in events:
        yield event
        if time.monotonic() > until:
            return


async def _not_yet(request: web.Request) -> None:
    """Delay the response to `Expect: 100-continue` until rights are checked and the body is read."""


def _said(status: int, text: str) -> web.Response:
    return web.Response(
        body=json.dumps({"error": text}).encode() + b"\n", status=status, content_type="application/json"
    )
