"""From a journal to committed tables, against what people would write: Spark's own `from_json` on the same messages.

The input is 1,000,000 requests and their answers on 16 connections: as a journal, and as JSON lines. Both sides run in
one Spark session and end with zstd-compressed Parquet. Ours commits to Delta tables; the peer only writes files.
"""

from __future__ import annotations

import json
import resource
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Result, compare
from wireloom.journal import Journal
from wireloom.model import Direction, iso_time
from wireloom.pipeline import Pipeline, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REQUESTS, RUN = 1_000_000, 3_000
TOPICS = {7: "sensors/kitchen", 8: "sensors/cellar", 9: "doors/front", 10: "doors/back"}
SCHEMA = (
    "time timestamp, protocol string, connection string, direction string, sequence bigint, kind string, "
    "topic string, message_id string, correlation_id string, status string, body string, wire_size int, "
    "attributes map<string,string>"
)


def write_inputs(folder: Path, requests: int = REQUESTS) -> tuple[Path, Path]:
    """The same messages as a journal and as JSON lines in eight files."""
    journal_folder, lines_folder = folder / "journal", folder / "lines"
    lines_folder.mkdir(parents=True)
    start = time.time_ns()
    files = [(lines_folder / f"part-{n}.json").open("w") for n in range(8)]
    with Journal.open(journal_folder, sync=False) as journal:
        connections = [journal.new_connection_id() for _ in range(16)]
        sent = [0] * len(connections)
        for run, first in enumerate(range(0, requests, RUN)):
            which, numbers = run % len(connections), range(first, min(first + RUN, requests))
            asked = start + first * 1000
            common = {"protocol": "hsp", "connection": f"{connections[which]:016x}"}
            for direction, moment in ((Direction.C2S, asked), (Direction.S2C, asked + 500_000)):
                back = direction is Direction.S2C
                shown = {"time": iso_time(moment)[:26] + "Z", "direction": str(direction), **common}
                for place, number in enumerate(numbers):
                    row = {**shown, "sequence": sent[which] + place}
                    row |= _answer(number) if back else _request(number)
                    files[run % 8].write(json.dumps(row) + "\n")
                frames = [
                    struct.pack(">BI", 2, n) if back else struct.pack(">BIHI", 1, n, 7 + n % 4, 64) + b"%064d" % n
                    for n in numbers
                ]
                ends = ("127.0.0.1:40000", "127.0.0.1:5042")
                journal.append(
                    "hsp", connections[which], direction, sent[which], b"".join(frames),
                    source=ends[back], destination=ends[not back], topics=TOPICS, time_ns=moment,
                )  # fmt: skip
            sent[which] += len(numbers)
            if run % 100 == 0:
                journal.commit()
    for file in files:
        file.close()
    return journal_folder, lines_folder


def _request(number: int) -> dict[str, object]:
    return {
        "kind": "request", "topic": TOPICS[7 + number % 4], "message_id": str(number), "body": f"{number:064d}",
        "wire_size": 75, "attributes": {"type": str(7 + number % 4)},
    }  # fmt: skip


def _answer(number: int) -> dict[str, object]:
    return {"kind": "response", "correlation_id": str(number), "status": "done", "body": "", "wire_size": 5}


def from_json(spark: SparkSession, lines: Path, out: Path) -> None:
    """What a user would write for `messages`."""
    _messages(spark, lines).write.option("compression", "zstd").partitionBy("date").parquet(str(out / "messages"))


def _messages(spark: SparkSession, lines: Path) -> DataFrame:
    from pyspark.sql import functions as f

    rows = spark.read.text(str(lines)).select(f.from_json("value", SCHEMA).alias("row")).select("row.*")
    return rows.withColumn("date", f.to_date("time")).withColumn("body", f.col("body").cast("binary"))


def from_json_all(spark: SparkSession, lines: Path, out: Path) -> None:
    """What a user would write for the other tables: a join for exchanges, aggregates for the rest."""
    from pyspark.sql import functions as f

    from_json(spark, lines, out)
    messages = spark.read.parquet(str(out / "messages"))
    requests = messages.where("kind = 'request'").select(
        "protocol", "connection", "topic", f.col("message_id").alias("request_id"), f.col("time").alias("requested_at"),
        f.length("body").alias("request_size"), "date",
    )  # fmt: skip
    answers = messages.where("kind in ('response', 'error')").select(
        "connection", f.col("correlation_id").alias("request_id"), f.col("time").alias("answered_at"), "status",
        f.length("body").alias("response_size"),
    )  # fmt: skip
    joined = requests.join(answers, ["connection", "request_id"], "left")
    latency = f.unix_micros("answered_at") - f.unix_micros("requested_at")
    exchanges = joined.withColumn("latency_us", latency).withColumn(
        "outcome", f.when(f.col("answered_at").isNull(), "unanswered").otherwise("done")
    )
    unknown = answers.join(requests, ["connection", "request_id"], "left_anti")
    back = f.col("direction") == "s2c"
    sessions = messages.groupBy("connection", "protocol").agg(
        f.min("time").alias("opened_at"), f.max("time").alias("closed_at"),
        f.sum((~back).cast("int")).alias("messages_c2s"), f.sum(back.cast("int")).alias("messages_s2c"),
        f.sum(f.when(~back, f.col("wire_size"))).alias("bytes_c2s"),
        f.sum(f.when(back, f.col("wire_size"))).alias("bytes_s2c"),
    )  # fmt: skip
    traffic = messages.groupBy(f.date_trunc("minute", "time").alias("minute"), "protocol", "topic", "kind").agg(
        f.count("*").alias("messages"), f.sum("wire_size").alias("bytes")
    )
    for name, table in (
        ("exchanges", exchanges), ("findings", unknown), ("sessions", sessions), ("traffic", traffic),
    ):  # fmt: skip
        table.write.option("compression", "zstd").parquet(str(out / name))


def timed(work: Callable[[], object], out: Path, messages: int) -> float:
    """Messages a second; what was written before is gone."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    work()
    return messages / (time.perf_counter() - began)


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal, lines = write_inputs(folder)
        ours, theirs = folder / "warehouse", folder / "parquet"
        spark = start_session("local[2]", {"spark.driver.memory": "4g"}, "benchmark")

        def rows(**options: object) -> float:
            made = lambda: Pipeline([journal], ours, spark=spark, **options).run(once=True)  # type: ignore[arg-type] # noqa: E731
            return timed(made, ours, 2 * REQUESTS)

        try:
            results = [
                compare(
                    "journal → committed `messages`, batch",
                    "Spark `from_json`, JSON lines → Parquet",
                    lambda: rows(only_messages=True),
                    lambda: timed(lambda: from_json(spark, lines, theirs), theirs, 2 * REQUESTS),
                    goal=6,
                    rounds=3,
                ),
                compare(
                    "journal → all seven tables, batch",
                    "Spark `from_json` and the same joins and aggregates",
                    lambda: rows(),
                    lambda: timed(lambda: from_json_all(spark, lines, theirs), theirs, 2 * REQUESTS),
                    goal=3,
                    rounds=3,
                ),
            ]
        finally:
            spark.stop()
        return [*results, *scaling(folder, journal)]


def scaling(folder: Path, journal: Path) -> list[Result]:
    """Two cores against one, and ten times the input against one times, per message."""
    out = folder / "warehouse"

    def on(cores: int, inputs: Path, messages: int) -> float:
        spark = start_session(f"local[{cores}]", {"spark.driver.memory": "2g"}, "benchmark")
        try:
            Pipeline([journal], folder / "warm", spark=spark).run(once=True)
            shutil.rmtree(folder / "warm")
            return timed(lambda: Pipeline([inputs], out, spark=spark).run(once=True), out, messages)
        finally:
            spark.stop()

    large, _ = write_inputs(folder / "large", 10 * REQUESTS)
    shutil.rmtree(folder / "large" / "lines")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results = [
        compare("all tables on local[2]", "the same on local[1]", lambda: on(2, journal, 2 * REQUESTS),
                lambda: on(1, journal, 2 * REQUESTS), goal=1.5, rounds=1),
        compare("all tables of ten times the input", "of the input, per message", lambda: on(2, large, 20 * REQUESTS),
                lambda: on(2, journal, 2 * REQUESTS), goal=0.95, rounds=1),
    ]  # fmt: skip
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"the driver's memory grew by {grown // 1024} MiB meanwhile", flush=True)
    return results
