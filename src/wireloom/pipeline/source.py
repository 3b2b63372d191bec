"""The Spark data source `wireloom`: journals as DataFrames, in batch and as a stream.

    spark.read.format("wireloom").load("data/journal")
    spark.readStream.format("wireloom").option("table", "rejects").load("data/journal")

Planning lists files and nothing more; the workers map them, decode and hand over Arrow batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from wireloom.model import ConfigError
from wireloom.pipeline import planning
from wireloom.pipeline.planning import Offsets, Range
from wireloom.pipeline.schemas import MESSAGES, REJECTS, Table, spark_schema

FORMAT = "wireloom"
BATCH_ROWS = 65536

DEFAULTS = {"table": "messages", "partitionBytes": "16m", "maxBytesPerTrigger": "512m"}
"""Every option beside the path, with what it is when it is not given."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the source, checked."""

    inputs: tuple[str, ...]
    table: Table
    partition_bytes: int
    max_bytes: int

    @classmethod
    def parse(cls, given: Mapping[str, str], more: Mapping[str, str] | None = None) -> Options:
        """Options by name, in any case; an unknown or a wrong one is an error that names the right ones."""
        known = {name.lower(): name for name in (*DEFAULTS, *(more or {}))}
        values = dict(DEFAULTS)
        inputs: list[str] = []
        for name, value in given.items():
            if name.lower() == "path":
                inputs.append(value)
            elif name.lower() == "paths":
                inputs += json.loads(value)
            elif name.lower() in known:
                values[known[name.lower()]] = value
            else:
                listed = ", ".join(sorted(known.values()))
                raise ConfigError(f"unknown option {name!r} of the format wireloom; known: {listed}")
        tables = {table.name: table for table in (MESSAGES, REJECTS)}
        if values["table"] not in tables:
            raise ConfigError(f"option 'table' is {values['table']!r}; it must be {' or '.join(tables)}")
        return cls(
            tuple(planning.check_inputs(inputs)),
            tables[values["table"]],
            parse_size("partitionBytes", values["partitionBytes"]),
            parse_size("maxBytesPerTrigger", values["maxBytesPerTrigger"]),
        )


def parse_size(name: str, text: str) -> int:
    """A number of bytes such as `16m`.

    >>> parse_size("partitionBytes", "16m")
    16777216
    """
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    size = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else 0
    if size < 1:
        raise ConfigError(f"option {name!r} is {text!r}; it must be a number of bytes such as 16m")
    return size


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
        return read_table(self.options.table, partition)


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
        return read_table(self.options.table, partition)


def partitions(
    options: Options, start: Offsets, end: Offsets, *, refused: bool | None = None
) -> list[InputPartition]:
    """The bytes between two positions as partitions; `messages` has no use for refused ones."""
    ranges = planning.plan(options.inputs, start, end)
    if not (options.table == REJECTS if refused is None else refused):
        ranges = [part for part in ranges if not part.refused]
    return [Ranges(group) for group in planning.pack(ranges, options.partition_bytes)]


def ranges_of(partition: InputPartition) -> tuple[Range, ...]:
    """The ranges of a partition; Spark makes an empty one where there is nothing to read."""
    return cast(Ranges, partition).ranges if isinstance(partition, Ranges) else ()


def read_table(table: Table, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition as record batches with exactly the table's types."""
    from wireloom.pipeline.decode import decode_range, plain

    for part in ranges_of(partition):
        decoded = decode_range(part)
        rows = decoded.messages if table == MESSAGES else decoded.rejects
        yield from plain(rows, table).to_batches(max_chunksize=BATCH_ROWS)
