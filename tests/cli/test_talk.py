"""`pub`, `sub`, `req` and `echo` against each other, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.cli.running import COMMAND, ENVIRONMENT, started, wireloom
from wireloom import connect, serve
from wireloom.cli.talk import echo_handler
from wireloom.model import Kind, Message, PeerClosed
from wireloom.testing import peer_pair


@pytest.fixture(scope="module", params=["emp", "yamp", "yamp+ws"])
def echo(request: pytest.FixtureRequest) -> Iterator[str]:
    with started("echo", f"{request.param}://127.0.0.1:0") as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip()


def test_request_shows_the_body_of_the_answer(echo: str) -> None:
    done = wireloom("req", echo, "math/add", '{"a": 1, "b": [2]}')
    assert (done.code, done.errors) == (0, "")
    assert json.loads(done.out) == {"a": 1, "b": [2]}


def test_request_as_a_line_of_json(echo: str) -> None:
    done = wireloom("req", echo, "x", '{"a":1}', "--json")
    line = json.loads(done.lines[0])
    assert (line["kind"], line["status"], json.loads(line["body"])) == ("response", "done", {"a": 1})


def test_body_from_standard_input(echo: str) -> None:
    assert json.loads(wireloom("req", echo, "x", "-", stdin=b'{"from": "stdin"}').out) == {"from": "stdin"}


def test_a_request_for_each_line_and_the_answers_in_their_order(echo: str) -> None:
    done = wireloom("req", echo, "x", "--lines", stdin=b"".join(b'{"n": %d}\n' % number for number in range(300)))
    assert (done.code, done.errors) == (0, "")
    assert [json.loads(line) for line in done.lines] == [{"n": number} for number in range(300)]
    shown = wireloom("req", echo, "x", "--lines", "--json", stdin=b'{"n": 1}\n{"n": 2}\n').lines
    assert [json.loads(json.loads(line)["body"]) for line in shown] == [{"n": 1}, {"n": 2}]
    assert wireloom("req", echo, "x", "--lines", stdin=b"").out == b""


@pytest.mark.parametrize("command", ["req", "pub"])
@pytest.mark.parametrize("body", ["hello", "-"])
def test_lines_and_a_body_contradict_each_other(command: str, body: str) -> None:
    done = wireloom(command, "hsp://127.0.0.1:1", "x", body, "--lines", stdin=b"one\n")
    assert (done.code, done.out) == (2, b"")
    assert done.errors == "wireloom: --lines takes every body from standard input: leave BODY out\n"


async def test_echo_sends_events_back_to_who_sent_them(echo: str) -> None:
    async with connect(echo) as sender, connect(echo) as other:
        async with sender.subscribe("a/#", local=True) as back, other.messages() as elsewhere:
            await sender.publish("a/b", {"n": 1})
            event = await anext(back)
            assert (event.topic, sender.decode(event)) == ("a/b", {"n": 1})
            await other.request("x")
            assert (await anext(elsewhere)).kind == "response", "nobody else hears it"


@pytest.mark.parametrize("scheme", ["emp", "yamp", "yamp+ws"])
async def test_interrupted_sub_is_quiet(scheme: str) -> None:
    connected = asyncio.Event()
    async with serve(f"{scheme}://127.0.0.1:0", on_connect=lambda peer: connected.set()) as server:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "sub", server.url, "a/#", "--local",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        await connected.wait()
        assert process.stdout is not None
        shown = asyncio.ensure_future(process.stdout.readline())
        while not shown.done():
            # Connected comes before subscribed: events are shown from then on.
            await server.connections[0].publish("a/b", "x")
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (130, b"")


async def test_an_event_of_somebody_who_has_left_is_not_sent_back_and_is_no_error() -> None:
    async with peer_pair("yamp") as (client, server):
        await client.close()
        await server.close()
        with pytest.raises(PeerClosed):
            server.send(Message(Kind.EVENT, "a/b"))
        assert await echo_handler(Message(Kind.EVENT, "a/b"), server) is None


def test_publish_with_and_without_acknowledgement(echo: str) -> None:
    for words in (["a/b", "hello"], ["a/b", "hello", "--ack"], ["a/b"]):
        done = wireloom("pub", echo, *words)
        assert (done.code, done.out, done.errors) == (0, b"", "")
    assert wireloom("pub", echo, "a/b", "--lines", "--ack", stdin=b"one\ntwo\n").code == 0


def test_hub_carries_events_from_pub_to_sub(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text('[[listener]]\nurl = "hsp://127.0.0.1:0"\nprofile = true\n[http]\nurl = "off"\n')
    with started("hub", "--config", config, "--data", tmp_path / "data") as hub:
        assert hub.stdout is not None
        lines = iter(hub.stdout.readline, "")
        url = next(line for line in lines if "hsp://" in line).split()[-1]
        next(line for line in lines if line.startswith("ready"))
        with started("sub", url, "sensors/#", "--count", "3") as sub:
            assert sub.stdout is not None
            while sub.poll() is None:
                assert wireloom("pub", url, "sensors/kitchen", '{"c": 21.5}', "--ack").code == 0
                assert wireloom("pub", url, "elsewhere", "x", "--ack").code == 0
            events = [json.loads(line) for line in sub.stdout]
            assert sub.wait(20) == 0
        assert len(events) == 3
        assert {(event["topic"], event["body"]) for event in events} == {("sensors/kitchen", '{"c": 21.5}')}
        assert all(event["kind"] == "event" for event in events)


def test_tls_by_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    with started("echo", "emps://127.0.0.1:0", "--certificate", certificate, "--key", key) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        assert wireloom("req", url, "x", "hi", "--ca", authority.path).out == b"hi\n"
        assert wireloom("req", url, "x", "hi", "--insecure").out == b"hi\n"
        refused = wireloom("req", url, "x", "hi")
        assert refused.code == 4
        assert "certificate is not trusted" in refused.errors and refused.errors.count("\n") == 1


def test_errors_are_one_line(echo: str) -> None:
    for words, complaint in (
        (["req", "hsp://127.0.0.1:1", "x"], "cannot reach hsp://127.0.0.1:1: Connection refused"),
        (["pub", "gopher://x", "a"], "unknown URL scheme 'gopher'; known: "),
        (["pub", "localhost", "a"], "scheme://host:port"),
        (["sub", echo, "a/#/b"], "'#' must be the last level"),
        (["echo", echo], "something listens there already; stop it or choose another port"),
        (["echo", "hsps://127.0.0.1:0"], "needs a certificate"),
        (["req", echo, ""], "topic"),
    ):
        done = wireloom(*words)
        assert done.code == (4 if "cannot reach" in complaint else 2), words
        assert complaint in done.errors
        assert done.errors.startswith("wireloom: ") and done.errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_echo_stops_quietly(number: signal.Signals) -> None:
    with started("echo", "hsp://127.0.0.1:0") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        out, errors = process.communicate(timeout=20)
        assert (process.returncode, out, errors) == (0, "", "")


@pytest.mark.parametrize("topic", ["sensors/+", "#", "a/+/b"])
@pytest.mark.parametrize("words", [[], ["--ack"], ["--lines"]])
def test_publishing_to_a_pattern_is_refused(topic: str, words: list[str]) -> None:
    done = wireloom("pub", "hsp://127.0.0.1:1", topic, *words)
    assert done.code == 2
    assert done.errors == f"wireloom: {topic!r} is a pattern, which is for `wireloom sub`: publish to one topic\n"


def test_an_error_of_a_peer_shows_its_code_and_reason() -> None:
    with started("echo", "yamp://127.0.0.1:0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        done = wireloom("req", url, "$hub/nothing")
        assert done.code == 0, "echo answers everything but what the server itself knows"
        done = wireloom("req", url, "$hub/subscribe", "[]")
        assert (done.code, done.out) == (3, b"")
        assert done.errors.startswith("wireloom: request failed with 400: the body must be JSON such as")


def test_nobody_there_says_what_to_do() -> None:
    done = wireloom("req", "hsp://127.0.0.1:1", "x")
    assert (done.code, len(done.errors.splitlines())) == (4, 1)
    assert "cannot reach hsp://127.0.0.1:1" in done.errors
    assert "nothing listens there; start the server, or check the URL" in done.errors
    done = wireloom("req", "hsp://no-such-host.invalid", "x")
    assert done.code == 4
    assert "check the name in the URL" in done.errors


def test_unix_socket_from_the_shell(tmp_path: Path) -> None:
    url = f"emp+unix://{tmp_path}/echo.sock"
    assert "nothing listens there; start the server" in wireloom("req", url, "x").errors
    with started("echo", url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {url}\n"
        assert wireloom("req", url, "x", "hello").out == b"hello\n"
        taken = wireloom("echo", url)
        assert (taken.code, len(taken.errors.splitlines())) == (2, 1)
        assert "something listens there already" in taken.errors
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [["x", "hello", "--timeout", "9"], ["x", "--timeout", "9", "hello"], ["--timeout", "9", "x", "hello"]],
)
def test_the_body_may_stand_anywhere_among_the_options(echo: str, words: list[str]) -> None:
    done = wireloom("req", echo, *words)
    assert (done.code, done.errors, done.out.decode().strip().strip('"')) == (0, "", "hello")


@pytest.mark.parametrize("words", [["x", "a", "b"], ["x", "--colour"], ["x", "--timeout", "9", "a", "b"]])
def test_unknown_arguments_are_one_line(words: list[str]) -> None:
    done = wireloom("req", "hsp://127.0.0.1:1", *words)
    assert (done.code, len(done.errors.splitlines())) == (2, 1)
    assert done.errors.startswith("wireloom: unknown arguments: ")


def test_plain_server_behind_a_url_with_tls(echo: str) -> None:
    scheme, colon, rest = echo.partition(":")
    secure = {"emp": "emps", "yamp": "yamps", "yamp+ws": "yamp+wss"}[scheme]
    done = wireloom("req", f"{secure}{colon}{rest}", "x", "--insecure")
    assert (done.code, len(done.errors.splitlines())) == (4, 1)
    assert "it does not speak TLS; use the scheme" in done.errors or "check scheme and port" in done.errors
