"""The folder the pipeline writes: its tables, Spark's checkpoint, and the rules that keep both together.

warehouse.json   what this folder is and the version of its layout
lock             held by the one pipeline that writes
checkpoint/      Spark's record of what was read
messages/ ...    the tables, and `_state`, whose commit ends a batch

With the table format `parquet` the tables are in `_tables`, and `messages/ ...` are plain folders (`parquet_folders`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from wireloom.journal.disk import replace_file
from wireloom.model import ConfigError, local_path
from wireloom.pipeline import parquet_folders, tables
from wireloom.pipeline.schemas import STATE, TABLES, Table
from wireloom.pipeline.tables import WrittenFile

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

VERSION = 2
"""Format 1 had acknowledged publishes as requests; `upgrade.py` makes one of today of it."""
DELTA, PARQUET = "delta", "parquet"
FORMATS = (DELTA, PARQUET)
"""How tables may be stored."""
_DESCRIPTION = "warehouse.json"
_LOCK = "lock"
_FACTS = "_facts"
_ASIDE = "_tables"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse on disk."""

    root: Path
    table_format: str = DELTA
    version: int = VERSION

    @property
    def store(self) -> Path:
        """The folder that the tables are in, and what belongs to no table."""
        return self.root / _ASIDE if self.table_format == PARQUET else self.root

    def folder(self, table: Table) -> Path:
        """Where a table is: its files and its log."""
        return self.store / table.name

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps what it has read."""
        return self.root / "checkpoint"

    @classmethod
    def existing(cls, root: Path | str, *, old: bool = False) -> Warehouse:
        """A warehouse to read from; an error where there is none of this version. `old`: earlier ones will do."""
        path = local_path(root, "a warehouse")
        try:
            text = (path / _DESCRIPTION).read_text()
        except OSError:
            raise ConfigError(
                f"{root} is no warehouse: make one with `wireloom pipeline run --input DIR --warehouse {root} --once`"
            ) from None
        try:
            described = json.loads(text)
            found, stored = described["format"], described.get("tables", DELTA)
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path / _DESCRIPTION} is damaged: restore it or choose another warehouse") from None
        if found == 1 and not old:
            raise ConfigError(
                f"warehouse {root} was made by an earlier Wireloom, in which acknowledged publishes were requests: "
                f"upgrade it with `wireloom pipeline upgrade --warehouse {root}`"
            )
        if found not in (1, VERSION):
            raise ConfigError(
                f"warehouse {root} has format {found}, this Wireloom reads and writes format {VERSION}: "
                "use the Wireloom that made it, or another warehouse"
            )
        if stored not in FORMATS:
            raise ConfigError(f"warehouse {root} has tables of the format {stored!r}; known: {', '.join(FORMATS)}")
        return cls(path.resolve(), stored, found)

    @classmethod
    def prepared(cls, root: Path | str, table_format: str | None = None) -> Warehouse:
        """A warehouse to write to, made if the folder is new or empty.

        `table_format` is `delta` or `parquet`; by default what the warehouse has, `delta` for a new one.
        """
        path = local_path(root, "a warehouse")
        if table_format not in (None, *FORMATS):
            raise ConfigError(f"the table format {table_format!r} is unknown; it must be {' or '.join(FORMATS)}")
        if unquote(name := str(path.absolute())) != name:
            # The `deltalake` package reads such a name as what it stands for in addresses.
            raise ConfigError(f"cannot make a warehouse in {name}: choose a folder without % and digits in its name")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / _DESCRIPTION).exists():
                strangers = sorted(entry.name for entry in path.iterdir() if entry.name != _LOCK)
                if strangers:
                    raise ConfigError(
                        f"{root} is no warehouse and not empty (it holds {strangers[0]}): choose an empty folder"
                    )
                cls(path, table_format or DELTA).describe()
        except OSError as error:
            raise ConfigError(f"cannot make a warehouse in {root}: {error.strerror}; choose another folder") from None
        found = cls.existing(path)
        if table_format not in (None, found.table_format):
            raise ConfigError(
                f"warehouse {root} has tables of the format {found.table_format!r}, which stays: "
                f"leave the format out, or choose another warehouse for {table_format!r}"
            )
        if found.table_format == PARQUET:
            parquet_folders.check_links(found.root, found.root / _DESCRIPTION)
        found.create_tables()
        return found

    def create_tables(self) -> None:
        """Make the tables that are not there, and the columns that tables of an older version lack."""
        for table in (*TABLES.values(), STATE):
            tables.create(self.folder(table), table)

    def describe(self) -> None:
        """Say in the folder what it is, and that its tables are those of this version."""
        write_json(self.root / _DESCRIPTION, {"format": VERSION, "tables": self.table_format})

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """The newest version of a table as a DataFrame.

        Warehouse.existing("data/warehouse").read(spark, "messages").groupBy("topic").count().show()
        """
        if name not in TABLES:
            raise ConfigError(f"there is no table {name!r}; the tables are {', '.join(TABLES)}")
        folder, table = self.folder(TABLES[name]), TABLES[name]
        return tables.read_spark(spark, folder, table, tables.files(tables.open_table(folder), table))

    def commit(
        self,
        handle: DeltaTable,
        table: Table,
        query: str,
        batch: int,
        added: Sequence[WrittenFile],
        removed: Sequence[WrittenFile] = (),
    ) -> None:
        """Commit files of a batch to a table, see `tables.commit`."""
        tables.commit(handle, table, query, batch, added, removed)
        self._show(table, added, removed)

    def replace(
        self,
        handle: DeltaTable,
        table: Table,
        added: Sequence[WrittenFile],
        removed: Sequence[WrittenFile],
        *,
        changes: bool = False,
    ) -> None:
        """Put files in the place of others that hold the same rows, or, if it `changes`, those rows told anew."""
        tables.replace(handle, table, added, removed, changes=changes)
        self._show(table, added, removed)

    def _show(self, table: Table, added: Sequence[WrittenFile], removed: Sequence[WrittenFile]) -> None:
        if self.table_format == PARQUET and table != STATE:
            names = [file.path for file in added], [file.path for file in removed]
            parquet_folders.change(self.folder(table), self.root / table.name, *names)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the warehouse; a second pipeline is told who has it. A killed process lets go by itself."""
        with (self.root / _LOCK).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise ConfigError(
                    f"warehouse {self.root} is in use by process {holder}: one pipeline writes a warehouse at a "
                    "time; stop that one or choose another warehouse"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    @property
    def writer(self) -> int | None:
        """The process that writes here now. Only looks: trying the lock could keep a pipeline from starting."""
        try:
            process = int((self.root / _LOCK).read_text())
            os.kill(process, 0)
        except (OSError, ValueError):
            return None
        return process

    def tidy(self) -> None:
        """Delete the files that replaced rows and broken runs left behind. Not while a batch is under way."""
        for table in (*TABLES.values(), STATE):
            tables.tidy(self.folder(table))
        shutil.rmtree(self.store / _FACTS, ignore_errors=True)
        self.match_folders()

    def match_folders(self) -> None:
        """Make plain folders show what the tables hold, whatever a kill left there. Only for whoever holds the lock."""
        if self.table_format == PARQUET:
            for table in TABLES.values():
                files = tables.files(tables.open_table(self.folder(table)), table)
                parquet_folders.match(self.folder(table), self.root / table.name, [file.path for file in files])

    def query_id(self) -> str | None:
        """The id of the streaming query, from Spark's checkpoint; None before the first run."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
        except FileNotFoundError:
            return None

    def offsets(self, batch: int) -> dict[str, dict[str, str | int]]:
        """The position at the end of a batch, from Spark's checkpoint."""
        lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return dict(json.loads(lines[2])) if len(lines) > 2 else {}

    def check_checkpoint(self) -> None:
        """Refuse to go on where the checkpoint is lost or not that of the tables.

        Without it everything would be read again under numbers the tables have seen, and left out.
        """
        query = self.query_id()
        planned = -1
        if query is not None and (self.checkpoint / "offsets").is_dir():
            names = [entry.name for entry in (self.checkpoint / "offsets").iterdir()]
            planned = max((int(name) for name in names if name.isdigit()), default=-1)
        for table in (*TABLES.values(), STATE):
            handle = tables.open_table(self.folder(table))
            known = None if query is None else handle.transaction_version(query)
            if (known is None and handle.version() > 0) or (known is not None and known > planned):
                raise ConfigError(
                    f"the checkpoint of warehouse {self.root} is lost or of another run ({self.checkpoint}), so "
                    "what its tables hold is unknown: restore it from a backup, or begin a new warehouse"
                )


def write_json(path: Path, value: object) -> None:
    """Replace a small file in one step, for good."""
    replace_file(path, (json.dumps(value, sort_keys=True) + "\n").encode())
