"""From a journal to committed tables, against what people would write: Spark's own `from_json` on the same messages.

The input is 500,000 requests and their answers on 16 connections: as a journal, and as JSON lines. Both sides run in
one Spark session and end with zstd-compressed Parquet. Ours commits to Delta tables; the peer only writes files.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import psutil

from benchmarks.harness import Result, compare
from wireloom.journal import Journal
from wireloom.model import Direction, iso_time
from wireloom.pipeline import Pipeline, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REQUESTS, RUN = 500_000, 3_000
LINE_FILES = 16
TOPICS = {7: "sensors/kitchen", 8: "sensors/cellar", 9: "doors/front", 10: "doors/back"}
SCHEMA = (
    "time timestamp, protocol string, connection string, direction string, sequence bigint, kind string, "
    "topic string, message_id string, correlation_id string, status string, body string, wire_size int, "
    "attributes map<string,string>"
)


def write_inputs(folder: Path, requests: int = REQUESTS, line_files: int = LINE_FILES) -> tuple[Path, Path]:
    """The same messages as a journal and as JSON lines."""
    lines = folder / "lines"
    lines.mkdir(parents=True)
    files = [(lines / f"part-{n:02}.json").open("w") for n in range(line_files)]
    journal = write_journal(folder, requests, files)
    for file in files:
        file.close()
    return journal, lines


def write_journal(folder: Path, requests: int, lines: Sequence[TextIO] = ()) -> Path:
    """Requests and their answers as a journal; also as JSON lines where there are files for them."""
    start = time.time_ns()
    ends = ("127.0.0.1:40000", "127.0.0.1:5042")
    with Journal.open(folder / "journal", sync=False) as journal:
        connections = [journal.new_connection_id() for _ in range(16)]
        sent = [0] * len(connections)
        for run, first in enumerate(range(0, requests, RUN)):
            which, numbers = run % len(connections), range(first, min(first + RUN, requests))
            asked = start + first * 1000
            for direction, moment in ((Direction.C2S, asked), (Direction.S2C, asked + 500_000)):
                back = direction is Direction.S2C
                if lines:
                    rest = _answer if back else _request
                    shown = (
                        f'{{"time": "{iso_time(moment)[:26]}Z", "direction": "{direction}", "protocol": "hsp", '
                        f'"connection": "{connections[which]:016x}", "sequence": '
                    )
                    lines[run % len(lines)].writelines(
                        f"{shown}{sent[which] + place}, {rest(number)}}}\n" for place, number in enumerate(numbers)
                    )
                frames = [
                    struct.pack(">BI", 2, n) if back else struct.pack(">BIHI", 1, n, 7 + n % 4, 64) + b"%064d" % n
                    for n in numbers
                ]
                journal.append(
                    "hsp", connections[which], direction, sent[which], b"".join(frames),
                    source=ends[back], destination=ends[not back], topics=TOPICS, time_ns=moment,
                )  # fmt: skip
            sent[which] += len(numbers)
            if run % 100 == 0:
                journal.commit()
    return folder / "journal"


def _request(number: int) -> str:
    kind = 7 + number % 4
    return (
        f'"kind": "request", "topic": "{TOPICS[kind]}", "message_id": "{number}", "body": "{number:064d}", '
        f'"wire_size": 75, "attributes": {{"type": "{kind}"}}'
    )


def _answer(number: int) -> str:
    return f'"kind": "response", "correlation_id": "{number}", "status": "done", "body": "", "wire_size": 5'


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


def timed(work: Callable[[], object], out: Path, messages: int, spent: list[float] | None = None) -> float:
    """Messages a second; what was written before is gone. `spent` gets the seconds of processor time."""
    shutil.rmtree(out, ignore_errors=True)
    began, before = time.perf_counter(), processor_seconds()
    work()
    took = time.perf_counter() - began
    if spent is not None:
        spent.append(processor_seconds() - before)
    return messages / took


def processor_seconds() -> float:
    """Processor time of this process and all below it: Java and the workers."""
    total = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal, lines = write_inputs(folder)
        ours, theirs = folder / "warehouse", folder / "parquet"
        spark = start_session("local[2]", {"spark.driver.memory": "4g"}, "benchmark")

        def measure(
            what: str, peer: str, theirs_work: Callable[[SparkSession, Path, Path], None], goal: float,
            rounds: int, *, only_messages: bool,
        ) -> Result:  # fmt: skip
            spent: tuple[list[float], list[float]] = [], []

            def ours_work() -> None:
                Pipeline([journal], ours, spark=spark, only_messages=only_messages).run(query=False)

            result = compare(
                what,
                peer,
                lambda: timed(ours_work, ours, 2 * REQUESTS, spent[0]),
                lambda: timed(lambda: theirs_work(spark, lines, theirs), theirs, 2 * REQUESTS, spent[1]),
                goal=goal,
                rounds=rounds,
            )
            # The first round warmed up.
            by_time = statistics.median(b / a for a, b in list(zip(*spent, strict=True))[1:])
            print(f"    by processor time of all processes: {by_time:.2f}×", flush=True)
            return result

        try:
            return [
                measure(
                    "journal → committed `messages`, batch", "Spark `from_json`, JSON lines → Parquet", from_json,
                    goal=6, rounds=3, only_messages=True,
                ),
                measure(
                    "journal → all seven tables, batch", "Spark `from_json` and the same joins and aggregates",
                    from_json_all, goal=3, rounds=2, only_messages=False,
                ),
            ]  # fmt: skip
        finally:
            spark.stop()
