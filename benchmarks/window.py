"""A client that keeps a window of unanswered messages full and counts answers: the same for every server.

Run as `python -m benchmarks.window KIND PORT SIZE WINDOW COUNT`, in a process of its own. Messages are built before the
clock starts; answers are only counted. Prints acknowledged messages per second.
"""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

Builder = Callable[[int, int], bytes]
Counter = Callable[[bytearray, int], int]
"""How many answers end in the first bytes of a buffer."""

CHUNK = 1024
"""Messages sent together, at most: a fraction of a large window, so that either side works while the other does."""


def _hsp(first: int, size: int) -> bytes:
    return struct.pack(">BIHI", 1, first & 0xFFFFFFFF, 7, size) + b"x" * size


def _redis(first: int, size: int) -> bytes:
    return b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (size, b"x" * size)


def _emp(first: int, size: int) -> bytes:
    topic = b"$hub/publish/bench"
    block = struct.pack(">IBBxxBH", 11 + len(topic), 128, 0, 1, len(topic)) + topic
    return (
        struct.pack(">IBBxxIBBxxBxxxQ", 28 + len(block) + size, 5, 0x80, 20, 0, 0x80, 0x80, first + 1)
        + block
        + b"x" * size
    )


def _yamp(first: int, size: int) -> bytes:
    uri = b"$hub/publish/bench"
    return struct.pack(">BQQB", 6, 1, first, len(uri)) + uri + struct.pack(">BI", 0, size) + b"x" * size


def _nats(first: int, size: int) -> bytes:
    return b"PUB bench _INBOX.bench.%d %d\r\n%b\r\n" % (first, size, b"x" * size)


def _greet_emp(sock: socket.socket) -> None:
    hello = bytes.fromhex("0000000c0000000001000000")
    sock.sendall(hello)
    _read(sock, len(hello))


def _greet_yamp(sock: socket.socket) -> None:
    hello = bytes.fromhex("00000104") + b"json"
    sock.sendall(hello)
    _read(sock, len(hello))


def _greet_nats(sock: socket.socket) -> None:
    sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.bench.* 1\r\nPING\r\n')
    seen = b""
    while not seen.endswith(b"PONG\r\n"):
        seen += sock.recv(4096)


def _greet_nobody(sock: socket.socket) -> None:
    """Hsp and Redis begin at once."""


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


class _FixedSize:
    """Answers of one size, as hsp's ACK."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bytes = 0

    def __call__(self, buffer: bytearray, read: int) -> int:
        self._bytes += read
        count, self._bytes = divmod(self._bytes, self._size)
        return count


class _Lines:
    """Answers of two lines each, as Redis' bulk strings."""

    def __init__(self) -> None:
        self._lines = 0

    def __call__(self, buffer: bytearray, read: int) -> int:
        self._lines += buffer.count(b"\n", 0, read)
        count, self._lines = divmod(self._lines, 2)
        return count


KINDS: dict[str, tuple[Builder, Callable[[], Counter], Callable[[socket.socket], None]]] = {
    "hsp": (_hsp, lambda: _FixedSize(5), _greet_nobody),
    "emp": (_emp, lambda: _FixedSize(28), _greet_emp),
    "yamp": (_yamp, lambda: _FixedSize(39 + len("$hub/publish/bench")), _greet_yamp),
    "redis": (_redis, _Lines, _greet_nobody),
    "nats": (_nats, _Lines, _greet_nats),
}
"""How a message is built, how answers are counted, and what goes before the first message."""


ASCENDING = ("emp", "yamp")
"""Kinds whose senders number their messages onwards for as long as a connection lasts."""


def drive(kind: str, port: int, size: int, window: int, count: int) -> float:
    """Messages per second that were acknowledged."""
    build, counter, greet = KINDS[kind]
    # A ring of chunks, twice the window long, so that an id comes again only after it was answered; or never.
    chunk = max(1, min(window // 2, CHUNK))
    chunks = [
        b"".join(build(number, size) for number in range(start, start + chunk))
        for start in range(0, max(count if kind in ASCENDING else 2 * window, 2 * chunk), chunk)
    ]
    answers, buffer = counter(), bytearray(1 << 18)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(sock)
        sock.setblocking(False)
        sent = answered = turn = 0
        pending = memoryview(b"")
        started = time.perf_counter()
        while answered < count:
            if not pending and sent < count and sent - answered + chunk <= window:
                pending = memoryview(chunks[turn % len(chunks)])
                turn += 1
                sent += chunk
            if pending:
                try:
                    pending = pending[sock.send(pending) :]
                    if pending or sent - answered + chunk > window:
                        select.select([sock], [sock] if pending else [], [])
                    else:
                        continue
                except BlockingIOError:
                    select.select([sock], [sock], [])
            else:
                select.select([sock], [], [])
            try:
                read = sock.recv_into(buffer)
            except BlockingIOError:
                continue
            if not read:
                raise RuntimeError("the server closed the connection")
            answered += answers(buffer, read)
        return answered / (time.perf_counter() - started)


def acknowledged(kind: str, port: int, size: int, window: int, count: int) -> float:
    """`drive` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.window", kind, str(port), str(size), str(window), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    print(drive(sys.argv[1], *map(int, sys.argv[2:6])))
