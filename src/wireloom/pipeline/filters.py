"""What a query asks of `spark.read.format("wireloom")`, so that blocks that cannot match are not decoded.

Spark hands over simple comparisons of one column with constants, joined by AND. A block names its time, connection and
protocol, so a comparison of these is settled before decoding. Kind and topic are known after it: then rows that do
not match are dropped before they cross to Spark. Spark applies every filter again, so a filter that is not understood
here costs time and nothing else.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from wireloom.journal.index import BlockIndex

DAY_US = 86_400_000_000
WORDS = ("protocol", "connection", "kind", "topic")
"""The columns of text that are looked at."""
_LAST = np.iinfo(np.int64).max
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows can matter: times from `first_us` to `last_us`, and for some columns the only words.

    >>> Wanted(words={"kind": frozenset({"event"})}).of_rows(pa.table({"kind": ["event", "error", None]})).num_rows
    1
    """

    first_us: int = -_LAST
    last_us: int = _LAST
    words: dict[str, frozenset[str]] = field(default_factory=dict)
    prefixes: tuple[tuple[str, str], ...] = ()
    """Columns and how their words must begin."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Wanted:
        """What filters ask for, as far as it is understood."""
        from pyspark.sql import datasource as spark

        first, last = -_LAST, _LAST
        words: dict[str, frozenset[str]] = {}
        prefixes: list[tuple[str, str]] = []
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            column = path[0] if len(path) == 1 else ""
            match each:
                case spark.EqualTo() | spark.EqualNullSafe():
                    values: Sequence[object] = [each.value]
                case spark.In():
                    values = list(each.value)
                case spark.StringStartsWith() if column in WORDS:
                    prefixes.append((column, each.value))
                    continue
                case spark.GreaterThan() | spark.GreaterThanOrEqual():
                    first = max(first, _moments(column, each.value)[0])
                    continue
                case spark.LessThan() | spark.LessThanOrEqual():
                    last = min(last, _moments(column, each.value)[1])
                    continue
                case _:
                    continue
            if column in WORDS and all(isinstance(value, str) for value in values):
                own = frozenset(str(value) for value in values)
                words[column] = words.get(column, own) & own
            elif values:
                spans = [_moments(column, value) for value in values]
                first, last = max(first, min(a for a, _ in spans)), min(last, max(b for _, b in spans))
        return cls(first, last, words, tuple(prefixes))

    @property
    def is_everything(self) -> bool:
        """Whether nothing is ruled out."""
        return self.first_us == -_LAST and self.last_us == _LAST and not self.words and not self.prefixes

    def of_runs(self, index: BlockIndex, run: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which blocks belong to runs that can matter; `run` numbers them. The first block of a run speaks for it."""
        time_us = index.time_ns // 1000
        keep = (time_us >= self.first_us) & (time_us <= self.last_us)
        if "protocol" in self.words:
            chosen = [code for code, name in enumerate(index.protocols) if name in self.words["protocol"]]
            keep &= np.isin(index.protocol, chosen)
        if "connection" in self.words:
            numbers = [int(name, 16) for name in self.words["connection"] if _is_connection(name)]
            keep &= np.isin(index.connection, np.array(numbers, np.uint64))
        heads = np.flatnonzero(np.diff(run, prepend=-1))
        return keep[heads][np.cumsum(np.diff(run, prepend=-1) != 0) - 1] if len(run) else keep

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """The rows that can matter."""
        keep: list[pa.ChunkedArray] = []
        if "time" in rows.column_names and (self.first_us > -_LAST or self.last_us < _LAST):
            time_us = rows["time"].cast(pa.int64())
            keep += [pc.greater_equal(time_us, self.first_us), pc.less_equal(time_us, self.last_us)]
        for column, words in self.words.items():
            if column in rows.column_names:
                keep.append(pc.is_in(rows[column].cast(pa.string()), pa.array(sorted(words), pa.string())))
        for column, prefix in self.prefixes:
            if column in rows.column_names:
                keep.append(pc.starts_with(rows[column].cast(pa.string()), prefix))
        return rows.filter(reduce(pc.and_, keep)) if keep else rows


def _is_connection(name: str) -> bool:
    return len(name) == 16 and set(name) <= set("0123456789abcdef")


def _moments(column: str, value: object) -> tuple[int, int]:
    """The first and the last microsecond that a constant stands for, of a column with times; of others, all."""
    if column == "time" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        micros = (value - _EPOCH) // datetime.timedelta(microseconds=1)
        return micros, micros
    if column == "date" and isinstance(value, datetime.date):
        day = (value - _EPOCH.date()).days
        return day * DAY_US, (day + 1) * DAY_US - 1
    return -_LAST, _LAST
