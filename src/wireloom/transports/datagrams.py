"""A fast UDP socket: many datagrams per wake-up of the event loop, without an object for each.

On Linux, one call of `recvmmsg` reads a batch; elsewhere `recvfrom` is called until nothing is left. Datagrams are
delivered by source: one buffer, and where each datagram in it ends. Dropped datagrams are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from wireloom.transports.address import Address

BATCH = 256
"""Datagrams read by one call."""
ROUNDS = 4
"""Calls per wake-up, before the loop serves others."""
LARGEST = 2048
"""Longer datagrams are truncated; their decoder then finds a wrong length."""
RECEIVE_BUFFER = 8 * 1024 * 1024
SOURCES_KEPT = 65_536

RawAddress = tuple[str, int] | tuple[str, int, int, int]
OnBatch = Callable[["Source", bytes, list[int]], None]

_SO_RCVBUFFORCE, _SO_MEMINFO, _MEMINFO_DROPS = 33, 55, 8


class Source:
    """Where datagrams come from, made once for each address."""

    __slots__ = ("name", "raw")

    def __init__(self, raw: RawAddress) -> None:
        self.raw = raw
        self.name = str(Address(raw[0], raw[1]))


class _Receiver(Protocol):
    def receive(self) -> Sequence[tuple[Source, bytes, list[int]]] | None:
        """What has arrived, by source; None when nothing has."""


class DatagramSocket:
    """One socket on the event loop.

    `on_batch` gets every source's datagrams of one read. `send` never blocks: datagrams that the kernel does not accept
    are queued, urgent ones first. `on_full` is called when the queue is too long, `on_room` when it is short again.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_batch: OnBatch,
        *,
        peer: RawAddress | None = None,
        high_water: int = 256 * 1024,
        on_full: Callable[[], None] = lambda: None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        _enlarge_buffer(sock)
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._on_batch = on_batch
        self._on_full, self._on_room = on_full, on_room
        self._loop = asyncio.get_running_loop()
        self._receiver: _Receiver = _Batches(sock, peer) if sys.platform == "linux" else _Singles(sock, peer)
        self._urgent: deque[tuple[bytes, RawAddress | None]] = deque()
        self._waiting: deque[tuple[bytes, RawAddress | None]] = deque()
        self._waiting_bytes = 0
        self._high_water = high_water
        self._full = False
        self._writing = False
        self._reading = False
        self.closed = False
        self.unsent = 0
        """Datagrams that the system refused to send."""
        self.address = Address(*sock.getsockname()[:2])
        self.resume()

    # Receiving

    def pause(self) -> None:
        """Read no more; what arrives waits in the kernel, and is lost there when that is full."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read again."""
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        for _ in range(ROUNDS):
            try:
                found = self._receiver.receive()
            except OSError:
                # A connected socket reports unreachable peers this way. Heartbeats detect them, too.
                return
            if not found:
                return
            for source, data, ends in found:
                self._on_batch(source, data, ends)
            if not self._reading:
                return

    @property
    def kernel_drops(self) -> int:
        """Datagrams that the kernel dropped because nobody read them in time; 0 where it does not tell."""
        if self.closed:
            return 0
        try:
            info = self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4 * (_MEMINFO_DROPS + 1))
        except OSError:
            return 0
        return int.from_bytes(info[-4:], sys.byteorder) if len(info) == 4 * (_MEMINFO_DROPS + 1) else 0

    # Sending

    def send(self, data: bytes, to: RawAddress | None = None, *, urgent: bool = False) -> None:
        """Send one datagram."""
        if self.closed:
            return
        if not self._writing:
            if self._send_now(data, to):
                return
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)
        (self._urgent if urgent else self._waiting).append((data, to))
        self._waiting_bytes += len(data)
        if self._waiting_bytes > self._high_water and not self._full:
            self._full = True
            self._on_full()

    def _send_now(self, data: bytes, to: RawAddress | None) -> bool:
        """Whether the kernel accepted it."""
        try:
            if to is None:
                self._sock.send(data)
            else:
                self._sock.sendto(data, to)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            # Unreachable, refused or too large: for datagrams this equals a loss on the network.
            self.unsent += 1
        return True

    def _writable(self) -> None:
        while self._urgent or self._waiting:
            queue = self._urgent or self._waiting
            if not self._send_now(*queue[0]):
                return
            self._waiting_bytes -= len(queue.popleft()[0])
            if self._full and self._waiting_bytes <= self._high_water // 4:
                self._full = False
                self._on_room()
        self._writing = False
        self._loop.remove_writer(self._fd)

    async def resolve(self, address: Address) -> RawAddress:
        """The raw address of a place, of this socket's family."""
        found = await self._loop.getaddrinfo(
            address.host, address.port, family=self._sock.family, type=socket.SOCK_DGRAM
        )
        return found[0][4]  # type: ignore[return-value]

    @property
    def waiting(self) -> int:
        """Bytes that wait to be sent."""
        return self._waiting_bytes

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        if not self.closed:
            self.pause()
            self.closed = True
            if self._writing:
                self._loop.remove_writer(self._fd)
            self._sock.close()


async def open_socket(address: Address, *, connect: bool = False) -> tuple[socket.socket, RawAddress]:
    """A UDP socket bound to an address, or with `connect` one that talks to it alone."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    last: OSError | None = None
    for family, kind, number, _, raw in found:
        sock = socket.socket(family, kind, number)
        try:
            sock.setblocking(False)
            if connect:
                sock.connect(raw)
            else:
                sock.bind(raw)
        except OSError as error:
            sock.close()
            last = error
            continue
        return sock, raw  # type: ignore[return-value]
    raise last or OSError(f"no address for {address}")


def _enlarge_buffer(sock: socket.socket) -> None:
    """Set the largest receive buffer that the kernel allows, for bursts."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # only root may pass the system's limit
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)


class _Sources:
    """Sources by their raw address."""

    def __init__(self, family: int) -> None:
        self._known: dict[bytes, Source] = {}
        self._ipv6 = family == socket.AF_INET6

    def of(self, raw: bytes) -> Source:
        known = self._known.get(raw)
        if known is None:
            if len(self._known) >= SOURCES_KEPT:
                self._known.clear()
            known = self._known[raw] = Source(self._parse(raw))
        return known

    def _parse(self, raw: bytes) -> RawAddress:
        port = int.from_bytes(raw[2:4])
        if not self._ipv6:
            return (socket.inet_ntop(socket.AF_INET, raw[4:8]), port)
        flow, scope = int.from_bytes(raw[4:8]), int.from_bytes(raw[24:28], sys.byteorder)
        return (socket.inet_ntop(socket.AF_INET6, raw[8:24]), port, flow, scope)


class _IOVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _MessageHeader(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.POINTER(_IOVector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _MessageHeader), ("length", ctypes.c_uint))


_NAME_SIZE = 28
_MSG_DONTWAIT = 0x40


_STARTS = range(0, BATCH * LARGEST, LARGEST)


class _Batches:
    """`recvmmsg` into buffers that are made once."""

    def __init__(self, sock: socket.socket, peer: RawAddress | None) -> None:
        self._receive = ctypes.CDLL(None, use_errno=True).recvmmsg
        self._fd = sock.fileno()
        self._only = None if peer is None else Source(peer)
        self._sources = _Sources(sock.family)
        self._buffer = (ctypes.c_char * (BATCH * LARGEST))()
        self._names = (ctypes.c_char * (BATCH * _NAME_SIZE))()
        self._vectors = (_IOVector * BATCH)()
        self._messages = (_Message * BATCH)()
        for index in range(BATCH):
            self._vectors[index].base = ctypes.addressof(self._buffer) + index * LARGEST
            self._vectors[index].length = LARGEST
            header = self._messages[index].header
            header.name = ctypes.addressof(self._names) + index * _NAME_SIZE
            header.name_length = 16 if sock.family == socket.AF_INET else _NAME_SIZE
            header.vectors = ctypes.pointer(self._vectors[index])
            header.vector_count = 1
        self._view = memoryview(self._buffer).cast("B")
        self._name_view = memoryview(self._names).cast("B")
        words = ctypes.sizeof(_Message) // 4
        lengths = memoryview(self._messages).cast("B").cast("I")
        self._lengths = lengths[_Message.length.offset // 4 :: words]

    def receive(self) -> Sequence[tuple[Source, bytes, list[int]]] | None:
        count = self._receive(self._fd, self._messages, BATCH, _MSG_DONTWAIT, None)
        if count <= 0:
            number = ctypes.get_errno()
            if count < 0 and number not in (11, 4):
                raise OSError(number, os.strerror(number))
            return None
        lengths = self._lengths[:count].tolist()
        view = self._view
        names = bytes(self._name_view[: count * _NAME_SIZE])
        if self._only is not None or names == names[:_NAME_SIZE] * count:
            source = self._only or self._sources.of(names[:_NAME_SIZE])
            parts = [view[start : start + length] for start, length in zip(_STARTS, lengths, strict=False)]
            return ((source, b"".join(parts), list(accumulate(lengths))),)
        groups: dict[bytes, tuple[list[memoryview], list[int]]] = {}
        for index, length in enumerate(lengths):
            name = names[index * _NAME_SIZE : (index + 1) * _NAME_SIZE]
            start = index * LARGEST
            group = groups.get(name)
            if group is None:
                groups[name] = ([view[start : start + length]], [length])
            else:
                group[0].append(view[start : start + length])
                group[1].append(group[1][-1] + length)
        return [(self._sources.of(name), b"".join(parts), ends) for name, (parts, ends) in groups.items()]


class _Singles:
    """`recvfrom`, where there is nothing better."""

    def __init__(self, sock: socket.socket, peer: RawAddress | None) -> None:
        self._sock = sock
        self._only = None if peer is None else Source(peer)
        self._sources: dict[RawAddress, Source] = {}

    def receive(self) -> Sequence[tuple[Source, bytes, list[int]]] | None:
        groups: dict[Source, tuple[list[bytes], list[int]]] = {}
        for _ in range(BATCH):
            try:
                data, raw = self._sock.recvfrom(LARGEST)
            except (BlockingIOError, InterruptedError):
                break
            source = self._only or self._source(raw)
            parts, ends = groups.setdefault(source, ([], []))
            parts.append(data)
            ends.append(len(data) + (ends[-1] if ends else 0))
        return [(source, b"".join(parts), ends) for source, (parts, ends) in groups.items()] or None

    def _source(self, raw: RawAddress) -> Source:
        known = self._sources.get(raw)
        if known is None:
            if len(self._sources) >= SOURCES_KEPT:
                self._sources.clear()
            known = self._sources[raw] = Source(raw)
        return known
