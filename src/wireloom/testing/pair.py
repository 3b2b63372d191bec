"""Two connected peers in one process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

from wireloom.peers import Client, Handler, Peer, connect, serve

_NUMBERS = count(1)


class Pair(NamedTuple):
    """Both ends of a connection."""

    client: Client
    server: Peer


@asynccontextmanager
async def peer_pair(
    protocol: str,
    handler: Handler | None = None,
    *,
    client_handler: Handler | None = None,
    settings: Mapping[str, object] | None = None,
    topics: Mapping[int, str] | None = None,
    queue: int = 1024,
) -> AsyncIterator[Pair]:
    """A client and a server that are connected in memory; `handler` answers on the server's side.

    async with peer_pair("hsp", service) as (client, server):
        await client.request("math/add", {"a": 1, "b": 2})
    """
    came: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
    url = f"memory://{protocol}/pair-{next(_NUMBERS)}"
    listening = serve(url, handler, settings=settings, topics=topics, on_connect=came.set_result)
    client = connect(url, handler=client_handler, settings=settings, topics=topics, reconnect=False, queue=queue)
    async with listening, client:
        yield Pair(client, await came)
