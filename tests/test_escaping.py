"""What a peer wrote is shown as text, whatever it is: by every command, in the log, on the console and in the report."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
import unicodedata
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import COMMAND, ENVIRONMENT, wireloom
from tests.hub.running import hub_on, url_of
from wireloom import connect, serve
from wireloom.cli.pipeline import _text
from wireloom.conformance.report import line as conformance_line
from wireloom.conformance.run import CaseResult, CaseVerdict, choose
from wireloom.console.recent_traffic import RecentTraffic
from wireloom.escaping import visible, visible_html
from wireloom.hub.logs import TextLines
from wireloom.hub.metrics import MOST, Counter
from wireloom.journal import Journal
from wireloom.model import Direction, Kind, Message
from wireloom.peers import Peer
from wireloom.pipeline import plots, report
from wireloom.protocols.contract import Role
from wireloom.protocols.registry import protocol

OBEYED = "\x00\x07\x08\n\r\x1b\x7f\x85\x90\x9b\x9d\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e"
OBEYED += "\u2066\u2067\u2068\u2069\ufeff\U000e0041"
"""What terminals obey, what turns text around, and what hides."""
NASTY = f"a/\x1b]0;title\x07\x1b[2J{OBEYED}b"
FORGED = "a\n2026-01-31T12:00:00Z 0000000000000001 c2s hsp event bank/paid"
yamp = protocol("yamp")


def frame(message: Message) -> bytes:
    return yamp.encode(message.with_(id=str(uuid.UUID(int=1))), yamp.settings())


def harmless(text: str) -> bool:
    return not set(text) & set(OBEYED)


@given(st.text())
def test_what_is_visible_is_shown_as_itself(text: str) -> None:
    found = visible(text)
    assert all(each.isprintable() or unicodedata.category(each) == "Zs" for each in found)
    assert visible(found) == found
    if text.isprintable():
        assert found == text


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_stands_for_the_same(value: object) -> None:
    text = visible(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert harmless(text)


def test_long_texts_are_looked_at_as_a_whole() -> None:
    assert visible("x" * 5000 + "\x9b" + "y" * 5000) == "x" * 5000 + "\\u009b" + "y" * 5000


def test_decode_shows_what_was_written(tmp_path: Path) -> None:
    for topic in (NASTY, FORGED):
        done = wireloom(
            "decode", "yamp", stdin=frame(Message(Kind.OPEN)) + frame(Message(Kind.EVENT, topic, b'"\xc2\x9b"'))
        )
        assert harmless(done.out.decode().replace("\n", "")) and len(done.lines) == 2
        assert json.loads(done.lines[1])["topic"] == topic


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    with Journal.open(tmp_path) as found:
        for number, topic in enumerate((NASTY, FORGED)):
            bad = Message(Kind.EVENT, topic, json.dumps(NASTY, ensure_ascii=False).encode())
            found.append("yamp", 1, Direction.C2S, number, frame(bad))
        found.record("closed", {"reason": NASTY}, 1)
        found.commit()
    return tmp_path


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", ["cat", "follow"])
def test_the_journal_is_shown_a_line_for_each_message(journal: Path, command: str, options: list[str]) -> None:
    more = ["--since", "start", "--count", "2"] if command == "follow" else []
    done = wireloom("journal", command, journal, *options, *more)
    text = done.out.decode()
    assert harmless(text.replace("\n", "")), text
    events = [line for line in text.splitlines() if "event" in line]
    assert len(events) == 2, "nobody can forge a line"
    if options:
        assert [json.loads(line)["topic"] for line in events] == [NASTY, FORGED]
    elif command == "cat":
        assert "\\u001b[2J" in text and "closed" in text


async def test_sub_and_req_show_what_comes() -> None:
    async def answer(message: Message, peer: Peer) -> Message:
        return Message(Kind.RESPONSE, None, NASTY.encode(), content_type="text/plain")

    tasks = []

    def greet(peer: Peer) -> None:
        async def often() -> None:
            while True:
                peer.send(Message(Kind.EVENT, NASTY, json.dumps(NASTY, ensure_ascii=False).encode()))
                await asyncio.sleep(0.1)

        tasks.append(asyncio.create_task(often()))

    async with serve("yamp://127.0.0.1:0", on_connect=greet) as server:
        done = await asyncio.to_thread(wireloom, "sub", server.url, "#", "--local", "--count", "1")
        assert harmless(done.out.decode().replace("\n", "")) and json.loads(done.out)["topic"] == NASTY, done
    for task in tasks:
        task.cancel()
    async with serve("emp://127.0.0.1:0", answer) as server:
        done = await asyncio.to_thread(wireloom, "req", server.url, "x", "--json")
        assert harmless(done.out.decode().replace("\n", "")) and json.loads(done.out)["body"] == NASTY
        # A program gets the bytes, a terminal what it can show.
        done = await asyncio.to_thread(wireloom, "req", server.url, "x")
        assert done.out == NASTY.encode() + b"\n"
        shown = await asyncio.to_thread(on_a_terminal, "req", server.url, "x")
        assert "\\u001b[2J" in shown and harmless(shown.replace("\r\n", "")), shown


def on_a_terminal(*words: str) -> str:
    """What a command writes to its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *words], stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    found = b""
    try:
        while piece := os.read(ours, 65536):
            found += piece
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
        process.wait(30)
    return found.decode()


async def test_an_error_of_a_peer_is_one_line(tmp_path: Path) -> None:
    async def refuse(message: Message, peer: Peer) -> Message:
        return Message(Kind.ERROR, None, NASTY.encode(), status="500", content_type="text/plain")

    async with serve("yamp://127.0.0.1:0", refuse) as server:
        done = await asyncio.to_thread(wireloom, "req", server.url, "x")
    assert done.code and done.errors.count("\n") == 1 and harmless(done.errors.replace("\n", "")), done


def test_a_line_of_the_log_cannot_be_forged() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.LogRecord("wireloom", logging.INFO, "x.py", 1, "closed: %s", (FORGED + NASTY,), sys.exc_info())
    head, *rest = TextLines("%(levelname)s %(message)s").format(record).split("\n")
    assert head.startswith("INFO closed: a\\n2026") and harmless(head)
    assert harmless("".join(rest)) and any("\\u001b[2J" in each for each in rest)
    assert all(each.startswith("  ") for each in rest)


def test_console_and_report_show_no_text_in_another_order(journal: Path) -> None:
    lately = RecentTraffic(journal)
    lately.look()
    text = json.dumps([*lately.messages.since(0), *lately.topics(), *lately.exchanges.since(0)], ensure_ascii=False)
    assert harmless(text.replace("\n", "")) and "\\\\u202e" in text
    pages = report._table(("topic",), [(NASTY,)]) + plots.bars([(NASTY, 1.0)], NASTY) + visible_html(NASTY)
    assert harmless(pages.replace("\n", ""))
    assert harmless(_text(NASTY, "") + _text({"a": NASTY}, "") + _text(NASTY.encode(), ""))
    result = CaseResult(choose(protocol("hsp"), Role.SERVER)[0], CaseVerdict.FAILED, NASTY)
    assert harmless(conformance_line(result))


async def test_a_metric_grows_no_further_whatever_peers_write(tmp_path: Path) -> None:
    counter = Counter("n_total", "N.", "protocol", "status")
    for number in range(2 * MOST):
        counter.add(1, "yamp", str(number))
    assert len(counter.samples()) == MOST + 1 and counter.value("other", "other") == MOST
    assert sum(counter.samples().values()) == 2 * MOST


async def test_the_hub_says_in_its_log_who_was_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '[[listener]]\nurl = "yamp://127.0.0.1:0"\n[[access.rule]]\nwho = ["token:x"]\npublish = ["a"]\n'
    async with hub_on(tmp_path, text + '[http]\nurl = "off"\n') as hub, connect(url_of(hub, "yamp")) as peer:
        with pytest.raises(Exception, match="may not publish"):
            await peer.publish("a/\u202eb", "x", ack=True)
    lines = [TextLines().format(record) for record in caplog.records]
    assert lines and all(map(harmless, lines))
