"""Iterators of synchronous peers, for use with `for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from wireloom import peers
from wireloom.model import Message, RequestTimeout, WireloomError
from wireloom.peers.publish_many import PublishMany as AsyncPublishMany
from wireloom.peers.request_many import Many as AsyncMany
from wireloom.sync.portal import Portal

Item = TypeVar("Item")
Step = TypeVar("Step")
Outcome = TypeVar("Outcome")


class Stream(Iterator[Item]):
    """An iterator of incoming items. Leaving the `with`, or dropping it, ends it. Several threads may use it."""

    def __init__(self, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner: Any = inner

    def __next__(self) -> Item:
        return self.get()

    def get(self, timeout: float | None = None) -> Item:
        """The next item. Raises RequestTimeout if none comes in time; no item is lost by that."""
        try:
            return self._portal.run(_next(cast(AsyncIterator[Item], self._inner), timeout))
        except _Over:
            raise StopIteration from None

    def close(self) -> None:
        """End it."""
        self._portal.soon(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        inner = self.__dict__.pop("_inner", None)
        if inner is not None:
            # Let the loop's thread drop the last reference: the destructor may touch the loop.
            self._portal.soon(_Closing(inner))


class _Closing:
    """Closes and releases an object that belongs to the loop."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self) -> None:
        inner, self._inner = self._inner, None
        inner.close()


async def _next(inner: AsyncIterator[Item], timeout: float | None) -> Item:  # noqa: ASYNC109
    try:
        async with asyncio.timeout(timeout):
            return await inner.__anext__()
    except TimeoutError:
        raise RequestTimeout(f"nothing came within {timeout:g} s") from None
    except StopAsyncIteration:
        raise _Over from None


class _Over(Exception):
    """The end of an iteration: StopAsyncIteration cannot be raised through a coroutine."""


class Subscription(Stream[Message]):
    """Events of one pattern. The other end has the subscription."""

    @property
    def pattern(self) -> str:
        """The pattern."""
        return cast(peers.Subscription, self._inner).pattern


class MessageStream(Stream[Message]):
    """Every incoming message."""


class Many(Stream[Item]):
    """The answers to many requests, in the order of the requests."""

    def __init__(self, portal: Portal, inner: AsyncMany[Any, Item]) -> None:
        super().__init__(portal, inner)


class PublishMany(Stream[int | WireloomError]):
    """Acknowledged publishes in progress: `wait` for all, or iterate over the number acknowledged so far."""

    def __init__(self, portal: Portal, inner: AsyncPublishMany) -> None:
        super().__init__(portal, inner)

    @property
    def acknowledged(self) -> int:
        """How many the other end has acknowledged."""
        return cast(AsyncPublishMany, self._inner).acknowledged

    @property
    def failed(self) -> int:
        """How many were refused or not answered."""
        return cast(AsyncPublishMany, self._inner).failed

    def wait(self) -> int:
        """Publish all of them, and return how many were acknowledged."""

        async def work() -> int:
            return await cast(AsyncPublishMany, self._inner)

        return self._portal.run(work())


class Progress(Stream[Step], Generic[Step, Outcome]):
    """A request with progress steps: iterate over their values, then call `result`."""

    def result(self) -> Outcome:
        """The outcome. Steps that were not taken are skipped. Raises what `Peer.request` raises."""
        return cast(Outcome, self._portal.run(self._inner.result()))

    def cancel(self) -> None:
        """Tell the peer to stop, if the protocol can express it. The result is then RequestFailed('cancelled')."""
        self._portal.call(self._inner.cancel)
