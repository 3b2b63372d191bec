"""From a journal to committed `messages`, against Spark's own `from_json` on the same messages as JSON lines.

Both sides run in one Spark session on two cores and end with zstd-compressed Parquet. Ours also writes `rejects` and
`traffic` and commits all of it to Delta tables; the peer only writes files.
"""

from __future__ import annotations

import json
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
    from pyspark.sql import SparkSession

MESSAGES, RUN = 2_000_000, 3_000
TOPICS = {7: "sensors/kitchen", 8: "sensors/cellar", 9: "doors/front", 10: "doors/back"}


def write_inputs(folder: Path) -> tuple[Path, Path]:
    """The same messages as a journal and as JSON lines in eight files."""
    journal_folder, lines_folder = folder / "journal", folder / "lines"
    lines_folder.mkdir()
    start = time.time_ns()
    files = [(lines_folder / f"part-{n}.json").open("w") for n in range(8)]
    with Journal.open(journal_folder, sync=False) as journal:
        connections = [journal.new_connection_id() for _ in range(16)]
        sent = [0] * len(connections)
        for run, first in enumerate(range(0, MESSAGES, RUN)):
            which = run % len(connections)
            frames, moment = [], start + first * 1000
            for number in range(first, min(first + RUN, MESSAGES)):
                type_ = 7 + number % 4
                body = b"%064d" % number
                frames.append(struct.pack(">BIHI", 1, number, type_, 64) + body)
                row = {
                    "time": iso_time(moment)[:26] + "Z", "protocol": "hsp", "connection": f"{connections[which]:016x}",
                    "direction": "c2s", "sequence": sent[which] + len(frames) - 1, "kind": "request",
                    "topic": TOPICS[type_], "message_id": str(number), "body": body.decode(),
                    "attributes": {"type": str(type_)},
                }  # fmt: skip
                files[run % 8].write(json.dumps(row) + "\n")
            journal.append(
                "hsp", connections[which], Direction.C2S, sent[which], b"".join(frames),
                source="127.0.0.1:40000", destination="127.0.0.1:5042", topics=TOPICS, time_ns=moment,
            )  # fmt: skip
            sent[which] += len(frames)
            if run % 100 == 0:
                journal.commit()
    for file in files:
        file.close()
    return journal_folder, lines_folder


def from_json(spark: SparkSession, lines: Path, out: Path) -> None:
    """What a user would write."""
    from pyspark.sql import functions as f

    schema = (
        "time timestamp, protocol string, connection string, direction string, sequence bigint, kind string, "
        "topic string, message_id string, body string, attributes map<string,string>"
    )
    rows = spark.read.text(str(lines)).select(f.from_json("value", schema).alias("row")).select("row.*")
    table = rows.withColumn("date", f.to_date("time")).withColumn("body", f.col("body").cast("binary"))
    table.write.option("compression", "zstd").partitionBy("date").parquet(str(out))


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal, lines = write_inputs(folder)
        spark = start_session("local[2]", {"spark.driver.memory": "4g"}, "benchmark")

        def timed(work: Callable[[], object], out: Path) -> float:
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            work()
            return MESSAGES / (time.perf_counter() - began)

        ours, theirs = folder / "warehouse", folder / "parquet"
        try:
            result = compare(
                "journal → committed `messages` (and `rejects`, `traffic`), batch",
                "Spark `from_json`, JSON lines → Parquet",
                lambda: timed(lambda: Pipeline([journal], ours, spark=spark).run(once=True), ours),
                lambda: timed(lambda: from_json(spark, lines, theirs), theirs),
                goal=3,
                rounds=3,
            )
        finally:
            spark.stop()
    return [result]
