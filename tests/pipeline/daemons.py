"""Daemons of Spark's own, started with the scripts of the PySpark package: each a process on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil

from wireloom.pipeline.java import find_java, home_for_spark


class Daemons:
    """Whatever a test starts, and ends with `stop`."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(str(pyspark.__file__)).parent
        self.folder = folder
        self._script = str(home / "bin" / "spark-class")
        source = str(Path(__file__).resolve().parents[2] / "src")
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(home_for_spark(find_java())),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": source,
        }
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self, java_class: str, *arguments: str) -> Path:
        """Start a daemon by the name of its class; where it logs."""
        log = self.folder / f"{java_class.rpartition('.')[2]}-{len(self._daemons)}.log"
        with log.open("wb") as sink:
            command = [self._script, java_class, *arguments]
            self._daemons.append(
                subprocess.Popen(command, env=self._environment, stdout=sink, stderr=sink, start_new_session=True)
            )
        return log

    def wait_for(self, log: Path, pattern: str) -> str:
        """The first match of a pattern in a log."""
        deadline = time.monotonic() + 240
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            assert all(daemon.poll() is None for daemon in self._daemons), log.read_text(errors="replace")
            time.sleep(0.2)
        return found[0]

    def stop(self) -> None:
        """End all daemons and what they started."""
        for daemon in self._daemons:
            try:
                members = psutil.Process(daemon.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                members = []
            daemon.kill()
            for member in members:
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue
            daemon.wait()
