"""`wireloom hub` as a process of its own, as an operator runs it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.pipeline.commands import WIRELOOM

HSP_AND_HTTP = """\
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
topics = { 7 = "load" }
[http]
url = "http://127.0.0.1:0"
"""


def hub_command(folder: Path, extra: str = "", config_folder: Path | None = None) -> list[str]:
    """The command that runs a hub with its data in a folder; its configuration stands there, too, unless told otherwise."""
    if config_folder is None:
        folder.mkdir(parents=True, exist_ok=True)
    config = (config_folder or folder) / "hub.toml"
    config.write_text(HSP_AND_HTTP + extra)
    return [*WIRELOOM, "hub", "--config", str(config), "--data", str(folder)]


class HubProcess:
    """A hub that is ready once this is made."""

    def __init__(
        self, folder: Path, extra: str = "", config_folder: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        # Not a pipe: a hub that has much to say would wait for somebody to read it.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            hub_command(folder, extra, config_folder), stdout=subprocess.PIPE, stderr=self._log, text=True, env=env
        )
        self.urls: dict[str, str] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                url = line.split()[-1]
                self.urls[url.partition(":")[0]] = url
            if line.strip() == "ready":
                break
        else:
            raise AssertionError(f"the hub did not start: {self._end()}")

    @property
    def port(self) -> int:
        return int(self.urls["hsp"].rpartition(":")[2])

    def kill(self) -> str:
        """kill -9; what it said before."""
        self.process.send_signal(signal.SIGKILL)
        return self._end()

    def stop(self) -> tuple[int, str]:
        """An orderly stop: exit code and everything it said."""
        self.process.send_signal(signal.SIGTERM)
        try:
            said = self._end(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.process.returncode, said

    def _end(self, timeout: float | None = None) -> str:
        out, _ = self.process.communicate(timeout=timeout)
        with self._log as log:
            log.seek(0)
            return out + log.read()


def kill_while_starting(folder: Path, seconds: float, extra: str = "", config_folder: Path | None = None) -> None:
    """Start a hub and kill it after a while, most likely before it is ready: recovery, too, can be cut off."""
    process = subprocess.Popen(
        hub_command(folder, extra, config_folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()


def verify(journal: Path) -> None:
    """`wireloom journal verify` finds no fault."""
    command = [*WIRELOOM, "journal", "verify", str(journal)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
