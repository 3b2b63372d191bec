"""Ten thousand idle connections are held, and a thousand that come back at once are served."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import get
from wireloom.journal.verify import verify

CONFIG = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
[limits]
max_connections_per_address = 100000
"""

HERD = """
import resource, selectors, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
port, count, herd = map(int, sys.argv[1:])

def greet(clients):
    for client in clients:
        client.sendall(b"\\x03")
    for client in clients:
        assert client.recv(1) == b"\\x04"

def dial(count):
    return [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]

idle = dial(count)
greet(idle)
print("held", flush=True)
sys.stdin.readline()

# All of these connect before any of them is answered.
for client in idle[:herd]:
    client.close()
back, waiting = [], selectors.DefaultSelector()
for _ in range(herd):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    waiting.register(client, selectors.EVENT_WRITE)
    back.append(client)
while waiting.get_map():
    for key, _ in waiting.select(60):
        waiting.unregister(key.fileobj)
for client in back:
    client.settimeout(60)
greet(back)
greet(idle[herd:])
print("served", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("count", "herd"), [(300, 100), pytest.param(10_000, 1_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_idle_connections_are_held_and_those_that_come_back_at_once_are_served(
    count: int, herd: int, tmp_path: Path
) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < count + herd + 100:
        pytest.skip(f"this system allows {most} open files; {count + herd + 100} are needed")
    file = tmp_path / "hub.toml"
    file.write_text(CONFIG)
    async with contextlib.AsyncExitStack() as stack:
        hub = await start(stack, "-m", "wireloom", "hub", "--config", str(file), "--data", str(tmp_path))
        urls = {}
        while (line := await said(hub)) != "ready":
            if line.startswith("listening on "):
                urls[line.split()[-1].partition(":")[0]] = line.split()[-1]
        port = urls["hsp"].rpartition(":")[2]
        clients = await start(stack, "-c", HERD, port, str(count), str(herd))
        assert await said(clients) == "held"
        assert f"\nwireloom_connections {count}\n" in (await get(urls["http"] + "/metrics"))[1]
        async with wireloom.connect(urls["hsp"]) as peer:
            await peer.publish("a", b"while all are here", ack=True)
            assert clients.stdin is not None
            clients.stdin.write(b"\n")
            assert await said(clients) == "served"
            await peer.publish("a", b"and after they came back", ack=True)
        clients.stdin.write(b"\n")
        assert await asyncio.wait_for(clients.wait(), 60) == 0
        hub.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(hub.wait(), 60) == 0
    assert list(verify(tmp_path / "journal")) == []


async def start(stack: contextlib.AsyncExitStack, *words: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=allow_many_files
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()

    stack.push_async_callback(end)
    return process


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 120)
    assert line, "the process has ended"
    return line.decode().strip()
