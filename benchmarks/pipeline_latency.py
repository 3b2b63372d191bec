"""From a message acknowledged by the hub to its row visible in `messages`, at 50,000 messages a second.

A client publishes at that pace with `DATA_ACK`, whatever comes back. The pipeline runs beside the hub with
`--continuous`, all tables. A reader looks at the table's log all the time: a row is visible when the commit that
holds its file is. Hub, client, pipeline and reader share the cores of one machine.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks import servers
from benchmarks.harness import Result

RATE = 50_000
SECONDS = 25
WARM_S = 6
"""The first seconds warm up and do not count."""
GOAL_S = 5.0
BODY = b"x" * 64
_STEP_S = 0.02


class Publisher:
    """Sends numbered messages at a steady pace and notes when each was acknowledged."""

    def __init__(self, port: int, count: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._count = count
        self.acked = np.full(count, np.nan)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def run(self) -> None:
        """Send everything, then wait for the last acknowledgement."""
        self._reader.start()
        step = int(RATE * _STEP_S)
        began = time.monotonic()
        for turn, first in enumerate(range(0, self._count, step)):
            numbers = range(first, min(first + step, self._count))
            self._sock.sendall(b"".join(struct.pack(">BIHI", 1, n, 7, len(BODY)) + BODY for n in numbers))
            time.sleep(max(0.0, began + (turn + 1) * _STEP_S - time.monotonic()))
        self._reader.join(60)
        self._sock.close()

    def _read(self) -> None:
        done, left = 0, b""
        while done < self._count and (data := self._sock.recv(1 << 18)):
            left += data
            whole = len(left) // 5
            numbers = np.frombuffer(left, np.uint8, whole * 5).reshape(-1, 5)[:, 1:].copy().view(">u4").ravel()
            self.acked[numbers] = time.time()
            left = left[whole * 5 :]
            done += whole


class Watcher(threading.Thread):
    """Follows the log of `messages` and notes when each message's row became visible."""

    def __init__(self, table: Path, count: int) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.visible = np.full(count, np.nan)
        self.ends = threading.Event()
        self._version = 0

    def run(self) -> None:
        """Look until told to end."""
        while not self.ends.wait(0.02):
            self.look()

    def look(self) -> None:
        """Take in the commits that are new."""
        while (commit := self.table / "_delta_log" / f"{self._version:020}.json").exists():
            now = time.time()
            for line in commit.read_text().splitlines():
                added = json.loads(line).get("add")
                if added is not None:
                    rows = pq.ParquetFile(self.table / added["path"]).read(["message_id"])["message_id"].drop_null()
                    self.visible[rows.cast("int64").to_numpy()] = now
            self._version += 1


@contextmanager
def pipeline(journal: Path, warehouse: Path) -> Iterator[None]:
    """A pipeline that goes on until the end of the block; its first batch is done at the beginning."""
    command = [sys.executable, "-m", "wireloom", "pipeline", "run", "--continuous", "--master", "local[2,4]"]
    with servers.running(
        [*command, "--input", str(journal), "--warehouse", str(warehouse)], stderr=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + 300
        while not (warehouse / "_state" / "_delta_log" / f"{1:020}.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the pipeline did not start")
            time.sleep(0.1)
        yield


def run() -> list[Result]:
    count = RATE * SECONDS
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        with servers.hub(data=folder / "hub") as ports:
            Publisher(ports["hsp"], 1).run()
            with pipeline(folder / "hub" / "journal", folder / "warehouse"):
                watcher = Watcher(folder / "warehouse" / "messages", count)
                publisher = Publisher(ports["hsp"], count)
                watcher.start()
                publisher.run()
                until = time.monotonic() + 30
                while np.isnan(watcher.visible).any() and time.monotonic() < until:
                    time.sleep(0.1)
                watcher.ends.set()
                watcher.join()
    took = (watcher.visible - publisher.acked)[RATE * WARM_S :]
    missing = int(np.isnan(took).sum())
    took = np.where(np.isnan(took), np.inf, took)
    middle, high, worst = (float(np.quantile(took, q, method="lower")) for q in (0.5, 0.99, 1.0))
    print(f"    acknowledged to visible: p50 {middle:.2f} s, p99 {high:.2f} s, worst {worst:.2f} s, {missing} missing")
    sent = np.nanmax(publisher.acked) - np.nanmin(publisher.acked)
    print(f"    {count / sent:,.0f} messages/s were acknowledged")
    result = Result("acknowledged by the hub to visible in `messages`, p99 within 5 s", "one", 1, "times")
    result.ours, result.theirs = [GOAL_S / high], [1.0]
    print(result.row(), flush=True)
    return [result]
