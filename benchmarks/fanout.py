"""Publish to subscribe through a server: messages are built before the clock starts, and only counted on arrival.

Run as `python -m benchmarks.fanout KIND PUBLISH_PORT KIND SUBSCRIBE_PORT SIZE COUNT`, in a process of its own with a
thread for each end. Prints messages per second.
"""

from __future__ import annotations

import functools
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from benchmarks import servers
from benchmarks.harness import Result, Side, compare

_SUBSCRIBE = b'{"topic":"bench"}'


def _hsp(size: int) -> bytes:
    return struct.pack(">BHI", 0, 7, size) + b"x" * size


def _emp(size: int) -> bytes:
    block = struct.pack(">IBBxxBH", 11 + 5, 128, 0, 1, 5) + b"bench"
    return struct.pack(">IBBxx", 8 + len(block) + size, 5, 0x80) + block + b"x" * size


def _yamp(size: int) -> bytes:
    return struct.pack(">BQQB", 5, 1, 1, 5) + b"bench" + struct.pack(">I", size) + b'"' + b"x" * (size - 2) + b'"'


def _nats(size: int) -> bytes:
    return b"PUB bench %d\r\n%b\r\n" % (size, b"x" * size)


def _join_hsp(sock: socket.socket) -> None:
    topics = b'{"topics":{"7":"bench"}}'
    sock.sendall(struct.pack(">BIHI", 1, 1, 0xFD05, len(topics)) + topics)
    sock.sendall(struct.pack(">BIHI", 1, 2, 0xFD01, len(_SUBSCRIBE)) + _SUBSCRIBE)
    _read(sock, 10)


def _join_emp(sock: socket.socket) -> None:
    topic = b"$hub/subscribe"
    block = struct.pack(">IBBxxBH", 11 + len(topic), 128, 0, 1, len(topic)) + topic
    size = 28 + len(block) + len(_SUBSCRIBE)
    sock.sendall(struct.pack(">IBBxxIBBxxBxxxQ", size, 5, 0x80, 20, 0, 0x80, 0x80, 1) + block + _SUBSCRIBE)
    (length,) = struct.unpack(">I", _read(sock, 4))
    _read(sock, length - 4)


def _join_yamp(sock: socket.socket) -> None:
    uri = b"$hub/subscribe"
    sock.sendall(struct.pack(">BQQB", 6, 1, 1, len(uri)) + uri + struct.pack(">BI", 0, len(_SUBSCRIBE)) + _SUBSCRIBE)
    _read(sock, 1 + 16 + 1 + len(uri) + 16 + 1)
    (length,) = struct.unpack(">I", _read(sock, 4))
    _read(sock, length)


def _join_nats(sock: socket.socket) -> None:
    sock.sendall(b"SUB bench 2\r\nPING\r\n")
    while not sock.recv(4096).endswith(b"PONG\r\n"):
        pass


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


KINDS: dict[str, tuple[Callable[[int], bytes], Callable[[socket.socket], None], int]] = {
    "hsp": (_hsp, _join_hsp, 7),
    "emp": (_emp, _join_emp, 24),
    "yamp": (_yamp, _join_yamp, 27),
    "nats": (_nats, _join_nats, len("MSG bench 2 64\r\n\r\n")),
}
"""How a message is built, how a subscriber asks for it, and how many bytes it has beside its payload on arrival."""


def _open(kind: str, port: int) -> socket.socket:
    from benchmarks.window import KINDS as WINDOW

    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    WINDOW[kind][2](sock)
    return sock


def drive(source: str, source_port: int, target: str, target_port: int, size: int, count: int) -> float:
    """Messages per second that arrived."""
    message, (_, join, head) = KINDS[source][0](size), KINDS[target]
    chunk = message * 2000
    with _open(target, target_port) as receiver, _open(source, source_port) as sender:
        join(receiver)
        expected = count * (size + head)

        def send() -> None:
            for _ in range(count // 2000):
                sender.sendall(chunk)

        started = time.perf_counter()
        thread = threading.Thread(target=send)
        thread.start()
        received, buffer = 0, bytearray(1 << 20)
        while received < expected:
            got = receiver.recv_into(buffer)
            if not got:
                raise RuntimeError("the server closed the connection")
            received += got
        seconds = time.perf_counter() - started
        thread.join()
    return count / seconds


def delivered(source: str, source_port: int, target: str, target_port: int, size: int, count: int) -> float:
    """`drive` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fanout", source, str(source_port), target, str(target_port)]
    command += [str(size), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return float(done.stdout)


SAME = ("hsp", "emp", "yamp")
ACROSS = (("hsp", "emp"), ("emp", "yamp"), ("yamp", "hsp"))


def run() -> list[Result]:
    # Not above: the pre-built clients need none of it, and would take longer to start.
    from benchmarks.pubsub import passed_on

    results = []
    # Nothing may be dropped while it is counted.
    with servers.hub(sync=False, extra="[limits]\nqueue_bytes = 1000000000\n") as hub, servers.nats() as nats:

        def prebuilt(source: str, target: str, count: int) -> Side:
            return lambda: delivered(source, hub[source], target, hub[target], 64, count)

        def python(kind: str, ports: dict[str, int]) -> Side:
            return lambda: passed_on(kind, ports[kind], kind, ports[kind], 60_000)

        nats_py = python("nats", {"nats": nats})
        for scheme in SAME:
            title = f"publish → subscribe, 64 B, {scheme}, pre-built clients"
            theirs = functools.partial(delivered, "nats", nats, "nats", nats, 64, 1_000_000)
            ours = prebuilt(scheme, scheme, 1_000_000)
            results.append(compare(title, "nats-server, pre-built clients", ours, theirs, goal=2, rounds=3))
        for source, target in ACROSS:
            title = f"publish → subscribe, 64 B, {source} → {target}, pre-built clients"
            ours = prebuilt(source, target, 200_000)
            results.append(compare(title, "nats-py through nats-server", ours, nats_py, goal=1, rounds=3))
        for scheme in SAME:
            title = f"publish → subscribe, 64 B, {scheme}, Python clients"
            ours = python(scheme, hub)
            results.append(compare(title, "nats-py through nats-server", ours, nats_py, goal=2, rounds=3))
    return results


if __name__ == "__main__":
    print(drive(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6])))
