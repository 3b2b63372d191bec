"""A run over what is there, without a streaming query: the driver plans the batches itself.

A streaming query starts a Python process for every step of its planning, and each of them takes a second to import
what it needs. All there is to plan is a listing of files. What was read is recorded as a streaming query would record
it, so that one can go on where such a run was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wireloom.pipeline.checkpoint import Checkpoint
from wireloom.pipeline.schemas import spark_schema
from wireloom.pipeline.spark_session import parallelism

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition

    from wireloom.pipeline.decode_job import DecodingReader


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that the driver planned: its number and what its tasks report, see `decode_job.py`."""

    number: int
    found: DataFrame


def can_plan(spark: SparkSession) -> bool:
    """Whether this process may plan for a session: through Spark Connect, nothing of this process is there."""
    from pyspark.sql import SparkSession

    return isinstance(spark, SparkSession)


def batches(spark: SparkSession, reader: DecodingReader, checkpoint: Checkpoint) -> Iterator[PlannedBatch]:
    """The batches up to what is there now; each is done when the next one is asked for.

    One that was begun and not done is the first: with the same bytes as before.
    """
    checkpoint.prepare()
    reader.cores = parallelism(spark)
    reader.prepareForTriggerAvailableNow()
    number = checkpoint.planned
    if number == checkpoint.done:
        number += 1
    while True:
        start = checkpoint.offsets(number - 1)
        if number > checkpoint.planned:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return
            checkpoint.plan(number, end)
        end = checkpoint.offsets(number)
        yield PlannedBatch(number, read_in_tasks(spark, reader, reader.partitions(start, end)))
        checkpoint.commit(number)
        reader.commit(end)
        number += 1


def read_in_tasks(spark: SparkSession, reader: DecodingReader, partitions: Sequence[InputPartition]) -> DataFrame:
    """What a reader gives for some partitions, each read by a task of its own."""
    from wireloom.pipeline.decode_job import REPORT

    def read_partition_of_task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(partitions[number])

    count = max(len(partitions), 1)
    tasks = spark.range(0, len(partitions), 1, count)
    return tasks.mapInArrow(read_partition_of_task, spark_schema(REPORT))
