"""Padding: a segment grows ahead of many small commits, and nobody who reads it notices."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.disks import FaultyDisk
from wireloom.journal import Journal, blocks, committed_length, read_blocks, read_messages, segments
from wireloom.journal.recovery import recover
from wireloom.journal.segment import committed_path
from wireloom.journal.tail import Tail
from wireloom.journal.verify import verify
from wireloom.model import Direction

from .conftest import TOPICS, data
from .test_tshark import TSHARK, tshark

MANY = 60
"""Small commits, enough of them."""


def append(journal: Journal, number: int, size: int = 0) -> int:
    run = data(f"{number:06d}" + "x" * size)
    return journal.append("hsp", 1, Direction.C2S, number, run, topics=TOPICS)


def commit(journal: Journal, numbers: range, size: int = 0) -> None:
    for number in numbers:
        ticket = append(journal, number, size)
        assert journal.commit() == ticket


def numbers(folder: Path) -> list[int]:
    return [int(entry.message.body[:6]) for entry in read_messages(folder)]


def padded(folder: Path) -> Path:
    """The segment being written, which must be padded."""
    segment = segments(folder)[-1]
    assert segment.stat().st_size > committed_length(segment) + blocks.PAGE
    return segment


def test_a_few_small_commits_are_not_worth_it(tmp_path):
    with Journal.open(tmp_path) as journal:
        commit(journal, range(5))
        (segment,) = segments(tmp_path)
        assert segment.stat().st_size == committed_length(segment)


def test_nothing_is_padded_where_nothing_is_synced(tmp_path):
    with Journal.open(tmp_path, sync=False) as journal:
        commit(journal, range(MANY))
        (segment,) = segments(tmp_path)
        assert segment.stat().st_size == committed_length(segment)


def test_after_many_the_file_keeps_its_size_from_commit_to_commit(tmp_path):
    with Journal.open(tmp_path) as journal:
        commit(journal, range(MANY))
        size = padded(tmp_path).stat().st_size
        commit(journal, range(MANY, 2 * MANY))
        assert padded(tmp_path).stat().st_size == size


@pytest.mark.parametrize("size", [0, 1, 2, 3, 700, 3900, 12_000])
def test_readers_see_what_is_committed_and_the_sealed_segment_has_no_padding(tmp_path, size):
    journal = Journal.open(tmp_path)
    tail = Tail(tmp_path)
    seen = 0
    for number in range(4 * MANY):
        append(journal, number, size + number % 40)
        journal.commit()
        while found := tail.read():
            seen += len(found)
    tail.close()
    segment = padded(tmp_path)
    assert numbers(tmp_path) == list(range(4 * MANY))
    assert seen == 4 * MANY + 2, "with `started` and the topics"
    assert list(verify(tmp_path)) == []
    journal.close()
    assert not committed_path(segment).exists()
    assert list(verify(tmp_path)) == []
    last = list(read_blocks(segment))[-1]
    assert (last.record, last.offset + last.size) == ("stopped", segment.stat().st_size)


def test_large_commits_go_over_the_padding_and_beyond_it(tmp_path):
    with Journal.open(tmp_path) as journal:
        at = 0
        for size in (20_000, 200_000, 600_000, 17_000):
            commit(journal, range(at, at + MANY))
            padded(tmp_path)
            append(journal, at + MANY, size)
            journal.commit()
            at += MANY + 1
            assert numbers(tmp_path) == list(range(at))
        segment = segments(tmp_path)[0]
        assert whole(segment.read_bytes())
    assert list(verify(tmp_path)) == []


def whole(content: bytes) -> bool:
    """Whether a file is blocks from its first byte to its last."""
    at = 0
    while at < len(content):
        at += blocks.block_at(content, at, len(content))[1]
    return at == len(content)


@pytest.mark.parametrize("size", [0, 300, 1021])
def test_the_file_is_blocks_to_its_end_after_every_commit(tmp_path, size):
    with Journal.open(tmp_path) as journal:
        for number in range(3 * MANY):
            append(journal, number, size)
            journal.commit()
            assert whole(segments(tmp_path)[0].read_bytes())
        padded(tmp_path)


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed: apt install tshark")
def test_tshark_reads_the_segment_that_is_being_written(tmp_path):
    with Journal.open(tmp_path) as journal:
        commit(journal, range(MANY))
        segment = padded(tmp_path)
        rows = tshark(segment, "frame.packet_id")
        assert [int(row[0]) for row in rows] == [block.packet_id for block in read_blocks(segment)]
        assert len(rows) == MANY + 2


def copy_of(folder: Path, to: Path) -> Path:
    """The journal as a crash at this moment leaves it."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return segments(to)[-1]


def test_recovery_takes_the_padding_off_and_does_not_call_it_a_cut(tmp_path):
    journal = Journal.open(tmp_path / "live")
    commit(journal, range(MANY))
    padded(tmp_path / "live")
    segment = copy_of(tmp_path / "live", tmp_path / "crashed")
    length = committed_length(segment)
    expected = journal.next_packet_id - 1
    journal.close()
    found = recover(tmp_path / "crashed")
    assert (found.cuts, found.last_packet_id) == ((), expected)
    assert segment.stat().st_size == length
    assert numbers(tmp_path / "crashed") == list(range(MANY))


@pytest.mark.parametrize("sizes", [(40, 90), (3000, 5000)])
def test_writes_over_padding_torn_at_any_byte_lose_nothing_that_was_committed(tmp_path, sizes):
    """What the last commit wrote replaced padding only up to some byte, or only from some page on."""
    journal = Journal.open(tmp_path / "live")
    commit(journal, range(MANY), sizes[0])
    segment = padded(tmp_path / "live")
    before, stated = segment.read_bytes(), committed_length(segment)
    append(journal, MANY, sizes[1])
    journal.commit()
    after, committed = segment.read_bytes(), committed_length(segment)
    journal.close()
    assert len(before) == len(after)
    torn = [after[:at] + before[at:] for at in range(stated, committed, 7)]
    pages = range(-(-stated // blocks.PAGE) * blocks.PAGE, committed, blocks.PAGE)
    torn += [before[:at] + after[at:] for at in pages]
    for content in torn:
        folder = tmp_path / "torn"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / segment.name).write_bytes(content)
        committed_path(folder / segment.name).write_bytes(b"%020d\n" % stated)
        found = recover(folder)
        kept = (folder / segment.name).read_bytes()
        assert kept in (after[:stated], after[:committed])
        assert numbers(folder) == list(range(MANY + (len(kept) == committed)))
        assert list(verify(folder)) == []
        if len(kept) == stated and content != before:
            assert 0 < sum(cut.cut_bytes for cut in found.cuts) <= committed - stated + 2 * blocks.PAGE


def test_a_payload_that_looks_like_blocks_is_none_when_the_page_before_it_is_lost(tmp_path):
    """A sender chooses its payload: a whole block at the beginning of a page must not come alive by a torn write."""
    journal = Journal.open(tmp_path / "live")
    commit(journal, range(MANY))
    segment = padded(tmp_path / "live")
    before, stated = segment.read_bytes(), committed_length(segment)
    forged = bytes(before[blocks.check_head(before) : stated])
    forged = forged[: blocks.block_at(forged, 0, len(forged))[1]]
    page = -(-stated // blocks.PAGE) * blocks.PAGE
    content = before[:page] + forged + before[page + len(forged) :]
    journal.close()
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / segment.name).write_bytes(content)
    committed_path(folder / segment.name).write_bytes(b"%020d\n" % stated)
    found = recover(folder)
    assert (folder / segment.name).read_bytes() == before[:stated]
    assert [cut.reason for cut in found.cuts] == ["a write that is not complete"]


def test_a_disk_without_room_for_padding_takes_what_fits(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 900_000)
    folder = small_disk / "journal"
    with Journal.open(folder) as journal:
        commit(journal, range(2 * MANY))
        segment = segments(folder)[-1]
        assert segment.stat().st_size == committed_length(segment)
        assert len(segments(folder)) == 1
    assert numbers(folder) == list(range(2 * MANY))
    assert list(verify(folder)) == []


def test_a_write_that_was_cut_short_is_finished_and_then_synced(tmp_path, monkeypatch):
    written, synced = os.pwritev, os.fdatasync
    calls: list[str] = []

    def some(descriptor: int, pieces: list[bytes], at: int, flags: int = 0) -> int:
        if not at:  # the committed length
            return written(descriptor, pieces, at, flags)
        calls.append("some")
        if flags == 0:
            return written(descriptor, pieces, at)
        return written(descriptor, [b"".join(pieces)[:100]], at, flags)

    def sync(descriptor: int) -> None:
        calls.append("sync")
        synced(descriptor)

    with Journal.open(tmp_path) as journal:
        commit(journal, range(MANY))
        padded(tmp_path)
        with monkeypatch.context() as slow:
            slow.setattr(os, "pwritev", some)
            slow.setattr(os, "fdatasync", sync)
            append(journal, MANY)
            journal.commit()
        assert calls == ["some", "some", "sync"]
        assert numbers(tmp_path) == list(range(MANY + 1))
    assert list(verify(tmp_path)) == []


def test_a_system_that_cannot_write_and_sync_in_one_call_does_it_in_two(tmp_path, monkeypatch):
    monkeypatch.setattr("wireloom.journal.segment_file.WRITE_SYNCED", 0)
    synced, count = os.fdatasync, [0]

    def sync(descriptor: int) -> None:
        count[0] += 1
        synced(descriptor)

    with Journal.open(tmp_path) as journal:
        commit(journal, range(MANY))
        monkeypatch.setattr(os, "fdatasync", sync)
        commit(journal, range(MANY, 2 * MANY))
        assert count[0] == MANY
        assert numbers(tmp_path) == list(range(2 * MANY))


def test_a_disk_that_fails_in_the_padding_ends_the_segment_at_what_is_committed(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    commit(journal, range(MANY))
    segment = padded(tmp_path)
    length = committed_length(segment)
    disk.failing = dict.fromkeys(("sync", "pwritev", "pwritev synced"), errno.EIO)
    append(journal, MANY)
    with pytest.raises(Exception, match="Input/output error"):
        journal.commit()
    disk.failing = {}
    assert segment.stat().st_size == length
    commit(journal, range(MANY + 1, 2 * MANY))
    assert numbers(tmp_path) == list(range(2 * MANY))
    journal.close()
    assert list(verify(tmp_path)) == []
