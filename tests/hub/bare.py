"""Peers that are nothing but bytes: the test decides where a stream is cut into reads, and sees all that comes back.

Streams are written by `Protocol.encode` and read by `Protocol.decoder`, that is by `frames.py`. Over the memory
transport each `write` is exactly one read of the hub; over TCP the sockets decide.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.hub.running import config
from wireloom.hub import Hub
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, PUBLISH, Protocol, Scheme
from wireloom.protocols.hsp.profile import ENVELOPE
from wireloom.protocols.registry import protocol
from wireloom.transports.address import Address
from wireloom.transports.base import Options, Pipe
from wireloom.transports.memory import MEMORY
from wireloom.transports.tcp import TCP

STREAMED = ("hsp", "emp", "yamp")
"""Protocols over streams with a binary wire."""
LISTENERS = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
settings = { max_payload = 1048576 }
[[listener]]
url = "emp://127.0.0.1:0"
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
"""
ROOM = "[limits]\nqueue_bytes = 67108864\n"
"""So that nobody loses an event because a whole example was written in one turn of the loop."""
SECONDS = 20.0
_MEMORY = Scheme("memory", "memory", 0, local=True)
_names = itertools.count()


@asynccontextmanager
async def hub_in_memory(folder: Path, text: str = LISTENERS + ROOM) -> AsyncIterator[Hub]:
    """A hub that can be reached over TCP and, by every protocol, over the memory transport too."""
    parsed = config(folder, text)
    number = next(_names)
    inside = tuple(
        dataclasses.replace(
            each,
            url=f"memory://{each.protocol.name}/{number}",
            scheme=_MEMORY,
            address=Address(each.protocol.name, 0, f"{each.protocol.name}-{number}"),
        )
        for each in parsed.listeners
    )
    async with Hub(dataclasses.replace(parsed, listeners=(*parsed.listeners, *inside))) as hub:
        yield hub


class Stream:
    """What one peer sends, message by message, as bytes."""

    def __init__(self, name: str, first_id: int = 1) -> None:
        self.protocol = protocol(name)
        self.settings = self.protocol.lenient()
        self.frames: list[bytes] = []
        self.numbers: dict[int, str] = {}
        """In hsp: what numbers stand for at this place of the stream."""
        self.marks: list[int] = []
        """Places that somebody wanted to remember, in bytes."""
        self._ids = itertools.count(first_id)

    @property
    def data(self) -> bytes:
        """All of it."""
        return b"".join(self.frames)

    def mark(self) -> None:
        """Remember this place."""
        self.marks.append(sum(map(len, self.frames)))

    def event(self, topic: str, body: bytes, *, enveloped: bool = False) -> None:
        """An event; in hsp by its number if it has one, unless it is to be `enveloped`."""
        self._add(Kind.EVENT, topic, body, enveloped=enveloped)

    def publish(self, topic: str, body: bytes, *, enveloped: bool = False) -> str:
        """An acknowledged publish; returns its id, and so do the next two."""
        named = topic if self.protocol.request_is_publish else PUBLISH + topic
        return self._add(Kind.REQUEST, named, body, enveloped=enveloped)

    def request(self, topic: str, body: bytes) -> str:
        """A request for whoever provides the topic."""
        return self._add(Kind.REQUEST, topic, body)

    def operate(self, operation: str, **values: object) -> str:
        """An operation of the hub."""
        return self._add(Kind.REQUEST, HUB_PREFIX + operation, json.dumps(values).encode())

    def map(self, numbers: dict[int, str]) -> str:
        """Numbers for topics, from here on."""
        identifier = self.operate("map", topics={str(number): topic for number, topic in numbers.items()})
        self.numbers |= numbers
        return identifier

    def ping(self) -> None:
        """A ping."""
        self._encode(Message(Kind.PING))

    def cancel(self, request: str, topic: str) -> None:
        """The sender gives a request up."""
        self._encode(Message(Kind.CANCEL, topic, id=self._id(), correlation_id=request))

    def _id(self) -> str:
        number = next(self._ids)
        return str(uuid.UUID(int=number)) if self.protocol.name == "yamp" else str(number)

    def _add(self, kind: Kind, topic: str, body: bytes, *, enveloped: bool = False) -> str:
        hsp = self.protocol.name == "hsp"
        identifier = self._id()
        message = Message(
            kind,
            topic,
            body,
            id=None if self.protocol.name == "emp" and kind is Kind.EVENT else identifier,
            content_type=None if hsp else "application/json",
            attributes={"type": str(ENVELOPE)} if hsp and enveloped else {},
        )
        self._encode(message)
        return identifier

    def _encode(self, message: Message) -> None:
        self.frames.append(self.protocol.encode(message, self.settings, self.numbers))


def read_stream(name: str, data: bytes) -> Iterator[Message]:
    """The messages of a client's stream by the readable decoder; a topic map holds from the next frame on."""
    own, start, numbers = protocol(name), 0, dict[int, str]()
    while start < len(data):
        decoder = own.decoder(Direction.C2S, own.lenient(), numbers)
        decoder.feed(data[start:])
        for decoded in decoder:
            yield decoded.message
            if decoded.message.topic == HUB_PREFIX + "map" and name == "hsp":
                learnt = json.loads(decoded.message.body)["topics"]
                numbers |= {int(number): topic for number, topic in learnt.items()}
                start += decoded.offset + decoded.size
                break
        else:
            assert not decoder.buffered
            return


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """A stream in pieces, cut at these places."""
    places = sorted({0, len(data)} | {cut for cut in cuts if 0 < cut < len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


class BarePeer:
    """The owner of one pipe to the hub: keeps every message that comes, in order."""

    def __init__(self, own: Protocol) -> None:
        self.protocol = own
        self.messages: list[Message] = []
        self.topics: set[str | None] = set()
        """Of the events that came."""
        self.is_over = False
        self._decoder = own.decoder(Direction.S2C, own.lenient())
        self._news = asyncio.Event()

    def opened(self, pipe: Pipe) -> None:
        """The pipe is up: greet, where the protocol does."""
        self.pipe = pipe
        if self.protocol.name != "hsp":
            pipe.write(self.protocol.encode(Message(Kind.OPEN), self.protocol.settings()))

    def received(self, data: bytes) -> None:
        """The hub said something."""
        self._decoder.feed(data)
        found = [decoded.message for decoded in self._decoder]
        self.messages += found
        self.topics.update(each.topic for each in found if each.kind is Kind.EVENT)
        self._news.set()

    def learn(self, numbers: dict[int, str]) -> None:
        """In hsp: what numbers stand for in what comes from now on."""
        assert not self._decoder.buffered
        self._decoder = self.protocol.decoder(Direction.S2C, self.protocol.lenient(), dict(numbers))

    def input_ended(self) -> None:
        """The hub says no more."""
        self.is_over = True
        self._news.set()

    def ended(self, error: Exception | None) -> None:
        """The pipe is gone."""
        self.is_over = True
        self._news.set()

    def writing_paused(self) -> None:
        """Nothing: a test writes what it has."""

    def writing_resumed(self) -> None:
        """Nothing."""

    def write(self, data: bytes) -> None:
        """Send bytes; over the memory transport that is one read of the hub."""
        self.pipe.write(data)

    async def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
        """Wait for messages until a condition holds; False if it did not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition() and not self.is_over:
                    self._news.clear()
                    await self._news.wait()
        return condition()

    async def answers(self, *requests: str) -> list[Message]:
        """The answers to some requests, in the order in which they came."""
        wanted = set(requests)
        assert await self.until(lambda: wanted <= {each.correlation_id for each in self.messages}), self.messages[-5:]
        return [each for each in self.messages if each.correlation_id in wanted]

    async def settle(self) -> None:
        """A ping and its pong: what the hub has said before is here."""
        seen = sum(each.kind is Kind.PONG for each in self.messages)
        stream = Stream(self.protocol.name)
        stream.ping()
        self.write(stream.data)
        assert await self.until(lambda: sum(each.kind is Kind.PONG for each in self.messages) > seen)

    def events(self) -> list[tuple[str | None, bytes]]:
        """Topic and body of every event, in the order in which they came."""
        return [(each.topic, each.body) for each in self.messages if each.kind is Kind.EVENT]


@asynccontextmanager
async def bare_peer(
    hub: Hub, name: str, patterns: Sequence[str] = (), *, over: str = "memory", provides: Sequence[str] = ()
) -> AsyncIterator[BarePeer]:
    """A peer that has subscribed to some patterns, and provides some topics."""
    peer = BarePeer(protocol(name))
    transport = MEMORY if over == "memory" else TCP
    wanted = "memory" if over == "memory" else name
    address = next(
        hub.listener(each.url).address
        for each in hub.config.listeners
        if each.protocol.name == name and each.scheme.name == wanted
    )
    await transport.connect(address, peer, Options())
    try:
        if name != "hsp":
            assert await peer.until(lambda: bool(peer.messages)), "no greeting"
        # Ids are used once on a connection: these are far from those of the test.
        stream = Stream(name, first_id=1_000_000)
        asked = [stream.operate("subscribe", topic=pattern) for pattern in patterns]
        asked += [stream.operate("provide", topic=topic) for topic in provides]
        if asked:
            peer.write(stream.data)
            assert all(answer.kind is Kind.RESPONSE for answer in await peer.answers(*asked))
            peer.messages.clear()
        yield peer
    finally:
        peer.pipe.abort()
        await peer.until(lambda: peer.is_over)
