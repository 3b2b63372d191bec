"""TCP, with TLS or without: a bare asyncio protocol, because the streams API costs half of the speed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Self, cast

from wireloom.model import ConfigError
from wireloom.transports.acceptor import Acceptor, Place, Room
from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, TLSInfo, Transport
from wireloom.transports.busy_poll import awake
from wireloom.transports.tls import TLS

HANDSHAKES_REFUSED = "handshakes.refused"
_PLAIN_TLS = TLS()
_KINDS = {"DNS": "dns", "email": "email", "URI": "uri", "IP Address": "ip"}
"""How OpenSSL calls the kinds of alternative names."""
_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing then resets the connection."""
_KEEP_ALIVE = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
)
"""A probe after 60 s of silence; after four of them without an answer the connection is lost."""


class TCPPipe(Pipe, asyncio.Protocol):
    """One TCP connection: asyncio's callbacks on one side, the owner's on the other."""

    _read_early = b""
    """Bytes read although the owner had paused reading; at most one read, see `_pause_from_start`."""

    def __init__(self, owner: Owner, options: Options, place: Place | None = None) -> None:
        self._owner = owner
        self._place = place
        """Its place in the limit of unfinished handshakes."""
        self._high_water = options.high_water
        self._name_kinds = (options.certificates or _PLAIN_TLS).names
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        """File descriptor of the socket if bytes are sent unchanged (no TLS), else -1."""
        self._reading = True
        # One call less on the busiest path; loops look this up before `connection_made`.
        self.data_received = awake(owner.received, options.busy_poll)  # type: ignore[method-assign, assignment]

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is connected (and TLS agreed)."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high_water)
        self.write = self._transport.write  # type: ignore[method-assign]
        self.name_ends(transport)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self.tls = tls_info(secured, self._name_kinds)
            self.identities = tuple(f"certificate:{name}" for name in self.tls.peer_names)
        elif not self.carries_messages:
            sock = transport.get_extra_info("socket")
            self._descriptor = -1 if sock is None else sock.fileno()
        self.greet()
        if not self._reading and not transport.is_closing():
            self._pause_from_start(self._transport)

    def greet(self) -> None:
        """The handshake is over: give the owner its pipe."""
        self.leave_handshakes()
        self._owner.opened(self)

    def leave_handshakes(self) -> None:
        """The handshake of this connection is over: return its place."""
        if self._place is not None:
            self._place.leave()
            self._place = None

    def _pause_from_start(self, transport: asyncio.Transport) -> None:
        """Keep a pause that the owner asked for in `opened`.

        uvloop starts to read as soon as `connection_made` returns, whatever was asked for in it. The next turn of the
        loop pauses again. What is read until then, one read at most, is held for `resume_reading`.
        """
        usual = self.data_received

        def hold(data: bytes) -> None:
            if self._reading:
                usual(data)
            else:
                self._read_early += data
                transport.pause_reading()

        def pause() -> None:
            self.data_received = usual  # type: ignore[method-assign]
            if not transport.is_closing():
                transport.set_protocol(self)
                if not self._reading:
                    transport.pause_reading()

        self.data_received = hold  # type: ignore[method-assign]
        # uvloop looks `data_received` up here.
        transport.set_protocol(self)
        asyncio.get_running_loop().call_soon(pause)

    def name_ends(self, transport: asyncio.BaseTransport) -> None:
        """Set the names of both ends."""
        self.peername = _endpoint(transport.get_extra_info("peername"))
        # All connections of a listener have this in common.
        self.sockname = sys.intern(_endpoint(transport.get_extra_info("sockname")))
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Detects a host that vanished, also if the protocol has no pings.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived."""
        self._owner.received(data)

    def eof_received(self) -> bool:
        """asyncio: the peer closed its half. Ours stays open where TLS does not forbid it."""
        self._owner.input_ended()
        return self.tls is None

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the socket is gone."""
        self._owner.ended(exc)

    def pause_writing(self) -> None:
        """asyncio: too much is unsent."""
        self._owner.writing_paused()

    def resume_writing(self) -> None:
        """asyncio: most of it is sent."""
        self._owner.writing_resumed()

    def connecting_failed(self) -> None:
        """Connecting was cancelled. If that was at the last moment, uvloop closes the socket without a callback."""
        if self._transport is not None and not self._transport.is_closing():
            self.connection_lost(None)

    # The owner's side

    @property
    def _open(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._open.write(data)

    def descriptor(self) -> int:
        """The file descriptor while the write buffer is empty and there is no TLS; else -1."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return -1
        return self._descriptor

    def finish(self) -> None:
        """Close our half; TLS has no halves and closes both."""
        transport = self._open
        if transport.is_closing():
            return
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:
                # The peer has reset the connection, and the loop has not noticed yet.
                transport.abort()
        else:
            transport.close()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self._reading and not self._open.is_closing():
            self._reading = False
            self._open.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._reading:
            return
        self._reading = True
        if self._read_early:
            held, self._read_early = self._read_early, b""
            self._owner.received(held)
        # The owner may have paused again.
        if self._reading and not self._open.is_closing():
            self._open.resume_reading()

    def close(self) -> None:
        """Close when everything is sent."""
        self._open.close()

    def abort(self) -> None:
        """Close now, with a reset: the peer learns that its answers are no longer read."""
        transport = self._open
        sock = None if transport.is_closing() else transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


class TCPListener(Listener):
    """Listening sockets of one address (a host name may have several)."""

    def __init__(self, server: asyncio.Server, address: Address) -> None:
        self._server = server
        self.address = address

    def close(self) -> None:
        """Close the listening sockets."""
        self._server.close()


class HandshakeListener(Listener):
    """Like `TCPListener`, for connections that begin with a handshake; unfinished handshakes are limited."""

    def __init__(self, pipe: Callable[[Place], TCPPipe], options: Options, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._refused = 0
        room = Room(options.max_handshakes, options.max_handshakes_per_address, options.handshake_timeout)
        self._acceptor = Acceptor(pipe, lambda: room, self._refuse, tls)
        self._backlog = options.backlog

    async def start(self, address: Address) -> Self:
        """Listen."""
        self.address = address.with_port(await self._acceptor.start(address, self._backlog))
        return self

    @property
    def counters(self) -> Mapping[str, int]:
        """Connections that were refused."""
        return {HANDSHAKES_REFUSED: self._refused} if self._refused else {}

    def _refuse(self, why: str, sock: socket.socket | None) -> None:
        self._refused += 1

    def renew(self, certificates: TLS) -> None:
        """Load the certificates anew; connections that are open keep theirs."""
        if self._tls is None:
            super().renew(certificates)
        else:
            certificates.renew(self._tls)

    def close(self) -> None:
        """Close the listening sockets."""
        self._acceptor.close()


class TCPTransport(Transport):
    """TCP; `secure` puts TLS on it."""

    def __init__(self, name: str, *, secure: bool) -> None:
        self.name = name
        self._secure = secure

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Open a connection."""
        return await connect_stream(address, TCPPipe(owner, options), options, secure=self._secure)

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Open a listening socket."""
        if self._secure:
            return await listen_with_handshake(
                address, lambda place: TCPPipe(owner(), options, place), options, secure=True
            )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: TCPPipe(owner(), options), address.host, address.port, backlog=options.backlog
        )
        return TCPListener(server, address.with_port(server.sockets[0].getsockname()[1]))


async def connect_stream(address: Address, pipe: TCPPipe, options: Options, *, secure: bool) -> TCPPipe:
    """Connect a pipe over TCP or TLS."""
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(
            lambda: pipe,
            address.host,
            address.port,
            ssl=_context(options) if secure else None,
            server_hostname=(options.server_hostname or address.host) if secure else None,
            ssl_handshake_timeout=options.handshake_timeout if secure else None,
        )
    except BaseException:
        pipe.connecting_failed()
        raise
    return pipe


async def listen_with_handshake(
    address: Address, pipe: Callable[[Place], TCPPipe], options: Options, *, secure: bool
) -> HandshakeListener:
    """Listen for connections that begin with a handshake; `pipe` makes the protocol of each from its place."""
    return await HandshakeListener(pipe, options, _context(options) if secure else None).start(address)


def _context(options: Options) -> ssl.SSLContext:
    if options.tls is None:
        raise ConfigError("this URL needs TLS settings: pass tls=TLS(...) or an ssl.SSLContext")
    return options.tls


def _endpoint(name: object) -> str:
    """`host:port` of a socket's address.

    >>> _endpoint(("::1", 5042, 0, 0)), _endpoint(("127.0.0.1", 1)), _endpoint(None)
    ('[::1]:5042', '127.0.0.1:1', '')
    """
    if isinstance(name, tuple):
        return str(Address(str(name[0]), int(name[1])))
    return str(name or "")


def tls_info(secured: ssl.SSLObject, kinds: Collection[str] = ()) -> TLSInfo:
    """What a finished TLS handshake agreed on; `kinds` says what is a name of the peer, see `TLS.names`."""
    cipher = secured.cipher()
    certificate = secured.getpeercert() or {}
    subject = certificate.get("subject", ())
    common = [str(value) for part in subject for key, value in part if key == "commonName"]  # type: ignore[str-unpack]
    alternative = certificate.get("subjectAltName", ())
    others = [str(value) for kind, value in alternative if _KINDS.get(str(kind)) in kinds]  # type: ignore[str-unpack]
    return TLSInfo(
        version=secured.version() or "",
        cipher=cipher[0] if cipher else "",
        peer_certificate=secured.getpeercert(binary_form=True),
        peer_name=common[0] if common else None,
        peer_names=tuple(dict.fromkeys((*(common if "common" in kinds else ()), *others))),
    )


TCP = TCPTransport("tcp", secure=False)
TLS_OVER_TCP = TCPTransport("tls", secure=True)
