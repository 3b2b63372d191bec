"""Mesh packets received, checked and journaled per second over loopback UDP, against a bare uvloop receiver.

A hub in a process of its own takes packets with an HMAC, verifies each, remembers it against replay and writes it to
its journal, synced. The peer is the least that can be written: a uvloop datagram endpoint that counts. The sender is
the same for both: a process that sends packets made before, as fast as it can, with `sendmmsg`. What counts is what
arrived, over the time until the last of it did; what the kernel dropped was not received.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, compare
from wireloom.model import Kind, Message
from wireloom.protocols.mesh import MeshSettings
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.crypto import HmacKey
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.trust import TrustStore

COUNT = 200_000
SIZE = 160

BARE = """
import asyncio, socket, uvloop
class Count(asyncio.DatagramProtocol):
    count = 0
    def datagram_received(self, data, addr):
        if data == b"?":
            self.transport.sendto(b"%d" % self.count, addr)
        else:
            self.count += 1
    def connection_made(self, transport):
        self.transport = transport
        print(transport.get_extra_info("sockname")[1], flush=True)
async def main():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, 33):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
        except OSError:
            pass
    sock.bind(("127.0.0.1", 0))
    await asyncio.get_running_loop().create_datagram_endpoint(Count, sock=sock)
    await asyncio.Event().wait()
uvloop.run(main())
"""

SENDER = """
import ctypes, socket, sys
data = open(sys.argv[1], "rb").read()
size, port = int(sys.argv[2]), int(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect(("127.0.0.1", port))
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint), ("vectors", ctypes.c_void_p),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                ("flags", ctypes.c_int)]
class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("length", ctypes.c_uint)]
buffer = ctypes.create_string_buffer(data, len(data))
count = len(data) // size
vectors, messages = (Vector * count)(), (Message * count)()
for n in range(count):
    vectors[n].base, vectors[n].length = ctypes.addressof(buffer) + n * size, size
    messages[n].header.vectors = ctypes.addressof(vectors) + n * ctypes.sizeof(Vector)
    messages[n].header.count = 1
send = ctypes.CDLL(None).sendmmsg
send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < count:
    sent = send(sock.fileno(), ctypes.addressof(messages) + done * ctypes.sizeof(Message), min(64, count - done), 0)
    done += max(sent, 0)
print("done", flush=True)
"""


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def busy(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measured(packets: Path, receiver: Receiver, spent: list[float]) -> float:
    """Packets a second that a receiver took, from the first one sent to the last one taken.

    `spent` gets the packets it took for a second of its processor time.
    """
    port, counted = receiver.port, receiver.counted
    with process(sys.executable, "-c", SENDER, str(packets), str(SIZE), str(port)) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        sender.stdout.readline()
        before, used = counted(), busy(receiver.pid)
        began = time.perf_counter()
        sender.stdin.write("go\n")
        sender.stdin.flush()
        sender.stdout.readline()
        # Asking costs the receiver time, so it is asked only when everything was sent.
        last, when, silent = counted(), time.perf_counter(), 0
        while silent < 5:
            time.sleep(0.05)
            now = counted()
            if now != last:
                last, when, silent = now, time.perf_counter(), 0
            else:
                silent += 1
        if last - before < COUNT:
            print(f"    {COUNT - last + before} of {COUNT} packets were dropped by the kernel", file=sys.stderr)
        spent.append((last - before) / max(busy(receiver.pid) - used, 0.01))
        return (last - before) / (when - began)


@dataclass(frozen=True)
class Receiver:
    """Where to send to, and how to ask how much came."""

    pid: int
    port: int
    counted: Callable[[], int]


class Packets:
    """Files of packets that nobody has seen yet; one for each run."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self._folder = folder
        self._identity = identity
        self._number = 0

    def fresh(self) -> Path:
        """Copies of one packet, each with a Message ID and an HMAC of its own."""
        event = Message(Kind.EVENT, "sensors/kitchen", b"x" * (SIZE - 17 - 17 - 18 - 6 - 34 - 2))
        one = Author(MeshSettings(), self._identity).write(event, time.time())[0]
        assert len(one) == SIZE
        key = HmacKey(self._identity.hmac_secret or b"")
        data = bytearray()
        for number in random.sample(range(2**32), COUNT):
            covered = one[:1] + number.to_bytes(4) + one[5:-34]
            data += covered + one[-34:-32] + key.digest(covered)
        self._number += 1
        path = self._folder / f"packets-{self._number}"
        path.write_bytes(data)
        return path


@contextmanager
def hub(folder: Path, identity: Identity) -> Iterator[Receiver]:
    """A hub that trusts the sender: its mesh port, and how to ask it what it has received."""
    TrustStore([identity.trusted_key()]).save(folder / "trust.json")
    (folder / "hub.toml").write_text(
        f'[[listener]]\nurl = "mesh://127.0.0.1:0"\nsettings = {{ trust = "{folder}/trust.json" }}\n'
        '[http]\nurl = "http://127.0.0.1:0"\n'
    )
    words = (sys.executable, "-m", "wireloom.cli.main", "hub", "--config", str(folder / "hub.toml"))
    with process(*words, "--data", str(folder / "data")) as running:
        assert running.stdout is not None
        urls: dict[str, str] = {}
        for line in running.stdout:
            if line.startswith("listening on "):
                url = line.split()[-1]
                urls[url.partition(":")[0]] = url
            if line.strip() == "ready":
                break

        def counted() -> int:
            with urllib.request.urlopen(urls["http"] + "/metrics", timeout=10) as page:
                found = re.search(rb'received_total\{protocol="mesh"\} (\d+)', page.read())
            return int(found[1]) if found else 0

        yield Receiver(running.pid, int(urls["mesh"].rpartition(":")[2]), counted)


@contextmanager
def bare() -> Iterator[Receiver]:
    """The least that can be written."""
    import socket

    with process(sys.executable, "-c", BARE) as running, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        asking.connect(("127.0.0.1", port))
        asking.settimeout(0.5)

        def counted() -> int:
            while True:
                asking.send(b"?")
                try:
                    return int(asking.recv(100))
                except TimeoutError:
                    continue

        yield Receiver(running.pid, port, counted)


def run() -> list[Result]:
    identity = Identity.generate(hmac=True, signature=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packets = Packets(folder, identity)
        some = packets.fresh()
        ours: list[float] = []
        theirs: list[float] = []
        with hub(folder, identity) as hub_receiver, bare() as bare_receiver:
            result = compare(
                f"mesh packets of {SIZE} B received, HMAC checked and journaled",
                "bare uvloop datagram receiver",
                lambda: measured(packets.fresh(), hub_receiver, ours),
                lambda: measured(some, bare_receiver, theirs),
                goal=0.5,
                unit="packets/s",
            )
        per_second = statistics.median(ours[1:]), statistics.median(theirs[1:])
        print(
            f"    for a second of the receiver's processor time: {per_second[0]:,.0f} against {per_second[1]:,.0f}, "
            f"{per_second[0] / per_second[1]:.2f}×"
        )
        return [result]


if __name__ == "__main__":
    print(json.dumps([result.row() for result in run()]))
