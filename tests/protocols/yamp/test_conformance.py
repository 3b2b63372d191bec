"""The page `docs/conformance.md` says the truth about yamp: its tests exist, and no rule is missing."""

from __future__ import annotations

import re
from pathlib import Path

from wireloom.protocols.yamp import frames

ROOT = Path(__file__).parents[3]


def section() -> str:
    page = (ROOT / "docs" / "conformance.md").read_text()
    found = re.search(r"^## yamp$(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert found is not None
    return found[1]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section())
    assert len(named) > 80
    for path, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_every_clause_has_a_row_and_every_row_a_known_clause() -> None:
    assert set(re.findall(r"\| `(yamp\.[a-z0-9.-]+)` \|", section())) == {*frames.CLAUSES, *frames.COUNTED}


def test_the_example_of_the_hub_profile_is_a_subscription() -> None:
    page = (ROOT / "docs" / "hub-profile.md").read_text()
    block = re.search(r"^## yamp$.*?^```\n(.*?)^```$", page, re.M | re.S)
    assert block is not None
    digits = "".join(re.findall(r"\b(?:[0-9a-f]{2})+\b", re.sub(r"  +[a-z$].*", "", block[1])))
    frame, size = frames.decode(bytes.fromhex(digits)) or (None, 0)
    assert isinstance(frame, frames.Request)
    assert (frame.uri, frame.body, size) == ("$hub/subscribe", b'{"topic":"sensors/#"}', len(digits) // 2)
