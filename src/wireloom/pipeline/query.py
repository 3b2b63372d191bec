"""Questions to a warehouse without Spark: DuckDB on the newest committed version of each table."""

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
            first = str(error).strip().splitlines()[0]
            known = ", ".join(TABLES)
            raise ConfigError(f"the query does not work: {first}; the tables are {known}") from None


def describe(warehouse: Path | str) -> dict[str, tables.Summary]:
    """The tables of a warehouse by name, and how large they are."""
    found = Warehouse.existing(warehouse)
    return {name: tables.summary(found.folder(table), table) for name, table in TABLES.items()}
