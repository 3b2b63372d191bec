"""The command line against an emp peer with exclusive sizes and no extensions but the two of the specification."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import wireloom
from tests.interop.erlang_emp import DATA, HELLO, erlang_server, frame, request


def test_a_request_is_answered_without_any_option() -> None:
    with erlang_server() as peer:
        done = wireloom("req", peer.url, "math/add", "what?")
        assert (done.code, done.out) == (0, b"what?\n"), done.errors
        assert [line.died_of for line in peer.lines] == [None, None]
        assert "topic is not sent" in done.errors


def test_the_mode_of_a_server_is_remembered_for_its_url() -> None:
    with erlang_server() as peer:
        for count in (2, 3):
            assert wireloom("req", peer.url, "a", "b").code == 0
            assert len(peer.lines) == count, "once in the wrong mode, then never again"


@pytest.mark.parametrize("options", [(), ("--ack",)])
def test_an_event_arrives_without_any_option(options: tuple[str, ...]) -> None:
    with erlang_server() as peer:
        done = wireloom("pub", peer.url, "alerts/fire", "run", *options)
        assert done.code == 0, done.errors
        assert peer.bodies() == [b"run"]
        assert {block[0] for line in peer.lines for each in line.heard for block in each.blocks} <= {0}


@pytest.mark.parametrize("pattern", ["alerts/#", "#", "anything"])
def test_events_are_shown_without_any_option(pattern: str) -> None:
    with erlang_server(b"one", b"two") as peer:
        done = wireloom("sub", peer.url, pattern, "--count", "2")
        assert done.code == 0, done.errors
        assert {json.loads(line)["body"] for line in done.lines} == {"one", "two"}
        assert [line.died_of for line in peer.lines] == [None, None]


def test_recorded_bytes_are_decoded_without_any_option() -> None:
    data = frame(HELLO, b"\1\0\0\0") + request(1, b"what?") + frame(DATA, b"hello")
    done = wireloom("decode", "emp", stdin=data)
    assert done.code == 0
    first, second, third = (json.loads(line) for line in done.lines)
    assert first["attributes"] == {"version": "1", "size_mode": "exclusive"}
    assert (second["kind"], second["body"], third["body"]) == ("request", "what?", "hello")


def test_the_wrong_mode_is_an_error_that_names_the_setting() -> None:
    with erlang_server() as peer:
        done = wireloom("req", f"{peer.url}?size_mode=inclusive", "a", "b")
        assert done.code != 0
        assert 'set size_mode = "exclusive"' in done.errors
    data = frame(HELLO, b"\1\0\0\0")
    done = wireloom("decode", "emp", "--set", "size_mode=inclusive", stdin=data)
    assert 'set size_mode = \\"exclusive\\"' in done.out.decode()


def test_the_mode_may_stand_in_the_url_or_among_the_options() -> None:
    for words in (
        ("?size_mode=exclusive",),
        ("", "--set", "size_mode=exclusive"),
        ("", "--set", 'size_mode="exclusive"'),
    ):
        with erlang_server() as peer:
            query, *options = words
            assert wireloom("req", peer.url + query, "a", "b", *options).out == b"b\n"
            assert len(peer.lines) == 1


def test_with_the_profile_on_such_a_peer_dies_as_it_does() -> None:
    with erlang_server() as peer:
        done = wireloom("req", peer.url, "a", "b", "--set", "profile=on")
        assert done.code != 0
        assert peer.lines[-1].died_of == 128


def test_a_token_is_never_shown_to_such_a_peer(tmp_path: object) -> None:
    from pathlib import Path

    token = Path(str(tmp_path)) / "token"
    token.write_text("secret-token")
    with erlang_server() as peer:
        done = wireloom("req", peer.url, "a", "b", "--token-file", token)
        assert done.code != 0
        assert "profile" in done.errors
        assert not any(b"secret" in body for body in peer.bodies())


def test_the_last_words_of_a_peer_reach_the_user() -> None:
    import socket
    import threading

    text = b"not today"
    with socket.create_server(("127.0.0.1", 0)) as door:

        def refuse() -> None:
            connection, _ = door.accept()
            with connection:
                error = b"\3\0\0\0" + len(text).to_bytes(2) + text
                connection.sendall((8 + len(error)).to_bytes(4) + b"\4\0\0\0" + error)
                connection.recv(1000)

        threading.Thread(target=refuse, daemon=True).start()
        done = wireloom("req", f"emp://127.0.0.1:{door.getsockname()[1]}", "a", "b")
    assert done.code != 0
    assert "the peer's error 3: not today" in done.errors
