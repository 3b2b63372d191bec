"""Questions to a warehouse without Spark: DuckDB on the newest committed version of each table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.schemas import TABLES
from wireloom.pipeline.warehouse import Warehouse


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

    found = Warehouse.existing(warehouse)
    with duckdb.connect(":memory:") as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in TABLES.items():
            if name in query.lower():
                tables.attach_duckdb(connection, found.folder(table), table)
        try:
            result = connection.execute(query)
            if not isinstance(result, duckdb.DuckDBPyConnection):
                raise ConfigError("the query is empty; ask something such as: select count(*) from messages")
            columns = tuple(column[0] for column in result.description or ())
            return Answer(columns, result.fetchall())
        except duckdb.Error as error:
            first = str(error).strip().splitlines()[0]
            known = ", ".join(TABLES)
            raise ConfigError(f"the query does not work: {first}; the tables are {known}") from None


def describe(warehouse: Path | str) -> dict[str, tables.Summary]:
    """The tables of a warehouse by name, and how large they are."""
    found = Warehouse.existing(warehouse)
    return {name: tables.summary(found.folder(table), table) for name, table in TABLES.items()}
