"""The writer: files, order, rotation, lock, topic maps, refused bytes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wireloom.journal import Journal, blocks, committed_length, read_blocks, read_messages, segments
from wireloom.journal.context import Principal
from wireloom.journal.segment import committed_path, first_packet_id, is_sealed
from wireloom.journal.verify import verify
from wireloom.model import Direction, JournalError, Kind
from wireloom.protocols.hsp import frames

from .conftest import CLIENT, SERVER, TOPICS, data


def all_blocks(folder: Path):
    return [block for segment in segments(folder) for block in read_blocks(segment)]


def test_nothing_is_readable_before_the_commit_and_everything_after(tmp_path):
    with Journal.open(tmp_path) as journal:
        before = len(all_blocks(tmp_path))
        ticket = journal.append("hsp", 1, Direction.C2S, 0, data("a"))
        assert ticket > journal.durable and journal.pending_bytes > 0
        assert len(all_blocks(tmp_path)) == before
        assert journal.commit() == ticket == journal.durable
        assert journal.pending_bytes == 0
        assert len(all_blocks(tmp_path)) == before + 1


def test_committed_length_is_twenty_digits_beside_the_segment_until_it_is_sealed(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, data("a"))
        journal.commit()
        (segment,) = segments(tmp_path)
        text = committed_path(segment).read_text()
        assert text == f"{segment.stat().st_size:020d}\n"
        assert committed_length(segment) == int(text)
    assert is_sealed(segment)
    assert committed_length(segment) == segment.stat().st_size


def test_a_reader_trusts_the_committed_length_not_the_size(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, data("a"))
        journal.commit()
        (segment,) = segments(tmp_path)
        with segment.open("ab") as file:
            file.write(b"half a blo")
        assert [block.record for block in read_blocks(segment)] == ["started", None]


def test_files_are_readable_by_their_owner_only(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_packet_ids_ascend_by_one_across_segments_and_restarts(tmp_path):
    for _ in range(3):
        with Journal.open(tmp_path, segment_bytes=2000) as journal:
            for number in range(20):
                journal.append("hsp", 1, Direction.C2S, number, data("x" * 100))
                journal.commit()
    ids = [block.packet_id for block in all_blocks(tmp_path)]
    assert ids == list(range(1, len(ids) + 1))
    assert len(segments(tmp_path)) > 6
    for segment in segments(tmp_path):
        assert next(read_blocks(segment)).packet_id == first_packet_id(segment)
    assert list(verify(tmp_path)) == []


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_a_segment_is_left_once_it_is_larger_than_the_limit(tmp_path, every):
    limit = 10_000
    with Journal.open(tmp_path, segment_bytes=limit) as journal:
        for number in range(200):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 400))
            if number % every == 0:
                journal.commit()
        journal.commit()
        assert [is_sealed(segment) for segment in segments(tmp_path)][:-1] == [True] * (len(segments(tmp_path)) - 1)
    sizes = [segment.stat().st_size for segment in segments(tmp_path)]
    assert len(sizes) > 5
    assert all(limit < size < limit + 1000 for size in sizes[:-1])


def test_a_run_is_never_split_between_segments(tmp_path):
    with Journal.open(tmp_path, segment_bytes=100_000) as journal:
        for number in range(4):
            journal.append("hsp", 1, Direction.C2S, number, frames.encode(frames.Data(1, b"x" * 400_000)))
        journal.commit()
    for segment in segments(tmp_path):
        runs = list(read_blocks(segment))
        assert not runs[-1].more
        assert [block.more for block in runs if block.record is None] in ([True] * 3 + [False], [])
    assert all(len(b.payload) + (b.payload_offset - b.offset - 28) <= 131_072 for b in all_blocks(tmp_path))
    assert sum(1 for _ in read_messages(tmp_path)) == 4


def test_each_segment_states_the_maps_it_uses_before_they_are_used(tmp_path):
    other = {1: "other/topic"}
    with Journal.open(tmp_path, segment_bytes=3000) as journal:
        for number in range(60):
            journal.append(
                *("hsp", 1, Direction.C2S, number, data("x" * 100, 7)),
                topics=TOPICS if number % 2 else other,
            )
        journal.commit()
    assert len(segments(tmp_path)) > 3
    for segment in segments(tmp_path):
        stated = []
        for block in read_blocks(segment):
            if block.record == "context":
                stated.append(int(block.details["ctx"], 16))
            elif block.context is not None:
                assert block.context in stated
        assert len(stated) == len(set(stated))


def test_topics_that_change_in_place_are_a_new_map(tmp_path):
    topics = {7: "before"}
    with Journal.open(tmp_path) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, data("a"), topics=topics)
        topics[7] = "after"
        journal.append("hsp", 1, Direction.C2S, 1, data("a"), topics=topics)
    assert [entry.message.topic for entry in read_messages(tmp_path)] == ["before", "after"]


def test_a_second_writer_gets_one_clear_line(tmp_path):
    with Journal.open(tmp_path):
        script = f"from wireloom.journal import Journal; Journal.open({str(tmp_path)!r})"
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert second.returncode == 1
        last = second.stderr.strip().splitlines()[-1]
        assert f"another process (pid {os.getpid()}) writes this journal" in last
        with pytest.raises(JournalError, match="another process"):
            Journal.open(tmp_path)
    Journal.open(tmp_path).close()


def test_a_folder_that_is_a_file_gives_a_clear_line(tmp_path):
    (tmp_path / "journal").write_text("")
    with pytest.raises(JournalError, match="cannot open the journal"):
        Journal.open(tmp_path / "journal")


def test_refused_bytes_are_kept_apart_cut_to_four_kib(folder):
    record = next(block for block in all_blocks(folder) if block.record == "refused")
    assert record.payload == b""
    assert record.details == {
        "clause": "hsp.command.unknown",
        "detail": "command 9",
        "size": 5000,
        "direction": "c2s",
    }
    (kept,) = all_blocks(folder / "refused")
    assert kept.payload == b"\x09" * 4096
    assert (kept.record, kept.details, kept.connection) == ("refused", record.details, record.connection)
    assert (kept.source, kept.destination, kept.protocol) == (CLIENT, SERVER, "hsp")


def test_refused_bytes_stay_within_their_quota_and_the_newest_are_kept(tmp_path):
    quota = 200_000
    with Journal.open(tmp_path, refused_quota=quota) as journal:
        for number in range(300):
            journal.refuse("hsp", number, Direction.C2S, b"x" * 4096, clause="c", detail="")
            journal.commit()
            assert sum(path.stat().st_size for path in (tmp_path / "refused").iterdir()) <= quota + 5000
    kept = [block.connection for block in all_blocks(tmp_path / "refused")]
    assert len(kept) > 30
    assert kept == list(range(300 - len(kept), 300))
    assert sum(block.record == "refused" for block in all_blocks(tmp_path)) == 300
    assert list(verify(tmp_path)) == []


def test_many_refused_bytes_at_once_do_not_fill_the_memory(tmp_path):
    with Journal.open(tmp_path) as journal:
        for number in range(1000):
            journal.refuse("hsp", number, Direction.C2S, b"x" * 4096, clause="c", detail="")
        assert journal.refused_dropped > 0
    assert sum(block.record == "refused" for block in all_blocks(tmp_path)) == 1000


def test_connection_ids_are_never_repeated_even_when_the_clock_goes_back(tmp_path, monkeypatch):
    ids = set()
    clock = 2_000_000_000_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: clock)
    for _ in range(5):
        with Journal.open(tmp_path) as journal:
            ids |= {journal.new_connection_id() for _ in range(1000)}
        clock -= 50_000_000
    assert len(ids) == 5000
    assert all(0 < number < 2**63 for number in ids)


def test_started_and_stopped_frame_every_run_of_the_writer(folder):
    names = [block.record for block in all_blocks(folder) if block.record]
    assert names == ["started", "opened", "context", "refused", "closed", "stopped"]


def test_without_sync_everything_is_still_written_and_readable(tmp_path, fill):
    with Journal.open(tmp_path, sync=False) as journal:
        fill(journal)
        journal.commit()
        assert Kind.EVENT in {entry.message.kind for entry in read_messages(tmp_path)}


def test_what_is_said_about_a_run_stands_right_before_it_in_the_same_segment(tmp_path):
    with Journal.open(tmp_path, segment_bytes=3000) as journal:
        for number in range(200):
            said = [blocks.record_comment("taken", {"ids": [str(number)]}, 1)] if number % 2 else []
            run = data("x" * (number * 37 % 600))
            journal.append("hsp", 1, Direction.C2S, number, run, topics=TOPICS, said=said)
            if number % 3 == 0:
                journal.commit()
    assert len(segments(tmp_path)) > 10
    for segment in segments(tmp_path):
        before = None
        for block in read_blocks(segment):
            if block.direction is not None and block.sequence % 2:
                assert before is not None
                assert before.details == {"ids": [str(block.sequence)]}
            before = block if block.record == "taken" else None


def test_the_principal_is_stated_in_each_segment_and_where_it_changes(tmp_path):
    alice, bob = Principal(1, "token:alice"), Principal(1, "token:bob")
    with Journal.open(tmp_path, segment_bytes=3000) as journal:
        for number in range(100):
            principal = None if number < 5 else alice if number < 60 else bob
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 100), principal=principal)
            journal.append("hsp", 2, Direction.C2S, number, data("x" * 100))
    assert len(segments(tmp_path)) > 5
    for segment in segments(tmp_path):
        stated, times = None, 0
        for block in read_blocks(segment):
            if block.record == "principal":
                stated, times = block.details["principal"], times + 1
            elif block.connection == 1 and block.direction is not None:
                assert stated == (None if block.sequence < 5 else "token:alice" if block.sequence < 60 else "token:bob")
        assert times <= 2
