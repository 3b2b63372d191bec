"""What the console reads of the journal: the newest, never more than it can show, and what it left out counted."""

from __future__ import annotations

from pathlib import Path

from tests.hub.running import ack, data_ack
from tests.journal.conftest import TOPICS, data
from wireloom.console.recent_traffic import KEEP, LOOK, MAX_OPEN, RecentTraffic, readable
from wireloom.journal import Journal, Tail
from wireloom.model import Direction, Kind, Message


def write(journal: Journal, text: str, times: int = 1) -> None:
    for _ in range(times):
        journal.append("hsp", 1, Direction.C2S, 0, data(text), topics=TOPICS)
    journal.commit()


def test_each_message_is_seen_once_and_topics_are_counted(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        write(journal, "a")
        lately = RecentTraffic(tmp_path)
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
        lately = RecentTraffic(tmp_path)
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


def test_both_halves_of_a_request_are_one_exchange_and_half_a_request_says_so(tmp_path: Path) -> None:
    asker, provider, other = 1, 2, 3
    with Journal.open(tmp_path) as journal:

        def say(connection: int, inbound: bool, frame: bytes) -> None:
            direction = Direction.C2S if inbound else Direction.S2C
            journal.append("hsp", connection, direction, 0, frame, topics=TOPICS, inbound=inbound)

        lately = RecentTraffic(tmp_path)
        # What hsp asks is a request only where the journal says that a provider took it.
        journal.record("taken", {"ids": ["7", "8"]}, asker)
        say(asker, True, data_ack(7, b"x") + data_ack(8, b"y"))
        say(provider, False, data_ack(1, b"y"))
        say(provider, False, data_ack(2, b"x"))
        say(provider, True, ack(1) + ack(2))
        say(asker, False, ack(7) + ack(8))
        say(other, False, data_ack(9, b"z"))
        say(other, True, ack(9))
        journal.commit()
        lately.look()
        found = [
            (line["request_id"], line["verb"], line["passed_on"], line["provider"])
            for line in lately.exchanges.since(0)
        ]
        assert found == [
            ("7", "request", False, "hsp"),
            ("8", "request", False, "hsp"),
            ("9", "request", True, None),
        ]


def test_requests_that_nobody_passes_on_are_forgotten(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        lately = RecentTraffic(tmp_path)
        for number in range(2 * MAX_OPEN):
            journal.record("taken", {"ids": [str(number)]}, 1)
            journal.append("hsp", 1, Direction.C2S, 0, data_ack(number, b"%d" % number), topics=TOPICS)
            if number % 500 == 0:
                journal.commit()
                lately.look()
        journal.commit()
        lately.look()
        assert len(lately._asked) == MAX_OPEN == sum(map(len, lately._to_pass_on.values()))
        journal.record("closed", {}, 1)
        journal.commit()
        lately.look()
        assert not lately._asked and not lately._to_pass_on
