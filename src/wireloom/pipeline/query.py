"""Questions to a warehouse: DuckDB, or Spark for big ones, on the newest committed version of each table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.schemas import TABLES
from wireloom.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query found."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def ask(warehouse: Path | str, query: str) -> Answer:
    """Run a query on the tables of a warehouse; only those it names are opened.

    Times are in UTC. The tables cannot be changed this way.
    """
    import duckdb

    with _opened(warehouse, query) as connection:
        result = connection.execute(query)
        if not isinstance(result, duckdb.DuckDBPyConnection):
            raise ConfigError("the query is empty; ask something such as: select count(*) from messages")
        columns = tuple(column[0] for column in result.description or ())
        return Answer(columns, result.fetchall())


def ask_spark(warehouse: Path | str, query: str, spark: SparkSession) -> Answer:
    """The same as `ask`, in the SQL of Spark and with as many machines as it has."""
    import pyarrow as pa
    from pyspark.errors import PySparkException

    found = Warehouse.existing(warehouse)
    for name in TABLES:
        if name in query.lower():
            found.read(spark, name).createOrReplaceTempView(name)
    try:
        answer = spark.sql(query).toArrow()
    except PySparkException as error:
        raise _wrong(str(error)) from None
    columns = [
        [None if each is None else dict(each) for each in column.to_pylist()]
        if pa.types.is_map(column.type)
        else column.to_pylist()
        for column in answer.columns
    ]
    return Answer(tuple(answer.column_names), list(zip(*columns, strict=True)))


def _wrong(said: str) -> ConfigError:
    first = said.strip().splitlines()[0]
    return ConfigError(f"the query does not work: {first}; the tables are {', '.join(TABLES)}")


def ask_batches(warehouse: Path | str, query: str, rows: int = 4096) -> Iterator[pa.RecordBatch]:
    """The rows that a `select` finds as Arrow batches of so many rows, read as they are asked for."""
    with _opened(warehouse, query) as connection:
        reader: pa.RecordBatchReader = connection.sql(query).to_arrow_reader(rows)
        yield from reader


@contextmanager
def _opened(warehouse: Path | str, query: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the tables that the query names; what it says about the query is one line."""
    import duckdb

    found = Warehouse.existing(warehouse)
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in TABLES.items():
            if name in query.lower():
                tables.attach_duckdb(connection, found.folder(table), table)
        try:
            yield connection
        except duckdb.Error as error:
            raise _wrong(str(error)) from None


def describe(warehouse: Path | str) -> dict[str, tables.TableSummary]:
    """The tables of a warehouse by name, and how large they are."""
    found = Warehouse.existing(warehouse)
    return {name: tables.summary(found.folder(table), table) for name, table in TABLES.items()}
