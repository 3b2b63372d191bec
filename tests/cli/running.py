"""Runs the command line: in this process, or as people do in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wireloom.cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "wireloom.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


def wireloom(*words: str | Path, stdin: bytes = b"") -> Done:
    """Run a command to its end, inside this process: starting one takes longer than most commands."""
    streams = sys.stdin, sys.stdout, sys.stderr
    out, errors = io.BytesIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))  # type: ignore[arg-type]
    text = io.TextIOWrapper(out, write_through=True)
    sys.stdout, sys.stderr = text, errors
    try:
        code = main([str(word) for word in words])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    text.flush()
    return Done(code, out.getvalue(), errors.getvalue())


@contextmanager
def started(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until the test is over."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
