"""The same messages as in `pipeline`, as a stream in micro-batches of about a second.

Each side gets batches of the size it does in about a second on two cores, one after the other, and writes `messages`.
Compared are messages a second from the end of the first batch, which warms up, to the end of the last. The peer is
Spark's file source, `from_json`, and its file sink with a checkpoint: a user's streaming query with the same promise.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Result, compare
from benchmarks.pipeline import SCHEMA, Shape, write_inputs
from wireloom.pipeline import Pipeline, start_session
from wireloom.pipeline.driver import MicroBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUESTS = 1_500_000
"""Each has an answer."""
BATCHES = 4
"""Micro-batches of ours."""
PEER_BATCHES = 24
"""Micro-batches of the peer, of two files of JSON lines each: one for each core."""


class Pace:
    """The moments at which batches were done, and how many messages they brought."""

    def __init__(self) -> None:
        self.done: list[tuple[float, int]] = []

    def add(self, messages: int) -> None:
        """A batch is done."""
        self.done.append((time.perf_counter(), messages))

    def rate(self) -> float:
        """Messages a second after the first batch."""
        return sum(count for _, count in self.done[1:]) / (self.done[-1][0] - self.done[0][0])

    def batch_seconds(self) -> float:
        """How long a batch takes, mostly."""
        moments = [moment for moment, _ in self.done]
        return statistics.median(after - before for before, after in itertools.pairwise(moments))


def stream_ours(spark: SparkSession, journal: Path, out: Path) -> Pace:
    """The pipeline as a streaming query that commits `messages` after every batch."""
    shutil.rmtree(out, ignore_errors=True)
    pace = Pace()
    size = sum(path.stat().st_size for path in journal.glob("*.pcapng"))

    def report(batch: MicroBatch) -> None:
        pace.add(batch.messages)
        if not batch.bytes_left:
            pipeline.stop()

    options = {"maxBytesPerTrigger": str(size // BATCHES + 1)}
    pipeline = Pipeline([journal], out, spark=spark, options=options, report=report, only_messages=True)
    pipeline.run(once=False, interval=0.01)
    return pace


def stream_theirs(spark: SparkSession, lines: Path, out: Path) -> Pace:
    """What a user would write."""
    from pyspark.sql import functions as f

    shutil.rmtree(out, ignore_errors=True)
    text = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(lines))
    rows = text.select(f.from_json("value", SCHEMA).alias("row")).select("row.*")
    rows = rows.withColumn("date", f.to_date("time")).withColumn("body", f.col("body").cast("binary"))
    query = (
        rows.writeStream.format("parquet")
        .option("compression", "zstd")
        .option("checkpointLocation", str(out / "checkpoint"))
        .partitionBy("date")
        .trigger(availableNow=True)
        .start(str(out / "messages"))
    )
    query.awaitTermination()
    pace = Pace()
    # Times of Spark's own clock, which started each batch when the one before it was done.
    moment = 0.0
    for progress in query.recentProgress:
        if progress.numInputRows:
            moment += progress.durationMs["triggerExecution"] / 1000
            pace.done.append((moment, progress.numInputRows))
    return pace


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal, lines = write_inputs(folder, Shape("", REQUESTS), 2 * PEER_BATCHES)
        spark = start_session("local[2]", {"spark.driver.memory": "4g"}, "benchmark")
        seconds: dict[str, float] = {}

        def ours() -> float:
            pace = stream_ours(spark, journal, folder / "warehouse")
            seconds["ours"] = pace.batch_seconds()
            return pace.rate()

        def theirs() -> float:
            pace = stream_theirs(spark, lines, folder / "parquet")
            seconds["the peer's"] = pace.batch_seconds()
            return pace.rate()

        try:
            result = compare(
                "journal → committed `messages`, streaming", "Spark `from_json`, streaming", ours, theirs,
                goal=4, rounds=2,
            )  # fmt: skip
        finally:
            spark.stop()
    shown = ", ".join(f"{side} {taken:.2f} s" for side, taken in seconds.items())
    print(f"    a micro-batch took: {shown}", flush=True)
    return [result]
