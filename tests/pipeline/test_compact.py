"""Compacting a warehouse: fewer files, the same rows, and a pipeline that goes on as before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.cli.main import main
from wireloom.model import ConfigError
from wireloom.pipeline import tables
from wireloom.pipeline.compact import compact
from wireloom.pipeline.schemas import MESSAGES
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import open_store


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


def test_merged_rows_are_in_order_of_time_and_their_files_say_what_is_in_them(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=3, steps=200)
    run_batches(tmp_path / "w", [[part] for part in cut(ranges(tmp_path / "j"), [0.3, 0.6, 0.9])])
    compact(tmp_path / "w")
    folder = tmp_path / "w" / "messages"
    handle = tables.open_table(open_store(folder))
    (file,) = tables.files(handle, MESSAGES)
    rows = pq.ParquetFile(folder / file.path).read()
    times = rows["time"].to_pylist()
    assert times == sorted(times)
    told = pa.table(handle.get_add_actions(flatten=True)).to_pylist()[0]
    topics = [topic for topic in rows["topic"].to_pylist() if topic is not None]
    assert (told["min.time"], told["max.time"]) == (times[0], times[-1])
    assert (told["min.topic"], told["null_count.topic"]) == (min(topics), len(times) - len(topics))


def test_a_merged_file_has_few_row_groups_however_many_files_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_conversations(tmp_path / "j", seed=3, steps=200)
    run_batches(tmp_path / "w", [[part] for part in cut(ranges(tmp_path / "j"), [0.2, 0.4, 0.6, 0.8])])
    monkeypatch.setattr(tables, "ROW_GROUP", 300)
    compact(tmp_path / "w")
    (file,) = tables.files(tables.open_table(open_store(tmp_path / "w" / "messages")), MESSAGES)
    metadata = pq.ParquetFile(tmp_path / "w" / "messages" / file.path).metadata
    assert 1 <= metadata.num_row_groups <= metadata.num_rows // 300 + 1


def test_plain_folders_in_use_are_not_compacted(tmp_path: Path) -> None:
    warehouse = Warehouse.prepared(tmp_path / "w", "parquet")
    with warehouse.locked(), pytest.raises(ConfigError, match="in use by process"):
        compact(tmp_path / "w")
