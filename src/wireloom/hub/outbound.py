"""Outgoing connections of the hub: it connects from a listener to an address, and again after a connection ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from wireloom.hub.connection import Connection
from wireloom.hub.logs import about
from wireloom.transports.address import Address
from wireloom.transports.base import Listener

log = logging.getLogger("wireloom.hub")

PAUSE = 0.5
"""Seconds between the end of a connection and the next attempt."""


async def keep_in_touch(
    door: Listener, address: Address, owner: Callable[[], Connection], open_now: Mapping[int, Connection]
) -> None:
    """Keep a connection to an address while the hub runs. `open_now` holds the hub's connections."""
    told = False
    while True:
        connection = owner()
        try:
            pipe = await door.reach(address, connection)
        except (OSError, TimeoutError) as error:
            if not told:
                log.warning("cannot reach %s: %s; trying on", address, error, extra=about("contact.unreachable"))
            told = True
        else:
            told = False
            # If the peer has connected to us meanwhile, keep that connection.
            connection = next((each for each in open_now.values() if each.talks_over(pipe)), connection)
            if connection.id in open_now:
                connection.over = asyncio.Event()
                await connection.over.wait()
        await asyncio.sleep(PAUSE)
