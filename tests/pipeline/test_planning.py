"""Positions and ranges: nothing twice, nothing left out, never more than asked for."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal.test_format1 import JOURNAL
from tests.pipeline.journals import make_journal
from wireloom.journal import Journal, committed_length, segments
from wireloom.journal.blocks import MAX_PACKET_DATA
from wireloom.journal.segment import bytes_after, first_packet_id
from wireloom.model import ConfigError, Direction, JournalError
from wireloom.pipeline.planning import Offsets, Range, advance, check_inputs, latest, pack, plan, renamed


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("planning")
    for number in range(2):
        make_journal(root / str(number), seed=number, runs=30 + 20 * number)
    return [str(root / "0"), str(root / "1")]


def committed(inputs: list[str]) -> int:
    return sum(committed_length(s) for lane in inputs for f in (lane, f"{lane}/refused") for s in segments(f))


def test_everything_is_planned_once(journals: list[str]) -> None:
    ranges = plan(journals, {}, latest(journals))
    assert len({r.file for r in ranges}) == len(ranges)
    assert sum(r.size for r in ranges) == committed(journals)
    assert {r.refused for r in ranges} == {True, False}


@settings(max_examples=10)
@given(most=st.integers(30_000, 900_000))
def test_steps_of_limited_size_reach_the_end_and_cover_everything(journals: list[str], most: int) -> None:
    target = latest(journals)
    position: Offsets = {}
    seen: list[Range] = []
    for _ in range(10_000):
        following = advance(journals, position, target, most)
        if following == position:
            break
        step = plan(journals, position, following)
        # Of each lane at least one block.
        assert sum(r.size for r in step) <= most + len(target) * (MAX_PACKET_DATA + 1024)
        seen += step
        position = following
    assert position == target
    by_file: dict[str, list[Range]] = {}
    for part in seen:
        by_file.setdefault(part.file, []).append(part)
    for parts in by_file.values():
        assert parts[0].start == 0
        assert all(a.end == b.start for a, b in itertools.pairwise(parts))
    assert sum(r.size for r in seen) == committed(journals)


def test_both_journals_advance_when_the_limit_is_short(journals: list[str]) -> None:
    position = advance(journals, {}, latest(journals), 10_000)
    lanes = {name for name in latest(journals) if not name.endswith("refused")}
    assert lanes <= set(position) and len(lanes) == 2


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    target=st.integers(1, 3000),
)
def test_packing_keeps_every_byte_in_order(sizes: list[int], target: int) -> None:
    ranges = [Range(str(i), 10, 10 + size) for i, size in enumerate(sizes)]
    groups = pack(ranges, target)
    assert all(sum(r.size for r in group) <= target for group in groups)
    flat = [r for group in groups for r in group]
    for whole in ranges:
        own = [r for r in flat if r.file == whole.file]
        assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        assert all(a.end == b.start for a, b in itertools.pairwise(own))


def test_an_open_segment_is_read_up_to_its_committed_length(tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        before = latest([str(tmp_path)])
        journal.append("hsp", journal.new_connection_id(), Direction.C2S, 0, b"\x03")
        assert latest([str(tmp_path)]) == before
        journal.commit()
        (part,) = plan([str(tmp_path)], before, latest([str(tmp_path)]))
        assert part.end == committed_length(part.file)
        between = latest([str(tmp_path)])
        journal.append("hsp", journal.new_connection_id(), Direction.C2S, 1, b"\x03")
        journal.commit()
        (more,) = plan([str(tmp_path)], between, latest([str(tmp_path)]))
        assert (more.start, more.end) == (part.end, committed_length(part.file))


def test_segments_that_retention_removed_are_passed_over(tmp_path: Path) -> None:
    make_journal(tmp_path, refusals=0)
    first, second, *_ = segments(tmp_path)
    (lane,) = (name for name in latest([str(tmp_path)]) if not name.endswith("refused"))
    position: Offsets = {lane: {"id": first_packet_id(second)}}
    first.unlink()
    assert plan([str(tmp_path)], position, latest([str(tmp_path)]))[0].file == str(second)


def test_an_input_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="nowhere does not exist"):
        check_inputs([tmp_path / "nowhere"])


def test_a_folder_that_is_no_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(ConfigError, match="no journal and no captures here"):
        check_inputs([tmp_path])


def test_no_input_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no input"):
        check_inputs([])


def test_segments_of_both_forms_of_names_are_planned_in_order_of_their_packet_ids(tmp_path: Path) -> None:
    """A journal of format 1 that goes on as format 2, and an epoch whose name would sort before the one before it."""
    lane = tmp_path / "journal"
    shutil.copytree(JOURNAL, lane)
    for epoch in (0xFFFF_FFFF_FFFF_FFFF, 0x0000_0000_0000_0001):
        with Journal.open(lane, sync=False, random_bits=lambda bits, epoch=epoch: epoch & (1 << bits) - 1) as journal:  # type: ignore[misc]
            journal.append("hsp", journal.new_connection_id(), Direction.C2S, 0, b"\x03")
        (lane / "journal.json").unlink()  # as when a copy begins an epoch of its own
    names = [path.name for path in segments(lane)]
    assert len({name[21:] for name in names[-2:]}) == 2
    assert [first_packet_id(lane / name) for name in names] == sorted(first_packet_id(lane / name) for name in names)
    inputs = [str(lane)]
    target = latest(inputs)
    parts = [part for part in plan(inputs, {}, target) if not part.refused]
    assert sorted(Path(part.file).name for part in parts) == names
    old: Offsets = {str(lane): {"segment": names[3], "position": 0}}
    middle = {**target, **renamed(old)}
    before, after = plan(inputs, {}, middle), plan(inputs, middle, target)
    assert sorted(Path(part.file).name for part in (*before, *after) if not part.refused) == names
    assert bytes_after(lane, names[3], 0) == sum(committed_length(lane / name) for name in names[3:])
