"""Captures through Spark: as a DataFrame, as a stream of arriving files, and into the tables of a warehouse."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.captures.conversations import STREAM_PROTOCOLS, Wire, exchange, talk
from tests.captures.reading import read_files
from tests.captures.writing import Captured, pcap, pcapng
from wireloom.model import ConfigError
from wireloom.pipeline.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PORTS = {"emp": 5040, "hsp": 5042, "yamp": 5043, "wolpertinger": 5045}


def conversations(seed: int, *, count: int = 3) -> list[Captured]:
    """Packets of connections of all protocols, in order of time."""
    rng = random.Random(seed)
    packets: list[Captured] = []
    for number in range(count):
        for name in STREAM_PROTOCOLS:
            wire = Wire(f"10.0.0.{number + 1}:4000", f"10.0.1.1:{PORTS[name]}", isn=(number * 99, 7))
            wire.step_ns = 50_000_000
            packets += exchange(wire.open(), talk(name, rng), rng).close().packets
    return sorted(packets, key=lambda packet: packet.time_ns)


def keyed(rows: list[dict[str, object]]) -> list[str]:
    """Rows in a form that does not depend on their order, or on the kind of file they come from."""
    return sorted(
        repr(
            [
                (k, bytes(v) if isinstance(v, bytearray) else v)
                for k, v in sorted(row.items())
                if k not in ("time", "attributes")
            ]
        )
        for row in rows
    )


def test_a_rotation_of_captures_is_one_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline.spark_session import register

    register(spark)
    packets = conversations(1)
    third = len(packets) // 3
    folder = tmp_path / "captures"
    folder.mkdir()
    for number in range(3):
        end = None if number == 2 else (number + 1) * third
        part = packets[number * third : end]
        # Names do not sort in order of time: the packets' own times count.
        (folder / f"{3 - number}.pcapng").write_bytes(pcapng(part, order=">" if number == 1 else "<"))
    (folder / "notes.txt").write_text("no capture")
    expected = read_files(sorted(folder.glob("*.pcapng")))
    assert not expected.rejects and len({m["connection"] for m in expected.messages}) == 12
    for given in (folder, folder / "*.pcapng"):
        reader = spark.read.format("wireloom").option("flowGroups", "3")
        rows = [row.asDict() for row in reader.load(str(given)).collect()]
        assert keyed(rows) == keyed(expected.messages)


def test_a_damaged_capture_gives_what_it_holds_and_one_reject(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline.spark_session import register

    register(spark)
    whole = pcap(conversations(2, count=1))
    (tmp_path / "cut.pcap").write_bytes(whole[:-20])
    (tmp_path / "nonsense.pcap").write_bytes(b"this is no capture at all")
    reader = spark.read.format("wireloom")
    assert reader.load(str(tmp_path)).count() > 20
    rejects = reader.option("table", "rejects").load(str(tmp_path)).collect()
    damaged = {Path(row["file"]).name: row["detail"] for row in rejects if row["clause"] == "capture.damaged"}
    assert damaged == {"cut.pcap": "the file ends inside a packet", "nonsense.pcap": "neither pcap nor pcapng"}


def test_a_stream_of_arriving_captures_gives_the_rows_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    from wireloom.pipeline.run import Pipeline

    packets = conversations(3)
    folder, warehouse = tmp_path / "captures", tmp_path / "warehouse"
    folder.mkdir()
    bounds = [0, *sorted(random.Random(3).sample(range(1, len(packets)), 4)), len(packets)]
    summary = None
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        (folder / f"{number}.pcap").write_bytes(pcap(packets[start:end], nano=True))
        pipeline = Pipeline([folder], warehouse, spark=spark, options={"flowGroups": "2"})
        summary = pipeline.run(once=True)
    assert summary is not None
    streamed = table(warehouse, "messages")
    at_once = tmp_path / "at-once"
    Pipeline([folder], at_once, spark=spark, options={"flowGroups": "2"}).run(once=True)
    assert keyed(streamed) == keyed(table(at_once, "messages")) == keyed(read_files(sorted(folder.glob("*"))).messages)
    assert len(list((warehouse / "_flows").glob("*-*"))) <= 4


def table(warehouse: Path, name: str) -> list[dict[str, object]]:
    from wireloom.pipeline.query import ask

    answer = ask(warehouse, f"select * from {name}")
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_a_stream_of_captures_needs_a_folder_for_what_is_unfinished(tmp_path: Path) -> None:
    from wireloom.pipeline import planning
    from wireloom.pipeline.source import partitions

    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(conversations(4, count=1)))
    options = SourceOptions.parse({"path": str(path)})
    with pytest.raises(ConfigError, match="stateDir"):
        partitions(options, {}, planning.latest(options.inputs))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("ports", "htp=80", "known: emp, hsp, mesh, wolpertinger, yamp, yamp+ws"),
        ("ports", "hsp=x", "such as hsp=7000"),
        ("auto", "maybe", "it must be true or false"),
        ("idle", "-1", "it must be a number of seconds such as 600"),
        ("flowGroups", "0", "it must be auto or a number of tasks"),
        ("port", "hsp=1", "known: auto, flowGroups, idle"),
    ],
)
def test_wrong_options_are_errors_that_name_the_right_ones(tmp_path: Path, option: str, value: str, words: str) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([]))
    with pytest.raises(ConfigError, match=re.escape(words)):
        SourceOptions.parse({"path": str(path), option: value})


def test_an_input_without_captures_is_an_error_that_says_what_would_be_right(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for given in (tmp_path, tmp_path / "*.pcap"):
        with pytest.raises(ConfigError, match="no journal and no captures here; name"):
            SourceOptions.parse({"path": str(given)})
    assert json.dumps(SourceOptions.parse({"path": str(tmp_path / "notes.txt")}).inputs) == json.dumps(
        [str(tmp_path / "notes.txt")]
    )
