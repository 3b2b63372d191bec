"""A peer that behaves as the recorded hsp codec for Netty does (`tests/vectors/hsp-netty.json`).

As a server it answers a PING with a PONG, sends DATA back, and acknowledges a DATA_ACK before it sends its payload back as
DATA. Type 65535 is answered with an ERROR, type 65534 with an ERROR_UNDEF. Payloads have at most 8192 bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

DATA, DATA_ACK, ACK, PING, PONG, ERROR, ERROR_UNDEF = range(7)
LARGEST = 8192
FAILS, FAILS_UNDEFINED = 65535, 65534


@dataclass(frozen=True)
class Heard:
    """A frame that it read."""

    command: int
    number: int = 0
    type: int = 0
    payload: bytes = b""


class Line:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def say(self, command: int, *, number: int | None = None, type_: int = 0, payload: bytes | None = None) -> None:
        data = bytes((command,)) + (b"" if number is None else number.to_bytes(4))
        if payload is not None:
            data += struct.pack(">HI", type_, len(payload)) + payload
        self.socket.sendall(data)

    def read(self) -> Heard | None:
        """The next frame; None at the end, and where the codec gives up."""
        first = self._exactly(1)
        if not first:
            return None
        command = first[0]
        number = int.from_bytes(self._exactly(4)) if command in (DATA_ACK, ACK, ERROR, ERROR_UNDEF) else 0
        if command not in (DATA, DATA_ACK, ERROR):
            return Heard(command, number) if command <= ERROR_UNDEF else None
        type_, size = struct.unpack(">HI", self._exactly(6))
        return None if size > LARGEST else Heard(command, number, type_, self._exactly(size))

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
    lines: list[Line] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"hsp://127.0.0.1:{self.door.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            line = Line(connection)
            self.lines.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: Line) -> None:
        with contextlib.suppress(OSError, struct.error):
            while (heard := line.read()) is not None:
                if heard.command == PING:
                    line.say(PONG)
                elif heard.command == DATA:
                    line.say(DATA, type_=heard.type, payload=heard.payload)
                elif heard.command == DATA_ACK and heard.type == FAILS:
                    line.say(ERROR, number=heard.number, type_=heard.type, payload=heard.payload)
                elif heard.command == DATA_ACK and heard.type == FAILS_UNDEFINED:
                    line.say(ERROR_UNDEF, number=heard.number)
                elif heard.command == DATA_ACK:
                    line.say(ACK, number=heard.number)
                    line.say(DATA, type_=heard.type, payload=heard.payload)
        line.close()


@contextlib.contextmanager
def netty_server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = Server(door)
        threading.Thread(target=server.run, daemon=True).start()
        try:
            yield server
        finally:
            door.shutdown(socket.SHUT_RDWR)
            for line in server.lines:
                line.close()


def netty_client(port: int) -> Line:
    return Line(socket.create_connection(("127.0.0.1", port), timeout=30))
