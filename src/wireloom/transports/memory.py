"""Pipes inside one process: for tests, and for services that live in the same program.

A write arrives on the next turn of the event loop, never inside the call, as it would with a socket. What is
unread counts against the writer's high-water mark, so back-pressure is the same as with a socket, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count

from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, Transport


class MemoryPipe(Pipe):
    """One end of a pair."""

    def __init__(self, owner: Owner, options: Options) -> None:
        self._owner = owner
        self._high_water = options.high_water
        self._loop = asyncio.get_running_loop()
        self._other: MemoryPipe = self
        self._inbox: deque[bytes | None] = deque()
        """Bytes the other end wrote; None is the end of its output."""
        self._unread = 0
        self._reading = True
        self._scheduled = False
        self._finished = False
        self._over = False
        self._closing = False
        self._paused = False

    def open_to(self, other: MemoryPipe, sockname: str, peername: str) -> None:
        """Join this end to the other one and tell the owner."""
        self._other = other
        self.sockname, self.peername = sockname, peername
        self._owner.opened(self)

    def write(self, data: bytes) -> None:
        """Hand bytes to the other end."""
        if self._finished or self._over or not data:
            return
        other = self._other
        if other._over:
            return
        other._inbox.append(bytes(data))
        other._unread += len(data)
        other._schedule()
        if other._unread > self._high_water and not self._paused:
            self._paused = True
            self._owner.writing_paused()

    def finish(self) -> None:
        """The other end reads an end after what was written."""
        if not self._finished and not self._over:
            self._finished = True
            self._other._inbox.append(None)
            self._other._schedule()

    def pause_reading(self) -> None:
        """Leave what arrives in the inbox."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver again."""
        self._reading = True
        self._schedule()

    def close(self) -> None:
        """Close both halves; what was written still arrives."""
        if self._over or self._closing:
            return
        self._closing = True
        self.finish()
        self._loop.call_soon(self._end, None)

    def abort(self) -> None:
        """Close now; the other end sees a lost connection."""
        if self._over:
            return
        self._closing = True
        other = self._other
        if not other._over:
            other._inbox.clear()
            other._unread = 0
            self._loop.call_soon(other._end, ConnectionResetError("the other end aborted"))
        self._loop.call_soon(self._end, None)

    def _schedule(self) -> None:
        if self._inbox and self._reading and not self._scheduled and not self._over:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._inbox and self._reading and not self._closing and not self._over:
            data = self._inbox.popleft()
            if data is None:
                self._owner.input_ended()
                if self._other._over and not self._over:
                    self.close()
                break
            self._unread -= len(data)
            self._owner.received(data)
        writer = self._other
        if writer._paused and self._unread <= writer._high_water // 4:
            writer._paused = False
            if not writer._over:
                writer._owner.writing_resumed()

    def _end(self, error: Exception | None) -> None:
        if self._over:
            return
        self._over = True
        self._inbox.clear()
        self._unread = 0
        self._owner.ended(error)


def pair(first: Owner, second: Owner, options: Options | None = None, name: str = "pair") -> None:
    """Join two owners by a pair of pipes; both are opened when this returns."""
    options = options or Options()
    one, two = MemoryPipe(first, options), MemoryPipe(second, options)
    one._other, two._other = two, one
    two.open_to(one, f"memory:{name}", f"memory:{name}/client")
    one.open_to(two, f"memory:{name}/client", f"memory:{name}")


class MemoryListener(Listener):
    """A name that can be connected to from the same event loop."""

    def __init__(self, transport: MemoryTransport, address: Address, owner: OwnerFactory) -> None:
        self._transport = transport
        self.address = address
        self.owner = owner
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Give the name back."""
        if self._transport.listeners.get(self.address.path) is self:
            del self._transport.listeners[self.address.path]


class MemoryTransport(Transport):
    """Names in this process. The address's path is the name."""

    name = "memory"

    def __init__(self) -> None:
        self.listeners: dict[str, MemoryListener] = {}
        self._numbers = count(1)

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Connect to a name that somebody listens at."""
        listener = self.listeners.get(address.path)
        if listener is None or listener.loop is not asyncio.get_running_loop():
            raise ConnectionRefusedError(f"nobody listens at memory name {address.path!r} in this event loop")
        client, server = MemoryPipe(owner, options), MemoryPipe(listener.owner(), options)
        client._other, server._other = server, client
        here, there = f"memory:{address.path}/{next(self._numbers)}", f"memory:{address.path}"
        server.open_to(client, there, here)
        client.open_to(server, here, there)
        return client

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Take a name."""
        known = self.listeners.get(address.path)
        if known is not None and not known.loop.is_closed():
            raise OSError(f"memory name {address.path!r} is taken already")
        listener = self.listeners[address.path] = MemoryListener(self, address, owner)
        return listener


MEMORY = MemoryTransport()
