"""The well-behaved client, in a process of its own: an acknowledged yamp publish every 50 ms, and what it felt.

python -m tests.attack.client HOST PORT PID TOKEN

It logs in, unless TOKEN is empty. It publishes numbers to `TOPIC` over one connection and receives them over another, until its standard input ends.
Then it prints one JSON object: `samples`, one for each publish (when it began, seconds until the acknowledgement,
seconds of these in which the machine was busy with other processes), and `delivered`, the numbers in the order in which
they came. PID is the hub's process: the kernel says how long its main thread was ready to run and had no processor.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator

from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX, LOGIN, PUBLISH
from wireloom.protocols.registry import protocol

TOPIC = "well-behaved"
EVERY = 0.05
PATIENCE = 60.0
"""Seconds that an answer may take before the hub counts as stopped for good."""
_YAMP = protocol("yamp")
_SETTINGS = _YAMP.lenient()


class Wire:
    """A yamp connection with blocking calls."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = _YAMP.decoder(Direction.S2C, _SETTINGS)
        self._messages = self._read()
        self.send(Message(Kind.OPEN))
        next(self._messages)

    def send(self, message: Message) -> None:
        self.socket.sendall(_YAMP.encode(message, _SETTINGS))

    def _read(self) -> Iterator[Message]:
        while data := self.socket.recv(65536):
            self._decoder.feed(data)
            for decoded in self._decoder:
                yield decoded.message

    def __iter__(self) -> Iterator[Message]:
        """What comes, except pings, which are answered."""
        for message in self._messages:
            if message.kind is Kind.PING:
                self.send(Message(Kind.PONG, id=message.id))
            else:
                yield message

    def ask(self, topic: str, body: bytes) -> None:
        """A request, and its answer."""
        identifier = str(uuid.uuid4())
        self.send(Message(Kind.REQUEST, topic, body, id=identifier, content_type="application/json"))
        for message in self:
            if message.correlation_id == identifier:
                if message.kind is not Kind.RESPONSE:
                    raise SystemExit(f"the well-behaved client was refused: {message}")
                return
        raise SystemExit("the hub has closed the connection of the well-behaved client")


def waited_for_processor(process: int) -> float:
    """Seconds that the main thread of a process was ready to run and had no processor; 0 where no kernel says so."""
    try:
        with open(f"/proc/{process}/task/{process}/schedstat") as file:  # noqa: PTH123
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    host, port, hub, token = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    delivered: list[int] = []
    own_process = threading.get_native_id()
    publisher, subscriber = Wire(host, port), Wire(host, port)
    for wire in (publisher, subscriber):
        if token:
            wire.ask(LOGIN, json.dumps({"token": token}).encode())
    subscriber.ask(HUB_PREFIX + "subscribe", json.dumps({"topic": TOPIC}).encode())

    def receive() -> None:
        delivered.extend(int(message.body) for message in subscriber if message.kind is Kind.EVENT)

    threading.Thread(target=receive, daemon=True).start()
    samples: list[tuple[float, float, float]] = []
    due = time.monotonic()
    for number in itertools.count():
        if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
            break
        if number % 10 == 0:
            subscriber.send(Message(Kind.PING))  # it has nothing else to say, and is not idle
        before = waited_for_processor(hub) + waited_for_processor(own_process)
        began = time.monotonic()
        publisher.ask(PUBLISH + TOPIC, str(number).encode())
        ended = time.monotonic()
        busy = waited_for_processor(hub) + waited_for_processor(own_process) - before
        samples.append((began, ended - began, min(busy, ended - began)))
        due = max(due + EVERY, ended)
        if number == 0:
            print("ready", flush=True)
    until = time.monotonic() + PATIENCE
    while len(delivered) < len(samples) and time.monotonic() < until:
        time.sleep(0.01)
    print(json.dumps({"samples": samples, "delivered": delivered}), flush=True)


if __name__ == "__main__":
    main()
