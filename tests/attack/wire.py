"""A peer for attacks that is nothing but frames: it says what it is told, as fast as the socket takes it."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import Iterable

from tests.attack.harness import Target
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX
from wireloom.protocols.hsp.profile import ENVELOPE
from wireloom.protocols.registry import protocol

SECONDS = 20.0
_FIRST_ID = 1_000_000
"""Of requests that are asked one by one; smaller ones are for `json_request`."""


def json_request(operation: str, body: dict[str, object], number: int) -> Message:
    """An operation of the hub."""
    encoded = json.dumps(body).encode()
    return Message(Kind.REQUEST, HUB_PREFIX + operation, encoded, id=str(number + 1), content_type="application/json")


class Peer:
    """One connection over TCP, in hsp, emp or yamp."""

    def __init__(self, scheme: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.protocol = protocol(scheme)
        self._settings = self.protocol.lenient()
        self._reader, self._writer = reader, writer
        self._decoder = self.protocol.decoder(Direction.S2C, self._settings)
        self._ids = itertools.count(_FIRST_ID)
        self.events: list[Message] = []
        """Those that came while answers were waited for."""

    @classmethod
    async def connect(cls, target: Target, scheme: str) -> Peer:
        """A peer that has greeted the hub."""
        peer = cls(scheme, *await target.open(scheme))
        if scheme != "hsp":
            peer.write(Message(Kind.OPEN))
            await anext(peer)
        return peer

    def encode(self, message: Message) -> bytes:
        """The frame of a message; in yamp with a uid, in hsp with its topic."""
        name = self.protocol.name
        if name == "yamp" and message.kind in (Kind.EVENT, Kind.REQUEST):
            number = message.id or str(next(self._ids))
            message = message.with_(id=str(uuid.UUID(int=int(number))))
        if name == "hsp" and message.kind in (Kind.EVENT, Kind.REQUEST):
            if not (message.topic or "").startswith(HUB_PREFIX):
                message = message.with_(attributes={"type": str(ENVELOPE)})
            message = message.with_(content_type=None)
        return self.protocol.encode(message, self._settings)

    def write(self, *messages: Message) -> None:
        """Send messages."""
        self._writer.write(b"".join(map(self.encode, messages)))

    @property
    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """For bytes that are no frames."""
        return self._reader, self._writer

    async def drain(self) -> None:
        """Wait until most of it is sent."""
        await self._writer.drain()

    def __aiter__(self) -> Peer:
        return self

    async def __anext__(self) -> Message:
        """The next message; pings are answered."""
        async with asyncio.timeout(SECONDS):
            while True:
                for decoded in self._decoder:
                    message = decoded.message
                    if message.kind is Kind.PING:
                        self.write(Message(Kind.PONG, id=message.id))
                        continue
                    return message
                data = await self._reader.read(1 << 18)
                if not data:
                    raise StopAsyncIteration
                self._decoder.feed(data)

    async def swallow(self) -> None:
        """Read bytes and forget them, until the hub closes."""
        while await self._reader.read(1 << 18):
            pass

    async def ask(self, topic: str, body: bytes = b"", content_type: str = "application/json") -> Message:
        """A request, and its answer."""
        number = str(next(self._ids))
        self.write(Message(Kind.REQUEST, topic, body, id=number, content_type=content_type))
        async for message in self:
            if message.kind is Kind.EVENT:
                self.events.append(message)
            elif self._number(message) == int(number):
                return message
        raise AssertionError(f"the hub has closed the connection instead of answering {topic[:60]!r}")

    def _number(self, answer: Message) -> int:
        """The id of the request that an answer is for."""
        found = answer.correlation_id or "0"
        return uuid.UUID(found).int if self.protocol.name == "yamp" else int(found)

    async def operate(self, operation: str, **body: object) -> Message:
        """An operation of the hub."""
        return await self.ask(HUB_PREFIX + operation, json.dumps(body).encode())

    async def settle(self) -> None:
        """Everything that was sent is handled: the last thing is answered."""
        await self.operate("unsubscribe", topic="nothing")

    async def ask_all(self, requests: Iterable[Message], *, refused: int, why: bytes) -> None:
        """Send many requests, and read their answers meanwhile; so many have to be errors that say `why`."""
        count = errors = 0
        everything = list(requests)

        async def send() -> None:
            for at in range(0, len(everything), 100):
                self.write(*everything[at : at + 100])
                await self.drain()

        async def receive() -> None:
            nonlocal count, errors
            async for message in self:
                if message.kind in (Kind.RESPONSE, Kind.ERROR, Kind.ACK):
                    count += 1
                    if message.kind is Kind.ERROR:
                        errors += 1
                        assert why in message.body, message
                    if count == len(everything):
                        break

        async with asyncio.TaskGroup() as both:
            both.create_task(send())
            both.create_task(receive())
        assert (count, errors) == (len(everything), refused), f"{count} answers, {errors} of them errors"
