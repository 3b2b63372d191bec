"""`df.write.format("wireloom")` and `df.writeStream.format("wireloom")`: rows go back to the wire.

Each task has a connection of its own and keeps the order of its partition. A task that fails is tried again by
Spark and sends its partition again: every row arrives at least once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from wireloom.model import ConfigError
from wireloom.pipeline.send import COLUMNS, SendCounts, check_columns, send_batches
from wireloom.pipeline.send_options import SendOptions
from wireloom.transports.loop import run

SPARKS_OWN = {"checkpointlocation"}
"""Options of every streaming query; Spark hands them over with ours."""


@dataclass
class TaskSent(WriterCommitMessage):
    """What one task sent."""

    sent: SendCounts


def checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SendOptions:
    """The options, if rows of this schema can be sent with them."""
    if overwrite:
        raise ConfigError("what was sent cannot be overwritten; write with mode('append')")
    chosen = SendOptions.parse({name: value for name, value in options.items() if name.lower() not in SPARKS_OWN})
    needed = StructType([column for column in schema if column.name in COLUMNS])
    check_columns(to_arrow_schema(needed, timezone="UTC"), chosen)
    return chosen


class Sink(DataSourceArrowWriter):
    """Sends a DataFrame."""

    def __init__(self, options: SendOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one partition."""
        return TaskSent(run(send_batches(iterator, self.options)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what all tasks sent together, in the driver's log."""
        report(self.options, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Sends every micro-batch of a stream."""

    def __init__(self, options: SendOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one partition of a micro-batch."""
        return TaskSent(run(send_batches(iterator, self.options)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what was sent."""
        report(self.options, messages)


def report(options: SendOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """One line about what was sent."""
    parts = [message.sent for message in messages if isinstance(message, TaskSent)]
    print(f"wireloom: to {options.url}: {reduce(SendCounts.__add__, parts, SendCounts())}", file=sys.stderr, flush=True)
