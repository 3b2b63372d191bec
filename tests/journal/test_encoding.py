"""Many runs at once: the same bytes, and the same journal, as one run after the other."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.disks import FaultyDisk
from wireloom.journal import Context, Journal, blocks, read_blocks, segments
from wireloom.journal.context import Principal
from wireloom.journal.encoding import LineTable
from wireloom.journal.lines import Line
from wireloom.journal.log import LARGE
from wireloom.journal.verify import verify
from wireloom.model import Direction, JournalError

from .conftest import CLIENT, SERVER, TOPICS, data

ADDRESSES = st.sampled_from([None, "unix", CLIENT, SERVER, "[2001:db8::1]:1", "a@example.org/desk"])
NUMBERS = st.integers(0, 2**63 - 2**20)


@st.composite
def lines(draw) -> Line:
    ends = (
        draw(st.text("abc", min_size=1, max_size=300)),
        draw(st.sampled_from(Direction)),
        *draw(st.tuples(ADDRESSES, ADDRESSES)),
    )
    line = Line(draw(st.integers(0, 2**64 - 1)), ends, inbound=draw(st.booleans()))
    line.context = draw(st.sampled_from([None, Context(TOPICS)]))
    return line


@settings(deadline=None)
@given(
    known=st.lists(lines(), min_size=1, max_size=5),
    runs=st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=300), st.integers(0, 10**18 - 1)), max_size=100),
    packet_id=NUMBERS,
    time_ns=NUMBERS,
    kind=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_the_kernel_writes_what_encode_packet_writes(known, runs, packet_id, time_ns, kind):
    table = LineTable()
    for line in known:
        table.add(line)
        table.set_stated(line, 1)
    runs = [(known[at % len(known)], payload, sequence) for at, payload, sequence in runs]
    ends = list(itertools.accumulate(len(payload) for _, payload, _ in runs))
    found = table.runs(
        [0, *ends][: len(runs)], ends, [line.slot for line, _, _ in runs], [sequence for _, _, sequence in runs]
    )
    count, encoded = table.encode(
        kind(b"".join(payload for _, payload, _ in runs)),
        *(found, 0),
        **{"packet_id": packet_id, "ticket": 7, "time_ns": time_ns, "segment": 1, "room": 1 << 30},
    )
    assert count == len(runs)
    assert found[4].tolist() == list(range(7, 7 + count))
    assert bytes(encoded) == b"".join(
        blocks.encode_packet(
            *(packet_id + at, time_ns, line.tags, line.tags_crc, payload),
            *(line.comment_for(sequence, line.context.word if line.context else b""), line.flags),
        )
        for at, (line, payload, sequence) in enumerate(runs)
    )


class Said(NamedTuple):
    """A run of one line."""

    line: int
    payload: bytes


class Writers:
    """A journal, and its lines by number: what goes out of connection n is line n + 100."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lines: dict[int, Line] = {}
        self._sequences: dict[int, int] = {}

    def line(self, number: int) -> Line:
        if number not in self._lines:
            connection, inbound = number % 100, number < 100
            ends = (CLIENT, SERVER) if inbound else (SERVER, CLIENT)
            direction = Direction.C2S if inbound else Direction.S2C
            line = self.journal.line(connection, "hsp", direction, *ends, inbound=inbound)
            self.journal.describe(line, CONTEXTS[connection % 3], PRINCIPALS.get(connection))
            self._lines[number] = line
        return self._lines[number]

    def next(self, number: int) -> int:
        self._sequences[number] = self._sequences.get(number, -1) + 1
        return self._sequences[number]

    def append(self, run: Said) -> int:
        line = self.line(run.line)
        protocol, direction, source, destination = line.ends
        return self.journal.append(
            *(protocol, line.connection, direction, self.next(run.line), run.payload),
            source=source,
            destination=destination,
            inbound=run.line < 100,
            topics=line.context,
            principal=line.principal,
        )

    def append_runs(self, turn: list[Said]) -> list[int]:
        ends = np.cumsum([len(run.payload) for run in turn])
        tickets = self.journal.append_runs(
            b"".join(run.payload for run in turn),
            ends - [len(run.payload) for run in turn],
            ends,
            np.array([self.line(run.line).slot for run in turn]),
            [self.next(run.line) for run in turn],
        )
        return tickets.tolist()


CONTEXTS = [None, Context(TOPICS), Context({7: "other"})]
PRINCIPALS = {number: Principal(number, f"token:{number}") for number in range(0, 100, 2)}

SIZES = st.integers(0, 300) | st.integers(0, 300) | st.sampled_from([LARGE - 8, LARGE, 200_000])
TURNS = st.lists(
    st.lists(
        st.builds(
            lambda line, outbound, size: Said(line + 100 * outbound, data("x" * size)),
            *(st.integers(1, 8), st.booleans(), SIZES),
        ),
        min_size=1,
        max_size=20,
    ),
    max_size=8,
)


def frames(folder: Path) -> list[tuple[object, ...]]:
    """What the blocks with frames say, with what is stated before them in their segment."""
    found: list[tuple[object, ...]] = []
    for segment in segments(folder):
        contexts: dict[int, blocks.Stated] = {}
        principals: dict[int, object] = {}
        for block in read_blocks(segment):
            blocks.add_context(contexts, block)
            if block.record == "principal":
                principals[block.connection] = block.details["principal"]
            if block.direction is not None:
                topics = None if block.context is None else contexts[block.context].topics
                found.append((
                    *(block.connection, block.direction, block.inbound, block.sequence, block.payload, block.more),
                    *(block.protocol, block.source, block.destination, topics, principals.get(block.connection)),
                ))  # fmt: skip
    return found


@settings(deadline=None, max_examples=30)
@given(turns=TURNS, segment_bytes=st.sampled_from([250, 2000, 50_000, 64 << 20]))
def test_a_journal_of_turns_reads_like_one_of_single_runs(turns, segment_bytes):
    with TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        with Journal.open(one, segment_bytes=segment_bytes) as journal:
            single = Writers(journal)
            for run in itertools.chain(*turns):
                single.append(run)
        with Journal.open(many, segment_bytes=segment_bytes) as journal:
            together = Writers(journal)
            for turn in turns:
                tickets = together.append_runs(turn)
                assert journal.last_ticket == tickets[-1]
                if len(turn) % 2:
                    assert journal.commit() == tickets[-1]
        assert frames(one) == frames(many)
        assert list(verify(many)) == []


def test_one_line_without_a_context_gives_the_same_file(tmp_path):
    for name in ("one", "many"):
        clock = itertools.count(1_700_000_000_000_000_000)
        with Journal.open(
            tmp_path / name, hub="north", now_ns=clock.__next__, random_bits=lambda bits: 1, segment_bytes=5000
        ) as journal:
            writers = Writers(journal)
            for number in range(300):
                run = Said(3, data("x" * (number * 37 % 400)))
                if name == "one":
                    writers.append(run)
                else:
                    writers.append_runs([run])
    assert len(segments(tmp_path / "one")) > 5
    for one, many in zip(segments(tmp_path / "one"), segments(tmp_path / "many"), strict=True):
        assert (one.name, one.read_bytes()) == (many.name, many.read_bytes())


def many_turns() -> Iterator[list[Said]]:
    for number in range(30):
        yield [Said(line, data(f"{number:06d}" + "x" * 100)) for line in (1, 2, 102, 3, 4)]


@pytest.mark.parametrize("call", ["pwritev", "sync"])
@pytest.mark.parametrize("segment_bytes", [300, 3000, 64 << 20])
def test_runs_of_a_failed_write_are_written_again_under_other_packet_ids(tmp_path, call, segment_bytes):
    disk = FaultyDisk()
    journal = Journal.open(tmp_path / "many", segment_bytes=segment_bytes, disk=disk)
    writers = Writers(journal)
    places: dict[int, tuple[int, int]] = {}
    for number, turn in enumerate(many_turns()):
        tickets = writers.append_runs(turn)
        for ticket, run in zip(tickets, turn, strict=True):
            places[ticket] = (run.line, number)
        disk.failing = {call: errno.EIO} if number % 7 in {3, 4} else {}
        if disk.failing:
            durable = journal.durable
            with pytest.raises(JournalError, match="Input/output error"):
                journal.commit()
            assert journal.durable <= tickets[-1]
            assert journal.durable >= durable
            assert journal.pending_bytes > 0
        elif number % 7 > 4:
            assert journal.commit() == tickets[-1]
            assert journal.pending_bytes == 0
    disk.failing = {}
    journal.commit()
    by_id = {
        block.packet_id: (block.connection + (0 if block.inbound else 100), block.sequence)
        for segment in segments(tmp_path / "many")
        for block in read_blocks(segment)
        if block.direction is not None
    }
    assert by_id == {journal.packet_id(ticket): place for ticket, place in places.items()}
    journal.close()
    with Journal.open(tmp_path / "one") as journal:
        single = Writers(journal)
        for run in itertools.chain(*many_turns()):
            single.append(run)
    assert frames(tmp_path / "one") == frames(tmp_path / "many")
    assert list(verify(tmp_path / "many")) == []


def test_what_a_line_needs_is_stated_once_a_segment_and_again_where_it_changes(tmp_path):
    with Journal.open(tmp_path, segment_bytes=20_000) as journal:
        writers = Writers(journal)
        changed = Context({7: "changed"})
        for number in range(200):
            writers.append_runs([Said(line, data("x" * 50)) for line in (1, 2, 4)])
            if number == 100:
                journal.describe(writers.line(2), changed, Principal(2, "token:new"))
    assert len(segments(tmp_path)) > 3
    for segment in segments(tmp_path):
        names = [(block.record, str(block.details)) for block in read_blocks(segment) if block.record]
        assert len(names) == len(set(names))
    topics = {
        sequence: topics for connection, *_, sequence, _, _, _, _, _, topics, _ in frames(tmp_path) if connection == 2
    }
    assert topics[100] == {7: "other"} and topics[101] == {7: "changed"}
    principals = {each[3]: each[-1] for each in frames(tmp_path) if each[0] == 2}
    assert principals[100] == "token:2" and principals[101] == "token:new"


def test_a_turn_larger_than_a_part_becomes_several(tmp_path):
    with Journal.open(tmp_path) as journal:
        writers = Writers(journal)
        turn = [Said(number % 50, data("x" * 8000)) for number in range(600)]
        tickets = writers.append_runs(turn)
        first = journal.take(some=True)
        assert 2 << 20 <= first.size < 3 << 20
        journal.store(first)
        assert journal.settle(first) < tickets[-1]
        assert journal.commit() == tickets[-1]
    assert len(frames(tmp_path)) == 600
    assert list(verify(tmp_path)) == []


def test_a_slot_is_given_to_the_next_line_and_not_used_without_one(tmp_path):
    with Journal.open(tmp_path) as journal:
        first = journal.line(1, "hsp", Direction.C2S, CLIENT, SERVER, inbound=True)
        slot = first.slot
        journal.append_runs(data("a"), [0], [len(data("a"))], [slot], [0])
        journal.release(first)
        with pytest.raises(ValueError, match="belongs to no line"):
            journal.append_runs(data("a"), [0], [len(data("a"))], [slot], [1])
        second = journal.line(2, "hsp", Direction.C2S, SERVER, CLIENT, inbound=True)
        assert second.slot == slot
        journal.append_runs(data("b"), [0], [len(data("b"))], [slot], [0])
    assert [(each[0], each[4]) for each in frames(tmp_path)] == [(1, data("a")), (2, data("b"))]
    assert list(verify(tmp_path)) == []


def test_many_lines_have_room(tmp_path):
    with Journal.open(tmp_path) as journal:
        known = [journal.line(each, "hsp", Direction.C2S, CLIENT, SERVER, inbound=True) for each in range(1, 1001)]
        count = len(known)
        journal.append_runs(
            b"\x03" * count, range(count), range(1, count + 1), [each.slot for each in known], [0] * count
        )
    assert [each[0] for each in frames(tmp_path)] == list(range(1, 1001))


@pytest.mark.parametrize(
    ("start", "end", "slot", "sequence"),
    [(-1, 1, 0, 0), (0, 2, 0, 0), (1, 0, 0, 0), (0, 1, 0, -1), (0, 1, 0, 10**18), (0, LARGE, 0, 0)],
)
def test_a_run_that_makes_no_sense_is_refused(tmp_path, start, end, slot, sequence):
    with Journal.open(tmp_path) as journal:
        journal.line(1, "hsp", Direction.C2S, CLIENT, SERVER, inbound=True)
        with pytest.raises(ValueError, match="run 0"):
            journal.append_runs(b"\x03", [start], [end], [slot], [sequence])
    assert frames(tmp_path) == []
    assert list(verify(tmp_path)) == []


def test_nothing_is_appended_for_no_runs(tmp_path):
    with Journal.open(tmp_path) as journal:
        before = journal.last_ticket
        assert journal.append_runs(b"", [], [], [], []).tolist() == []
        assert (journal.last_ticket, journal.has_pending) == (before, False)
