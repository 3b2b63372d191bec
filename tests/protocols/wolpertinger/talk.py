"""Two sessions and the lines between them, with a clock of their own."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.protocols.reading import messages_of
from wireloom.model import Message
from wireloom.protocols.contract import Role
from wireloom.protocols.wolpertinger import WolpertingerSettings, frames, layer2
from wireloom.protocols.wolpertinger.layer2 import Document, RemoteMethodCall
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.protocols.wolpertinger.values import Value

CALL_ID = "8302916f-cdd7-49cf-8bcf-f2e305f7c8b9"
HELLO = Value("string", "hello")


def entropy(seed: int) -> Callable[[int], bytes]:
    """Bytes that look random and are the same each time."""
    state = [seed]

    def draw(count: int) -> bytes:
        out = b""
        while len(out) < count:
            state[0] = zlib.crc32(state[0].to_bytes(8))
            out += state[0].to_bytes(4)
        return out[:count]

    return draw


def session(
    role: Role = Role.SERVER, *, protected: bool = True, unique: int = 1, **values: object
) -> WolpertingerSession:
    made = WolpertingerSession(role, WolpertingerSettings.parse(values), unique=unique, entropy=entropy(unique))
    made.protected = protected
    return made


def opened(
    role: Role = Role.SERVER, *, protected: bool = True, unique: int = 1, **values: object
) -> WolpertingerSession:
    made = session(role, protected=protected, unique=unique, **values)
    made.connected(0.0)
    return made


@dataclass
class Pair:
    """A client and a server that hear all of each other."""

    client: WolpertingerSession
    server: WolpertingerSession
    now: float = 0.0
    lines: list[tuple[str, bytes]] = field(default_factory=list)
    """Every line so far and who sent it."""

    def start(self) -> Pair:
        self.server.connected(self.now)
        self.client.connected(self.now)
        return self

    def settle(self) -> tuple[list[Message], list[Message]]:
        """Let them talk until both are silent; what the client and the server took."""
        to_client: list[Message] = []
        to_server: list[Message] = []
        while True:
            up, down = self.client.outgoing(), self.server.outgoing()
            if not up and not down:
                return to_client, to_server
            self.lines += [("client", line) for line in up.splitlines(keepends=True)]
            self.lines += [("server", line) for line in down.splitlines(keepends=True)]
            to_server += messages_of(self.server.receive(up, self.now))
            to_client += messages_of(self.client.receive(down, self.now))


def pair(client: dict[str, object] | None = None, server: dict[str, object] | None = None, **both: object) -> Pair:
    return Pair(
        session(Role.CLIENT, unique=1000, **{**both, **(client or {})}),
        session(Role.SERVER, unique=2000, **{**both, **(server or {})}),
    ).start()


def line(document: Document | bytes, message_id: int = 1, extra: str = "") -> bytes:
    """A document, or any payload, as one plain line."""
    xml = document if isinstance(document, bytes) else layer2.write(document)
    return f"{extra}message_id:{message_id};".encode() + base64.b64encode(xml) + b"\n"


def call(component: str, method: str, *parameters: Value, call_id: str = CALL_ID) -> RemoteMethodCall:
    return RemoteMethodCall(component, call_id, method, parameters)


def said(data: bytes) -> list[frames.Frame]:
    """The frames in what a session wrote."""
    return [frames.parse(each) for each in data.splitlines()]


def documents(data: bytes) -> list[Document]:
    """The plain documents in what a session wrote."""
    return [
        layer2.parse(base64.b64decode(frame.payload))
        for frame in said(data)
        if isinstance(frame, frames.Data) and frame.encryption is None and frame.gzip is None
    ]


def results(data: bytes) -> list[tuple[int, int]]:
    """Id and result of the confirmations in what a session wrote."""
    return [(frame.message_id, frame.result) for frame in said(data) if isinstance(frame, frames.Confirmation)]
