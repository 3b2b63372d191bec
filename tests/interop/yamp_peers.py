"""Peers that behave as the recorded JavaScript and Go implementations of yamp do (`tests/vectors/yamp-*.json`).

They read every body with the serializer of the handshake, and end as a process ends where that fails: all connections
are gone. They never answer a ping, and never close their end, neither after `system.close` nor after ours. The Go
implementation names no serializer and means json; its server takes `json`, too.

Not recorded, and assumed: requests for a uri that they do not handle get no answer, other versions and serializers a
`system.close`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgpack

HANDSHAKE, PING, PONG, CLOSE, REDIRECT, EVENT, REQUEST, CANCEL, RESPONSE = range(9)
DONE, ERROR, PROGRESS, CANCELLED = range(4)
LONGEST = 30
"""Seconds after which a peer that hears nothing gives a test up."""


@dataclass(frozen=True)
class Flavour:
    """What one implementation says in its handshake, and how it reads and writes bodies."""

    named: bytes
    loads: Callable[[bytes], object]
    dumps: Callable[[object], bytes]


JAVASCRIPT = Flavour(b"json", json.loads, lambda value: json.dumps(value, separators=(",", ":")).encode())
JAVASCRIPT_MSGPACK = Flavour(b"msgpack", msgpack.unpackb, msgpack.packb)
GO = Flavour(b"", json.loads, lambda value: json.dumps(value, separators=(",", ":")).encode())


@dataclass(frozen=True)
class Heard:
    """A user message that it read."""

    type: int
    uid: bytes
    uri: str
    value: object = None
    request_uid: bytes = b""
    flag: int = 0
    """`progressive` of a request, the type of a response."""


class Died(Exception):
    """It could not read a body."""


@dataclass
class Line:
    """One end of a connection."""

    socket: socket.socket
    flavour: Flavour
    pings: int = 0
    closes: list[bytes] = field(default_factory=list)
    died_of: bytes | None = None
    """The body that it could not read."""

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def handshake(self, named: bytes) -> bytes:
        return bytes((HANDSHAKE, 0, 1, len(named))) + named

    def user(self, type_: int, uri: str, after: bytes, body: bytes | None, uid: bytes = b"") -> bytes:
        """A user message as it writes it."""
        name = uri.encode()
        head = bytes((type_,)) + (uid or uuid.uuid1().bytes) + bytes((len(name),)) + name + after
        return head if body is None else head + len(body).to_bytes(4) + body

    def event(self, uri: str, value: object) -> bytes:
        return self.user(EVENT, uri, b"", self.flavour.dumps(value))

    def request(self, uri: str, value: object, *, uid: bytes = b"", progressive: bool = False) -> bytes:
        return self.user(REQUEST, uri, bytes((progressive,)), self.flavour.dumps(value), uid)

    def response(self, to: Heard, type_: int, value: object) -> bytes:
        # Of a cancelled request it has nothing to say.
        body = b"" if type_ == CANCELLED else self.flavour.dumps(value)
        return self.user(RESPONSE, to.uri, to.uid + bytes((type_,)), body)

    def read(self) -> Heard | None:
        """The next user message or handshake; None at the end of what the other side sends."""
        while (type_ := self._exactly(1)) != b"":
            match type_[0]:
                case 0:  # handshake
                    version = self._exactly(2)
                    return Heard(HANDSHAKE, version, self._sized(1).decode())
                case 1:  # ping
                    self._sized(1)
                    self.pings += 1
                case 2:  # pong
                    self._sized(1)
                case 3 | 4:  # close, redirect
                    self.closes.append(self._sized(2))
                case _:
                    return self._user(type_[0])
        return None

    def _user(self, type_: int) -> Heard:
        uid, uri = self._exactly(16), self._sized(1).decode()
        request_uid = self._exactly(16) if type_ in (CANCEL, RESPONSE) else b""
        flag = self._exactly(1)[0] if type_ in (REQUEST, CANCEL, RESPONSE) else 0
        value: object = None
        if type_ != CANCEL:
            body = self._sized(4)
            if not (type_ == RESPONSE and flag == CANCELLED):
                value = self._parse(body)
        return Heard(type_, uid, uri, value, request_uid, flag)

    def _parse(self, body: bytes) -> object:
        try:
            return self.flavour.loads(body)
        except Exception as error:
            self.died_of = body
            raise Died(repr(error)) from None

    def _sized(self, size: int) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(size)))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                piece = self.socket.recv(size - len(found))
            except OSError:
                return b""
            if not piece:
                return b""
            found += piece
        return found


@dataclass
class Server:
    """Listens on loopback; each connection has a thread."""

    door: socket.socket
    flavour: Flavour
    redirect: str = ""
    """Where it sends everybody right after the handshake."""
    lines: list[Line] = field(default_factory=list)
    events: list[Heard] = field(default_factory=list)
    _waiting: dict[bytes, Heard] = field(default_factory=dict)
    """Requests for `slow`, until they are cancelled."""

    @property
    def port(self) -> int:
        found: int = self.door.getsockname()[1]
        return found

    @property
    def url(self) -> str:
        return f"yamp://127.0.0.1:{self.port}"

    @property
    def died_of(self) -> list[bytes]:
        return [line.died_of for line in self.lines if line.died_of is not None]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            line = Line(connection, self.flavour)
            self.lines.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: Line) -> None:
        with contextlib.suppress(OSError):
            try:
                while (heard := line.read()) is not None:
                    self._act(line, heard)
            except Died:
                for each in self.lines:
                    each.socket.close()
        # It does not close its end.

    def _act(self, line: Line, heard: Heard) -> None:
        match heard.type, heard.uri:
            case (0, _):
                if heard.uid != b"\0\1" or heard.uri.encode() not in (
                    self.flavour.named,
                    self.flavour.named or b"json",
                ):
                    line.say(bytes((CLOSE,)) + b"\0\4nope")
                    return
                line.say(line.handshake(heard.uri.encode()))
                if self.redirect:
                    url = self.redirect.encode()
                    line.say(bytes((REDIRECT,)) + len(url).to_bytes(2) + url)
            case (5, _):
                self.events.append(heard)
                if heard.uri == "echo":
                    line.say(line.event("echo", heard.value))
            case (6, "echo"):
                line.say(line.response(heard, DONE, heard.value))
            case (6, "fail"):
                line.say(line.response(heard, ERROR, heard.value))
            case (6, "count"):
                for number in range(1, int(str(heard.value)) + 1):
                    if heard.flag:
                        line.say(line.response(heard, PROGRESS, number))
                line.say(line.response(heard, DONE, "done"))
            case (6, "slow"):
                self._waiting[heard.uid] = heard
            case (7, _):
                asked = self._waiting.pop(heard.request_uid, None)
                if asked is not None and not heard.flag:
                    line.say(line.response(asked, CANCELLED, None))


@contextlib.contextmanager
def yamp_server(flavour: Flavour = JAVASCRIPT, *, redirect: str = "") -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = Server(door, flavour, redirect)
        threading.Thread(target=server.run, daemon=True).start()
        try:
            yield server
        finally:
            door.shutdown(socket.SHUT_RDWR)
            for line in server.lines:
                line.socket.close()


class Client(Line):
    """A client whose handshake is over; a thread reads what comes."""

    def __init__(self, port: int, flavour: Flavour = JAVASCRIPT) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port)), flavour)
        self.heard: queue.Queue[Heard | None] = queue.Queue()
        self.say(self.handshake(flavour.named))
        echo = self.read()
        assert echo is not None
        assert (echo.type, echo.uri.encode()) == (HANDSHAKE, flavour.named)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while (heard := self.read()) is not None:
                self.heard.put(heard)
        except Died:
            self.socket.close()
        self.heard.put(None)

    def next(self) -> Heard:
        """What comes next."""
        found = self.heard.get(timeout=LONGEST)
        assert found is not None, f"the connection is gone; it could not read {self.died_of!r}"
        return found

    def ask(self, uri: str, value: object) -> Heard:
        """The response to a request; it must be the next that comes."""
        uid = uuid.uuid1().bytes
        self.say(self.request(uri, value, uid=uid))
        answer = self.next()
        assert (answer.type, answer.request_uid) == (RESPONSE, uid)
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
