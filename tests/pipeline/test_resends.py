"""Messages that are sent again are one message in `exchanges`, however the input is cut; in `messages` they all stand."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.test_conversations import micros
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.pipeline.pair_kernel import Clock
from wireloom.pipeline.query import ask
from wireloom.pipeline.steps import exchanges_partial, resends
from wireloom.protocols.wolpertinger.layer2 import Document, RemoteMethodCall, Response
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings
from wireloom.protocols.wolpertinger.transmission import encode
from wireloom.protocols.wolpertinger.values import Value

START_US = 1_794_800_000_000_000 // 60_000_000 * 60_000_000
SECOND_US = 1_000_000
SETTINGS = WolpertingerSettings()
C2S, S2C = Direction.C2S, Direction.S2C
CALLS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(8)]


def call(number: int, message_id: int) -> tuple[Direction, bytes]:
    return C2S, _line(RemoteMethodCall("Test", CALLS[number], "Echo", (Value("int32", number),)), message_id)


def answer(number: int, message_id: int) -> tuple[Direction, bytes]:
    return S2C, _line(Response("Test", CALLS[number], Value("int32", number)), message_id)


def confirmation(way: Direction, message_id: int) -> tuple[Direction, bytes]:
    return way, b"result:0;message_id:%d;\n" % message_id


def _line(document: Document, message_id: int) -> bytes:
    return b"".join(encode(document, message_id, SETTINGS, None))


class Talk:
    """One connection in a journal, from its beginning."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.id = journal, journal.new_connection_id()
        self.name = f"{self.id:016x}"
        self.sent = {C2S: 0, S2C: 0}
        opened = {"protocol": "wolpertinger", "peer": "10.0.0.1:4000", "local": "10.0.0.2:5045"}
        journal.record("opened", opened, self.id, time_ns=START_US * 1000, protocol="wolpertinger")

    def say(self, seconds: float, said: tuple[Direction, bytes]) -> int:
        """Say something so many seconds after the start; that time in microseconds."""
        way, data = said
        time_us = START_US + round(seconds * SECOND_US)
        ends = ("10.0.0.1:4000", "10.0.0.2:5045")
        source, destination = ends if way is C2S else reversed(ends)
        self.journal.append(
            "wolpertinger", self.id, way, self.sent[way], data,
            source=source, destination=destination, time_ns=time_us * 1000,
        )  # fmt: skip
        self.sent[way] += 1
        return time_us


Said = tuple[float, tuple[Direction, bytes]]


def tables(folder: Path, *said: Said) -> tuple[list[tuple[object, ...]], list[str], int]:
    """Exchanges as (call, seconds asked, seconds answered, outcome), rules of findings, and the number of messages.

    The same for one batch and for a batch a message.
    """
    with Journal.open(folder / "j", sync=False) as journal:
        talk = Talk(journal)
        for seconds, each in said:
            talk.say(seconds, each)
    run_batches(folder / "one", [[ranges(folder / "j")]])
    places = [each / len(said) for each in range(1, len(said))]
    run_batches(folder / "many", [[part] for part in cut(ranges(folder / "j"), places)], tasks=2)
    assert contents(folder / "one") == contents(folder / "many")
    rows = ask(folder / "one", "select request_id, requested_at, answered_at, outcome from exchanges order by 2").rows
    found: list[tuple[object, ...]] = [
        (CALLS.index(str(row[0])), _seconds(row[1]), _seconds(row[2]), str(row[3])) for row in rows
    ]
    rules = [str(row[0]) for row in ask(folder / "one", "select rule from findings order by time").rows]
    (count,) = ask(folder / "one", "select count(*) from messages").rows[0]
    assert isinstance(count, int)
    return found, rules, count


def _seconds(time: object) -> float | None:
    at = micros(time)
    return None if at is None else (at - START_US) / SECOND_US


AGAIN = "wolpertinger.message-id.again"


def test_a_call_sent_again_before_its_answer_is_one_exchange_from_the_first_time_on(tmp_path: Path) -> None:
    found, rules, count = tables(
        tmp_path, (0, call(1, 7)), (20, call(1, 7)), (25, answer(1, 3)), (26, call(2, 8)), (27, answer(2, 4))
    )
    assert found == [(1, 0, 25, "done"), (2, 26, 27, "done")]
    assert (rules, count) == ([AGAIN], 5)


def test_a_call_sent_again_after_its_answer_waits_for_none(tmp_path: Path) -> None:
    found, rules, count = tables(
        tmp_path, (0, call(1, 7)), (1, answer(1, 3)), (20, call(1, 7)), (40, call(1, 7)), (500, call(1, 7))
    )
    assert found == [(1, 0, 1, "done")]
    assert (rules, count) == ([AGAIN] * 3, 5)


def test_an_answer_sent_again_answers_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    found, rules, _ = tables(tmp_path, (0, call(1, 7)), (1, answer(1, 3)), (21, answer(1, 3)))
    assert (found, rules) == ([(1, 0, 1, "done")], [AGAIN])


def test_another_message_with_the_call_id_of_a_pending_call_is_another_call(tmp_path: Path) -> None:
    found, rules, _ = tables(tmp_path, (0, call(1, 7)), (20, call(1, 8)), (21, answer(1, 3)))
    assert found == [(1, 0, None, "unanswered"), (1, 20, 21, "done")]
    assert rules == ["wolpertinger.call-id.reused"]


def test_both_directions_have_numbers_of_their_own(tmp_path: Path) -> None:
    found, rules, _ = tables(tmp_path, (0, call(1, 7)), (1, answer(1, 7)), (2, call(2, 8)), (3, answer(2, 8)))
    assert (found, rules) == ([(1, 0, 1, "done"), (2, 2, 3, "done")], [])


def test_a_number_is_forgotten_after_ten_minutes(tmp_path: Path) -> None:
    """In whole minutes: what came in minute 0 is known through minute 10. Its neighbours are not forgotten with it."""
    found, rules, _ = tables(
        tmp_path,
        *((0.1 * number, call(number, number)) for number in range(1, 6)),
        (1, answer(3, 1)),
        (659, call(3, 3)),  # known
        (660, call(3, 3)),  # not any more
        (661, answer(3, 2)),
        (1300, call(3, 3)),  # known by its second time
    )
    assert [row for row in found if row[0] == 3] == [(3, 0.3, 1, "done"), (3, 660, 661, "done")]
    assert rules == [AGAIN, AGAIN]


def test_a_confirmation_each_for_a_message_and_its_resend_is_no_finding(tmp_path: Path) -> None:
    found, rules, _ = tables(
        tmp_path,
        (0, call(1, 7)),
        (20, call(1, 7)),
        (21, confirmation(S2C, 7)),
        (22, answer(1, 3)),
        (23, confirmation(S2C, 7)),
        (24, confirmation(C2S, 3)),
        (25, confirmation(C2S, 3)),  # one too many
    )
    assert found == [(1, 0, 22, "done")]
    assert rules == [AGAIN, "wolpertinger.result.unknown-id"]


def test_what_comes_late_is_known_although_a_neighbour_was_forgotten_and_came_anew() -> None:
    """Five numbers in minute 0, then others with ten minutes of lateness, each in a batch of its own."""
    minute = 60 * SECOND_US
    received = resends.RECEIVED.empty_table()
    found = []
    for number, at, watermark in ((1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (3, 11, 11), (3, 12, 12),
                                  (4, 9, 12), (5, 10, 12), (2, 11, 12), (1, 11, 12), (2, 11, 12)):  # fmt: skip
        nothing = {
            name: pa.nulls(1, exchanges_partial.TURNS.field(name).type) for name in exchanges_partial.TURNS.names
        }
        said = {"number": [number], "lane": [2**63 + 1], "time": [at * minute], "bucket": [3]}
        said_typed = {name: pa.array(value, exchanges_partial.TURNS.field(name).type) for name, value in said.items()}
        rows = pa.table({**nothing, **said_typed}, schema=exchanges_partial.TURNS)
        again, received = resends.find(rows, received, Clock(watermark * minute, 10 * minute))
        found.append(bool(again[0]))
    assert found == [False] * 5 + [False, True, True, True, False, False, True]
    spans = [(row["minute"], row["first"], row["last"]) for row in received.to_pylist()]
    assert spans == [(11, 1, 3), (0, 4, 5)]


# At random, against a plain reader


class Reader:
    """What a conversation comes to, a message at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[tuple[Direction, int], int] = {}
        self.open: dict[int, int] = {}
        self.exchanges: list[tuple[object, ...]] = []
        self.rules: Counter[str] = Counter()

    def message(self, way: Direction, number: int, message_id: int, time_us: int) -> None:
        minute = time_us // 60_000_000
        if self.seen.get((way, message_id), -1_000_000) >= minute - 10:
            self.rules[AGAIN] += 1
            return
        self.seen[way, message_id] = minute
        asked = self.open.pop(number, None)
        fresh = asked is not None and time_us - asked <= 600_000_000
        if way is C2S:
            if asked is not None:
                self.rules["wolpertinger.call-id.reused"] += fresh
                self.exchanges.append((self.name, CALLS[number], asked, None))
            self.open[number] = time_us
        elif fresh:
            self.exchanges.append((self.name, CALLS[number], asked, time_us))
        else:
            self.rules["wolpertinger.response.unknown-call"] += 1
            if asked is not None:
                self.open[number] = asked

    def finish(self) -> None:
        self.exchanges += [(self.name, CALLS[number], asked, None) for number, asked in self.open.items()]


def make(folder: Path, seed: int, steps: int = 300) -> list[Reader]:
    rng = random.Random(seed)
    with Journal.open(folder, segment_bytes=20_000, sync=False) as journal:
        talks = [(talk, Reader(talk.name)) for talk in (Talk(journal) for _ in range(3))]
        seconds = 0.0
        for _ in range(steps):
            seconds += rng.choices((0.001, 0.4, 20.0, 100.0), (40, 40, 18, 2))[0] + (rng.random() < 0.01) * 700
            talk, reader = rng.choice(talks)
            number, message_id = rng.randrange(len(CALLS)), rng.randrange(1, 30)
            said = call(number, message_id) if rng.random() < 0.5 else answer(number, message_id)
            reader.message(said[0], number, message_id, talk.say(seconds, said))
            if rng.random() < 0.2:
                journal.commit()
    for _, reader in talks:
        reader.finish()
    return [reader for _, reader in talks]


@pytest.mark.parametrize("seed", range(2))
def test_exchanges_and_findings_are_those_of_a_plain_reader_at_every_commit(tmp_path: Path, seed: int) -> None:
    readers = make(tmp_path / "j", seed)
    rng = random.Random(seed)
    batches = [cut(part, [rng.random(), rng.random()]) for part in cut(ranges(tmp_path / "j"), [0.2, 0.5, 0.51, 0.9])]
    for number in range(len(batches)):
        run_batches(tmp_path / "many", [batches[number]], first=number, tasks=2)
        read = [part for batch in batches[: number + 1] for group in batch for part in group]
        run_batches(tmp_path / f"one-{number}", [[read]])
        assert contents(tmp_path / "many") == contents(tmp_path / f"one-{number}")
    rows = ask(tmp_path / "many", "select connection, request_id, requested_at, answered_at from exchanges").rows
    wanted = [row for reader in readers for row in reader.exchanges]
    assert Counter((row[0], row[1], micros(row[2]), micros(row[3])) for row in rows) == Counter(wanted)
    rules = Counter(str(row[0]) for row in ask(tmp_path / "many", "select rule from findings").rows)
    assert rules == +sum((reader.rules for reader in readers), Counter[str]())
