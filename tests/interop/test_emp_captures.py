"""A capture of two emp peers with exclusive sizes: messages, not rejects, without any option."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from tests.captures.conversations import Wire, exchange
from tests.captures.reading import Found, read_files, read_packets
from tests.captures.writing import Captured, pcap
from tests.cli.running import wireloom
from tests.pipeline.commands import WIRELOOM
from wireloom.model import ConfigError
from wireloom.pipeline.captures.reader import CaptureReader
from wireloom.pipeline.options import SourceOptions

RECORDED = json.loads((Path(__file__).parents[1] / "vectors" / "emp-erlang-exclusive.json").read_text())
STREAMS = tuple(
    [bytes.fromhex(entry["hex"]) for entry in RECORDED if entry["direction"] == side] for side in ("c2s", "s2c")
)
EXPECTED = {
    "c2s": ["open", "event", "request", "request", "ping", "close"],
    "s2c": ["open", "event", "response", "response", "pong"],
}


def conversation(port: int, *, most: int = 200, first: int = 0) -> list[Captured]:
    wire = Wire("10.0.0.1:4000", f"10.0.0.2:{port}", isn=(7, 9))
    if first == 0:
        wire.open()
    streams = b"".join(STREAMS[0][first:]), b"".join(STREAMS[1][first:])
    return exchange(wire, streams, random.Random(3), most).close().packets


def as_recorded(port: int) -> list[Captured]:
    """The conversation in the order in which it was led."""
    wire = Wire("10.0.0.1:4000", f"10.0.0.2:{port}").open()
    for entry in RECORDED:
        if entry["hex"]:
            wire.say(("c2s", "s2c").index(entry["direction"]), bytes.fromhex(entry["hex"]))
    return wire.close().packets


def kinds(found: Found, direction: str) -> list[object]:
    return [kind for kind, _, _ in found.said(direction)]


@pytest.mark.parametrize("most", [3, 12, 200])
@pytest.mark.parametrize("cuts", [0, 5])
@pytest.mark.parametrize("port", [5040, 9999])
def test_every_byte_becomes_a_message(tmp_path: Path, port: int, cuts: int, most: int) -> None:
    found = read_packets(conversation(port, most=most), tmp_path, cuts=cuts)
    assert found.rejects == []
    assert {direction: kinds(found, direction) for direction in EXPECTED} == EXPECTED
    opened = [dict(m["attributes"]) for m in found.messages if m["kind"] == "open"]  # type: ignore[call-overload]
    assert opened == [{"version": "1", "size_mode": "exclusive"}] * 2


def test_a_capture_that_begins_inside_the_conversation_shows_its_mode_too(tmp_path: Path) -> None:
    found = read_packets(conversation(5040, first=1), tmp_path)
    assert [(row["clause"], row["size"]) for row in found.rejects] == [("capture.midstream", 0)] * 2
    assert {direction: kinds(found, direction) for direction in EXPECTED} == {
        direction: names[1:] for direction, names in EXPECTED.items()
    }


def test_connections_of_both_modes_in_one_capture(tmp_path: Path) -> None:
    usual = Wire("10.0.0.3:4000", "10.0.0.2:5040", isn=(1, 2)).open()
    usual.say(0, bytes.fromhex("0000000c00000000010000000000000d0500000068656c6c6f"))
    usual.say(1, bytes.fromhex("0000000c0000000001000000"))
    packets = sorted([*conversation(5040), *usual.close().packets], key=lambda packet: packet.time_ns)
    found = read_packets(packets, tmp_path)
    assert found.rejects == []
    assert len(found.messages) == sum(map(len, EXPECTED.values())) + 3


@pytest.mark.spark
def test_pipeline_run_gives_messages_and_exchanges(tmp_path: Path) -> None:
    capture = tmp_path / "erlang.pcap"
    capture.write_bytes(pcap(as_recorded(5040), nano=True))
    warehouse = tmp_path / "warehouse"
    run = [*WIRELOOM, "pipeline", "run", "--input", str(capture), "--warehouse", str(warehouse)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = wireloom("sql", "select count(*) as n from messages", "--warehouse", warehouse, "--json")
    assert json.loads(asked.out) == {"n": sum(map(len, EXPECTED.values()))}
    asked = wireloom("sql", "select count(*) as n from rejects", "--warehouse", warehouse, "--json")
    assert json.loads(asked.out) == {"n": 0}
    asked = wireloom("sql", "select outcome from exchanges", "--warehouse", warehouse, "--json")
    assert [json.loads(line)["outcome"] for line in asked.lines] == ["done", "done"]


def test_settings_of_a_protocol_reach_the_reader_of_captures(tmp_path: Path) -> None:
    path = tmp_path / "erlang.pcap"
    path.write_bytes(pcap(conversation(5040), nano=True))
    options = SourceOptions.parse({"path": str(path), "set": 'emp.size_mode="inclusive",mesh.seeds=["a:1", "b:2"]'})
    assert [each[:2] for each in options.captures.given] == [("emp", "size_mode"), ("mesh", "seeds")]
    found = read_files([path], CaptureReader(options.captures.choice))
    assert found.messages == []
    assert all('size_mode = "exclusive"' in str(row["detail"]) for row in found.rejects)
    for name, problem in (("emp.sise_mode", "unknown setting 'sise_mode'"), ("smtp.size", "smtp")):
        with pytest.raises(ConfigError, match=problem):
            SourceOptions.parse({"path": str(path), "set": f"{name}=1"})
