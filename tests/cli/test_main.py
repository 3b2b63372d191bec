"""The command line as a whole: help, exit codes, broken pipes, interrupts."""

from __future__ import annotations

import errno
import signal
import subprocess

import pytest

from tests.cli.running import COMMAND, ENVIRONMENT, started, wireloom
from wireloom.cli.main import COMMANDS, explain


def test_help_lists_every_command() -> None:
    done = wireloom("--help")
    assert done.code == 0
    assert all(f" {name} " in done.out.decode() for name in COMMANDS)


@pytest.mark.parametrize("command", ["decode", "encode", "pub", "sub", "req", "echo", "hub", "journal"])
def test_help_of_each_command_shows_an_example(command: str) -> None:
    done = wireloom(command, "--help")
    assert done.code == 0
    assert "example" in done.out.decode() and f"wireloom {command}" in done.out.decode()


def test_unknown_command_and_option_are_refused() -> None:
    assert wireloom("dance").code == 2
    done = wireloom("pub", "hsp://127.0.0.1", "t", "--no-such-option")
    assert done.code == 2
    assert "unknown arguments: --no-such-option" in done.errors


def test_nothing_at_all_shows_usage() -> None:
    done = wireloom()
    assert done.code == 2 and "usage: wireloom" in done.errors


def test_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "decode", "hsp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        bufsize=0,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"\x03")
        process.stdout.readline()
        process.stdout.close()
        try:
            for _ in range(200):
                process.stdin.write(b"\x03" * 10_000)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_interrupt_is_quiet() -> None:
    with started("decode", "hsp") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.buffer.write(b"\x03")
        process.stdin.buffer.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "choose another port"),
        (errno.EADDRNOTAVAIL, "does not have that address"),
        (errno.EACCES, "permissions"),
        (errno.ENOSPC, "make room"),
    ],
)
def test_errors_of_the_system_come_with_advice(number: int, advice: str) -> None:
    assert advice in explain(OSError(number, "text"))


def test_only_the_wanted_command_is_imported() -> None:
    code = "import sys; from wireloom.cli.main import main; main(['decode', 'hsp', '/dev/null']); print(*sys.modules)"
    done = subprocess.run([*COMMAND[:1], "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    loaded = set(done.stdout.split())
    assert not {"numpy", "pyarrow", "pyspark", "numba", "wireloom.hub", "wireloom.pipeline"} & loaded


@pytest.mark.parametrize("words", [["req"], ["sub", "hsp://127.0.0.1:1"], ["keys"], ["nonsense"], ["decode"]])
def test_wrong_usage_is_one_line_that_names_the_help(words: list[str]) -> None:
    done = wireloom(*words)
    assert (done.code, done.out, len(done.errors.splitlines())) == (2, b"", 1)
    assert done.errors.startswith("wireloom: ") and "--help`" in done.errors


@pytest.mark.parametrize(
    "words",
    [[name] for name in ("decode", "encode", "pub", "sub", "req", "echo", "keys")]
    + [["keys", name] for name in ("new", "show", "trust", "rotate")],
)
def test_help_shows_an_example(words: list[str]) -> None:
    done = wireloom(*words, "--help")
    assert done.code == 0
    _, found, examples = done.out.decode().rpartition("example")
    assert found and f"wireloom {' '.join(words)} " in examples
