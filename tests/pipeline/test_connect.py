"""The same through Spark Connect: a server of Spark's own on loopback, commands and programs that only talk to it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.commands import WIRELOOM
from tests.pipeline.conversations import make_conversations
from tests.pipeline.daemons import Daemons
from wireloom.model import ConfigError
from wireloom.pipeline import Pipeline, start_session
from wireloom.pipeline.query import describe
from wireloom.pipeline.spark_session import settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on two cores."""
    folder = tmp_path_factory.mktemp("connect")
    chosen = {
        **settings("local", quick=True),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "catalog"),
    }
    # Its log is what tells the port.
    chosen["spark.driver.extraJavaOptions"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    words = [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
    daemons = Daemons(folder)
    try:
        log = daemons.start(
            "org.apache.spark.deploy.SparkSubmit", "--class", SERVER, "--master", "local[2,4]", *words, "spark-internal"
        )
        line = daemons.wait_for(log, r"Spark Connect server started at: [^\s:]+:[1-9]\d*")
        yield f"sc://127.0.0.1:{line.rpartition(':')[2]}"
    finally:
        daemons.stop()


def test_the_command_gives_the_tables_of_one_process(remote: str, tmp_path: Path) -> None:
    make_conversations(tmp_path / "journal", seed=41, steps=150)
    # Without --once or --continuous: it ends when everything is read.
    command = [*WIRELOOM, "pipeline", "run", "--input", str(tmp_path / "journal")]
    command += ["--warehouse", str(tmp_path / "w"), "--remote", remote, "--max-bytes", "20k"]
    done = subprocess.run(command, capture_output=True, timeout=600, check=False, text=True)
    assert done.returncode == 0, done.stderr
    run_batches(tmp_path / "one", [[ranges(tmp_path / "journal")]])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    rows = {name: each.rows for name, each in describe(tmp_path / "w").items()}
    assert "batch 0: " in done.stderr and "batch 1: " in done.stderr, done.stderr
    assert re.search(rf"\] {rows['messages']:,} messages and {rows['rejects']:,} rejects? in ", done.stderr), (
        done.stderr
    )


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from wireloom.pipeline import Pipeline, dataframes, register

remote, journal, warehouse = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
messages = spark.read.format("wireloom").load(journal)
print(messages.count(), dataframes.exchanges(messages).count())
summary = Pipeline([journal], warehouse, spark=spark).run(once=True)
print(summary.messages, summary.rejects, summary.batches)
spark.stop()
"""


def test_a_program_with_a_session_of_its_own(remote: str, tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=42, steps=100)
    words = [sys.executable, "-c", PROGRAM, remote, str(tmp_path / "j"), str(tmp_path / "w")]
    done = subprocess.run(words, capture_output=True, timeout=600, check=False, text=True)
    assert done.returncode == 0, done.stderr
    run_batches(tmp_path / "one", [cut(ranges(tmp_path / "j"), [])])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    rows = {name: each.rows for name, each in describe(tmp_path / "one").items()}
    assert done.stdout.split() == [
        *(str(rows[name]) for name in ("messages", "exchanges", "messages", "rejects")),
        "1",
    ]


def test_wrong_addresses_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it looks like sc://"):
        start_session(remote="spark://host:7077")
    make_conversations(tmp_path / "j", seed=43, steps=10)
    with pytest.raises(ConfigError, match="'master' or 'remote'"):
        Pipeline([tmp_path / "j"], tmp_path / "w", master="local", remote="sc://host")
