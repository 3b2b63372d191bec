"""The Spark data source `wireloom`: journals as DataFrames, in batch and as a stream.

    spark.read.format("wireloom").load("data/journal")
    spark.readStream.format("wireloom").option("table", "rejects").load("data/journal")

Planning lists files and nothing more; the workers map them, decode and hand over Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from wireloom.pipeline import planning
from wireloom.pipeline.options import Options
from wireloom.pipeline.planning import Offsets, Range
from wireloom.pipeline.schemas import MESSAGES, REJECTS, spark_schema

FORMAT = "wireloom"
BATCH_ROWS = 65536


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        self.ranges = ranges


class WireloomSource(DataSource):
    """The data source `wireloom`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.chosen = Options.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the table that was asked for."""
        return spark_schema(self.chosen.table.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of everything that is committed now."""
        return JournalReader(self.chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader of everything as it is committed."""
        return JournalStreamReader(self.chosen)


class JournalReader(DataSourceReader):
    """Reads everything there is at planning time."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for about `partitionBytes`."""
        inputs = self.options.inputs
        return partitions(self.options, {}, planning.latest(inputs))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_table(self.options, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new since the last batch, at most `maxBytesPerTrigger` a batch."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.target: Offsets | None = None

    def initialOffset(self) -> dict:  # type: ignore[type-arg]  # noqa: N802
        """Before everything."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxBytesPerTrigger`."""
        return ReadMaxBytes(self.options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run."""
        self.target = planning.latest(self.options.inputs)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]  # noqa: N802
        """How far the next batch goes."""
        inputs = self.options.inputs
        target = planning.latest(inputs) if self.target is None else self.target
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return planning.advance(inputs, start, target, most)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """The new bytes, cut for tasks."""
        return partitions(self.options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_table(self.options, partition)


def partitions(options: Options, start: Offsets, end: Offsets, *, refused: bool | None = None) -> list[InputPartition]:
    """The bytes between two positions as partitions; `messages` has no use for refused ones."""
    ranges = planning.plan(options.inputs, start, end)
    if not (options.table == REJECTS if refused is None else refused):
        ranges = [part for part in ranges if not part.refused]
    return [Ranges(group) for group in planning.pack(ranges, options.partition_bytes)]


def ranges_of(partition: InputPartition) -> tuple[Range, ...]:
    """The ranges of a partition; Spark makes an empty one where there is nothing to read."""
    return partition.ranges if isinstance(partition, Ranges) else ()


def read_table(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition as record batches with exactly the table's types."""
    from wireloom.pipeline.decode import decode_range, plain

    for part in ranges_of(partition):
        decoded = decode_range(part, options.trust)
        rows = decoded.messages if options.table == MESSAGES else decoded.rejects
        yield from plain(rows, options.table).to_batches(max_chunksize=BATCH_ROWS)
