"""The console's server: the page, its live stream, and the two things a browser may do: publish and request.

What protects it: it listens on loopback unless it has a token and TLS; it answers only to the names it was told, so
that no other site can point a name of its own here; whatever changes something must be JSON from this very page; no
page may frame it; and the browser is told to run nothing but the files of this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Self, TypeVar

from aiohttp import web

from wireloom.console import send
from wireloom.console.page_data import PageData, TailCursor
from wireloom.escaping import visible
from wireloom.model import ConfigError, Kind, Message, WireloomError
from wireloom.transports.address import is_loopback, parse_url
from wireloom.transports.http import KEEP_ALIVE, HttpLimits, HttpListener, answering, is_for
from wireloom.transports.tls import TLS

log = logging.getLogger("wireloom.console")

PORT = 5080
COOKIE = "wireloom-console"
STREAM_EVERY = 1.0
MAX_BODY = 1024 * 1024
BODY_TIMEOUT = 10.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SIGN_IN = "/sign-in"
FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PUBLIC = ("/console.css", "/icon.svg")
"""What the page that asks for the token needs."""
T = TypeVar("T")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How the console is reached, and what it looks at.

    `via` is the listener of the hub that publishes and requests go through; by default one that the hub names.
    """

    url: str = f"http://127.0.0.1:{PORT}"
    hub: str = "http://127.0.0.1:5046"
    journal: Path | None = None
    warehouse: Path | str | None = None
    via: str | None = None
    token: str | None = None
    tls: TLS | None = None

    def check(self) -> None:
        """Refuse what is no address of a page, and to be reachable from elsewhere without a token and TLS.

        >>> ConsoleSettings(url="http://0.0.0.0:5080").check()
        Traceback (most recent call last):
        wireloom.errors.ConfigError: the console at http://0.0.0.0:5080 can be reached from other machines: ...
        """
        for option, given in (("--url", self.url), ("--hub", self.hub)):
            if not given.startswith(("http://", "https://")):
                raise ConfigError(f"{option} {given}: write it as http://HOST:PORT, such as http://127.0.0.1:{PORT}")
        url = parse_url(self.url)
        if url.scheme == "https" and self.tls is None:
            raise ConfigError(f"the console at {self.url} needs a certificate for https: --certificate and --key")
        if not is_loopback(url.host) and (self.token is None or self.tls is None):
            raise ConfigError(
                f"the console at {self.url} can be reached from other machines: give it a token and a certificate "
                "(--token-file, --certificate, --key), or listen on 127.0.0.1"
            )


class Console:
    """A running console.

    async with Console(Settings(hub="http://127.0.0.1:5046")) as console:
        print(console.url)
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        settings.check()
        self.settings = settings
        self.url = settings.url
        self._watch = PageData(settings.hub, settings.journal, settings.warehouse)
        self._closing = asyncio.Event()
        pages = resources.files("wireloom.console") / "static"
        self._door = (pages / "sign-in.html").read_bytes()
        self._files = {path: ((pages / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        application.router.add_get("/api/stream", self._stream)
        application.router.add_post("/api/publish", self._publish)
        application.router.add_post("/api/request", self._request)
        for path in FILES:
            application.router.add_get(path, self._file)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=KEEP_ALIVE)
        await self._runner.setup()
        address = parse_url(self.settings.url).address(PORT)
        context = None if self.settings.tls is None else self.settings.tls.server_context()
        assert self._runner.server is not None
        self._listener = HttpListener(self._runner.server, HttpLimits, _closed)
        try:
            port = await self._listener.start(address, context)
            await self._watch.__aenter__()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"the console cannot listen on {self.settings.url}: {error.strerror or error}; "
                "stop whoever uses that port, or choose another with --url"
            ) from None
        self._names = ("localhost", address.host)
        self.url = f"{'https' if context else 'http'}://{address.with_port(port)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        self._listener.close()
        await self._watch.__aexit__()
        await self._runner.cleanup()

    # What stands before every answer

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            with answering(request.transport, request.content.is_eof):
                self._check(request)
                response: web.StreamResponse = await self._sign_in(request) or await handler(request)
        except web.HTTPException as refused:
            response = web.json_response({"error": refused.text}, status=refused.status)
        if not response.prepared:
            response.headers.update(HEADERS)
            if not request.content.is_eof():
                response.force_close()
        return response

    def _check(self, request: web.Request) -> None:
        if is_loopback(parse_url(self.settings.url).host) and not is_for(request.host, self._names):
            # A page elsewhere may have pointed its own name at this machine. Others find out by the certificate.
            raise web.HTTPForbidden(text=f"this console is at {self.url}, not at {request.host}")
        if request.method == "POST":
            if request.path != SIGN_IN and request.content_type != "application/json":
                raise web.HTTPUnsupportedMediaType(text="send JSON: Content-Type: application/json")
            origin = request.headers.get("Origin")
            if origin is not None and origin != f"{request.scheme}://{request.host}":
                raise web.HTTPForbidden(text=f"pages of {origin} may not use this console")

    async def _sign_in(self, request: web.Request) -> web.Response | None:
        """Who shows no token is asked for it; one in the address moves to a cookie, out of sight and of logs."""
        token = self.settings.token
        if token is None or request.path in PUBLIC:
            return None
        given = (await _in_time(request.post())).get("token") if request.path == SIGN_IN else request.query.get("token")
        if _equal(str(given or ""), token):
            redirect = web.Response(status=303, headers={"Location": "/"})
            redirect.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=self.settings.tls is not None)
            return redirect
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not _equal(request.cookies.get(COOKIE) or bearer, token):
            if request.path in ("/", SIGN_IN):
                return web.Response(status=401, body=self._door, content_type="text/html", charset="utf-8")
            raise web.HTTPUnauthorized(text=f"open {self.url}/?token=TOKEN with the token the console was started with")
        return None

    # The pages

    async def _file(self, request: web.Request) -> web.Response:
        body, kind = self._files[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """One snapshot a second, as server-sent events."""
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        await response.prepare(request)
        cursor = TailCursor()
        with contextlib.suppress(ConnectionResetError):
            while not self._closing.is_set():
                found = self._watch.snapshot(cursor) | {"via": self._via()}
                text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
                await response.write(b"data: " + text.encode(errors="replace") + b"\n\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), STREAM_EVERY)
        return response

    async def _publish(self, request: web.Request) -> web.Response:
        return web.json_response({"text": await self._send(send.publish, await _sent(request))})

    async def _request(self, request: web.Request) -> web.Response:
        return web.json_response(await self._send(send.request, await _sent(request)))

    def _via(self) -> str | None:
        """The hub's listener that the page sends through, as far as it is known."""
        return self.settings.via or send.listener_among(self._watch.listeners)

    async def _send(self, way: Callable[[str, Message], Awaitable[T]], message: Message) -> T:
        """Send something on a connection of its own; what goes wrong is told to the person at the page."""
        url = self._via()
        if url is None:
            why = self._watch.fault or "the hub has no plain TCP listener for the console; name one with --via URL"
            raise web.HTTPBadGateway(text=why)
        try:
            return await way(url, message)
        except (WireloomError, OSError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=visible(str(error))) from None


async def _in_time(reading: Awaitable[T]) -> T:
    """A body, which has to arrive within a while."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            return await reading
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {BODY_TIMEOUT:g} s") from None


def _closed(why: str) -> None:
    log.debug("a connection was closed: %s", why)


async def _sent(request: web.Request) -> Message:
    try:
        sent = await _in_time(request.json())
        topic, body, content_type = sent["topic"], sent.get("body", ""), sent.get("content_type") or None
        if not (isinstance(topic, str) and topic and isinstance(body, str)):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise web.HTTPBadRequest(text='send {"topic": "...", "body": "...", "content_type": "..."}') from None
    return Message(Kind.EVENT, topic, body.encode(), content_type=content_type)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
