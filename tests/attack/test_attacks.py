"""Every registered attack, against a hub of its own. `make test` runs the small ones, `make attack` all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.harness import load, run

ATTACKS = load()


CHOICE = [pytest.param(each.name, marks=() if each.small else pytest.mark.slow) for each in ATTACKS.values()]


@pytest.mark.parametrize("name", CHOICE)
async def test_the_hub_holds(name: str, tmp_path: Path) -> None:
    report = await run(ATTACKS[name], tmp_path)
    report.check()
