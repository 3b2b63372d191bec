"""The page that says which test guards which rule of mesh tells the truth."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from wireloom.protocols.mesh import MESH

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "docs" / "conformance.md").read_text().partition("\n## mesh\n")[2].partition("\n## ")[0]
NAMED = set(re.findall(r"`(tests/[^`]+\.py)::([^`\[]+)`", SECTION))


def functions_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_the_page_names_exists() -> None:
    assert NAMED
    assert [(path, name) for path, name in sorted(NAMED) if name not in functions_in(ROOT / path)] == []


def test_every_row_names_a_test() -> None:
    rows = [row for row in SECTION.splitlines() if row.startswith("| ") and not row.startswith("| Sentence")]
    assert len(rows) > 40
    assert [row for row in rows if "::test_" not in row] == []


def test_every_clause_is_on_the_page() -> None:
    assert [clause for clause in MESH.clauses if f"`{clause}`" not in SECTION] == []
