"""kill -9 of the hub under load: whatever was acknowledged is in the journal afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import data_ack, hub_on, journaled, url_of
from wireloom.journal.segment import segments
from wireloom.model import Kind

CLIENTS, WINDOW = 2, 64
LIBRARY = ("emp", "yamp", "wolpertinger")
"""Schemes that are loaded through the library; hsp by bare sockets, which are faster."""
KILLS = int(os.environ.get("KILLS", "500"))
LISTENERS = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n' for scheme in LIBRARY)


class HubProcess:
    """`wireloom hub` as an operator runs it."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "hub.toml"
        config.write_text(
            '[[listener]]\nurl = "hsp://127.0.0.1:0"\nprofile = true\ntopics = { 7 = "load" }\n'
            '[http]\nurl = "http://127.0.0.1:0"\n' + extra
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wireloom", "hub", "--config", str(config), "--data", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.urls: dict[str, str] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                url = line.split()[-1]
                self.urls[url.partition(":")[0]] = url
            if line.strip() == "ready":
                break
        else:
            raise AssertionError(f"the hub did not start: {self.process.communicate()}")

    @property
    def port(self) -> int:
        return int(self.urls["hsp"].rpartition(":")[2])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out + err


def load(port: int, name: int, acknowledged: set[int], first: int) -> int:
    """Send with a window until the connection breaks; notes what was acknowledged."""
    number = first
    waiting: dict[int, int] = {}
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.settimeout(10)
            left = b""
            while True:
                batch = b""
                while len(waiting) < WINDOW:
                    waiting[number & 0xFFFFFFFF] = number
                    batch += data_ack(number & 0xFFFFFFFF, b"%d %d" % (name, number))
                    number += 1
                sock.sendall(batch)
                got = sock.recv(65536)
                if not got:
                    return number
                left += got
                whole = len(left) // 5 * 5
                for _, acked in struct.iter_unpack(">BI", left[:whole]):
                    acknowledged.add(waiting.pop(acked))
                left = left[whole:]
    except OSError:
        return number


async def load_library(urls: dict[str, str], acknowledged: list[set[int]], following: list[int]) -> None:
    """Acknowledged publishes in the other protocols, sixteen at a time each, until the connection breaks."""

    async def publish(peer: wireloom.Client, name: int) -> None:
        while True:
            number = following[name]
            following[name] += 1
            await peer.publish("load", b"%d %d" % (name, number), ack=True, timeout=10)
            acknowledged[name].add(number)

    async def client(name: int, url: str) -> None:
        with contextlib.suppress(wireloom.WireloomError):
            async with wireloom.connect(url, reconnect=False) as peer:
                await asyncio.gather(*(publish(peer, name) for _ in range(16)))

    await asyncio.gather(*(client(CLIENTS + at, urls[scheme]) for at, scheme in enumerate(LIBRARY)))


def kill_under_load(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    following = [0] * (CLIENTS + len(LIBRARY))
    acknowledged: list[set[int]] = [set() for _ in following]
    """Numbers, by client."""
    for kill in range(times):
        hub = HubProcess(folder, LISTENERS + "[journal]\nsegment_bytes = 300000\n")

        def run(name: int, port: int = hub.port) -> None:
            following[name] = load(port, name, acknowledged[name], following[name])

        def run_library(urls: dict[str, str] = hub.urls) -> None:
            asyncio.run(load_library(urls, acknowledged, following))

        threads = [threading.Thread(target=run, args=(name,)) for name in range(CLIENTS)]
        threads.append(threading.Thread(target=run_library))
        before = [len(each) for each in acknowledged]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 20
        while any(len(each) < count + 20 for each, count in zip(acknowledged, before, strict=True)):
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.5)
        hub.kill()
        for thread in threads:
            thread.join()
        assert sum(map(len, acknowledged)) > sum(before), kill
    last = HubProcess(folder)
    code, output = last.stop()
    assert code == 0, output
    requests = (e.message for e in journaled(folder) if e.message.kind is Kind.REQUEST)
    missing = [each.copy() for each in acknowledged]
    for message in requests:
        name, number = map(int, message.body.split())
        missing[name].discard(number)
    assert not any(missing), f"acknowledged but not in the journal, by client: {missing}"
    counts = [len(each) for each in acknowledged]
    assert min(counts) >= 20, counts
    print(f"{times} kills, acknowledged by client: {counts}")
    assert len(segments(folder / "journal")) > times
    verify = subprocess.run(
        [sys.executable, "-m", "wireloom", "journal", "verify", str(folder / "journal")], capture_output=True, text=True
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr


def test_nothing_acknowledged_is_lost_when_the_hub_is_killed_under_load(tmp_path: Path) -> None:
    kill_under_load(tmp_path, times=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(KILLS * 30)
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path) -> None:
    kill_under_load(tmp_path, times=KILLS, seed=2)


async def test_a_hub_says_what_it_cut_from_a_torn_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hub_on(tmp_path) as hub, wireloom.connect(url_of(hub)) as peer:
        await peer.publish("sensors/kitchen", b"kept", ack=True)
        # As a process leaves it that is killed now: the segment open, its last write torn.
        torn = tmp_path / "torn" / "journal"
        shutil.copytree(tmp_path / "journal", torn)
    last = segments(torn)[-1]
    whole = last.stat().st_size
    with last.open("ab") as file:
        file.write(b"\x06\x00\x00\x00torn")
    async with hub_on(tmp_path / "torn"):
        pass
    assert f"recovered after a crash: cut 8 bytes from the end of {last.name}" in caplog.text
    assert last.stat().st_size == whole
    assert b"kept" in [entry.message.body for entry in journaled(tmp_path / "torn")]


def test_sigterm_drains_and_says_so(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path)
    with socket.create_connection(("127.0.0.1", hub.port)) as sock:
        sock.sendall(data_ack(1, b"x") + b"\x03")
        assert len(sock.recv(64)) > 0
        code, output = hub.stop()
    assert code == 0
    assert "draining" in output
    assert "stopped" in output
    assert [e.message.body for e in journaled(tmp_path) if e.message.kind is Kind.REQUEST] == [b"x"]


def test_a_port_in_use_is_one_line_on_standard_error(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path / "a")
    config = tmp_path / "b.toml"
    config.write_text(f'[[listener]]\nurl = "hsp://127.0.0.1:{hub.port}"\n[http]\nurl = "off"\n')
    second = subprocess.run(
        [sys.executable, "-m", "wireloom", "hub", "--config", str(config), "--data", str(tmp_path / "b")],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    hub.stop()
    assert second.returncode == 2
    assert second.stderr.splitlines()[-1].startswith(f"wireloom: cannot listen on hsp://127.0.0.1:{hub.port}: ")
    assert "Traceback" not in second.stderr


def test_a_second_hub_on_the_same_data_is_refused_in_one_line(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path)
    config = tmp_path / "b.toml"
    config.write_text('[[listener]]\nurl = "hsp://127.0.0.1:0"\n[http]\nurl = "off"\n')
    second = subprocess.run(
        [sys.executable, "-m", "wireloom", "hub", "--config", str(config), "--data", str(tmp_path)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    hub.stop()
    assert second.returncode == 2
    assert "another process" in second.stderr
    assert "Traceback" not in second.stderr
