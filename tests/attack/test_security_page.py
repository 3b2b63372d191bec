"""The page about security names every limit and every file of attacks, and only tests that are there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from tests.attack.harness import load
from wireloom.hub.limits import HubLimits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()


def test_every_file_of_attacks_is_on_the_page() -> None:
    modules = {each.run.__module__.removeprefix("tests.attack.") for each in load().values()}
    assert {name for name in modules if f"`tests/attack/{name}.py`" not in PAGE} == set()


def test_every_test_on_the_page_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert named and {name for name in named if not (ROOT / name).is_file()} == set()


def test_every_limit_is_on_the_page() -> None:
    # What is no limit on a peer, but on the hub itself.
    own = {"drain_seconds", "busy_poll_seconds", "request_timeout"}
    assert {each.name for each in fields(HubLimits)} - own - set(re.findall(r"`(\w+)`", PAGE)) == set()
