"""A hub on an ext4 file system whose power is cut again and again under load.

One data folder goes through all cuts. After each the hub recovers it, the ledger balances, `verify` finds no fault. At
the end a webhook, which keeps how far it is in that folder, has posted every acknowledged event, and tables made from
the journal hold all of it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.hub.load import LISTENERS, Client, Load, Observer, many_clients
from tests.hub.process import HubProcess, kill_while_starting, verify
from tests.ledger import Ledger, rows_of
from tests.pipeline.batches import ranges, run_batches
from tests.powerloss.ext4 import Cut, PowerlessDisk, powerless_disk
from wireloom.journal import Offset

CUTS = int(os.environ.get("CUTS", "50"))
MODES = ("ordered", "writeback,noauto_da_alloc")
"""ext4's `data=`. The second is the harshest there is: data in any order, and no help for renamed files that were not synced."""
HOOK = "hook"


class Receiver:
    """Takes what a webhook posts."""

    def __init__(self) -> None:
        self.got: set[bytes] = set()
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                got.add(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def config(self) -> str:
        """The table of a hub's configuration that posts here."""
        url = f"http://127.0.0.1:{self._server.server_port}/"
        return f'[[webhook]]\nname = "hook"\nurl = "{url}"\ntopic = "{HOOK}"\n'

    def missing(self, contents: set[bytes], seconds: float = 30) -> list[bytes]:
        """Wait until all of these were posted; those that were not, if nothing more comes for so long."""
        until, before = time.monotonic() + seconds, 0
        while contents - self.got and time.monotonic() < until:
            if len(self.got) > before:
                until, before = time.monotonic() + seconds, len(self.got)
            time.sleep(0.05)
        return sorted(contents - self.got)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Powerless:
    """A hub, its clients and its readers on a disk whose power is cut."""

    def __init__(self, disk: PowerlessDisk, folder: Path, receiver: Receiver, seed: int, *, sync: bool = True) -> None:
        self.disk = disk
        self.folder = folder
        self.receiver = receiver
        # A journal that does not sync still syncs a segment that it seals: then let there be one only.
        journal = "[journal]\n" + ("segment_bytes = 200000\n" if sync else "sync = false\n")
        self.config = LISTENERS + journal + receiver.config
        self.data = disk.folder / "data"
        self.journal = self.data / "journal"
        self.ledger = Ledger()
        self.chance = random.Random(seed)
        self.clients = many_clients(self.ledger, small=20)
        self.clients.append(Client(self.ledger, "hook", "emp", 4, HOOK, pause=0.005))
        self._since: list[Offset | None] = [None]
        self._said: list[str] = []
        """What became of the webhook's cursor, for a failure."""

    def start(self) -> HubProcess:
        return HubProcess(self.data, self.config, self.folder)

    def cut_under_load(self, how: Cut | None = None) -> None:
        """Start, load, cut; what a reader saw before the cut is in the ledger."""
        how = (
            self.chance.choice((Cut.NOTHING, Cut.NOTHING, Cut.NOTHING, Cut.LOG, Cut.EVERYTHING)) if how is None else how
        )
        before = self.ledger.acknowledged
        hub = self.start()
        load = Load(self.clients, hub.urls)
        observer = Observer(self.ledger, self.journal, self._since[-2:][0])
        try:
            load.wait_for_answers(2)
            time.sleep(self.chance.random() * 0.3)
            self.disk.cut(how)
            # A hub that acknowledges now has nothing to keep its word with.
            time.sleep(self.chance.random() * 0.2)
        finally:
            said = self._heard(hub.kill())
            load.join()
            observer.stop()
        assert self.ledger.acknowledged > before, said
        self._since.append(observer.last)
        self.disk.remount()
        cursor = self.journal / "cursors" / "webhook-hook.json"
        self._said.append(f"the cursor after a cut: {cursor.read_bytes() if cursor.exists() else None!r}")

    def _heard(self, said: str) -> str:
        self._said += [line for line in said.splitlines() if "webhook" in line and "damaged" in line]
        return said

    def cut_while_starting(self) -> None:
        """Cut while a hub recovers what the cut before has left."""
        cutting = threading.Timer(self.chance.random() * 1.5, self.disk.cut, (Cut.NOTHING,))
        cutting.start()
        kill_while_starting(self.data, 1.6, self.config, self.folder)
        cutting.join()
        self.disk.remount()

    def check(self) -> str:
        """A hub recovers; everything is there, and the journal is sound."""
        hub = self.start()
        try:
            balance = self.ledger.check(self.journal)
            verify(self.journal)
        finally:
            code, said = hub.stop()
        assert code == 0, said
        self._heard(said)
        return str(balance)

    def check_readers(self) -> str:
        """The webhook ends up with every event, and so do tables."""
        hub = self.start()
        acknowledged = {
            message.content
            for line in self.ledger.lines
            for message in line.sent
            if line.topic == HOOK and message.acknowledged_at is not None
        }
        missing = self.receiver.missing(acknowledged)
        code, said = hub.stop()
        assert code == 0, said
        self._heard(said)
        told = "\n".join(self._said)
        assert not missing, f"{len(missing)} of {len(acknowledged)} events never posted: {missing[:5]}\n{told}"
        warehouse = self.folder / "warehouse"
        run_batches(warehouse, [[ranges(self.journal)]])
        rows = self.ledger.check_tables(self.journal, rows_of(warehouse))
        return f"{len(acknowledged)} events posted, {rows} rows in tables"


def cut_again_and_again(folder: Path, mode: str, cuts: int, seed: int) -> None:
    with powerless_disk(folder, mode) as disk:
        receiver = Receiver()
        try:
            powerless = Powerless(disk, folder, receiver, seed)
            balance = ""
            for number in range(cuts):
                powerless.cut_under_load()
                if number % 4 == 1:
                    powerless.cut_while_starting()
                if number % 4 == 3 or number == cuts - 1:
                    balance = powerless.check()
            print(f"data={mode}, {cuts} power cuts: {balance}")
            print(powerless.check_readers())
        finally:
            receiver.close()


@pytest.mark.parametrize(("mode", "cuts"), [(MODES[0], 2), (MODES[1], 1)])
def test_nothing_acknowledged_is_lost_when_the_power_is_cut(tmp_path: Path, mode: str, cuts: int) -> None:
    cut_again_and_again(tmp_path, mode, cuts, seed=1)


def test_a_hub_that_acknowledges_before_the_sync_is_caught(tmp_path: Path) -> None:
    """Else the other tests here would prove nothing."""
    with powerless_disk(tmp_path, "ordered") as disk:
        receiver = Receiver()
        try:
            powerless = Powerless(disk, tmp_path, receiver, seed=3, sync=False)
            powerless.cut_under_load(Cut.NOTHING)
            with pytest.raises(AssertionError, match="acknowledged, but not in the journal"):
                powerless.check()
        finally:
            receiver.close()


def test_whoever_cannot_mount_is_told_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match=r"LEFT OUT: power cuts of a real ext4 file system .* needs root"):
        cut_again_and_again(tmp_path, "ordered", 1, seed=1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(pytest.skip.Exception, match=r"LEFT OUT: .*: there is no mkfs.ext4 here"):
        cut_again_and_again(tmp_path, "ordered", 1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(CUTS * 60 + 300)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_acknowledged_is_lost_in_many_power_cuts(tmp_path: Path, mode: str) -> None:
    cut_again_and_again(tmp_path, mode, cuts=(CUTS + 1) // 2, seed=2)
