"""The page `docs/conformance.md` tells the truth: the tests it names exist, every row has one, and no rule is missing."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from wireloom.protocols.emp import frames as emp
from wireloom.protocols.registry import protocol
from wireloom.protocols.yamp import frames as yamp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROWS = {"emp": 60, "mesh": 40, "hsp": 40, "yamp": 60, "wolpertinger": 60}
"""Fewer rows than these would be a page of which a part got lost."""

of_every_protocol = pytest.mark.parametrize("name", ROWS)


def section(name: str) -> str:
    found = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found is not None
    return found[1]


@functools.cache
def functions_in(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@of_every_protocol
def test_every_test_the_page_names_exists(name: str) -> None:
    named = re.findall(r"`(tests/[^`]+\.py)::([^`\[]+)`", section(name))
    assert len(named) > 80
    assert [(path, test) for path, test in named if test not in functions_in(ROOT / path)] == []


@of_every_protocol
def test_every_row_names_a_test(name: str) -> None:
    rows = [row for row in section(name).splitlines() if row.startswith("| ") and not row.startswith("| Sentence")]
    assert len(rows) > ROWS[name]
    assert [row for row in rows if "::test_" not in row] == []


@of_every_protocol
def test_every_clause_is_on_the_page(name: str) -> None:
    assert [clause for clause in protocol(name).clauses if f"`{clause}`" not in section(name)] == []


@pytest.mark.parametrize(
    ("name", "clauses"),
    [("emp", {*emp.CLAUSES, *emp.COUNTED}), ("yamp", {*yamp.CLAUSES, *yamp.COUNTED})],
    ids=["emp", "yamp"],
)
def test_every_clause_has_a_row_and_every_row_a_known_clause(name: str, clauses: set[str]) -> None:
    assert set(re.findall(rf"\| `({name}\.[a-z0-9.-]+)` \|", section(name))) == clauses
