"""The report: one page that says what the tables say, escapes what came from the wire, and asks nobody for anything."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.hub.running import ack, data, data_ack
from tests.peers.test_browser import CHROMIUM, FLAGS
from tests.pipeline.batches import ranges, run_batches
from tests.pipeline.conversations import make_conversations
from wireloom.cli.main import main
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.pipeline.query import ask
from wireloom.pipeline.report import write_report

NASTY = "<script>alert(1)</script>"
LONG = "plant/" + 20 * "a-name-without-a-place-to-break-" + 300 * "x"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    make_conversations(folder / "j", seed=5, steps=300)
    with Journal.open(folder / "j") as journal:
        journal.append("hsp", 99, Direction.C2S, 0, data(b"x", 44), topics={44: NASTY})
        journal.append("hsp", 98, Direction.C2S, 0, data_ack(7, b"x", 44), topics={44: LONG})
        journal.append("hsp", 98, Direction.S2C, 0, ack(7), topics={44: LONG}, inbound=False)
        # One of the slowest: a request that a hub passed on.
        then = time.time_ns() - 250 * 10**9
        journal.append(
            "hsp", 97, Direction.S2C, 0, data_ack(7, b"x", 44), topics={44: LONG}, inbound=False, time_ns=then
        )
        journal.append("hsp", 97, Direction.C2S, 0, ack(7), topics={44: LONG})
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
        warehouse, "select protocol || ' ' || verb || ' ' || outcome, count(*) from exchanges group by all"
    ).rows:
        assert re.search(rf"{outcome} +{outcome} +{count}\b", text), outcome
    for verb, name in (("request", "requests"), ("publish", "acknowledged publishes")):
        ((count,),) = ask(warehouse, f"select count(*) from exchanges where verb = '{verb}'").rows
        assert count and re.search(rf"\b{count} +{name}\b", text), name
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


def test_axes_have_dates(warehouse: Path, tmp_path: Path) -> None:
    page = write_report(warehouse, tmp_path / "report.html").read_text()
    first, last = ask(warehouse, "select min(minute), max(minute) from traffic").rows[0]
    assert f"{first:%Y-%m-%d %H:%M}</text>" in page
    shown = f"{last:%H:%M}" if last.date() == first.date() else f"{last:%Y-%m-%d %H:%M}"  # type: ignore[attr-defined]
    assert f">{shown}</text>" in page


def test_a_request_that_was_passed_on_says_that_it_is_half_of_an_exchange(warehouse: Path, tmp_path: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", write_report(warehouse, tmp_path / "report.html").read_text())
    ((count,),) = ask(warehouse, "select count(*) from messages where kind = 'request' and direction = 's2c'").rows
    assert f"Of the requests, {count} went from a server to its client" in text
    assert re.search(rf"hsp +server +request +{LONG}", text)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium): report not seen")
async def test_a_long_topic_leaves_room_for_the_other_columns(warehouse: Path, tmp_path: Path) -> None:
    from playwright.async_api import async_playwright

    page_file = write_report(warehouse, tmp_path / "report.html")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page(viewport={"width": 1000, "height": 800})
            await page.goto(page_file.as_uri())
            for title, last in (("Latency", "longest"), ("Slowest exchanges", "latency")):
                table = page.locator("section", has=page.get_by_role("heading", name=title)).locator("table")
                assert LONG in await table.inner_text()
                box = await table.get_by_role("columnheader", name=last, exact=True).bounding_box()
                assert box is not None and box["x"] + box["width"] <= 1000, f"{title}: {last} is at {box}"
        finally:
            await browser.close()


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
