"""Handlers of synchronous peers: plain functions that may block. Each runs in a thread, with a synchronous peer.

A generator yields steps and returns the result (or yields a `Result`). Events of one peer are handled one after
another. `async` handlers run in the event loop as usual, but must not use synchronous peers there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from wireloom import peers
from wireloom.model import Kind, Message
from wireloom.peers.handlers import Handler, Result, Service
from wireloom.sync.portal import Portal

if TYPE_CHECKING:
    from wireloom.sync.peer import Peer

SyncHandler = Callable[[Message, "Peer"], object]
"""Takes a message and the peer that sent it. Its return value is the answer."""


class ThreadedService(Service):
    """A handler, or a whole service, whose functions run in threads."""

    def __init__(self, portal: Portal, handler: SyncHandler | Service, peer_of: Callable[[peers.Peer], Peer]) -> None:
        super().__init__()
        self._portal = portal
        self._handler = cast(Callable[[Message, Any], object], handler)
        self._peer_of = peer_of
        self._turns: WeakKeyDictionary[peers.Peer, asyncio.Lock] = WeakKeyDictionary()
        """One lock for each peer: it handles one event at a time, including acknowledged ones."""
        self._topics = handler.event_topics if isinstance(handler, Service) else ()

    @property
    def event_topics(self) -> tuple[str, ...]:
        """Topics of the service's events. A client subscribes to them."""
        return self._topics

    def __call__(self, message: Message, peer: peers.Peer) -> object:
        """Run the handler in a thread."""
        return self._event(message, peer) if message.kind is Kind.EVENT else self._request(message, peer)

    async def _event(self, message: Message, peer: peers.Peer) -> None:
        async with self._turns.setdefault(peer, asyncio.Lock()):
            result = await self._portal.in_thread(self._handler, message, self._peer_of(peer))
            if inspect.isawaitable(result):
                await result

    async def _request(self, message: Message, peer: peers.Peer) -> AsyncIterator[object]:
        result = await self._portal.in_thread(self._handler, message, self._peer_of(peer))
        if inspect.isawaitable(result):
            yield Result(await result)
        elif inspect.isasyncgen(result):
            async for step in result:
                yield step
        elif inspect.isgenerator(result):
            async for step in self._steps(result):
                yield step
        else:
            yield Result(result)

    async def _steps(self, steps: Generator[object, Any, object]) -> AsyncIterator[object]:
        """The steps of a generator. Its return value is the result.

        A cancelled request is answered at once. The generator is closed when its current step is done.
        """
        running = threading.Lock()

        def following() -> object:
            with running:
                try:
                    return next(steps)
                except StopIteration as end:
                    return Result(end.value)

        def close() -> None:
            with running:
                steps.close()

        try:
            while True:
                step = await self._portal.in_thread(following)
                yield step
                if isinstance(step, Result):
                    return
        finally:
            self._portal.handlers.submit(close)


def threaded(
    portal: Portal, handler: SyncHandler | Service | None, peer_of: Callable[[peers.Peer], Peer]
) -> Handler | None:
    """A handler for the underlying async peer."""
    return None if handler is None else ThreadedService(portal, handler, peer_of)
