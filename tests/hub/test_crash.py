"""kill -9 of the hub under load: whatever was acknowledged is in the journal afterwards."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

import wireloom
from tests.hub.load import LISTENERS, Load, Observer, many_clients
from tests.hub.process import HubProcess, kill_while_starting, verify
from tests.hub.running import data_ack, hub_on, journaled, url_of
from tests.ledger import Ledger, rows_of
from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from wireloom.journal import Offset
from wireloom.journal.segment import segments
from wireloom.model import Kind

KILLS = int(os.environ.get("KILLS", "500"))
CONFIG = LISTENERS + "[journal]\nsegment_bytes = 300000\n"


def kill_under_load(folder: Path, times: int, seed: int) -> Ledger:
    """Kill a hub again and again under the load of 45 connections; the ledger balances afterwards."""
    chance = random.Random(seed)
    ledger, journal = Ledger(), folder / "journal"
    clients = many_clients(ledger)
    since: list[Offset | None] = [None]
    for kill in range(times):
        before = ledger.acknowledged
        hub = HubProcess(folder, CONFIG)
        load = Load(clients, hub.urls)
        # From where the run before last ended: what a reader saw of a run it reads again after the recovery.
        observer = Observer(ledger, journal, since[-2:][0])
        try:
            load.wait_for_answers(3)
            time.sleep(chance.random() * 0.3)
        finally:
            said = hub.kill()
            load.join()
            observer.stop()
        assert observer.error is None, (kill, observer.error, said)
        assert ledger.acknowledged > before, (kill, said)
        since.append(observer.last)
        if chance.random() < 0.2:
            kill_while_starting(folder, chance.random() * 1.5, CONFIG)
    last = HubProcess(folder)
    code, output = last.stop()
    assert code == 0, output
    balance = ledger.check(journal)
    print(f"{times} kills: {balance}")
    assert len(segments(journal)) > times
    verify(journal)
    return ledger


def test_nothing_acknowledged_is_lost_when_the_hub_is_killed_under_load(tmp_path: Path) -> None:
    ledger = kill_under_load(tmp_path / "data", times=4, seed=1)
    journal, warehouse = tmp_path / "data" / "journal", tmp_path / "warehouse"
    run_batches(warehouse, [[ranges(journal)]])
    ledger.check_tables(journal, rows_of(warehouse))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(KILLS * 30 + 900)
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path) -> None:
    """And a pipeline finds all of it."""
    ledger = kill_under_load(tmp_path / "data", times=KILLS, seed=2)
    journal, warehouse = tmp_path / "data" / "journal", tmp_path / "warehouse"
    command = [*WIRELOOM, "pipeline", "run", "--input", str(journal), "--warehouse", str(warehouse), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    print(f"{ledger.check_tables(journal, rows_of(warehouse))} rows in the tables, each message of the journal once")


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


def second_hub(config: Path, url: str, data: Path) -> str:
    """A hub that cannot start says why in one line; what it said."""
    config.write_text(f'[[listener]]\nurl = "{url}"\n[http]\nurl = "off"\n')
    command = [*WIRELOOM, "hub", "--config", str(config), "--data", str(data)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert second.returncode == 2
    assert "Traceback" not in second.stderr
    return second.stderr


def test_a_port_in_use_is_one_line_on_standard_error(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path / "a")
    said = second_hub(tmp_path / "b.toml", f"hsp://127.0.0.1:{hub.port}", tmp_path / "b")
    hub.stop()
    assert said.splitlines()[-1].startswith(f"wireloom: cannot listen on hsp://127.0.0.1:{hub.port}: ")


def test_a_second_hub_on_the_same_data_is_refused_in_one_line(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path)
    said = second_hub(tmp_path / "b.toml", "hsp://127.0.0.1:0", tmp_path)
    hub.stop()
    assert "another process" in said
