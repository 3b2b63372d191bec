"""Every registered attack, against a hub of its own. `make test` runs the small and quick ones, `make attack` all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.harness import load, run

ATTACKS = load()
MEMORY = Path("/dev/shm")
"""Where files are in memory: what others do to the disk of a busy machine is no part of what is measured."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


CHOICE = [
    pytest.param(each.name, marks=() if each.small or each.quick else pytest.mark.slow) for each in ATTACKS.values()
]


@pytest.mark.parametrize("name", CHOICE)
async def test_the_hub_holds(name: str, folder: Path) -> None:
    report = await run(ATTACKS[name], folder)
    report.check()
