"""QUIC datagrams: encryption for datagram protocols. One message is one DATAGRAM frame; no streams are used.

A connection is TLS 1.3, so certificates are needed as for TLS (`Options.certificates`). The one protocol that is
carried this way is the event mesh, whose ALPN name is `emm/1`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from wireloom.model import ConfigError
from wireloom.transports.address import Address
from wireloom.transports.base import Listener, Options, Owner, OwnerFactory, Pipe, TLSInfo, Transport
from wireloom.transports.quic_identity import CIPHER, VERSION, NotAdmitted, ask_for_certificate, client_of
from wireloom.transports.tls import TLS

ALPN = "emm/1"
LARGEST = 65_535
MAX_PENDING = 1024
"""Limit of datagrams that wait for the network; more are dropped and counted."""
_ACCESS_DENIED = 0x131
"""QUIC's error for a TLS alert (0x100), `access_denied` (49)."""
MAX_HELD = 256 * 1024
"""Limit of bytes that are buffered while an owner has paused reading; more is dropped and counted."""


class QuicPipe(Pipe):
    """One QUIC connection as its owner sees it."""

    carries_messages = True

    def __init__(self, owner: Owner, protocol: _Connection, on_drop: Callable[[], None] = lambda: None) -> None:
        self._on_drop = on_drop
        self._owner = owner
        self._protocol = protocol
        self._reading = True
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._paused = False
        self.dropped = 0
        """Datagrams dropped in either direction because the receiver was too slow."""

    def open(self, here: str, there: str, tls: TLSInfo) -> None:
        """The handshake is done: tell the owner."""
        self.sockname, self.peername = here, there
        self.tls = tls
        self.identities = tuple(f"certificate:{name}" for name in tls.peer_names)
        self._owner.opened(self)

    def arrived(self, data: bytes) -> None:
        """A datagram for the owner."""
        if self._reading:
            self._owner.received(data)
        elif self._held_bytes + len(data) <= MAX_HELD:
            self._held.append(data)
            self._held_bytes += len(data)
        else:
            self._drop()

    def ended(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._owner.ended(error)

    def sent(self, pending: int) -> None:
        """Datagrams were sent; `pending` still wait for the network."""
        if self._paused and pending <= MAX_PENDING // 8:
            self._paused = False
            self._owner.writing_resumed()

    def write(self, data: bytes) -> None:
        """Send one datagram."""
        pending = self._protocol.send(data)
        if pending > MAX_PENDING:
            self._drop()
        elif pending > MAX_PENDING // 2 and not self._paused:
            self._paused = True
            self._owner.writing_paused()

    def _drop(self) -> None:
        self.dropped += 1
        self._on_drop()

    def finish(self) -> None:
        """There are no halves: this closes."""
        self.close()

    def pause_reading(self) -> None:
        """Buffer datagrams, up to a limit."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver buffered datagrams, then new ones."""
        self._reading = True
        held, self._held, self._held_bytes = self._held, [], 0
        for data in held:
            self.arrived(data)

    def close(self) -> None:
        """Close the connection."""
        self._protocol.close()

    def abort(self) -> None:
        """Close at once."""
        self._protocol.abandon()


class _Connection(QuicConnectionProtocol):
    """QUIC's events on one side, the pipe on the other."""

    def __init__(self, quic: QuicConnection, home: QuicListener | _Client) -> None:
        super().__init__(quic)
        self._home = home
        self._peer: tuple[object, ...] = ()
        self.pipe: QuicPipe | None = None

    def datagram_received(self, data: bytes | str, addr: tuple[object, ...]) -> None:
        """asyncio: a UDP datagram arrived."""
        self._peer = self._peer or addr
        super().datagram_received(data, addr)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """QUIC: something happened."""
        if isinstance(event, events.HandshakeCompleted):
            found = self._home.connected(self)
            if found is not None:
                self.pipe, tls = found
                self.pipe.open(str(self._home.address), _name(self._peer), tls)
        elif isinstance(event, events.DatagramFrameReceived):
            if self.pipe is not None:
                self.pipe.arrived(event.data)
        elif isinstance(event, events.ConnectionTerminated):
            pipe, self.pipe = self.pipe, None
            self._home.terminated(self)
            if pipe is not None:
                wrong = event.error_code and event.reason_phrase != "Idle timeout"
                pipe.ended(ConnectionError(event.reason_phrase or "QUIC error") if wrong else None)

    def abandon(self) -> None:
        """Close, without the time that QUIC keeps a closed connection for stray packets."""
        pipe, self.pipe = self.pipe, None
        if pipe is None:
            return
        self.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connection_terminated_handler()
        self._home.terminated(self)
        self._loop.call_soon(pipe.ended, None)

    def send(self, data: bytes) -> int:
        """Send a DATAGRAM frame; returns how many wait, more than `MAX_PENDING` when this one was dropped."""
        pending = self._waiting()
        if pending >= MAX_PENDING:
            return MAX_PENDING + 1
        self._quic.send_datagram_frame(data)
        self._transmit_soon()
        return pending + 1

    def _waiting(self) -> int:
        return len(self._quic._datagrams_pending)

    def transmit(self) -> None:
        """Send what the congestion window allows."""
        super().transmit()
        if self.pipe is not None:
            self.pipe.sent(self._waiting())


class _Client:
    """Holds the one connection of a client."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.address = Address("")
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, address: Address, options: Options) -> QuicPipe:
        """Connect, and wait for the handshake."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        family, raw = found[0][0], found[0][4]
        configuration = _client_configuration(address, options)
        transport, connection = await loop.create_datagram_endpoint(
            lambda: _Connection(QuicConnection(configuration=configuration), self), family=family,
            local_addr=("::" if family == socket.AF_INET6 else "0.0.0.0", 0),  # noqa: S104
        )  # fmt: skip
        self._transport = transport
        self.address = Address(*transport.get_extra_info("sockname")[:2])
        connection._peer = raw
        try:
            connection.connect(raw)
            async with asyncio.timeout(options.handshake_timeout):
                await connection.wait_connected()
        except TimeoutError:
            transport.abort()
            raise ConnectionError(f"no QUIC handshake with {address} in {options.handshake_timeout:g} s") from None
        except asyncio.CancelledError:
            transport.abort()
            raise
        except ConnectionError:
            transport.abort()
            raise ConnectionError(
                f"the QUIC handshake with {address} failed: its certificate is not trusted, or it does not speak {ALPN}"
            ) from None
        assert connection.pipe is not None
        return connection.pipe

    def connected(self, protocol: _Connection) -> tuple[QuicPipe, TLSInfo]:
        """The handshake is done."""
        return QuicPipe(self._owner, protocol), TLSInfo(VERSION, CIPHER)

    def terminated(self, protocol: _Connection) -> None:
        """The connection is gone, and its socket with it."""
        if self._transport is not None:
            self._transport.close()


class QuicListener(Listener):
    """A QUIC server."""

    def __init__(self, owner: OwnerFactory, options: Options) -> None:
        self._owner = owner
        self._options = options
        self._open: set[_Connection] = set()
        self._closing = False
        self.dropped = 0
        """Datagrams of all connections that were dropped."""
        self.refused = 0
        """Clients that were refused because of their certificates."""
        self._certificates = options.certificates or TLS()

    async def open(self, address: Address) -> QuicListener:
        """Take the address."""
        configuration = self._configuration = _server_configuration(self._options)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: QuicServer(
                configuration=configuration, create_protocol=lambda quic, stream_handler: self._accept(quic)
            ),
            local_addr=(address.host, address.port),
        )
        self._transport = transport
        self.address = address.with_port(transport.get_extra_info("sockname")[1])
        return self

    def renew(self, certificates: TLS) -> None:
        """Use new certificates from the next connection on."""
        certificates.server_context()  # raises before anything is changed
        assert certificates.certificate is not None
        self._configuration.load_cert_chain(certificates.certificate, certificates.key, certificates.password)
        self._certificates = certificates

    def _accept(self, quic: QuicConnection) -> _Connection:
        if self._certificates.ca is not None:
            ask_for_certificate(quic)
        return _Connection(quic, self)

    def connected(self, protocol: _Connection) -> tuple[QuicPipe, TLSInfo] | None:
        """A handshake is done."""
        if self._closing or len(self._open) >= self._options.max_sources:
            protocol.close()
            return None
        tls = TLSInfo(VERSION, CIPHER)
        if self._certificates.ca is not None:
            try:
                tls = client_of(protocol._quic, self._certificates)
            except NotAdmitted as refusal:
                self.refused += 1
                protocol.close(error_code=_ACCESS_DENIED, reason_phrase=str(refusal))
                return None
        self._open.add(protocol)
        return QuicPipe(self._owner(), protocol, self._count_drop), tls

    def _count_drop(self) -> None:
        self.dropped += 1

    @property
    def counters(self) -> Mapping[str, int]:
        """Dropped datagrams and refused clients."""
        return {"quic.dropped": self.dropped, "quic.certificate.refused": self.refused}

    def terminated(self, protocol: _Connection) -> None:
        """A connection is gone."""
        self._open.discard(protocol)
        if self._closing and not self._open:
            self._transport.close()

    async def reach(self, address: Address, owner: Owner) -> Pipe:
        """Connect to another peer, by a new connection with the same certificates."""
        return await _Client(owner).open(address, self._options)

    def close(self) -> None:
        """Take no new connections; the socket closes with the last one."""
        self._closing = True
        if not self._open:
            self._transport.close()


def _client_configuration(address: Address, options: Options) -> QuicConfiguration:
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=True,
        max_datagram_frame_size=LARGEST,
        server_name=options.server_hostname or address.host,
    )
    tls = options.certificates or TLS()
    # Paths are checked, and errors reported, as for TLS.
    tls.client_context()
    if not tls.verify:
        configuration.verify_mode = ssl.CERT_NONE
    if tls.ca is not None:
        configuration.load_verify_locations(cafile=str(tls.ca))
    if tls.certificate is not None:
        configuration.load_cert_chain(tls.certificate, tls.key, tls.password)
    return configuration


def _server_configuration(options: Options) -> QuicConfiguration:
    tls = options.certificates
    if tls is None or tls.certificate is None:
        raise ConfigError(
            "a QUIC server needs a certificate: --certificate FILE --key FILE of the commands, "
            "TLS(certificate=..., key=...) in Python"
        )
    tls.server_context()
    configuration = QuicConfiguration(alpn_protocols=[ALPN], is_client=False, max_datagram_frame_size=LARGEST)
    configuration.load_cert_chain(tls.certificate, tls.key, tls.password)
    return configuration


def _name(raw: tuple[object, ...]) -> str:
    return str(Address(str(raw[0]), int(str(raw[1])))) if len(raw) >= 2 else ""


class QuicTransport(Transport):
    """QUIC with DATAGRAM frames."""

    name = "quic"

    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Open a connection."""
        return await _Client(owner).open(address, options)

    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Open a server."""
        return await QuicListener(owner, options).open(address)


QUIC = QuicTransport()
