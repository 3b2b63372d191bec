"""Exchanges, sessions and findings against a plain reader of the same journal, and against every other way to cut it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.pipeline.batches import contents, cut, ranges, run_batches
from tests.pipeline.conversations import expected, make_conversations
from wireloom.pipeline import tables
from wireloom.pipeline.query import ask


def micros(time: object) -> int | None:
    return round(time.timestamp() * 1e6) if isinstance(time, datetime) else None


def found(warehouse: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of the tables in the form of `conversations.Expected`."""
    exchanges = ask(
        warehouse,
        "select connection, request_id, requested_at, answered_at, outcome, status, progress_count, request_size, "
        "response_size, open from exchanges",
    ).rows
    sessions = ask(
        warehouse,
        "select connection, protocol, opened_at, closed_at, close_reason, messages_c2s, messages_s2c, bytes_c2s, "
        "bytes_s2c, rejects, open from sessions",
    ).rows
    rows = {
        "exchanges": [(*row[:2], micros(row[2]), micros(row[3]), *row[4:]) for row in exchanges],
        "sessions": [(*row[:2], micros(row[2]), micros(row[3]), *row[4:]) for row in sessions],
        "findings": ask(warehouse, 'select rule, connection, "offset", message_id from findings').rows,
    }
    return {name: sorted(each, key=repr) for name, each in rows.items()}


@pytest.mark.parametrize("seed", range(4))
def test_tables_hold_what_a_plain_reader_finds(tmp_path: Path, seed: int) -> None:
    make_conversations(tmp_path / "j", seed=seed)
    run_batches(tmp_path / "w", [[ranges(tmp_path / "j")]])
    wanted, rows = expected(tmp_path / "j"), found(tmp_path / "w")
    assert rows["exchanges"] == sorted(wanted.exchanges, key=repr)
    assert rows["sessions"] == sorted(wanted.sessions, key=repr)
    assert rows["findings"] == sorted(wanted.findings, key=repr)
    latencies = ask(tmp_path / "w", "select latency_us, requested_at, answered_at from exchanges").rows
    for latency, asked, answered in latencies:
        assert latency == (None if answered is None else micros(answered) - micros(asked))  # type: ignore[operator]


def test_at_every_commit_the_tables_are_those_of_one_batch_over_what_was_read(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=11, steps=300)
    rng = random.Random(1)
    batches = [cut(part, [rng.random(), rng.random()]) for part in cut(ranges(tmp_path / "j"), [0.1, 0.3, 0.31, 0.8])]
    assert len(batches) == 5
    for number in range(len(batches)):
        run_batches(tmp_path / "many", [batches[number]], first=number, tasks=2)
        read = [part for batch in batches[: number + 1] for group in batch for part in group]
        run_batches(tmp_path / f"one-{number}", [[read]])
        assert contents(tmp_path / "many") == contents(tmp_path / f"one-{number}")


def test_a_batch_that_is_done_again_changes_nothing(tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=5, steps=100)
    first, second = cut(ranges(tmp_path / "j"), [0.5])
    run_batches(tmp_path / "w", [[first], [second]])
    before = contents(tmp_path / "w")
    run_batches(tmp_path / "w", [[first], [second]])
    assert contents(tmp_path / "w") == before


class Crash(Exception):
    """What a test throws in place of a kill."""


def test_crashes_between_all_commits_of_a_batch_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch is begun again and again, and each time gets one commit further."""
    make_conversations(tmp_path / "j", seed=7, steps=150)
    first, second = cut(ranges(tmp_path / "j"), [0.5])
    run_batches(tmp_path / "undisturbed", [[first], [second]])
    run_batches(tmp_path / "w", [[first]])
    commit: Callable[..., None] = tables.commit
    crashed: list[str] = []
    dead = threading.Event()
    one = threading.Lock()

    def crashing(handle: object, table: tables.Table, *rest: object) -> None:
        with one:
            if dead.is_set():
                raise Crash
            if crashed:
                commit(handle, table, *rest)
            crashed.append(table.name if crashed else "before")
            dead.set()
            raise Crash

    monkeypatch.setattr(tables, "commit", crashing)
    for _ in range(8):
        dead.clear()
        with pytest.raises(Crash):
            run_batches(tmp_path / "w", [[second]], first=1)
    monkeypatch.undo()
    run_batches(tmp_path / "w", [[second]], first=1)
    tables_of_batch = {"messages", "rejects", "exchanges", "sessions", "findings", "traffic"}
    assert crashed[0] == "before" and set(crashed[1:7]) == tables_of_batch and crashed[7] == "_state"
    assert contents(tmp_path / "w") == contents(tmp_path / "undisturbed")
