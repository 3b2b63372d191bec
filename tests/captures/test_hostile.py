"""Captures made to keep a reader busy: time and memory stay bounded, and a reject says what was not read."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from tests.captures.conversations import Wire
from tests.captures.reading import Found, read_files
from tests.captures.writing import START_NS, Captured, pcap
from wireloom.pipeline.captures import reader as reading
from wireloom.pipeline.captures import storage
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.reader import CaptureReader
from wireloom.pipeline.captures.storage import Capture
from wireloom.protocols.hsp import frames

EVENT = frames.encode(frames.Data(7, b"x"))


def block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


@pytest.mark.timeout(120)
def test_many_interfaces_take_time_in_proportion(tmp_path: Path) -> None:
    """A hundred thousand: with work for each that grows with their number, this took an hour."""
    count = 100_000
    wire = Wire().open().say(0, EVENT).close()
    content = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    content += [block(1, struct.pack("<HHI", 1, 0, 0))] * count
    for packet in wire.packets:
        at, size = packet.time_ns // 1000, len(packet.data)
        head = struct.pack("<IIIII", count - 1, at >> 32, at & 0xFFFFFFFF, size, size)
        content.append(block(6, head + packet.data + bytes(-size % 4)))
    (tmp_path / "a.pcapng").write_bytes(b"".join(content))
    assert read_files([tmp_path / "a.pcapng"]).said() == [("event", "hsp/7", b"x")]


def crowd(count: int) -> list[Captured]:
    """Connections that are all open at a time; the first of them speaks once more at the end."""
    wires = [Wire(f"10.0.1.{number}:4000", time_ns=START_NS + number * 10**9) for number in range(count)]
    for number, wire in enumerate(wires):
        wire.open().say(0, EVENT)
        if number % 3 == 0:
            wire.close()
    wires[1].time_ns = START_NS + count * 10**9
    for _ in range(4):
        wires[1].say(0, EVENT)
    return sorted((packet for wire in wires for packet in wire.packets), key=lambda packet: packet.time_ns)


def test_more_connections_than_are_followed_end_those_that_were_silent_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_CONNECTIONS", 10)
    packets, found, reader = crowd(30), Found(), CaptureReader(Choice.parse())
    for number in range(0, len(packets), 12):
        (tmp_path / f"{number}.pcap").write_bytes(pcap(packets[number : number + 12], nano=True))
        before = read_files([tmp_path / f"{number}.pcap"], reader, finish=False)
        found.messages += before.messages
        found.rejects += before.rejects
        found.events += before.events
        assert len(reader.connections) <= 10
    found.add(reader.finish())
    # Of thirty, ten are closed and forgotten without a word. All that was said is there.
    assert len(found.messages) == 34
    assert {row["clause"] for row in found.rejects} == {"capture.crowded", "capture.midstream"}
    crowded = [row for row in found.rejects if row["clause"] == "capture.crowded"]
    assert all("connections at a time" in str(row["detail"]) for row in crowded)
    limits = [event for event in found.events if event.reason == "limit"]  # type: ignore[attr-defined]
    assert len(limits) == len(crowded) >= 10


@pytest.mark.parametrize("suffix", ["zst", "gz"])
@pytest.mark.parametrize("headed", [True, False], ids=["packets of no bytes", "zeros"])
def test_a_compressed_file_that_unpacks_to_too_much_is_read_to_its_limit(
    suffix: str, headed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_UNPACKED", 1 << 26)
    content = (pcap([]) if headed else b"") + bytes(1 << 28)
    packed = zstandard.compress(content) if suffix == "zst" else gzip.compress(content, 9)
    path = tmp_path / f"a.pcap.{suffix}"
    path.write_bytes(packed)
    del content
    list(Capture(str(path)))  # what is loaded once is no part of what is measured
    tracemalloc.start()
    capture = Capture(str(path))
    for _ in capture:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert capture.damage is not None
    assert ("unpacks to more than" if headed else "neither pcap nor pcapng") in capture.damage.reason
    assert capture.damage.offset + capture.lost_size <= 1 << 26
    assert peak < 400 << 20


def test_a_compressed_file_within_the_limit_is_read_to_its_end(tmp_path: Path) -> None:
    wire = Wire().open()
    for _ in range(50):
        wire.say(0, EVENT * 1000)
    path = tmp_path / "a.pcap.zst"
    path.write_bytes(zstandard.compress(pcap(wire.close().packets)))
    found = read_files([path])
    assert len(found.messages) == 50_000 and not found.rejects
