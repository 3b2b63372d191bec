"""The ledger balances where all is well, and each of its checks can fail."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ledger import GONE, LOST, ORDER, TWO_CONTENTS, Imbalance, Ledger, Line, Row, row_of, rows_of
from tests.pipeline.batches import ranges, run_batches
from wireloom.journal import Entry, Journal, Tail, read_all, read_blocks, segments
from wireloom.journal.disk import LocalDisk
from wireloom.model import Direction
from wireloom.protocols.hsp import frames

TOPICS = {7: "load", 8: "other"}
START_NS = 1_794_800_000_000_000_000


def write(folder: Path, *runs: tuple[int, list[bytes]], type_: int = 7, time_ns: int = START_NS) -> None:
    """Add runs of acknowledged messages to a journal: the number of a connection, and bodies."""
    with Journal.open(folder, sync=False) as journal:
        for connection, bodies in runs:
            data = b"".join(frames.encode(frames.DataAck(1, type_, body)) for body in bodies)
            journal.append("hsp", connection, Direction.C2S, 0, data, topics=TOPICS, time_ns=time_ns)
        journal.commit()


def sent(line: Line, *contents: bytes, acknowledged: int = 0) -> None:
    for number, content in enumerate(contents):
        message = line.send(number, content)
        if number < acknowledged:
            line.acknowledge(message)


@pytest.fixture
def ledger() -> Ledger:
    """Two clients: one has sent a1, a2, a3 and knows of two of them, the other b1."""
    ledger = Ledger()
    sent(ledger.line("a", "hsp", "load"), b"a1", b"a2", b"a3", acknowledged=2)
    sent(ledger.line("b", "hsp", "load"), b"b1", acknowledged=1)
    return ledger


def failure(ledger: Ledger, folder: Path) -> str:
    with pytest.raises(Imbalance) as caught:
        ledger.check(folder)
    return str(caught.value)


def test_what_was_acknowledged_is_in_the_journal(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1"]), (2, [b"b1"]), (1, [b"a2"]))
    assert ledger.check(tmp_path)[:3] == (4, 3, 3)


def test_more_than_what_was_acknowledged_may_be_there(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2", b"a3"]), (2, [b"b1"]))
    assert ledger.check(tmp_path).journal == 4


def test_an_acknowledged_message_that_is_missing_is_named(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1"]), (2, [b"b1"]))
    text = failure(ledger, tmp_path)
    assert "1 acknowledged, but not in the journal:\n  hsp client a connection 1 #1 b'a2' (sent at " in text
    assert "acknowledged after " in text
    assert "a1" not in text


def test_the_first_few_are_named_and_all_are_counted(tmp_path: Path) -> None:
    ledger = Ledger()
    sent(ledger.line("a", "hsp", "load"), *(b"%d" % number for number in range(20)), acknowledged=20)
    write(tmp_path, (1, [b"0"]))
    text = failure(ledger, tmp_path)
    assert "19 acknowledged, but not in the journal:" in text
    assert "#5 b'5'" in text
    assert "#6 b'6'" not in text
    assert "and 14 more" in text


def test_a_message_that_nobody_sent_is_named(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1"]), (3, [b"stranger"]))
    assert "1 in the journal, but never sent:\n  hsp load b'stranger'" in failure(ledger, tmp_path)


def test_a_message_twice_that_was_sent_once_is_named(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1", b"b1"]))
    text = failure(ledger, tmp_path)
    assert "1 in the journal more often than sent:\n  2 times: hsp client b connection 1 #0 b'b1'" in text
    assert "stands where nothing more of hsp client b connection 1 was due" in text


def test_a_client_may_send_again_on_its_next_connection(ledger: Ledger, tmp_path: Path) -> None:
    sent(ledger.line("a", "hsp", "load"), b"a3", b"a4", acknowledged=2)
    write(tmp_path, (1, [b"a1", b"a2", b"a3"]), (2, [b"b1"]), (3, [b"a3", b"a4"]))
    ledger.check(tmp_path)


def test_a_protocol_may_send_again_on_the_same_connection(tmp_path: Path) -> None:
    ledger = Ledger()
    sent(ledger.line("a", "hsp", "load", repeats=True), b"a1", b"a2", acknowledged=2)
    write(tmp_path, (1, [b"a1", b"a2", b"a1"]))
    ledger.check(tmp_path)


def test_order_on_a_connection_is_the_order_sent(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a2", b"a1"]), (2, [b"b1"]))
    text = failure(ledger, tmp_path)
    assert "not in the order sent:\n  hsp load b'a2'" in text
    assert "stands where hsp client a connection 1 #0 b'a1'" in text


def test_a_hole_is_named(ledger: Ledger, tmp_path: Path) -> None:
    sent(ledger.line("c", "hsp", "load"), b"c1", b"c2", b"c3", acknowledged=0)
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1"]), (3, [b"c1", b"c3"]))
    text = failure(ledger, tmp_path)
    assert "1 not in the order sent:" in text
    assert "b'c3'" in text
    assert "stands where hsp client c connection 1 #1 b'c2'" in text


def test_a_connection_of_a_client_is_one_connection_of_the_journal(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1"]), (9, [b"a2"]), (2, [b"b1"]))
    assert "its client has no connection left that this could be" in failure(ledger, tmp_path)


def test_another_topic_is_named(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]))
    write(tmp_path, (2, [b"b1"]), type_=8)
    assert "1 in the journal under another topic or protocol:\n  hsp client b" in failure(ledger, tmp_path)


def test_a_name_that_stands_for_something_else_after_a_crash_is_named(ledger: Ledger, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    write(folder, (1, [b"a1", b"a2"]))
    shutil.copytree(folder, tmp_path / "before")
    write(folder, (1, [b"a3"]))
    ledger.observe(folder)
    # Rolled back in place, as by a disk that lost what it had: the next writer takes the same packet ids again.
    for file in folder.glob("*.*"):
        file.unlink()
    for file in (tmp_path / "before").glob("*.*"):
        shutil.copy2(file, folder)
    write(folder, (2, [b"b1"]))
    text = failure(ledger, folder)
    assert re.search(r"\d names with two contents:\n(?s:.*) was .* b'a3' .*, and is .* b'b1' ", text), text
    assert "acknowledged, but" not in text


def test_a_name_in_two_segments_is_named(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1"]))
    (segment,) = segments(tmp_path)
    found = list(read_all(tmp_path))
    ledger.note(tmp_path, [*found, found[-1]])
    text = failure(ledger, tmp_path)
    assert "1 names that stand twice in one reading:" in text
    assert segment.name in text


def test_what_a_reader_has_seen_stays(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1"]))
    write(tmp_path, (1, [b"a3"]))
    assert len(ledger.observe(tmp_path)) > 4
    segments(tmp_path)[-1].unlink()
    text = failure(ledger, tmp_path)
    assert "seen by a reader, but gone:" in text
    assert "b'a3'" in text
    assert "acknowledged, but" not in text


def test_what_retention_takes_may_be_missing(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1"]))
    write(tmp_path, (1, [b"a2", b"a3"]), (2, [b"b1"]))
    ledger.observe(tmp_path)
    first = segments(tmp_path)[0]
    other = ledger.fork()
    ledger.let_go(tmp_path, [first.name])
    first.unlink()
    assert ledger.check(tmp_path).journal == 3
    with pytest.raises(Imbalance) as caught:
        other.check(tmp_path)
    assert caught.value.kinds == [GONE, LOST, ORDER]


def test_a_fork_goes_on_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    folder, copied = tmp_path / "journal", tmp_path / "copy" / "journal"
    write(folder, (1, [b"a1", b"a2"]), (2, [b"b1"]))
    ledger.observe(folder)
    other = ledger.fork()
    sent(other.line("c", "hsp", "load"), b"c1", acknowledged=1)
    with pytest.raises(Imbalance, match=r"#0 b'c1'"):
        other.check(folder)
    shutil.copytree(folder, copied)
    write(copied, (3, [b"c1"]))
    assert other.check(copied).sent == 5
    further = other.fork()
    with pytest.raises(Imbalance, match="seen by a reader, but gone"):
        further.observe(folder)
    other.let_go(copied, [each.name for each in segments(copied)])
    assert ledger.check(folder).sent == 4
    segments(folder)[0].unlink()
    with pytest.raises(Imbalance, match="seen by a reader, but gone"):
        ledger.observe(folder)


def test_a_name_has_one_content_in_all_forks_of_a_ledger(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1", b"a2"]), (2, [b"b1"]))
    found = list(read_all(tmp_path))
    ledger.note(tmp_path, [replace(each, sequence=7) if isinstance(each, Entry) else each for each in found])
    for fork in (ledger.fork(), ledger.fork().fork()):
        with pytest.raises(Imbalance) as caught:
            fork.observe(tmp_path)
        assert caught.value.kinds == [TWO_CONTENTS]


def test_a_journal_that_is_not_synced_may_lose_its_end_and_no_more(ledger: Ledger, tmp_path: Path) -> None:
    write(tmp_path, (1, [b"a1"]), (2, [b"b1"]))
    write(tmp_path, (1, [b"a2"]))
    ledger.observe(tmp_path)
    segments(tmp_path)[-1].unlink()
    assert ledger.fork().check(tmp_path, may_lose=True).journal == 2
    with pytest.raises(Imbalance) as caught:
        ledger.fork().check(tmp_path)
    assert caught.value.kinds == [GONE, LOST]
    write(tmp_path, (1, [b"a3"]))
    with pytest.raises(Imbalance) as caught:
        ledger.check(tmp_path, may_lose=True)
    assert caught.value.kinds[-1] == ORDER


def test_each_message_may_have_a_topic_of_its_own(tmp_path: Path) -> None:
    ledger = Ledger()
    line = ledger.line("a", "hsp", "load")
    line.send(0, b"a1", "other")
    line.send(1, b"a2")
    write(tmp_path, (1, [b"a1"]), type_=8)
    write(tmp_path, (1, [b"a2"]))
    ledger.check(tmp_path)


def test_no_more_is_read_than_each_segment_once(ledger: Ledger, tmp_path: Path) -> None:
    opened: list[Path] = []

    class Counting(LocalDisk):
        def open(self, path: Path, flags: int) -> int:
            if path.suffix == ".pcapng":
                opened.append(path)
            return super().open(path, flags)

    write(tmp_path, (1, [b"a1", b"a2"]))
    write(tmp_path, (2, [b"b1"]))
    ledger.disk = Counting()
    found = list(read_all(tmp_path, disk=ledger.disk))
    once = len(opened)
    ledger.check(tmp_path)
    assert len(opened) == 2 * once + 2, "the head of each segment is looked at for its hub and epoch"
    ledger.fork().check(tmp_path)
    assert len(opened) == 3 * once + 2, "but once"
    ledger.check(tmp_path, found)
    ledger.observe(tmp_path, found)
    assert len(opened) == 3 * once + 2


def test_a_live_journal_is_observed_by_any_reader(ledger: Ledger, tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        tail = Tail(tmp_path)
        journal.append("hsp", 1, Direction.C2S, 0, frames.encode(frames.DataAck(1, 7, b"a1")), topics=TOPICS)
        journal.append("hsp", 2, Direction.C2S, 0, frames.encode(frames.DataAck(1, 7, b"b1")), topics=TOPICS)
        journal.commit()
        seen = ledger.note(tmp_path, tail.read())
        assert seen == ledger.observe(tmp_path)
        assert len(seen) == 4
        journal.append("hsp", 1, Direction.C2S, 1, frames.encode(frames.DataAck(1, 7, b"a2")), topics=TOPICS)
        journal.commit()
        tail.close()
    assert ledger.check(tmp_path).journal == 3


def test_every_block_of_a_long_run_has_its_name(tmp_path: Path) -> None:
    ledger = Ledger()
    write(tmp_path, (1, [b"L" * 300_000]))
    blocks = [block for segment in segments(tmp_path) for block in read_blocks(segment)]
    assert len(ledger.observe(tmp_path)) == len(blocks) > 4


def test_bytes_that_do_not_decode_are_named(tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, b"\x09\x09", topics=TOPICS)
        journal.commit()
    assert "1 bytes that do not decode:\n  hsp.command.unknown at " in failure(Ledger(), tmp_path)


@pytest.fixture
def tables(ledger: Ledger, tmp_path: Path) -> list[Row]:
    journal = tmp_path / "journal"
    write(journal, (1, [b"a1", b"a2"]), (2, [b"b1"]))
    write(journal, (1, [b"a3"]))
    ledger.check(journal)
    run_batches(tmp_path / "warehouse", [[ranges(journal)]])
    return list(rows_of(tmp_path / "warehouse"))


def test_tables_hold_what_the_journal_holds(ledger: Ledger, tmp_path: Path, tables: list[Row]) -> None:
    assert ledger.check_tables(tmp_path / "journal", tables) == 4
    entries = (each for each in read_all(tmp_path / "journal") if isinstance(each, Entry))
    assert sorted(map(str, map(row_of, entries))) == sorted(map(str, tables))


def test_a_row_that_is_missing_is_named(ledger: Ledger, tmp_path: Path, tables: list[Row]) -> None:
    with pytest.raises(Imbalance, match=r"1 in the journal, but not in the tables:\n  c2s event load b'a1' at "):
        ledger.check_tables(tmp_path / "journal", [row for row in tables if row.body != b"a1"])


def test_a_row_that_is_there_twice_or_in_no_journal_is_named(ledger: Ledger, tmp_path: Path, tables: list[Row]) -> None:
    with pytest.raises(Imbalance, match=r"1 in the tables, but not \(or not so often\) in the journal:\n.*b'b1'"):
        ledger.check_tables(tmp_path / "journal", [*tables, *(row for row in tables if row.body == b"b1")])
