"""The driver's loop: whatever the input and the warehouse are on, and whoever is killed, the tables are the same."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.object_store import S3Server, bucket, s3_server  # noqa: F401
from tests.pipeline.batches import contents
from tests.pipeline.conversations import make_conversations
from tests.pipeline.driving import archive, drive, make_driver
from tests.pipeline.journals import START_NS, make_journal
from tests.store_faults import FaultProxy
from wireloom.journal import segments
from wireloom.model import JournalError
from wireloom.pipeline import plans
from wireloom.pipeline.query import ask, describe
from wireloom.pipeline.state import State
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import open_store

pytestmark = pytest.mark.timeout(600)
PASSING = ("500", "503", "slow down", "cut request", "cut answer", "lost answer", "delay")
"""Faults of a store that do not take a test long."""


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of several segments, and, beside it, the tables made of it in one batch."""
    root = tmp_path_factory.mktemp("talks")
    make_journal(root / "journal", runs=100, seed=11)
    assert len(drive([root / "journal"], root / "one")) == 1
    return root


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a warehouse is: a folder or a bucket."""
    return str(tmp_path / "tables") if request.param == "disk" else f"{request.getfixturevalue('bucket')}/tables"


def test_many_batches_give_what_one_gives_and_again_gives_nothing(talks: Path, place: str) -> None:
    done = drive([talks / "journal"], place, 150_000)
    assert len(done) > 3
    assert [batch.number for batch in done] == list(range(len(done)))
    assert contents(place) == contents(talks / "one")
    assert drive([talks / "journal"], place) == []
    state = State.read(Warehouse.existing(place))
    assert state.batch == len(done) - 1
    assert all(set(position) == {"hub", "epoch", "id"} for position in state.offsets.values())


def test_conversations_that_are_cut_anywhere_give_the_tables_of_one_batch(tmp_path: Path) -> None:
    # With 17,000 bytes a batch, a connection is closed long after the last message of a batch.
    make_conversations(tmp_path / "journal", seed=11, segment_bytes=12_000)
    drive([tmp_path / "journal"], tmp_path / "one")
    for most in (4_000, 17_000):
        drive([tmp_path / "journal"], tmp_path / str(most), most)
        assert contents(tmp_path / str(most)) == contents(tmp_path / "one")


def test_folder_archive_and_both_with_overlaps_give_the_same_tables(talks: Path, bucket: str, tmp_path: Path) -> None:  # noqa: F811
    journal = talks / "journal"
    archive(journal, open_store(f"{bucket}/archive"))
    archive(journal, open_store(tmp_path / "near"))
    archive(journal, open_store(f"{bucket}/most"), but=2)
    shutil.copytree(journal, tmp_path / "rest")
    for path in segments(tmp_path / "rest")[:2]:
        path.unlink()
    cases = {
        "archive": [f"{bucket}/archive"],
        "near": [tmp_path / "near"],
        "url": [(tmp_path / "near").as_uri()],
        "both": [f"{bucket}/archive", journal],
        "overlap": [f"{bucket}/most", tmp_path / "rest"],
    }
    expected = contents(talks / "one")
    for name, inputs in cases.items():
        drive(inputs, tmp_path / f"tables-{name}", 200_000)
        assert contents(tmp_path / f"tables-{name}") == expected, name


def test_a_warehouse_goes_on_from_the_archive_where_the_folder_ended(talks: Path, bucket: str, tmp_path: Path) -> None:  # noqa: F811
    """The place in a plan is no file: what was begun in a folder is finished from an archive, in the middle of a frame."""
    archive(talks / "journal", open_store(f"{bucket}/archive"))
    near = make_driver([talks / "journal"], tmp_path / "w", 150_000)
    for _ in range(3):
        plan = near.next_plan(near.latest())
        assert plan is not None
        near.do(plan)
    plan = near.next_plan(near.latest())
    assert plan is not None, "begun, and its driver is lost"
    drive([f"{bucket}/archive"], tmp_path / "w", 250_000)
    assert contents(tmp_path / "w") == contents(talks / "one")


def test_two_drivers_at_the_same_time_add_every_row_once(talks: Path, place: str) -> None:
    words = [sys.executable, "-m", "tests.pipeline.driving", "--warehouse", place, "--input", str(talks / "journal")]
    drivers = [
        subprocess.Popen([*words, "--max-bytes", str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for size in (100_000, 130_000)
    ]
    said = [driver.communicate(timeout=300) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    assert contents(place) == contents(talks / "one")


def test_of_two_plans_one_wins_and_both_drivers_do_it(talks: Path, place: str) -> None:
    small, large = (make_driver([talks / "journal"], place, size) for size in (150_000, 900_000))
    first = small.next_plan(small.latest())
    assert large.next_plan(large.latest()) == first, "the loser takes the winner's"
    assert first is not None
    assert large.do(first) is not None
    again = small.do(first)
    assert again is not None and again.messages == 0, "it finds that all is done"
    assert plans.read(Warehouse.existing(place), 0) == first


def run_killed(inputs: list[str], place: str, kills: int, forced: int, environment: dict[str, str], seed: int) -> None:
    """Kill drivers: some at random, some right between two commits; then let one finish."""
    rng = random.Random(seed)
    words = [sys.executable, "-m", "tests.pipeline.driving", "--warehouse", place, "--max-bytes", "150000"]
    words += [word for given in inputs for word in ("--input", given)]
    for number in range(kills):
        after = rng.randrange(1, 8) if number < forced else 0
        process = subprocess.Popen([*words, "--die-after", str(after)], env=environment, stderr=subprocess.PIPE)
        try:
            if not after:
                time.sleep(1 + rng.random() * 4)
                process.kill()
            process.wait(240)
        finally:
            process.kill()
            process.communicate()
        # A fault that the client of the tables does not try again ends a driver; the next one goes on.
        assert process.returncode in (-9, 0, 1), process.returncode
    for _ in range(10):
        done = subprocess.run(words, env=environment, capture_output=True, timeout=240, check=False, text=True)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kills", "forced"), [(3, 2), pytest.param(20, 5, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_killed_drivers_on_disk_leave_no_trace(talks: Path, tmp_path: Path, kills: int, forced: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    run_killed([str(talks / "journal")], str(tmp_path / "w"), kills, forced, dict(os.environ), seed)
    assert contents(tmp_path / "w") == contents(talks / "one"), seed


@pytest.mark.parametrize(
    ("kills", "forced"), [(2, 1), pytest.param(20, 5, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_killed_drivers_on_a_store_with_faults_leave_no_trace(
    talks: Path,
    bucket: str,  # noqa: F811
    s3_server: S3Server,  # noqa: F811
    kills: int,
    forced: int,
) -> None:
    archive(talks / "journal", open_store(f"{bucket}/archive"))
    seed = int.from_bytes(os.urandom(4), "big")
    with FaultProxy(s3_server.port) as proxy:
        proxy.seed(seed, 0.03, PASSING)
        environment = {**os.environ, **s3_server.environment(proxy.endpoint)}
        run_killed([f"{bucket}/archive"], f"{bucket}/tables", kills, forced, environment, seed)
        assert sum(proxy.made.values()) > 0
    assert contents(f"{bucket}/tables") == contents(talks / "one"), seed


def test_inputs_that_lack_what_was_planned_are_refused(talks: Path, tmp_path: Path) -> None:
    driver = make_driver([talks / "journal"], tmp_path / "w")
    assert driver.next_plan(driver.latest()) is not None
    make_journal(tmp_path / "other", runs=5, long_runs=False)
    with pytest.raises(JournalError, match=r"no input has the journal .* which the next batch reads"):
        drive([tmp_path / "other"], tmp_path / "w")


def test_a_growing_archive_and_a_journal_beside_it_are_followed(talks: Path, bucket: str, tmp_path: Path) -> None:  # noqa: F811
    source = tmp_path / "journal"
    make_journal(source, runs=20, seed=5, refusals=1)
    archive(source, open_store(bucket))
    drive([bucket], tmp_path / "w")
    make_journal(source, runs=20, seed=6, refusals=1, start_ns=START_NS + 10**12)
    drive([bucket, source], tmp_path / "w")
    make_journal(source, runs=20, seed=7, refusals=1, start_ns=START_NS + 2 * 10**12)
    archive(source, open_store(bucket))
    drive([bucket], tmp_path / "w")
    drive([source], tmp_path / "one")
    assert contents(tmp_path / "w") == contents(tmp_path / "one")


def test_what_the_commands_answer_does_not_depend_on_the_place(talks: Path, bucket: str) -> None:  # noqa: F811
    place = f"{bucket}/tables"
    drive([talks / "journal"], place)
    assert {name: each.rows for name, each in describe(place).items()} == {
        name: each.rows for name, each in describe(talks / "one").items()
    }
    query = "select topic, count(*) n, min(time), sum(body_size) from messages where date > '2000-01-01' group by all"
    assert sorted(map(repr, ask(place, query).rows)) == sorted(map(repr, ask(talks / "one", query).rows))
