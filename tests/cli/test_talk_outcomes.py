"""What a script and a person learn from `pub`, `sub` and `req`: exit codes, and hints that help."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.cli.running import COMMAND, ENVIRONMENT, started, wireloom
from tests.hub.process import HubProcess
from wireloom import TLS, Kind, Message, Peer, ProtocolViolation, serve
from wireloom.testing import peer_pair

RULES = """
[[listener]]
url = "yamp://127.0.0.1:0"
[[access.rule]]
who = ["anyone"]
subscribe = ["#"]
request = ["#"]
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    hub = HubProcess(tmp_path_factory.mktemp("hub"), RULES)
    yield hub
    hub.stop()


@contextmanager
def silent_server() -> Iterator[int]:
    """Takes connections and says nothing, as a server that knows no `$hub/` may."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in taken:
            each.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_refusal_an_unreachable_server_and_a_typo_have_codes_of_their_own(hub: HubProcess) -> None:
    assert wireloom("req", hub.urls["yamp"], "nobody/provides", "1").code == 3
    assert wireloom("pub", hub.urls["hsp"], "not/allowed", "1", "--ack").code == 3
    assert wireloom("req", f"yamp://127.0.0.1:{free_port()}", "a", "1").code == 4
    assert wireloom("req", "yammp://127.0.0.1", "a", "1").code == 2
    assert wireloom("req", hub.urls["yamp"], "a", "1", "--tiemout", "3").code == 2


def test_without_ack_a_person_is_told_that_nobody_knows(hub: HubProcess) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run([*COMMAND, "pub", hub.urls["hsp"], "not/allowed", "1"], stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    said = os.read(ours, 4096).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "only --ack can tell" in said


@pytest.mark.parametrize("count", ["-1", "x", "1.5"])
def test_a_count_is_a_number_from_0_on(count: str) -> None:
    done = wireloom("sub", "hsp://127.0.0.1:1", "a", "--count", count)
    assert done.code == 2
    assert f"--count: '{count}' is not a whole number from 0 on" in done.errors


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_a_timeout_is_a_number_of_seconds(seconds: str) -> None:
    done = wireloom("req", "hsp://127.0.0.1:1", "a", "--timeout", seconds)
    assert done.code == 2
    assert "is not a number of seconds above 0" in done.errors


def test_sub_waits_no_longer_than_it_was_told_and_hints_at_local() -> None:
    with silent_server() as port:
        begun = time.monotonic()
        done = wireloom("sub", f"hsp://127.0.0.1:{port}", "a/#", "--timeout", "1")
    assert time.monotonic() - begun < 20, "it waited for 30 s, whatever it was told"
    assert done.code == 4
    assert "did not answer the subscription within 1 s" in done.errors and "--local" in done.errors


def test_req_says_that_it_is_done_where_answers_have_no_value() -> None:
    with started("echo", "hsp://127.0.0.1:0") as echo:
        assert echo.stdout is not None
        url = echo.stdout.readline().removeprefix("listening on ").strip()
        done = wireloom("req", url, "a", "1")
        assert (done.code, done.out, done.errors) == (0, b"", "done; answers of hsp carry no value\n")


async def test_hints_about_certificates_name_the_options(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server")
    async with serve("yamps://127.0.0.1:0", tls=TLS(certificate=certificate, key=key)) as server:
        done = await asyncio.to_thread(wireloom, "req", server.url, "a", "1")
    assert (done.code, "--ca FILE" in done.errors) == (4, True), done.errors


def test_a_server_without_a_certificate_is_told_the_options() -> None:
    without = wireloom("echo", "yamps://127.0.0.1:0")
    assert (without.code, "--certificate FILE --key FILE" in without.errors) == (2, True), without.errors


async def test_an_answer_that_is_not_what_it_says_is_an_error_of_ours() -> None:
    async def broken(message: Message, peer: Peer) -> Message:
        return Message(Kind.RESPONSE, message.topic, b"{not json", content_type="application/json")

    async with peer_pair("emp", broken) as (client, _):
        with pytest.raises(ProtocolViolation, match="the body is not application/json"):
            await client.request("a")
