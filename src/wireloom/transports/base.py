"""The transport interface: a transport connects a pipe of bytes to an owner.

The interface is small, so that an in-memory transport and a fault-injecting one can replace TCP. Everything is
a callback on the event loop's thread; nothing here awaits, parses or queues.
"""

from __future__ import annotations

import abc
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wireloom.model import ConfigError, NotSupported
from wireloom.transports.address import Address
from wireloom.transports.busy_poll import BUSY_POLL
from wireloom.transports.tls import TLS

HIGH_WATER = 256 * 1024
"""Unsent bytes above which the owner is asked to stop writing; it may go on below a quarter of it."""


@dataclass(frozen=True, slots=True)
class TLSInfo:
    """What is known about a secured connection."""

    version: str
    cipher: str
    peer_certificate: bytes | None = None
    """The peer's certificate in DER form, where it showed one."""
    peer_name: str | None = None
    """The common name of the peer's verified certificate."""
    peer_names: tuple[str, ...] = ()
    """All names in it: the common name first, then the alternative ones."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the process at the other end of a Unix socket is, as the kernel says."""

    pid: int
    uid: int
    gid: int


class Pipe(abc.ABC):
    """One connected pair of byte streams, as the owner sees it."""

    peername: str = ""
    """The other end: `host:port`, or a name."""
    sockname: str = ""
    tls: TLSInfo | None = None
    credentials: Credentials | None = None
    """The process at the other end, where both are on this machine and the kernel tells."""
    headers: Mapping[str, str] = {}
    """What the transport's own handshake said (WebSocket), by lowercase name."""
    identities: tuple[str, ...] = ()
    """The identities that the other end has proved to the transport: `certificate:meter-7`, `xmpp:ada@example.org`."""
    carries_messages: bool = False
    """Whether each `write` travels as one message; the owner then writes one frame a call."""
    max_write: int = 0
    """The most bytes of one `write`, where the other side has such a limit; 0: none."""

    @property
    def principal(self) -> str | None:
        """The proven identity of the other end: the name in its certificate, or `uid:1000` on a Unix socket."""
        if self.tls is not None:
            return self.tls.peer_name
        return None if self.credentials is None else f"uid:{self.credentials.uid}"

    @abc.abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes in order; never blocks. Past the high-water mark the owner is told to pause."""

    def descriptor(self) -> int:
        """The file descriptor of the socket if `send` may bypass `write` now, else -1.

        It may if the write buffer is empty and bytes are sent unchanged (no TLS). Use it before control returns to the
        event loop: after that the socket may close, and another socket may get the same number.
        """
        return -1

    @abc.abstractmethod
    def finish(self) -> None:
        """Say that no more will be written; what the peer still sends arrives.

        Where the transport cannot close one half, this closes both.
        """

    @abc.abstractmethod
    def pause_reading(self) -> None:
        """Deliver no more bytes until `resume_reading`. This puts back-pressure on the peer."""

    @abc.abstractmethod
    def resume_reading(self) -> None:
        """Deliver bytes again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close after everything written is sent; `ended` follows."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Close at once and drop what is unsent; `ended` follows."""


class EndedPipe(Pipe):
    """A closed pipe, for an owner that still has received bytes to process. All its methods do nothing."""

    def __init__(self, pipe: Pipe) -> None:
        self.peername, self.sockname, self.tls = pipe.peername, pipe.sockname, pipe.tls
        self.identities, self.credentials = pipe.identities, pipe.credentials
        self.carries_messages, self.max_write = pipe.carries_messages, pipe.max_write

    def write(self, data: bytes) -> None:
        """Drop the bytes."""

    def finish(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


class Owner(Protocol):
    """The user of a pipe. `opened` is called first and `ended` last, each once."""

    def opened(self, pipe: Pipe) -> None:
        """The pipe is up."""

    def received(self, data: bytes) -> None:
        """Bytes arrived."""

    def input_ended(self) -> None:
        """The peer will send no more; it may still read."""

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone; `error` is None after an orderly close."""

    def writing_paused(self) -> None:
        """More than the high-water mark is unsent: stop writing."""

    def writing_resumed(self) -> None:
        """Write again."""


OwnerFactory = Callable[[], Owner]


@dataclass(frozen=True, slots=True)
class Options:
    """How to connect or listen. Each transport takes what concerns it."""

    tls: ssl.SSLContext | None = None
    certificates: TLS | None = None
    """The same as plain settings, for transports that do TLS on their own (QUIC)."""
    server_hostname: str | None = None
    """The name the server's certificate must bear, if not the host of the URL."""
    high_water: int = HIGH_WATER
    backlog: int = 1024
    handshake_timeout: float = 10.0
    """Seconds for TLS and WebSocket handshakes."""
    max_handshakes: int = 2000
    """Servers: limit of unfinished TLS or WebSocket handshakes of one listener."""
    max_handshakes_per_address: int = 1000
    """Servers: limit of unfinished handshakes from one address."""
    origins: tuple[str, ...] | None = None
    """WebSocket servers: the Origins of web pages that may connect. None: no web page; '*': every one;
    'http://host:*': those of one host."""
    max_message: int = 64 * 1024 * 1024
    """WebSocket: the largest message taken."""
    admit: Callable[[bytes, str], bool] | None = None
    """Datagram listeners: decides by the first datagram of a source, and its address, whether it gets a pipe."""
    max_sources: int = 4096
    """Datagram listeners: limit of sources that have a pipe at the same time."""
    busy_poll: float = BUSY_POLL
    """Streams: seconds of busy polling after a read, where that pays (`busy_poll.py`); 0 turns it off."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Settings of transports that other packages bring."""

    def __post_init__(self) -> None:
        if not 0 <= self.busy_poll < math.inf:
            raise ConfigError(f"busy_poll is {self.busy_poll:g}; it must be 0 (sleep) or more seconds, such as 0.0002")


class Listener(abc.ABC):
    """Accepts connections at an address; each gets an owner of its own."""

    address: Address
    """Where it listens, with the real port."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What this listener has dropped, by name."""
        return {}

    async def reach(self, address: Address, owner: Owner) -> Pipe:
        """Connect to another peer from the address of this listener, for transports that can."""
        raise NotSupported("this transport cannot reach out from where it listens")

    def renew(self, certificates: TLS) -> None:
        """Use new certificates from the next connection on, where the transport can; raises ConfigError if wrong."""
        raise NotSupported("this transport cannot change its certificates")

    @abc.abstractmethod
    def close(self) -> None:
        """Accept no new connections. Open connections stay open."""

    async def wait_closed(self) -> None:
        """Wait, after `close` and the end of all connections, until the listener has released everything."""


class Transport(abc.ABC):
    """A way to carry bytes between two places."""

    name: str
    listens_as_client: bool = False
    """Whether a listener is itself a client of a server elsewhere (XMPP), and so has a client's certificates."""
    has_query: bool = False
    """Whether URLs may have a query that is for the transport, beside settings of the protocol."""

    @abc.abstractmethod
    async def connect(self, address: Address, owner: Owner, options: Options) -> Pipe:
        """Connect to an address; `owner.opened` was called when this returns. Raises OSError."""

    @abc.abstractmethod
    async def listen(self, address: Address, owner: OwnerFactory, options: Options) -> Listener:
        """Accept connections at an address. Raises OSError if the address is not available."""
