"""The reader: messages with their place, continuation, and files that are no journal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wireloom.journal import Journal, Record, Unreadable, read_all, read_blocks, read_messages, segments
from wireloom.model import Direction, JournalError, Kind
from wireloom.protocols.hsp import frames

from .conftest import TOPICS, data


def test_messages_come_back_with_time_connection_direction_and_topic(folder):
    entries = list(read_messages(folder))
    kinds = [(entry.message.kind, entry.message.direction, entry.message.topic) for entry in entries]
    assert kinds == [
        (Kind.EVENT, Direction.C2S, "sensors/kitchen"),
        (Kind.EVENT, Direction.C2S, "alerts/küche"),
        (Kind.REQUEST, Direction.C2S, "sensors/kitchen"),
        (Kind.RESPONSE, Direction.S2C, None),
        (Kind.EVENT, Direction.C2S, "sensors/kitchen"),
        (Kind.PING, Direction.C2S, None),
    ]
    assert [entry.sequence for entry in entries] == [0, 1, 2, 0, 3, 4]
    opened = next(f.block for f in read_all(folder) if isinstance(f, Record) and f.block.record == "opened")
    assert {entry.message.connection for entry in entries} == {f"{opened.connection:016x}"}
    times = [entry.message.time for entry in entries]
    assert times == sorted(times) and times[0] >= opened.time_ns


def test_offset_and_size_are_the_place_of_the_bytes(folder):
    raw = segments(folder)[0].read_bytes()
    first, second, third, *_ = read_messages(folder)
    assert raw[first.offset : first.offset + first.size] == data("hello")
    assert raw[second.offset : second.offset + second.size] == data("wörld", 10)
    assert raw[third.offset : third.offset + third.size] == frames.encode(frames.DataAck(3, 7, b"\xff\x00"))


def test_a_message_larger_than_a_block_is_joined(folder):
    large = next(entry for entry in read_messages(folder) if len(entry.message.body) > 1000)
    assert large.message.body == b"L" * 300_000
    pieces = [block for block in read_blocks(segments(folder)[0]) if block.sequence == 3]
    assert [block.more for block in pieces] == [True, True, False]
    assert large.offset == pieces[0].payload_offset


def test_a_range_of_a_segment_can_be_read_by_itself(folder):
    (segment,) = segments(folder)
    everything = list(read_blocks(segment))
    middle = everything[3:6]
    assert list(read_blocks(segment, middle[0].offset, middle[-1].offset + middle[-1].size)) == middle


def test_bytes_that_do_not_decode_are_told_and_the_next_block_is_read(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, data("a") + b"\x09rest")
        journal.append("hsp", 1, Direction.C2S, 1, data("b"), topics=TOPICS)
    found = [each for each in read_all(tmp_path) if not isinstance(each, Record)]
    assert [type(each) for each in found] != []
    assert isinstance(found[1], Unreadable)
    assert (found[1].clause, found[1].size) == ("hsp.command.unknown", 5)
    assert [entry.message.body for entry in read_messages(tmp_path)] == [b"a", b"b"]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\x0a\x0d\x0d\x0a", b"\xd4\xc3\xb2\xa1" + bytes(20), bytes(100), b"x" * 5000],
)
def test_a_file_that_is_no_journal_is_called_so(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"notes\.txt: no journal segment"):
        list(read_blocks(path))


def test_a_capture_of_another_program_is_called_no_journal(tmp_path, folder):
    (segment,) = segments(folder)
    other = segment.read_bytes().replace(b"wireloom journal 2", b"a capture of mine!")
    path = tmp_path / "capture.pcapng"
    path.write_bytes(other)
    with pytest.raises(JournalError, match="without a comment 'wireloom journal 2'"):
        list(read_blocks(path))


def test_a_folder_without_segments_is_called_no_journal(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(JournalError, match="no journal here"):
            segments(path)


def test_damage_names_the_segment_the_byte_and_the_next_step(folder):
    (segment,) = segments(folder)
    first = next(block for block in read_blocks(segment) if block.payload)
    broken = bytearray(segment.read_bytes())
    broken[first.payload_offset] ^= 1
    segment.write_bytes(broken)
    with pytest.raises(JournalError, match=rf"wrong hash at byte {first.offset}; `wireloom journal verify"):
        list(read_messages(folder))


def test_reading_and_writing_need_no_third_party_package(folder):
    script = (
        "import sys\nsys.modules['numpy'] = sys.modules['numba'] = None\n"
        "from wireloom.journal import read_messages\n"
        f"print(sum(1 for _ in read_messages({str(folder)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6"
