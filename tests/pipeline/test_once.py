"""Runs that plan their batches without a streaming query: they leave the record that such a query would leave."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.batches import contents, ranges, run_batches
from tests.pipeline.journals import START_NS, make_journal
from tests.pipeline.test_run import wait_for
from wireloom.journal import segments
from wireloom.pipeline import Pipeline, PipelineFailed
from wireloom.pipeline.checkpoint import KEPT, Checkpoint
from wireloom.pipeline.decode_job import DecodedFiles, DecodingReader
from wireloom.pipeline.once import batches
from wireloom.pipeline.query import describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def grow(journal: Path, part: int) -> None:
    make_journal(journal, runs=12, seed=part, long_runs=False, refusals=1, start_ns=START_NS + part * 10**12)


def test_a_run_and_a_streaming_query_take_turns_on_one_warehouse(spark: SparkSession, tmp_path: Path) -> None:
    journal, warehouse = tmp_path / "journal", tmp_path / "w"
    grow(journal, 0)
    Pipeline([journal], warehouse, spark=spark).run(once=True, query=False)
    before = describe(warehouse)["messages"].rows
    grow(journal, 1)
    done: list[int] = []
    query = Pipeline([journal], warehouse, spark=spark, report=lambda batch: done.append(batch.number))
    runner = threading.Thread(target=lambda: query.run(once=False, interval=0.2))
    runner.start()
    try:
        wait_for(lambda: bool(done))
    finally:
        query.stop()
        runner.join(60)
    assert not runner.is_alive()
    assert done[0] == 1
    assert describe(warehouse)["messages"].rows > before
    grow(journal, 2)
    last = Pipeline([journal], warehouse, spark=spark).run(once=True, query=False)
    # The query may have been stopped before it wrote down that its batch was done: then there are two.
    assert last.messages > 0
    run_batches(tmp_path / "undisturbed", [[ranges(journal)]])
    assert contents(warehouse) == contents(tmp_path / "undisturbed")


def test_a_run_without_a_query_gives_the_same_tables_in_many_batches(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    small = {"maxBytesPerTrigger": "400k", "partitionBytes": "100k"}
    summary = Pipeline([journal], tmp_path / "w", spark=spark, options=small).run(query=False)
    assert summary.batches > 2
    run_batches(tmp_path / "undisturbed", [[ranges(journal)]])
    assert contents(tmp_path / "w") == contents(tmp_path / "undisturbed")
    assert Pipeline([journal], tmp_path / "w", spark=spark).run(query=False).batches == 0


def test_an_error_without_a_query_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path / "j", runs=1, refusals=0, long_runs=False)
    segments(tmp_path / "j")[0].write_bytes(b"no segment at all, but long enough to look at")
    with pytest.raises(PipelineFailed) as caught:
        Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark).run(query=False)
    assert "no journal segment: no pcapng section header" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_batch_that_was_begun_is_done_again_with_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    grow(journal, 0)
    source = DecodedFiles({"path": str(journal), "warehouse": str(tmp_path / "w")})
    reader = DecodingReader(source.chosen, source.warehouse, source.only_messages)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    assert next(batches(spark, reader, checkpoint)).number == 0
    begun = checkpoint.offsets(0)
    grow(journal, 1)
    again = batches(spark, reader, checkpoint)
    assert next(again).number == 0
    assert checkpoint.offsets(0) == begun
    assert next(again).number == 1
    assert (checkpoint.done, checkpoint.planned) == (0, 1)
    assert next(again, None) is None
    assert checkpoint.done == 1


def test_a_checkpoint_remembers_as_much_as_one_of_spark(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.prepare()
    known = (tmp_path / "metadata").read_text()
    for number in range(KEPT + 5):
        checkpoint.plan(number, {"lane": {"segment": "s", "position": number}})
        checkpoint.commit(number)
    checkpoint.prepare()
    assert (tmp_path / "metadata").read_text() == known
    assert checkpoint.planned == checkpoint.done == KEPT + 4
    assert checkpoint.offsets(KEPT + 4) == {"lane": {"segment": "s", "position": KEPT + 4}}
    assert checkpoint.offsets(-1) == {}
    assert sorted(int(path.name) for path in (tmp_path / "offsets").iterdir()) == list(range(5, KEPT + 5))
