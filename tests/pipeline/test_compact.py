"""Compacting a warehouse: fewer files, the same rows, and a pipeline that goes on as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.cli.main import main
from wireloom.model import ConfigError
from wireloom.pipeline.compact import compact
from wireloom.pipeline.warehouse import Warehouse


def test_compacting_keeps_every_row_and_the_next_batch_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_conversations(tmp_path / "j", seed=3, steps=200)
    *early, last = cut(ranges(tmp_path / "j"), [0.2, 0.4, 0.6, 0.8])
    run_batches(tmp_path / "w", [[part] for part in early])
    before = contents(tmp_path / "w")
    done = compact(tmp_path / "w")
    assert contents(tmp_path / "w") == before
    assert done["messages"].before == len(early)
    assert done["messages"].after == 1
    assert all(each.deleted == 0 for each in done.values())
    run_batches(tmp_path / "w", [[last]], first=len(early))
    run_batches(tmp_path / "one", [[ranges(tmp_path / "j")]])
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    assert main(["pipeline", "compact", "--warehouse", str(tmp_path / "w"), "--keep-hours", "0"]) == 0
    assert "messages: 2 files became 1" in capsys.readouterr().err
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    assert len(list((tmp_path / "w" / "messages").glob("date=*/*.parquet"))) == 1


def test_a_warehouse_in_use_is_not_compacted(tmp_path: Path) -> None:
    warehouse = Warehouse.prepared(tmp_path / "w")
    with warehouse.locked(), pytest.raises(ConfigError, match="in use by process"):
        compact(tmp_path / "w")
