"""Reading on: pieces in order, across rotation, restart, removal, from a time or an offset."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from wireloom.journal import Journal, Offset, Tail, committed_length, parse_since, segments
from wireloom.journal.disk import LocalDisk
from wireloom.journal.reader import Entry, read_all
from wireloom.model import ConfigError, Direction

from .conftest import TOPICS, data

SECOND = 1_000_000_000
BEGIN = time.time_ns() + 1000 * SECOND


def write(journal: Journal, numbers: range, *, run: int = 3, large: int = 0) -> None:
    """Runs of messages that hold their numbers, a second apart."""
    connection = journal.new_connection_id()
    for first in range(numbers.start, numbers.stop, run):
        texts = [f"{number} {'x' * large}" for number in range(first, min(first + run, numbers.stop))]
        journal.append(
            *("hsp", connection, Direction.C2S, first - numbers.start, b"".join(map(data, texts))),
            topics=TOPICS,
            time_ns=BEGIN + first * SECOND,
        )
        journal.commit()


def numbers(found: list) -> list[int]:  # type: ignore[type-arg]
    return [int(each.message.body.split()[0]) for each in found if isinstance(each, Entry)]


def read_on(tail: Tail, limit: int = 4096) -> list[Entry]:
    found: list[Entry] = []
    while piece := tail.read(limit):
        found += [each for each in piece if isinstance(each, Entry)]
    return found


@pytest.fixture
def long_journal(tmp_path: Path) -> Path:
    """Several segments, several runs of the writer, messages 0 to 199."""
    for start in (0, 100):
        with Journal.open(tmp_path, segment_bytes=2000) as journal:
            write(journal, range(start, start + 100))
    assert len(segments(tmp_path)) > 5
    return tmp_path


@pytest.mark.parametrize("limit", [1, 5000, 10**9])
def test_a_tail_gives_what_reading_everything_gives(long_journal: Path, folder: Path, limit: int) -> None:
    for path in (long_journal, folder):
        tail = Tail(path)
        found = []
        while piece := tail.read(limit):
            found += piece
        assert found == list(read_all(path))


def test_what_is_committed_later_comes_later_also_in_new_segments(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    with pytest.raises(Exception, match="no journal here"):
        Tail(tmp_path / "nowhere").read()
    assert tail.read() == []
    seen: list[int] = []
    for start in range(0, 40, 20):
        with Journal.open(tmp_path, segment_bytes=700) as journal:
            for number in range(start, start + 20):
                write(journal, range(number, number + 1))
                journal.append("hsp", 1, Direction.C2S, 0, data("99"), topics=TOPICS)  # not committed yet
                seen += [n for n in numbers(read_on(tail)) if n != 99]
                assert seen == list(range(number + 1))
    assert tail.missed == 0


def test_a_tail_at_the_end_gives_only_what_comes_then(long_journal: Path) -> None:
    tail = Tail.at_end(long_journal)
    assert tail.read() == []
    with Journal.open(long_journal, segment_bytes=2000) as journal:
        write(journal, range(200, 210))
        assert numbers(read_on(tail)) == list(range(200, 210))


def test_every_offset_can_be_gone_on_from(long_journal: Path) -> None:
    entries = [each for each in read_all(long_journal) if isinstance(each, Entry)]
    places = [entry.place for entry in entries]
    assert places == sorted(set(places))
    for number, entry in enumerate(entries):
        assert Offset.parse(str(entry.place)) == entry.place
        assert numbers(read_on(Tail(long_journal, entry.place))) == list(range(number + 1, 200))


def test_every_time_can_be_begun_at(long_journal: Path) -> None:
    chance = random.Random(1)
    for moment in [0, 1, 198, 199, 10_000] + [chance.randrange(200) for _ in range(20)]:
        found = numbers(read_on(Tail(long_journal, BEGIN + moment * SECOND + 1)))
        # A run has one time: that of its first message here.
        assert found == [n for n in range(200) if (n - (n >= 100) * 100) // 3 * 3 + (n >= 100) * 100 > moment]


def test_a_message_of_many_blocks_comes_once_and_whole(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        write(journal, range(3), run=1, large=700_000)
    found = read_on(Tail(tmp_path), 4096)
    assert [len(entry.message.body) for entry in found] == [700_002] * 3
    assert numbers(read_on(Tail(tmp_path, found[0].place))) == [1, 2]


def test_a_removed_segment_is_read_to_its_end_and_a_gap_is_counted(long_journal: Path) -> None:
    tail = Tail(long_journal)
    piece = tail.read(1)
    known = segments(long_journal)
    for path in known[:3]:
        path.unlink()
    found = piece + list(read_on(tail))
    kept = numbers(list(read_all(long_journal)))
    assert numbers(found)[-len(kept) :] == kept
    assert len(numbers(found)) > len(kept), "the segment that was open"
    assert tail.missed == 1

    late = Tail(long_journal, Offset(1, 0))
    assert numbers(read_on(late)) == kept
    assert late.missed == 1


def test_before_the_first_message_there_was_nothing_to_miss(long_journal: Path) -> None:
    tail = Tail(long_journal, Offset(0, 0))
    assert numbers(read_on(tail)) == list(range(200))
    assert tail.missed == 0


@pytest.mark.parametrize("since", [0, BEGIN + SECOND, Offset(2, 0)], ids=["start", "time", "offset"])
def test_segments_removed_just_before_they_are_opened_are_passed_over(
    long_journal: Path, monkeypatch: pytest.MonkeyPatch, since: int | Offset
) -> None:
    known = segments(long_journal)
    kept = numbers([each for path in known[3:] for each in read_all(path)])
    begun, following = Tail(long_journal), Tail(long_journal, since)
    begun.read(1)
    for path in known[:3]:
        path.unlink()
    for tail in (begun, following):
        # Found by a look that was taken before retention came.
        looks = [known, known[1:]]
        monkeypatch.setattr(
            "wireloom.journal.tail.segments", lambda *_, looks=looks: looks.pop(0) if looks else known[3:]
        )
        assert numbers(read_on(tail))[-len(kept) :] == kept
    assert begun.missed == 1


def test_a_segment_removed_once_it_is_open_is_read(long_journal: Path) -> None:
    first, *rest = segments(long_journal)

    class Removing(LocalDisk):
        def open(self, path: Path, flags: int) -> int:
            file = super().open(path, flags)
            first.unlink(missing_ok=True)
            return file

    tail = Tail(long_journal, Offset(2, 1 << 30), disk=Removing())
    found = numbers(read_on(tail))
    assert found == list(range(found[0], 200))
    assert len(found) > len(numbers([each for path in rest for each in read_all(path)]))
    assert tail.missed == 0


def test_only_committed_bytes_are_read_and_a_cut_tail_never_is(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    write(journal, range(3))
    (path,) = segments(tmp_path)
    tail = Tail(tmp_path)
    assert numbers(tail.read()) == [0, 1, 2]
    with path.open("ab") as file:
        file.write(b"torn")
    assert tail.read() == []
    write(journal, range(3, 6))
    assert committed_length(path) == path.stat().st_size
    assert numbers(tail.read()) == [3, 4, 5]
    journal.close()


def test_damage_is_told_with_its_place(long_journal: Path) -> None:
    path = segments(long_journal)[2]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(Exception, match=rf"{path.name}: .* at byte \d+; `wireloom journal verify"):
        read_on(Tail(long_journal))


@pytest.mark.parametrize("text", ["", "yesterday", "12", "1.2.3", "-5m", "9" * 400 + "d", "2026-13-01T00:00:00Z"])
def test_what_is_no_point_in_time_is_told_so(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write a time such as|it looks like"):
        parse_since(text)
