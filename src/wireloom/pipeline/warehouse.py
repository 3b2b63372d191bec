"""The warehouse: the folder or bucket that the pipeline writes to, with its tables and its plans.

warehouse.json   what this is, the version of its layout, and the id under which tables are committed
plan/N           what batch N reads, see `plans.py`
messages/ ...    the tables, and `_state`, whose commit ends a batch

It is a folder or a prefix in a bucket. With the table format `parquet`, on disk only, the tables stand in `_tables`,
and `messages/ ...` are plain folders, see `parquet_folders.py`.

Several pipelines may write one warehouse at a time: see `batch.py`. Only plain folders need a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import unquote

from wireloom.model import ConfigError
from wireloom.pipeline import parquet_folders, tables
from wireloom.pipeline.schemas import STATE, TABLES, Table
from wireloom.pipeline.tables import WrittenFile
from wireloom.store import ObjectChanged, ObjectMissing, Store, StoreError, open_store
from wireloom.store.folder import FolderStore

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
CHECKPOINT = "checkpoint"
"""Where earlier versions kept what was read, see `checkpoint.py`."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse in a folder or a bucket."""

    url: str
    table_format: str = DELTA
    version: int = VERSION
    application: str = ""
    """The id under which tables are committed; empty in one of an earlier version that was not taken over yet."""
    base: Store = field(default_factory=lambda: open_store("."), compare=False, repr=False)
    """Everything in it."""

    @property
    def root(self) -> Path:
        """The folder it is in; ConfigError for one in a bucket."""
        if not isinstance(self.base, FolderStore):
            raise ConfigError(f"warehouse {self.url} is in an object store, where this does not work: use one on disk")
        return self.base.folder

    @property
    def store(self) -> Store:
        """Where the tables are, and what belongs to no table."""
        return self.base.below(_ASIDE) if self.table_format == PARQUET else self.base

    def folder(self, table: Table) -> Store:
        """Where a table is: its files and its log."""
        return self.store.below(table.name)

    @classmethod
    def existing(cls, root: Path | str, *, old: bool = False) -> Warehouse:
        """A warehouse to read from; an error where there is none of this version. `old`: earlier ones will do."""
        base = open_store(root)
        try:
            text = base.get(_DESCRIPTION)
        except ObjectMissing:
            raise ConfigError(
                f"{root} is no warehouse: make one with `wireloom pipeline run --input DIR --warehouse {root} --once`"
            ) from None
        try:
            described = json.loads(text)
            found, stored = described["format"], described.get("tables", DELTA)
            application = str(described.get("id", ""))
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{base.url}/{_DESCRIPTION} is damaged: restore it or choose another warehouse") from None
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
        if isinstance(base, FolderStore):
            base = open_store(base.folder.resolve())
        return cls(base.url, stored, found, application, base)

    @classmethod
    def prepared(cls, root: Path | str, table_format: str | None = None) -> Warehouse:
        """A warehouse to write to, made if the place is new or empty.

        `table_format` is `delta` or `parquet`; by default what the warehouse has, `delta` for a new one.
        """
        base = open_store(root)
        if table_format not in (None, *FORMATS):
            raise ConfigError(f"the table format {table_format!r} is unknown; it must be {' or '.join(FORMATS)}")
        if table_format == PARQUET and not isinstance(base, FolderStore):
            raise ConfigError(f"{base.url}: the table format {PARQUET!r} needs a disk; leave it out")
        if unquote(base.url) != base.url:
            # The `deltalake` package reads such a name as what it stands for in addresses.
            raise ConfigError(
                f"cannot make a warehouse in {base.url}: choose a folder without % and digits in its name"
            )
        _make_new(base, root, table_format or DELTA)
        found = cls.existing(root)
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

    def describe(self, application: str | None = None) -> Warehouse:
        """Say in the warehouse that its tables are those of this version, and under which id they are committed.

        An id that it has stays: what it is then called is returned.
        """
        while True:
            etag = self.base.head(_DESCRIPTION).etag
            described = json.loads(self.base.get(_DESCRIPTION))
            chosen = described.get("id") or application or self.application
            new = {**described, "format": VERSION, "tables": self.table_format, **({"id": chosen} if chosen else {})}
            try:
                self.base.replace(_DESCRIPTION, _as_json(new), etag)
            except ObjectChanged:
                continue
            return Warehouse(self.url, self.table_format, VERSION, chosen, self.base)

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
        """Replace files with others that hold the same rows or, with `changes`, new versions of those rows."""
        tables.replace(handle, table, self.application, added, removed, changes=changes)
        self._show(table, added, removed)

    def _show(self, table: Table, added: Sequence[WrittenFile], removed: Sequence[WrittenFile]) -> None:
        if self.table_format == PARQUET and table != STATE:
            names = [file.path for file in added], [file.path for file in removed]
            parquet_folders.change(self._aside(table), self.root / table.name, *names)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Say who writes a warehouse on disk. One of plain folders, which show one writer's files, is held besides:

        A second pipeline is told who has it. A killed process lets go by itself.
        """
        if not isinstance(self.base, FolderStore):
            yield
            return
        with (self.root / _LOCK).open("a+") as file:
            if self.table_format == PARQUET:
                self._hold(file)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def _hold(self, file: TextIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ConfigError(
                f"warehouse {self.root} is in use by process {holder}: one pipeline writes plain folders at a time; "
                "stop that one or choose another warehouse"
            ) from None

    @property
    def writer(self) -> int | None:
        """The process on this machine that writes here now. It does not try the lock: that could stop a new writer."""
        try:
            process = int(self.base.get(_LOCK))
            os.kill(process, 0)
        except (OSError, ValueError, ObjectMissing):
            return None
        return process

    def tidy(self) -> None:
        """Delete files of replaced rows and of interrupted runs that are older than `tables.KEPT_HOURS`."""
        for table in (*TABLES.values(), STATE):
            tables.tidy(self.folder(table))
        oldest = datetime.now(UTC) - timedelta(hours=tables.KEPT_HOURS)
        for each in self.store.list(_FACTS):
            if each.modified < oldest:
                self.store.delete(each.key)
        self.match_folders()

    def match_folders(self) -> None:
        """Make plain folders match the tables, also after a kill. The caller must hold the lock."""
        if self.table_format == PARQUET:
            for table in TABLES.values():
                files = tables.files(tables.open_table(self.folder(table)), table)
                parquet_folders.match(self._aside(table), self.root / table.name, [file.path for file in files])

    def _aside(self, table: Table) -> Path:
        return self.root / _ASIDE / table.name


def _make_new(base: Store, root: Path | str, table_format: str) -> None:
    """Describe a place that is no warehouse yet; an error if it holds anything else."""
    try:
        base.head(_DESCRIPTION)
    except ObjectMissing:
        pass
    else:
        return
    strangers = (each.key.partition("/")[0] for each in base.list())
    stranger = next((name for name in strangers if name not in (_LOCK, _DESCRIPTION)), None)
    if stranger is not None:
        # Another pipeline may have made it meanwhile.
        with contextlib.suppress(ObjectMissing):
            base.head(_DESCRIPTION)
            return
        raise ConfigError(f"{root} is no warehouse and not empty (it holds {stranger}): choose an empty folder")
    described = {"format": VERSION, "tables": table_format, "id": str(uuid.uuid4())}
    try:
        base.put_new(_DESCRIPTION, _as_json(described))
    except StoreError as error:
        raise ConfigError(f"cannot make a warehouse in {root}: {error}; choose another place") from None


def _as_json(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True) + "\n").encode()
