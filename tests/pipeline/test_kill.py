"""kill -9 of the whole pipeline, at moments nobody chose: after a restart the tables are as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.pipeline.batches import contents, plain_contents, ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from tests.pipeline.journals import START_NS, make_journal
from tests.pipeline.test_run import check_against_journal
from wireloom.pipeline.query import describe

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def start(
    journal: Path, warehouse: Path, log: IO[bytes], table_format: str, mode: str = "--once"
) -> subprocess.Popen[bytes]:
    command = [*WIRELOOM, "pipeline", "run", "--input", str(journal), "--warehouse", str(warehouse)]
    command += ["--table-format", table_format]
    return subprocess.Popen([*command, mode, "--max-bytes", "300k"], stderr=log, start_new_session=True)


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end(members: list[psutil.Process]) -> None:
    for member in members:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue


def run_with_kills(folder: Path, kills: int, seed: int, table_format: str, *, mixed: bool = False) -> None:
    """Kill run after run; `mixed`: continuous runs too, and Java and workers before the driver."""
    journal, warehouse, log = folder / "journal", folder / "warehouse", folder / "log"
    rng = random.Random(seed)
    orphans: list[psutil.Process] = []
    for number in range(kills):
        # Something new to do for every run, whatever the ones before got done.
        make_journal(journal, runs=60, seed=number, start_ns=START_NS + number * 10**12)
        with log.open("wb") as sink:
            # Runs with and without a streaming query go on where the other was.
            mode = rng.choice(("--once", "--continuous")) if mixed else "--once"
            process = start(journal, warehouse, sink, table_format, mode)
            if number % 2 == 0:
                # Into the batches: the first one done says that they are under way.
                deadline = time.monotonic() + 600
                while b"batch " not in log.read_bytes() and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(rng.random() * 1.5)
            else:
                time.sleep(rng.random() * 20)
            relatives = family(process)
            orphans += relatives
            if mixed and relatives and rng.random() < 0.5:
                # First Java, a worker, or the parent of workers: what the driver makes of that is cut off, too.
                end([rng.choice(relatives)])
                time.sleep(rng.random())
            # Only the driver; its Java and the workers may live on for a moment beside the next run.
            process.kill()
            process.wait()
    with log.open("wb") as sink:
        process = start(journal, warehouse, sink, table_format)
        try:
            assert process.wait(900) == 0, log.read_text()
        finally:
            end([*orphans, *family(process)])
    check_against_journal(warehouse, journal)
    assert describe(warehouse)["messages"].rows > 0
    run_batches(folder / "undisturbed", [[ranges(journal)]])
    assert contents(warehouse) == contents(folder / "undisturbed")
    if table_format == "parquet":
        assert plain_contents(warehouse) == contents(warehouse)


def test_two_kills(tmp_path: Path) -> None:
    """Plain folders have all that Delta tables have, and more to go wrong."""
    run_with_kills(tmp_path, 2, seed=int.from_bytes(os.urandom(4), "big"), table_format="parquet")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_twenty_kills(tmp_path: Path, table_format: str) -> None:
    run_with_kills(tmp_path, 20, seed=int.from_bytes(os.urandom(4), "big"), table_format=table_format, mixed=True)


def test_sigterm_ends_a_continuous_run_after_its_batch(tmp_path: Path) -> None:
    journal, warehouse, log = tmp_path / "journal", tmp_path / "warehouse", tmp_path / "log"
    make_journal(journal, runs=20, long_runs=False)
    command = [*WIRELOOM, "pipeline", "run", "--input", str(journal), "--warehouse", str(warehouse), "--continuous"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, start_new_session=True)
        try:
            while b"batch 0" not in log.read_bytes():
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
        finally:
            end(family(process))
            process.kill()
    assert "stopping after this batch" in log.read_text()
    assert "Traceback" not in log.read_text()
    check_against_journal(warehouse, journal)
