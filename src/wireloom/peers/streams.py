"""Async iterators of a peer: events, all messages, the progress steps of a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from wireloom.model import Message, RequestFailed
from wireloom.peers.inbox import Inbox
from wireloom.peers.pending_calls import CANCELLED, Call
from wireloom.topics import validate_pattern

if TYPE_CHECKING:
    from wireloom.peers.peer import Peer

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")


class Subscription(AsyncIterator[Message]):
    """Events of one pattern. Iterate; or use `async with` first, to be sure that the other end has the subscription.

    Leaving the `async with`, or dropping the iterator, ends the subscription.
    """

    def __init__(self, peer: Peer, pattern: str, inbox: Inbox[Message], *, local: bool, retained: bool = False) -> None:
        self._over = True
        self.pattern = validate_pattern(pattern)
        self._peer = peer
        self._inbox = inbox
        self._local = local
        self._retained = retained
        self._announced = False
        self._entered = False
        self._over = False

    async def start(self) -> None:
        """Ask the other end for the events. A second call does nothing."""
        if not self._entered:
            self._entered = True
            try:
                self._announced = await self._open()
            except BaseException:
                self._entered = False
                raise

    async def _open(self) -> bool:
        return await self._peer._open_subscription(
            self.pattern, self._inbox, local=self._local, retained=self._retained
        )

    def _drop(self) -> None:
        self._peer._drop_subscription(self.pattern, self._inbox, announced=self._announced)

    async def __anext__(self) -> Message:
        if not self._entered:
            await self.start()
        return await self._inbox.get()

    def close(self) -> None:
        """End the subscription. Events that were not taken are dropped."""
        if not self._over:
            self._over = True
            if self._entered:
                self._drop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class MessageStream(AsyncIterator[Message]):
    """Every incoming message. Leaving the `async with`, or dropping the iterator, ends it."""

    def __init__(self, peer: Peer, inbox: Inbox[Message]) -> None:
        self._peer = peer
        self._inbox = inbox

    async def __anext__(self) -> Message:
        return await self._inbox.get()

    def close(self) -> None:
        """End the stream. Messages that were not taken are dropped."""
        self._peer._drop_stream(self._inbox)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Progress(AsyncIterator[Step], Generic[Step, Outcome]):
    """A request with progress steps: iterate over their values, then await this for the result.

    Awaiting it without iterating skips the steps. Dropping it before the end cancels the request.

    After `cancel`, steps that are under way still arrive. Then the iteration and the await raise
    RequestFailed("cancelled"). If the service was done before it received the cancel, the iteration ends normally.
    """

    def __init__(self, peer: Peer, call: Call, *, step: tuple[object, ...], outcome: tuple[object, ...]) -> None:
        self._peer = peer
        self._call = call
        self._types = (step, outcome)
        """The types of steps and result. Empty: values as they are in the body."""
        self._sent = False
        self._step: Message | None = None

    async def _send(self) -> None:
        if not self._sent and not self._call.answer.done():
            await self._peer._send_progressive(self._call)
            self._sent = True

    async def __anext__(self) -> Step:
        await self._send()
        assert self._call.steps is not None
        try:
            if self._step is None:
                self._step = await self._call.steps.get()
            # Kept until its value is decoded: after a cancellation the next call returns it.
            value = cast(Step, await self._peer.value(self._step, *self._types[0]))
            self._step = None
            return value
        except StopAsyncIteration:
            if self._call.answer.done():
                self._call.answer.result()  # raises the error of the request, if any
            raise

    async def result(self) -> Outcome:
        """The outcome. Raises what `Peer.request` raises."""
        async for _ in self:
            pass
        return cast(Outcome, await self._peer.value(await self._call.answer, *self._types[1]))

    def __await__(self) -> Generator[object, None, Outcome]:
        return self.result().__await__()

    def cancel(self) -> None:
        """Tell the peer to stop. The result is then RequestFailed('cancelled').

        Raises NotSupported if the protocol cannot express it; the request then goes on. A request that was not sent yet
        is not sent any more.
        """
        if not self._sent:
            self._call.fail(RequestFailed(CANCELLED))
            return
        self._peer.cancel(self._call.request.with_(id=self._call.id))

    def close(self) -> None:
        """Stop waiting for this request."""
        self._peer._withdraw(self._call)

    async def __aenter__(self) -> Self:
        await self._send()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
