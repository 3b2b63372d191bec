"""The servers that are measured, each in a process of its own on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


class Unavailable(RuntimeError):
    """A peer is not installed; the benchmark says so and goes on."""


_PIDS: dict[int, int] = {}
"""The processes behind ports."""


def pid_of(port: int) -> int:
    """The process that serves a port of `hub`, `nats` or `redis`."""
    return _PIDS[port]


def processor_seconds(port: int) -> float:
    """The processor time that the server of a port has used so far, in all its threads."""
    words = Path(f"/proc/{pid_of(port)}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[str], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def hub(*, sync: bool = True, extra: str = "", data: Path | None = None, topics: int = 1) -> Iterator[dict[str, int]]:
    """Our hub; gives the ports of its listeners by scheme. It keeps its data in a folder for the time, or in `data`.

    In hsp, type 7 is the topic `bench`; with more `topics`, type 7 + i is `bench/i`.
    """
    numbers = ", ".join(f'{7 + i} = "{f"bench/{i:02}" if i else "bench"}"' for i in range(topics))
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as folder:
        config = Path(folder) / "hub.toml"
        config.write_text(
            f'[[listener]]\nurl = "hsp://127.0.0.1:0"\nprofile = true\ntopics = {{ {numbers} }}\n'
            '[[listener]]\nurl = "emp://127.0.0.1:0"\n[[listener]]\nurl = "yamp://127.0.0.1:0"\n'
            f'[http]\nurl = "off"\n[journal]\nsync = {str(sync).lower()}\n{extra}'
        )
        command = [sys.executable, "-m", "wireloom", "hub", "--config", str(config), "--data", str(data or folder)]
        with running(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            ports: dict[str, int] = {}
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("listening on "):
                    scheme, _, rest = line.split()[-1].partition("://")
                    ports[scheme] = int(rest.rpartition(":")[2])
                if line.strip() == "ready":
                    break
            _PIDS.update(dict.fromkeys(ports.values(), process.pid))
            yield ports


@contextlib.contextmanager
def redis(*, fsync: str) -> Iterator[int]:
    """Redis with an append-only file and the given `appendfsync`."""
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("redis-server is not installed")
    with tempfile.TemporaryDirectory(prefix="redis-bench-") as folder:
        port = free_port()
        command = [
            program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
            "--appendfsync", fsync, "--dir", folder, "--daemonize", "no", "--loglevel", "warning",
            "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip
        with running(command, stdout=subprocess.DEVNULL) as process:
            wait_for_port(port, process)
            _PIDS[port] = process.pid
            yield port


@contextlib.contextmanager
def nats(*, store: Path | None = None) -> Iterator[int]:
    """nats-server from its PyPI package; with `store`, JetStream in that folder."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise Unavailable("nats-server is not installed")
    port = free_port()
    extra = ["--jetstream", "--store_dir", str(store)] if store else []
    command = [program, "--addr", "127.0.0.1", "--port", str(port), *extra]
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_port(port, process)
        _PIDS[port] = process.pid
        yield port
