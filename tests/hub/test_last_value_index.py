"""The last run of each topic: in bounded memory, and in a file that grows by what has changed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.hub import last_value_index
from wireloom.hub.last_value_index import LatestFile, LatestTickets, memory_of
from wireloom.journal.disk import LocalDisk
from wireloom.journal.state import StateDamaged

NAMES = st.lists(st.sampled_from("abcdefgh"), max_size=60)


@given(NAMES, st.integers(1, 8))
def test_the_topics_published_last_are_known(names: list[str], room: int) -> None:
    known = LatestTickets(room * memory_of("a"))
    for ticket, topic in enumerate(names):
        known.note(topic, ticket)
    wanted = {topic: ticket for ticket, topic in enumerate(names)}
    newest = sorted(wanted.items(), key=lambda each: each[1])[-room:]
    assert list(known.tickets.items()) == newest
    assert known.memory == len(known.tickets) * memory_of("a")
    # What is saved is what is known, and nothing that was forgotten.
    assert known.take_unsaved() == dict(newest)
    assert known.take_unsaved() == {}
    known.put_back({**wanted, "a": -1})
    assert known.unsaved == {topic: ticket for topic, ticket in newest if topic != "a"}


def test_older_topics_take_the_room_that_is_left() -> None:
    known = LatestTickets(3 * memory_of("a"))
    known.note("a", 10)
    assert known.note_older("b", 5)
    assert known.note_older("a", 4)
    assert known.note_older("c", 3)
    assert not known.note_older("d", 2)
    assert list(known.tickets.items()) == [("c", 3), ("b", 5), ("a", 10)]


def load(path: Path) -> tuple[int, dict[str, int], list[StateDamaged]]:
    damage: list[StateDamaged] = []
    upto, topics = LatestFile(path, "e").load(damage.append)
    return upto, topics, damage


def test_changes_are_appended_and_the_file_is_written_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_value_index, "_GROWTH", 1000)
    path = tmp_path / "file"
    assert load(path) == (0, {}, [])
    file = LatestFile(path, "e")
    assert file.is_long
    first = {f"t/{number}": number for number in range(600)}
    file.rewrite(first.items(), 600)
    assert load(path) == (600, first, [])
    whole = path.stat().st_size
    file.append([("t/7", 601)], 601)
    assert load(path) == (601, first | {"t/7": 601}, [])
    assert path.stat().st_size - whole < 200
    for number in range(602, 700):
        assert not file.is_long
        file.append(((f"t/{each}", number) for each in range(10)), number)
        if file.is_long:
            break
    assert whole < path.stat().st_size - whole < whole + 1000
    assert LatestFile(path, "e").is_long, "a file of another process may end in the middle of a line"
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.data())
def test_a_file_that_was_cut_says_what_stands_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "file"
    file = LatestFile(path, "e")
    file.rewrite([("a", 1)], 1)
    file.append([("a", 2), ("b", 3)], 3)
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 0x0A]
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    lines = sum(end <= cut for end in ends)
    expected = [(0, {}), (0, {"a": 1}), (1, {"a": 1}), (1, {"a": 2, "b": 3}), (3, {"a": 2, "b": 3})][lines]
    assert load(path) == (*expected, [])


def test_a_damaged_line_ends_the_file_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = LatestFile(path, "e")
    file.rewrite([("a", 1)], 1)
    file.append([("a", 2)], 3)
    path.write_bytes(path.read_bytes().replace(b'"a":2', b'"a":9'))
    upto, topics, [damage] = load(path)
    assert (upto, topics) == (1, {"a": 1})
    assert str(path) in str(damage)


def test_after_a_write_that_failed_the_file_is_written_anew(tmp_path: Path) -> None:
    class Full(LocalDisk):
        def sync(self, file: int) -> None:
            if full:
                raise OSError(errno.ENOSPC, "no")
            super().sync(file)

    full = False
    path = tmp_path / "file"
    file = LatestFile(path, "e", Full())
    file.rewrite([("a", 1)], 1)
    full = True
    with pytest.raises(OSError, match="no"):
        file.append([("a", 2)], 2)
    full = False
    assert file.is_long
    file.rewrite([("a", 2)], 2)
    assert load(path) == (2, {"a": 2}, [])
