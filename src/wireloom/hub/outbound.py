"""Whom the hub gets in touch with by itself: it reaches out from a listener, and again when a conversation is over."""

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
"""Seconds between the end of a conversation and the next attempt."""


async def keep_in_touch(
    door: Listener, address: Address, owner: Callable[[], Connection], open_now: Mapping[int, Connection]
) -> None:
    """Talk to an address for as long as the hub runs; `open_now` are the hub's connections."""
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
            # Whoever spoke to us first keeps its connection.
            connection = next((each for each in open_now.values() if each.talks_over(pipe)), connection)
            if connection.id in open_now:
                connection.over = asyncio.Event()
                await connection.over.wait()
        await asyncio.sleep(PAUSE)
