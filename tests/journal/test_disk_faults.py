"""Disks that fail, lie about their order, or are tampered with. Each of these lost messages, or the hub, once."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.disks import BadSectors, FaultyDisk
from wireloom.cli.main import main
from wireloom.journal import Journal, Keep, Offset, Tail, committed_length, prune, read_all, read_messages, segments
from wireloom.journal.recovery import recover
from wireloom.journal.runs import read_runs
from wireloom.journal.segment import committed_path, is_sealed
from wireloom.journal.verify import verify
from wireloom.model import Direction, JournalError

from .conftest import TOPICS, data

DAY = 24 * 3600 * 1_000_000_000


def append(journal: Journal, number: int, size: int = 0) -> int:
    return journal.append("hsp", 1, Direction.C2S, number, data(f"{number:06d}" + "x" * size), topics=TOPICS)


def bodies(folder: Path) -> list[int]:
    return [int(entry.message.body[:6]) for entry in read_messages(folder)]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A journal of one segment of half a megabyte."""
    folder = tmp_path / "journal"
    with Journal.open(folder) as journal:
        for number in range(100):
            append(journal, number, 5000)
    return folder


# --- a sector that cannot be read (1) ---------------------------------------------------------------


def test_a_sector_that_cannot_be_read_is_an_error_that_names_file_and_place(large):
    (segment,) = segments(large)
    disk = BadSectors(48)
    place = f"{segment}: cannot read the segment at byte 196608: Input/output error"
    with pytest.raises(JournalError, match=place):
        list(read_all(large, disk=disk))
    tail = Tail(large, disk=disk)
    for _ in range(2):  # whoever comes again gets the same answer
        with pytest.raises(JournalError, match=place):
            while tail.read(4096):
                pass
    with pytest.raises(JournalError, match=place):
        Tail(large, Offset(90, 0), disk=disk).read()
    errors: list[JournalError] = []
    assert dict(read_runs(large, [10, 90], disk=disk, on_error=errors.append)).keys() == {10}
    assert [place in str(error) for error in errors] == [True]
    assert [place in str(fault) for fault in verify(large, disk=disk)] == [True]
    assert bodies(large) == list(range(100))


def test_a_journal_is_recovered_around_a_sector_that_cannot_be_read(large):
    (segment,) = segments(large)
    committed_path(segment).write_text(f"{segment.stat().st_size:020d}\n")
    disk = BadSectors(48)
    with Journal.open(large, disk=disk) as journal:
        assert journal.recovery.cuts == ()
        append(journal, 100)
    assert bodies(large) == list(range(101))


# --- nothing is readable that is not synced (2) -----------------------------------------------------


def test_recovery_syncs_a_segment_before_it_seals_it(large):
    (segment,) = segments(large)
    committed_path(segment).write_text(f"{1000:020d}\n")
    disk = FaultyDisk()
    recover(large, disk)
    assert disk.calls.index(("sync", segment.name)) < disk.calls.index(("unlink", committed_path(segment).name))


# --- four faults together (4) -----------------------------------------------------------------------


def test_a_failed_first_sync_a_failed_unlink_a_clock_set_back_and_a_power_cut_lose_nothing(tmp_path):
    folder, disk, clock = tmp_path / "journal", FaultyDisk(), [100 * DAY]
    journal = Journal.open(folder, disk=disk, segment_bytes=3000, now_ns=lambda: clock[0])
    for number in range(20):
        append(journal, number)
    journal.commit()
    append(journal, 20, 3000)
    journal.commit()
    disk.failing = {"sync": errno.EIO, "unlink": errno.EIO, "truncate": errno.EIO}
    append(journal, 21)
    append(journal, 22, 3000)
    append(journal, 23)
    with pytest.raises(JournalError):
        journal.commit()
    clock[0] -= DAY
    disk.failing = {}
    journal.commit()
    shutil.copytree(folder, tmp_path / "cut")
    journal.abandon()
    with Journal.open(tmp_path / "cut"):
        assert bodies(tmp_path / "cut") == list(range(24))
        assert list(verify(tmp_path / "cut")) == []


# --- files that somebody deletes (5) ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["segment", "committed length", "folder"])
def test_nothing_is_acknowledged_in_a_segment_that_was_deleted(tmp_path, what, monkeypatch):
    monkeypatch.setattr("wireloom.journal.segment_file._LOOK_EVERY", -1)
    folder = tmp_path / "journal"
    journal = Journal.open(folder)
    append(journal, 0)
    journal.commit()
    (segment,) = segments(folder)
    if what == "folder":
        folder.rename(tmp_path / "elsewhere")
    else:
        (segment if what == "segment" else committed_path(segment)).unlink()
    ticket = append(journal, 1)
    with pytest.raises(JournalError, match=r"(was deleted|its folder was moved) by somebody"):
        journal.commit()
    assert journal.durable < ticket
    if what == "folder":
        with pytest.raises(JournalError):
            journal.commit()
        (tmp_path / "elsewhere").rename(folder)
    assert journal.commit() >= ticket
    append(journal, 2)
    journal.close()
    assert bodies(folder) == [0, 1, 2], "what was acknowledged before is there again"
    assert list(verify(folder)) == []


def test_what_was_acknowledged_before_a_deletion_was_noticed_is_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("wireloom.journal.segment_file._LOOK_EVERY", 1000)
    journal = Journal.open(tmp_path)
    for number in range(100):
        append(journal, number)
        journal.commit()
        if number == 50:
            segments(tmp_path)[0].unlink()
    journal.check()
    with pytest.raises(JournalError, match="was deleted by somebody"):
        journal.commit()
    journal.close()
    assert bodies(tmp_path) == list(range(100))
    assert list(verify(tmp_path)) == []


def test_a_deleted_segment_is_noticed_when_nothing_is_written(tmp_path):
    journal = Journal.open(tmp_path)
    journal.commit()
    journal.check()
    assert not journal.has_pending
    segments(tmp_path)[0].unlink()
    journal.check()
    assert journal.has_pending
    with pytest.raises(JournalError, match="was deleted by somebody"):
        journal.commit()
    journal.commit()
    journal.check()
    assert not journal.has_pending
    found = [each.block for each in read_all(tmp_path) if each.block.record == "removed"]
    assert "was deleted by somebody" in str(found[0].details["detail"])
    journal.close()


# --- writes that fail (6) ---------------------------------------------------------------------------


def test_a_failed_synced_write_ends_the_segment(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    for number in range(50):  # until there is padding
        append(journal, number)
        journal.commit()
    assert ("pwritev synced", segments(tmp_path)[0].name) in disk.calls
    disk.failing = {"pwritev synced": errno.EIO}
    append(journal, 50)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.commit()
    disk.failing = {}
    journal.commit()
    assert len(segments(tmp_path)) == 2
    assert bodies(tmp_path) == list(range(51))
    journal.close()
    assert list(verify(tmp_path)) == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_synced_write_that_is_not_supported_or_finds_no_space_is_written_in_two_steps(tmp_path, number):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    for count in range(50):
        append(journal, count)
        journal.commit()
    disk.failing = {"pwritev synced": number}
    append(journal, 50)
    journal.commit()
    assert len(segments(tmp_path)) == 1
    assert bodies(tmp_path) == list(range(51))
    journal.close()


def test_a_disk_that_stays_full_costs_no_more_with_each_attempt(tmp_path):
    """Blocks that wait are numbered anew once, not again and again on the event loop."""
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    append(journal, 0)
    journal.commit()
    disk.failing = {"pwritev": errno.ENOSPC}
    for number in range(1, 200):
        append(journal, number)
    with pytest.raises(JournalError, match="No space left"):
        journal.commit()
    following = journal.next_packet_id
    for _ in range(50):
        with pytest.raises(JournalError, match="No space left"):
            journal.commit()
    assert journal.next_packet_id == following
    disk.failing = {}
    journal.commit()
    journal.close()
    assert bodies(tmp_path) == list(range(200))
    assert len(segments(tmp_path)) == 2
    assert list(verify(tmp_path)) == []


# --- names in any order (7) -------------------------------------------------------------------------


def test_a_segment_whose_committed_length_is_gone_with_the_power_does_not_stop_readers(tmp_path):
    with Journal.open(tmp_path) as journal:
        append(journal, 0)
    following = tmp_path / f"{journal.next_packet_id:020d}-{journal.epoch}.pcapng"
    following.touch(0o600)
    with Journal.open(tmp_path) as journal:
        append(journal, 1)
        journal.commit()
        assert bodies(tmp_path) == [0, 1]
        assert list(verify(tmp_path)) == []
    assert not following.exists() or following.stat().st_size


def test_every_name_is_synced_before_the_next_step_relies_on_it(tmp_path):
    folder, disk = tmp_path / "a" / "b" / "journal", FaultyDisk()
    with Journal.open(folder, disk=disk):
        (segment,) = segments(folder)
    calls = disk.calls
    for made, parent in (("a", tmp_path.name), ("b", "a"), ("journal", "b"), ("refused", "journal")):
        assert ("sync_folder", parent) in calls[calls.index(("make_folder", made)) :]
    first = calls.index(("pwritev", committed_path(segment).name))
    assert calls[first + 1] == ("sync_folder", "journal"), "the committed length has its name before the segment"
    sealed = calls.index(("unlink", committed_path(segment).name))
    assert calls[sealed + 1] == ("sync_folder", "journal")


# --- retention and clocks (10) ----------------------------------------------------------------------


def test_a_clock_that_is_days_ahead_does_not_take_everything(tmp_path):
    journal = Journal.open(tmp_path, segment_bytes=1)
    for number in range(20):
        append(journal, number)
        journal.commit()
    gone = prune(tmp_path, Keep(days=7, most_aged=5), time.time_ns() + 8 * DAY)
    assert len(gone) == 5
    assert bodies(tmp_path)[-1] == 19
    assert len(bodies(tmp_path)) >= 15
    journal.close()


def test_age_is_what_the_blocks_say_not_the_name_or_the_file(tmp_path):
    clock = [100 * DAY]
    journal = Journal.open(tmp_path, segment_bytes=1, now_ns=lambda: clock[0])
    for number in range(5):
        clock[0] += DAY
        append(journal, number)
        journal.commit()
    for path in segments(tmp_path):
        os.utime(path, (0, 0))
    assert prune(tmp_path, Keep(days=7), clock[0]) == []
    assert len(prune(tmp_path, Keep(days=2.5), clock[0])) == 3
    journal.close()


# --- after a power cut, before a hub comes (10) -----------------------------------------------------


def test_the_open_segment_is_readable_after_a_power_cut_before_any_hub_has_recovered_it(tmp_path, capsys):
    live, cut = tmp_path / "live", tmp_path / "cut"
    journal = Journal.open(live)
    for number in range(5):
        append(journal, number)
        journal.commit()
    shutil.copytree(live, cut)
    (segment,) = segments(cut)
    for stale in ("", f"{0:020d}\n", f"{1000:020d}\n"):  # the committed length is never synced
        committed_path(segment).write_text(stale)
        assert bodies(cut) == [0, 1, 2, 3, 4]
        assert main(["journal", "cat", str(cut)]) == 0
        assert "000004" in capsys.readouterr().out
        assert list(verify(cut)) == []
    (live_segment,) = segments(live)
    with live_segment.open("ab") as file:
        file.write(segment.read_bytes()[-200:])
    assert committed_length(live_segment) == segment.stat().st_size, "while a hub writes, only what it committed counts"
    journal.close()


def test_blocks_that_were_written_again_are_not_read_twice_before_recovery(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path / "live", disk=disk)
    append(journal, 0)
    journal.commit()
    disk.failing = {"sync": errno.EIO, "truncate": errno.EIO}
    append(journal, 1)
    with pytest.raises(JournalError):
        journal.commit()
    disk.failing = {}
    journal.commit()
    shutil.copytree(tmp_path / "live", tmp_path / "cut")
    assert not is_sealed(segments(tmp_path / "cut")[0])
    assert bodies(tmp_path / "cut") == [0, 1]
    assert list(verify(tmp_path / "cut")) == []
    journal.close()


# --- tampering (11) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x", "12", "0" * 30, "00000000000000000abc\n"])
def test_verify_finds_a_committed_length_that_is_none(large, text, capsys):
    (segment,) = segments(large)
    committed_path(segment).write_text(text)
    assert main(["journal", "verify", str(large)]) == 1
    assert f"{segment.name}.committed: no committed length, but something else" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lock", "journal.json"])
def test_a_link_in_the_folder_is_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "journal"
    Journal.open(folder).close()
    (folder / name).unlink()
    (folder / name).symlink_to(victim)
    try:
        Journal.open(folder).close()
    except JournalError as error:
        assert "symbolic links" in str(error)
    assert victim.read_text() == "mine"


def test_a_segment_that_is_a_link_is_refused_not_cut(tmp_path, large):
    (segment,) = segments(large)
    elsewhere = tmp_path / "elsewhere"
    segment.rename(elsewhere)
    with elsewhere.open("ab") as file:
        file.write(b"torn")
    before = elsewhere.read_bytes()
    segment.symlink_to(elsewhere)
    committed_path(segment).write_text(f"{0:020d}\n")
    with pytest.raises(JournalError, match="symbolic links"):
        Journal.open(large)
    assert elsewhere.read_bytes() == before


# --- old sectors and leftovers ----------------------------------------------------------------------


def test_an_old_sector_of_the_journal_does_not_pass_for_refused_bytes(tmp_path):
    journal = Journal.open(tmp_path / "live")
    append(journal, 0)
    journal.commit()
    (segment,) = segments(tmp_path / "live")
    journal.abandon()
    name = tmp_path / "live" / "refused" / segment.name
    shutil.copy(segment, name)
    committed_path(name).write_text(f"{0:020d}?\n")
    with Journal.open(tmp_path / "live"):
        assert segments(tmp_path / "live" / "refused") == []


def test_a_segment_of_another_epoch_is_not_taken_for_the_one_of_its_name(tmp_path):
    for folder in ("one", "other"):
        journal = Journal.open(tmp_path / folder)
        append(journal, 0)
        journal.commit()
        journal.abandon()
    (one,), (other,) = (segments(tmp_path / folder) for folder in ("one", "other"))
    one.write_bytes(other.read_bytes())
    committed_path(one).write_text(f"{0:020d}\n")
    with Journal.open(tmp_path / "one"):
        assert bodies(tmp_path / "one") == []


def test_blocks_that_do_not_count_are_not_read_beside_a_segment_that_is_only_just_begun(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path / "live", disk=disk)
    append(journal, 0)
    journal.commit()
    disk.failing = {"sync": errno.EIO, "truncate": errno.EIO, "unlink": errno.EIO}
    append(journal, 1)
    for _ in range(2):  # the second attempt leaves a segment that holds nothing
        with pytest.raises(JournalError):
            journal.commit()
    disk.failing = {}
    journal.commit()
    shutil.copytree(tmp_path / "live", tmp_path / "cut")
    journal.abandon()
    begun = segments(tmp_path / "cut")[1]
    begun.write_bytes(b"")
    assert bodies(tmp_path / "cut") == [0, 1]
    with Journal.open(tmp_path / "cut"):
        assert bodies(tmp_path / "cut") == [0, 1]
