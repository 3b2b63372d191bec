"""The same command on a cluster: a master and two workers of Spark's own, each a process on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.batches import contents, ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from tests.pipeline.conversations import make_conversations
from tests.pipeline.daemons import Daemons

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers of one core each."""
    cluster = Daemons(tmp_path)
    try:
        host = ("--host", "127.0.0.1")
        log = cluster.start("org.apache.spark.deploy.master.Master", *host, "--port", "0", "--webui-port", "0")
        address = cluster.wait_for(log, r"spark://127\.0\.0\.1:[1-9]\d*")
        shape = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work"))
        workers = [cluster.start("org.apache.spark.deploy.worker.Worker", *host, *shape, address) for _ in range(2)]
        for worker in workers:
            cluster.wait_for(worker, "Successfully registered with master")
        yield address
    finally:
        cluster.stop()


def test_a_cluster_of_two_workers_gives_the_tables_of_one_process(master: str, tmp_path: Path) -> None:
    make_conversations(tmp_path / "journal", seed=21)
    command = [*WIRELOOM, "pipeline", "run", "--once", "--input", str(tmp_path / "journal")]
    command += ["--warehouse", str(tmp_path / "w"), "--master", master, "--max-bytes", "20k"]
    for setting in (
        "executor.memory=512m",
        "executor.cores=1",
        "driver.host=127.0.0.1",
        "driver.bindAddress=127.0.0.1",
    ):
        command += ["--conf", f"spark.{setting}"]
    done = subprocess.run(command, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    run_batches(tmp_path / "one", [[ranges(tmp_path / "journal")]])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
