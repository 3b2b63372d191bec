"""The processes of the demo: hub, pipeline and meters, each started as a user would start it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path


def free_port(preferred: int = 0) -> int:
    """A port nobody listens on: the preferred one, if it is free."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", preferred))
        except OSError:
            sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Program:
    """A child process whose output is kept, for the last words it may have."""

    def __init__(self, name: str, *words: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._file = log.open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=self._file, text=True
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.strip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, line: str, seconds: float = 30) -> None:
        """Until the program has printed this line."""
        with self._news:
            done = self._news.wait_for(
                lambda: line in self.lines or not self._reader.is_alive() or self.process.poll() is not None, seconds
            )
        if not done or line not in self.lines:
            raise RuntimeError(f"{self.name} did not come up: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what the program said on its error stream."""
        return self.log.read_text().strip()[-500:] or "it said nothing"

    @property
    def number(self) -> int:
        """The last line, where a program prints numbers."""
        return int(self.lines[-1]) if self.lines else 0

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self, seconds: float = 60) -> None:
        """Ask it to stop, and wait."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._end()

    def _end(self) -> None:
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._file.close()
