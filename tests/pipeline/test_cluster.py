"""The same command on a cluster: a master and two workers of Spark's own, each a process on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipeline.batches import contents, ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from tests.pipeline.conversations import make_conversations
from wireloom.pipeline.java import find_java, home_for_spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Cluster:
    """Daemons of a standalone cluster, started with the scripts of the PySpark package."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(str(pyspark.__file__)).parent
        self.folder = folder
        self._script = str(home / "bin" / "spark-class")
        source = str(Path(__file__).resolve().parents[2] / "src")
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(home_for_spark(find_java())),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": source,
        }
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> Path:
        """Start a daemon; where it logs."""
        log = self.folder / f"{name}-{len(self._daemons)}.log"
        with log.open("wb") as sink:
            command = [
                self._script,
                f"org.apache.spark.deploy.{name.lower()}.{name}",
                "--host",
                "127.0.0.1",
                *arguments,
            ]
            self._daemons.append(
                subprocess.Popen(command, env=self._environment, stdout=sink, stderr=sink, start_new_session=True)
            )
        return log

    def wait_for(self, log: Path, pattern: str) -> str:
        """The first match of a pattern in a log."""
        deadline = time.monotonic() + 240
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            assert all(daemon.poll() is None for daemon in self._daemons), log.read_text(errors="replace")
            time.sleep(0.2)
        return found[0]

    def stop(self) -> None:
        """End all daemons and what they started."""
        for daemon in self._daemons:
            for member in [*psutil.Process(daemon.pid).children(recursive=True), psutil.Process(daemon.pid)]:
                member.kill()
            daemon.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers of one core each."""
    cluster = Cluster(tmp_path)
    try:
        log = cluster.start("Master", "--port", "0", "--webui-port", "0")
        address = cluster.wait_for(log, r"spark://127\.0\.0\.1:[1-9]\d*")
        shape = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / "work"))
        workers = [cluster.start("Worker", *shape, address) for _ in range(2)]
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
