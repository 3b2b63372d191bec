"""Retention: by age and by size, never past a cursor unless told so, and never the newest segment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wireloom.cli.main import main
from wireloom.journal import Journal, Keep, cursors, prune, read_messages, segments
from wireloom.journal.segment import committed_path, segment_name
from wireloom.journal.verify import verify
from wireloom.model import Direction

from .conftest import TOPICS, data

DAY = 24 * 3600 * 1_000_000_000
BEGIN = 1_800_000_000 * 1_000_000_000


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Ten days, a segment a day, written without a break; then the segment being written."""
    journal = Journal.open(tmp_path, segment_bytes=1, now_ns=lambda: BEGIN)
    for day in range(11):
        journal.append(
            "hsp", 1, Direction.C2S, day, data(f"{day} " + "x" * 5000), topics=TOPICS, time_ns=BEGIN + day * DAY
        )
        journal.commit()
    segments(tmp_path)[0].unlink()  # `started`
    assert len(segments(tmp_path)) == 11
    return tmp_path


def kept(folder: Path) -> list[int]:
    return [int(entry.message.body.split()[0]) for entry in read_messages(folder)]


def leave_cursor(folder: Path, name: str, segment: Path, position: int) -> None:
    (folder / "cursors").mkdir(exist_ok=True)
    (folder / "cursors" / f"{name}.json").write_text(json.dumps({"segment": segment.name, "position": position}))


def test_by_age_a_segment_goes_when_all_of_it_is_too_old(days: Path) -> None:
    gone = prune(days, Keep(days=3), BEGIN + 9 * DAY + 1)
    assert [each.why for each in gone] == ["older than 3 days"] * 7
    assert kept(days) == [7, 8, 9, 10]
    assert prune(days, Keep(days=3), BEGIN + 9 * DAY + 1) == []
    assert list(verify(days)) == []


def test_by_size_the_oldest_go_until_the_rest_fits(days: Path) -> None:
    size = segments(days)[0].stat().st_size
    gone = prune(days, Keep(size=size * 4 + size // 2), BEGIN)
    assert len(gone) == 7
    assert kept(days) == [7, 8, 9, 10]


def test_the_newest_segment_stays_so_that_packet_ids_go_on(days: Path) -> None:
    prune(days, Keep(days=1, size=1), BEGIN + 1000 * DAY)
    assert kept(days) == [10]


def test_nothing_goes_past_a_cursor_and_the_slowest_counts(days: Path) -> None:
    known = segments(days)
    leave_cursor(days, "fast", known[8], 100)
    leave_cursor(days, "slow", known[4], known[4].stat().st_size - 1)
    found = prune(days, Keep(days=1), BEGIN + 9 * DAY + 1)
    assert [each.kept_for for each in found] == [None] * 4 + ["slow"] * 5
    assert kept(days) == list(range(4, 11))
    leave_cursor(days, "slow", known[4], known[4].stat().st_size)
    prune(days, Keep(days=1), BEGIN + 9 * DAY + 1)
    assert kept(days) == list(range(5, 11))
    prune(days, Keep(days=1, past_cursors=True), BEGIN + 9 * DAY + 1)
    assert kept(days) == [9, 10]


def test_a_damaged_cursor_has_read_nothing(days: Path) -> None:
    (days / "cursors").mkdir()
    (days / "cursors" / "broken.json").write_text("{")
    assert [cursor.segment for cursor in cursors(days)] == [""]
    assert all(each.kept_for == "broken" for each in prune(days, Keep(days=1), BEGIN + 10 * DAY))
    assert kept(days) == list(range(11))


def test_a_dry_run_says_what_would_go_and_leaves_it(days: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_cursor(days, "reports", segments(days)[2], 0)
    assert main(["journal", "prune", str(days), "--keep-bytes", "1k", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("more than 1024 bytes  would be removed") for line in lines[:2]] == [True, True]
    assert lines[2].endswith("kept: pipeline reports has not read it")
    assert lines[-1].startswith(f"{days}: 2 segments, ")
    assert kept(days) == list(range(11))
    assert main(["journal", "prune", str(days), "--keep-bytes", "1k", "--ignore-cursors"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{days}: 10 segments, ")
    assert kept(days) == [10]


@pytest.mark.parametrize("arguments", [[], ["--keep-bytes", "lots"]])
def test_without_a_limit_nothing_is_removed(
    days: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["journal", "prune", str(days), *arguments]) == 2
    assert "keep" in capsys.readouterr().err
    assert kept(days) == list(range(11))


def test_after_pruning_everything_a_new_writer_goes_on_with_the_ids(tmp_path: Path) -> None:
    for _ in range(3):
        with Journal.open(tmp_path) as journal:
            last = journal.last_ticket
    prune(tmp_path, Keep(size=1), BEGIN)
    with Journal.open(tmp_path) as journal:
        assert journal.last_ticket > last


def test_the_newest_segment_that_holds_something_stays_while_the_next_is_only_just_begun(tmp_path: Path) -> None:
    for _ in range(3):
        with Journal.open(tmp_path) as journal:
            last = journal.last_ticket
    begun = tmp_path / segment_name(last + 2, "0" * 16)
    begun.touch()
    committed_path(begun).write_text(f"{0:020d}\n")
    prune(tmp_path, Keep(size=1), BEGIN)
    with Journal.open(tmp_path) as journal:
        assert journal.last_ticket > last
