"""A disk that fails: nothing in doubt counts as durable, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.disks import FaultyDisk
from wireloom.journal import GroupCommit, Journal, read_blocks, read_messages, segments
from wireloom.journal.segment import is_sealed
from wireloom.journal.verify import verify
from wireloom.model import Direction, JournalError

from .conftest import TOPICS, data


def bodies(folder: Path) -> list[bytes]:
    return [entry.message.body for entry in read_messages(folder)]


def append(journal: Journal, number: int, size: int = 0) -> int:
    run = data(f"{number:06d}" + "x" * size)
    return journal.append("hsp", 1, Direction.C2S, number, run, topics=TOPICS)


def test_a_full_disk_stops_acknowledging_and_goes_on_when_there_is_room(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 700_000)
    folder = small_disk / "journal"
    journal = Journal.open(folder)
    number, durable = 0, 0
    with pytest.raises(JournalError, match="No space left on device; free some space"):
        while number < 1000:
            ticket = append(journal, number, 20_000)
            number += 1
            assert journal.commit() == ticket
            durable = number
    assert 0 < durable < number
    assert len(bodies(folder)) == durable
    for _ in range(3):
        ticket = append(journal, number)
        number += 1
        with pytest.raises(JournalError):
            journal.commit()
        assert journal.durable < ticket
        assert len(bodies(folder)) == durable
        assert list(verify(folder)) == []
    ballast.unlink()
    assert journal.commit() == ticket
    assert [int(body[:6]) for body in bodies(folder)] == list(range(number))
    journal.close()
    assert list(verify(folder)) == []


async def test_group_commit_on_a_full_disk_waits_and_then_tells(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 700_000)
    journal = Journal.open(small_disk / "journal")
    commit = GroupCommit(journal, asyncio.get_running_loop())
    told: list[int] = []
    for number in range(40):
        ticket = append(journal, number, 20_000)
        commit.when_durable(ticket, lambda number=number: told.append(number))
        await asyncio.sleep(0)
    while commit.healthy:
        await asyncio.sleep(0.01)
    assert "No space left" in (commit.last_error or "")
    assert len(told) < 40
    await asyncio.sleep(0.3)
    assert len(bodies(small_disk / "journal")) == len(told)
    ballast.unlink()
    await commit.wait(ticket)
    assert commit.healthy
    assert told == list(range(40))
    await commit.close()
    journal.close()
    assert list(verify(small_disk / "journal")) == []


def test_a_journal_that_cannot_even_begin_says_so(small_disk):
    subprocess.run(["dd", "if=/dev/zero", f"of={small_disk / 'ballast'}", "bs=4096"], capture_output=True, check=False)
    with pytest.raises(JournalError, match="No space left"):
        Journal.open(small_disk / "journal")
    (small_disk / "ballast").unlink()
    Journal.open(small_disk / "journal").close()


@pytest.mark.parametrize("call", ["pwritev", "sync"])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_failed_write_or_sync_ends_the_segment_and_the_rest_begins_a_new_one(tmp_path, call, truncates):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    first = append(journal, 0)
    journal.commit()
    disk.failing = {call: errno.EIO} | ({} if truncates else {"truncate": errno.EIO})
    second = append(journal, 1, 200_000)
    for attempt in range(3):
        with pytest.raises(JournalError, match="Input/output error"):
            journal.commit()
        assert journal.durable == first
        assert bodies(tmp_path) == [b"000000"]
        append(journal, 2 + attempt)
    disk.failing = {}
    assert journal.commit() > second
    assert [body[:6] for body in bodies(tmp_path)] == [b"%06d" % number for number in range(5)]
    assert len(segments(tmp_path)) == 2
    assert [entry.message.topic for entry in read_messages(tmp_path)] == ["sensors/kitchen"] * 5
    assert list(verify(tmp_path)) == []
    journal.close()
    with Journal.open(tmp_path):
        assert list(verify(tmp_path)) == []
        assert len(bodies(tmp_path)) == 5
        assert len(list(tmp_path.glob("*.committed"))) == 1


def test_blocks_planned_into_later_segments_move_up_when_an_earlier_one_fails(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, segment_bytes=5000, disk=disk)
    append(journal, 0)
    journal.commit()
    disk.failing = {"sync": errno.EIO}
    numbers = list(range(1, 60))
    for number in numbers:
        ticket = append(journal, number, 300)
        if number % 10 == 0:
            with pytest.raises(JournalError):
                journal.commit()
    disk.failing = {}
    assert journal.commit() == ticket
    assert len(segments(tmp_path)) > 3
    assert [int(body[:6]) for body in bodies(tmp_path)] == [0, *numbers]
    assert list(verify(tmp_path)) == []
    append(journal, 60)
    journal.close()
    ids = [block.packet_id for segment in segments(tmp_path) for block in read_blocks(segment)]
    assert ids == sorted(set(ids))
    assert ids[-1] > len(ids)


def test_blocks_appended_while_a_store_fails_on_another_thread_are_kept_in_order(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, segment_bytes=2000, disk=disk)
    disk.failing = {"sync": errno.EIO}
    append(journal, 0)
    batch = journal.take()
    for number in range(1, 20):
        append(journal, number, 300)
    journal.store(batch)
    with pytest.raises(JournalError):
        journal.settle(batch)
    disk.failing = {}
    journal.commit()
    assert [int(body[:6]) for body in bodies(tmp_path)] == list(range(20))
    assert list(verify(tmp_path)) == []
    journal.close()


def test_a_payload_that_looks_like_a_record_survives_the_move(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    disk.failing = {"pwritev": errno.ENOSPC}
    text = 'record=topics {"map":"00000000","topics":{}}'
    journal.append("hsp", 1, Direction.C2S, 0, data(text), topics=TOPICS)
    with pytest.raises(JournalError):
        journal.commit()
    disk.failing = {}
    journal.commit()
    assert bodies(tmp_path) == [text.encode()]
    journal.close()


def test_refused_bytes_on_a_failing_disk_never_stop_the_journal(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path)
    (tmp_path / "refused").rmdir()
    journal.refuse("hsp", 1, Direction.C2S, b"bad", clause="c", detail="")
    ticket = append(journal, 0)
    assert journal.commit() == ticket
    assert journal.refused_dropped > 0
    (tmp_path / "refused").mkdir()
    journal.refuse("hsp", 1, Direction.C2S, b"bad", clause="c", detail="")
    journal.close()
    assert list(verify(tmp_path)) == []
    assert [block.payload for block in read_blocks(segments(tmp_path / "refused")[0])] == [b"bad"]


def test_a_limit_on_file_sizes_is_reported_like_a_full_disk(tmp_path):
    script = f"""
import resource, signal
from wireloom.journal import Journal
from wireloom.model import Direction, JournalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal.open({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
journal.append("hsp", 1, Direction.C2S, 0, b"\\x03" * 20_000)
try:
    journal.commit()
except JournalError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "File too large; raise the limit on file sizes" in done.stdout
    assert list(verify(tmp_path)) == []


def test_without_sync_a_segment_is_sealed_once_it_is_synced_while_the_next_is_written(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path, segment_bytes=5000, sync=False)
    go_on, real = threading.Event(), os.fdatasync

    def slow(descriptor: int) -> None:
        assert go_on.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    append(journal, 0, 6000)
    journal.commit()
    append(journal, 1)
    journal.commit()
    first, second = segments(tmp_path)
    assert bodies(tmp_path)[1] == b"000001"
    assert not is_sealed(first)
    crashed = tmp_path.with_name("crashed")
    shutil.copytree(tmp_path, crashed)
    go_on.set()
    journal.close()
    assert is_sealed(first)
    assert is_sealed(second)
    with Journal.open(crashed) as again:
        assert again.recovery.cuts == ()
        assert bodies(crashed) == bodies(tmp_path)
    assert list(verify(tmp_path)) == list(verify(crashed)) == []


def test_without_sync_a_segment_that_cannot_be_sealed_is_told_with_the_next(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, segment_bytes=5000, sync=False, disk=disk)
    disk.failing = {"sync": errno.EIO}
    for number in range(2):
        append(journal, number, 6000)
        journal.commit()
    append(journal, 2, 6000)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.commit()
    disk.failing = {}
    journal.commit()
    assert [int(body[:6]) for body in bodies(tmp_path)] == [0, 1, 2]
    journal.close()
    Journal.open(tmp_path).close()
    assert all(is_sealed(path) for path in segments(tmp_path))
    assert [int(body[:6]) for body in bodies(tmp_path)] == [0, 1, 2]
    assert list(verify(tmp_path)) == []
