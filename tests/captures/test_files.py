"""Files of every form, near and far; fragments, datagrams, tagged payloads; what tshark says of the same files."""

from __future__ import annotations

import gzip
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard

from tests.captures import writing
from tests.captures.conversations import Wire, exchange, expected, mixed_up, talk
from tests.captures.reading import read_files, read_packets
from tests.captures.writing import START_NS, Captured, pcap, pcapng
from tests.disks import BadSectors
from tests.object_store import S3Server, bucket, s3_server  # noqa: F401
from tests.store_faults import FaultProxy
from wireloom.journal.blocks import encode_tags
from wireloom.model import ConfigError, Direction
from wireloom.pipeline.captures import storage
from wireloom.pipeline.captures.detect import Choice
from wireloom.pipeline.captures.fragments import MOST_DATAGRAMS, Fragments
from wireloom.pipeline.captures.reader import CaptureReader, read_captures
from wireloom.protocols.hsp import frames
from wireloom.store import StoreError, open_store

MESH_PACKET = bytes.fromhex("010000002a0003000000006553f10000050103612f62")
A, B = "10.0.0.1:4000", "10.0.0.2:5041"
Pack = Callable[[bytes], bytes]


def conversation(seed: int, link: int = 1) -> tuple[Wire, tuple[bytes, bytes]]:
    rng = random.Random(seed)
    streams = talk("hsp", rng, 30)
    return exchange(Wire(link=link).open(), streams, rng).close(), streams


def test_compressed_captures_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire, streams = conversation(1)
    whole = pcapng(wire.packets)
    for piece in (storage.PIECE, 700):  # the second: many pieces a file
        monkeypatch.setattr(storage, "PIECE", piece)
        for name, data in (
            ("a.pcapng", whole), ("a.pcapng.gz", gzip.compress(whole)), ("a.zst", zstandard.compress(whole)),
            ("two.gz", gzip.compress(whole[:900]) + gzip.compress(whole[900:])),
        ):  # fmt: skip
            path = tmp_path / name
            path.write_bytes(data)
            found = read_files([path])
            assert found.said("c2s") == expected("hsp", streams[0], Direction.C2S) and not found.rejects


PACKERS: list[Pack] = [partial(gzip.compress, compresslevel=0), gzip.compress, partial(zstandard.compress, level=1)]


def many_packets() -> bytes:
    """More than is unpacked in one step, and hardly to be compressed."""
    rng = random.Random(2)
    return pcap([Captured(START_NS + number, rng.randbytes(1000)) for number in range(1000)])


@pytest.mark.parametrize("page", [0, 1, 100, 248])
def test_a_capture_with_an_unreadable_sector_gives_what_stands_before_it(
    page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, disk = tmp_path / "a.pcap", BadSectors(page)
    path.write_bytes(many_packets())
    capture = storage.Capture(str(path), disk=disk)
    packets = sum(len(packets) for packets, _ in capture)
    assert packets == max(page * 4096 - 24, 0) // 1016
    assert capture.damage is not None
    assert capture.damage.reason == "cannot be read: Input/output error"
    at = 24 + packets * 1016 if page else 0
    assert (capture.damage.offset, capture.lost_size) == (at, path.stat().st_size - at)
    assert f"{path}: cannot be read at byte {page * 4096}: Input/output error" in caplog.text
    monkeypatch.setattr(storage.Capture.__init__, "__defaults__", (None, disk))
    (rejected,) = read_files([path]).rejects
    assert (rejected["clause"], rejected["offset"]) == ("capture.damaged", at)


def test_a_capture_that_cannot_be_read_just_now_is_an_error_and_no_reject(
    s3_server: S3Server,  # noqa: F811
    bucket: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_store(bucket).put("one.pcap", many_packets())
    with FaultProxy(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setattr("wireloom.store.bucket.TRIES", 1)
        packets = iter(storage.Capture(f"{bucket}/one.pcap"))
        proxy.seed(1, 1.0, ("500",))
        with pytest.raises(StoreError, match="cannot read it: status 500"):
            list(packets)


@pytest.mark.parametrize("cut_at", [3, 20, 30, 1000])
def test_a_capture_that_is_cut_off_gives_one_reject_with_its_place(cut_at: int, tmp_path: Path) -> None:
    wire, _ = conversation(3)
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(wire.packets)[:cut_at])
    (damaged,) = [row for row in read_files([path]).rejects if row["clause"] == "capture.damaged"]
    assert damaged["offset"] + damaged["size"] == cut_at  # type: ignore[operator]
    assert damaged["file"] == str(path)


def test_captures_in_an_object_store_are_listed_and_read(bucket: str) -> None:  # noqa: F811
    wire, streams = conversation(4)
    store = open_store(f"{bucket}/taken")
    half = len(wire.packets) // 2
    store.put("one.pcap", pcap(wire.packets[:half]))
    store.put("two.pcap.gz", gzip.compress(pcap(wire.packets[half:])))
    store.put("notes.txt", b"x")
    store.put("below/three.pcap", b"x")
    for given in (f"{bucket}/taken", f"{bucket}/taken/", f"{bucket}/taken/[ot]*.pcap*"):
        listed = storage.list_captures(given)
        assert [Path(path).name for path in listed] == ["one.pcap", "two.pcap.gz"]
        found = read_files(list(listed))
        assert found.said("c2s") == expected("hsp", streams[0], Direction.C2S)
    assert list(storage.list_captures(f"{bucket}/taken/one.pcap")) == [f"{bucket}/taken/one.pcap"]
    with pytest.raises(ConfigError, match="there is no such capture"):
        storage.list_captures(f"{bucket}/taken/four.pcap")


def test_one_capture_a_direction_is_merged_by_time(tmp_path: Path) -> None:
    wire, streams = conversation(5)
    to_server = [p for p in wire.packets if p.data[26:30] == bytes([10, 0, 0, 1])]
    back = [p for p in wire.packets if p not in to_server]
    (tmp_path / "a.pcap").write_bytes(pcap(to_server, nano=True))
    (tmp_path / "b.pcapng").write_bytes(pcapng(back))
    found = read_files([tmp_path / "a.pcap", tmp_path / "b.pcapng"])
    assert found.said("c2s") == expected("hsp", streams[0], Direction.C2S)
    assert found.said("s2c") == expected("hsp", streams[1], Direction.S2C)
    assert found.whats() == [("opened", None), ("closed", "close")]
    (tmp_path / "whole.pcap").write_bytes(pcap(wire.packets, nano=True))
    whole = read_files([tmp_path / "whole.pcap"])
    assert {m["connection"] for m in found.messages} == {m["connection"] for m in whole.messages}
    assert sorted(str(m["time"]) for m in found.messages) == sorted(str(m["time"]) for m in whole.messages)


def test_rows_say_where_in_the_file_their_bytes_are(tmp_path: Path) -> None:
    bodies = [b"body-%d" % number for number in range(30)]
    wire = Wire().open()
    for body in bodies:
        wire.say(0, frames.encode(frames.Data(7, body)))
    path = tmp_path / "a.pcapng"
    path.write_bytes(pcapng(mixed_up(wire.close().packets, random.Random(6))))
    data = path.read_bytes()
    for row in read_files([path]).messages:
        at, size = int(row["offset"]), int(row["wire_size"])  # type: ignore[call-overload]
        assert data[at : at + size] == frames.encode(frames.Data(7, row["body"]))  # type: ignore[arg-type]


def fragments_of(source: str, destination: str, protocol: int, content: bytes, sizes: int, ident: int) -> list[bytes]:
    places = range(0, len(content), sizes)
    return [
        writing.ip(
            source,
            destination,
            protocol,
            content[at : at + sizes],
            ident=ident,
            offset=at,
            more=at + sizes < len(content),
        )
        for at in places
    ]


@pytest.mark.parametrize("ends", [(A, B), ("[fd00::1]:4000", "[fd00::2]:5041")])
def test_fragments_become_datagrams_in_any_order(ends: tuple[str, str], tmp_path: Path) -> None:
    rng = random.Random(1)
    packets = []
    for number in range(5):
        parts = fragments_of(*ends, 17, writing.udp(*ends, MESH_PACKET), 8, 100 + number)
        rng.shuffle(parts)
        packets += [Captured(START_NS + len(packets) * 1000 + i, writing.linked(p, 1)) for i, p in enumerate(parts)]
    segment = writing.tcp("10.0.0.1:4000", "10.0.0.3:5042", 1, b"", writing.SYN)
    packets += [
        Captured(START_NS + 10**6, writing.linked(p, 1))
        for p in fragments_of("10.0.0.1:1", "10.0.0.3:1", 6, segment, 8, 7)
    ]
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(packets, nano=True))
    reader = CaptureReader(Choice.parse())
    found = read_files([path], reader, finish=False)
    assert [m["wire_size"] for m in found.messages] == [len(MESH_PACKET)] * 5
    assert [key[4] for key in reader.connections if key[0] == 6] == [5042]
    assert reader.counts.lost_fragments == 0


def test_a_datagram_may_begin_in_one_capture_and_end_in_the_next(tmp_path: Path) -> None:
    packets = [
        Captured(START_NS + number * 10**6, writing.linked(part, 1))
        for number, part in enumerate(fragments_of(A, B, 17, writing.udp(A, B, MESH_PACKET), 8, 1))
    ]
    whole = read_packets(packets, tmp_path)
    assert [m["wire_size"] for m in whole.messages] == [len(MESH_PACKET)]
    in_batches = read_packets(packets, tmp_path, cuts=len(packets) - 1)
    assert [(m["time"], m["body"]) for m in in_batches.messages] == [(m["time"], m["body"]) for m in whole.messages]
    at_once = read_files(sorted(tmp_path.glob("*.pcap")))
    assert [m["wire_size"] for m in at_once.messages] == [len(MESH_PACKET)]


def test_fragments_that_never_become_whole_are_bounded_and_counted() -> None:
    fragments = Fragments()
    first, last = fragments_of(A, B, 17, bytes(16), 8, 1)
    assert fragments.add(first, True, 0) is None and fragments.add(last, True, 61_000_000) is None
    assert fragments.lost == 1  # the first came too long ago
    for number in range(MOST_DATAGRAMS + 10):
        fragments.add(fragments_of(A, B, 17, bytes(16), 8, 2 + number)[0], True, 61_000_000)
    assert fragments.lost == 1 + 11 and fragments.add(first[:24], False, 0) is None
    # Between two batches only those are kept that may still become whole.
    assert len(fragments.freeze(121_000_000)) == MOST_DATAGRAMS and not fragments.freeze(121_000_001)


def test_datagrams_by_port_and_recognised(tmp_path: Path) -> None:
    for port, choice, count in (
        (5041, Choice.parse(auto=False), 3),
        (9999, Choice.parse(), 3),
        (9999, Choice.parse(auto=False), 0),
    ):
        ends = (A, f"10.0.0.2:{port}")
        packets = [
            Captured(START_NS + i, writing.linked(writing.ip(*ends, 17, writing.udp(*ends, MESH_PACKET)), 1))
            for i in range(3)
        ]
        path = tmp_path / "a.pcap"
        path.write_bytes(pcap(packets, nano=True))
        found = read_files([path], CaptureReader(choice))
        assert len(found.messages) == count
        assert [(m["source"], m["destination"], m["direction"], m["sequence"]) for m in found.messages] == [
            (ends[0], ends[1], "dgram", number) for number in range(count)
        ]


def test_a_bad_datagram_and_a_cut_one_do_not_stop_the_next(tmp_path: Path) -> None:
    payloads = (MESH_PACKET, b"\x09" + MESH_PACKET[1:], MESH_PACKET, MESH_PACKET)
    packets = [
        Captured(START_NS + i, writing.linked(writing.ip(A, B, 17, writing.udp(A, B, p)), 1))
        for i, p in enumerate(payloads)
    ]
    packets[2] = Captured(packets[2].time_ns, packets[2].data, kept=len(packets[2].data) - 4)
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(packets, nano=True))
    found = read_files([path])
    assert len(found.messages) == 2
    assert "capture.truncated" in found.clauses() and len(found.rejects) == 2
    total = sum(m["wire_size"] for m in found.messages) + sum(r["size"] for r in found.rejects)  # type: ignore[misc]
    assert total == 4 * len(MESH_PACKET) - 4


def test_packets_beyond_the_limits_of_the_specification_are_reported(tmp_path: Path) -> None:
    reserved = MESH_PACKET[:5] + b"\x80" + MESH_PACKET[6:]
    large = MESH_PACKET[:15] + (5 + 3 * 202).to_bytes(2) + MESH_PACKET[17:] + (b"\x04\xc8" + b"x" * 200) * 3
    packets = [
        Captured(START_NS + i, writing.linked(writing.ip(A, B, 17, writing.udp(A, B, p)), 1))
        for i, p in enumerate((MESH_PACKET, reserved, large))
    ]
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(packets, nano=True))
    found = read_files([path])
    assert len(found.messages) == 1
    assert found.clauses() == ["mesh.flags.reserved", "mesh.payload.too-large"]


def test_payloads_that_were_cut_out_and_tagged_are_read(tmp_path: Path) -> None:
    tags = encode_tags("hsp", "10.0.0.1:4000", "10.0.0.2:5042")
    bodies = [b"one", b"two", b"three"]
    packets = [Captured(START_NS + i, tags + frames.encode(frames.Data(7, body))) for i, body in enumerate(bodies)]
    path = tmp_path / "exported.pcapng"
    path.write_bytes(pcapng(packets, 252))
    found = read_files([path])
    assert [body for _, _, body in found.said("c2s")] == bodies
    assert {(m["source"], m["destination"]) for m in found.messages} == {("10.0.0.1:4000", "10.0.0.2:5042")}


tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


@tshark
@pytest.mark.parametrize("link", [1, 0, 101, 113, 276])
def test_tshark_sees_the_same_packets_and_the_same_streams(link: int, tmp_path: Path) -> None:
    rng = random.Random(link)
    streams = talk("yamp", rng, 25)
    wire = exchange(Wire(server="10.0.0.2:5043", link=link, isn=(10, 20)).open(), streams, rng).close()
    path = tmp_path / "a.pcapng"
    # Repeated packets only: tshark takes bytes for missing that come after the packet which acknowledges them.
    path.write_bytes(pcapng(mixed_up(wire.packets, rng, far=1), link))
    counted = tshark_of(path, "-T", "fields", "-e", "frame.number").split()
    reader = CaptureReader(Choice.parse())
    for _ in read_captures([str(path)], reader):
        pass
    assert len(counted) == reader.counts.packets
    followed = tshark_of(path, "-q", "-z", "follow,tcp,raw,0")
    lines = [line for line in followed.splitlines() if line and set(line.strip()) <= set("0123456789abcdef")]
    sides = [bytes.fromhex("".join(line for line in lines if line.startswith("\t") is back)) for back in (False, True)]
    assert sides == list(streams)
    found = read_files([path])
    assert found.said("c2s") == expected("yamp", sides[0], Direction.C2S)
    assert found.said("s2c") == expected("yamp", sides[1], Direction.S2C)


def tshark_of(path: Path, *arguments: str) -> str:
    done = subprocess.run(["tshark", "-r", str(path), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
