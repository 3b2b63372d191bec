"""Memory of idle connections: 10,000 of them held open, resident memory each, against nats-server.

`python -m benchmarks.idle` measures both. The clients live in a process of their own, `python -m benchmarks.idle
clients KIND PORT COUNT`; each says hello, hears an answer, and then nothing more.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import servers
from benchmarks.harness import Result, compare

COUNT = 10_000
GREETINGS = {"hsp": (b"\x03", b"\x04"), "nats": (b'CONNECT {"verbose":false}\r\nPING\r\n', b"PONG\r\n")}
EXTRA = "[limits]\nmax_connections_per_address = 100000\n"


def allow_many_files() -> None:
    """As many open files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def open_clients(kind: str, port: int, count: int) -> list[socket.socket]:
    """Connections that have been greeted and are idle."""
    hello, answer = GREETINGS[kind]
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=30)
        client.sendall(hello)
        clients.append(client)
    for client in clients:
        heard = b""
        while answer not in heard:
            piece = client.recv(65536)
            if not piece:
                raise RuntimeError("the server closed the connection")
            heard += piece
    return clients


@contextlib.contextmanager
def idle_clients(kind: str, port: int, count: int) -> Iterator[None]:
    """Idle connections to a port, for as long as the block lasts."""
    command = [sys.executable, "-m", "benchmarks.idle", "clients", kind, str(port), str(count)]
    with servers.running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "open":
            raise RuntimeError("the clients could not connect")
        yield


def bytes_each(kind: str, port: int, pid: int, count: int) -> float:
    """How much a server's memory grows by an idle connection."""
    # The first connections bring in code and pools that later ones share.
    with idle_clients(kind, port, 50):
        pass
    time.sleep(0.5)
    before = resident(pid)
    with idle_clients(kind, port, count):
        time.sleep(2)
        return (resident(pid) - before) / count


def ours(count: int = COUNT) -> float:
    """Connections per MiB that a fresh hub holds."""
    with servers.hub(extra=EXTRA) as ports:
        return 2**20 / bytes_each("hsp", ports["hsp"], servers.pid_of(ports["hsp"]), count)


def theirs(count: int = COUNT) -> float:
    """Connections per MiB that a fresh nats-server holds."""
    with servers.nats() as port:
        return 2**20 / bytes_each("nats", port, servers.pid_of(port), count)


def run() -> list[Result]:
    allow_many_files()
    return [compare("idle connections", "nats-server", ours, theirs, goal=10, unit="connections/MiB", rounds=3)]


if __name__ == "__main__":
    allow_many_files()
    if sys.argv[1:2] == ["clients"]:
        held = open_clients(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        print("open", flush=True)
        sys.stdin.read()
    else:
        for name, side in (("wireloom hub", ours), ("nats-server", theirs)):
            print(f"{name}: {2**20 / side():,.0f} bytes each, {COUNT} idle connections", flush=True)
