"""A short run of both fuzzers; the long ones are for `make fuzz` and the soak."""

from __future__ import annotations

import pytest

from tests import fuzzing
from tests.protocols.wolpertinger.fuzz import fuzz
from wireloom.protocols.wolpertinger import WOLPERTINGER


def test_mutated_lines() -> None:
    report = fuzzing.fuzz("wolpertinger", 1000, seed=5)
    assert report.messages > 1000
    assert set(report.clauses or ()) <= set(WOLPERTINGER.clauses)


def test_mutations_of_every_layer() -> None:
    clauses = fuzz(1500, seed=5)
    assert clauses["messages"] > 500
    assert len([clause for clause in clauses if clause in WOLPERTINGER.clauses]) > 12


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_a_million_mutations_of_every_layer() -> None:
    fuzz(1_000_000)
