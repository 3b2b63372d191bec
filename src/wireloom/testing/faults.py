"""A proxy that cuts, delays, splits and corrupts connections, on loopback, for tests.

Every fault can be switched on and off while connections are open, for each direction separately.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from wireloom.model import ConfigError
from wireloom.peers import endpoint
from wireloom.transports import Address

READ = 64 * 1024
STREAMS = ("tcp", "tls", "ws", "wss")
"""The transports that the proxy supports."""


@dataclass
class Faults:
    """Faults of one direction. All are off at first."""

    delay: float = 0.0
    """Seconds of delay for each piece."""
    split: int | None = None
    """Send at most this many bytes at a time, with an iteration of the loop in between."""
    corrupt: float = 0.0
    """Probability that a byte is changed, from 0 to 1."""
    cut_after: int | None = None
    """Cut the connection after this many more bytes."""
    stalled: bool = False
    """Pass no bytes. The sender feels back-pressure."""
    random: random.Random = field(default_factory=lambda: random.Random(0), repr=False)
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False)
    """How to wait for the delay. A test can pass its own clock."""
    passed: int = 0
    """Bytes passed so far."""

    def spoil(self, data: bytes) -> bytes:
        """The data, with some bytes changed."""
        if not self.corrupt:
            return data
        return bytes(
            byte ^ self.random.randint(1, 255) if self.random.random() < self.corrupt else byte for byte in data
        )

    def pieces(self, data: bytes) -> list[bytes]:
        """The data in pieces of at most `split` bytes."""
        size = self.split or len(data)
        return [data[start : start + size] for start in range(0, len(data), size)]


class FaultProxy:
    """A proxy between clients and one server, with faults.

        async with FaultProxy(server.url) as proxy, wireloom.connect(proxy.url) as peer:
            proxy.to_client.delay = 0.2
            proxy.cut()

    `to_client` and `to_server` hold the faults of each direction.
    """

    def __init__(self, url: str) -> None:
        self._target = endpoint(url)
        if self._target.transport.name not in STREAMS:
            raise ConfigError(f"a FaultProxy stands in front of servers on TCP, TLS and WebSocket, not of {url}")
        self.to_server = Faults()
        self.to_client = Faults()
        self.refusing = False
        """Whether new connections are accepted and reset at once."""
        self.accepted = 0
        """How many connections were accepted."""
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The server's URL with the proxy's address."""
        assert self._port, "the proxy is not started: use `async with`"
        return self._target.at(Address("127.0.0.1", self._port, self._target.address.path)).url

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def cut(self) -> None:
        """Reset every connection at once, in both directions."""
        for link in list(self._open):
            link.cut()

    def finish(self) -> None:
        """Close every connection normally."""
        for link in list(self._open):
            link.close()

    async def down(self) -> None:
        """Cut every connection and stop listening: new connections are refused."""
        assert self._server is not None
        self._server.close()
        self.cut()

    async def up(self) -> None:
        """Listen again, on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=READ)
        self._port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.refusing:
                _reset(writer)
                return
            self.accepted += 1
            link = _Link((reader, writer))
            self._open.add(link)
            try:
                address = self._target.address
                link.join(await asyncio.open_connection(address.host, address.port, limit=READ))
                await link.run(self.to_server, self.to_client)
            finally:
                self._open.discard(link)
                link.cut()
        except (OSError, asyncio.CancelledError):
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, as when a machine in between fails."""
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


_End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy: the client's end and the server's end."""

    def __init__(self, client: _End) -> None:
        self._client = client
        self._server = client
        self._ends = [client]
        self._over = False

    def join(self, server: _End) -> None:
        """The connection to the server is open. The client may have gone meanwhile."""
        self._server = server
        self._ends.append(server)
        if self._over:
            self.cut()
            raise ConnectionResetError("cut before it was joined")

    def cut(self) -> None:
        self._over = True
        for _, writer in self._ends:
            _reset(writer)

    def close(self) -> None:
        self._over = True
        for _, writer in self._ends:
            writer.close()

    async def run(self, to_server: Faults, to_client: Faults) -> None:
        ways = (
            asyncio.ensure_future(self._pump(self._client[0], self._server[1], to_server)),
            asyncio.ensure_future(self._pump(self._server[0], self._client[1], to_client)),
        )
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: Faults) -> None:
        while data := await reader.read(READ):
            for piece in faults.pieces(faults.spoil(data)):
                await self._pass(piece, writer, faults)
        if writer.can_write_eof():
            writer.write_eof()

    async def _pass(self, piece: bytes, writer: asyncio.StreamWriter, faults: Faults) -> None:
        while faults.stalled:  # noqa: ASYNC110  # a plain attribute is easier to switch in a test than an event
            await asyncio.sleep(0.005)
        await faults.sleep(faults.delay)
        if faults.cut_after is not None:
            piece, faults.cut_after = piece[: faults.cut_after], faults.cut_after - len(piece)
        faults.passed += len(piece)
        writer.write(piece)
        await writer.drain()
        if faults.cut_after is not None and faults.cut_after <= 0:
            faults.cut_after = None
            raise ConnectionResetError("cut on purpose")
