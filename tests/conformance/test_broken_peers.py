"""Peers that are broken on purpose fail where they should, and only there."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest

from tests.cli.running import wireloom
from wireloom.conformance import report
from wireloom.conformance.run import CaseOutcome, CaseResult, CaseVerdict, check_clients, check_server, choose
from wireloom.model import ConfigError, ProtocolViolation
from wireloom.protocols.cases import Case, Level, Probe
from wireloom.protocols.contract import Role
from wireloom.protocols.hsp import frames as hsp
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.trust import TrustStore
from wireloom.protocols.registry import protocol

QUICK = 1.0
"""Seconds to wait for what a broken peer never does."""
SLOW = 20.0
"""Seconds to wait for what it does."""

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[int]:
    """A plain TCP server, and its port."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(guarded, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


def hsp_server(*, pongs: int = 1, answers: bool = True, shift: int = 0, strict: bool = True) -> Talk:
    """An hsp server written without our sessions, with a fault or none."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = bytearray()
        while data := await reader.read(4096):
            held += data
            while True:
                try:
                    found = hsp.decode(held)
                except ProtocolViolation:
                    if strict:
                        return
                    held.clear()
                    break
                if found is None:
                    break
                frame, end = found
                del held[:end]
                if isinstance(frame, hsp.Ping):
                    writer.write(hsp.encode(hsp.PONG) * pongs)
                elif isinstance(frame, hsp.DataAck) and answers:
                    writer.write(hsp.encode(hsp.Ack((frame.message_id + shift) & 0xFFFFFFFF)))

    return talk


def failed(outcome: CaseOutcome) -> set[str]:
    return {each.case.name for each in outcome.results if each.verdict is CaseVerdict.FAILED}


def detail(outcome: CaseOutcome, name: str) -> str:
    return next(each.detail for each in outcome.results if each.case.name == name)


async def test_a_server_without_fault_passes() -> None:
    async with server(hsp_server()) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=SLOW)
    assert failed(outcome) == set()
    assert outcome.conforms


async def test_an_hsp_server_that_answers_a_ping_twice_fails_there_and_only_there() -> None:
    async with server(hsp_server(pongs=2)) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=SLOW)
    assert failed(outcome) == {
        "one PONG for a PING, not more",
        "three PINGs in one write get three PONGs",
    }
    assert detail(outcome, "one PONG for a PING, not more") == "the peer sent pong, which nothing asked for"
    assert not outcome.conforms


async def test_an_hsp_server_that_answers_with_another_id_fails_wherever_one_is_asked_for() -> None:
    async with server(hsp_server(shift=1)) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=SLOW, only="*DATA_ACK*")
    name = "a DATA_ACK is answered with its MessageID"
    assert detail(outcome, name) == "the peer sent response to 8 (done); unanswered were 7"
    assert failed(outcome) == {name}
    # What depends on it is not looked at, and says so.
    assert {each.detail for each in outcome.results if each.case.name != name} == {f"it needs {name!r}"}
    assert len(outcome.results) == 4
    assert not outcome.conforms
    assert report.summary(outcome) == "0 passed, 1 failed, 3 skipped: 4 of what a server must do is not done"


async def test_an_hsp_server_that_does_not_answer_at_all_fails_by_time() -> None:
    async with server(hsp_server(answers=False)) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=QUICK, only="a DATA_ACK is answered with*")
    assert [each.detail for each in outcome.results] == ["the peer did nothing for 1 seconds"]


async def test_an_hsp_server_that_keeps_a_connection_with_unknown_commands_differs_and_does_not_fail() -> None:
    async with server(hsp_server(strict=False)) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=QUICK, only="a[n ]*")
    differing = {each.case.name for each in outcome.results if each.verdict is CaseVerdict.DIFFERS}
    assert differing == {
        "an unknown command closes the connection",
        "a length beyond reason is refused before its bytes come",
    }
    assert {each.case.level for each in outcome.results if each.case.name in differing} == {Level.DECISION}
    assert failed(outcome) == set()
    assert outcome.conforms
    assert ", 0 failed, 2 differ from our decisions, 0 skipped: the server conforms" in report.summary(outcome)


def emp_server(*, says_why: bool) -> Talk:
    """An emp server that closes on whatever follows the hello."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("0000000c0000000000010000"))
        await reader.readexactly(12)
        await reader.read(1)
        if says_why:
            writer.write(bytes.fromhex("00000014020000000300000000000000") + b"\0\2no"[:4])

    return talk


async def test_only_what_a_peer_should_do_does_not_break_conformance() -> None:
    async with server(emp_server(says_why=False)) as port:
        outcome = await check_server(f"emp://127.0.0.1:{port}", patience=QUICK, only="who refuses says why")
    assert [(each.verdict, each.case.level) for each in outcome.results] == [(CaseVerdict.FAILED, Level.SHOULD)]
    assert outcome.conforms


@pytest.mark.parametrize("name", ["hsp", "emp", "yamp", "wolpertinger"])
async def test_no_case_is_passed_by_a_server_that_says_nothing(name: str) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    names = [case.name for case in choose(protocol(name), Role.SERVER)]
    async with server(mute) as port:
        url = f"{name}://127.0.0.1:{port}"
        # Side by side: each takes as long as one waits for something that never comes.
        outcomes = await asyncio.gather(*(check_server(url, patience=QUICK, only=each) for each in names))
    assert [name for name, outcome in zip(names, outcomes, strict=True) if outcome.count(CaseVerdict.PASSED)] == []


async def test_an_emp_server_that_says_no_hello_fails_the_handshake() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(mute) as port:
        outcome = await check_server(f"emp://127.0.0.1:{port}", patience=QUICK, only="*hello*")
    assert "hello comes at once" in failed(outcome)
    assert detail(outcome, "hello comes at once") == "the peer did nothing for 1 seconds"


async def test_a_server_that_speaks_something_else_fails_with_the_clause() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with server(http) as port:
        outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=SLOW, only="a PING*")
    assert [each.detail for each in outcome.results] == [
        "the peer sent what is not valid: hsp.command.unknown: command 72 (at byte 0)"
    ]


class Mortal:
    """An hsp server that dies of a certain frame, and may rise again after a while."""

    def __init__(self, fatal: bytes, rises_after: float | None = None) -> None:
        self._fatal, self._rises_after = fatal, rises_after
        self._open: set[asyncio.StreamWriter] = set()
        self.deaths = 0

    async def start(self, port: int = 0) -> int:
        self._listener = await asyncio.start_server(self._talk, "127.0.0.1", port)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self.port

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        while data := await reader.read(4096):
            if self._fatal in data:
                self.stop()
                self.deaths += 1
                if self._rises_after is not None:
                    await asyncio.sleep(self._rises_after)
                    await self.start(self.port)
                return
            found = hsp.decode(data)
            if found is not None and isinstance(found[0], hsp.Ping):
                writer.write(hsp.encode(hsp.PONG) * (len(data) if set(data) == {3} else 1))
        writer.close()

    def stop(self) -> None:
        self._listener.close()
        for writer in self._open:
            writer.close()


FATAL = b"\x07"
"""The command that `an unknown command closes the connection` sends."""


async def test_who_dies_of_a_case_has_not_passed_it_and_what_follows_is_skipped_by_name() -> None:
    mortal = Mortal(hsp.encode(hsp.PING) * 3)
    port = await mortal.start()
    names = [
        "a PING is answered with a PONG",
        "one PONG for a PING, not more",
        "three PINGs in one write get three PONGs",
    ]
    outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=QUICK, only="*PING*")
    assert [(each.case.name, each.verdict) for each in outcome.results] == [
        (names[0], CaseVerdict.PASSED), (names[1], CaseVerdict.PASSED), (names[2], CaseVerdict.FAILED),
    ]  # fmt: skip
    assert outcome.results[-1].detail.startswith("the server died of it: cannot reach hsp://127.0.0.1:")
    mortal = Mortal(hsp.encode(hsp.PING) * 3)
    port = await mortal.start()
    whole = await check_server(f"hsp://127.0.0.1:{port}", patience=QUICK)
    assert {each.detail for each in whole.results[3:]} == {f"the server is gone since {names[2]!r}"}
    assert not whole.conforms


async def test_a_crash_that_looks_like_a_close_is_no_pass() -> None:
    mortal = Mortal(FATAL)
    port = await mortal.start()
    outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=QUICK, only="an unknown command*")
    assert [each.verdict for each in outcome.results] == [CaseVerdict.DIFFERS]
    assert outcome.results[0].detail.startswith("the server died of it: ")


async def test_who_comes_back_after_a_crash_is_looked_at_in_the_other_cases() -> None:
    mortal = Mortal(hsp.encode(hsp.PING) * 3, rises_after=0.3)
    port = await mortal.start()
    outcome = await check_server(f"hsp://127.0.0.1:{port}", patience=SLOW, only="[!afs]*")
    mortal.stop()
    verdicts = {each.case.name: each.verdict for each in outcome.results}
    assert verdicts["three PINGs in one write get three PONGs"] is CaseVerdict.FAILED
    assert verdicts["DATA is not answered"] is CaseVerdict.PASSED
    assert mortal.deaths == 1


HELLO = bytes.fromhex("010000002a0001000000006553f10000150401781410") + b"\x11" * 16


class Node(asyncio.DatagramProtocol):
    """A mesh node that answers anything at all with Hello, or nothing."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.answers:
            self.transport.sendto(HELLO, addr)


@asynccontextmanager
async def node(*, answers: bool) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Node(answers=answers), ("127.0.0.1", 0))
    yield f"mesh://127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    transport.close()


@pytest.mark.parametrize("signing", [False, True])
async def test_a_mesh_node_that_answers_everything_fails_wherever_a_packet_must_be_dropped(
    signing: bool, tmp_path: Path
) -> None:
    Identity.generate().save(tmp_path / "key.json")
    settings = {"key": str(tmp_path / "key.json")} if signing else {}
    async with node(answers=True) as url:
        outcome = await check_server(url, settings=settings, patience=SLOW)
    assert {each.case.name for each in outcome.results} - failed(outcome) == {
        "Hello is answered with Hello",
        "Hello names the node and its capabilities",
        "an unknown field is ignored",
        "an unknown event type does no harm",
    }


async def test_a_mesh_node_whose_hello_no_key_verifies_fails_where_a_trust_file_is_named(tmp_path: Path) -> None:
    TrustStore([Identity.generate().trusted_key()]).save(tmp_path / "trust.json")
    async with node(answers=True) as url:
        outcome = await check_server(
            url, settings={"trust": str(tmp_path / "trust.json")}, patience=SLOW, only="Hello*"
        )
    assert {each.detail for each in outcome.results} == {
        "no key of the trust file verifies the Hello of the node (none)"
    }


async def test_nothing_is_known_about_a_mesh_node_that_answers_nothing() -> None:
    async with node(answers=False) as url:
        outcome = await check_server(url, patience=QUICK, only="reserved flags*")
    assert [each.verdict for each in outcome.results] == [CaseVerdict.SKIPPED]
    assert report.summary(outcome).endswith("nothing is known")


async def test_a_client_that_says_nothing_fails_and_cases_without_a_client_are_skipped() -> None:
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    check = asyncio.create_task(
        check_clients("yamp://127.0.0.1:0", patience=QUICK, wait=2 * QUICK, listening=url.set_result)
    )
    port = int((await url).rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    outcome = await check
    writer.close()
    verdicts = [each.verdict for each in outcome.results]
    assert verdicts == [CaseVerdict.FAILED] + [CaseVerdict.SKIPPED] * (len(verdicts) - 1)
    first = outcome.results[0].case.name
    assert outcome.results[-1].detail == f"no client connected for it after {first!r}"
    assert report.summary(outcome).endswith("nothing is known")


async def test_cases_that_nothing_matches_are_an_error_in_words() -> None:
    with pytest.raises(ConfigError, match="no case of hsp for a server is called 'nothing'"):
        choose(protocol("hsp"), Role.SERVER, "nothing")


async def test_a_setting_that_the_cases_make_nothing_of_is_an_error_in_words() -> None:
    with pytest.raises(
        ConfigError, match="the cases of emp make nothing of the setting 'max_message'; they know: size_"
    ):
        await check_server("emp://127.0.0.1:1", settings={"max_message": 5000})
    with pytest.raises(ConfigError, match="unknown setting 'colour'"):
        await check_server("emp://127.0.0.1:1", settings={"colour": "blue"})


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_a_peer_said_is_text_in_the_page() -> None:
    async def nothing(probe: Probe) -> None:
        """Never run."""

    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    case = Case("a & b", "c < d", Role.SERVER, nothing)
    page = report.to_html(
        CaseOutcome(protocol("hsp"), f"hsp://{evil}", Role.SERVER, [CaseResult(case, CaseVerdict.FAILED, evil)])
    )
    read = Reader(page)
    assert not {"script", "img", "link", "iframe"} & set(read.tags)
    assert read.text.count(evil) == 2
    assert "a & b" in read.text
    assert "http://" not in page
    assert "https://" not in page


def test_the_command_writes_both_reports_and_fails_for_a_must(tmp_path: Path) -> None:
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    done = wireloom(
        "conformance",
        "--listen",
        "hsp://127.0.0.1:0",
        "--wait",
        "0.1",
        "--only",
        "*PING*",
        "--html",
        page,
        "--json",
        data,
    )
    assert done.code == 0
    assert done.lines[0].startswith("listening on hsp://127.0.0.1:")
    assert done.lines[1] == "skipped  must     a PING is answered with a PONG: no client connected for it"
    assert done.lines[-1] == "0 passed, 0 failed, 3 skipped: nothing is known"
    found = json.loads(data.read_text())
    assert (found["protocol"], found["role"], found["conforms"]) == ("hsp", "client", True)
    assert found["counts"] == {"passed": 0, "failed": 0, "differs": 0, "skipped": 3}
    assert {each["verdict"] for each in found["cases"]} == {"skipped"}
    assert "no client connected for it" in Reader(page.read_text()).text


async def test_the_command_gives_exit_code_1_when_a_must_fails() -> None:
    async with server(hsp_server(pongs=2)) as port:
        done = await asyncio.to_thread(wireloom, "conformance", f"hsp://127.0.0.1:{port}", "--only", "one PONG*")
    assert done.code == 1
    assert done.lines[-1] == "0 passed, 1 failed, 0 skipped: 1 of what a server must do is not done"


def test_nobody_there_is_an_error_in_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = wireloom("conformance", f"hsp://127.0.0.1:{free.getsockname()[1]}")
    assert done.code == 4
    assert re.fullmatch(
        r"wireloom: cannot reach hsp://\S+: Connection refused: nothing listens there; .+\n", done.errors
    )
    assert wireloom("conformance", "hsp://127.0.0.1", "--timeout", "0").code == 2
