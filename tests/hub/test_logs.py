"""What the hub's log holds."""

from __future__ import annotations

import subprocess
import sys

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
