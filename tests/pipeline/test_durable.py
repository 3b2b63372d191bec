"""Small files of the pipeline survive a power cut: written, synced, renamed, and the folder synced."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.disks import FaultyDisk
from tests.pipeline.journals import make_journal
from wireloom.journal.disk import replace_file
from wireloom.journal.retention import cursors
from wireloom.pipeline.captures.planning import load_state, save_state
from wireloom.pipeline.planning import Offsets, advance, latest, plan
from wireloom.pipeline.run import leave_cursors
from wireloom.pipeline.warehouse import Warehouse

READ_ONLY = {"create": errno.EROFS, "make_folder": errno.EROFS}


def steps(disk: FaultyDisk) -> list[str]:
    """Syncs and new names, in order; which file is synced says the rename."""
    done = (each for each in disk.calls if each[0] in ("make_folder", "rename") or each[0].startswith("sync"))
    return [call if call == "sync" else f"{call} {name}" for call, name in done]


@pytest.fixture
def read(tmp_path: Path) -> tuple[Warehouse, Path, Offsets]:
    """A warehouse, a journal, and a position in the middle of it."""
    make_journal(tmp_path / "journal", refusals=0)
    inputs = [str(tmp_path / "journal")]
    return Warehouse.prepared(tmp_path / "warehouse"), Path(inputs[0]), advance(inputs, {}, latest(inputs), 100_000)


def test_a_cursor_is_on_disk_when_the_batch_is_done(read: tuple[Warehouse, Path, Offsets]) -> None:
    warehouse, journal, offsets = read
    disk = FaultyDisk()
    leave_cursors(warehouse, [str(journal)], offsets, disk)
    saved = ["sync", f"rename {warehouse.application}.json", "sync_folder cursors"]
    made = ["make_folder cursors", "sync_folder journal", *saved]
    assert steps(disk) == ["sync_all warehouse", *made], "the tables come first"
    (part,) = [part for part in plan([str(journal)], {}, offsets) if not part.refused][-1:]
    assert [(each.segment, each.position) for each in cursors(journal)] == [(Path(part.file).name, part.end)]
    assert "crc32" in json.loads((journal / "cursors" / f"{warehouse.application}.json").read_text())
    leave_cursors(warehouse, [str(journal)], offsets, disk)
    assert steps(disk)[6:] == ["sync_all warehouse", *saved]


def test_a_journal_on_a_medium_that_cannot_be_written_to_gets_no_cursor(read: tuple[Warehouse, Path, Offsets]) -> None:
    warehouse, journal, offsets = read
    leave_cursors(warehouse, [str(journal)], offsets, FaultyDisk(READ_ONLY))
    (journal / "cursors").mkdir()
    leave_cursors(warehouse, [str(journal)], offsets, FaultyDisk(READ_ONLY))
    assert cursors(journal) == []


def test_a_file_is_replaced_whole_and_for_good(tmp_path: Path) -> None:
    path, disk = tmp_path / "state", FaultyDisk()
    path.write_bytes(b"old")
    replace_file(path, b"new", disk)
    assert steps(disk) == ["sync", "rename state", f"sync_folder {tmp_path.name}"]
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (b"new", ["state"])


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new", FaultyDisk({"sync": errno.ENOSPC}))
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (b"old", ["state"])


def test_what_captures_leave_over_is_replaced_whole(tmp_path: Path) -> None:
    save_state(str(tmp_path / "kept" / "a-1"), b"frozen")
    save_state(str(tmp_path / "kept" / "a-1"), b"again")
    assert load_state(str(tmp_path / "kept" / "a-1")) == b"again"
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["a-1"]
