"""An HTTP listener that limits the number of connections, and the size and time of a request's head.

aiohttp's server, which answers the requests, has no such limits. The hub's pages and the console use this listener.
Each connection gets a `Guard` between the socket and the server. It closes a connection that takes too long, or sends
too much, before the head of a request is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import cast

from wireloom.transports.acceptor import ALL, Acceptor, Place, Room
from wireloom.transports.address import Address

HEAD_BYTES = 64 * 1024
"""Limit of the first line and all headers of one request."""
KEEP_ALIVE = 75.0
"""Seconds that a connection may be silent between two requests."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+?)\.?)(?::[0-9]*)?")
"""An address in brackets, or a name or an address without; then maybe a port."""
_BACKLOG = 128
_HEAD_END = b"\r\n\r\n"
_ANSWER = "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of connections and requests."""

    connections: int = 1000
    per_address: int = 100
    seconds: float = 10.0
    """For the TLS handshake, for the head of a request, and for a peer to go on reading its answer."""


class HttpListener:
    """Listening sockets, and the connections that came from them.

    `handler` makes the protocol that serves a connection. `limits` is asked whenever somebody connects, so that new
    limits hold at once. `closed` is told why a connection was turned away or closed.
    """

    def __init__(
        self, handler: Callable[[], asyncio.Protocol], limits: Callable[[], HttpLimits], closed: Callable[[str], None]
    ) -> None:
        self._handler = handler
        self.limits = limits
        self.closed = closed

    def __len__(self) -> int:
        """Connections that are open, or in their TLS handshake."""
        return len(self._acceptor)

    async def start(self, address: Address, tls: ssl.SSLContext | None = None) -> int:
        """Listen on every address of a host; returns the port."""
        self._tls = tls
        self._acceptor = Acceptor(self._serve, self._room, self._refuse, tls)
        return await self._acceptor.start(address, _BACKLOG)

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        self._acceptor.close()

    def _serve(self, place: Place) -> Guard:
        return Guard(self, self._handler(), place)

    def _room(self) -> Room:
        limits = self.limits()
        return Room(limits.connections, limits.per_address, limits.seconds)

    def _refuse(self, why: str, sock: socket.socket | None) -> None:
        self.closed(why)
        if sock is not None and self._tls is None:
            setting = "http_connections" if why == ALL else "http_connections_per_address"
            with contextlib.suppress(OSError):
                sock.send(_answer("503 Service Unavailable", f"too many connections ({setting} in [limits])"))


class Guard(asyncio.Protocol):
    """Holds one connection to the limits of time and size; everything goes on to the server's own protocol."""

    def __init__(self, listener: HttpListener, server: asyncio.Protocol, place: Place) -> None:
        self._listener = listener
        self._server = server
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._busy = False
        """Whether the head of a request is complete, and its answer is not."""
        self._head = 0
        """Bytes of a head that is not complete."""
        self._last = b""
        """The last few of them."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The head of a request is complete."""
        self._busy, self._head, self._last = True, 0, b""
        self._stop_waiting()

    def end(self) -> None:
        """The request has its answer; the next one may come."""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = self._in_time("head")
        self._server.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived."""
        if not self._busy and not self._take_head(data):
            self._close("head-size")
            return
        self._server.data_received(data)

    def _take_head(self, data: bytes) -> bool:
        """Look for the end of a request's head; False if there is none and too much has come."""
        if self._deadline is None:
            self._deadline = self._in_time("head")
        if _HEAD_END in self._last + data:
            # What follows is the body: the server will say so, but may have been given more by then.
            self._busy = True
            return True
        self._head += len(data)
        self._last = data[1 - len(_HEAD_END) :]
        return self._head <= HEAD_BYTES

    def eof_received(self) -> bool | None:
        """asyncio: the peer says no more."""
        return self._server.eof_received()

    def pause_writing(self) -> None:
        """asyncio: the peer does not read its answer."""
        self._unread = self._in_time("unread")
        self._server.pause_writing()

    def resume_writing(self) -> None:
        """asyncio: it does."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        self._server.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        if self._unread is not None:
            self._unread.cancel()
        self._stop_waiting()
        self._place.leave()
        self._server.connection_lost(exc)

    def _in_time(self, what: str) -> asyncio.TimerHandle:
        return self._loop.call_later(self._listener.limits().seconds, self._close, what)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self, why: str) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._listener.closed(why)
            self._transport.abort()


@contextlib.contextmanager
def answering(transport: asyncio.BaseTransport | None, is_complete: Callable[[], bool]) -> Iterator[None]:
    """Around the handling of one request: its head is complete, so its connection's guard waits for it no longer.

    Where a request is answered before its body is complete, the server must close the connection.
    """
    guard = None if transport is None else cast(asyncio.Transport, transport).get_protocol()
    if not isinstance(guard, Guard):
        yield
        return
    guard.begin()
    try:
        yield
    finally:
        if is_complete():
            guard.end()


def _answer(status: str, text: str) -> bytes:
    body = f'{{"error": "{text}"}}\n'
    return (_ANSWER.format(status=status, size=len(body)) + body).encode()


def is_for(host: str, names: Collection[str]) -> bool:
    """Whether a request with such a `Host` header is for us: it has an address, or a name that we are told.

    A web page can make a name of its own point to this machine, and its visitor's browser then takes us for the page's
    own server. It says that name here; an address cannot be made to point elsewhere.

    >>> is_for("127.0.0.1:5046", ()), is_for("[::1]", ()), is_for("hub.example.org:80", ["hub.example.org"])
    (True, True, True)
    >>> is_for("page.example.net", ["hub.example.org"]), is_for("[::1].example.net", ()), is_for("", ())
    (False, False, False)
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
