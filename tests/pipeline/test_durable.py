"""Small files of the pipeline survive a power cut: written, synced, renamed, and the folder synced."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.disks import FaultyDisk
from wireloom.journal.disk import replace_file
from wireloom.journal.retention import cursors
from wireloom.pipeline import run
from wireloom.pipeline.captures.planning import load_state, save_state
from wireloom.pipeline.checkpoint import Checkpoint
from wireloom.pipeline.run import leave_cursors
from wireloom.pipeline.warehouse import Warehouse

POSITION: dict[str, str | int] = {"segment": "00000000000000000001-00c0ffee00c0ffee.pcapng", "position": 4711}
READ_ONLY = {"create": errno.EROFS, "make_folder": errno.EROFS}


def steps(disk: FaultyDisk) -> list[str]:
    """Syncs and new names, in order; which file is synced says the rename."""
    done = (each for each in disk.calls if each[0] in ("make_folder", "rename") or each[0].startswith("sync"))
    return [call if call == "sync" else f"{call} {name}" for call, name in done]


class Known:
    """Of a warehouse, what `leave_cursors` asks for."""

    def __init__(self, lane: Path) -> None:
        self.lane = lane
        self.root = lane.parent / "warehouse"
        self.root.mkdir(exist_ok=True)

    def query_id(self) -> str:
        return "q"

    def offsets(self, batch: int) -> dict[str, dict[str, str | int]]:
        return {str(self.lane): POSITION, str(self.lane / "gone"): POSITION}


def test_a_cursor_is_on_disk_when_the_batch_is_done(tmp_path: Path) -> None:
    lane = tmp_path / "journal"
    lane.mkdir()
    disk = FaultyDisk()
    leave_cursors(Known(lane), 0, disk)  # type: ignore[arg-type]
    saved = ["sync", "rename q.json", "sync_folder cursors"]
    assert steps(disk) == ["sync_all warehouse", "make_folder cursors", "sync_folder journal", *saved], (
        "the tables come first"
    )
    assert [(each.segment, each.position) for each in cursors(lane)] == [(POSITION["segment"], 4711)]
    assert "crc32" in json.loads((lane / "cursors" / "q.json").read_text())
    leave_cursors(Known(lane), 1, disk)  # type: ignore[arg-type]
    assert steps(disk)[6:] == ["sync_all warehouse", *saved]


def test_a_journal_on_a_medium_that_cannot_be_written_to_gets_no_cursor(tmp_path: Path) -> None:
    lane = tmp_path / "journal"
    lane.mkdir()
    leave_cursors(Known(lane), 0, FaultyDisk(READ_ONLY))  # type: ignore[arg-type]
    (lane / "cursors").mkdir()
    leave_cursors(Known(lane), 0, FaultyDisk(READ_ONLY))  # type: ignore[arg-type]
    assert cursors(lane) == []


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


def test_checkpoint_captures_and_description_go_that_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def noted(path: Path, content: bytes) -> None:
        written.append(path.name)
        replace_file(path, content)

    for module in ("checkpoint", "captures.planning", "warehouse"):
        monkeypatch.setattr(f"wireloom.pipeline.{module}.replace_file", noted)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.prepare()
    checkpoint.plan(0, {"lane": POSITION})
    checkpoint.commit(0)
    assert checkpoint.offsets(0) == {"lane": POSITION}
    save_state(str(tmp_path / "kept" / "a-1"), b"frozen")
    assert load_state(str(tmp_path / "kept" / "a-1")) == b"frozen"
    Warehouse.prepared(tmp_path / "warehouse")
    assert written[:4] == ["metadata", "0", "0", "a-1"]
    assert len(written) == 5
    assert run.leave_cursors is leave_cursors
