"""The page `docs/conformance.md` says the truth about emp: its tests exist, and no rule is missing."""

from __future__ import annotations

import re
from pathlib import Path

from wireloom.protocols.emp import frames

ROOT = Path(__file__).parents[3]


def section() -> str:
    page = (ROOT / "docs" / "conformance.md").read_text()
    found = re.search(r"^## emp$(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert found is not None
    return found[1]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section())
    assert len(named) > 80
    for path, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_every_clause_has_a_row_and_every_row_a_known_clause() -> None:
    assert set(re.findall(r"\| `(emp\.[a-z.-]+)` \|", section())) == {*frames.CLAUSES, *frames.COUNTED}
