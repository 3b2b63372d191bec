"""After a crash: torn tails of every kind, and a writer killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wireloom.journal import Journal, read_blocks, read_messages, segments
from wireloom.journal.blocks import check_head
from wireloom.journal.disk import LocalDisk
from wireloom.journal.recovery import recover
from wireloom.journal.segment import committed_path, is_sealed
from wireloom.journal.verify import verify
from wireloom.model import Direction

from .conftest import CLIENT, SERVER, TOPICS, data


def ids(folder: Path) -> list[int]:
    return [block.packet_id for segment in segments(folder) for block in read_blocks(segment)]


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, int, int]:
    """A journal as a crash leaves it: folder, committed length, size with one block after it."""
    folder = tmp_path / "crashed"
    journal = Journal.open(tmp_path / "live")
    journal.append("hsp", 1, Direction.C2S, 0, data("first"), topics=TOPICS)
    journal.commit()
    (segment,) = segments(tmp_path / "live")
    committed = segment.stat().st_size
    stated = committed_path(segment).read_bytes()
    journal.append("hsp", 1, Direction.C2S, 1, data("last"), source=CLIENT, destination=SERVER, topics=TOPICS)
    journal.commit()
    shutil.copytree(tmp_path / "live", folder)
    committed_path(folder / segment.name).write_bytes(stated)
    journal.close()
    return folder, committed, (folder / segment.name).stat().st_size


def reopen(folder: Path) -> Journal:
    journal = Journal.open(folder)
    assert list(verify(folder)) == []
    assert all(is_sealed(segment) for segment in segments(folder)[:-1])
    return journal


def test_a_tail_torn_at_every_byte_of_the_last_block_is_cut(crashed, tmp_path):
    folder, committed, size = crashed
    (segment,) = segments(folder)
    whole, stated = segment.read_bytes(), committed_path(segment).read_bytes()
    for length in range(committed, size + 1):
        torn = tmp_path / "torn"
        torn.mkdir()
        (torn / segment.name).write_bytes(whole[:length])
        committed_path(torn / segment.name).write_bytes(stated)
        found = recover(torn)
        kept = (torn / segment.name).read_bytes()
        assert kept == (whole if length == size else whole[:committed])
        assert found.last_packet_id == (4 if length == size else 3)
        assert [cut.cut_bytes for cut in found.cuts] == ([length - committed] if committed < length < size else [])
        shutil.rmtree(torn)


def test_writes_torn_at_every_byte_of_a_segment_lose_nothing_that_was_committed(tmp_path):
    """A commit after each message; then the file as if the machine had stopped at any byte of any write."""
    journal = Journal.open(tmp_path / "live")
    commits = []
    for number in range(4):
        journal.append("hsp", 1, Direction.C2S, number, data(str(number)), topics=TOPICS)
        journal.commit()
        commits.append(segments(tmp_path / "live")[0].stat().st_size)
    segment = segments(tmp_path / "live")[0]
    whole = segment.read_bytes()
    journal.close()
    for length in range(len(whole) + 1):
        safe = max((size for size in commits if size <= length), default=0)
        # The length is stated after the sync: either is possible once the bytes are there.
        for stated in {safe, max((size for size in commits if size < safe), default=0)}:
            torn = tmp_path / "torn"
            torn.mkdir()
            (torn / segment.name).write_bytes(whole[:length])
            committed_path(torn / segment.name).write_bytes(b"%020d\n" % stated)
            found = recover(torn)
            assert list(verify(torn)) == []
            bodies = [entry.message.body for entry in read_messages(torn)] if segments(torn) else []
            acknowledged = sum(size <= stated for size in commits)
            assert bodies == [b"%d" % number for number in range(len(bodies))]
            assert len(bodies) >= acknowledged
            if segments(torn):
                assert sum(cut.cut_bytes for cut in found.cuts) == length - segments(torn)[0].stat().st_size
            shutil.rmtree(torn)


RUBBISH = [b"\0" * 4096, b"\0" * 3, b"\xff" * 100, b"\x06\0\0\0\x0c\0\0\0\x0c\0\0\0", b"PK\3\4" * 50]


@pytest.mark.parametrize("tail", RUBBISH)
def test_zeros_and_rubbish_after_the_last_block_are_cut(crashed, tail):
    folder, _, size = crashed
    (segment,) = segments(folder)
    with segment.open("ab") as file:
        file.write(tail)
    with reopen(folder) as journal:
        assert journal.recovery.cuts[0].cut_bytes == len(tail)
        started = next(read_blocks(segments(folder)[-1]))
        assert started.record == "started"
        assert started.details["cut_bytes"] == len(tail)
        assert started.details["segment"] == segment.name
    assert segment.stat().st_size == size


def test_zeros_from_any_sector_on_are_cut_back_to_the_last_whole_block(crashed):
    folder, committed, size = crashed
    (segment,) = segments(folder)
    for start in range(committed, size, 16):
        zeroed = bytearray(segment.read_bytes())
        zeroed[start:] = bytes(size - start)
        copy = folder.parent / "zeroed"
        shutil.copytree(folder, copy)
        (copy / segment.name).write_bytes(zeroed)
        recover(copy)
        assert (copy / segment.name).read_bytes() == zeroed[:committed]
        shutil.rmtree(copy)


def test_flipped_bits_in_the_tail_never_reach_a_reader_as_other_frames(crashed):
    folder, committed, size = crashed
    (segment,) = segments(folder)
    sound = segment.read_bytes()
    for position in range(committed, size):
        broken = bytearray(sound)
        broken[position] ^= 0x10
        copy = folder.parent / "flipped"
        shutil.copytree(folder, copy)
        (copy / segment.name).write_bytes(broken)
        recover(copy)
        bodies = [entry.message.body for entry in read_messages(copy)]
        assert bodies in ([b"first"], [b"first", b"last"])
        shutil.rmtree(copy)


def test_a_large_run_cut_in_its_second_block_is_gone_as_a_whole(tmp_path):
    journal = Journal.open(tmp_path / "live")
    journal.append("hsp", 1, Direction.C2S, 0, data("x" * 300_000))
    journal.commit()
    folder = tmp_path / "crashed"
    shutil.copytree(tmp_path / "live", folder)
    journal.close()
    (segment,) = segments(folder)
    first, second, *_ = [block for block in read_blocks(segment) if block.record is None]
    for end in (second.offset, second.offset + 1000, second.offset + second.size):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        os.truncate(copy / segment.name, end)
        committed_path(copy / segment.name).write_text(f"{first.offset:020d}\n")
        with reopen(copy) as journal:
            assert journal.recovery.cuts[0].cut_bytes == end - first.offset
        shutil.rmtree(copy)


def test_damage_in_the_committed_part_never_costs_what_was_committed_after_it(crashed):
    folder, _, _ = crashed
    (segment,) = segments(folder)
    broken = bytearray(segment.read_bytes())
    first = next(block for block in read_blocks(segment) if block.record is None)
    broken[first.payload_offset] ^= 1
    segment.write_bytes(broken + b"torn")
    recover(folder)
    assert segment.read_bytes() == broken
    assert [fault.reason for fault in verify(folder)] == ["wrong hash"]


def test_packet_ids_are_not_used_twice_after_a_sealed_segment_lost_its_end(tmp_path):
    with Journal.open(tmp_path) as journal:
        for number in range(50):
            journal.append("hsp", 1, Direction.C2S, number, data("x"))
    (segment,) = segments(tmp_path)
    before = ids(tmp_path)
    segment.write_bytes(segment.read_bytes()[:-3])
    with Journal.open(tmp_path):
        assert next(read_blocks(segments(tmp_path)[-1])).packet_id > before[-1]


def test_a_committed_length_that_is_empty_or_too_large_is_not_believed(crashed):
    folder, _, size = crashed
    (segment,) = segments(folder)
    for text in (b"", b"rubbish", b"%020d\n" % (size + 5000)):
        copy = folder.parent / "copy"
        shutil.copytree(folder, copy)
        committed_path(copy / segment.name).write_bytes(text)
        recover(copy)
        assert (copy / segment.name).stat().st_size == size
        assert is_sealed(copy / segment.name)
        shutil.rmtree(copy)


def test_a_segment_that_holds_nothing_yet_disappears(tmp_path):
    Journal.open(tmp_path).close()
    (segment,) = segments(tmp_path)
    head = segment.read_bytes()[: check_head(segment.read_bytes())]
    for content in (b"", head[:50], head):
        name = "00000000000000000003-20300101T000000.000000Z.pcapng"
        (tmp_path / name).write_bytes(content)
        (tmp_path / (name + ".committed")).write_text(f"{0:020d}\n")
        found = recover(tmp_path)
        assert segments(tmp_path) == [segment]
        assert not list(tmp_path.glob("*.committed"))
        assert found.last_packet_id == 2


def test_a_committed_length_without_a_segment_is_removed(tmp_path):
    Journal.open(tmp_path).close()
    (tmp_path / "00000000000000000003-20300101T000000.000000Z.pcapng.committed").write_text("0")
    Journal.open(tmp_path).close()
    assert not list(tmp_path.glob("*.committed"))


def test_blocks_that_went_into_the_next_segment_are_cut_from_the_one_that_failed(tmp_path):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(20):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 100))
            journal.commit()
    first, second, *_ = segments(tmp_path)
    size = first.stat().st_size
    repeated = next(read_blocks(second))
    with first.open("ab") as file:
        file.write(second.read_bytes()[repeated.offset :][: repeated.size])
    committed_path(first).write_text(f"{size:020d}\n")
    recover(tmp_path)
    assert first.stat().st_size == size
    assert list(verify(tmp_path)) == []


WRITER = """
import sys, time
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.protocols.hsp import frames
journal = Journal.open(sys.argv[1], segment_bytes=300_000)
number = 0
while True:
    for _ in range(20):
        size = 200_000 if number % 97 == 0 else number % 500
        run = frames.encode(frames.Data(7, b"%08d" % number + b"x" * size))
        journal.append("hsp", 1, Direction.C2S, number, run, topics={7: "a"})
        number += 1
    journal.commit()
    print(number, flush=True)
"""


@pytest.mark.parametrize("attempt", range(4))
def test_a_writer_killed_under_load_loses_nothing_it_committed(tmp_path, attempt):
    committed = 0
    for expected in (1, 2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for count, line in enumerate(writer.stdout):
                committed = int(line)
                if count == 10 + 13 * attempt:
                    writer.send_signal(signal.SIGKILL)
        with reopen(tmp_path):
            bodies = [int(entry.message.body[:8]) for entry in read_messages(tmp_path)]
        runs = [at for at, number in enumerate(bodies) if number == 0] + [len(bodies)]
        assert len(runs) - 1 == expected
        last = bodies[runs[-2] :]
        assert last == list(range(len(last)))
        assert len(last) >= committed
    assert ids(tmp_path) == sorted(set(ids(tmp_path)))


def test_opening_a_journal_reads_no_more_of_a_large_one_than_of_a_small_one(tmp_path):
    class Counting(LocalDisk):
        opened = 0

        def open(self, path: Path, flags: int) -> int:
            self.opened += 1
            return super().open(path, flags)

    counts = []
    for many in (3, 300):
        folder = tmp_path / str(many)
        journal = Journal.open(folder, segment_bytes=1)
        for number in range(many):
            journal.append("hsp", 1, Direction.C2S, number, data("x"))
            journal.commit()
        journal.abandon()
        disk = Counting()
        Journal.open(folder, disk=disk).close()
        counts.append(disk.opened)
    assert counts[0] == counts[1]
