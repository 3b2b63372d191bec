"""`wireloom up`: hub, streaming pipeline and console together, kept running until you stop them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wireloom.model import ConfigError, WireloomError

EXAMPLE = """\
examples:
  wireloom up                                loopback, default ports, everything in wireloom-data
  wireloom up --config hub.toml --data /var/lib/wireloom --trust trust.json
  wireloom up --no-pipeline                  hub and console only
"""
START_AGAIN_AFTER = 1.0
GIVE_UP_AFTER = 5
STEADY = 30.0
"""Seconds after which a part that ran counts as having started well."""
LAST_WORDS = 400
FAILED = 2
"""The exit code of our commands when something must be set right by a person."""


class ChildFailed(WireloomError):
    """A child process ended again and again; the text holds its last lines of output."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `up`."""
    parser = subparsers.add_parser(
        "up",
        help="run hub, pipeline and console together",
        description="Run hub, streaming pipeline and console together; what ends by accident is started again.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the hub's configuration; default: loopback only")
    parser.add_argument("--data", type=Path, default=Path("wireloom-data"), metavar="DIR", help="journal, tables, logs")
    parser.add_argument("--console", default="http://127.0.0.1:5080", metavar="URL", help="where the console listens")
    parser.add_argument("--trust", type=Path, metavar="FILE", help="keys of mesh nodes, for the pipeline's findings")
    parser.add_argument("--no-pipeline", action="store_true", help="leave the pipeline out")
    parser.add_argument("--no-console", action="store_true", help="leave the console out")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM."""
    (arguments.data / "logs").mkdir(parents=True, exist_ok=True)
    asyncio.run(_up(arguments))
    return 0


async def _up(arguments: argparse.Namespace) -> None:
    data: Path = arguments.data
    logs = data / "logs"
    config = ["--config", str(arguments.config)] if arguments.config else []
    hub = ChildProcess("hub", ["hub", *config, "--data", str(data)], logs)
    parts = [hub]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # From a terminal it means that the terminal is gone; from anybody else, that the configuration has changed.
    loop.add_signal_handler(signal.SIGHUP, stop.set if sys.stdin.isatty() else hub.reload)
    stopped = asyncio.create_task(stop.wait())
    try:
        keepers = [hub.keep_running()]
        await _first(stopped, hub.until("ready"), keepers)
        for line in hub.lines:
            if line.startswith(("listening on", "journal in")):
                print(f"hub: {line}", flush=True)
        if not arguments.no_pipeline:
            journal = hub.said(r"journal in (.+)")
            trust = ["--trust", str(arguments.trust)] if arguments.trust else []
            words = ["--input", journal, "--warehouse", str(data / "warehouse"), "--continuous", *trust]
            pipeline = ChildProcess("pipeline", ["pipeline", "run", *words], logs)
            parts.append(pipeline)
            keepers.append(pipeline.keep_running())
            print(f"pipeline: tables in {data / 'warehouse'} (Spark starts; it catches up)", flush=True)
        if not arguments.no_console:
            pages = hub.said(r"listening on (https?://\S+)")
            words = ["--url", arguments.console, "--hub", pages, "--warehouse", str(data / "warehouse")]
            console = ChildProcess("console", ["console", *words], logs)
            parts.append(console)
            keepers.append(console.keep_running())
            await _first(stopped, console.until("console at"), keepers)
            print(console.said(r"(console at .+)"), flush=True)
        print(f"logs in {logs}; stop with Ctrl-C\nready", flush=True)
        await _first(stopped, None, keepers)
    finally:
        # The console and the pipeline first: they read what the hub writes.
        for part in reversed(parts):
            await part.stop()
        print("stopped", flush=True)


async def _first(
    stopped: asyncio.Task[bool], wanted: asyncio.Task[None] | None, keepers: list[asyncio.Task[None]]
) -> None:
    """Wait for an event or for a stop signal; a child that keeps failing ends the wait with its error."""
    await asyncio.wait([stopped, *([wanted] if wanted else []), *keepers], return_when=asyncio.FIRST_COMPLETED)
    for keeper in keepers:
        if keeper.done():
            keeper.result()
    if stopped.done() and wanted is not None and not wanted.done():
        wanted.cancel()
        raise KeyboardInterrupt


class ChildProcess:
    """A child process that runs one of our commands, with its standard error in a log."""

    def __init__(self, name: str, words: Sequence[str], logs: Path) -> None:
        self.name = name
        self.lines: list[str] = []
        self._words = words
        self._log = logs / f"{name}.log"
        self._news = asyncio.Condition()
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    def keep_running(self) -> asyncio.Task[None]:
        """Start it, and start it again whenever it ends."""
        self._keeper = asyncio.create_task(self._keep())
        return self._keeper

    def until(self, beginning: str) -> asyncio.Task[None]:
        """Done when it has printed a line that begins so."""

        async def wait() -> None:
            async with self._news:
                await self._news.wait_for(lambda: any(line.startswith(beginning) for line in self.lines))

        return asyncio.create_task(wait())

    def said(self, pattern: str) -> str:
        """What it printed, by a pattern with one group."""
        for line in self.lines:
            if found := re.fullmatch(pattern, line):
                return found[1]
        raise ConfigError(
            f"the {self.name} said nothing like {pattern!r}; the hub's configuration must have its pages on: [http]"
        )

    def reload(self) -> None:
        """Ask it to read its configuration again."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError, WireloomError):
                await self._keeper
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()

    async def _keep(self) -> None:
        failures = starts = 0
        while True:
            began, written = time.monotonic(), self._log.stat().st_size if self._log.exists() else 0
            code = await self._run_once()
            starts += 1
            failures = 0 if time.monotonic() - began > STEADY else failures + 1
            words = self._log.read_bytes()[written:].decode(errors="replace").strip()[-LAST_WORDS:]
            if starts == 1 and code == FAILED:
                # It has reported the error, and a restart would not help.
                raise ChildFailed(f"the {self.name} does not start: {words.rpartition('wireloom: ')[2]}")
            if failures >= GIVE_UP_AFTER:
                raise ChildFailed(f"the {self.name} ended {failures} times in a row, see {self._log}: {words}")
            why = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            print(f"{self.name}: ended ({why}); starting it again", flush=True)
            await asyncio.sleep(START_AGAIN_AFTER)

    async def _run_once(self) -> int:
        with self._log.open("ab") as log:
            # A group of its own: Ctrl-C is for us, and we stop the parts in order.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "wireloom", *self._words),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        print(f"{self.name}: process {self._process.pid}", flush=True)
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._news:
                self.lines.append(line.decode(errors="replace").strip())
                del self.lines[:-1000]
                self._news.notify_all()
        return await self._process.wait()
