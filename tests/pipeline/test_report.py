"""The report: one page that says what the tables say, escapes what came from the wire, and asks nobody for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.hub.running import data
from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.cli.main import main
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.pipeline.query import ask
from wireloom.pipeline.report import write_report

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    make_conversations(folder / "j", seed=5, steps=300)
    with Journal.open(folder / "j") as journal:
        journal.append("hsp", 99, Direction.C2S, 0, data(b"x", 44), topics={44: NASTY})
    run_batches(folder / "w", [[ranges(folder / "j")]])
    return folder / "w"


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_says_what_the_tables_say(warehouse: Path, tmp_path: Path) -> None:
    page = write_report(warehouse, tmp_path / "report.html").read_text()
    text = re.sub(r"<[^>]+>", " ", page)
    for name in ("messages", "rejects", "findings"):
        ((count,),) = ask(warehouse, f"select count(*) from {name}").rows
        assert re.search(rf"\b{count} +{name}\b", text), name
    for rule, count in ask(warehouse, "select rule, count(*) from findings group by all").rows:
        assert re.search(rf"{re.escape(str(rule))} +{count} ", text), rule
    for clause, count in ask(warehouse, "select clause, count(*) from rejects group by all").rows:
        assert re.search(rf"{re.escape(str(clause))} +{count} ", text), clause
    for outcome, count in ask(
        warehouse, "select protocol || ' ' || outcome, count(*) from exchanges group by all"
    ).rows:
        assert re.search(rf"{outcome} +{outcome} +{count}\b", text), outcome
    for topic in ("Traffic over time", "Latency", "Sessions over time", "Mesh nodes"):
        assert topic in text


def test_nothing_from_the_wire_is_html_and_nothing_is_asked_for(warehouse: Path, tmp_path: Path) -> None:
    page = write_report(warehouse, tmp_path / "report.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    elements = Elements()
    elements.feed(page)
    tags = {tag for tag, _ in elements.seen}
    assert "svg" in tags and not tags & {"script", "link", "img", "iframe", "object"}
    assert not any(
        name in ("src", "href") or name.startswith("on") for _, attributes in elements.seen for name in attributes
    )
    assert "url(" not in page and "@import" not in page


def test_the_command_says_where_the_page_is(
    warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert main(["report", "--warehouse", str(warehouse), "--out", str(out)]) == 0
    assert capsys.readouterr().out == out.as_uri() + "\n" and out.stat().st_size > 5000
    assert main(["report", "--warehouse", str(warehouse), "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_empty_warehouse_has_a_report_too(tmp_path: Path) -> None:
    run_batches(tmp_path / "w", [])
    page = write_report(tmp_path / "w", tmp_path / "report.html").read_text()
    assert "nothing in these tables" in page
