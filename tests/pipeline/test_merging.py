"""Small files are merged beside the batches: the same rows, few files, and batches that go on as if nothing happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.batches import LocalWorkers, contents, cut, new_warehouse, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.pipeline import merging, tables
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.merging import Merger, merge_files
from wireloom.pipeline.schemas import TABLES, Table
from wireloom.pipeline.tables import WrittenFile
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import open_store

BATCHES = 14
Work = Callable[[Table, list[WrittenFile]], WrittenFile]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(merging, "FAN_IN", 4)
    monkeypatch.setattr(merging, "_LOOK_EVERY", 2)
    make_conversations(tmp_path / "j", seed=3, steps=200)
    return tmp_path / "j"


def merging_here(warehouse: Warehouse) -> Work:
    return lambda table, group: merge_files(warehouse.folder(table), table, group)


def run_merging(root: Path, journal: Path, work: Callable[[Warehouse], Work], *, settle: bool = True) -> Merger:
    """Many batches, with merging after each."""
    warehouse = new_warehouse(root)
    merger = Merger(warehouse, work(warehouse))
    parts = cut(ranges(journal), [each / BATCHES for each in range(1, BATCHES)])
    for number, part in enumerate(parts):
        BatchCommit(warehouse, number, LocalWorkers(warehouse.store, [part])).commit()
        merger.after_batch()
        while settle and merger._under_way is not None and not merger._under_way[2].done():
            time.sleep(0.001)
    merger.close()
    return merger


@pytest.fixture
def expected(tmp_path: Path, journal: Path) -> dict[str, list[tuple[object, ...]]]:
    run_batches(tmp_path / "one", [[ranges(journal)]])
    return contents(tmp_path / "one")


def test_tables_with_merging_have_the_same_rows_in_few_files(
    tmp_path: Path, journal: Path, expected: dict[str, list[tuple[object, ...]]]
) -> None:
    merger = run_merging(tmp_path / "w", journal, merging_here)
    assert contents(tmp_path / "w") == expected
    assert merger.merged > BATCHES / 2
    files = tables.files(tables.open_table(open_store(tmp_path / "w" / "messages")), TABLES["messages"])
    assert len(files) <= 2 * merging.FAN_IN < BATCHES


def test_a_merge_that_takes_many_batches_is_committed_when_it_is_done(
    tmp_path: Path, journal: Path, expected: dict[str, list[tuple[object, ...]]]
) -> None:
    def slowly(warehouse: Warehouse) -> Work:
        def work(table: Table, group: list[WrittenFile]) -> WrittenFile:
            time.sleep(0.5)
            return merge_files(warehouse.folder(table), table, group)

        return work

    merger = run_merging(tmp_path / "w", journal, slowly, settle=False)
    assert contents(tmp_path / "w") == expected
    assert merger.merged > 0


def test_a_merge_that_fails_changes_nothing(
    tmp_path: Path, journal: Path, expected: dict[str, list[tuple[object, ...]]], caplog: pytest.LogCaptureFixture
) -> None:
    def failing(warehouse: Warehouse) -> Work:
        def work(table: Table, group: list[WrittenFile]) -> WrittenFile:
            merge_files(warehouse.folder(table), table, group)
            raise OSError(28, "No space left on device")

        return work

    assert run_merging(tmp_path / "w", journal, failing).merged == 0
    assert contents(tmp_path / "w") == expected
    assert "No space left on device" in caplog.text


def test_files_of_an_earlier_day_are_merged_as_soon_as_there_are_two() -> None:
    def file(day: str, number: int, size: int) -> WrittenFile:
        return WrittenFile(f"date={day}/{number}.parquet", 10, size, {"date": day})

    past, today = [file("2026-11-17", n, 1000) for n in range(3)], [file("2026-11-18", n, 1000) for n in range(15)]

    class Handle:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "first_times", lambda _: {})
        patch.setattr(tables, "files", lambda *_: [*past, *today])
        assert merging.due(Handle(), TABLES["messages"]) == past  # type: ignore[arg-type]
        patch.setattr(tables, "files", lambda *_: today)
        assert merging.due(Handle(), TABLES["messages"]) == []  # type: ignore[arg-type]
        more = [*today, file("2026-11-18", 99, 1000), file("2026-11-18", 100, 1 << 20)]
        patch.setattr(tables, "files", lambda *_: more)
        assert len(merging.due(Handle(), TABLES["messages"])) == merging.FAN_IN  # type: ignore[arg-type]
