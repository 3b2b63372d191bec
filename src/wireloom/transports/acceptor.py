"""Accepts connections and limits their number, including those in a TLS handshake.

The servers of an event loop report a connection only after its TLS handshake. A peer that begins thousands of
handshakes and finishes none would take memory without a limit. Here a connection takes a `Place` when it is accepted.
Its holder returns the place. If no place is free, in total or for the address, the connection is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from wireloom.transports.address import Address

ALL, ADDRESS, SOCKETS = "connections", "address", "sockets"
"""Why a connection was refused: too many in total, too many from its address, the system has no socket left."""
_AT_ONCE = 100
_NO_SOCKETS = 1.0
"""Seconds until the next attempt, when the system has no socket left."""


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of places."""

    places: int
    per_address: int
    seconds: float
    """Limit of a TLS handshake."""


class Place:
    """One connection, counted against the limits."""

    __slots__ = ("_acceptor", "address")

    def __init__(self, acceptor: Acceptor, address: str) -> None:
        self._acceptor: Acceptor | None = acceptor
        self.address = address

    def leave(self) -> None:
        """Return the place. A second call does nothing."""
        if self._acceptor is not None:
            self._acceptor.left(self.address)
            self._acceptor = None


class Acceptor:
    """Listening sockets on every address of a host.

    `protocol` makes the protocol of a connection from its place. `room` is called for each connection, so that new
    limits apply at once. `refused` gets the reason of a refusal, and the socket if that is still open.
    """

    def __init__(
        self,
        protocol: Callable[[Place], asyncio.BaseProtocol],
        room: Callable[[], Room],
        refused: Callable[[str, socket.socket | None], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._protocol = protocol
        self._room = room
        self._refused = refused
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._here: Counter[str] = Counter()
        self._opening: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """The number of taken places."""
        return self._here.total()

    async def start(self, address: Address, backlog: int) -> int:
        """Listen; returns the port."""
        found = await self._loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, number, _, place in dict.fromkeys(found):
                listening = socket.socket(family, kind, number)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(place)
                listening.listen(backlog)
                listening.setblocking(False)
                self._loop.add_reader(listening, self._accept, listening)
        except OSError:
            self.close()
            raise
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections, and abort TLS handshakes. Established connections stay."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for task in self._opening:
            task.cancel()

    def left(self, address: str) -> None:
        """A place is free again."""
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(listening)
                self._loop.call_later(_NO_SOCKETS, self._accept_again, listening)
                self._refused(SOCKETS, None)
                return
            sock.setblocking(False)
            self._admit(sock, str(peer[0]))

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _admit(self, sock: socket.socket, address: str) -> None:
        room = self._room()
        full = len(self) >= room.places
        if full or self._here[address] >= room.per_address:
            self._refused(ALL if full else ADDRESS, sock)
            sock.close()
            return
        self._here[address] += 1
        task = self._loop.create_task(self._open(sock, Place(self, address), room.seconds))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket, place: Place, seconds: float) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(place),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else seconds,
            )
        except (OSError, asyncio.CancelledError):
            # The TLS handshake failed, or took too long.
            sock.close()
            place.leave()
