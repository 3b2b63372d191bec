"""Many acknowledged publishes with a bounded number in flight, and with progress: `request_many` for events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Self

from wireloom.model import Message, WireloomError
from wireloom.peers.request_many import Many


class PublishMany(AsyncIterator[int | WireloomError]):
    """Acknowledged publishes in progress. Await it for their number, or iterate over the number acknowledged so far.

    Made by `Peer.publish_many`. The next body is sent when an acknowledgement is taken. So nothing is published unless
    it is awaited or iterated. Leaving the `async with`, or dropping this, gives up what is in flight.
    """

    def __init__(self, many: Many[object, Message]) -> None:
        self._many = many
        self.acknowledged = 0
        """How many the other end has acknowledged. From a hub this means that they are on disk."""
        self.failed = 0
        """How many were refused or not answered. With `return_errors` the others go on."""

    async def __anext__(self) -> int | WireloomError:
        outcome: object = await self._many.__anext__()
        if isinstance(outcome, WireloomError):
            self.failed += 1
            return outcome
        self.acknowledged += 1
        return self.acknowledged

    async def _all(self) -> int:
        async for _ in self:
            pass
        return self.acknowledged

    def __await__(self) -> Generator[object, None, int]:
        return self._all().__await__()

    def close(self) -> None:
        """Send no more, and give up what is in flight. The outcome of that is unknown."""
        self._many.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
