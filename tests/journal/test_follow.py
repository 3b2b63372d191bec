"""Following a journal: everything once, in order, while it grows, rotates and loses old segments."""

from __future__ import annotations

import itertools

from wireloom.journal import Entry, Follower, Journal, read_messages, segments
from wireloom.model import Direction

from .conftest import TOPICS, data


def bodies(follower: Follower) -> list[bytes]:
    return [found.message.body for found in follower.read() if isinstance(found, Entry)]


def write(journal: Journal, *texts: str) -> None:
    for text in texts:
        journal.append("hsp", 1, Direction.C2S, 0, data(text), topics=TOPICS)
    journal.commit()


def test_a_closed_journal_is_read_as_by_read_messages(folder):
    follower = Follower(folder)
    found = [found for found in follower.read() if isinstance(found, Entry)]
    assert found == list(read_messages(folder)) and len(found) == 6
    assert list(follower.read()) == [] and follower.behind() == 0


def test_what_is_committed_later_comes_with_the_next_look(tmp_path):
    follower = Follower(tmp_path / "journal")
    assert bodies(follower) == []
    with Journal.open(tmp_path / "journal") as journal:
        write(journal, "a", "b")
        assert bodies(follower) == [b"a", b"b"]
        assert bodies(follower) == []
        journal.append("hsp", 1, Direction.C2S, 0, data("not committed"), topics=TOPICS)
        assert bodies(follower) == []
        write(journal, "c")
        assert bodies(follower) == [b"not committed", b"c"]


def test_it_goes_on_in_the_next_segment(tmp_path):
    follower = Follower(tmp_path)
    seen: list[bytes] = []
    with Journal.open(tmp_path, segment_bytes=4096) as journal:
        for number in range(200):
            write(journal, f"message {number:04d} " + "x" * 50)
            if number % 7 == 0:
                seen += bodies(follower)
        seen += bodies(follower)
    assert len(segments(tmp_path)) > 3
    assert [body[:12] for body in seen] == [f"message {number:04d}".encode() for number in range(200)]


def test_to_the_end_keeps_what_was_asked_for_and_still_knows_the_topics(tmp_path):
    with Journal.open(tmp_path, segment_bytes=4096) as journal:
        for number in range(100):
            write(journal, f"{number:04d}")
        follower = Follower(tmp_path)
        before = follower.behind()
        passed = follower.to_end(keep=1000)
        assert 0 < follower.behind() <= 1000 and passed > before - 2000
        found = [found for found in follower.read() if isinstance(found, Entry)]
        assert 0 < len(found) < 20 and found[-1].message.body == b"0099"
        assert {entry.message.topic for entry in found} == {"sensors/kitchen"}
        assert follower.to_end() == 0 and bodies(follower) == []


def test_segments_taken_away_by_retention_are_left_out(tmp_path):
    with Journal.open(tmp_path, segment_bytes=4096) as journal:
        for number in range(50):
            write(journal, f"{number:04d}" + "x" * 100)
        follower = Follower(tmp_path)
        first = [found for found in itertools.islice(follower.read(), 3) if isinstance(found, Entry)]
        old, *_, newest = segments(tmp_path)
        assert follower.position[0] == old.name
        for segment in segments(tmp_path)[:2]:
            segment.unlink()
        rest = bodies(follower)
        assert first[0].message.body[:4] == b"0000" and rest[-1][:4] == b"0049" and len(rest) < 48
        assert follower.position[0] == newest.name
