"""A public class name exists once, so that a search for it finds one class.

The wire types of a protocol have the names of its specification (`Ping`, `Data`, `Error`). So two protocols may have a
type of the same name; whoever uses both writes `frames.Ping`. The blocking API in `sync/` has the names of its
asynchronous twin.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "wireloom"
STILL_TWICE = {"Audited", "Event", "Events", "Joined", "Observed", "Report"}
"""Names that are not unique yet. None may be added."""


def public_classes(file: Path) -> set[str]:
    body = ast.parse(file.read_text()).body
    return {each.name for each in body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")}


def test_a_public_class_name_exists_once() -> None:
    counts: Counter[str] = Counter()
    wire: set[str] = set()
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).parts[0] == "sync":
            continue
        if file.relative_to(SOURCE).parts[0] == "protocols" and len(file.relative_to(SOURCE).parts) > 2:
            wire |= public_classes(file)
        else:
            counts.update(public_classes(file))
    twice = {name for name, count in counts.items() if count > 1 or name in wire}
    assert twice <= STILL_TWICE
