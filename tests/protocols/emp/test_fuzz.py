"""A small run of the fuzzer; `python -m tests.fuzzing emp 1000000` is the long one."""

from __future__ import annotations

from tests.fuzzing import fuzz
from wireloom.protocols.emp import EMP


def test_mutated_input_gives_only_violations_with_a_clause_and_columns_agree() -> None:
    report = fuzz("emp", 3000, seed=20)
    assert report.inputs == 3000
    assert report.messages > 1000
    assert report.rejects > 500
    assert report.clauses is not None
    assert set(report.clauses) <= set(EMP.clauses)
    assert len(report.clauses) >= 10
