"""What the console reads of the journal: the newest, never more than it can show, and what it left out counted."""

from __future__ import annotations

from pathlib import Path

from tests.journal.conftest import TOPICS, data
from wireloom.console.lately import KEEP, LOOK, Lately
from wireloom.journal import Journal, Tail
from wireloom.model import Direction


def write(journal: Journal, text: str, times: int = 1) -> None:
    for _ in range(times):
        journal.append("hsp", 1, Direction.C2S, 0, data(text), topics=TOPICS)
    journal.commit()


def test_each_message_is_seen_once_and_topics_are_counted(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        write(journal, "a")
        lately = Lately(tmp_path)
        lately.look()
        write(journal, "b")
        lately.look()
        lately.look()
        assert [line["text"] for line in lately.messages.since(0)] == ["a", "b"]
        (topic,) = lately.topics()
        assert topic["topic"] == "sensors/kitchen" and topic["messages"] == 2 and topic["protocols"] == ["hsp"]


def test_what_comes_too_fast_is_passed_over_and_counted(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        write(journal, "first")
        lately = Lately(tmp_path)
        lately.look()
        write(journal, "x" * 1000, times=3 * LOOK // 1000)
        lately.look()
        assert lately.skipped > 2 * LOOK and lately.messages.newest == 1
        write(journal, "last")
        lately.look()
        assert [line["text"] for line in lately.messages.since(0)] == ["first", "last"]
        assert lately.messages.newest <= KEEP


def test_how_far_a_tail_is_behind(tmp_path: Path) -> None:
    with Journal.open(tmp_path, segment_bytes=4096) as journal:
        write(journal, "x" * 500, times=30)
        tail = Tail(tmp_path)
        before = tail.behind()
        tail.read(4096)
        assert before > 30 * 500 and 0 < tail.behind() < before - 3000
        while tail.read():
            pass
        assert tail.behind() == 0
