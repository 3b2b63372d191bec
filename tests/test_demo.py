"""`make demo`, with fewer readings: everything it promises comes to pass, and it leaves behind what it should."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
PATIENCE = 400
pytestmark = [pytest.mark.spark, pytest.mark.timeout(PATIENCE + 150)]


@contextmanager
def demo(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The demo in a folder of its own, and the file that gets what it says."""
    said = folder / "said.txt"
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "examples.demo", "--readings", "300", *words]
    with said.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True
        )
    try:
        yield process, said
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(60)
        finally:
            for child in psutil.wait_procs(children, 60)[1]:
                child.kill()


def check_the_summary(told: str) -> None:
    assert "every one of the 1,200 acknowledged readings is in `messages`" in told, told
    assert "kill -9 of the hub" in told
    for protocol in ("emp", "hsp", "mesh", "wolpertinger", "yamp"):
        assert re.search(rf"^{protocol} +\S+ +(event|request) +\d+ +\d+$", told, re.MULTILINE), (
            f"what was sent over {protocol}\n{told}"
        )
    assert re.search(r"^Billing\.Invoice +yamp +request +done +\d+ +[\d.]+ +[\d.]+$", told, re.MULTILINE), told
    assert re.search(r"^Billing\.Refund +\w+ +request +error ", told, re.MULTILINE), told
    assert re.search(r"^hsp +hsp\.command\.unknown ", told, re.MULTILINE), told
    for rule in ("mesh.forged", "mesh.replay"):
        assert re.search(rf"^{rule} +\w+ +\d+$", told, re.MULTILINE), told


def test_it_tells_everything_and_leaves_what_the_readme_asks(tmp_path: Path) -> None:
    with demo(tmp_path) as (process, said):
        assert process.wait(PATIENCE) == 0, said.read_text()
    told = said.read_text()
    check_the_summary(told)
    assert "demo-report.html" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-data", "demo-report.html", "said.txt"]
    assert "Wireloom report" in (tmp_path / "demo-report.html").read_text()
    smallest_query = (ROOT / "README.md").read_text().partition("## The smallest query")[2]
    program = smallest_query.partition("```python\n")[2].partition("```")[0]
    for command in (
        [sys.executable, "-c", program],
        [sys.executable, "-m", "wireloom", *["pipeline", "run", "--input", "demo-data/journal", "--once"],
         "--warehouse", "demo-data/warehouse"],
        [sys.executable, "-m", "wireloom", "sql", "select topic from messages", "--warehouse", "demo-data/warehouse"],
    ):  # fmt: skip
        asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr


@pytest.mark.slow
def test_it_leaves_everything_running_when_asked(tmp_path: Path) -> None:
    with demo(tmp_path, "--keep") as (process, said):
        deadline = time.monotonic() + PATIENCE
        while "everything goes on running" not in said.read_text():
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        told = said.read_text()
        check_the_summary(told)
        console = re.findall(r"console: (http://127\.0\.0\.1:\d+)", told)[-1]
        with urllib.request.urlopen(console, timeout=30) as page:
            assert b"Wireloom console" in page.read()
        parts = [psutil.Process(int(pid)) for pid in re.findall(r"process (\d+)", told)]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert not [part for part in parts if part.is_running()]
    assert (tmp_path / "demo-data" / "report.html").exists()
    assert (tmp_path / "demo-data" / "warehouse" / "messages").is_dir()
