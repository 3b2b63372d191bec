"""Two cores against one, and ten times the input against one times: all seven tables, in one Spark session each.

Ten times the input may take 10.5 times as long, and must not need more memory in the driver.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Result, compare
from benchmarks.pipeline import Shape, timed, write_journal
from wireloom.pipeline import Pipeline, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL, LARGE = 400_000, 4_000_000
"""Requests; each has an answer."""


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        small, large = (write_journal(folder / str(each), Shape("", each)) for each in (SMALL, LARGE))
        ones, results = [], []

        def rate(spark: SparkSession, journal: Path, requests: int) -> float:
            out = folder / "warehouse"
            return timed(lambda: Pipeline([journal], out, spark=spark).run(), out, 2 * requests)

        with session(1) as spark:
            rate(spark, small, SMALL)
            ones = [rate(spark, large, LARGE)]
        with session(2) as spark:
            results.append(
                compare("all tables of ten times the input", "of the input, a message",
                        lambda: rate(spark, large, LARGE), lambda: rate(spark, small, SMALL), goal=1 / 1.05, rounds=1)
            )  # fmt: skip
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            rate(spark, large, LARGE)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        cores = Result("all tables on local[2]", "the same on local[1]", 1.5, "messages/s", results[0].ours, ones)
        print(cores.row(), flush=True)
        print(f"    the driver's memory grew by {grown // 1024} MiB", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        return [cores, *results]


@contextmanager
def session(cores: int) -> Iterator[SparkSession]:
    """A Spark of its own with so many cores."""
    spark = start_session(f"local[{cores}]", {"spark.driver.memory": "2g"}, "benchmark")
    try:
        yield spark
    finally:
        spark.stop()
