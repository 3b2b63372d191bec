"""Every command and snippet in README and docs is run, and what it shows is compared.

A fenced block marked `console` is a shell session: lines that begin with `$ ` are run in order, in one shell a page, in an empty folder; the
lines under them are the expected output, in which `...` stands for anything. A block marked `python` is run as a program; if a block
marked `text` follows it at once, that is its expected output. Blocks marked `sh` in the README are only checked for commands that exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "COLUMNS": "100",
    }


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == kind]


def matches(expected: str, actual: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("..."))
    return re.fullmatch(pattern, actual.rstrip(), re.DOTALL) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name_of)
@pytest.mark.timeout(300)
def test_every_command_of_the_page_runs_and_shows_what_the_page_says(page: Path, tmp_path: Path) -> None:
    steps = [
        step.partition("\n")
        for block in blocks(page, "console")
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    ]
    mark = "@@end-of-step@@"
    script = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
    script += "".join(f"{command}\necho {mark}$?{mark}\n" for command, _, _ in steps)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280
    )
    outputs = re.split(rf"{mark}(\d+){mark}\n", done.stdout)
    for number, (command, _, expected) in enumerate(steps):
        shown = outputs[2 * number] if len(outputs) > 2 * number + 1 else done.stderr
        assert outputs[2 * number + 1 : 2 * number + 2] == ["0"], f"$ {command}\n{shown}\n{done.stderr}"
        if expected.strip():
            assert matches(expected, shown), f"$ {command}\nexpected:\n{expected}\nshown:\n{shown}\n{done.stderr}"


PROGRAMS = [
    pytest.param(page, number, id=f"{name_of(page)}-{number}", marks=[pytest.mark.spark] if "spark" in text else [])
    for page in PAGES
    for number, text in enumerate(blocks(page, "python"))
]


@pytest.mark.parametrize(("page", "number"), PROGRAMS)
@pytest.mark.timeout(180)
def test_every_program_of_the_page_runs(page: Path, number: int, tmp_path: Path) -> None:
    found = BLOCK.findall(page.read_text())
    programs = [index for index, (kind, _) in enumerate(found) if kind == "python"]
    index = programs[number]
    text = found[index][1]
    if "demo-data/" in text or "data/journal" in text:
        make_journal(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    if index + 1 < len(found) and found[index + 1][0] == "text":
        assert matches(found[index + 1][1], done.stdout), f"shown:\n{done.stdout}"


def make_journal(folder: Path) -> None:
    """A small journal and its tables, where the pages expect one."""
    from wireloom.journal import Journal
    from wireloom.model import Direction, Kind, Message
    from wireloom.protocols.registry import protocol

    hsp = protocol("hsp")
    data = folder / "demo-data"
    with Journal.open(data / "journal") as journal:
        connection = journal.new_connection_id()
        for number in range(20):
            event = Message(Kind.EVENT, "sensors/kitchen", b'{"c": %d}' % number, content_type="application/json")
            journal.append("hsp", connection, Direction.C2S, number, hsp.encode(event, hsp.settings()))
    (folder / "data").symlink_to(data)


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_make_targets_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES + [ROOT / "CONTRIBUTING.md"]:
        for line in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert line in targets, f"{name_of(page)} names make {line}"
