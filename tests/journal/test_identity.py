"""Names for ever: hub, epoch and packet id never stand for other bytes."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from tests.disks import FaultyDisk
from wireloom.journal import Journal, Offset, Tail, parse_since, read_blocks, read_messages, segments
from wireloom.journal.identity import FORMAT_1, STEP, Ancestor, load_identity
from wireloom.journal.segment import OpenSegment, committed_path
from wireloom.journal.verify import verify
from wireloom.model import ConfigError, Direction, JournalError

from .conftest import TOPICS, data


def append(journal: Journal, number: int) -> int:
    return journal.append("hsp", 1, Direction.C2S, number, data(f"{number:06d}"), topics=TOPICS)


def names(folder: Path) -> dict[tuple[str, str, int], bytes]:
    """Hub, epoch and packet id of every block, and what it holds."""
    found = {}
    for path in segments(folder):
        with OpenSegment(path) as segment:
            head = segment.head()
        for block in read_blocks(path):
            name = (head.hub, head.epoch, block.packet_id)
            assert name not in found
            found[name] = block.payload + repr((block.record, block.details)).encode()
    return found


def killed(journal: Journal) -> None:
    """End a journal as a killed process does: nothing more is written."""
    journal.abandon()


def test_the_folder_and_every_segment_say_whose_they_are(tmp_path):
    with Journal.open(tmp_path, hub="north", segment_bytes=1000) as journal:
        for number in range(20):
            append(journal, number)
            journal.commit()
        assert journal.identity.hub == "north"
        assert len(journal.epoch) == 16
    assert len(segments(tmp_path)) > 2
    assert {name[:2] for name in names(tmp_path)} == {("north", journal.epoch)}
    assert all(path.name[21:37] == journal.epoch for path in segments(tmp_path))
    with Journal.open(tmp_path) as again:
        assert (again.identity.hub, again.epoch, again.new_epoch) == ("north", journal.epoch, "")


def test_a_hub_without_a_name_draws_an_id_and_keeps_it(tmp_path):
    with Journal.open(tmp_path) as journal:
        drawn = journal.identity.hub
    assert len(drawn) == 16
    with Journal.open(tmp_path) as journal:
        assert journal.identity.hub == drawn


def test_the_journal_of_another_hub_is_refused(tmp_path):
    Journal.open(tmp_path, hub="north").close()
    with pytest.raises(ConfigError, match="holds the journal of hub 'north', and the configuration says 'south'"):
        Journal.open(tmp_path, hub="south")
    Journal.open(tmp_path, hub="north").close()


def test_after_a_clean_stop_packet_ids_go_on_without_a_gap(tmp_path):
    for _ in range(3):
        with Journal.open(tmp_path) as journal:
            append(journal, 0)
    ids = [name[2] for name in names(tmp_path)]
    assert ids == list(range(1, len(ids) + 1))
    assert list(verify(tmp_path)) == []


def test_ids_taken_before_a_kill_are_never_taken_again(tmp_path):
    journal = Journal.open(tmp_path)
    append(journal, 0)
    journal.commit()
    for number in range(1, 50):
        append(journal, number)
    taken = journal.next_packet_id
    killed(journal)
    with Journal.open(tmp_path) as journal:
        append(journal, 50)
        journal.commit()
        fresh = [name[2] for name in names(tmp_path)][-3:]
        assert min(fresh) >= taken
        assert list(verify(tmp_path)) == []
    assert [int(each.message.body) for each in read_messages(tmp_path)] == [0, 50]


def test_more_ids_are_reserved_before_a_block_after_them_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("wireloom.journal.identity.STEP", 10)
    journal = Journal.open(tmp_path)
    for number in range(100):
        append(journal, number)
        journal.commit()
        identity = load_identity(tmp_path)
        assert identity is not None
        assert identity.reserved >= journal.next_packet_id
    journal.close()
    assert STEP > 1000


def test_ids_are_not_used_when_they_cannot_be_reserved(tmp_path, monkeypatch):
    monkeypatch.setattr("wireloom.journal.identity.STEP", 5)

    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk)
    append(journal, 0)
    journal.commit()
    disk.failing = {"rename": errno.ENOSPC}
    for number in range(1, 20):
        ticket = append(journal, number)
    for _ in range(3):
        with pytest.raises(JournalError, match="No space left"):
            journal.commit()
    before = journal.next_packet_id
    disk.failing = {}
    assert journal.commit() == ticket
    assert journal.next_packet_id == before, "nothing was written under these ids, so they are still good"
    journal.close()
    assert len(segments(tmp_path)) == 1
    assert [int(each.message.body) for each in read_messages(tmp_path)] == list(range(20))
    assert list(verify(tmp_path)) == []


def test_blocks_in_doubt_get_fresh_ids_and_tickets_still_tell_them(tmp_path):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path, disk=disk, segment_bytes=3000)
    tickets = {append(journal, 0): 0}
    journal.commit()
    for round_ in range(4):
        first = journal.next_packet_id
        disk.failing = {"sync": errno.EIO}
        for number in range(round_ * 20 + 1, round_ * 20 + 21):
            tickets[append(journal, number)] = number
            if number % 7 == 0:
                with pytest.raises(JournalError):
                    journal.commit()
        disk.failing = {}
        journal.commit()
        assert journal.packet_id(min(t for t, n in tickets.items() if n == round_ * 20 + 1)) > first
    found = {each.place.packet_id: int(each.message.body) for each in read_messages(tmp_path)}
    assert {journal.packet_id(ticket): number for ticket, number in tickets.items()} == found
    assert list(found.values()) == list(range(81))
    assert list(verify(tmp_path)) == []
    names(tmp_path)
    journal.close()
    tail = Tail(tmp_path)
    while tail.read():
        pass
    assert tail.missed == 0, "a gap that a segment states is no loss"


def test_a_segment_that_is_missing_is_no_gap(tmp_path):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(30):
            append(journal, number)
            journal.commit()
    segments(tmp_path)[1].unlink()
    assert [fault.reason.split(" packet")[0] for fault in verify(tmp_path)] == ["goes on after"]
    tail = Tail(tmp_path)
    while tail.read():
        pass
    assert tail.missed == 1


def test_refused_bytes_that_are_dropped_leave_a_gap(tmp_path):
    journal = Journal.open(tmp_path)
    (tmp_path / "refused").rmdir()
    journal.refuse("hsp", 1, Direction.C2S, b"bad", clause="c", detail="")
    journal.commit()
    (tmp_path / "refused").mkdir()
    journal.refuse("hsp", 1, Direction.C2S, b"worse", clause="c", detail="")
    journal.close()
    (path,) = segments(tmp_path / "refused")
    assert [block.packet_id for block in read_blocks(path)] == [2]
    assert list(verify(tmp_path)) == []


# --- epochs -----------------------------------------------------------------------------------------


def test_a_copied_folder_begins_a_new_epoch_that_knows_where_the_old_one_ended(tmp_path):
    with Journal.open(tmp_path / "a", hub="north") as journal:
        append(journal, 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    end = journal.next_packet_id - 1
    with Journal.open(tmp_path / "a") as original, Journal.open(tmp_path / "b") as copy:
        assert original.epoch == journal.epoch
        assert copy.new_epoch == "the folder is a copy"
        assert copy.identity.ancestors == (Ancestor(journal.epoch, end),)
        for each in (original, copy):
            append(each, 1 if each is original else 2)
            each.commit()
    both = names(tmp_path / "a"), names(tmp_path / "b")
    shared = both[0].keys() & both[1].keys()
    assert len(shared) == end
    assert all(both[0][name] == both[1][name] for name in shared)
    assert [int(each.message.body) for each in read_messages(tmp_path / "b")] == [0, 2]
    assert list(verify(tmp_path / "b")) == []
    started = [block for path in segments(tmp_path / "b") for block in read_blocks(path) if block.record == "started"]
    assert started[-1].details["ancestor"] == {"epoch": journal.epoch, "end": end}


def test_a_moved_folder_stays_the_same_journal(tmp_path):
    with Journal.open(tmp_path / "a") as journal:
        append(journal, 0)
    (tmp_path / "a").rename(tmp_path / "b")
    with Journal.open(tmp_path / "b") as again:
        assert (again.epoch, again.new_epoch) == (journal.epoch, "")


@pytest.mark.parametrize("damage", ["gone", "torn", "changed"])
def test_a_journal_whose_identity_is_damaged_begins_a_new_epoch(tmp_path, damage):
    with Journal.open(tmp_path, hub="north") as journal:
        append(journal, 0)
    file = tmp_path / "journal.json"
    if damage == "gone":
        file.unlink()
    else:
        text = file.read_text()
        file.write_text(text[:20] if damage == "torn" else text.replace('"reserved":', '"reserved":1'))
    with Journal.open(tmp_path) as again:
        assert "journal.json" in again.new_epoch
        assert again.identity.hub == "north"
        assert again.epoch != journal.epoch
        assert again.identity.ancestors[0].epoch == journal.epoch
        append(again, 1)
    assert [int(each.message.body) for each in read_messages(tmp_path)] == [0, 1]
    assert list(verify(tmp_path)) == []


def test_an_epoch_that_is_no_ancestor_is_refused(tmp_path):
    Journal.open(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Journal.open(tmp_path / "b") as copy:
        ancestor = copy.identity.ancestors[0]
        assert copy.identity.end_of(copy.epoch) is None
        assert copy.identity.end_of(ancestor.epoch) == ancestor.end
        with pytest.raises(ConfigError, match="epoch 0123456789abcdef is none of this journal"):
            copy.identity.end_of("0123456789abcdef")


def test_an_offset_with_an_epoch_is_taken_only_by_the_journals_it_is_of(tmp_path):
    with Journal.open(tmp_path / "a") as journal:
        for number in range(3):
            append(journal, number)
    places = [f"{journal.epoch}:{entry.place}" for entry in read_messages(tmp_path / "a")]
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Journal.open(tmp_path / "a") as original, Journal.open(tmp_path / "b") as copy:
        for each in (original, copy):
            ticket = append(each, 3)
            each.commit()
            assert parse_since(places[1], identity=each.identity) == Offset.parse(places[1].partition(":")[2])
        later = f"{original.epoch}:{original.packet_id(ticket)}.0"
        assert parse_since(later, identity=original.identity)
        with pytest.raises(ConfigError, match="is of a time that this journal does not hold"):
            parse_since(later, identity=copy.identity)
        with pytest.raises(ConfigError, match="is none of this journal"):
            parse_since(f"{copy.epoch}:1.0", identity=original.identity)
    with pytest.raises(ConfigError, match="is none of this journal"):
        parse_since(places[0])


def test_segments_sort_by_packet_id_whatever_the_clock_says(tmp_path):
    day = 24 * 3600 * 1_000_000_000
    clock = [100 * day]
    for number in range(6):
        clock[0] -= day
        with Journal.open(tmp_path, now_ns=lambda: clock[0]) as journal:
            append(journal, number)
    assert [int(each.message.body) for each in read_messages(tmp_path)] == list(range(6))
    assert list(verify(tmp_path)) == []


# --- format 1 ---------------------------------------------------------------------------------------


@pytest.fixture
def of_format_1(tmp_path: Path) -> Path:
    """A copy of a journal that a hub of the first version wrote."""
    folder = tmp_path / "journal"
    shutil.copytree(Path(__file__).parent / "format1" / "journal", folder)
    return folder


def test_a_journal_of_format_1_goes_on_as_format_2(of_format_1):
    before = [(each.place, each.message.body) for each in read_messages(of_format_1)]
    assert before
    known = segments(of_format_1)
    with Journal.open(of_format_1, hub="north") as journal:
        assert journal.new_epoch == ""
        assert [each.epoch for each in journal.identity.ancestors] == [FORMAT_1]
        append(journal, 7)
    assert segments(of_format_1)[: len(known)] == known
    after = [(each.place, each.message.body) for each in read_messages(of_format_1)]
    assert after[:-1] == before
    assert after[-1][1] == b"000007"
    assert after[-1][0] > before[-1][0]
    assert list(verify(of_format_1)) == []


def test_a_segment_of_format_1_that_a_crash_left_open_is_recovered(of_format_1):
    before = [each.message.body for each in read_messages(of_format_1)]
    last = segments(of_format_1)[-1]
    committed_path(last).write_text(f"{last.stat().st_size:020d}\n")
    with last.open("ab") as file:
        file.write(b"\x06\0\0\0torn")
    with Journal.open(of_format_1) as journal:
        assert [cut.cut_bytes for cut in journal.recovery.cuts] == [8]
    assert [each.message.body for each in read_messages(of_format_1)] == before
    assert list(verify(of_format_1)) == []


def test_the_identity_is_readable_for_people(tmp_path):
    Journal.open(tmp_path, hub="north").close()
    value = json.loads((tmp_path / "journal.json").read_text())
    assert value["hub"] == "north"
    assert value["reserved"] == 3
