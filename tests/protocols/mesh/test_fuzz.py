"""The property of `fuzz.py`, on a few thousand packets; the long run is for the soak."""

from __future__ import annotations

import pytest

from tests.protocols.mesh.fuzz import fuzz
from wireloom.protocols.mesh import MESH


def test_four_thousand_packets() -> None:
    clauses = fuzz(4000, seed=1)
    assert clauses["accepted, verified"] > 50
    assert len([clause for clause in clauses if clause in MESH.clauses]) > 25


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_packets() -> None:
    fuzz(1_000_000)
