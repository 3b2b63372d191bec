"""From a journal to committed tables, against what people would write: Spark's own `from_json` on the same messages.

The input is requests and their answers, as a journal and as JSON lines, in three shapes: one frame a block on 256
connections (what a hub writes for peers that wait for each answer), one frame a block and each message on a connection
of its own, and 3,000 frames a block on 16 connections. Both sides run in one Spark session and end with zstd-compressed
Parquet. Ours commits to Delta tables; the peer only writes files.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import psutil

from benchmarks.harness import Result, compare
from wireloom.journal import Journal
from wireloom.journal.context import Context
from wireloom.model import Direction, iso_time
from wireloom.pipeline import Pipeline, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINE_FILES = 16
TOPICS = {7: "sensors/kitchen", 8: "sensors/cellar", 9: "doors/front", 10: "doors/back"}
SCHEMA = (
    "time timestamp, protocol string, connection string, direction string, sequence bigint, kind string, "
    "topic string, message_id string, correlation_id string, status string, body string, wire_size int, "
    "attributes map<string,string>"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How messages lie in a journal: requests and their answers, or events without any."""

    label: str
    sent: int
    run: int = 3_000
    """Frames a block."""
    connections: int = 16
    answered: bool = True

    @property
    def messages(self) -> int:
        return self.sent * (1 + self.answered)


LARGE = Shape("3,000 frames a block", 500_000)
SMALL = Shape("one frame a block", 500_000, 1, 256)
MANY = Shape("100,000 messages on 100,000 connections", 100_000, 1, 100_000, answered=False)
FEW = Shape("100,000 messages on 256 connections", 100_000, 1, 256, answered=False)


def write_inputs(folder: Path, shape: Shape, line_files: int = LINE_FILES) -> tuple[Path, Path]:
    """The same messages as a journal and as JSON lines."""
    lines = folder / "lines"
    lines.mkdir(parents=True)
    files = [(lines / f"part-{n:02}.json").open("w") for n in range(line_files)]
    journal = write_journal(folder, shape, files)
    for file in files:
        file.close()
    return journal, lines


def write_journal(folder: Path, shape: Shape, lines: Sequence[TextIO] = ()) -> Path:
    """Requests and their answers as a journal; also as JSON lines where there are files for them."""
    start = time.time_ns()
    hub = "127.0.0.1:5042"
    with Journal.open(folder / "journal", sync=False) as journal:
        connections = [journal.new_connection_id() for _ in range(shape.connections)]
        peers = [f"127.{n >> 16}.{n >> 8 & 255}.{n & 255}:40000" for n in range(shape.connections)]
        for number, peer in zip(connections, peers, strict=True):
            details = {
                "protocol": "hsp", "listener": f"hsp://{hub}", "peer": peer, "local": hub, "role": "server",
                "principal": None, "tls": None,
            }  # fmt: skip
            journal.record("opened", details, number, protocol="hsp", source=peer, destination=hub, time_ns=start)
        topics = Context(TOPICS)
        sent = [0] * len(connections)
        for run, first in enumerate(range(0, shape.sent, shape.run)):
            which, numbers = run % len(connections), range(first, min(first + shape.run, shape.sent))
            asked = start + first * 1000
            ends = peers[which], hub
            for direction, moment in ((Direction.C2S, asked), (Direction.S2C, asked + 500_000))[: 1 + shape.answered]:
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
                if not shape.answered:
                    frames = [struct.pack(">BHI", 0, 7 + n % 4, 64) + b"%064d" % n for n in numbers]
                elif back:
                    frames = [struct.pack(">BI", 2, n) for n in numbers]
                else:
                    frames = [struct.pack(">BIHI", 1, n, 7 + n % 4, 64) + b"%064d" % n for n in numbers]
                journal.append(
                    "hsp", connections[which], direction, sent[which], b"".join(frames),
                    source=ends[back], destination=ends[not back], topics=topics, time_ns=moment,
                )  # fmt: skip
            sent[which] += len(numbers)
            if run % 1000 == 0:
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


class Sides:
    """Both sides in one Spark session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def written(self, shape: Shape) -> tuple[Path, Path]:
        """Journal and lines of a shape, made where they are not there yet."""
        own = self._folder / shape.label
        return (own / "journal", own / "lines") if own.exists() else write_inputs(own, shape)

    def ours(self, shape: Shape, spent: list[float], *, only_messages: bool) -> float:
        """Messages a second of the pipeline."""
        journal, out = self.written(shape)[0], self._folder / "warehouse"
        pipeline = lambda: Pipeline([journal], out, spark=self._spark, only_messages=only_messages)  # noqa: E731
        return timed(lambda: pipeline().run(), out, shape.messages, spent)

    def compare(
        self, shape: Shape, what: str, peer: str, theirs: Callable[[SparkSession, Path, Path], None], *,
        goal: float, rounds: int, only_messages: bool,
    ) -> Result:  # fmt: skip
        """The pipeline against what a user would write."""
        spent: tuple[list[float], list[float]] = [], []
        lines, out = self.written(shape)[1], self._folder / "parquet"
        result = compare(
            f"{what}, {shape.label}",
            peer,
            lambda: self.ours(shape, spent[0], only_messages=only_messages),
            lambda: timed(lambda: theirs(self._spark, lines, out), out, shape.messages, spent[1]),
            goal=goal,
            rounds=rounds,
        )
        _print_processor_time(*spent)
        return result

    def compare_shapes(self, shape: Shape, other: Shape, *, goal: float, rounds: int) -> Result:
        """The pipeline on the same messages in two shapes."""
        spent: tuple[list[float], list[float]] = [], []
        result = compare(
            f"journal → all seven tables, {shape.label}",
            f"the same messages, {other.label}",
            lambda: self.ours(shape, spent[0], only_messages=False),
            lambda: self.ours(other, spent[1], only_messages=False),
            goal=goal,
            rounds=rounds,
        )
        _print_processor_time(*spent)
        return result


def _print_processor_time(ours: list[float], theirs: list[float]) -> None:
    if len(ours) > 1:
        # The first round warmed up.
        by_time = statistics.median(b / a for a, b in list(zip(ours, theirs, strict=True))[1:])
        print(f"    by processor time of all processes: {by_time:.2f}×", flush=True)


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        spark = start_session("local[2]", {"spark.driver.memory": "4g"}, "benchmark")
        sides = Sides(spark, Path(name))
        messages = "journal → committed `messages`", "Spark `from_json`, JSON lines → Parquet", from_json
        tables = "journal → all seven tables", "Spark `from_json`, same joins and aggregates", from_json_all
        try:
            return [
                sides.compare(SMALL, *messages, goal=6, rounds=3, only_messages=True),
                sides.compare(LARGE, *messages, goal=6, rounds=3, only_messages=True),
                sides.compare(SMALL, *tables, goal=3, rounds=2, only_messages=False),
                sides.compare(LARGE, *tables, goal=3, rounds=2, only_messages=False),
                sides.compare_shapes(MANY, FEW, goal=0.5, rounds=3),
            ]
        finally:
            spark.stop()
