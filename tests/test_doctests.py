"""The examples in the docstrings of the model and the protocols are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import wireloom.protocols

MODULES = [
    "wireloom.model",
    "wireloom.topics",
    *(found.name for found in pkgutil.walk_packages(wireloom.protocols.__path__, "wireloom.protocols.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


@pytest.mark.parametrize("name", ["model", "protocols.settings", "protocols.registry", "protocols.hsp.frames"])
def test_there_are_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"wireloom.{name}"), optionflags=doctest.ELLIPSIS).attempted > 0
