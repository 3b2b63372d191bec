"""`wireloom up`: its parts run together, come back when they die, and end together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from wireloom.cli.main import main

CONFIG = """
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
[http]
url = "http://127.0.0.1:0"
"""


@contextmanager
def up(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    said = folder / "said.txt"
    command = [sys.executable, "-m", "wireloom", "up", "--data", str(folder / "data"), *words]
    with said.open("w") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, text=True)
    try:
        yield process, said
    finally:
        process.terminate()
        process.wait(60)


def wait_for(said: Path, pattern: str, times: int = 1) -> list[str]:
    deadline = time.monotonic() + 90
    while len(found := re.findall(pattern, said.read_text(), re.MULTILINE)) < times:
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
    return found


def test_a_killed_hub_comes_back_and_everything_ends_together(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(CONFIG)
    words = ["--config", str(config), "--no-pipeline", "--console", "http://127.0.0.1:0"]
    with up(tmp_path, *words) as (process, said):
        wait_for(said, r"^ready$")
        wait_for(said, r"^console at http://127\.0\.0\.1:\d+$")
        process.send_signal(signal.SIGHUP)
        wait_for(tmp_path / "data" / "logs" / "hub.log", "the new configuration is in force")
        (pid,) = wait_for(said, r"^hub: process (\d+)$")
        os.kill(int(pid), signal.SIGKILL)
        wait_for(said, r"^hub: ended \(killed by signal 9\); starting it again$")
        again = wait_for(said, r"^hub: process (\d+)$", times=2)
        children = [psutil.Process(int(number)) for number in (again[1], *wait_for(said, r"^console: process (\d+)$"))]
        process.terminate()
        assert process.wait(60) == 0 and said.read_text().endswith("stopped\n")
        assert not any(child.is_running() for child in children)
    assert (tmp_path / "data" / "logs" / "hub.log").exists() and (tmp_path / "data" / "journal").is_dir()


def test_a_mistake_in_the_configuration_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text("[[listener]]\nurl = 'hspp://127.0.0.1:0'\n")
    with up(tmp_path, "--config", str(tmp_path / "hub.toml")) as (process, said):
        assert process.wait(120) == 2
        (told,) = re.findall(r"^wireloom: the hub does not start: (.+)$", said.read_text(), re.MULTILINE)
        assert "hub.toml:2" in told and "hspp" in told
        assert "starting it again" not in said.read_text()


def test_a_part_that_ends_again_and_again_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(CONFIG)
    words = ["--config", str(tmp_path / "hub.toml"), "--no-pipeline", "--no-console"]
    with up(tmp_path, *words) as (process, said):
        for times in range(1, 6):
            os.kill(int(wait_for(said, r"^hub: process (\d+)$", times)[-1]), signal.SIGKILL)
        assert process.wait(120) == 2
        assert "the hub ended 5 times in a row, see " in said.read_text()


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--help"])
    assert "wireloom up --config hub.toml" in capsys.readouterr().out
