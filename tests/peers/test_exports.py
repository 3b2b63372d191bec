"""What `import wireloom` offers, and what it costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wireloom

NAMES = [
    "Authenticity",
    "Backoff",
    "BodyError",
    "ConfigError",
    "Direction",
    "HandshakeFailed",
    "JournalError",
    "Kind",
    "LimitExceeded",
    "Limits",
    "MalformedBody",
    "Message",
    "InvalidState",
    "NotSupported",
    "Peer",
    "PeerClosed",
    "ProtocolViolation",
    "RequestFailed",
    "RequestTimeout",
    "Result",
    "Server",
    "Service",
    "TLS",
    "ValidationError",
    "WireloomError",
    "connect",
    "run",
    "serve",
]


def test_public_names_are_these() -> None:
    assert sorted(wireloom.__all__) == sorted(NAMES)
    assert all(hasattr(wireloom, name) for name in NAMES)


def test_importing_is_light() -> None:
    heavy = "numpy numba pyarrow pyspark pandas websockets lxml cryptography uvloop aioquic slixmpp"
    code = f"import sys, wireloom; print(*sorted(set({heavy!r}.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_urls_and_protocols_are_found_without_heavy_packages() -> None:
    code = (
        "import sys; from wireloom.peers import endpoint; endpoint('hsp://h'); "
        "print(*sorted({'numpy', 'numba', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("kind", [wireloom.Peer, wireloom.Server, wireloom.Service])
def test_a_class_shows_what_its_page_documents(kind: type) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    found = re.search(rf"::: wireloom\.{kind.__name__}\n.*?members: \[(.*?)\]", page, re.DOTALL)
    assert found is not None
    attributes = set(inspect.signature(kind).parameters) | {"protocol"}
    assert (
        set(found[1].split(", ")) - attributes == {each for each in dir(kind) if not each.startswith("_")} - attributes
    )
