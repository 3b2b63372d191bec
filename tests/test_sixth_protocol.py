"""A protocol from a package outside the source tree, in every room of the house, without a change in any of them.

The package in `examples/sixth-protocol` is built and installed into a folder of its own, as pip does it for anybody; what
runs here are processes that have this folder on their path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_docs import blocks
from wireloom.protocols.contract import Decoder, Protocol, Session

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "sixth-protocol"
PAGE = ROOT / "docs" / "how-to" / "add-a-protocol.md"
PATIENCE = 120
LARGE = 300_000
"""Bytes of a body that needs several blocks of the journal."""

HUB = """
[[listener]]
url = "ticker://127.0.0.1:0"
settings = { max_body = 500000 }
[[listener]]
url = "yamp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""

PROVIDER = """
import asyncio, sys
import wireloom

async def price(message, peer):
    if message.value()["of"] != "tea":
        raise wireloom.RequestFailed("404", b"not on the market")
    return 3.2

async def main():
    async with wireloom.connect(sys.argv[1], handler=price) as peer:
        await peer.provide("prices/of")
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

TABLES = """
import json, sys
from pathlib import Path
from tests.pipeline.batches import ranges, run_batches
from wireloom.pipeline.query import ask

journal, warehouse = map(Path, sys.argv[1:])
run_batches(warehouse, [[[part] for part in ranges(journal)]])
questions = {
    "messages": "select direction, kind, topic, status, content_type, body_size from messages where protocol = 'ticker'",
    "rejects": "select clause, size from rejects where protocol = 'ticker'",
    "exchanges": "select topic, outcome, status from exchanges where protocol = 'ticker'",
    "sessions": "select distinct close_reason from sessions where protocol = 'ticker'",
    "traffic": "select topic, sum(messages) from traffic where protocol = 'ticker' and kind = 'event' group by all",
    "findings": "select rule, severity from findings where protocol = 'ticker'",
}
print(json.dumps({name: ask(warehouse, sql).rows for name, sql in questions.items()}, default=str))
"""


@dataclass(frozen=True)
class Installed:
    """Runs programs that find the package."""

    environment: Mapping[str, str]

    def run(self, *words: str | Path, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)], input=stdin, capture_output=True, text=True, timeout=PATIENCE,
            env=self.environment, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stdout + done.stderr

    def wireloom(self, *words: str | Path, stdin: str = "", code: int = 0) -> str:
        return self.run("-m", "wireloom", *words, stdin=stdin, code=code)

    @contextmanager
    def started(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=self.environment, cwd=ROOT,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def ticker(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("site")
    quietly = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", *quietly, *offline, "--target", str(folder), str(EXAMPLE)]
    subprocess.run(pip, check=True, timeout=PATIENCE)
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT, folder)))
    return Installed({**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"})


@dataclass(frozen=True)
class RunningHub:
    urls: Mapping[str, str]
    journal: Path


@pytest.fixture(scope="module")
def hub(ticker: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "hub.toml").write_text(HUB)
    with ticker.started("-m", "wireloom", "hub", "--config", folder / "hub.toml", "--data", folder / "data") as process:
        assert process.stdout is not None
        urls = {}
        for line in iter(process.stdout.readline, ""):
            if found := re.search(r"listening on ((\w+)://\S+)", line):
                urls[found[2]] = found[1]
            if line.startswith("ready"):
                break
        yield RunningHub(urls, folder / "data" / "journal")


def wait_for_subscribers(hub: RunningHub, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while f"\nwireloom_subscriptions {count}\n" not in page(f"{hub.urls['http']}/metrics"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


# The package by itself


def test_the_protocol_is_found_by_its_entry_point(ticker: Installed) -> None:
    program = (
        "from wireloom.protocols.registry import protocols, scheme; print(*protocols(), scheme('tickers')[1].port)"
    )
    assert {"ticker", "hsp", "5050"} <= set(ticker.run("-c", program).split())
    assert "unknown protocol 'ticker'" in Installed({**os.environ, "PYTHONPATH": str(ROOT / "src")}).wireloom(
        "decode", "ticker", code=2
    )


def test_the_package_passes_its_own_tests(ticker: Installed) -> None:
    quietly = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "--doctest-modules"]
    site = ticker.environment["PYTHONPATH"].split(os.pathsep)[-1]
    config = EXAMPLE / "pyproject.toml"
    told = ticker.run("-m", "pytest", *quietly, "-c", config, EXAMPLE / "tests", Path(site) / "wireloom_ticker")
    assert re.search(r"^\d{3} passed in", told, re.MULTILINE), told


def test_mutated_streams_columns_and_sessions_agree(ticker: Installed) -> None:
    told = ticker.run("-m", "tests.fuzzing", "ticker", "1000", "--seed", "8")
    assert told.startswith("ticker: 1000 inputs, ") and "ticker.body.end" in told


def test_the_command_line_reads_and_writes_it(ticker: Installed) -> None:
    wire = "EVENT prices/tea text/plain 4\n3.20\nASK 7 prices/of - 3\ntea\nDONE 7 - 0\n\nFAIL 8 404 - 4\ngone\nPING\n"
    lines = ticker.wireloom("decode", "ticker", stdin=wire)
    found = [json.loads(line) for line in lines.splitlines()]
    assert [each["kind"] for each in found] == ["event", "request", "response", "error", "ping"]
    assert [(each["topic"], each["body"]) for each in found[:2]] == [("prices/tea", "3.20"), ("prices/of", "tea")]
    assert ticker.wireloom("encode", "ticker", stdin=lines) == wire
    refused = json.loads(ticker.wireloom("decode", "ticker", stdin="SELL\n", code=1).splitlines()[0])
    assert refused["reject"]["clause"] == "ticker.verb.unknown"


# Hub, journal, pipeline, console


def test_its_cases_are_run_against_the_hub(ticker: Installed, hub: RunningHub) -> None:
    told = ticker.wireloom("conformance", hub.urls["ticker"], "--timeout", "30").splitlines()
    assert len(told) == 9
    assert told[-1] == "8 passed, 0 failed, 0 skipped: the server conforms to Ticker"


def test_events_pass_between_it_and_another_protocol(ticker: Installed, hub: RunningHub) -> None:
    for number, (publisher, subscriber) in enumerate((("ticker", "yamp"), ("yamp", "ticker"))):
        topic, body = f"prices/from-{publisher}", json.dumps({"tea": 3.2, "n": number})
        words = ["-m", "wireloom", "sub", hub.urls[subscriber], "prices/+", "--count", "1"]
        with ticker.started(*words) as subscribed:
            wait_for_subscribers(hub, 1)
            ticker.wireloom("pub", hub.urls[publisher], topic, body)
            out, _ = subscribed.communicate(timeout=PATIENCE)
        event = json.loads(out)
        assert (event["kind"], event["topic"], event["protocol"]) == ("event", topic, subscriber)
        told = event["body"]
        assert json.loads(told) == json.loads(body)
        wait_for_subscribers(hub, 0)


def test_requests_find_a_provider_and_an_answer(ticker: Installed, hub: RunningHub) -> None:
    with ticker.started("-c", PROVIDER, hub.urls["ticker"]) as provider:
        assert provider.stdout is not None and provider.stdout.readline() == "ready\n"
        for asker in ("ticker", "yamp"):
            assert ticker.wireloom("req", hub.urls[asker], "prices/of", '{"of": "tea"}').strip() == "3.2"
            refused = ticker.wireloom("req", hub.urls[asker], "prices/of", '{"of": "snow"}', code=3)
            assert "not on the market" in refused


def test_the_journal_keeps_it_and_the_tables_tell_it(ticker: Installed, hub: RunningHub, tmp_path: Path) -> None:
    ticker.wireloom("pub", hub.urls["ticker"], "archive/large", "-", "--ack", stdin="x" * LARGE)
    ticker.wireloom("pub", hub.urls["ticker"], "archive/note", "hello")
    assert "404" in ticker.wireloom("req", hub.urls["ticker"], "archive/nobody", code=3)
    host, _, port = hub.urls["ticker"].removeprefix("ticker://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as wild:
        wild.sendall(b"EVENT archive/wild - 2\nok\nDONE 99 - 0\n\nSELL everything\n")
        while wild.recv(4096):
            pass

    lines = [json.loads(line) for line in ticker.wireloom("journal", "cat", hub.journal, "--json").splitlines()]
    kept = [line for line in lines if line["protocol"] == "ticker" and str(line["topic"]).startswith("archive/")]
    assert [(line["kind"], line["topic"]) for line in kept] == [
        ("event", "archive/note"), ("request", "archive/nobody"), ("event", "archive/wild"),
    ]  # fmt: skip
    assert "no fault" in ticker.wireloom("journal", "verify", hub.journal)

    rows = json.loads(ticker.run("-c", TABLES, hub.journal, tmp_path / "warehouse"))
    messages = [tuple(row) for row in rows["messages"]]
    assert ("c2s", "event", "archive/large", None, "text/plain", LARGE) in messages
    assert ("c2s", "event", "archive/note", None, "text/plain", 5) in messages
    assert any(row[:4] == ("s2c", "error", None, "404") for row in messages)
    assert {row[1] for row in messages} >= {"event", "request", "response", "error", "close"}
    assert ["ticker.verb.unknown", len("SELL everything\n")] in rows["rejects"]
    assert ["archive/nobody", "error", "404"] in rows["exchanges"]
    assert ["archive/large", "done", "done"] in rows["exchanges"]
    assert {row[0] for row in rows["sessions"]} == {"close", "error"}
    assert {row[0] for row in rows["traffic"]} >= {"archive/note", "archive/wild"}
    assert rows["findings"] == [["ticker.answer.unknown-id", "warning"]]


def test_the_console_shows_it(ticker: Installed, hub: RunningHub) -> None:
    ticker.wireloom("pub", hub.urls["ticker"], "seen/in-the-console", "hello")
    words = ["-m", "wireloom", "console", "--url", "http://127.0.0.1:0", "--hub", hub.urls["http"]]
    with ticker.started(*words) as console:
        assert console.stdout is not None
        url = next(found[0] for line in console.stdout if (found := re.search(r"http://[\d.:]+", line)))
        with urllib.request.urlopen(f"{url}/api/stream", timeout=PATIENCE) as stream:
            for line in stream:
                snapshot = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                shown = [m for m in snapshot.get("messages", ()) if m["topic"] == "seen/in-the-console"]
                if shown:
                    break
    assert [(each["protocol"], each["text"]) for each in shown] == [("ticker", "hello")]
    assert snapshot["hub"]["protocols"]["ticker"]["received"] >= 1


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed: apt install tshark")
def test_wireshark_reads_it_in_the_journal(ticker: Installed, hub: RunningHub, tmp_path: Path) -> None:
    ticker.wireloom("pub", hub.urls["ticker"], "seen/in-wireshark", "hello", "--ack")
    script = tmp_path / "wireloom.lua"
    script.write_text(ticker.wireloom("dissector"))
    shown = ""
    for segment in sorted(hub.journal.glob("*.pcapng")):
        words = ["tshark", "-n", "-X", f"lua_script:{script}", "-r", str(segment), "-T", "fields"]
        done = subprocess.run([*words, "-e", "wireloom.ticker.line"], capture_output=True, text=True, timeout=PATIENCE)
        assert "Lua" not in done.stderr, done.stderr
        shown += done.stdout
    assert re.search(r"ASK \d+ \$hub/publish/seen/in-wireshark text/plain 5", shown), shown


# The page that explains it


def code_lines(text: str) -> list[str]:
    """Blank lines between blocks are left to the page."""
    return [line for line in text.splitlines() if line]


def test_the_page_shows_the_files_as_they_are() -> None:
    shown: dict[str, list[str]] = {}
    for block in blocks(PAGE):
        if block.title is not None:
            shown.setdefault(block.title, []).append(block.text)
    assert shown.pop("hub.toml")
    tests = (EXAMPLE / "tests" / "test_ticker.py").read_text()
    assert all(excerpt in tests for excerpt in shown.pop("tests/test_ticker.py"))
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml", ".lua")]
    whole = {str(path.relative_to(EXAMPLE)): code_lines(path.read_text()) for path in files}
    del whole["tests/test_ticker.py"]
    assert {title: code_lines("".join(parts)) for title, parts in shown.items()} == whole


@pytest.mark.parametrize("part", [Protocol, Session, Decoder], ids=lambda part: str(part.__name__))
def test_the_page_says_what_every_part_of_the_contract_is_for(part: type) -> None:
    text = PAGE.read_text()
    names = {name for name in (*vars(part), *part.__annotations__) if not name.startswith("_")}
    assert sorted(name for name in names if not re.search(rf"(`|def |self\.|    ){name}\b", text)) == []
