"""`serve`: accepts peers, and publishes to their subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from wireloom.model import ConfigError, Message, PeerClosed, RequestFailed, WireloomError
from wireloom.peers.driver import Driver
from wireloom.peers.endpoint import Endpoint, endpoint
from wireloom.peers.handlers import Handler
from wireloom.peers.peer import CONCURRENCY, DRAIN, Peer
from wireloom.peers.peer_core import QUEUE, SUBSCRIBE, UNSUBSCRIBE
from wireloom.protocols.contract import Batch, Role, Sessions, Settings
from wireloom.topics import Subscriptions
from wireloom.transports import TLS, Listener, Options, Pipe
from wireloom.transports.busy_poll import BUSY_POLL
from wireloom.transports.tls import client_context, server_context

LOG = logging.getLogger("wireloom.peers")
MAX_CONNECTIONS = 10_000
SLOW = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows; `limits` of `serve`.

    >>> Limits(concurrency=16).connections
    10000
    """

    queue: int = QUEUE
    """Messages of a peer that may wait for their handler, or in a subscription. Then reading from it stops."""
    concurrency: int = CONCURRENCY
    """How many requests of a peer are handled concurrently."""
    connections: int = MAX_CONNECTIONS
    """Maximum peers. Further ones are refused."""
    slow: float = SLOW
    """Seconds that a subscriber may be slow before it is dropped."""


def serve(
    url: str,
    handler: Handler | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[int, str] | None = None,
    tls: TLS | ssl.SSLContext | None = None,
    limits: Limits | None = None,
    origins: tuple[str, ...] | None = None,
    on_connect: Callable[[Peer], None] | None = None,
    drain: float = DRAIN,
    busy_poll: float = BUSY_POLL,
) -> Server:
    """A server at a URL; use it with `async with`. Port 0 means any free port; `server.url` contains the actual one.

        async with wireloom.serve("hsp://127.0.0.1:0", handler) as server:
            await server.publish("alerts/fire", "run")

    - `handler` answers requests and takes events (see `Service`).
    - `tls` holds the certificate, for schemes with TLS.
    - `limits` apply to connections and work (see `Limits`).
    - `origins` are the web pages that may connect by WebSocket.
    - `drain` is how many seconds closing waits for what is in flight.
    - `busy_poll` is the same as for `connect`.
    """
    place = endpoint(url)
    own = place.protocol.settings(place.settings_with(settings))
    return Server(
        place,
        handler,
        settings=own,
        topics=topics,
        tls=tls,
        limits=limits or Limits(),
        origins=origins,
        on_connect=on_connect,
        drain=drain,
        busy_poll=busy_poll,
        _sessions=place.protocol.sessions(own, topics),
    )


@dataclass(eq=False)
class Server:
    """Listens, and holds the connected peers. Made by `serve`."""

    _place: Endpoint
    _handler: Handler | None
    settings: Settings
    topics: Mapping[int, str] | None
    tls: TLS | ssl.SSLContext | None
    limits: Limits
    origins: tuple[str, ...] | None
    on_connect: Callable[[Peer], None] | None
    drain: float
    busy_poll: float
    _sessions: Sessions
    _listener: Listener | None = None
    _peers: dict[Peer, None] = field(default_factory=dict)
    _drivers: dict[Driver, None] = field(default_factory=dict)
    _wanted: Subscriptions[Peer] = field(default_factory=Subscriptions)
    _leaving: dict[Peer, asyncio.Task[None]] = field(default_factory=dict)
    """Disconnected peers whose last messages are still being handled."""

    async def start(self) -> Self:
        """Start to listen. Raises OSError if the address is not available."""
        tls = None
        if self._place.secure:
            listens_as_client = self._place.transport.listens_as_client
            tls = client_context(self.tls) if listens_as_client else server_context(self.tls)
        certificates = self.tls if isinstance(self.tls, TLS) else None
        self._listener = await self._place.transport.listen(
            self._place.address,
            self._welcome,
            Options(
                tls=tls,
                origins=self.origins,
                certificates=certificates,
                admit=self._admit,
                busy_poll=self.busy_poll,
            ),
        )
        return self

    def _admit(self, datagram: bytes, source: str) -> bool:
        refusal = self._sessions.admit(datagram, source, time.time())
        if refusal is not None:
            LOG.info("%s is not heard: %s", source, refusal)
        return refusal is None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The URL for clients, with the actual port."""
        return self._place.url if self._listener is None else self._place.at(self._listener.address).url

    @property
    def port(self) -> int:
        """The port."""
        return self._place.address.port if self._listener is None else self._listener.address.port

    @property
    def connections(self) -> tuple[Peer, ...]:
        """The peers that are connected now, oldest first."""
        return tuple(self._peers)

    async def publish(self, topic: str, body: object = None) -> int:
        """Send an event to every peer that subscribed to its topic. Returns how many there were.

        Returns when the next event can be sent. A peer that is slow for `limits.slow` seconds is dropped.
        """
        takers = self._wanted.lookup(topic)
        slow: list[Peer] = []
        for peer in takers:
            try:
                peer.send_event(topic, body)
            except PeerClosed:
                continue
            if peer.is_slow:
                slow.append(peer)
        if slow:
            await asyncio.gather(*map(self._wait_for, slow))
        return len(takers)

    async def _wait_for(self, peer: Peer) -> None:
        try:
            async with asyncio.timeout(self.limits.slow):
                await peer.drain()
        except TimeoutError:
            LOG.warning("%s did not take events for %g s and was dropped", peer.name, self.limits.slow)
            peer.abort()
        except WireloomError:
            return

    async def close(self, *, drain: float | None = None) -> None:
        """Accept no more connections, finish what is in flight, and close all peers politely."""
        if self._listener is not None:
            self._listener.close()
        wait = self.drain if drain is None else drain
        peers = list(self._peers)
        if peers:
            await asyncio.gather(*(peer.close("shutdown", drain=wait) for peer in peers))
        if self._leaving:
            await asyncio.wait(self._leaving.values(), timeout=wait)
            for peer in list(self._leaving):
                await peer.close(drain=0)
        for driver in list(self._drivers):
            driver.abort()
        if self._listener is not None:
            await self._listener.wait_closed()

    async def serve_forever(self) -> None:
        """Wait until cancelled."""
        await asyncio.get_running_loop().create_future()

    # One connection

    def _welcome(self) -> Driver:
        session = self._sessions.new(Role.SERVER, unique=secrets.randbits(64))
        peer = Peer(
            self._place.protocol,
            handler=self._handler,
            operations={SUBSCRIBE: self._subscribe, UNSUBSCRIBE: self._unsubscribe},
            queue=self.limits.queue,
            concurrency=self.limits.concurrency,
        )

        def on_open() -> None:
            self._peers[peer] = None
            if self.on_connect is not None:
                self.on_connect(peer)

        def on_end(error: WireloomError) -> None:
            self._peers.pop(peer, None)
            self._wanted.drop(peer)
            peer._lost(error)
            if peer._is_busy:
                self._leaving[peer] = asyncio.get_running_loop().create_task(self._see_off(peer, driver))
            else:
                del self._drivers[driver]

        driver = _Door(self, session, on_batch=peer._take, on_open=on_open, on_end=on_end)
        self._drivers[driver] = None
        peer._attach(driver)
        return driver

    async def _see_off(self, peer: Peer, driver: Driver) -> None:
        """A disconnected peer counts as a connection until its last message is handled."""
        try:
            await peer._finished()
        finally:
            del self._leaving[peer], self._drivers[driver]

    def _subscribe(self, message: Message, peer: Peer) -> object:
        try:
            self._wanted.add(_pattern(message), peer)
        except ConfigError as error:
            raise RequestFailed("400", str(error).encode()) from None
        return None

    def _unsubscribe(self, message: Message, peer: Peer) -> object:
        self._wanted.remove(_pattern(message), peer)
        return None


class _Door(Driver):
    """A driver that refuses connections beyond the maximum."""

    def __init__(
        self,
        server: Server,
        session: object,
        *,
        on_batch: Callable[[Batch], None],
        on_open: Callable[[], None],
        on_end: Callable[[WireloomError], None],
    ) -> None:
        super().__init__(session, on_batch=on_batch, on_open=on_open, on_end=on_end)  # type: ignore[arg-type]
        self._server = server

    def opened(self, pipe: Pipe) -> None:
        """Start the session, unless there are too many connections."""
        if len(self._server._drivers) > self._server.limits.connections:
            LOG.warning("%s was turned away: limit of %d connections", pipe.peername, self._server.limits.connections)
            self._pipe = pipe
            pipe.abort()
            return
        super().opened(pipe)


def _pattern(message: Message) -> str:
    value = None
    with contextlib.suppress(ValueError):
        value = message.with_(content_type="application/json").value()
    if not isinstance(value, dict) or not isinstance(value.get("topic"), str):
        raise RequestFailed("400", b'the body must be JSON such as {"topic": "sensors/#"}')
    return str(value["topic"])
