"""The hub over HTTP: pages for those who watch it, and the endpoint where CloudEvents come in.

A CloudEvent that is posted to `/events/<topic>` (or to `/events`, for the topic that its subject names) is published
like an event of any other peer: it goes through a connection of its own inside this process, so that the journal has
it, and it is answered once the journal has it on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from wireloom.hub.access import ANONYMOUS, Grants, Right
from wireloom.hub.cloudevents import CloudEvent, NoCloudEvent, from_http
from wireloom.hub.limits import OverRate
from wireloom.hub.logs import about
from wireloom.model import ConfigError, Kind, LimitExceeded, Message, RequestFailed, RequestTimeout, WireloomError
from wireloom.protocols.contract import PUBLISH
from wireloom.transports.address import Address

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub
    from wireloom.peers.client import Client

log = logging.getLogger("wireloom.hub")

_NAME = "http"
"""Of this way in, where metrics have the name of a protocol."""
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: str
    status: int = 200
    content_type: str = "text/plain"
    version: str = ""
    """A parameter of the content type."""


Pages = Mapping[str, Callable[[], Page]]
Connect = Callable[[], "Client"]


class HttpServer:
    """Serves pages by path, and takes CloudEvents if it has a way to publish them."""

    def __init__(self, hub: Hub, pages: Pages, connect: Connect | None, *, local: bool) -> None:
        self._hub = hub
        self._pages = pages
        self._connect = connect
        self._local = local
        self._peer: Client | None = None
        self._connecting = asyncio.Lock()
        application = web.Application(middlewares=[self._plainly])
        for path in pages:
            application.router.add_get(path, self._page)
        if connect is not None:
            application.router.add_post("/events", self._take)
            application.router.add_post("/events/{topic:.+}", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0, auto_decompress=False)

    async def start(self, address: Address, tls: ssl.SSLContext | None = None) -> int:
        """Listen; returns the port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, address.host, address.port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"cannot listen on {address} for the hub's pages: {error.strerror or error}; "
                "stop whoever uses that port, or name another one under [http]"
            ) from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Answer what is under way, then close."""
        await self._runner.cleanup()

    async def disconnect(self) -> None:
        """Let go of the connection that events go through."""
        if self._peer is not None:
            with contextlib.suppress(WireloomError):
                await self._peer.close()

    @property
    def _most(self) -> int:
        return self._hub.config.limits.message_bytes

    @web.middleware
    async def _plainly(self, request: web.Request, handler: Callable[..., object]) -> web.StreamResponse:
        """What goes wrong is said in one line."""
        try:
            response: web.StreamResponse = await handler(request)  # type: ignore[misc]
        except web.HTTPNotFound:
            known = sorted(self._pages) + (["/events"] if self._connect else [])
            response = _said(404, f"not found; there are: {', '.join(known)}")
        except web.HTTPMethodNotAllowed as error:
            response = _said(405, f"{request.path} takes {', '.join(sorted(error.allowed_methods))}")
        except web.HTTPRequestEntityTooLarge:
            response = _said(413, f"the body is larger than {self._most} bytes (message_bytes in [limits])")
        except web.HTTPException as error:
            response = _said(error.status, error.text or error.reason)
        response.headers.update(_HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        page = self._pages[request.path]()
        content_type = f"{page.content_type}{page.version}; charset=utf-8"
        return web.Response(body=page.body.encode(), status=page.status, headers={"Content-Type": content_type})

    # CloudEvents

    async def _take(self, request: web.Request) -> web.Response:
        topic = request.match_info.get("topic")
        # Before anything is read or parsed: a stranger costs nothing.
        identities = self._identities_of(request)
        grants = self._hub.access.grants(identities, local=self._local)
        body = await request.clone(client_max_size=self._most).read()
        try:
            events = from_http(request.headers, body)
            if topic is not None and len(events) != 1:
                raise NoCloudEvent("a batch is posted to /events: each event names its topic as its subject")
            wanted = [(self._hub.topic_limits.check(topic or each.topic or ""), each) for each in events]
        except (NoCloudEvent, ConfigError) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        await self._pay(request, identities, grants, len(wanted))
        for name, _ in wanted:
            if not grants.may(Right.PUBLISH, name):
                self._warn("access.denied", request, f"{(*identities, ANONYMOUS)[0]} may not publish {name!r}")
                self._hub.metrics.denied.add(1, _NAME, Right.PUBLISH)
                raise web.HTTPForbidden(text=f"publishing to {name} is not allowed")
        try:
            peer = await self._connected()
            await asyncio.gather(*(self._publish(peer, name, event) for name, event in wanted))
        except LimitExceeded as error:
            raise web.HTTPRequestEntityTooLarge(self._most, len(body), text=str(error)) from None
        except RequestFailed as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except (RequestTimeout, WireloomError, OSError) as error:
            # Nothing is known to be kept: who posted it may try again.
            raise web.HTTPServiceUnavailable(text=f"not kept: {error}") from None
        return web.Response(status=204)

    def _identities_of(self, request: web.Request) -> tuple[str, ...]:
        """Who posts this; a wrong token ends here."""
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

    async def _pay(self, request: web.Request, identities: tuple[str, ...], grants: Grants, count: int) -> None:
        """Hold whoever posts to its rate: too much waits for its answer, or is refused, as `over_rate` says."""
        hub, address = self._hub, request.remote or ""
        bucket = hub.doorkeeper.bucket((*identities, address)[0], address, stranger=grants.nothing)
        if bucket is None:
            return
        refusing = hub.config.limits.over_rate is OverRate.REFUSE
        if refusing and bucket.is_empty(hub.now()):
            hub.metrics.over_rate.add(1, _NAME, OverRate.REFUSE)
            raise web.HTTPTooManyRequests(text="too many events; try again later")
        delay = bucket.take(count, hub.now())
        if delay > 0 and not refusing:
            hub.metrics.over_rate.add(1, _NAME, OverRate.PAUSE)
            await asyncio.sleep(delay)

    def _warn(self, event: str, request: web.Request, what: str) -> None:
        log.warning("events posted from %s: %s", request.remote, what, extra=about(event))

    async def _connected(self) -> Client:
        assert self._connect is not None
        async with self._connecting:
            if self._peer is None:
                self._peer = await self._connect()
            return self._peer

    async def _publish(self, peer: Client, topic: str, event: CloudEvent) -> None:
        message = Message(
            Kind.REQUEST, PUBLISH + topic, event.data, content_type=event.content_type, attributes=event.kept()
        )
        await peer.ask(message, timeout=self._hub.config.limits.request_timeout)


def _said(status: int, text: str) -> web.Response:
    return web.Response(
        body=json.dumps({"error": text}).encode() + b"\n", status=status, content_type="application/json"
    )
