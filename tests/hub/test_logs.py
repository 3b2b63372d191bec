"""What the hub's log holds."""

from __future__ import annotations

import io
import logging
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.hub.process import HubProcess
from wireloom.hub.logs import BURST, LINES, AtMost

PROGRAM = """
import logging
from wireloom.hub.logs import LogFormat, start_logging
start_logging(LogFormat.TEXT, verbose={verbose})
for name in ("wireloom.hub", "numba.core.ssa", "slixmpp"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger(name).log(level, "%s %s", name, logging.getLevelName(level))
"""


def logged(*, verbose: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(verbose=verbose)], capture_output=True, text=True, check=True, timeout=60
    )
    return [" ".join(line.split()[-2:]) for line in done.stderr.splitlines()]


def test_libraries_only_warn_however_much_the_hub_says() -> None:
    warnings = ["numba.core.ssa WARNING", "slixmpp WARNING"]
    assert logged(verbose=False) == ["wireloom.hub INFO", "wireloom.hub WARNING", *warnings]
    assert logged(verbose=True) == ["wireloom.hub DEBUG", "wireloom.hub INFO", "wireloom.hub WARNING", *warnings]


def test_lines_about_one_event_are_limited_and_those_left_out_are_counted() -> None:
    moment = [0.0]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(AtMost(rate=1, burst=3, now=lambda: moment[0]))

    def say(event: str, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("wireloom", level, "x.py", 1, "100%% of %s", (event,), None)
        record.event = event
        handler.handle(record)

    for _ in range(10):
        say("connection.refused")
        say("journal.lost", logging.ERROR)
    say("listener.open")
    moment[0] = 2.0
    say("connection.refused")
    lines = stream.getvalue().splitlines()
    assert lines.count("100% of connection.refused") == 3
    assert lines.count("100% of journal.lost") == 10, "errors pass"
    assert lines[-2:] == ["100% of listener.open", "100% of connection.refused (7 lines like it were left out)"]


def test_strangers_cannot_fill_the_log(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path)
    began = time.monotonic()
    for _ in range(3000):
        with socket.create_connection(("127.0.0.1", hub.port)) as stranger:
            stranger.sendall(b"\xff" * 20)
    code, said = hub.stop()
    seconds = time.monotonic() - began
    assert code == 0
    lines = len(re.findall(r" refused: ", said))
    assert BURST <= lines <= BURST + LINES * (seconds + 1), said[-500:]
