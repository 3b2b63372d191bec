"""Every registered attack, against a hub of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.harness import load, run

ATTACKS = load()


@pytest.mark.parametrize("name", ATTACKS)
async def test_the_hub_holds(name: str, tmp_path: Path) -> None:
    report = await run(ATTACKS[name], tmp_path)
    report.check()
