"""`connect` and `serve` without asyncio."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Self
from weakref import WeakValueDictionary

from wireloom import peers
from wireloom.peers.client import CONNECT_TIMEOUT
from wireloom.peers.handlers import Service
from wireloom.peers.peer import CONCURRENCY, DRAIN
from wireloom.peers.peer_core import QUEUE
from wireloom.sync.handlers import SyncHandler, threaded
from wireloom.sync.peer import Client, Peer
from wireloom.sync.portal import Portal, portal
from wireloom.transports import TLS


def connect(
    url: str,
    *,
    handler: SyncHandler | Service | None = None,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[int, str] | None = None,
    tls: TLS | ssl.SSLContext | None = None,
    token: str | None = None,
    reconnect: bool | peers.Backoff = True,
    resend: bool = False,
    queue: int = QUEUE,
    concurrency: int = CONCURRENCY,
    timeout: float = CONNECT_TIMEOUT,
    busy_poll: float = 0.0,
) -> Client:
    """Connect to a URL now. Close it with `with` or `close`, or leave that to the end of the program.

        peer = wireloom.sync.connect("emp://127.0.0.1:5040")
        print(peer.request("math/add", [1, 2]))

    All options are those of `wireloom.connect`, except that busy polling is off: it would keep other threads from
    running. A handler is a plain function, or a `Service` of such functions. It runs in a thread, and may block.
    """
    here = portal()
    seen = _Peers(here)

    async def begin() -> peers.Client:
        client = peers.connect(
            url,
            handler=threaded(here, handler, seen.of),
            settings=settings,
            topics=topics,
            tls=tls,
            token=token,
            reconnect=reconnect,
            resend=resend,
            queue=queue,
            concurrency=concurrency,
            timeout=timeout,
            busy_poll=busy_poll,
        )
        await client.open()
        here.open.add(client)
        return client

    return Client(here, here.run(begin()))


def serve(
    url: str,
    handler: SyncHandler | Service | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[int, str] | None = None,
    tls: TLS | ssl.SSLContext | None = None,
    limits: peers.Limits | None = None,
    origins: tuple[str, ...] | None = None,
    on_connect: Callable[[Peer], None] | None = None,
    drain: float = DRAIN,
    busy_poll: float = 0.0,
) -> Server:
    """Serve at a URL from now on. Close it with `with` or `close`, or leave that to the end of the program.

        with wireloom.sync.serve("emp://127.0.0.1:5040", service) as server:
            server.serve_forever()

    All options are those of `wireloom.serve`. Handlers are as for `connect`; `on_connect` runs in a thread, too.
    """
    here = portal()
    seen = _Peers(here)

    def connected(peer: peers.Peer) -> None:
        if on_connect is not None:
            here.handlers.submit(on_connect, seen.of(peer))

    async def begin() -> peers.Server:
        server = peers.serve(
            url,
            threaded(here, handler, seen.of),
            settings=settings,
            topics=topics,
            tls=tls,
            limits=limits,
            origins=origins,
            on_connect=connected,
            drain=drain,
            busy_poll=busy_poll,
        )
        await server.start()
        here.open.add(server)
        return server

    return Server(here, here.run(begin()), seen)


class _Peers:
    """The synchronous peer of each async peer: always the same object."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._known: WeakValueDictionary[int, Peer] = WeakValueDictionary()
        """By the identity of the async peer, which the synchronous peer keeps alive."""

    def of(self, inner: peers.Peer) -> Peer:
        found = self._known.get(id(inner))
        if found is None:
            found = Client(self._portal, inner) if isinstance(inner, peers.Client) else Peer(self._portal, inner)
            self._known[id(inner)] = found
        return found


class Server:
    """Listens, and holds the connected peers. Made by `serve`."""

    def __init__(self, portal: Portal, inner: peers.Server, seen: _Peers) -> None:
        self._portal = portal
        self._inner = inner
        self._seen = seen
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """The URL for clients, with the actual port."""
        return self._inner.url

    @property
    def port(self) -> int:
        """The port."""
        return self._inner.port

    @property
    def connections(self) -> tuple[Peer, ...]:
        """The peers that are connected now, oldest first."""
        return self._portal.call(lambda: tuple(map(self._seen.of, self._inner.connections)))

    def publish(self, topic: str, body: object = None) -> int:
        """Send an event to every peer that subscribed to its topic. Returns how many there were."""
        return self._portal.run(self._inner.publish(topic, body))

    def serve_forever(self) -> None:
        """Wait until it is closed, or until Ctrl-C."""
        while not self._closed.wait(1.0):
            pass

    def close(self, *, drain: float | None = None) -> None:
        """Accept no more connections, finish what is in flight, and close all peers politely."""

        async def work() -> None:
            await self._inner.close(drain=drain)
            self._portal.open.discard(self._inner)

        if self._portal.is_running and not self._closed.is_set():
            self._closed.set()
            self._portal.run(work())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
