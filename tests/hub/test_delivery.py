"""docs/delivery.md is true: every cell of its tables is tried with real peers through a real hub."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hub.delivery import EXPERIMENTS, PROTOCOLS, observe

PAGE = Path(__file__).parent.parent.parent / "docs" / "delivery.md"


def cells() -> list[tuple[str, str, str, str]]:
    """Verb, source, target and what the page says of them."""
    found = []
    for verb, table in re.findall(r"^## ([^\n]+)\n.*?((?:^\|[^\n]*\n)+)", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        found += [
            (verb, source, target, said) for source, *row in rows for target, said in zip(head[1:], row, strict=True)
        ]
    return found


def test_every_verb_has_a_table_of_all_protocols() -> None:
    expected = [(verb, source, target) for verb in EXPERIMENTS for source in PROTOCOLS for target in PROTOCOLS]
    assert [cell[:3] for cell in cells()] == expected


@pytest.mark.parametrize(("verb", "source", "target", "said"), cells(), ids=lambda text: str(text)[:24])
async def test_what_the_page_says_is_what_happens(
    tmp_path: Path, verb: str, source: str, target: str, said: str
) -> None:
    assert await observe(tmp_path, verb, source, target) == said
