"""UDP: a pipe for each address we talk to, all over one socket where we listen.

UDP has no connections. A listener makes a pipe when the first datagram of a source is admitted (`Options.admit`). It
removes the pipe when the owner closes it; owners do so after a time without datagrams. Each write is one datagram.

A stranger is a source without a pipe. To admit one may take a signature check. So a flood of strangers must not delay
known sources. Datagrams of known sources are delivered at once. Those of strangers are queued, get a limited share of
the loop's time, and are dropped beyond a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping

from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, Transport
from wireloom.transports.datagrams import DatagramSocket, Source, open_socket

MAX_HELD = 256 * 1024
"""Limit of bytes that are buffered while an owner has paused reading; more is dropped and counted."""

MAX_STRANGERS = 256 * 1024
"""Limit of queued bytes from strangers; more is dropped and counted."""
STRANGERS_SHARE = 0.002
"""Seconds of each iteration of the loop for queued datagrams of strangers."""


class UDPPipe(Pipe):
    """One address at the other end."""

    carries_messages = True

    def __init__(self, owner: Owner, source: Source, home: UDPConnection | UDPListener) -> None:
        self.owner = owner
        self._home = home
        self._source = source
        self.peername = source.name
        self.sockname = str(home.address)
        self._batches = getattr(owner, "received_datagrams", None)
        self._reading = True
        self._over = False
        self._held: list[tuple[bytes, list[int]]] = []
        self._held_bytes = 0
        self.dropped = 0
        """Datagrams dropped because the owner did not read for too long."""

    def arrived(self, data: bytes, ends: list[int]) -> None:
        """Datagrams for the owner: one after the other in `data`, each up to its place in `ends`."""
        if self._over:
            return
        if not self._reading:
            if self._held_bytes + len(data) > MAX_HELD:
                self.dropped += len(ends)
                self._home.dropped += len(ends)
                return
            self._held.append((data, ends))
            self._held_bytes += len(data)
        elif self._batches is not None:
            self._batches(data, ends)
        else:
            start = 0
            for end in ends:
                self.owner.received(data[start:end])
                start = end

    def write(self, data: bytes) -> None:
        """Send one datagram."""
        if not self._over:
            self._home.send(data, self._source)

    def finish(self) -> None:
        """There are no halves: this closes."""
        self.close()

    def pause_reading(self) -> None:
        """Buffer datagrams, up to a limit."""
        if self._reading:
            self._reading = False
            self._home.reading_changed(-1)

    def resume_reading(self) -> None:
        """Deliver buffered datagrams, then new ones."""
        if not self._reading:
            self._reading = True
            self._home.reading_changed(+1)
            held, self._held, self._held_bytes = self._held, [], 0
            for data, ends in held:
                self.arrived(data, ends)

    def close(self) -> None:
        """Forget the address."""
        if not self._over:
            self._over = True
            if not self._reading:
                self._home.reading_changed(+1)
            self._home.forget(self, self._source)
            asyncio.get_running_loop().call_soon(self.owner.ended, None)

    def abort(self) -> None:
        """Forget the address."""
        self.close()


class UDPConnection:
    """A socket that talks to one address."""

    def __init__(self, owner: Owner, options: Options) -> None:
        self._owner = owner
        self._options = options
        self.dropped = 0
        self.address = Address("")

    async def open(self, address: Address) -> UDPPipe:
        """Open a socket for an address. UDP cannot tell whether a peer is there."""
        sock, raw = await open_socket(address, connect=True)
        self._socket = DatagramSocket(
            sock,
            lambda source, data, ends: self._pipe.arrived(data, ends),
            peer=raw,
            high_water=self._options.high_water,
            on_full=self._owner.writing_paused,
            on_room=self._owner.writing_resumed,
        )
        self.address = self._socket.address
        self._pipe = UDPPipe(self._owner, Source(raw), self)
        self._owner.opened(self._pipe)
        return self._pipe

    def send(self, data: bytes, to: Source) -> None:
        """Send a datagram."""
        self._socket.send(data)

    def reading_changed(self, step: int) -> None:
        """Leave datagrams in the kernel while the owner has paused reading."""
        (self._socket.resume if step > 0 else self._socket.pause)()

    def forget(self, pipe: UDPPipe, source: Source) -> None:
        """The conversation is over."""
        self._socket.close()


class UDPListener(Listener):
    """A socket that serves all sources."""

    def __init__(self, owner: OwnerFactory, options: Options) -> None:
        self._new_owner = owner
        self._options = options
        self._pipes: dict[str, UDPPipe] = {}
        self._silent = 0
        """Number of pipes whose owners have paused reading."""
        self._full = False
        self._closing = False
        self.dropped = 0
        """Datagrams dropped because an owner did not read, or because there were too many sources."""
        self.refused = 0
        """Datagrams of strangers that were not admitted."""
        self._loop = asyncio.get_running_loop()
        self._strangers: deque[tuple[Source, bytes, list[int]]] = deque()
        """Queued datagrams of sources that have no pipe yet."""
        self._strangers_bytes = 0
        self.strangers_dropped = 0
        """Datagrams of strangers that were dropped unread, because too many were queued."""

    async def open(self, address: Address) -> UDPListener:
        """Take the address."""
        sock, _ = await open_socket(address)
        self._socket = DatagramSocket(
            sock, self._arrived, high_water=self._options.high_water, on_full=self._pause_writing, on_room=self._resume
        )
        self.address = address.with_port(self._socket.address.port)
        return self

    @property
    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped because we did not read in time."""
        return self._socket.kernel_drops

    @property
    def counters(self) -> Mapping[str, int]:
        """What was dropped here, and by the kernel."""
        return {
            "udp.dropped": self.dropped,
            "udp.kernel_drops": self.kernel_drops,
            "udp.strangers_dropped": self.strangers_dropped,
        }

    def _arrived(self, source: Source, data: bytes, ends: list[int]) -> None:
        pipe = self._pipes.get(source.name)
        if pipe is not None:
            pipe.arrived(data, ends)
        elif not self._closing:
            if self._strangers_bytes + len(data) > MAX_STRANGERS:
                self.strangers_dropped += len(ends)
                return
            if not self._strangers:
                self._loop.call_soon(self._hear_strangers)
            self._strangers.append((source, data, ends))
            self._strangers_bytes += len(data)

    def _hear_strangers(self) -> None:
        """Process datagrams of strangers for `STRANGERS_SHARE` seconds; known sources get the rest of the time."""
        until = time.monotonic() + STRANGERS_SHARE
        while self._strangers and time.monotonic() < until:
            source, data, ends = self._strangers.popleft()
            self._strangers_bytes -= len(data)
            self._hear(source, data, ends, until)
        if self._strangers:
            self._loop.call_soon(self._hear_strangers)

    def _hear(self, source: Source, data: bytes, ends: list[int], until: float) -> None:
        """Make a pipe from the first datagram that is admitted; datagrams after `until` are queued again."""
        pipe, admit, start = self._pipes.get(source.name), self._options.admit, 0
        for index, end in enumerate(ends):
            if pipe is not None or self._closing:
                break
            if index and time.monotonic() > until:
                self._strangers.appendleft((source, data[start:], [each - start for each in ends[index:]]))
                self._strangers_bytes += len(data) - start
                return
            if admit is None or admit(data[start:end], source.name):
                if len(self._pipes) >= self._options.max_sources:
                    self.dropped += len(ends) - index
                    return
                pipe = UDPPipe(self._new_owner(), source, self)
                self._pipes[source.name] = pipe
                pipe.owner.opened(pipe)
                if self._full:
                    pipe.owner.writing_paused()
                break
            self.refused += 1
            start = end
        if pipe is not None:
            pipe.arrived(data[start:], [each - start for each in ends if each > start])

    async def reach(self, address: Address, owner: Owner) -> Pipe:
        """Connect to an address from this socket; a known address keeps its pipe."""
        raw = await self._socket.resolve(address)
        source = Source(raw)
        pipe = self._pipes.get(source.name)
        if pipe is None:
            pipe = self._pipes[source.name] = UDPPipe(owner, source, self)
            owner.opened(pipe)
        return pipe

    def send(self, data: bytes, to: Source) -> None:
        """Send a datagram."""
        self._socket.send(data, to.raw)

    def _pause_writing(self) -> None:
        self._full = True
        for pipe in list(self._pipes.values()):
            pipe.owner.writing_paused()

    def _resume(self) -> None:
        self._full = False
        for pipe in list(self._pipes.values()):
            pipe.owner.writing_resumed()

    def reading_changed(self, step: int) -> None:
        """Leave datagrams in the kernel while all owners have paused reading."""
        self._silent -= step
        if self._pipes and self._silent >= len(self._pipes):
            self._socket.pause()
        else:
            self._socket.resume()

    def forget(self, pipe: UDPPipe, source: Source) -> None:
        """A conversation is over."""
        self._pipes.pop(source.name, None)
        if self._closing and not self._pipes:
            self._socket.close()
        elif not self._socket.closed:
            self.reading_changed(0)

    def close(self) -> None:
        """Admit no new sources; the socket closes with the last pipe."""
        self._closing = True
        if not self._pipes:
            self._socket.close()


class UDPTransport(Transport):
    """UDP over IPv4 or IPv6."""

    name = "udp"

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Talk to an address."""
        return await UDPConnection(owner, options).open(address)

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Listen at an address."""
        return await UDPListener(owner, options).open(address)


UDP = UDPTransport()
