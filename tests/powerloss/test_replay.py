"""Every state in which a power cut may leave the disk: what was acknowledged is there, and no name has two contents.

`make test` looks at a few hundred states of fixed seeds. `make powerloss` looks at 10,000 (STATES=... for others) of seeds
that are new each time (SEED=... for the same again).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from random import SystemRandom

import pytest

from tests.powerloss.replay import Replay, Report

STEPS = 60


def replay(seed: int, states: int, *, sync: bool = True) -> list[Report]:
    """Replays with one seed after the other until so many states were looked at."""
    reports: list[Report] = []
    while sum(report.states for report in reports) < states:
        reports.append(Replay(seed + len(reports), sync=sync).run(STEPS, 0.25))
    return reports


@pytest.mark.parametrize("seed", [1, 1001, 2001])
def test_nothing_acknowledged_is_lost_and_no_name_has_two_contents(seed):
    reports = replay(seed, 100)
    assert sum(report.acknowledged for report in reports) > 20
    assert sum(report.inside_recovery for report in reports) > 20


@pytest.mark.parametrize("seed", [1, 1001])
def test_a_journal_that_does_not_sync_has_a_beginning_of_what_was_sent(seed):
    replay(seed, 50, sync=False)


def test_the_same_seed_gives_the_same_replay():
    first, second = (Replay(7).run(25, 0.1) for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_thousands_of_states():
    states = int(os.environ.get("STATES", "10000"))
    seed = int(os.environ.get("SEED", str(SystemRandom().randrange(10**9))))
    print(f"\n{states} states after a power cut; SEED={seed} does the same again")
    began = time.monotonic()
    reports = replay(seed, states * 9 // 10) + replay(seed, states // 10, sync=False)
    done = sum(report.states for report in reports)
    failures = sum((report.failures for report in reports), Counter[str]())
    print(
        f"{done} states in {time.monotonic() - began:.0f} s, {sum(report.inside_recovery for report in reports)} of them after a "
        f"cut inside recovery; {sum(report.operations for report in reports)} file operations, "
        f"{sum(report.acknowledged for report in reports)} messages acknowledged, {failures.total()} injected failures"
    )
    assert done >= states
