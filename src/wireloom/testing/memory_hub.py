"""The real hub without ports and files, for tests of services.

Router, access rules, limits, routes and journal are those of `wireloom hub`. Only its environment is simulated: peers
connect in memory, the journal is on a `SimulatedDisk`, and time can be advanced by hand.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from wireloom.model import ConfigError, Message
from wireloom.peers import Backoff, Client, Handler, connect
from wireloom.protocols.contract import Framing, Scheme
from wireloom.protocols.registry import protocol as find_protocol
from wireloom.testing.clock import ManualClock
from wireloom.testing.simulated_disk import SimulatedDisk
from wireloom.transports.address import Address

if TYPE_CHECKING:
    from wireloom.hub import Hub
    from wireloom.hub.config import HubConfig, ListenerConfig

DATA = Path("/hub")
"""The hub's data folder on the simulated disk."""
PROTOCOLS = ("emp", "hsp", "yamp", "wolpertinger")
_NUMBERS = count(1)


class MemoryHub:
    """A running hub in this process. Made by `hub`."""

    def __init__(self, config: HubConfig, disk: SimulatedDisk, clock: ManualClock, urls: dict[str, str]) -> None:
        self._config = config
        self._urls = urls
        self.disk = disk
        """The disk of its journal. `disk.fail("sync", errno.EIO)` makes a call fail; see `SimulatedDisk`."""
        self.clock = clock
        """The clock of the hub and of every peer in this event loop: `await hub.clock.advance(60)`."""
        self.running: Hub | None = None
        """The hub itself; None while it is stopped."""

    @property
    def inside(self) -> Hub:
        """The hub itself, for what this class does not offer: metrics, connections, the router."""
        if self.running is None:
            raise ConfigError("the hub is stopped: `await hub.start()`")
        return self.running

    def url(self, protocol: str = "yamp") -> str:
        """The URL for peers of a protocol, within this event loop."""
        try:
            return self._urls[protocol]
        except KeyError:
            raise ConfigError(f"this hub does not listen for {protocol}; it does for {', '.join(self._urls)}") from None

    def connect(
        self,
        protocol: str = "yamp",
        *,
        handler: Handler | None = None,
        token: str | None = None,
        reconnect: bool | Backoff = False,
        resend: bool = False,
    ) -> Client:
        """A peer of this hub, as from `wireloom.connect`, without reconnect. Use it with `async with`."""
        return connect(self.url(protocol), handler=handler, token=token, reconnect=reconnect, resend=resend)

    def messages(self, topic: str | None = None) -> list[Message]:
        """The committed messages in the journal, oldest first; of one topic if given."""
        from wireloom.journal.reader import read_messages

        folder = self._config.journal_folder
        found = [entry.message for entry in read_messages(folder, disk=self.disk)]
        return [each for each in found if topic is None or each.topic == topic]

    # Faults

    def cut(self) -> None:
        """Reset every connection, as a network failure does."""
        for connection in list(self.inside.connections.values()):
            connection.driver.abort()

    def stall(self) -> None:
        """Stop reading from all peers until `resume`: they feel back-pressure and silence."""
        for connection in self.inside.connections.values():
            connection.driver.hold("test")

    def resume(self) -> None:
        """Resume reading."""
        for connection in self.inside.connections.values():
            connection.driver.release("test")

    async def start(self) -> None:
        """Start it with the data on its disk."""
        from wireloom.hub import Hub

        if self.running is None:
            self.running = Hub(self._config, disk=self.disk, now_ns=self.clock.time_ns)
            await self.running.start()

    async def stop(self) -> None:
        """Stop it normally."""
        running, self.running = self.running, None
        if running is not None:
            await running.stop()

    async def restart(self) -> None:
        """Stop it normally, and start it again."""
        await self.stop()
        await self.start()

    async def crash(self, random: Random | None = None) -> None:
        """Simulate a power cut, and start the hub again with what is left on the disk.

        Unsynced data is lost: all of it, or with `random` any part of it. What the hub acknowledged is still there.
        """
        left = self.disk.copy()
        state = left.crash(random) if random is not None else next(left.crash_states(Random(0), 1))[1]
        self.cut()
        await self.stop()
        self.disk = state
        await self.start()


@asynccontextmanager
async def hub(
    config: str = "", *, protocols: tuple[str, ...] = PROTOCOLS, disk: SimulatedDisk | None = None
) -> AsyncIterator[MemoryHub]:
    """A hub in memory. `config` is the text of a `hub.toml`: access rules, limits, routes, listeners.

        async with wireloom.testing.hub() as hub, hub.connect(handler=service) as worker:
            await worker.provide(*service.topics)
            async with hub.connect("emp") as client:
                assert await client.request("math/add", [1, 2]) == 3

    Listeners of the configuration keep their settings but have no port; protocols that it does not name are there with
    their default settings. Pages (`[http]`) and mesh are left out. `disk` is for a hub on the disk of another one.
    """
    from wireloom.hub.config import parse_config

    parsed = parse_config(tomllib.loads(config), config, "hub.toml", DATA)
    named = {} if "[[listener]]" not in config else {each.protocol.name: each for each in reversed(parsed.listeners)}
    number = next(_NUMBERS)
    names = [name for name in dict.fromkeys((*protocols, *named)) if _has_connections(name)]
    listeners = [_in_memory(name, named.get(name), number) for name in names]
    urls = {each.protocol.name: each.url for each in listeners}
    made = dataclasses.replace(parsed, listeners=tuple(listeners), http=None)
    found = MemoryHub(made, disk or SimulatedDisk(), ManualClock.of(asyncio.get_running_loop()), urls)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


def _has_connections(name: str) -> bool:
    """Whether a protocol has connections. Datagrams need a network."""
    return find_protocol(name).framing is not Framing.DATAGRAM


def _in_memory(name: str, configured: ListenerConfig | None, number: int) -> ListenerConfig:
    """A listener as configured, with an in-memory name instead of a port."""
    from wireloom.hub.config import make_listener

    protocol = find_protocol(name)
    if configured is None:
        scheme = next(each for each in protocol.schemes if not each.secure)
        settings = dict(protocol.loopback_settings)
        configured = make_listener({"url": f"{scheme.name}://127.0.0.1:1", "settings": settings, "profile": True})
    place = f"hub-{number}-{name}"
    return dataclasses.replace(
        configured,
        url=f"memory://{name}/{place}",
        scheme=Scheme("memory", "memory", 0, local=True),
        address=Address(name, 0, place),
        tls=None,
        certificates=None,
    )
