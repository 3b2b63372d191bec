"""A mesh node for programs: join, publish, subscribe, and watch neighbours.

It adds sockets, queues and timers to `protocols/mesh/node.py`. Exported as `wireloom.mesh`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from wireloom.model import ConfigError, Kind, Message, PeerClosed, encode_value
from wireloom.peers.endpoint import Endpoint, endpoint
from wireloom.peers.mesh.streams import Changes, Events, Newest, PeerChange, PeerInfo
from wireloom.protocols.contract import URGENT
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.node import Change, Heard, MeshNode, Neighbour, Relay
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.mesh.trust import TrustStore
from wireloom.topics import Subscriptions, validate_pattern
from wireloom.transports import TLS, Address, Listener, Options, Pipe
from wireloom.transports.tls import server_context

LOG = logging.getLogger("wireloom.mesh")
QUEUE = 1024
"""Events that a subscription holds. Beyond that the oldest are dropped and counted."""


class Node:
    """A node of an event mesh; use it with `async with`.

    ::

        async with mesh.Node("mesh://0.0.0.0:5041", key="node.json", trust="trust.json",
                             seeds=["mesh://10.0.0.2"], relay=["#"]) as node:
            await node.publish("alarm/fire", {"room": 4}, urgent=True)
            async for event in node.subscribe("sensors/#"):
                print(event.topic, event.value())

    - `key` and `trust` are files made by `wireloom keys`, an `Identity` and a `TrustStore`. Files are read again when
      they change. `require` is `trusted` where there is a trust store, else it must be said.
    - `seeds` are nodes to greet; they name others. `relay` are patterns (or `Relay` rules) of events to pass on.
    - `copies` is how often each packet is sent: receivers drop what they have seen, so more copies only cost bandwidth,
      and an event survives losses.
    - `mesh+quic://` talks over QUIC, with `tls` for certificates.
    """

    def __init__(
        self,
        url: str = "mesh://0.0.0.0:0",
        *,
        key: str | Identity | None = None,
        trust: str | TrustStore | None = None,
        require: Require | str | None = None,
        seeds: Iterable[str] = (),
        relay: Iterable[str | Relay] = (),
        copies: int = 1,
        max_neighbours: int = 32,
        settings: Mapping[str, object] | None = None,
        queue: int = QUEUE,
        tls: TLS | ssl.SSLContext | None = None,
    ) -> None:
        self._place = endpoint(url)
        if self._place.protocol.name != "mesh":
            raise ConfigError(f"URL {url!r}: a mesh node needs mesh:// or mesh+quic://")
        settings = self._place.settings_with(settings)
        if trust is None and require is None and not settings.get("require"):
            raise ConfigError("a mesh node needs trust=..., or require='any' to accept whatever comes")
        values: dict[str, object] = dict(settings)
        values.setdefault("require", require or Require.TRUSTED)
        if isinstance(key, str):
            values["key"] = key
        if isinstance(trust, str):
            values["trust"] = trust
        self._settings = MeshSettings.parse(values)
        self._seeds = [_seed(self._place, seed) for seed in seeds]
        self._queue = queue
        self._tls = tls
        self._core = MeshNode(
            self._settings,
            identity=key if isinstance(key, Identity) else None,
            trust=trust if isinstance(trust, TrustStore) else None,
            relays=[rule if isinstance(rule, Relay) else Relay(rule) for rule in relay],
            copies=copies,
            max_neighbours=max_neighbours,
        )
        self._listener: Listener | None = None
        self._links: dict[str, _Link] = {}
        self._reaching: dict[str, tuple[asyncio.Task[None], list[bytes]]] = {}
        """Links that are being opened, with the packets that wait for each."""
        self._subscriptions: Subscriptions[Newest[Message]] = Subscriptions()
        self._changes: list[Newest[PeerChange]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self.dropped = 0
        """Events that were lost because no subscriber took them in time."""

    # Public API

    async def start(self) -> Self:
        """Open the socket and greet the seeds. Raises OSError if the address is not available."""
        self._loop = asyncio.get_running_loop()
        self._core.epoch = time.time() - self._loop.time()
        tls = server_context(self._tls) if self._place.secure else None
        certificates = self._tls if isinstance(self._tls, TLS) else None
        self._listener = await self._place.transport.listen(
            self._place.address,
            lambda: _Link(self),
            Options(tls=tls, certificates=certificates, admit=self._admit),
        )
        for seed in self._seeds:
            self._core.add_seed(await self._numeric(seed), self._loop.time())
        self._core.start(self._loop.time())
        self._flush()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The URL of this node, with the actual port."""
        return self._place.url if self._listener is None else self._place.at(self._listener.address).url

    @property
    def node_id(self) -> str:
        """This node's id, as hex."""
        return self._core.node_id.hex()

    @property
    def peers(self) -> tuple[PeerInfo, ...]:
        """The current neighbours."""
        return tuple(self._info(neighbour) for neighbour in self._core.neighbours.values())

    @property
    def counters(self) -> dict[str, int]:
        """How many packets were refused, dropped and relayed so far, by clause or by name."""
        found = dict(self._core.counters)
        found["mesh.replay.evicted"] = self._core.gate.replay.evicted
        found["mesh.events.dropped"] = self.dropped
        for name in ("dropped", "kernel_drops"):
            found[f"udp.{name}"] = int(getattr(self._listener, name, 0))
        return found

    @property
    def trust(self) -> TrustStore:
        """The trust store of this node. Keys may be added and removed while it runs, unless they are in a file."""
        return self._core.gate.trust

    async def publish(
        self,
        topic: str,
        body: object = None,
        *,
        urgent: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> Message:
        """Send an event to every neighbour that wants it. Returns it with its id, when the next one can be sent.

        Raises LimitExceeded if the body does not fit into a packet.
        """
        self._check()
        data, content_type = encode_value(body)
        marks = {**(attributes or {}), **({URGENT: "1"} if urgent else {})}
        sent = self._core.publish(
            Message(Kind.EVENT, topic, data, content_type=content_type, attributes=marks), self._loop.time()
        )
        self._flush()
        await self._room.wait()
        return sent

    def subscribe(self, pattern: str) -> Events:
        """Events whose name matches a pattern, as an async iterator. Neighbours are told about the subscription."""
        self._check()
        queue: Newest[Message] = Newest(self._queue)
        self._subscriptions.add(validate_pattern(pattern), queue)
        self._core.subscribe(pattern, self._loop.time())
        self._flush()
        return Events(self, pattern, queue)

    def changes(self) -> Changes:
        """Changes of the set of neighbours from now on, as an async iterator."""
        queue: Newest[PeerChange] = Newest(self._queue)
        self._changes.append(queue)
        return Changes(self, queue)

    async def greet(self, url: str) -> None:
        """Send Hello to one more node, repeatedly until it answers."""
        self._check()
        self._core.add_seed(await self._numeric(_seed(self._place, url)), self._loop.time())
        self._flush()

    def rotate(self, identity: Identity) -> None:
        """Sign with other keys from now on. Other nodes must trust the new keys first."""
        self._core.rotate(identity)

    async def close(self) -> None:
        """Stop. Mesh has no goodbye message: neighbours detect it by our silence."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for task, _ in self._reaching.values():
            task.cancel()
        for link in list(self._links.values()):
            link.pipe.abort()
        for events in self._subscriptions.subscribers():
            events.close()
        for changes in self._changes:
            changes.close()
        await asyncio.sleep(0)

    # Called by links and iterators

    def arrived(self, link: _Link, data: bytes, ends: Sequence[int]) -> None:
        """Take datagrams from a link."""
        heard = Heard()
        now = link.heard = self._loop.time()
        start = 0
        for end in ends:
            self._core.receive(data[start:end], link.name, now, heard)
            start = end
        self._hand_out(heard)
        self._flush()

    def opened(self, link: _Link) -> None:
        """A link is open."""
        self._links[link.name] = link

    def gone(self, link: _Link) -> None:
        """A link is closed."""
        if self._links.get(link.name) is link:
            del self._links[link.name]

    def writing(self, possible: bool) -> None:
        """Set whether more can be sent."""
        (self._room.set if possible else self._room.clear)()

    def drop_events(self, pattern: str, queue: Newest[Message]) -> None:
        """Remove a subscription."""
        if queue in self._subscriptions.subscribers():
            self._subscriptions.remove(pattern, queue)
            self._core.unsubscribe(pattern, self._loop.time())
            if not self._closed:
                self._flush()

    def drop_changes(self, queue: Newest[PeerChange]) -> None:
        """Remove an iterator of changes."""
        if queue in self._changes:
            self._changes.remove(queue)

    # Inside

    def _check(self) -> None:
        if self._closed or self._listener is None:
            raise PeerClosed("the mesh node is not running: use `async with mesh.Node(...) as node`")

    def _admit(self, datagram: bytes, source: str) -> bool:
        """Whether to open a link for an unknown sender: only if its datagram is acceptable."""
        refusal = self._core.look(datagram, source, self._loop.time())
        return refusal is None

    async def _numeric(self, seed: Address) -> str:
        """The link name of a seed with its host resolved: packets come from an IP address, not from a host name."""
        try:
            found = await self._loop.getaddrinfo(seed.host, seed.port, type=socket.SOCK_DGRAM)
        except OSError as error:
            LOG.warning("seed %s is not known at the moment: %s", seed, error)
            return str(seed)
        return str(Address(str(found[0][4][0]), seed.port))

    def _info(self, neighbour: Neighbour) -> PeerInfo:
        epoch = self._core.epoch
        return PeerInfo(
            neighbour.node_id.hex(),
            neighbour.link,
            neighbour.capabilities,
            neighbour.since + epoch,
            neighbour.heard + epoch,
        )

    def _hand_out(self, heard: Heard) -> None:
        for event in heard.events:
            urgent = event.attributes.get(URGENT) == "1"
            for queue in self._subscriptions.lookup(event.topic or ""):
                if not queue.put(event, urgent=urgent):
                    self.dropped += 1
        for what, neighbour in heard.changes:
            LOG.info("neighbour %s %s at %s", neighbour.node_id.hex(), what, neighbour.link)
            change = PeerChange(what, self._info(neighbour))
            for watcher in self._changes:
                watcher.put(change)
            if what is Change.LOST and neighbour.link in self._links:
                self._links[neighbour.link].pipe.close()

    def _flush(self) -> None:
        """Send pending packets, and set the timer."""
        for name, packet in self._core.outgoing():
            link = self._links.get(name)
            if link is not None:
                link.pipe.write(packet)
            else:
                self._reach(name, packet)
        deadline = self._core.deadline()
        if self._timer is None or deadline < self._timer.when() or self._timer.cancelled():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._expire)

    def _reach(self, name: str, packet: bytes) -> None:
        """Open a link to an address, then send the packet."""
        if name in self._reaching:
            waiting = self._reaching[name][1]
            if len(waiting) < self._queue:
                waiting.append(packet)
        elif not self._closed:
            packets = [packet]
            self._reaching[name] = (self._loop.create_task(self._connect(name, packets)), packets)

    async def _connect(self, name: str, packets: list[bytes]) -> None:
        assert self._listener is not None
        host, _, port = name.rpartition(":")
        try:
            pipe = await self._listener.reach(Address(host.strip("[]"), int(port)), _Link(self, name))
            for packet in packets:
                pipe.write(packet)
        except (OSError, ValueError) as error:
            LOG.info("cannot reach %s: %s", name, error)
        finally:
            self._reaching.pop(name, None)

    def _expire(self) -> None:
        self._timer = None
        if not self._closed:
            now = self._loop.time() + 0.001
            self._hand_out(self._core.expire(now))
            self._forget_strangers(now)
            self._flush()

    def _forget_strangers(self, now: float) -> None:
        """Close the links of senders that did not become neighbours."""
        known = {neighbour.link for neighbour in self._core.neighbours.values()}
        for link in list(self._links.values()):
            if link.name not in known and now - link.heard > self._settings.lost_after:
                link.pipe.close()


class _Link:
    """One address, or one QUIC connection, on behalf of a node."""

    def __init__(self, node: Node, name: str = "") -> None:
        self._node = node
        self.name = name
        self.heard = 0.0

    def opened(self, pipe: Pipe) -> None:
        """The link is open."""
        self.pipe = pipe
        self.heard = asyncio.get_running_loop().time()
        self.name = self.name or pipe.peername
        self._node.opened(self)

    def received(self, data: bytes) -> None:
        """Take a datagram."""
        self._node.arrived(self, data, (len(data),))

    def received_datagrams(self, data: bytes, ends: Sequence[int]) -> None:
        """Take datagrams that arrived together."""
        self._node.arrived(self, data, ends)

    def input_ended(self) -> None:
        """The other end has closed."""
        self.pipe.close()

    def ended(self, error: Exception | None) -> None:
        """The link is closed."""
        self._node.gone(self)

    def writing_paused(self) -> None:
        """Too many bytes are unsent."""
        self._node.writing(False)

    def writing_resumed(self) -> None:
        """More can be sent."""
        self._node.writing(True)


def _seed(place: Endpoint, url: str) -> Address:
    """Parse the address of a seed: a URL of the same scheme, or `host:port`."""
    seed = endpoint(url if "://" in url else f"{place.scheme}://{url}")
    if seed.scheme != place.scheme:
        raise ConfigError(f"seed {url!r}: this node speaks {place.scheme}")
    return seed.address
