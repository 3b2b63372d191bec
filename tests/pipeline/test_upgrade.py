"""A warehouse of format 1, kept as data: it is refused with the command that upgrades it, and then like one of today.

`warehouse1.tar.gz` was made by the last version that wrote format 1, from the journal in `tests/journal/format1`, in two
batches. Nobody can make it again, so it is never changed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.running import wireloom
from tests.journal.test_format1 import JOURNAL
from tests.pipeline.batches import LocalWorkers, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.checkpoint import take_over
from wireloom.pipeline.query import ask
from wireloom.pipeline.schemas import MESSAGES, TABLES
from wireloom.pipeline.upgrade import upgrade
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import open_store

KEPT = Path(__file__).with_name("warehouse1.tar.gz")
COMPARED = {
    # Who the peers were proved to be stands in the journal. It was not in the tables, and cannot be known.
    # The status of a yamp error, which is its code today, stays as it was; so do attributes that protocols added later.
    "messages": "select * exclude (principal) replace (parse_filename(file) as file, "
    "attributes['operation'] as attributes, "
    "case when protocol = 'yamp' and kind = 'error' then 'error' else status end as status) from messages",
    "exchanges": "select * replace ("
    "case when protocol = 'yamp' and outcome = 'error' then 'error' else status end as status) from exchanges",
    "rejects": "select * replace (parse_filename(file) as file) from rejects",
    "findings": "select * replace (parse_filename(file) as file) from findings",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "warehouse"


def contents(warehouse: Path) -> dict[str, list[str]]:
    return {
        name: sorted(map(repr, ask(warehouse, COMPARED.get(name, f"select * from {name}")).rows)) for name in TABLES
    }


def test_it_is_refused_with_the_command_that_upgrades_it(old: Path, tmp_path: Path) -> None:
    asked = f"wireloom pipeline upgrade --warehouse {old}"
    for opening in (Warehouse.existing, Warehouse.prepared):
        with pytest.raises(ConfigError, match=asked):
            opening(old)
    done = wireloom("sql", "select 1", "--warehouse", str(old))
    assert done.code == 2 and asked in done.errors
    done = wireloom("pipeline", "upgrade", "--warehouse", str(old))
    assert done.code == 0 and done.errors.rstrip().endswith("is up to date")
    done = wireloom("sql", "select distinct verb from exchanges order by 1", "--warehouse", str(old), "--csv")
    assert done.lines == ["verb", "publish", "request"]


def test_upgraded_it_holds_what_is_made_of_the_same_journal_today(old: Path, tmp_path: Path) -> None:
    upgrade(old)
    run_batches(tmp_path / "today", [[ranges(JOURNAL)]])
    assert contents(old) == contents(tmp_path / "today")
    assert upgrade(old) == {}


def test_one_that_was_killed_amid_it_goes_on(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    replace = Warehouse.replace

    def killed(*given: object, **more: object) -> None:
        replaced.append(given)
        if len(replaced) > 2:
            raise KeyboardInterrupt
        replace(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Warehouse, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        upgrade(old)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="upgrade"):
        Warehouse.existing(old)
    upgrade(old)
    run_batches(tmp_path / "today", [[ranges(JOURNAL)]])
    assert contents(old) == contents(tmp_path / "today")


def test_the_pipeline_goes_on_with_it(old: Path, tmp_path: Path) -> None:
    upgrade(old)
    (old / "checkpoint" / "offsets").mkdir()
    (old / "checkpoint" / "offsets" / "1").write_text("v1\n{}\n{}")
    before = len(ask(old, "select 1 from messages").rows)
    make_conversations(tmp_path / "journal", seed=5, steps=100)
    warehouse = take_over(Warehouse.prepared(old))
    BatchCommit(warehouse, 2, LocalWorkers(warehouse.store, [ranges(tmp_path / "journal")])).commit()
    assert len(ask(old, "select 1 from messages").rows) > before
    assert ask(old, "select count(*) from exchanges where verb is null").rows == [(0,)]
    assert [field.name for field in tables.open_table(open_store(old / "messages")).schema().fields][-3:] == [
        "hub",
        "verb",
        "principal",
    ]
    assert ask(old, "select * from messages limit 1").columns == MESSAGES.names
