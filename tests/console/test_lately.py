"""What the console reads of the journal: the newest, never more than it can show, and what it left out counted."""

from __future__ import annotations

from pathlib import Path

from tests.journal.conftest import TOPICS, data
from wireloom.console.lately import KEEP, LOOK, Lately, readable
from wireloom.journal import Journal, Tail
from wireloom.model import Direction, Kind, Message


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


def yamp(content_type: str, body: bytes) -> Message:
    return Message(Kind.EVENT, "a", body, content_type=content_type, protocol="yamp")


def test_bodies_in_formats_of_the_protocol_are_readable() -> None:
    assert readable(yamp("application/msgpack", bytes.fromhex("82a16e01a162c402ff00"))) == '{"n": 1, "b": "ff00"}'
    assert readable(yamp("application/cbor", bytes.fromhex("a1616e01"))) == '{"n": 1}'
    for unreadable in (
        yamp("application/msgpack", b"\xc1"),
        yamp("application/octet-stream", b"\xff"),
        yamp("application/x-unheard-of", b"\xff"),
        yamp("application/msgpack", b"\xc4" * 5000),
    ):
        assert readable(unreadable) is None


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
