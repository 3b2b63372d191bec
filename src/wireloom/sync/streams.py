"""What synchronous peers let people iterate over, with `for`."""

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
    """Something that comes in. Leaving the `with`, or dropping this, ends it. May be used by several threads."""

    def __init__(self, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner: Any = inner

    def __next__(self) -> Item:
        return self.get()

    def get(self, timeout: float | None = None) -> Item:
        """The next one; RequestTimeout if none has come in time. Nothing is lost by that."""
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
            # The last reference goes with the loop's thread: what is dropped there may touch the loop.
            self._portal.soon(_Closing(inner))


class _Closing:
    """Closes, and lets go of, something that belongs to the loop."""

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
    """The end of an iteration: StopAsyncIteration cannot pass a coroutine."""


class Subscription(Stream[Message]):
    """Events of one pattern; the other end knows of it."""

    @property
    def pattern(self) -> str:
        """What it is for."""
        return cast(peers.Subscription, self._inner).pattern


class MessageStream(Stream[Message]):
    """Every message that comes in."""


class Many(Stream[Item]):
    """The answers of many requests, in the order of the requests."""

    def __init__(self, portal: Portal, inner: AsyncMany[Any, Item]) -> None:
        super().__init__(portal, inner)


class PublishMany(Stream[int | WireloomError]):
    """Acknowledged publishes on their way: `wait` for their number, or iterate over how many are acknowledged."""

    def __init__(self, portal: Portal, inner: AsyncPublishMany) -> None:
        super().__init__(portal, inner)

    @property
    def acknowledged(self) -> int:
        """How many the other end has taken."""
        return cast(AsyncPublishMany, self._inner).acknowledged

    @property
    def failed(self) -> int:
        """How many were refused, or got no answer."""
        return cast(AsyncPublishMany, self._inner).failed

    def wait(self) -> int:
        """Publish all of them, and return how many were acknowledged."""

        async def work() -> int:
            return await cast(AsyncPublishMany, self._inner)

        return self._portal.run(work())


class Progress(Stream[Step], Generic[Step, Outcome]):
    """A request with steps: iterate over their values, then ask for the `result`."""

    def result(self) -> Outcome:
        """The outcome; steps that were not taken are skipped. Raises what `Peer.request` raises."""
        return cast(Outcome, self._portal.run(self._inner.result()))

    def cancel(self) -> None:
        """Tell the peer to stop, where the protocol can; the result then is RequestFailed('cancelled')."""
        self._portal.call(self._inner.cancel)
