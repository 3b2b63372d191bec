"""Every command and snippet in README and docs is run, and what it shows is compared.

- A fenced block marked `console` is a shell session. Lines that begin with `$ ` are run in order, in one shell a page, in an empty folder; a
  command that ends in a backslash goes on in the next line. The lines under a command are the expected output, in which `...` stands for anything.
  Whatever is still running in the background at the end of the page is ended.
- A block with a title, such as `toml title="hub.toml"`, is a file in that folder or below; blocks with the same title follow each other in it.
- A block marked `python` without a title is run as a program; if a block marked `text` follows it at once, that is its expected output.
- Ports on 127.0.0.1 and localhost are replaced by free ones, each by the same one all over the page; port 0 stays.
- Where a page speaks of `demo-data/` there is a small journal in that folder.

Blocks marked `sh` are not run, because they never end, install something, or need another machine; their commands are checked
for words that the command line would not understand.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from wireloom.cli.main import _parser as command_line
from wireloom.protocols.registry import BUILT_IN, protocol

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"((?:127\.0\.0\.1|localhost):|c2s_ports = \{ )(\d+)")
COMMAND = re.compile(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", re.DOTALL)
BIN = Path(sys.executable).parent


@dataclass
class Block:
    kind: str
    title: str | None
    text: str


def blocks(page: Path, text: str | None = None) -> list[Block]:
    found = FENCE.findall(page.read_text() if text is None else text)
    titles = [re.search(r'title="([^"]+)"', words) for _, words, _ in found]
    return [Block(f[0], title and title[1], f[2]) for f, title in zip(found, titles, strict=True)]


def with_free_ports(text: str) -> str:
    """The page with free ports in place of those it names."""
    ports = sorted({port for _, port in PORT.findall(text) if port != "0"})
    held = [socket.socket() for _ in ports]
    try:
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        free = {port: str(sock.getsockname()[1]) for port, sock in zip(ports, held, strict=True)}
    finally:
        for sock in held:
            sock.close()
    return PORT.sub(lambda found: found[1] + free.get(found[2], "0"), text)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "COLUMNS": "100",
    }


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def matches(expected: str, actual: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.rstrip().split("..."))
    return re.fullmatch(pattern, actual.rstrip(), re.DOTALL) is not None


def uses_spark(text: str) -> bool:
    return "start_session" in text or "pipeline run" in text


def marks_of(text: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.spark] if uses_spark(text) else []
    if "$ prosody " in text and shutil.which("prosody") is None:
        marks.append(pytest.mark.skip("prosody is not installed: apt-get install prosody"))
    return marks


SESSIONS = [
    pytest.param(page, id=name_of(page), marks=marks_of(page.read_text()))
    for page in PAGES
    if any(block.kind == "console" for block in blocks(page))
]


@pytest.mark.parametrize("page", SESSIONS)
@pytest.mark.timeout(300)
def test_every_command_of_the_page_runs_and_shows_what_the_page_says(page: Path, tmp_path: Path) -> None:
    text = with_free_ports(page.read_text())
    found = blocks(page, text)
    for block in found:
        if block.title is not None:
            file_path = tmp_path / block.title
            file_path.parent.mkdir(parents=True, exist_ok=True)
            with file_path.open("a") as file:
                file.write(block.text)
    if "demo-data/" in text:
        make_journal(tmp_path)
    if "demo-data/captures" in text:
        make_captures(tmp_path / "demo-data" / "captures")
    steps = [
        COMMAND.fullmatch(step)
        for block in found
        if block.kind == "console"
        for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    ]
    mark = "@@end-of-step@@"
    script = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
    script += "".join(f"{step[1]}\necho {mark}$?{mark}\n" for step in steps if step)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280
    )
    outputs = re.split(rf"{mark}(\d+){mark}\n", done.stdout)
    for number, step in enumerate(steps):
        assert step is not None
        command, expected = step[1], step[2]
        shown = outputs[2 * number] if len(outputs) > 2 * number + 1 else done.stderr
        assert outputs[2 * number + 1 : 2 * number + 2] == ["0"], f"$ {command}\n{shown}\n{done.stderr}"
        if expected.strip():
            assert matches(expected, shown), f"$ {command}\nexpected:\n{expected}\nshown:\n{shown}\n{done.stderr}"


def programs(page: Path, text: str | None = None) -> list[tuple[str, str | None]]:
    """Every program of a page, and what it should print if the page says so."""
    found = blocks(page, text)
    return [
        (block.text, after.text if after is not None and after.kind == "text" else None)
        for block, after in pairwise([*found, None])
        if block is not None and block.kind == "python" and block.title is None
    ]


PROGRAMS = [
    pytest.param(page, number, id=f"{name_of(page)}-{number}", marks=[pytest.mark.spark] if uses_spark(text) else [])
    for page in PAGES
    for number, (text, _) in enumerate(programs(page))
]


@pytest.mark.parametrize(("page", "number"), PROGRAMS)
@pytest.mark.timeout(180)
def test_every_program_of_the_page_runs(page: Path, number: int, tmp_path: Path) -> None:
    text, expected = programs(page, with_free_ports(page.read_text()))[number]
    if "demo-data/" in text:
        make_journal(tmp_path)
    if "demo-data/captures" in text:
        make_captures(tmp_path / "demo-data" / "captures")
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    if expected is not None:
        assert matches(expected, done.stdout), f"shown:\n{done.stdout}"


def make_captures(folder: Path) -> None:
    """Two captures of a rotation: one connection of ours, which ends inside a frame, and some other traffic."""
    from tests.captures import writing
    from tests.captures.conversations import Wire
    from wireloom.protocols.hsp import frames

    wire = Wire().open()
    for number in range(40):
        wire.say(0, frames.encode(frames.Data(7, b"%d" % number)))
    wire.say(0, b"\0\0\7").close()
    other = Wire(server="10.0.0.9:80", time_ns=wire.packets[5].time_ns).open()
    other.say(0, b"something else").close()
    packets = sorted([*wire.packets, *other.packets], key=lambda packet: packet.time_ns)
    folder.mkdir(parents=True)
    for number, part in enumerate((packets[:25], packets[25:]), 1):
        (folder / f"port-5042-{number:05d}.pcapng").write_bytes(writing.pcapng(part))


def make_journal(folder: Path) -> None:
    """A small journal, where the pages expect one."""
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


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize(
    "page",
    [
        "tutorial", "how-to/use-tls", "how-to/control-access", "how-to/mesh-keys", "how-to/use-xmpp",
        "how-to/read-captures", "how-to/replay-messages", "how-to/run-on-a-cluster", "how-to/add-a-protocol",
        "reference/cli", "reference/configuration", "reference/tables", "reference/api", "reference/metrics",
        "hub-profile", "conformance", "explanation/architecture", "explanation/durability",
        "explanation/exactly-once", "explanation/security", "performance",
    ],
)  # fmt: skip
def test_a_page_that_people_look_for_is_in_the_navigation(page: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").stat().st_size > 1000
    assert f": {page}.md\n" in (ROOT / "mkdocs.yml").read_text()


def test_the_readme_shows_what_it_should() -> None:
    text = (ROOT / "README.md").read_text()
    opening = text.partition("\n\n")[2].partition("\n\n")[0]
    assert len(re.findall(r"\.(?=\s|$)", opening)) == 3, "what it is, in three sentences"
    assert re.findall(r"!\[[^]]+\]\(docs/images/(\w+)\.png\)", text) == ["console", "report"]
    assert "\nmake demo " in text and "\nmake test " in text
    for name in BUILT_IN:
        (row,) = re.findall(rf"^\| `{name}` \|.*\|$", text, re.MULTILINE)
        assert {
            str(scheme.port) for scheme in protocol(name).schemes if scheme.port and scheme.transport != "xmpp"
        } <= {*re.findall(r"\d{4}", row)}
    for page in ("performance", "tutorial", "explanation/architecture", "how-to/add-a-protocol"):
        assert f"(docs/{page}.md)" in text


LINES = [
    pytest.param(shlex.split(command, comments=True), id=f"{name_of(page)}: {command.strip()[:60]}")
    for page in PAGES
    for block in blocks(page)
    if block.kind == "sh"
    for line in block.text.splitlines()
    for command in line.partition(" #")[0].split(";")
]


@pytest.mark.parametrize("words", LINES)
def test_a_command_that_is_not_run_is_one_all_the_same(words: list[str]) -> None:
    match words:
        case ["wireloom", *rest]:
            parsed, more = command_line(rest).parse_known_args(rest)
            assert callable(parsed.run) and not more
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case [name, *_]:
            assert name in ("pip", "openssl", "chmod", "tshark")


def test_make_targets_named_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for line in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert line in targets, f"{name_of(page)} names make {line}"


def test_the_site_builds_without_a_warning_and_asks_nothing_of_other_hosts(tmp_path: Path) -> None:
    done = subprocess.run(
        [BIN / "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**environment(), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    asked = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
    for page in tmp_path.rglob("*.html"):
        assert asked.findall(page.read_text()) == [], page.name
    assert not any(re.search(r"@import|url\((?:https?:)?//", sheet.read_text()) for sheet in tmp_path.rglob("*.css"))
