"""The Spark data source `wireloom`: journals and captures as DataFrames, in batch and as a stream.

    spark.read.format("wireloom").load("data/journal")
    spark.read.format("wireloom").option("ports", "hsp=7000").load("captures/*.pcapng")
    spark.readStream.format("wireloom").option("table", "rejects").load("data/journal")
    messages.write.format("wireloom").option("url", "hsp://127.0.0.1:5042").mode("append").save()

Planning lists files and nothing more; the workers map them, decode and hand over Arrow batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from wireloom.model import ConfigError, WireloomError
from wireloom.pipeline import planning
from wireloom.pipeline.captures import planning as captures
from wireloom.pipeline.captures.counts import Counts
from wireloom.pipeline.captures.planning import StateFolder
from wireloom.pipeline.filters import Wanted
from wireloom.pipeline.options import CaptureOptions, SourceOptions
from wireloom.pipeline.planning import Offsets, Range
from wireloom.pipeline.schemas import MESSAGES, REJECTS, spark_schema

if TYPE_CHECKING:
    from wireloom.pipeline.decode import DecodedRange

FORMAT = "wireloom"
BATCH_ROWS = 65536
PIECE_BYTES = 16 << 20
"""A task decodes so many bytes at a time: its memory depends on this, not on `partitionBytes`."""


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        self.ranges = ranges


class FlowGroup(InputPartition):
    """What one task reads of captures: all of them, and it keeps the flows of its group.

    Without a file to leave the rest in, connections that are not over end with the input.
    """

    def __init__(
        self,
        files: tuple[tuple[str, int, int], ...],
        group: int,
        groups: int,
        known: str | None = None,
        rest: str | None = None,
    ) -> None:
        self.files = files
        self.group, self.groups = group, groups
        self.known, self.rest = known, rest
        self.counts = Counts()
        """What was seen so far, for whoever reads it."""

    def decode(self, options: CaptureOptions, trust: str, keys: str) -> Iterator[tuple[Range, DecodedRange]]:
        """The rows, in pieces."""
        from wireloom.pipeline.captures.planning import load_state, save_state
        from wireloom.pipeline.captures.reader import CaptureReader, read_captures

        reader = CaptureReader(
            options.choice, idle_s=options.idle_s, group=self.group, groups=self.groups, trust=trust,
            keys=keys, topics=options.topics,
        )  # fmt: skip
        self.counts = reader.counts
        if self.known is not None:
            reader.thaw(load_state(self.known))
        whole = Range(self.files[0][0], 0, sum(size - known for _, known, size in self.files))
        for rows in read_captures(self.files, reader, damages=self.group == 0):
            yield whole, rows
        if self.rest is not None:
            save_state(self.rest, reader.freeze())
        else:
            yield whole, reader.finish()


_HIDE = "SPARK_HIDE_TRACEBACK"
"""The environment variable that has Spark show an error without where it was raised."""
T = TypeVar("T")


def _in_one_line(work: Callable[[], T]) -> T:
    """Do something that may find the user's mistake: that is told in one line, without a traceback of ours.

    Spark plans in processes of its own, and shows the traceback of an error there unless it is told not to.
    """
    os.environ.pop(_HIDE, None)
    try:
        return work()
    except WireloomError:
        os.environ[_HIDE] = "1"
        raise


class WireloomSource(DataSource):
    """The data source `wireloom`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @cached_property
    def chosen(self) -> SourceOptions:
        """The options for reading; those for writing are others."""
        return SourceOptions.parse(self.options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the table that was asked for."""
        return spark_schema(_in_one_line(lambda: self.chosen).table.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of everything that is committed now."""
        return JournalReader(_in_one_line(lambda: self.chosen))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader of everything as it is committed."""
        return JournalStreamReader(_in_one_line(lambda: self.chosen))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Sends rows to a live peer."""
        from wireloom.pipeline.sink import Sink, checked

        return Sink(_in_one_line(lambda: checked(self.options, schema, overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Sends the rows of a stream to a live peer."""
        from wireloom.pipeline.sink import StreamSink, checked

        return StreamSink(_in_one_line(lambda: checked(self.options, schema, overwrite)))


class FilteringSource(WireloomSource):
    """The same source, to which Spark hands filters: only for sessions in which that is enabled, see `register`.

    In others Spark refuses every query of a source that takes filters.
    """

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader that takes filters."""
        return FilteringReader(_in_one_line(lambda: self.chosen))


class JournalReader(DataSourceReader):
    """Reads everything there is at planning time."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.wanted: Wanted | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """One partition for about `partitionBytes` of journals, and one a group of flows in captures."""
        return partitions(self.options, {}, planning.latest(self.options.inputs), stream=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_table(self.options, partition, self.wanted)


class FilteringReader(JournalReader):
    """Decodes only blocks that can match the filters of a query, and hands over only rows that do."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of the filters; Spark applies all of them again."""
        self.wanted = Wanted.of(filters)
        return filters


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new since the last batch, at most `maxBytesPerTrigger` a batch."""

    def __init__(self, options: SourceOptions) -> None:
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
        inputs, start = self.options.inputs, planning.renamed(start)
        target = self.target
        if target is None:
            target = captures.settled(start, planning.latest(inputs), self.options.lateness_s)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return planning.advance(inputs, start, target, most)

    def commit(self, end: dict) -> None:  # type: ignore[type-arg]
        """A batch is done: what earlier ones kept of captures is of no use any more."""
        if captures.of_captures(end) and self.options.captures.state:
            StateFolder(self.options.captures.state).tidy(end)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """The new bytes, cut for tasks."""
        return partitions(self.options, planning.renamed(start), planning.renamed(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_table(self.options, partition)


def partitions(
    options: SourceOptions,
    start: Offsets,
    end: Offsets,
    *,
    refused: bool | None = None,
    stream: bool = True,
    cores: int | None = None,
) -> list[InputPartition]:
    """What is between two positions as partitions; `messages` has no use for refused bytes.

    `cores` is how many tasks run at a time; by default as many as this machine has cores.
    """
    ranges = planning.plan(options.inputs, start, end)
    if not (options.table == REJECTS if refused is None else refused):
        ranges = [part for part in ranges if not part.refused]
    groups = planning.pack(ranges, options.partition_bytes, cores or os.cpu_count() or 1)
    found: list[InputPartition] = [Ranges(group) for group in groups]
    return found + flow_groups(options, start, end, stream)


def flow_groups(options: SourceOptions, start: Offsets, end: Offsets, stream: bool) -> list[InputPartition]:
    """New captures, shared out by flow."""
    files = tuple(captures.new_captures(start, end))
    if not files:
        return []
    own = options.captures
    if not stream:
        groups = captures.choose_groups(own.groups, sum(size for _, _, size in files))
        return [FlowGroup(files, group, groups) for group in range(groups)]
    if not own.state:
        raise ConfigError("reading captures as a stream needs the option 'stateDir': a folder for what is unfinished")
    state = StateFolder(own.state)
    groups = state.groups(own.groups)
    ends = [(state.file(start, group), state.file(end, group)) for group in range(groups)]
    return [FlowGroup(files, group, groups, known, rest) for group, (known, rest) in enumerate(ends)]


def decoded_parts(
    options: SourceOptions, partition: InputPartition, wanted: Wanted | None = None
) -> Iterator[tuple[Range, DecodedRange]]:
    """The rows of a partition, a part at a time; Spark makes an empty partition where there is nothing to read."""
    from wireloom.pipeline.decode import decode_range

    if isinstance(partition, FlowGroup):
        yield from partition.decode(options.captures, options.trust, options.keys)
    elif isinstance(partition, Ranges):
        for part in partition.ranges:
            for piece in part.pieces(PIECE_BYTES):
                yield piece, decode_range(piece, options.trust, options.keys, wanted=wanted)


def input_of(partition: InputPartition) -> tuple[int, int]:
    """How many files a partition begins, and how many bytes of input it stands for."""
    if isinstance(partition, FlowGroup) and partition.group == 0:
        return len(partition.files), sum(size - known for _, known, size in partition.files)
    if isinstance(partition, Ranges):
        return sum(part.start == 0 for part in partition.ranges), sum(part.size for part in partition.ranges)
    return 0, 0


def read_table(
    options: SourceOptions, partition: InputPartition, wanted: Wanted | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition that can be wanted, as record batches with exactly the table's types."""
    from wireloom.pipeline.message_table import plain

    for _, decoded in decoded_parts(options, partition, wanted):
        rows = decoded.messages if options.table == MESSAGES else decoded.rejects
        rows = rows if wanted is None else wanted.of_rows(rows)
        yield from plain(rows, options.table).to_batches(max_chunksize=BATCH_ROWS)
