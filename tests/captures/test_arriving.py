"""Captures that arrive in any order: within the lateness allowed, the tables are the same."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.captures.conversations import Wire
from tests.captures.reading import read_files
from tests.captures.test_spark import conversations, keyed
from tests.captures.writing import pcap
from tests.pipeline.batches import contents, new_warehouse
from wireloom.model import ConfigError
from wireloom.pipeline import planning
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.captures import planning as captures
from wireloom.pipeline.captures.storage import changed_at
from wireloom.pipeline.decode_job import Report, write_decoded
from wireloom.pipeline.join_job import Plan, join_facts
from wireloom.pipeline.options import SourceOptions
from wireloom.pipeline.run import FLOWS
from wireloom.pipeline.source import FlowGroup, JournalStreamReader, decoded_parts, partitions
from wireloom.protocols.hsp import frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rotation(folder: Path, seed: int, count: int = 6) -> list[Path]:
    """A rotation of captures, in order of time; their names are in another order."""
    folder.mkdir()
    asking = Wire("10.0.0.9:4000", "10.0.1.1:5042")
    asking.step_ns = 70_000_000
    asking.open()
    for number in range(30):
        asking.say(0, frames.encode(frames.DataAck(number, 7, b"?")))
        if number % 3:
            asking.say(1, frames.encode(frames.Ack(number)))
    packets = sorted([*conversations(seed, count=2), *asking.packets], key=lambda packet: packet.time_ns)
    bounds = [0, *sorted(random.Random(seed).sample(range(1, len(packets)), count - 1)), len(packets)]
    names = random.Random(seed).sample(range(100), count)
    paths = []
    for name, (start, end) in zip(names, itertools.pairwise(bounds), strict=True):
        paths.append(folder / f"{name:02d}.pcap")
        paths[-1].write_bytes(pcap(packets[start:end], nano=True))
    return paths


def test_captures_are_taken_in_order_of_their_packets_whatever_their_names(tmp_path: Path) -> None:
    paths = rotation(tmp_path / "c", 1)
    inputs = [str(tmp_path / "c")]
    target, position, taken = planning.latest(inputs), {}, []
    while position != target:
        after = planning.advance(inputs, position, target, 1)
        taken.append([path for path, _, _ in captures.new_captures(position, after)])
        position = after
    assert taken == [[str(path)] for path in paths]
    sizes = [path.stat().st_size for path in paths]
    two = planning.advance(inputs, {}, target, sizes[0] + sizes[1])
    assert set(captures.of_captures(two)) == {str(path) for path in paths[:2]}


def test_a_stream_leaves_captures_alone_that_came_just_now(tmp_path: Path) -> None:
    path = rotation(tmp_path / "c", 2, count=2)[0]
    inputs = [str(tmp_path / "c")]
    # A copy that keeps the time of its original came now all the same.
    os.utime(path, (1, 1))
    assert time.time() - changed_at(str(path)) < 1000
    waiting = JournalStreamReader(SourceOptions.parse({"path": inputs[0], "lateness": "100000"}))
    assert waiting.latestOffset({}, waiting.getDefaultReadLimit()) == {}
    waiting.prepareForTriggerAvailableNow()
    assert len(waiting.latestOffset({}, waiting.getDefaultReadLimit())) == 2


def test_a_capture_waits_for_an_earlier_one_that_is_still_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = map(str, rotation(tmp_path / "c", 6, count=3))
    ages = {first: 2.5, second: 5.5, third: 11.5}
    monkeypatch.setattr(captures, "changed_at", lambda path: time.time() - ages[path])
    target = planning.latest([str(tmp_path / "c")])

    def taken(lateness: float, known: tuple[str, ...] = ()) -> set[str]:
        start = {path: target[path] for path in known}
        return {path for path, _, _ in captures.new_captures(start, captures.settled(start, target, lateness))}

    assert taken(0) == taken(2) == {first, second, third}
    assert taken(3) == {third}, "the second waits for the first; the third has waited long enough"
    assert taken(5) == {third}
    assert taken(6) == set()
    ages[first] = 5.2
    assert taken(5) == {first, second, third}
    ages[first], ages[third] = 9.0, 1.0
    assert taken(5) == {first, second}, "nobody waits for what is later"
    assert taken(5, known=(first,)) == {second}
    (tmp_path / "c" / "new.pcap").write_bytes(b"")
    ages[str(tmp_path / "c" / "new.pcap")] = 0.0
    target = planning.latest([str(tmp_path / "c")])
    assert taken(5) == set(), "whoever has just begun may hold anything"


@pytest.mark.parametrize("value", ["-1", "soon", ""])
def test_a_wrong_lateness_is_named(tmp_path: Path, value: str) -> None:
    path = rotation(tmp_path / "c", 3, count=2)[0]
    with pytest.raises(ConfigError, match=r"option 'lateness' is .*a number of seconds such as 3"):
        SourceOptions.parse({"path": str(path), "lateness": value})


def test_a_batch_reads_arriving_captures_in_order_of_time(tmp_path: Path) -> None:
    """What a batch holds goes through one reader, in order of time; see `merging.py`."""
    paths = rotation(tmp_path / "c", 4)
    options = SourceOptions.parse({"path": str(tmp_path / "c")}).captures
    expected = None
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 1, 5, 0, 4, 2]):
        files = tuple((str(paths[number]), 0, paths[number].stat().st_size) for number in order)
        rows = [r for _, part in FlowGroup(files, 0, 1).decode(options, "", "") for r in part.messages.to_pylist()]
        key = sorted((r["connection"], r["direction"], r["sequence"], r["offset"]) for r in rows)
        expected = expected or key
        assert key == expected


class CaptureWorkers:
    """Does what Spark's workers do with the captures between two positions, one task after the other."""

    def __init__(self, warehouse: Path, options: SourceOptions, start: planning.Offsets, end: planning.Offsets) -> None:
        self.warehouse, self.options, self.start, self.end = warehouse, options, start, end
        self.tasks = 1

    def decode(self) -> list[Report]:
        return [
            Report.of(row)
            for partition in partitions(self.options, self.start, self.end)
            for batch in write_decoded(self.warehouse, list(decoded_parts(self.options, partition)))
            for row in batch.to_pylist()
        ]

    def join(self, plan: Plan) -> list[Report]:
        return [Report.of(row) for batch in join_facts(plan, 0) for row in batch.to_pylist()]


def commit_captures(root: Path, folder: Path, start: planning.Offsets, end: planning.Offsets, number: int = 0) -> None:
    """One batch of a stream of captures."""
    warehouse = new_warehouse(root)
    options = SourceOptions.parse(
        {"path": str(folder), "stateDir": warehouse.store.below(FLOWS).url, "flowGroups": "2"}
    )
    BatchCommit(warehouse, number, CaptureWorkers(warehouse.store, options, start, end)).commit()


@pytest.mark.parametrize("seed", [8, 9])
def test_at_every_commit_the_tables_are_those_of_one_batch_over_the_captures_so_far(seed: int, tmp_path: Path) -> None:
    rotation(tmp_path / "c", seed, count=5)
    inputs = [str(tmp_path / "c")]
    target, position, number = planning.latest(inputs), {}, 0
    while position != target:
        after = planning.advance(inputs, position, target, 1)
        commit_captures(tmp_path / "many", tmp_path / "c", position, after, number)
        commit_captures(tmp_path / f"one-{number}", tmp_path / "c", {}, after)
        assert contents(tmp_path / "many") == contents(tmp_path / f"one-{number}")
        position, number = after, number + 1
    assert number == 5
    rows = contents(tmp_path / "many")
    assert rows["messages"] and rows["exchanges"] and rows["sessions"] and rows["traffic"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_captures_are_a_streaming_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline.spark_session import register

    register(spark)
    paths = rotation(tmp_path / "c", 10, count=3)
    reader = spark.readStream.format("wireloom").option("stateDir", str(tmp_path / "state"))
    stream = reader.option("flowGroups", "1").option("maxBytesPerTrigger", "1").load(str(tmp_path / "c"))
    query = stream.writeStream.format("memory").queryName("arriving").trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    rows = [row.asDict() for row in spark.table("arriving").collect()]
    expected = read_files(paths)
    assert not expected.rejects
    assert keyed(rows) == keyed(expected.messages)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_shuffled_arrivals_give_the_tables_of_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline import Pipeline

    paths = rotation(tmp_path / "made", 5)
    folder = tmp_path / "captures"
    folder.mkdir()
    done = [0]
    options = {"flowGroups": "2", "lateness": "5"}
    pipeline = Pipeline([folder], tmp_path / "w", spark=spark, options=options, report=lambda b: done.append(b.files))
    runner = threading.Thread(target=lambda: pipeline.run(once=False, interval=0.2))
    runner.start()
    try:
        for half in (paths[:3], paths[3:]):
            shuffled = random.Random(7).sample(half, len(half))
            for path in shuffled:
                path.rename(folder / path.name)
            deadline = time.monotonic() + 240
            expected = sum(done) + len(half)
            while sum(done) < expected and time.monotonic() < deadline and runner.is_alive():
                time.sleep(0.1)
            assert sum(done) == expected
    finally:
        pipeline.stop()
        runner.join(120)
    assert not runner.is_alive()
    Pipeline([folder], tmp_path / "one", spark=spark, options={"flowGroups": "2"}).run(once=True)
    assert contents(tmp_path / "w") == contents(tmp_path / "one")
