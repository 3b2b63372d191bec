"""Only `protocols/` and the typed front ends of a protocol know a protocol by name.

Everything else asks the registry and the contract. So a protocol of another package has the same rights.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from wireloom.protocols.registry import BUILT_IN

SOURCE = Path(__file__).parents[1] / "src" / "wireloom"
FRONT_ENDS = (
    "protocols/",
    "peers/mesh/",
    "peers/wolpertinger/",
    "peers/components.py",  # the public names of peers/wolpertinger
    "mesh.py",
    "cli/keys.py",  # makes the keys of mesh nodes
)
ALLOWED = {
    ("extras.py", "mesh"),  # the extras of pyproject.toml
    ("extras.py", "wolpertinger"),
    *(("testing/memory_hub.py", name) for name in ("emp", "hsp", "wolpertinger", "yamp")),  # what its hub listens to
    ("peers/peer.py", "wireloom.peers.wolpertinger.components"),  # `Peer.call`: typed calls of components
}
PACKAGES = tuple(f"wireloom.{part}.{name}" for part in ("protocols", "peers") for name in BUILT_IN)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Protocols that code names: by a string of its own, or by an import. Docstrings are not code."""
    texts = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and each.value in BUILT_IN and id(each) not in texts:
            yield str(each.value)
        modules = [each.module or ""] if isinstance(each, ast.ImportFrom) else []
        if isinstance(each, ast.ImportFrom) and each.module in ("wireloom.protocols", "wireloom.peers"):
            modules = [f"{each.module}.{alias.name}" for alias in each.names]
        if isinstance(each, ast.Import):
            modules = [alias.name for alias in each.names]
        yield from (module for module in modules if module.startswith(PACKAGES))


def test_nothing_else_knows_a_protocol_by_name() -> None:
    found = {
        (str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        if not str(file.relative_to(SOURCE)).startswith(FRONT_ENDS)
        for name in names_in(ast.parse(file.read_text()))
    }
    assert found == ALLOWED


def test_the_search_finds_strings_and_imports() -> None:
    code = '''"""emp"""
from wireloom.protocols import mesh
from wireloom.protocols.yamp.frames import Event
import wireloom.peers.wolpertinger.components
INSIDE = "emp"
'''
    assert sorted(names_in(ast.parse(code))) == [
        "emp",
        "wireloom.peers.wolpertinger.components",
        "wireloom.protocols.mesh",
        "wireloom.protocols.yamp.frames",
    ]
