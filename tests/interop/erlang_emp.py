"""A peer that behaves as the recorded Erlang implementation of emp does (`tests/vectors/emp-erlang-exclusive.json`).

Sizes leave out their own four bytes. It says `hello` as soon as it is connected, knows the extensions 0 and 1, and drops
the connection at any other. As a server it sends data back and answers requests with their body.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

HELLO, BYE, PING, PONG, ERROR, DATA = range(6)
KNOWN = (0, 1)


def frame(type_: int, body: bytes = b"", blocks: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    """A message as it writes it."""
    content = bytes((type_, 0x80 if blocks else 0, 0, 0))
    for left, (extension, inside) in enumerate(blocks, 1 - len(blocks)):
        content += (len(inside) + 4).to_bytes(4) + bytes((extension, 0 if left == 0 else 0x80, 0, 0)) + inside
    content += body
    return len(content).to_bytes(4) + content


def request(number: int, body: bytes) -> bytes:
    return frame(DATA, body, ((0, b"\x80\0\0\0" + number.to_bytes(8)),))


def response(number: int, body: bytes) -> bytes:
    return frame(DATA, body, ((0, bytes(4) + number.to_bytes(8)),))


@dataclass(frozen=True)
class Heard:
    """A message that it read."""

    type: int
    body: bytes
    blocks: tuple[tuple[int, bytes], ...]


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.heard: list[Heard] = []
        self.died_of: int | None = None
        """The extension that it did not know."""

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> Heard | None:
        """The next message; None at the end, also where it gives up."""
        size = int.from_bytes(self._exactly(4))
        content = self._exactly(size)
        if size < 4 or len(content) < size:
            return None
        position, more, blocks = 4, content[1] & 0x80, []
        while more:
            length = int.from_bytes(content[position : position + 4])
            blocks.append((content[position + 4], content[position + 8 : position + 4 + length]))
            more = content[position + 5] & 0x80
            position += 4 + length
        found = Heard(content[0], content[position:], tuple(blocks))
        self.heard.append(found)
        for extension, _ in blocks:
            if extension not in KNOWN:
                self.died_of = extension
                return None
        return found

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

    def close(self) -> None:
        self.socket.close()


@dataclass
class Server:
    """Listens on loopback; each connection has a thread."""

    door: socket.socket
    unasked: tuple[bytes, ...] = ()
    """Data that it sends to everybody after the handshake, again and again."""
    lines: list[Line] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"emp://127.0.0.1:{self.door.getsockname()[1]}"

    def bodies(self) -> list[bytes]:
        """Of all data that it has read."""
        return [each.body for line in self.lines for each in line.heard if each.type == DATA]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            line = Line(connection)
            self.lines.append(line)
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def tell(self, line: Line) -> None:
        with contextlib.suppress(OSError):
            while True:
                for body in self.unasked:
                    line.say(frame(DATA, body))
                time.sleep(0.05)

    def serve(self, line: Line) -> None:
        with contextlib.suppress(OSError):
            line.say(frame(HELLO, b"\1\0\0\0"))
            while (heard := line.read()) is not None and heard.type != BYE:
                if heard.type == HELLO and self.unasked:
                    threading.Thread(target=self.tell, args=(line,), daemon=True).start()
                elif heard.type == PING:
                    line.say(frame(PONG))
                elif heard.type == DATA:
                    asked = dict(heard.blocks).get(0)
                    line.say(
                        frame(DATA, heard.body) if asked is None else response(int.from_bytes(asked[4:]), heard.body)
                    )
        line.close()


@contextlib.contextmanager
def erlang_server(*unasked: bytes) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = Server(door, unasked)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            door.shutdown(socket.SHUT_RDWR)
            for line in server.lines:
                line.close()


def erlang_client(port: int) -> Line:
    """A client whose handshake is over."""
    line = Line(socket.create_connection(("127.0.0.1", port), timeout=20))
    line.say(frame(HELLO, b"\1\0\0\0"))
    hello = line.read()
    assert hello is not None
    assert (hello.type, hello.body) == (HELLO, b"\1\0\0\0")
    return line
