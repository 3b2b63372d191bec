"""A journal, however it is cut into ranges, decodes to what its plain reader finds."""

from __future__ import annotations

import itertools
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.journals import MAPS, START_NS, compared, expected_messages, expected_rejects
from wireloom.journal import Journal, read_blocks, segments
from wireloom.journal.blocks import MAX_PACKET_DATA
from wireloom.journal.context import Context
from wireloom.model import Direction, JournalError, Kind, Message
from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.message_table import plain
from wireloom.pipeline.planning import Range, latest, plan
from wireloom.pipeline.schemas import MESSAGES, REJECTS, arrow_schema
from wireloom.protocols.emp import EMP
from wireloom.protocols.hsp import frames


def decode(ranges: list[Range]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    found = [decode_range(part) for part in ranges]
    messages = pa.concat_tables([plain(d.messages, MESSAGES) for d in found])
    rejects = pa.concat_tables([plain(d.rejects, REJECTS) for d in found])
    return messages.to_pylist(), rejects.to_pylist()


def whole(folder: Path) -> list[Range]:
    return plan([str(folder)], {}, latest([str(folder)]))


def cut(parts: list[Range], positions: list[float]) -> list[Range]:
    found = []
    for part in parts:
        places = sorted({part.start, part.end, *(int(part.start + p * part.size) for p in positions)})
        found += [replace(part, start=a, end=b) for a, b in itertools.pairwise(places)]
    return found


def test_messages_and_rejects_are_what_the_plain_reader_finds(journal: Path) -> None:
    messages, rejects = decode(whole(journal))
    assert compared(messages) == expected_messages(journal)
    found = sorted(((r["clause"], r["size"], r["bytes"]) for r in rejects), key=repr)
    assert found == expected_rejects(journal)
    assert len(found) == 3


@settings(max_examples=10)
@given(positions=st.lists(st.floats(0, 1, exclude_max=True), max_size=6))
def test_any_cut_gives_every_message_exactly_once(journal: Path, positions: list[float]) -> None:
    messages, rejects = decode(cut(whole(journal), positions))
    assert compared(messages) == expected_messages(journal)
    assert len(rejects) == 3


def test_rows_have_exactly_the_types_of_the_tables(journal: Path) -> None:
    for part in whole(journal):
        found = decode_range(part)
        assert plain(found.messages, MESSAGES).schema.equals(arrow_schema(MESSAGES.columns))
        assert plain(found.rejects, REJECTS).schema.equals(arrow_schema(REJECTS.columns))


def test_other_columns_say_who_spoke_and_how_large(journal: Path) -> None:
    messages, _ = decode(whole(journal))
    for row in messages:
        assert row["protocol"] == "hsp"
        assert row["authenticity"] == "none"
        assert row["body_size"] == len(row["body"])  # type: ignore[arg-type]
        assert row["date"] == row["time"].date()  # type: ignore[attr-defined]
        ends = ["10.0.0.1:4000", "10.0.0.2:5042"]
        assert [row["source"], row["destination"]] == (ends if row["direction"] == "c2s" else ends[::-1])


def test_every_byte_of_the_accepted_frames_is_in_a_message(journal: Path) -> None:
    messages, _ = decode(whole(journal))
    payload = sum(
        len(block.payload) for path in segments(journal) for block in read_blocks(path) if block.record is None
    )
    assert sum(row["wire_size"] for row in messages) == payload  # type: ignore[misc]


def test_topic_map_from_earlier_in_the_segment_is_honoured(tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        connection = journal.new_connection_id()
        for sequence in range(3):
            run = frames.encode(frames.Data(1, b"x"))
            journal.append("hsp", connection, Direction.C2S, sequence, run, topics=MAPS[0], time_ns=START_NS)
    (part,) = whole(tmp_path)[:1]
    offsets = [row["offset"] for row in decode([part])[0]]
    last = Range(part.file, int(offsets[1]) + 1, part.end)  # type: ignore[call-overload]
    (row,) = decode([last])[0]
    assert (row["sequence"], row["topic"]) == (2, "sensors/kitchen")


def test_a_context_in_several_records_is_united_wherever_a_range_begins(tmp_path: Path) -> None:
    topics = {number: f"rooms/{number}/{'x' * 200}" for number in range(1, 1000)}
    with Journal.open(tmp_path, sync=False) as journal:
        connection = journal.new_connection_id()
        for sequence in range(2):
            run = b"".join(frames.encode(frames.Data(number, b"x")) for number in (1, 500, 999))
            journal.append("hsp", connection, Direction.C2S, 3 * sequence, run, topics=topics, time_ns=START_NS)
    (part,) = whole(tmp_path)[:1]
    stated = [block.offset for block in read_blocks(part.file) if block.record == "context"]
    assert len(stated) > 2
    for at in stated:
        rows = decode([Range(part.file, at + 1, part.end)])[0]
        assert {row["topic"] for row in rows} == {topics[number] for number in (1, 500, 999)}


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"size_mode": "sideways"}, "setting 'size_mode' is 'sideways'"),
        ({"size_mode": False}, "setting 'size_mode' is False"),
    ],
)
def test_what_a_later_version_agreed_on_is_a_reject_and_no_end(
    tmp_path: Path, settings: dict[str, str | bool], detail: str
) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        for context in (Context({}, {"colour": "blue"}), Context({}, settings), None):
            data = EMP.encode(Message(Kind.PING), EMP.settings())
            journal.append("emp", journal.new_connection_id(), Direction.C2S, 0, data, topics=context)
    messages, rejects = decode(whole(tmp_path))
    assert [row["kind"] for row in messages] == ["ping", "ping"]
    (reject,) = rejects
    assert reject["clause"] == "protocol.setting"
    assert detail in str(reject["detail"])


def test_a_continued_run_belongs_to_the_range_of_its_first_block(tmp_path: Path) -> None:
    body = bytes(range(256)) * 1600
    with Journal.open(tmp_path, sync=False) as journal:
        connection = journal.new_connection_id()
        run = b"".join(map(frames.encode, (frames.PING, frames.Data(5, body), frames.PONG)))
        journal.append("hsp", connection, Direction.C2S, 7, run, time_ns=START_NS)
    (part,) = whole(tmp_path)[:1]
    rows = decode([Range(part.file, 0, 1000)])[0]
    assert [(r["kind"], r["sequence"], r["body"]) for r in rows] == [
        ("ping", 7, b""),
        ("event", 8, body),
        ("pong", 9, b""),
    ]
    segment = Path(part.file).read_bytes()
    assert segment[int(rows[2]["offset"])] == frames.Command.PONG  # type: ignore[call-overload]
    assert len(body) > 3 * MAX_PACKET_DATA
    assert decode([Range(part.file, 1000, part.end)])[0] == []


def write_runs(folder: Path, runs: list[bytes], protocol: str = "hsp") -> Path:
    with Journal.open(folder, sync=False) as journal:
        connection = journal.new_connection_id()
        for number, run in enumerate(runs):
            journal.append(protocol, connection, Direction.C2S, number, run, time_ns=START_NS)
    return segments(folder)[0]


def test_a_run_that_breaks_its_protocol_loses_its_own_rest_only(tmp_path: Path) -> None:
    path = write_runs(tmp_path, [b"\x03\x09\x03", b"\x04", b"\x03\x0a", b"\x03"])
    messages, rejects = decode(whole(tmp_path))
    assert [(r["kind"], r["sequence"]) for r in messages] == [("ping", 0), ("pong", 1), ("ping", 2), ("ping", 3)]
    assert [(r["clause"], r["bytes"], r["size"]) for r in rejects] == [
        ("hsp.command.unknown", b"\x09\x03", 2),
        ("hsp.command.unknown", b"\x0a", 1),
    ]
    data = path.read_bytes()
    assert all(data[int(r["offset"]) :].startswith(r["bytes"]) for r in rejects)  # type: ignore[call-overload,arg-type]


def test_a_frame_cut_off_by_the_end_of_its_run_is_a_reject(tmp_path: Path) -> None:
    write_runs(tmp_path, [b"\x03\x00\x00", b"\x04"])
    messages, rejects = decode(whole(tmp_path))
    assert [r["kind"] for r in messages] == ["ping", "pong"]
    assert [(r["clause"], r["bytes"]) for r in rejects] == [("stream.cut", b"\x00\x00")]


def test_a_protocol_that_is_not_installed_is_a_reject(tmp_path: Path) -> None:
    write_runs(tmp_path, [b"hello"], protocol="carrier-pigeon")
    messages, rejects = decode(whole(tmp_path))
    assert messages == []
    assert [(r["clause"], r["protocol"], r["bytes"]) for r in rejects] == [
        ("protocol.unknown", "carrier-pigeon", b"hello")
    ]


def test_a_block_with_a_wrong_hash_is_a_reject_and_the_next_is_read(tmp_path: Path) -> None:
    path = write_runs(tmp_path, [b"\x03", frames.encode(frames.Data(1, b"damage me")), b"\x04"])
    data = bytearray(path.read_bytes())
    data[data.index(b"damage me")] ^= 1
    path.write_bytes(data)
    for positions in ([], [0.3, 0.5, 0.7]):
        messages, rejects = decode(cut(whole(tmp_path), positions))
        assert sorted(str(r["kind"]) for r in messages) == ["ping", "pong"]
        assert [(r["clause"], r["detail"], r["size"]) for r in rejects] == [("journal.damaged", "wrong hash", 16)]


def test_where_blocks_end_the_rest_of_the_segment_is_one_reject(tmp_path: Path) -> None:
    path = write_runs(tmp_path, [b"\x03", b"\x04"])
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0" * 20)
    times = set()
    for positions in ([], [0.3, 0.5, 0.99]):
        messages, rejects = decode(cut(whole(tmp_path), positions))
        assert len(messages) == 2
        assert [(r["clause"], r["offset"], r["size"]) for r in rejects] == [("journal.damaged", size, 20)]
        times.add(rejects[0]["time"])
    assert len(times) == 1


def test_a_file_that_is_no_segment_is_named(tmp_path: Path) -> None:
    path = write_runs(tmp_path, [b"\x03"])
    path.write_bytes(b"PK\x03\x04 not a journal")
    with pytest.raises(JournalError, match=f"{path}: no journal segment"):
        decode(whole(tmp_path))


def test_uncommitted_bytes_are_not_read(tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        connection = journal.new_connection_id()
        journal.append("hsp", connection, Direction.C2S, 0, b"\x03", time_ns=START_NS)
        journal.commit()
        (open_segment,) = segments(tmp_path)
        with open_segment.open("ab") as file:
            file.write(struct.pack("<II", 6, 64) + zlib.crc32(b"").to_bytes(4, "little") * 14)
        messages, rejects = decode(whole(tmp_path))
        assert [r["kind"] for r in messages] == ["ping"]
        assert rejects == []
        with open_segment.open("r+b") as file:
            file.truncate(open_segment.stat().st_size - 64)
