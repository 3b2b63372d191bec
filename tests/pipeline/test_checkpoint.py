"""Warehouses of earlier versions, with Spark's checkpoint in them, are taken over once and go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.conversations import make_conversations
from tests.pipeline.driving import drive
from wireloom.model import ConfigError
from wireloom.pipeline.checkpoint import take_over
from wireloom.pipeline.planning import Range
from wireloom.pipeline.warehouse import Warehouse


def make_old(root: Path, pieces: Sequence[Sequence[Range]], *, begun: int) -> None:
    """A warehouse of an earlier version: all pieces but `begun` are batches that are done; these were only planned."""
    run_batches(root, [[piece] for piece in pieces[: len(pieces) - begun]])
    described = json.loads((root / "warehouse.json").read_text())
    (root / "checkpoint" / "offsets").mkdir(parents=True)
    (root / "checkpoint" / "metadata").write_text(json.dumps({"id": described.pop("id")}))
    (root / "warehouse.json").write_text(json.dumps(described))
    known: dict[str, dict[str, str | int]] = {}
    for batch, piece in enumerate(pieces):
        for part in piece:
            known[str(Path(part.file).parent)] = {"segment": Path(part.file).name, "position": part.end}
        text = "\n".join(["v1", "{}", json.dumps(known)])
        (root / "checkpoint" / "offsets" / str(batch)).write_text(text)


@pytest.mark.parametrize("begun", [0, 1])
@pytest.mark.parametrize("places", [[0.3, 0.6], [0.11, 0.83]])
def test_the_next_batch_begins_where_the_checkpoint_ended(tmp_path: Path, places: list[float], begun: int) -> None:
    make_conversations(tmp_path / "j", seed=13, steps=300)
    *pieces, _ = cut(ranges(tmp_path / "j"), places)
    make_old(tmp_path / "w", pieces, begun=begun)
    done = drive([tmp_path / "j"], tmp_path / "w")
    assert [batch.number for batch in done] == ([1, 2] if begun else [2])
    drive([tmp_path / "j"], tmp_path / "one")
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
    shutil.rmtree(tmp_path / "w" / "checkpoint")
    assert drive([tmp_path / "j"], tmp_path / "w") == [], "nobody asks for the checkpoint any more"


def test_a_lost_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=13, steps=100)
    pieces = cut(ranges(tmp_path / "j"), [0.5])
    make_old(tmp_path / "w", pieces, begun=0)
    (tmp_path / "w" / "checkpoint" / "offsets" / "1").unlink()
    with pytest.raises(ConfigError, match=r"checkpoint of warehouse .* is lost or of another run"):
        take_over(Warehouse.prepared(tmp_path / "w"))
    shutil.rmtree(tmp_path / "w" / "checkpoint")
    with pytest.raises(ConfigError, match=r"checkpoint of warehouse .* is lost or of another run"):
        take_over(Warehouse.prepared(tmp_path / "w"))
