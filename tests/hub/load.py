"""Clients that load a hub with acknowledged publishes and write into a ledger what they sent and what they were told.

A client has a window: so many messages wait for their answer at a time. Small windows on many connections make commits
small and many, large ones make runs long. When its connection breaks, a client sends on the next one first what was not
answered, as a careful program does.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import wireloom
from tests.hub.running import data_ack, open_to
from tests.ledger import Ledger, Line, Sent
from wireloom.journal import Entry, Offset, Tail
from wireloom.model import JournalError

TOPIC = "load"
LIBRARY = ("emp", "yamp", "wolpertinger")
"""Loaded through the library; hsp by bare sockets, which are faster."""
LISTENERS = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n' for scheme in LIBRARY)
ANSWER_SECONDS = 20


class Client:
    """One client through all its connections."""

    def __init__(
        self, ledger: Ledger, name: str, protocol: str, window: int, topic: str = TOPIC, pause: float = 0.0
    ) -> None:
        self.name = name
        self.protocol = protocol
        self.window = window
        self.topic = topic
        """In hsp always TOPIC."""
        self.pause = pause
        """Seconds to wait after an answer, not in hsp."""
        self.acknowledged = 0
        self._ledger = ledger
        self._following = 0
        self._unanswered: dict[int, bytes] = {}
        self._chance = random.Random(name)

    def connected(self) -> Line:
        """A new connection, in the ledger."""
        # wolpertinger repeats lines whose acknowledgement takes long.
        return self._ledger.line(self.name, self.protocol, self.topic, repeats=self.protocol == "wolpertinger")

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """What to send on a connection: what the last one left unanswered, then new messages for ever."""
        yield from list(self._unanswered.items())
        while True:
            number = self._following
            self._following += 1
            content = b"%s %d " % (self.name.encode(), number)
            # Some are large, a few (not in hsp, which takes 8 KiB) larger than a block.
            largest = 8000 if self.protocol == "hsp" else 150_000
            content += b"." * self._chance.choices((0, 100, 3000, largest), (60, 34, 6, 0.05))[0]
            self._unanswered[number] = content
            yield number, content

    def answered(self, line: Line, message: Sent) -> None:
        """The hub has acknowledged this."""
        line.acknowledge(message)
        self.acknowledged += 1
        self._unanswered.pop(message.number, None)

    async def run(self, urls: dict[str, str]) -> None:
        """Connect and send until the connection breaks."""
        try:
            await (self._run_bare if self.protocol == "hsp" else self._run_library)(urls[self.protocol])
        except* (OSError, EOFError, wireloom.WireloomError):
            pass

    async def _run_bare(self, url: str) -> None:
        reader, writer = await open_to(url)
        line, messages = self.connected(), self.messages()
        waiting: dict[int, Sent] = {}
        try:
            while True:
                while len(waiting) < self.window:
                    number, content = next(messages)
                    waiting[number] = line.send(number, content)
                    writer.write(data_ack(number, content))
                await writer.drain()
                async with asyncio.timeout(ANSWER_SECONDS):
                    _, number = struct.unpack(">BI", await reader.readexactly(5))
                self.answered(line, waiting.pop(number))
        finally:
            writer.close()

    async def _run_library(self, url: str) -> None:
        async def publish(peer: wireloom.Peer) -> None:
            for number, content in messages:
                message = line.send(number, content)
                await peer.publish(self.topic, content, ack=True, timeout=ANSWER_SECONDS)
                self.answered(line, message)
                await asyncio.sleep(self.pause)

        async with wireloom.connect(url, reconnect=False) as peer:
            line, messages = self.connected(), self.messages()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.window):
                    tasks.create_task(publish(peer))


def many_clients(ledger: Ledger, small: int = 40) -> list[Client]:
    """Two with large windows and one of each other protocol with a middling one; beside them many with small ones."""
    clients = [Client(ledger, f"large-{number}", "hsp", 64) for number in range(2)]
    clients += [Client(ledger, f"middle-{scheme}", scheme, 16) for scheme in LIBRARY]
    protocols = ("hsp", *LIBRARY)
    return clients + [
        Client(ledger, f"small-{number}", protocols[number % 4], 1 + number // 4 % 4) for number in range(small)
    ]


class Load:
    """All clients at work in a thread, until their connections break."""

    def __init__(self, clients: Sequence[Client], urls: dict[str, str]) -> None:
        self._clients = clients
        self._before = [client.acknowledged for client in clients]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(urls)))
        self._thread.start()

    async def _run(self, urls: dict[str, str]) -> None:
        await asyncio.gather(*(client.run(urls) for client in self._clients))

    def wait_for_answers(self, count: int, seconds: float = 30) -> None:
        """Until every client has got so many acknowledgements from this hub."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            slow = [
                client.name
                for client, before in zip(self._clients, self._before, strict=True)
                if client.acknowledged < before + count
            ]
            if not slow:
                return
            time.sleep(0.01)
        raise AssertionError(f"fewer than {count} acknowledgements within {seconds:g} s: {', '.join(slow)}")

    def join(self) -> None:
        """The hub is gone: wait until every client knows."""
        self._thread.join(ANSWER_SECONDS + 20)
        assert not self._thread.is_alive(), "clients did not notice that the hub is gone"


class Observer:
    """A reader beside the hub: notes in the ledger what it sees, from a point on."""

    def __init__(self, ledger: Ledger, journal: Path, since: Offset | None) -> None:
        self.last = since
        """The place up to which everything was read."""
        self.error: Exception | None = None
        """Why it ended before it was asked to."""
        self._ledger = ledger
        self._journal = journal
        self._tail = Tail(journal, 0 if since is None else since)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping.is_set()
                found = self._tail.read()
                self._ledger.note(self._journal, found)
                if found:
                    last = found[-1]
                    self.last = last.place if isinstance(last, Entry) else Offset(last.block.packet_id, 0)
                elif stopping:
                    break
                else:
                    self._stopping.wait(0.005)
        except (JournalError, OSError) as error:
            self.error = error
        self._tail.close()

    def stop(self) -> None:
        """Read what is there still, then end."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the reader does not come to an end"
